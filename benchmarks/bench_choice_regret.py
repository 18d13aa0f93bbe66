"""How far the automatic choice is from the best kernel, on shapes that nothing was tuned on.

Random shapes (`dxgemm.tuning.shapes`, another seed than `dxgemm tune` takes), every other one
aligned: of 16 elements and more, and thin ones, of which m, n or k is less. On each, the choice,
cuBLAS and every own kernel that may be best by the model are checked exactly and timed in turn, out
of the cache. Then the choice, the best of dxgemm's own kernels and cuBLAS are timed again: the
least of many noisy times is too small. `regret` is the choice's new time over the best's,
`vs_cublas` cuBLAS's over the choice's; `first_us` are the first times of all own kernels, by which
other choices can be judged later.
"""

from __future__ import annotations

import statistics
from itertools import islice
from typing import Any

import pytest
from comparison import SMOKE, make_timer
from interleave import replay, replay_clock

from dxgemm._dispatch import choose
from dxgemm._problem import contiguous_problem
from dxgemm.runtime.device import device_facts
from dxgemm.tuning.measure import BASELINE, Way, build_candidates, make_samplers, rounds
from dxgemm.tuning.sampling import interleave
from dxgemm.tuning.shapes import Shape, log_uniform_shapes, log_uniform_thin_shapes

SEED, COUNT, THIN_COUNT = 2, 240, 200
FINAL_ROUNDS = 15
DTYPES = ("float32", "float64")

pytestmark = pytest.mark.benchmark(timer=replay_clock)


def list_shapes() -> list[Shape]:
    if SMOKE:
        return [Shape(dtype, 5, 6, 3) for dtype in DTYPES]
    usual = islice(log_uniform_shapes(DTYPES, SEED), COUNT)
    return [*usual, *islice(log_uniform_thin_shapes(DTYPES, SEED), THIN_COUNT)]


@pytest.fixture(scope="module")
def timer() -> Any:
    """Kernels are built first, in parallel."""
    if not SMOKE:
        build_candidates(list_shapes())
    return make_timer()


@pytest.mark.parametrize("shape", list_shapes(), ids=str)
def bench_choice_regret(benchmark: Any, timer: Any, shape: Shape) -> None:
    first = choose(contiguous_problem(*shape), device_facts(0))
    chosen = Way(first.implementation.name, str(first.config), first.slices)
    samplers = make_samplers(shape, timer, always=chosen)
    first_s = _medians(interleave(samplers, rounds()))
    best = min(first_s.keys() - {BASELINE}, key=lambda way: first_s[way])
    finalists = {way: samplers[way] for way in (chosen, best, BASELINE) if way in samplers}
    samples = interleave(finalists, 1 if SMOKE else FINAL_ROUNDS)
    seconds = _medians(samples)
    cublas_s, chosen_s = seconds.get(BASELINE), seconds[chosen]
    benchmark.group = "choice"
    benchmark.extra_info.update(
        shape._asdict(),
        arrangement="row_row_row",
        epilogue="none",
        implementation=chosen.implementation,
        config=chosen.config,
        slices=chosen.slices,
        best=_text(best),
        first_us={_text(way): round(1e6 * s, 3) for way, s in first_s.items() if way != BASELINE},
        gpu_us=1e6 * chosen_s,
        tflops=2e-12 * shape.m * shape.n * shape.k / chosen_s,
        regret=chosen_s / seconds[best],
        vs_cublas=cublas_s / chosen_s if cublas_s else None,
    )
    replay(benchmark, samples[chosen])


def _text(way: Way) -> str:
    return " ".join(map(str, way))


def _medians(samples: dict[Way, list[float]]) -> dict[Way, float]:
    return {way: statistics.median(of) for way, of in samples.items()}
