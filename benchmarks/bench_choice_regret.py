"""Regret of the choice: its time over the best candidate's, on problems without a table.

Random workloads (`dxgemm.tuning.workloads`, another seed than `dxgemm tune` takes) of every dtype,
precision, layout, batches and epilogues, and a few batches of large matrices. On each, the choice,
cuBLAS and every candidate that may be best by the model are checked exactly and timed in turn, out
of the cache. Then the choice, the best of dxgemm's own candidates and cuBLAS are timed again: the
least of many noisy times is too small. `regret` is the choice's new time over the best's,
`vs_cublas` that of cuBLAS, with a kernel behind it for the epilogue, over the choice's.
"""

from __future__ import annotations

import statistics
from itertools import islice
from typing import Any

import pytest
from comparison import SMOKE, make_timer, to_dtype
from interleave import replay, replay_clock

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

pytestmark = pytest.mark.benchmark(timer=replay_clock)


def list_workloads() -> list[Workload]:
    if SMOKE:
        return [Workload(dtype, 5, 6, 3) for dtype in ("float32", "float64")]
    arithmetics = (*ARITHMETICS, ("bfloat16", None))
    tuned = set(square_workloads(arithmetics))
    others = (workload for workload in random_workloads(arithmetics, SEED) if workload not in tuned)
    return [*islice(others, COUNT), *LARGE_BATCHES]


@pytest.fixture(scope="module")
def timer() -> Any:
    """Kernels are built first, in parallel."""
    if not SMOKE:
        build_candidates(list_workloads(), device_facts(0), hopeless=HOPELESS)
    return make_timer()


@pytest.mark.parametrize("workload", list_workloads(), ids=str)
def bench_choice_regret(benchmark: Any, timer: Any, workload: Workload) -> None:
    device, problem = device_facts(0), workload.problem()
    chosen = choose(problem, device)
    bench = Bench(workload, timer, cast=to_dtype)
    found = candidates(problem, device, HOPELESS)
    samplers = bench.samplers(found)
    # Two numbers of blocks to aim at may give the same number of slices.
    choice = next(name for name, candidate in found.items() if candidate == chosen)
    baseline = cublas_sampler(bench, workload, timer)
    near = near_best(samplers) | {choice: samplers[choice]}
    medians = _medians(interleave(near, FIRST_ROUNDS))
    best = min(medians, key=lambda name: medians[name])
    finalists: dict[str, Any] = {name: samplers[name] for name in dict.fromkeys((choice, best))}
    if baseline is not None:
        finalists["cublas"] = baseline
    samples = interleave(finalists, 1 if SMOKE else FINAL_ROUNDS)
    seconds = _medians(samples)
    chosen_s, cublas_s = seconds[choice], seconds.get("cublas")
    benchmark.group = "choice"
    benchmark.extra_info.update(
        dtype=workload.dtype,
        precision=workload.precision,
        m=workload.m,
        n=workload.n,
        k=workload.k,
        batch=workload.batch,
        layout=f"{workload.layout}_row",
        epilogue="gelu_tanh" if workload.epilogue else "none",
        implementation=chosen.implementation.name,
        config=str(chosen.config),
        slices=chosen.slices,
        best=best,
        predicted_us=chosen.us,
        gpu_us=1e6 * chosen_s,
        best_us=1e6 * seconds[best],
        tflops=1e-12 * problem.flops / chosen_s,
        regret=chosen_s / seconds[best],
        vs_cublas=cublas_s / chosen_s if cublas_s else None,
    )
    replay(benchmark, samples[choice])


def cublas_sampler(bench: Bench, workload: Workload, timer: Any) -> Sampler | None:
    """The time of cuBLAS, and of a kernel for the epilogue; None where cuBLAS cannot do it."""
    if SMOKE:
        return None
    from cupy_backends.cuda.libs.cublas import CUBLASError

    try:
        plans = [
            dxgemm.plan(a, b, out=out, implementation="cublas", precision=workload.precision)
            for a, b, out in bench.operands
        ]
        plans[0]()
    except (dxgemm.errors.DxgemmError, CUBLASError):
        return None
    if not workload.epilogue:
        return Sampler(plans, timer)
    import torch

    def with_gelu(plan: Any, out: Any) -> Any:
        result = torch.from_dlpack(out)

        def call() -> None:
            plan()
            torch.ops.aten.gelu.out(result, approximate="tanh", out=result)

        return call

    calls = [with_gelu(plan, out) for plan, (_, _, out) in zip(plans, bench.operands, strict=True)]
    return Sampler(calls, timer)


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(of) for name, of in samples.items()}
