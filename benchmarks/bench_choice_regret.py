"""Regret of the choice: its time over the best candidate's, on problems without a table.

Random workloads (`dxgemm.tuning.workloads`, another seed than `dxgemm tune` takes) of every dtype,
precision, layout, batches and epilogues, and a few batches of large matrices; those of half
precision are the suite `choice_regret_half`. On each, the choice,
cuBLAS and every candidate that may be best by the model are checked exactly and timed in turn, out
of the cache. Then the choice, the best of dxgemm's own candidates and cuBLAS are timed again: the
least of many noisy times is too small. `regret` is the choice's new time over the best's,
`vs_cublas` that of cuBLAS, with a kernel behind it for the epilogue, over the choice's.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from typing import Any

from cases import SMOKE, to_dtype
from measuring import CUBLAS, OWN, Found, Measured, Row, bench, fastest, timer

import dxgemm
from dxgemm.choice.selection import choose
from dxgemm.runtime.device import device_facts
from dxgemm.tuning.measure import Bench, Sampler, build_candidates, candidates, near_best
from dxgemm.tuning.sampling import interleave
from dxgemm.tuning.workloads import ARITHMETICS, Workload, random_workloads, square_workloads

SEED, COUNT = 2, 320
LARGE_BATCHES = (
    Workload("float64", 2048, 2048, 2048, 16),
    Workload("float64", 1024, 1024, 64, 128),
    Workload("float64", 512, 512, 64, 64),
)
FIRST_ROUNDS, FINAL_ROUNDS = 5, 15
# Times the shortest predicted time: more than `dxgemm tune` looks at, so that what it does not see
# is found here.
HOPELESS = 1.6


def list_workloads(is_half: bool) -> list[Workload]:
    if SMOKE:
        return [Workload("float16" if is_half else "float32", 5, 6, 3)]
    arithmetics = (*ARITHMETICS, ("bfloat16", None))
    tuned = set(square_workloads(arithmetics))
    others = (workload for workload in random_workloads(arithmetics, SEED) if workload not in tuned)
    of_all = [*islice(others, COUNT), *LARGE_BATCHES]
    return [one for one in of_all if (one.dtype in ("float16", "bfloat16")) == is_half]


@cache
def build_all(is_half: bool) -> None:
    """Build the kernels of all workloads, in parallel."""
    if not SMOKE:
        build_candidates(list_workloads(is_half), device_facts(0), hopeless=HOPELESS)


def measure_choice(is_half: bool, row: Row) -> Found:
    """Times of the choice, of the best candidate by its name, and of cuBLAS."""
    build_all(is_half)
    device, problem = device_facts(0), row.case.problem()
    chosen = choose(problem, device)
    bench = Bench(row.case, timer(), cast=to_dtype)
    known = candidates(problem, device, HOPELESS)
    samplers: dict[str, Any] = bench.samplers(known)
    # Two numbers of blocks to aim at may give the same number of slices.
    choice = next(name for name, candidate in known.items() if candidate == chosen)
    near = near_best(samplers) | {choice: samplers[choice]}
    best = fastest(sampled(near, FIRST_ROUNDS), near)
    finalists = {choice: samplers[choice], best: samplers[best]}
    baseline = cublas_sampler(bench, row.case)
    finalists |= {CUBLAS: baseline} if baseline else {}
    found = sampled(finalists, 1 if SMOKE else FINAL_ROUNDS)
    found[choice].facts = {"best": best, "chosen": chosen}
    return {**found, OWN: found[choice]}


def sampled(samplers: dict[str, Any], rounds: int) -> dict[str, Measured]:
    samples = interleave(samplers, rounds)
    return {name: Measured(samples_s=samples_s) for name, samples_s in samples.items()}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    workload, one = row.case, found[name]
    chosen, best, seconds = one.facts["chosen"], one.facts["best"], one.seconds
    one.facts = {}
    fields = ("dtype", "precision", "m", "n", "k", "batch")
    return {
        **{field: getattr(workload, field) for field in fields},
        "layout": f"{workload.layout}_row",
        "epilogue": "gelu_tanh" if workload.epilogue else "none",
        "implementation": chosen.implementation.name,
        "config": str(chosen.config),
        "slices": chosen.slices,
        "best": best,
        "predicted_us": chosen.us,
        "gpu_us": 1e6 * seconds,
        "best_us": 1e6 * found[best].seconds,
        "tflops": 1e-12 * workload.problem().flops / seconds,
        "regret": seconds / found[best].seconds,
    }


def cublas_sampler(bench: Bench, workload: Workload) -> Sampler | None:
    """The time of cuBLAS, and of a kernel for the epilogue; None where cuBLAS cannot do it."""
    if SMOKE:
        return None
    import torch
    from cupy_backends.cuda.libs.cublas import CUBLASError

    options: Any = {"implementation": "cublas", "precision": workload.precision}

    def call(a: Any, b: Any, out: Any) -> Any:
        plan = dxgemm.plan(a, b, out=out, **options)
        if not workload.epilogue:
            return plan
        result, gelu = torch.from_dlpack(out), torch.ops.aten.gelu.out
        return lambda: (plan(), gelu(result, approximate="tanh", out=result))

    try:
        calls = [call(*operands) for operands in bench.operands]
        calls[0]()
    except (dxgemm.errors.DxgemmError, CUBLASError):
        return None
    return Sampler(calls, timer())


def suite(is_half: bool) -> Callable[..., None]:
    return bench(
        list_workloads(is_half),
        {OWN: None},
        describe=describe,
        measuring=partial(measure_choice, is_half),
        vs={"vs_cublas": CUBLAS},
    )


bench_choice_regret = suite(is_half=False)
