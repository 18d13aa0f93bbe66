"""GPU time of products of float8 with scales, against cuBLASLt through `torch._scaled_mm`.

The rival has scales of the same kind. It sums as dxgemm is told to: fast, in the tensor core, or
promoted. It takes multiples of 16 and K-major operands alone: where a case has others, its time is
that of padded or transposed copies and the product. Results are bfloat16.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from cases import SMOKE, Call, Case, Operands, grid, normal, same, stored, torch, xp
from measuring import OWN, bench
from oracle import inputs

import dxgemm

RIVAL = "torch._scaled_mm"
DTYPE, BLOCK = "float8_e4m3fn", 128
LAYOUTS = ["row_row_row", "col_row_row", "col_col_row"]
TN = {"dtype": DTYPE, "arrangement": "row_col_row"}
SIZES = [
    512, 1024, 2048, 4096, 8192,
    (2048, 5120, 5120), (1576, 3072, 768), (512, 2560, 2560), (300, 6144, 4096), (16, 5120, 5120),
    (8192, 1280, 8192), (4096, 14336, 4096), (8192, 8192, 1024), (1536, 18944, 3584),
    (1024, 1024, 8192), (64, 12288, 4096), (128, 7168, 2048),
]  # fmt: skip
ODD = [2187, 4095, (1000, 3001, 1003)]


@dataclass(frozen=True)
class Float8Case(Case):
    """A product with scales of "tensor", "row" (and column) or "block" kind.

    Attributes:
        sizes: rows of a of each group, which has a matrix of b (groups, k, n), if there are groups.
    """

    scales: str = "tensor"
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        groups = f"-{len(self.sizes)}_groups" if self.sizes else ""
        return f"{Case.__str__(replace(self, sizes=()))}{groups}"

    def tiny(self) -> Any:
        return replace(self, m=6, n=5, k=132, sizes=(2, 0, 4) if self.sizes else ())

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        fill = inputs.integers if is_exact else normal
        orders, groups = self.arrangement.split("_"), [len(self.sizes)] if self.sizes else []
        a = to_dtype(stored(fill(rng, (self.m, self.k), "float32"), orders[0]), DTYPE)
        b = to_dtype(stored(fill(rng, (*groups, self.k, self.n), "float32"), orders[1]), DTYPE)
        out = to_dtype(xp.zeros((self.m, self.n), "float32"), "bfloat16")
        is_block = self.scales == "block"
        # As cuBLASLt takes them: rows of a are neighbours, and blocks of k of b.
        blocks, wide = (-(-self.k // BLOCK), -(-self.n // BLOCK)) if is_block else (1, self.n)
        shapes: list[tuple[int, ...]] = [(blocks, self.m), (*groups, wide, blocks)]
        if self.scales == "tensor":
            shapes = [(1,), (1,)]
        powers = (2.0 ** rng.integers(-2, 3, shape).astype("float32") for shape in shapes)
        x, y = (to_dtype(drawn, "float32") for drawn in powers)
        if self.scales != "tensor":
            x, y = x.T, y.swapaxes(-1, -2)
        ends = np.cumsum(self.sizes, dtype=np.int32)
        ends = ends if SMOKE else torch().from_numpy(ends).cuda()
        return Operands(a=a, b=b, out=out, x=x, y=y, ends=ends)

    def parts(self) -> list[tuple[Any, Any]]:
        """Rows of a, and matrix of b, of each group."""
        pairs = pairwise([0, *np.cumsum(self.sizes).tolist()])
        return [(slice(*pair), group) for group, pair in enumerate(pairs)] or [(..., ...)]

    def expected(self, x: Operands) -> Any:
        """The product of each group in float64, rounded."""
        result = to_dtype(xp.zeros((self.m, self.n), "float32"), "bfloat16")
        for rows, group in self.parts():
            product = self.product(x.a[rows], x.b[group], x.x[rows], x.y[group])
            result[rows] = to_dtype(product, "bfloat16")
        return result

    def product(self, a: Any, b: Any, x: Any, y: Any) -> Any:
        a, b, x, y = (to_dtype(each, "float64") for each in (a, b, x, y))
        if self.scales == "block":
            x, y = repeated(x, 1)[:, : self.k], repeated(repeated(y, 0), 1)
            y = y[: self.k, : self.n]
        return (a * x) @ (b * y)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        self.require(same(call(), expected), name)
        return {}


def to_dtype(array: Any, dtype: str) -> Any:
    """The same values as a torch tensor, or in the simulator as a NumPy array."""
    if SMOKE:
        import ml_dtypes

        return array.astype(getattr(ml_dtypes, dtype, dtype))
    tensor = array if type(array).__module__ == "torch" else torch().from_dlpack(array)
    return tensor.to(getattr(torch(), dtype))


def repeated(array: Any, axis: int) -> Any:
    return array.repeat(BLOCK, axis) if SMOKE else array.repeat_interleave(BLOCK, axis)


def own(case: Case, x: Operands) -> Call:
    scales = {"scale_a": x.x, "scale_b": x.y}
    return dxgemm.plan(x.a, x.b, out=x.out, precision=case.precision, **scales)


def k_major(matrix: Any, rows: int, cols: int) -> Any:
    """The matrix with its rows contiguous and filled up: as it is, or a copy of its bytes."""
    if matrix.stride(1) == 1 and matrix.shape == (rows, cols):
        return matrix
    bits = matrix.view(torch().uint8) if matrix.stride(1) == 1 else matrix.T.view(torch().uint8).T
    copy = torch().zeros((rows, cols), dtype=torch().uint8, device=matrix.device)
    copy[: matrix.shape[0], : matrix.shape[1]] = bits
    return copy.view(matrix.dtype)


def rival(case: Any, x: Operands) -> Call:
    m, n, k = (-(-size // 16) * 16 for size in (case.m, case.n, case.k))
    of_a, of_b = x.x, x.y
    kind, pad = case.scales, torch().nn.functional.pad
    if kind == "row":
        of_a, of_b = pad(of_a, (0, 0, 0, m - case.m)), pad(of_b, (0, n - case.n))
    elif kind == "block":  # the same blocks, but more rows, and columns of b at multiples of 16 B
        blocks = of_b.shape[0]
        of_a = pad(of_a.T, (0, m - case.m)).T
        of_b = pad(of_b.T, (0, -blocks % 4))[:, :blocks].T
    scaled_mm, is_fast = torch()._scaled_mm, case.precision == "fast"

    def call() -> Any:
        a, b = k_major(x.a, m, k), k_major(x.b.T, n, k).T
        result = scaled_mm(a, b, of_a, of_b, out_dtype=torch().bfloat16, use_fast_accum=is_fast)
        return result[: case.m, : case.n]

    return call


CASES = [
    *grid(Float8Case, of=TN, scales="tensor", precision=["fast", None], size=SIZES),
    *grid(Float8Case, of=TN, scales=["row", "block"], size=SIZES),
    *grid(Float8Case, of=TN, scales="row", size=ODD),
    *grid(Float8Case, dtype=DTYPE, scales="row", arrangement=LAYOUTS, size=[2048, 4096]),
]
bench_fp8 = bench(CASES, {OWN: own}, {RIVAL: rival}, rivals=(RIVAL,), budget_s=0.2)
