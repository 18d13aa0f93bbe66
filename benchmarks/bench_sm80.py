"""GPU time of the tensor-core kernels that run from Ampere on, with this GPU as a stand-in.

`tensor_tile` reads aligned operands, or aligned copies; `shifted_tile` reads them as they lie. Each
computes a case with all its configs, whole and in split-K slices. All are interleaved with cuBLAS,
and a row is the fastest. On a GPU with faster instructions, such as Hopper's wgmma, cuBLAS uses
those. Emulated float64 is timed beside the kernel over wgmma, too.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

from cases import SMOKE, Case, own
from measuring import CUBLAS, OWN, Found, Groups, Row, bench, fields, measure_best, ratio

from dxgemm.choice.registry import find_implementation

KERNELS = ("widening_tile",) if SMOKE else ("tensor_tile", "shifted_tile")
EMULATED, OVER_WGMMA = "emulated_float64_tile", "emulated_float64"
SLICES = (1,) if SMOKE else (1, 2, 4, 8)
CASE_S = 0.3  # of timing a case, unless fewest rounds take longer

SQUARES = [512, 1024, 2048, 4096, 8192]
RECTANGLES = [
    (64, 4096, 4096), (4096, 64, 4096), (256, 8192, 1024), (512, 512, 16384), (1024, 1024, 8192),
    (4096, 4096, 64), (4096, 11008, 4096), (6144, 1408, 4352), (50176, 64, 32), (200, 768, 3072),
]  # fmt: skip
ODD = [
    (999, 1001, 1003), (2187, 2187, 2187), (4095, 4095, 4095), (8191, 8193, 1001),
    (64, 50257, 768), (39300, 131, 131), (37, 4099, 4097), (4099, 37, 4097),
]  # fmt: skip
EMULATED_SQUARES = (2048, 4096, 8192)
ARRANGED = (2048, 4096)
ARRANGEMENTS = ["row_col_row", "col_row_row", "col_col_row"]
INT8_ARRANGEMENTS = ["row_row_row", "row_col_row"]


def list_cases() -> list[Case]:
    if SMOKE:
        return [Case("float16", 6, 5, 3)]
    shapes = [(n, n, n) for n in SQUARES] + RECTANGLES + ODD
    cases = [Case(dtype, *shape) for dtype in ("float16", "bfloat16") for shape in shapes]
    arranged = product(ARRANGED, ARRANGEMENTS)
    cases += [Case("float16", n, n, n, arrangement) for n, arrangement in arranged]
    cases += [Case("int8", n, n, n, order) for n in SQUARES for order in INT8_ARRANGEMENTS]
    cases += [Case("int8", *shape) for shape in RECTANGLES]
    cases += [Case("float64", n, n, n, precision="emulated") for n in EMULATED_SQUARES]
    return [*cases, Case("float16", 131, 131, 131, batch=300)]


def variants_of(case: Case) -> Groups:
    configs = {
        f"{name} {config} {slices}": own((name, config, slices))
        for name in ((EMULATED,) if case.precision else KERNELS)
        for config, slices in product(find_implementation(name).configs(case.dtype), SLICES)
    }
    groups = {OWN: configs, CUBLAS: {CUBLAS: own(CUBLAS)}}
    return groups | ({OVER_WGMMA: {OVER_WGMMA: own(OVER_WGMMA)}} if case.precision else {})


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    extra, slices = fields(row, name, found), found[name].explanation.choice.slices
    if slices > 1:
        extra["config"] += f" in {slices} slices"
    vs_wgmma = ratio(found, OVER_WGMMA, name)
    return extra | ({"vs_wgmma": vs_wgmma} if vs_wgmma else {})


bench_sm80 = bench(
    [Row(case, variants_of(case), [OWN]) for case in list_cases()],
    describe,
    partial(measure_best, budget_s=CASE_S),
)
