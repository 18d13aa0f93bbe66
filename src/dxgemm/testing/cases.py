"""The problems to try, as plain data: one list for tests and benchmarks.

A group is one product in many arrangements: its cases share everything but layouts, alpha and
beta, so that one reference serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from dxgemm.testing.layouts import LAYOUTS

DTYPES = ("float32", "float64")

SMALL_EXTENTS = (0, 1, 2, 3, 5, 9)
SMALL_ALPHAS = (0.0, 1.0, 0.7)
SMALL_BETAS = (0.0, 1.0, 1.3)

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
    """One call of gemm.

    Attributes:
        dtype: "float32" or "float64".
        m, n, k: the sizes of the product.
        layouts: names from `layouts.LAYOUTS` for a, b and c.
        alpha, beta: the factors.
        data: a name from `inputs.FILLS`.
        batch: the batch extents of a, b and c; None for a two-dimensional operand.
    """

    dtype: str
    m: int
    n: int
    k: int
    layouts: tuple[str, str, str] = ("row", "row", "row")
    alpha: float = 1.0
    beta: float = 0.0
    data: str = "random"
    batch: tuple[int | None, int | None, int | None] = (None, None, None)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The shapes of a, b and c."""
        a, b, c = (() if extent is None else (extent,) for extent in self.batch)
        return (*a, self.m, self.k), (*b, self.k, self.n), (*c, self.m, self.n)

    def __str__(self) -> str:
        words = [self.dtype, f"{self.m}x{self.n}x{self.k}"]
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


def small_groups(dtype: str, m: int) -> Iterator[Group]:
    """Yields the cases of one m that Netlib's own test of GEMM runs: 36 for each n and k."""
    for n, k in product(SMALL_EXTENTS, SMALL_EXTENTS):
        yield tuple(
            Case(dtype, m, n, k, (f"{a}+1", f"{b}+1", "row+1"), alpha, beta)
            for a, b, alpha, beta in product(ORDERS, ORDERS, SMALL_ALPHAS, SMALL_BETAS)
        )


def tile_edge_groups(dtype: str, tile_m: int, tile_n: int, tile_k: int) -> Iterator[Group]:
    """Yields every size around a tile in the eight storage orders of a, b and c."""
    around = [(1, tile - 1, tile, tile + 1, 2 * tile + 1) for tile in (tile_m, tile_n, tile_k)]
    for m, n, k in product(*(sorted(set(extents) - {0}) for extents in around)):
        yield tuple(
            Case(dtype, m, n, k, layouts, 0.7, 1.3) for layouts in product(ORDERS, ORDERS, ORDERS)
        )


def layout_groups(dtype: str, m: int, n: int, k: int, names: tuple[str, ...]) -> Iterator[Group]:
    """Yields one group per layout, which a, b and c take in turn and, where c may, together."""
    for name in names:
        placements = [(name, "row", "col"), ("col", name, "row")]
        if not any(LAYOUTS[name].repeats):
            placements += [("row", "col", name), (name, name, name)]
        yield tuple(Case(dtype, m, n, k, layouts, 0.7, 1.3) for layouts in placements)
