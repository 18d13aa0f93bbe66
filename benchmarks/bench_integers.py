"""GPU time of products of integers and bool, against CuPy and, of int8, torch.

Operands hold all that their dtype does. Results must be those of CuPy in 64 bits, cut to their
dtype. CuPy gives results of the operands' dtype, and dxgemm its default.
"""

from __future__ import annotations

from typing import Any

from cases import SMOKE, Call, Case, Operands, same, xp
from measuring import OWN, Found, Row, Variants, bench, fastest, fields, ratio
from rivals import as_tensor, torch

import dxgemm
from dxgemm.problem.dtypes import factor_dtypes

CASE_S = 0.2  # of timing a case, unless fewest rounds take longer
CUPY, TORCH = "cupy", "torch._int_mm"
DTYPES = ("int8", "uint8", "uint8 int8", "int16", "int32", "uint32", "int64", "uint64", "bool")
SHAPES = (
    (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 8192, 8192), (999, 1001, 1003), (1, 4096, 4096), (16, 4096, 4096), (512, 512, 2**17),
)  # fmt: skip
BATCHES = ((4, 512), (64, 64))


class IntegerCase(Case):
    """A product of matrices that hold all that their dtypes do; of bool, few that are true."""

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        shapes, dtypes = self.shapes[:2], factor_dtypes(self.dtype)
        a, b = (drawn(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
        return Operands(a=a, b=b)

    def expected(self, x: Operands) -> Any:
        sums = xp.matmul(x.a.astype("uint64"), x.b.astype("uint64"))
        return sums != 0 if self.dtype == "bool" else sums.astype(self.out_dtype)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        result = call()
        if name != OWN:
            return {}
        if not same(result, expected):
            self.fail(name)
        return {"form": call.explain().work.computed_as}  # type: ignore[attr-defined]


def drawn(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    if dtype == "bool":
        return rng.integers(0, 2**10, shape) == 0
    low, high = (rng.integers(0, 2**32, shape, dtype="uint64") for _ in range(2))
    return (high << 32 | low).astype(dtype)


def own(case: Case, x: Operands) -> Call:
    return dxgemm.plan(x.a, x.b)


def cupy_call(case: Case, x: Operands) -> Call:
    return lambda: xp.matmul(x.a, x.b)


def torch_call(case: Case, x: Operands) -> Call:
    a, b = map(as_tensor, (x.a, x.b))
    return lambda: torch()._int_mm(a, b)


def variants_of(case: Case) -> Variants:
    if SMOKE or case.dtype == "uint8 int8":
        return {OWN: own}
    variants = {OWN: own, CUPY: cupy_call}
    if case.dtype == "int8" and case.m > 16 and case.batch == 1 and case.n % 8 == case.k % 8 == 0:
        variants[TORCH] = torch_call
    return variants


def list_cases() -> list[Case]:
    if SMOKE:
        return [IntegerCase("uint8 int8", 6, 5, 3), IntegerCase("int64", 5, 6, 4)]
    cases: list[Case] = [IntegerCase(dtype, *shape) for dtype in DTYPES for shape in SHAPES]
    return cases + [IntegerCase(d, n, n, n, batch=batch) for d in DTYPES for batch, n in BATCHES]


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    rival = fastest(found, (CUPY, TORCH))
    more = {
        "tops": 1e-12 * row.case.flops / found[name].seconds,
        "vs_cupy": ratio(found, CUPY, name),
        "rival": rival,
        "vs_rival": ratio(found, rival, name),
    }
    return fields(row, name, found, **more)


bench_integers = bench(
    [Row(case, variants_of(case), [OWN]) for case in list_cases()], describe, budget_s=CASE_S
)
