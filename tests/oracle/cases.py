"""Cases to test, as plain data, for tests and benchmarks alike.

A group is one product in many layouts: its cases share everything but layouts, alpha and beta, so
that one reference serves them all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from oracle.kinds import KINDS
from oracle.layouts import LAYOUTS

DTYPES = ("float32", "float64")

SMALL_EXTENTS = (0, 1, 2, 3, 5, 9)
ORDERS = ("row", "col")

# Tile edges, tall, flat, deep and uneven shapes met in convolutions, attention and solvers.
REAL_SHAPES = (
    *((m, n, 64) for m in (127, 128, 129) for n in (63, 64, 65)),
    (255, 257, 129),
    (1, 4096, 512),
    (4096, 1, 512),
    (1, 1, 100003),
    (9, 16, 23040),
    (25, 64, 27920),
    (639, 640, 347),
    (784, 64, 1000),
    (1000, 1000, 1000),
    (4011, 4012, 103),
    (24000, 256, 256),
    (50176, 64, 27),
)


@dataclass(frozen=True)
class Case:
    """Case of a test: one call of gemm."""

    kind: str  # a name from `kinds.KINDS`
    m: int  # the sizes of the product
    n: int
    k: int
    # names from `layouts.LAYOUTS` for a, b and c
    layouts: tuple[str, str, str] = ("row", "row", "row")
    alpha: float = 1.0  # the factors
    beta: float = 0.0
    data: str = "random"  # a name from `inputs.FILLS`
    # the batch extents of a, b and c; None for a two-dimensional operand
    batch: tuple[int | None, int | None, int | None] = (None, None, None)

    @property
    def dtype(self) -> str:
        """Dtype of a and b."""
        return KINDS[self.kind].dtype

    @property
    def out_dtype(self) -> str:
        """Dtype of c."""
        return KINDS[self.kind].out_dtype

    @property
    def precision(self) -> str | None:
        """Argument of gemm for precision."""
        return KINDS[self.kind].precision

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of a, b and c."""
        a, b, c = (() if extent is None else (extent,) for extent in self.batch)
        return (*a, self.m, self.k), (*b, self.k, self.n), (*c, self.m, self.n)

    def __str__(self) -> str:
        words = [self.kind, f"{self.m}x{self.n}x{self.k}"]
        if self.batch != (None, None, None):
            words.append("batch" + "_".join(str(extent or "none") for extent in self.batch))
        words.append("_".join(self.layouts))
        if self.alpha != 1:
            words.append(f"alpha{self.alpha:g}")
        words.append(f"beta{self.beta:g}")
        if self.data != "random":
            words.append(self.data)
        return "-".join(words)


Group = tuple[Case, ...]


def plain_layouts(kind: str) -> tuple[str, str, str]:
    """Row-major layouts of a, b and c that no implementation may refuse."""
    factor = "row_aligned" if KINDS[kind].is_reduced else "row"
    return factor, factor, "row"


def small_groups(kind: str, m: int) -> Iterator[Group]:
    """Yields the cases of one m in Netlib's own test of GEMM: 36 for each n and k."""
    padding = "_aligned" if KINDS[kind].is_reduced else "+1"
    alphas, betas = ((0.0, 1.0, factor) for factor in KINDS[kind].factors)
    for n, k in product(SMALL_EXTENTS, SMALL_EXTENTS):
        yield tuple(
            Case(kind, m, n, k, (a + padding, b + padding, "row+1"), alpha, beta)
            for a, b, alpha, beta in product(ORDERS, ORDERS, alphas, betas)
        )


def tile_edge_groups(kind: str, tile_m: int, tile_n: int, tile_k: int) -> Iterator[Group]:
    """Yields every size around a tile in the eight storage orders of a, b and c.

    Rows (or columns) of a and b start at multiples of 16 bytes in every other group, so that wide
    accesses meet ragged ends too; in all groups of kinds whose kernels may require it.
    """
    around = [(1, tile - 1, tile, tile + 1, 2 * tile + 1) for tile in (tile_m, tile_n, tile_k)]
    sizes = product(*(sorted(set(extents) - {0}) for extents in around))
    for index, (m, n, k) in enumerate(sizes):
        padding = "_aligned" if KINDS[kind].is_reduced or index % 2 else ""
        yield tuple(
            Case(kind, m, n, k, (a + padding, b + padding, c), *KINDS[kind].factors)
            for a, b, c in product(ORDERS, ORDERS, ORDERS)
        )


def layout_groups(kind: str, m: int, n: int, k: int, names: tuple[str, ...]) -> Iterator[Group]:
    """Yields one group per layout, which a, b and c take in turn and, where c may, together."""
    for name in names:
        placements = [(name, "row", "col"), ("col", name, "row")]
        if not any(LAYOUTS[name].repeats):
            placements += [("row", "col", name), (name, name, name)]
        yield tuple(Case(kind, m, n, k, layouts, *KINDS[kind].factors) for layouts in placements)
