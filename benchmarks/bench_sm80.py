"""GPU time of the tensor-core kernels that run from Ampere on, with this GPU as a stand-in.

`tensor_tile` reads aligned operands, or aligned copies; `shifted_tile` reads them as they lie. Each
computes a case with all its configs, whole and in split-K slices. All are interleaved with cuBLAS,
and a row is the fastest. On a GPU with faster instructions, such as Hopper's wgmma, cuBLAS uses
those. Emulated float64 is timed beside the kernel over wgmma, too.
"""

from functools import partial
from itertools import product
from typing import Any

from cases import SMOKE, Case, grid, own
from measuring import CUBLAS, OWN, Found, Groups, Row, bench, measure_best

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
ARRANGEMENTS = ["row_col_row", "col_row_row", "col_col_row"]
CASES = [
    *grid(dtype=["float16", "bfloat16"], size=SQUARES + RECTANGLES + ODD),
    *grid(dtype="float16", size=[2048, 4096], arrangement=ARRANGEMENTS),
    *grid(dtype="int8", size=SQUARES, arrangement=["row_row_row", "row_col_row"]),
    *grid(dtype="int8", size=RECTANGLES),
    *grid(dtype="float64", size=[2048, 4096, 8192], precision="emulated"),
    Case("float16", 131, 131, 131, batch=300),
]


def configs(case: Case) -> Groups:
    names = (EMULATED,) if case.precision else KERNELS
    found = {
        f"{name} {config} {slices}": own((name, config, slices))
        for name in names
        for config, slices in product(find_implementation(name).configs(case.dtype), SLICES)
    }
    return {OWN: found}


def others(case: Case) -> Groups:
    names = [CUBLAS, OVER_WGMMA] if case.precision else [CUBLAS]
    return {name: {name: own(name)} for name in names}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    choice = found[name].explanation.choice
    return {"config": f"{choice.config} in {choice.slices} slices"} if choice.slices > 1 else {}


bench_sm80 = bench(
    [case for case in CASES if not SMOKE or case.dtype == "float16"],
    configs,
    others,
    describe,
    measuring=partial(measure_best, budget_s=0.3),
    vs={"vs_wgmma": OVER_WGMMA},
)
