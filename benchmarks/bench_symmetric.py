"""GPU time of symmetric and of masked results, against `gemm` of the same operands, and cuBLAS.

`vs_gemm` is the time of `gemm`, which multiplies a by a transposed copy of it and so knows of no
symmetry, over that of `gemm_symmetric`, which writes both triangles. `vs_rival` is that of the
quicker of cuBLAS's gemm, which writes both, and its syrk for float32 and float64, which writes one.
For emulated products, both are those of the same dtype.
The result must be exact, and symmetric bit for bit.

A masked product computes the live blocks alone, `live` of all. Its `vs_gemm` is over the plain
product; it must be exact where blocks are live, and leave the others alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from cases import Call, Case, Operands, gpu_only, grid, own, same, xp
from measuring import CUBLAS, OWN, bench

import dxgemm
from dxgemm.errors import MissingPackageError

SIZES = (256, 512, 1000, 1024, 2048, 4095, 4096, 8192)
DEPTHS = (64, 512, None, 65536)  # None: as large as the result
MOST_FLOPS = 2**42
TN = {"arrangement": "row_col_row"}
KINDS = [{"dtype": dtype, **TN} for dtype in ("float32", "float64", "float16")]
KINDS += [{**KINDS[0], "precision": "tf32"}]
EMULATED = [{**kind, "precision": "emulated"} for kind in KINDS[:2]]
MASKS = ["all", "half at random", "eighth at random", "lower triangle", "band"]
GEMM, SYRK = "gemm", "cublas syrk"
BLOCK = 128  # of a mask


class SymmetricCase(Case):
    """A product a @ a.T: row-major by column-major."""

    def tiny(self) -> Any:
        return SymmetricCase(self.dtype, 6, 6, 3, "row_col_row", precision=self.precision)

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
        self.require(same(bits, bits.T), f"{name}, which is not symmetric,")
        return {"symmetry": call.explain().work.symmetry}  # type: ignore[attr-defined]


def symmetric(case: Case, x: Operands) -> Call:
    """`gemm_symmetric`, which has no plan but an explanation."""
    options = {"precision": case.precision}

    def call() -> Any:
        return dxgemm.gemm_symmetric(x.a, out=x.out, **options)

    call.explain = lambda: dxgemm.explain_symmetric(x.a, **options)  # type: ignore[attr-defined]
    return call


def syrk(case: Case, x: Operands) -> Call:
    gpu_only()
    from cupy import cublas

    if not hasattr(cublas, "syrk") or case.precision == "tf32" or case.dtype == "float16":
        raise MissingPackageError("this CuPy has no such syrk")
    return lambda: cublas.syrk("N", x.a, out=x.out, lower=True)


@dataclass(frozen=True)
class MaskedCase(Case):
    """A product with a mask of blocks."""

    mask: str = "all"

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        x, blocks = super().operands(rng, is_exact), -(-self.n // BLOCK)
        row, col = np.ogrid[:blocks, :blocks]
        at_random = np.random.default_rng(0).random((blocks, blocks))
        x.mask = xp.asarray({
            "all": at_random < 1, "half at random": at_random < 0.5,
            "eighth at random": at_random < 0.125, "lower triangle": row >= col,
            "band": abs(row - col) <= 2,
        }[self.mask])  # fmt: skip
        return x

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        if name != OWN:
            return super().check(name, call, x, expected)
        self.spoil(x.out)
        untouched = x.out.copy()
        is_live = xp.repeat(xp.repeat(x.mask, BLOCK, 0), BLOCK, 1)[: self.m, : self.n]
        self.require(same(call(), xp.where(is_live, expected, untouched)), name)
        return {"live": float(x.mask.mean())}


def masked(case: Case, x: Operands) -> Call:
    return dxgemm.plan(x.a, x.b, out=x.out, precision=case.precision, mask=x.mask)


SHAPES = [(n, n, k or n) for n in SIZES for k in DEPTHS if 2 * n * n * (k or n) <= MOST_FLOPS]
MASKED_SHAPES = [(4096, 4096, 512), (4096, 4096, 4096)]
bench_symmetric = bench(
    grid(SymmetricCase, of=KINDS + EMULATED, size=[*dict.fromkeys(SHAPES)]),
    {OWN: symmetric},
    {GEMM: own(), CUBLAS: own(CUBLAS), SYRK: syrk},
    rivals=(SYRK, CUBLAS),
    vs={"vs_gemm": GEMM},
    budget_s=0.1,
)
bench_masked = bench(
    grid(MaskedCase, of=KINDS, size=MASKED_SHAPES, mask=MASKS),
    {OWN: masked},
    {GEMM: own()},
    vs={"vs_gemm": GEMM},
    budget_s=0.1,
)
