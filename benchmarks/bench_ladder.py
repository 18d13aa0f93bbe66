"""GPU time of every rung of the ladder, each with its best config for the problem.

The best config of each rung is found as `measure_best` says; `configs_us` holds the least time of
each. A config whose call takes longer than 0.4 s is left out.
"""

from functools import partial
from typing import Any

from cases import SMOKE, Case, grid, own
from measuring import CUBLAS, Found, Groups, Row, bench, measure_best

import dxgemm
from dxgemm.problem.define import contiguous_problem

RUNGS = {i.name: i for i in dxgemm.implementations() if i.rung is not None}
TOP_NAMES = ("tuned", "tensor_core", "tensor_core_tf32", "wgmma")
# TFLOP/s of public CUDA C++ kernels with the technique of a rung, the fastest where there are two,
# compiled with nvcc for sm_90a, measured once: float32, m = n = k = 4096, an NVIDIA H200.
# Source: S. Boehm, "How to optimize a CUDA matmul kernel for cuBLAS-like performance" (2022), and
# the repositories that follow it.
TWINS = {
    "naive": 0.5, "coalesced": 6.2, "shared_tile": 9.1, "thread_tile_1d": 19.7,
    "thread_tile_2d": 26.0, "vectorized": 36.0, "conflict_free": 38.9, "warp_tile": 36.4,
    "double_buffer": 47.8, "async_copy": 46.6, "ping_pong": 45.8, "tuned": 51.4,
    "tensor_core_tf32": 80.0,
}  # fmt: skip
KINDS = [
    {"dtype": "float32"}, {"dtype": "float64"}, {"dtype": "float32", "precision": "tf32"},
    {"dtype": "float16"}, {"dtype": "bfloat16"},
]  # fmt: skip
SQUARES = [256, 512, 1024, 2048, 4096, 8192]
# Of few k, in float32, by the top rungs and some before.
SHORT_RUNGS = ("shared_tile", "thread_tile_2d", "conflict_free", "async_copy")
SHORT = [(m, n, k) for m in (2048, 4096) for n in (2048, 4096) for k in (512, 1024)]
# For the top rungs: larger, not square, and no multiple of a tile.
LARGEST = [(16384, 16384, 16384)]
RECTANGLES = [(8192, 1024, 4096), (1024, 8192, 512), (2048, 2048, 16384)]
RAGGED = [(4095, 4095, 4095), (4097, 4097, 4097), (4000, 4000, 4000), (1000, 1000, 1000)]


CASES = [
    *grid(of=KINDS, size=SQUARES),
    *grid(of=KINDS, size=LARGEST + RECTANGLES + RAGGED),
    *grid(dtype="float32", size=SHORT),
]


def is_made_for(rung: Any, case: Case) -> bool:
    """Tells whether a rung computes a case, in the precision that the case is about.

    What permits TF32 is served by true float32 too, which is a case of its own.
    """
    shape = (case.dtype, case.m, case.n, case.k)
    problem = contiguous_problem(*shape, precision=case.precision)
    if not rung.configs(case.dtype) or rung.supports(problem) is not None:
        return False
    return case.precision is None or rung.supports(contiguous_problem(*shape)) is not None


def variants(case: Case) -> Groups:
    """Configs of every rung on squares, of some rungs on other shapes, and cuBLAS."""
    shape, most = (case.m, case.n, case.k), 1 if SMOKE else None
    is_square = len(set(shape)) == 1 and case.m in SQUARES
    names = TOP_NAMES + (SHORT_RUNGS if shape in SHORT else ())
    groups = {
        name: {f"{name} {c}": own((name, c)) for c in rung.configs(case.dtype)[:most]}
        for name, rung in RUNGS.items()
        if is_made_for(rung, case) and (SMOKE or is_square or name in names)
    }
    return groups | {CUBLAS: {CUBLAS: own(CUBLAS)}} if groups else {}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    case, one = row.case, found[name]
    occupancy, rate = one.explanation.occupancy, 1e-12 * case.flops / one.seconds
    measured = ("float32", 4096, "tf32" if "tf32" in name else None, "NVIDIA H200")
    kind = (case.dtype, case.m, case.precision, one.explanation.work.device)
    twin = TWINS.get(name) if kind == measured and case.m == case.n == case.k else None
    sizes = ("blocks", "waves", "threads", "registers", "smem_bytes")
    return {
        "configs_us": {
            str(each.explanation.choice.config): 1e6 * min(each.samples_s)
            for each in one.group
            if each.samples_s
        },
        "rung": RUNGS[name].rung if name in RUNGS else None,
        "twin_tflops": twin,
        "vs_twin": rate / twin if twin else None,
        **{size: getattr(occupancy, size) for size in sizes},
        "blocks_per_sm": occupancy.per_sm and occupancy.per_sm.blocks,
    }


bench_rung = bench(
    CASES,
    variants,
    more=describe,
    measuring=partial(measure_best, budget_s=0.7, longest_s=60 if SMOKE else 0.4),
)
