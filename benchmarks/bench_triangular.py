"""GPU time of products with triangular operands, against `gemm` of full ones, and cuBLAS.

`vs_full` is the time of `gemm` on full operands over that of `gemm(triangular=)`; `vs_gemm` is that
of `gemm` on operands with zeros in the other triangle, which take less power. The result must be
exact, with NaN in what is not read.
"""

from dataclasses import dataclass
from typing import Any

from cases import Case, Operands, grid, own, xp
from measuring import CUBLAS, OWN, bench

import dxgemm

GEMM, FULL = "gemm", "gemm of full operands"
SIZES = [512, 1024, 4095, 4096, 8192]
TRIANGLES = ["lower full", "full lower", "lower lower", "lower upper"]
KINDS = [
    *({"dtype": dtype} for dtype in ("float32", "float64", "float16")),
    {"dtype": "float32", "precision": "tf32", "arrangement": "row_col_row"},
    *({"dtype": dtype} for dtype in ("complex64", "complex128")),
]


@dataclass(frozen=True)
class TriangularCase(Case):
    """A product with triangular operands; `triangles` are those of a and b."""

    triangles: str = "lower full"

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

    def check(self, name: str, *how: Any) -> dict[str, Any]:
        return {} if name == FULL else super().check(name, *how)


def triangular(case: Any, x: Operands) -> dxgemm.Plan:
    return dxgemm.plan(*x.dirty, out=x.out, precision=case.precision, triangular=case.triangular)


def full(case: Any, x: Operands) -> dxgemm.Plan:
    return dxgemm.plan(*x.full, out=x.out, precision=case.precision)


bench_triangular = bench(
    grid(TriangularCase, of=KINDS, size=SIZES, triangles=TRIANGLES),
    {OWN: triangular},
    {GEMM: own(), FULL: full, CUBLAS: own(CUBLAS)},
    facts=lambda case: {"family": case.triangles},
    vs={"vs_gemm": GEMM, "vs_full": FULL},
    budget_s=0.1,
)
