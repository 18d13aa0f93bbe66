"""GPU time of products with few rows, against cuBLAS and against reading as many bytes.

Each row is the automatic choice. A product reads its weights once, and does little else. So there
are two fields besides the usual ones: `gbs`, the bytes of operands and result over the time, in
GB/s; and `read_gbs`, the rate at which CuPy sums as many bytes as float32, measured in the same
rounds. Weights are n x k, of layers of models and of odd sizes, row-major or column-major.

With `batch_invariant` the choice keeps each row's bits, for one to thousands of rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from comparison import (
    SMOKE,
    Case,
    Timer,
    Trial,
    make_timer,
    plans_on_random_operands,
    row,
    take_turns,
    xp,
)
from interleave import replay, replay_clock

from dxgemm.choice.batch_invariant import BatchInvariant

CASE_S = 0.08  # of timing a case, unless fewest rounds take longer
AUTOMATIC, BASELINE, READING = "automatic", "cublas", "read"

pytestmark = pytest.mark.benchmark(timer=replay_clock)

ROWS = (1, 2, 4, 8, 16, 32, 64)
LAYERS = [
    # n x k of projections and MLPs of Llama and Qwen; a long and a wide one; odd ones.
    (4096, 4096), (14336, 4096), (4096, 14336), (6144, 5120),
    (1024, 65536), (65536, 1024), (4099, 4097), (3001, 11009),
]  # fmt: skip
ARRANGEMENTS = ("row_col_row", "row_row_row")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8")


INVARIANT_ROWS = (*ROWS, 128, 256, 512, 1024, 2048, 4096, 8192)


def list_invariant_cases() -> list[Case]:
    """Activations of many numbers of rows, times weights as torch stores them."""
    if SMOKE:
        return [Case("float16", 2, 6, 5, "row_col_row")]
    return [
        Case("bfloat16", m, n, k, "row_col_row")
        for (n, k), m in product(LAYERS[:3], INVARIANT_ROWS)
    ]


def list_cases() -> list[Case]:
    """The cases, weights of which are a layer's: b is n x k, column-major if stored as such."""
    if SMOKE:
        return [Case("float32", 2, 6, 5, "row_col_row")]
    return [
        Case(dtype, m, n, k, arrangement)
        for dtype, (n, k), arrangement, m in product(DTYPES, LAYERS, ARRANGEMENTS, ROWS)
        if dtype == "float16" or (n, k) in LAYERS[:3] + LAYERS[-2:-1]
    ]


@pytest.fixture(scope="module")
def timer() -> Timer:
    return make_timer()


@pytest.mark.parametrize("case", list_cases(), ids=str)
def bench_few_rows(benchmark: Any, timer: Timer, case: Case) -> None:
    measure(benchmark, timer, case, None)


@pytest.mark.parametrize("case", list_invariant_cases(), ids=str)
def bench_batch_invariant(benchmark: Any, timer: Timer, case: Case) -> None:
    measure(benchmark, timer, case, BatchInvariant(None))


def measure(benchmark: Any, timer: Timer, case: Case, implementation: Any) -> None:
    """Time the choice, cuBLAS and a read of as many bytes in turn."""
    trial = Trial(case, timer)
    attempts = {AUTOMATIC: trial.attempt(implementation)}
    if not SMOKE:
        attempts[BASELINE] = trial.attempt(BASELINE)
    del trial
    chosen = attempts[AUTOMATIC]
    if chosen.is_wrong:
        pytest.fail(f"a wrong result for {case}", pytrace=False)
    if chosen.refusal:
        pytest.skip(chosen.refusal)
    right = {name: a for name, a in attempts.items() if not (a.refusal or a.is_wrong)}
    calls = plans_on_random_operands(case, right)
    calls[READING] = reads(case, len(calls[AUTOMATIC]))
    call_s = {name: right[name].call_s if name in right else chosen.call_s for name in calls}
    samples_s = take_turns(calls, call_s, timer, CASE_S)
    report(benchmark, case, chosen.explanation, samples_s, implementation is not None)


def reads(case: Case, count: int) -> list[Callable[[], object]]:
    """Sums of as many bytes as the case moves, each over memory of its own."""
    arrays = [xp.ones(-(-case.bytes_moved // 4), "float32") for _ in range(count)]
    totals = xp.empty((), "float32")
    return [lambda array=array: array.sum(out=totals) for array in arrays]


def report(
    benchmark: Any,
    case: Case,
    explanation: Any,
    samples_s: dict[str, list[float]],
    is_invariant: bool,
) -> None:
    """File the row of the automatic choice."""
    own_s, read_s = (statistics.median(samples_s[name]) for name in (AUTOMATIC, READING))
    benchmark.group = str(case)
    benchmark.extra_info.update(
        row(case, AUTOMATIC, explanation and explanation.choice.config, samples_s),
        implementation=explanation and explanation.choice.implementation,
        batch_invariant=is_invariant,
        gbs=1e-9 * case.bytes_moved / own_s,
        read_gbs=1e-9 * case.bytes_moved / read_s,
    )
    replay(benchmark, samples_s[AUTOMATIC])
