"""Errors of float8 products over k: sums that are promoted every 128 of k, and those that are not.

m = 64 and n = 128, on normal values, whose sums cancel, and on values between 0 and 1, whose sums
only grow. Fast sums are those of `wgmma`: where it is permitted, the automatic choice takes what is
quicker, which may promote. The reference is the product of the same operands in float64.
`max_error` is the largest error of an element over its |a| |b|, and `kept_bits` the bits that are
right then. Results are float32, those of cuBLASLt too (`torch._scaled_mm`), whose fast accumulation
is off and on.
"""

import math
from dataclasses import dataclass
from typing import Any

from bench_accuracy import measure_errors
from bench_fp8 import DTYPE, RIVAL, TN, Float8Case, to_dtype
from cases import SMOKE, Call, Operands, grid, normal, stored, torch, uniform, xp
from measuring import OWN, bench

import dxgemm

DATA = {"normal": normal, "uniform": uniform}
SIZES = [(64, 128, k) for k in (128, 512, 2048, 8192, 32768, 131072)]


@dataclass(frozen=True)
class AccuracyCase(Float8Case):
    """One product; `data` is a name in `DATA`."""

    data: str = "normal"

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """The same random numbers, where others are exact."""
        fill = DATA[self.data]
        a = to_dtype(stored(fill(rng, (self.m, self.k), "float32"), "row"), DTYPE)
        b = to_dtype(stored(fill(rng, (self.k, self.n), "float32"), "col"), DTYPE)
        one, out = (to_dtype(xp.ones(s, "float32"), "float32") for s in ((1,), (self.m, self.n)))
        return Operands(a=a, b=b, out=out, x=one, y=one)

    def expected(self, x: Operands) -> Any:
        a, b = (to_dtype(v, "float64") for v in (x.a, x.b))
        return a @ b, abs(a) @ abs(b)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        exact, size = expected
        worst = float((abs(to_dtype(call(), "float64") - exact) / size).max())
        return {"max_error": worst, "kept_bits": -math.log2(worst) if worst else None}


def own(case: AccuracyCase, x: Operands) -> Call:
    """The automatic choice; fast by the kernel that leaves its sums in the tensor core."""
    name = "wgmma" if case.precision == "fast" and not SMOKE else None
    return dxgemm.plan(x.a, x.b, out=x.out, precision=case.precision, implementation=name)


def cublaslt(case: AccuracyCase, x: Operands) -> Call:
    multiply = torch()._scaled_mm
    options = {"out_dtype": torch().float32, "use_fast_accum": case.precision == "fast"}
    return lambda: multiply(x.a, x.b, x.x, x.y, **options)


bench_fp8_accuracy = bench(
    grid(AccuracyCase, of=TN, precision=[None, "fast"], data=[*DATA], size=SIZES),
    {OWN: own, RIVAL: cublaslt},
    more=lambda row, name, found: {"implementation": name},
    measuring=measure_errors,
)
