"""GPU time of every rung of the ladder, each with its best config for the problem.

The best config of each rung is found as `measure_best` says; `configs_us` holds the least time of
each. A config whose call takes longer than LONGEST_CALL_S is left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cases import SMOKE, Case, own
from measuring import CUBLAS, Found, Groups, Row, bench, fields, measure_best
from twins import twin_tflops

import dxgemm
from dxgemm.problem.define import contiguous_problem

LONGEST_CALL_S = 60 if SMOKE else 0.4
INTERLEAVED_S = 0.7  # for all rounds of a case

RUNGS = [i for i in dxgemm.implementations() if i.rung is not None]
TOP_NAMES = ("tuned", "tensor_core", "tensor_core_tf32", "wgmma")
# A dtype with a precision; None is the dtype's own.
FULL_PRECISION = [("float32", None), ("float64", None)]
REDUCED_PRECISION = [("float32", "tf32"), ("float16", None), ("bfloat16", None)]

SQUARES = [256, 512, 1024, 2048, 4096, 8192]
# Of few k, in float32, by the top rungs and some before.
SHORT_RUNGS = ("shared_tile", "thread_tile_2d", "conflict_free", "async_copy")
SHORT = [(m, n, k) for m in (2048, 4096) for n in (2048, 4096) for k in (512, 1024)]
# For the top rungs: larger, not square, and no multiple of a tile.
LARGEST = [(16384, 16384, 16384)]
RECTANGLES = [(8192, 1024, 4096), (1024, 8192, 512), (2048, 2048, 16384)]
RAGGED = [(4095, 4095, 4095), (4097, 4097, 4097), (4000, 4000, 4000), (1000, 1000, 1000)]


def list_cases() -> list[Case]:
    kinds = FULL_PRECISION + REDUCED_PRECISION
    if SMOKE:
        return [Case("float32", 6, 5, 3)]
    squares, others = [(n, n, n) for n in SQUARES], LARGEST + RECTANGLES + RAGGED
    return [
        Case(dtype, *shape, precision=precision)
        for shapes in (squares, others)
        for dtype, precision in kinds
        for shape in shapes
    ] + [Case("float32", *shape) for shape in SHORT]


def is_made_for(rung: Any, case: Case) -> bool:
    """Tells whether a rung computes a case, in the precision that the case is about.

    What permits TF32 is served by true float32 too, which is a case of its own.
    """
    shape = (case.dtype, case.m, case.n, case.k)
    problem = contiguous_problem(*shape, precision=case.precision)
    if not rung.configs(case.dtype) or rung.supports(problem) is not None:
        return False
    return case.precision is None or rung.supports(contiguous_problem(*shape)) is not None


def variants_of(case: Case) -> Groups:
    """Configs of every rung on squares, of some rungs on other shapes, and cuBLAS."""
    shape = case.m, case.n, case.k
    is_square = SMOKE or (len(set(shape)) == 1 and case.m in SQUARES)
    names = TOP_NAMES + (SHORT_RUNGS if shape in SHORT else ())
    few = 1 if SMOKE else None
    groups = {
        rung.name: {f"{rung.name} {c}": own((rung.name, c)) for c in rung.configs(case.dtype)[:few]}
        for rung in RUNGS
        if is_made_for(rung, case) and (is_square or rung.name in names)
    }
    return groups | {CUBLAS: {CUBLAS: own(CUBLAS)}} if groups else {}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    case, explanation = row.case, found[name].explanation
    occupancy, shape = explanation.occupancy, (case.m, case.n, case.k)
    twin = twin_tflops(name, case.dtype, case.precision, shape, explanation.work.device)
    extra = fields(row, name, found)
    return {
        **extra,
        "configs_us": {
            str(each.explanation.choice.config): 1e6 * min(each.samples_s)
            for each in found[name].group
            if each.samples_s
        },
        "rung": next((rung.rung for rung in RUNGS if rung.name == name), None),
        "twin_tflops": twin,
        "vs_twin": extra["tflops"] / twin if twin else None,
        "blocks": occupancy.blocks,
        "waves": occupancy.waves,
        "threads": occupancy.threads,
        "registers": occupancy.registers,
        "smem_bytes": occupancy.smem_bytes,
        "blocks_per_sm": occupancy.per_sm and occupancy.per_sm.blocks,
    }


bench_rung = bench(
    [Row(case, variants_of(case)) for case in list_cases()],
    describe,
    partial(measure_best, budget_s=INTERLEAVED_S, longest_s=LONGEST_CALL_S),
)
