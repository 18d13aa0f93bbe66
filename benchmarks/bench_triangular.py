"""GPU time of products with triangular operands, against `gemm` of full ones, and cuBLAS.

`vs_full` is the time of `gemm` on full operands over that of `gemm(triangular=)`; `vs_gemm` is that
of `gemm` on operands with zeros in the other triangle, which take less power. The result must be
exact, with NaN in what is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from cases import SMOKE, Call, Case, Operands, own, xp
from measuring import CUBLAS, OWN, Row, bench, fields, ratio

import dxgemm

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
GEMM, FULL = "gemm", "gemm of full operands"
SIZES = (3,) if SMOKE else (512, 1024, 4095, 4096, 8192)
TRIANGLES = ("lower full", "full lower", "lower lower", "lower upper")
KINDS = (("float32", None), ("float64", None))
if not SMOKE:
    KINDS += (("float16", None), ("float32", "tf32"), ("complex64", None), ("complex128", None))


@dataclass(frozen=True)
class TriangularCase(Case):
    """A product with triangular operands; `triangles` are those of a and b."""

    triangles: str = "lower full"

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.triangles}"

    @property
    def triangular(self) -> Any:
        names = self.triangles.split()
        return tuple(None if name == "full" else name for name in names)

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """Operands with zeros in the other triangle, those with NaN there, and full ones."""
        x = super().operands(rng, is_exact)
        x.full, x.dirty = (x.a, x.b), []
        for name, triangle in zip("ab", self.triangular, strict=True):
            matrix = getattr(x, name)
            if triangle is not None:
                other = ~xp.tril(xp.ones(matrix.shape, bool))
                other = other.T if triangle == "upper" else other
                clean = matrix.copy()
                clean[other] = 0
                setattr(x, name, clean)
                matrix = matrix.copy()
                matrix[other] = float("nan")
            x.dirty.append(matrix)
        return x

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        return {} if name == FULL else super().check(name, call, x, expected)


def triangular(case: Any, x: Operands) -> dxgemm.Plan:
    return dxgemm.plan(*x.dirty, out=x.out, precision=case.precision, triangular=case.triangular)


def full(case: Any, x: Operands) -> dxgemm.Plan:
    return dxgemm.plan(*x.full, out=x.out, precision=case.precision)


def list_rows() -> list[Row]:
    return [
        Row(
            TriangularCase(dtype, n, n, n, order, precision=precision, triangles=triangles),
            {OWN: triangular, GEMM: own(), FULL: full, CUBLAS: own(CUBLAS)},
            [OWN],
        )
        for (dtype, precision), n, triangles in product(KINDS, SIZES, TRIANGLES)
        for order in [("row_row_row" if precision is None else "row_col_row")]
    ]


bench_triangular = bench(
    list_rows(),
    lambda row, name, found: fields(
        row,
        name,
        found,
        family=row.case.triangles,
        vs_gemm=ratio(found, GEMM, name),
        vs_full=ratio(found, FULL, name),
    ),
    budget_s=CASE_S,
)
