"""GPU time of symmetric and of masked results, against `gemm` of the same operands, and cuBLAS.

`vs_gemm` is the time of `gemm`, which multiplies a by a transposed copy of it and so knows of no
symmetry, over that of `gemm_symmetric`, which writes both triangles. `vs_rival` is that of the
quicker of cuBLAS's gemm, which writes both, and its syrk for float32 and float64, which writes one.
For emulated products, both are those of the same dtype.
The result must be exact, and symmetric bit for bit.

A masked product computes the live blocks alone, `live` of all. Its `vs_gemm` is over the plain
product; it must be exact where blocks are live, and leave the others alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from cases import SMOKE, Call, Case, Operands, own, same, xp
from measuring import CUBLAS, OWN, Found, Row, bench, fastest, fields, ratio

import dxgemm
from dxgemm.errors import MissingPackageError

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
SIZES = (256, 512, 1000, 1024, 2048, 4095, 4096, 8192)
DEPTHS = (64, 512, None, 65536)  # None: as large as the result
MOST_FLOPS = 2**42
KINDS = (
    ("float32", None),
    ("float64", None),
    ("float16", None),
    ("float32", "tf32"),
    ("float32", "emulated"),
    ("float64", "emulated"),
)
MASKED_SIZE = 3 if SMOKE else 4096
MASKED_DEPTHS = (3,) if SMOKE else (512, 4096)
MASKS: tuple[str, ...] = ("all",)
if not SMOKE:
    MASKS += ("half at random", "eighth at random", "lower triangle", "band")
GEMM, SYRK = "gemm", "cublas syrk"
BLOCK = 128  # of a mask


class SymmetricCase(Case):
    """A product a @ a.T: row-major by column-major."""

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        x = super().operands(rng, is_exact)
        x.b = x.a.copy().T  # gemm sees that b is a.T by its address
        return x

    @property
    def exact_fills(self) -> tuple[Any, Any]:
        small = super().exact_fills[1]  # no canary: a is both operands
        return small, small

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        super().check(name, call, x, expected)
        if name != OWN:
            return {}
        found = symmetric(self, self.operands(xp.random.default_rng(0)))()
        bits = found.view(f"uint{8 * found.itemsize}")
        if not same(bits, bits.T):
            self.fail(f"{name}, which is not symmetric,")
        return {"symmetry": call.explain().work.symmetry}  # type: ignore[attr-defined]


def symmetric(case: Case, x: Operands) -> Call:
    """`gemm_symmetric`, which has no plan but an explanation."""

    def call() -> Any:
        return dxgemm.gemm_symmetric(x.a, out=x.out, precision=case.precision)

    call.explain = lambda: dxgemm.explain_symmetric(  # type: ignore[attr-defined]
        x.a, precision=case.precision
    )
    return call


def syrk(case: Case, x: Operands) -> Call:
    from cupy import cublas

    if not hasattr(cublas, "syrk"):
        raise MissingPackageError("this CuPy has no syrk")
    return lambda: cublas.syrk("N", x.a, out=x.out, lower=True)


def list_rows() -> list[Row]:
    if SMOKE:
        shapes: list[tuple[Any, ...]] = [("float32", 6, 6, 3), ("float16", 5, 5, 4)]
        variants = {OWN: symmetric, GEMM: own()}
        return [Row(SymmetricCase(*each, "row_col_row"), variants, [OWN]) for each in shapes]
    rows = []
    for (dtype, precision), n, k in product(KINDS, SIZES, DEPTHS):
        if 2 * n * n * (k or n) <= MOST_FLOPS and k != n:
            case = SymmetricCase(dtype, n, n, k or n, "row_col_row", precision=precision)
            variants = {OWN: symmetric, GEMM: own(), CUBLAS: own(CUBLAS)}
            if precision != "tf32" and dtype != "float16":
                variants[SYRK] = syrk
            rows.append(Row(case, variants, [OWN]))
    return rows


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    rival = fastest(found, (SYRK, CUBLAS))
    extra = {"rival": rival, "vs_rival": ratio(found, rival, name)}
    return fields(row, name, found, vs_gemm=ratio(found, GEMM, name), **extra)


@dataclass(frozen=True)
class MaskedCase(Case):
    """A product with a mask of blocks."""

    mask: str = "all"

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.mask}"

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        x = super().operands(rng, is_exact)
        x.mask = mask_named(self.mask, -(-self.n // BLOCK))
        return x

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        if name != OWN:
            return super().check(name, call, x, expected)
        self.spoil(x.out)
        untouched = x.out.copy()
        is_live = xp.repeat(xp.repeat(x.mask, BLOCK, 0), BLOCK, 1)[: self.m, : self.n]
        if not same(call(), xp.where(is_live, expected, untouched)):
            self.fail(name)
        return {"live": float(x.mask.mean())}


def mask_named(name: str, blocks: int) -> Any:
    """A mask of so many blocks along each side, on the device."""
    row, col = np.ogrid[:blocks, :blocks]
    at_random = np.random.default_rng(0).random((blocks, blocks))
    masks = {
        "all": at_random < 1,
        "half at random": at_random < 0.5,
        "eighth at random": at_random < 0.125,
        "lower triangle": row >= col,
        "band": abs(row - col) <= 2,
    }
    return xp.asarray(masks[name])


def masked(case: Case, x: Operands) -> Call:
    return dxgemm.plan(x.a, x.b, out=x.out, precision=case.precision, mask=x.mask)


def list_masked_rows() -> list[Row]:
    n, kinds = MASKED_SIZE, [kind for kind in KINDS if kind[1] != "emulated"]
    cases = [
        MaskedCase(dtype, n, n, k, "row_col_row", precision=precision, mask=mask)
        for (dtype, precision), k, mask in product(kinds, MASKED_DEPTHS, MASKS)
    ]
    return [Row(case, {OWN: masked, GEMM: own()}, [OWN]) for case in cases]


bench_symmetric = bench(list_rows(), describe, budget_s=CASE_S)
bench_masked = bench(
    list_masked_rows(),
    lambda row, name, found: fields(row, name, found, vs_gemm=ratio(found, GEMM, name)),
    budget_s=CASE_S,
)
