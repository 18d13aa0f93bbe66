"""GPU time of products of float8 with scales, against cuBLASLt through `torch._scaled_mm`.

The rival has scales of the same kind. It sums as dxgemm is told to: fast, in the tensor core, or
promoted. It takes multiples of 16 and K-major operands alone: where a case has others, its time is
that of padded or transposed copies and the product. Results are bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cases import SMOKE, Call, Case, Operands, normal, same, stored, xp
from measuring import OWN, Found, Row, Variants, bench, fields, ratio
from oracle import inputs
from rivals import torch

import dxgemm

CASE_S = 0.2  # of timing a case, unless fewest rounds take longer
RIVAL = "torch._scaled_mm"
DTYPE, BLOCK = "float8_e4m3fn", 128
TN, LAYOUTS = "row_col_row", ("row_row_row", "col_row_row", "col_col_row")
SQUARES = (512, 1024, 2048, 4096, 8192)
SHAPES = (
    (2048, 5120, 5120), (1576, 3072, 768), (512, 2560, 2560), (300, 6144, 4096), (16, 5120, 5120),
    (8192, 1280, 8192), (4096, 14336, 4096), (8192, 8192, 1024), (1536, 18944, 3584),
    (1024, 1024, 8192), (64, 12288, 4096), (128, 7168, 2048),
)  # fmt: skip
ODD = ((2187, 2187, 2187), (4095, 4095, 4095), (1000, 3001, 1003))


@dataclass(frozen=True)
class Float8Case(Case):
    """A product with scales of "tensor", "row" (and column) or "block" kind."""

    scales: str = "tensor"

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.scales}"

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        fill = inputs.integers if is_exact else normal
        orders, (a_shape, b_shape, out_shape) = self.arrangement.split("_"), self.shapes
        a = to_dtype(stored(fill(rng, a_shape, "float32"), orders[0]), DTYPE)
        b = to_dtype(stored(fill(rng, b_shape, "float32"), orders[1]), DTYPE)
        out = to_dtype(xp.zeros(out_shape, "float32"), "bfloat16")
        k_blocks, n_blocks = -(-self.k // BLOCK), -(-self.n // BLOCK)
        shapes = {
            "tensor": ((1,), (1,)),
            "row": ((self.m, 1), (1, self.n)),
            # As cuBLASLt takes them: rows of a are neighbours, and blocks of k of b.
            "block": ((k_blocks, self.m), (n_blocks, k_blocks)),
        }[self.scales]
        powers = (2.0 ** rng.integers(-2, 3, shape).astype("float32") for shape in shapes)
        x, y = (to_dtype(scales, "float32") for scales in powers)
        if self.scales == "block":
            x, y = x.T, y.T
        return Operands(a=a, b=b, out=out, x=x, y=y)

    def expected(self, x: Operands) -> Any:
        left, right = (to_dtype(v, "float64") for v in (x.a, x.b))
        of_a, of_b = (to_dtype(v, "float64") for v in (x.x, x.y))
        if self.scales == "block":
            of_a = repeated(of_a, 1)[:, : self.k]
            of_b = repeated(repeated(of_b, 0), 1)[: self.k, : self.n]
        return to_dtype((left * of_a) @ (right * of_b), "bfloat16")

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        if not same(call(), expected):
            self.fail(name)
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
    plan = dxgemm.plan(
        x.a, x.b, out=x.out, scale_a=x.x, scale_b=x.y, precision=case.precision
    )  # fmt: skip
    return plan


def k_major(matrix: Any, rows: int, cols: int) -> Any:
    """The matrix with its rows contiguous and filled up: as it is, or a copy of its bytes."""
    if matrix.stride(1) == 1 and matrix.shape == (rows, cols):
        return matrix
    bits = matrix.view(torch().uint8) if matrix.stride(1) == 1 else matrix.T.view(torch().uint8).T
    copy = torch().zeros((rows, cols), dtype=torch().uint8, device=matrix.device)
    copy[: matrix.shape[0], : matrix.shape[1]] = bits
    return copy.view(matrix.dtype)


def rival(case: Case, x: Operands) -> Call:
    m, n, k = (-(-size // 16) * 16 for size in (case.m, case.n, case.k))
    of_a, of_b = x.x, x.y
    kind, pad = case.scales, torch().nn.functional.pad  # type: ignore[attr-defined]
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


def variants_of(case: Case) -> Variants:
    return {OWN: own} if SMOKE else {OWN: own, RIVAL: rival}


def list_cases() -> list[Float8Case]:
    if SMOKE:
        return [Float8Case(DTYPE, 6, 5, 132, TN, scales=s) for s in ("row", "block")]
    shapes = (*((n, n, n) for n in SQUARES), *SHAPES)
    kinds = (("tensor", "fast"), ("tensor", None), ("row", None), ("block", None))
    cases = [
        Float8Case(DTYPE, *shape, TN, precision=precision, scales=scales)
        for scales, precision in kinds
        for shape in shapes
    ]
    cases += [Float8Case(DTYPE, *shape, TN, scales="row") for shape in ODD]
    return cases + [
        Float8Case(DTYPE, n, n, n, layout, scales="row") for layout in LAYOUTS for n in (2048, 4096)
    ]


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    more = {"layout": row.case.arrangement, "rival": RIVAL, "vs_rival": ratio(found, RIVAL, name)}
    return fields(row, name, found, **more)


bench_fp8 = bench(
    [Row(case, variants_of(case), [OWN]) for case in list_cases()], describe, budget_s=CASE_S
)
