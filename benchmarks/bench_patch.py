"""torch's products with and without `dxgemm.patch`, whose default is to route what is faster.

Random products are of the kinds that `dxgemm tune` measures. `vs_rival` is torch's time over the
patched one by the host's clock, from an idle GPU to all results of a few calls in a row, as the
patch itself times them; `gpu_vs_rival` is by CUDA events. scikit-learn's computations are those of
examples/scikit_learn.py, by the host's clock.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from cases import SMOKE, Case, Operands, agree, as_tensor, torch, widened, xp
from measuring import L2_BYTES, Found, Measured, Row, bench, ratio, seconds_by_host, timer

import dxgemm
from dxgemm.tuning.sampling import calls_in_sample, interleave, sets_of_operands
from dxgemm.tuning.workloads import random_workloads

if not SMOKE:
    pytest.importorskip("torch", reason="operands are torch's")

SEED, COUNT = 82, 100
ARITHMETICS = [(name, None) for name in ("float32", "float64", "float16", "complex64")]
ROUNDS = 1 if SMOKE else 7
OWN, RIVAL, ON_GPU = "patched", "torch", " on the GPU"
TASKS = (
    "PCA to 32 components", "randomized PCA", "Gaussian mixture", "ridge regression",
    "kernel ridge regression", "cosine similarities", "RBF kernel",
)  # fmt: skip


def random_cases() -> Iterator[Case]:
    for each in random_workloads(ARITHMETICS, SEED):
        if not each.epilogue:
            yield Case(each.dtype, each.m, each.n, each.k, f"{each.layout}_row", each.batch)


def product_call(case: Case, x: Operands) -> Callable[[], Any]:
    if SMOKE:  # NumPy in torch's place
        return lambda: np.matmul(x.a, x.b)
    a, b = map(as_tensor, (x.a, x.b))
    multiply = "bmm" if a.ndim == 3 else "mm"
    return lambda: getattr(torch(), multiply)(a, b)  # what the patch puts there


def measure_product(row: Row) -> Found:
    case, rng = row.case, xp.random.default_rng(0)
    wait = (lambda: None) if SMOKE else xp.cuda.Device().synchronize
    call, patch = product_call(case, case.operands(rng)), dxgemm.patch()
    expected = widened(call())
    with patch:
        is_right = agree(call(), expected, case.dtype)
        wait()
        call_s = 2 * seconds_by_host([call, wait])
    count = calls_in_sample(call_s)
    sets = [case.operands(rng) for _ in range(sets_of_operands(case.bytes_moved, L2_BYTES, count))]
    calls = [product_call(case, sets[i % len(sets)]) for i in range(count)]

    def by_host() -> float:
        seconds_by_host([calls[0], wait])
        return seconds_by_host([*calls, wait]) * (count + 1) / count

    def by_events() -> float:
        return float(timer()(calls))

    def patched(sampler: Callable[[], float]) -> Callable[[], float]:
        def sample() -> float:
            with patch:
                return sampler()

        return sample

    ways = {RIVAL: by_host, OWN: patched(by_host)}
    ways |= {RIVAL + ON_GPU: by_events, OWN + ON_GPU: patched(by_events)}
    found = {name: Measured(samples_s=s) for name, s in interleave(ways, ROUNDS).items()}
    found[OWN].wrong = "" if is_right else f"the patched product differs: {case}"
    found[OWN].facts["routed"] = not patch.report().fell_through
    return found


def describe_product(row: Row, name: str, found: Found) -> dict[str, Any]:
    case, seconds = row.case, found[name].seconds
    return {
        "dtype": case.dtype, "m": case.m, "n": case.n, "k": case.k, "batch": case.batch,
        "arrangement": case.arrangement, "family": "random", "precision": None,
        "implementation": OWN, "us": 1e6 * seconds, "tflops": 1e-12 * case.flops / seconds,
        "rival": "torch.bmm" if case.batch > 1 else "torch.mm",
        "gpu_vs_rival": ratio(found, RIVAL + ON_GPU, OWN + ON_GPU),
    }  # fmt: skip


def measure_task(row: Row) -> Found:
    import scikit_learn

    before, after, routed = scikit_learn.measure(row.case)
    one = Measured(samples_s=[after], facts={"routed": routed, "ms": 1e3 * after})
    return {OWN: one, RIVAL: Measured(samples_s=[before])}


def describe_task(row: Row, name: str, found: Found) -> dict[str, Any]:
    return {
        "dtype": "float32", "family": "scikit-learn", "task": row.case, "precision": None,
        "implementation": OWN, "rival": "scikit-learn", "before_ms": 1e3 * found[RIVAL].seconds,
    }  # fmt: skip


VS = {"vs_rival": RIVAL}
bench_random = bench(
    islice(random_cases(), COUNT),
    {OWN: None},
    describe=describe_product,
    measuring=measure_product,
    vs=VS,
)
if not SMOKE:
    bench_task = bench(TASKS, {OWN: None}, describe=describe_task, measuring=measure_task, vs=VS)
