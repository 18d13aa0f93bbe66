"""GPU time of every rung of the ladder, each with its best config for the problem.

All configs of all rungs run interleaved for a few rounds; `configs_us` holds the least time of
each. The quickest of each rung, and those that come close to it, then run interleaved with the
other rungs and with cuBLAS. The one that is quickest there stands for its rung. A config whose call
takes longer than LONGEST_CALL_S is left out.
"""

from __future__ import annotations

from typing import Any

from cases import SMOKE, Case, own
from measuring import CUBLAS, Found, Measured, Row, bench, fastest, fields, measure
from twins import twin_tflops

import dxgemm
from dxgemm.problem.define import contiguous_problem

LONGEST_CALL_S = 60 if SMOKE else 0.4
CONFIG_ROUNDS = 1 if SMOKE else 3
CLOSE = 1.05  # times the quickest config's time
INTERLEAVED_S = 0.7  # for all rounds of a case

RUNGS = [i for i in dxgemm.implementations() if i.rung is not None]
TOP_NAMES = ("tuned", "tensor_core", "tensor_core_tf32", "wgmma")
# A dtype with a precision; None is the dtype's own.
FULL_PRECISION = [("float32", None), ("float64", None)]
REDUCED_PRECISION = [("float32", "tf32"), ("float16", None), ("bfloat16", None)]

SQUARES = [256, 512, 1024, 2048, 4096, 8192]
# For the top rungs: larger, not square, and no multiple of a tile.
LARGEST = [(16384, 16384, 16384)]
RECTANGLES = [(8192, 1024, 4096), (1024, 8192, 512), (2048, 2048, 16384)]
RAGGED = [(4095, 4095, 4095), (4097, 4097, 4097), (4000, 4000, 4000), (1000, 1000, 1000)]


def list_cases() -> list[Case]:
    kinds = FULL_PRECISION + REDUCED_PRECISION
    if SMOKE:
        return [Case(dtype, 6, 5, 3, precision=precision) for dtype, precision in kinds]
    squares, others = [(n, n, n) for n in SQUARES], LARGEST + RECTANGLES + RAGGED
    return [
        Case(dtype, *shape, precision=precision)
        for shapes in (squares, others)
        for dtype, precision in kinds
        for shape in shapes
    ]


def names_for(case: Case) -> list[str]:
    """Every rung on a square, the top rungs on other shapes, and cuBLAS; none without a rung."""
    is_square = SMOKE or (case.m == case.n == case.k and case.m in SQUARES)
    names = [
        rung.name
        for rung in RUNGS
        if is_made_for(rung, case) and (is_square or rung.name in TOP_NAMES)
    ]
    return [*names, CUBLAS] if names else []


def is_made_for(rung: Any, case: Case) -> bool:
    """Tells whether a rung computes a case, in the precision that the case is about.

    What permits TF32 is served by true float32 too, which is a case of its own.
    """
    shape = (case.dtype, case.m, case.n, case.k)
    problem = contiguous_problem(*shape, precision=case.precision)
    if not rung.configs(case.dtype) or rung.supports(problem) is not None:
        return False
    return case.precision is None or rung.supports(contiguous_problem(*shape)) is not None


def variants_of(case: Case) -> dict[str, dict[str, Any]]:
    """By rung, then by its own name, each config as a variant."""
    configs: dict[str, dict[str, Any]] = {name: {} for name in names_for(case)}
    for rung in RUNGS:
        if rung.name in configs:
            for config in rung.configs(case.dtype):
                configs[rung.name][f"{rung.name} {config}"] = own((rung.name, config))
    return configs | ({CUBLAS: {CUBLAS: own(CUBLAS)}} if configs else {})


def measure_rungs(row: Row) -> Found:
    """The best config of each rung, by the rung's name; `configs_us` are first times."""
    variants = {name: make for of in row.variants.values() for name, make in of.items()}
    first = measure(row.case, variants, rounds=CONFIG_ROUNDS, longest_s=LONGEST_CALL_S)
    least_s = {name: min(one.samples_s) for name, one in first.items() if one.samples_s}
    close = {}
    for of_rung in row.variants.values():
        timed = [name for name in of_rung if name in least_s]
        limit_s = CLOSE * min((least_s[name] for name in timed), default=0.0)
        close |= {name: variants[name] for name in timed if least_s[name] <= limit_s}
    final = measure(row.case, close, budget_s=INTERLEAVED_S)
    found: dict[str, Measured] = {}
    for rung, of_rung in row.variants.items():
        wrong = [first[name].wrong for name in of_rung if first[name].wrong]
        refusals = [first[name].refusal for name in of_rung]
        best = fastest(final, of_rung)
        one = found[rung] = final[best] if best else Measured(refusal=refusals[0])
        one.wrong = ", ".join(wrong)
        one.facts["configs_us"] = {
            str(first[name].explanation.choice.config): 1e6 * least_s[name]
            for name in of_rung
            if name in least_s
        }
    return found


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    case, explanation = row.case, found[name].explanation
    occupancy, shape = explanation.occupancy, (case.m, case.n, case.k)
    twin = twin_tflops(name, case.dtype, case.precision, shape, explanation.work.device)
    extra = fields(row, name, found)
    return {
        **extra,
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
    [Row(case, variants_of(case)) for case in list_cases()], describe, measuring=measure_rungs
)
