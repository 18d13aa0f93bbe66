"""GPU time of what the automatic choice is among, over sizes, arrangements, batches and dtypes.

All implementations of a case, cuBLAS among them, are interleaved; `comparison.py` says how. Each
takes the config that the dispatcher chooses. The other steps of the ladder have a suite of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from comparison import SMOKE, Attempt, Case, Timer, Trial, interleaved, make_timer, row
from interleave import replay, replay_clock

import dxgemm

# What the automatic choice is among for some dtype, the pipelines with all of theirs, the baseline.
IMPLEMENTATIONS = [i.name for i in dxgemm.implementations() if i.automatic_for != ()]
LONGEST_CALL_S = 60 if SMOKE else 0.1  # slower implementations are left out, cuBLAS never
DTYPES = ("float32", "float64")

pytestmark = pytest.mark.benchmark(timer=replay_clock)

SQUARES = [16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192]
RAGGED = [
    (127, 129, 65), (639, 640, 347), (1000, 1000, 1000), (2047, 2049, 2053), (4011, 4012, 103),
]  # fmt: skip
NARROW = [
    (1, 4096, 4096), (4096, 16, 4096), (9, 16, 23040), (25, 64, 27920), (50176, 64, 27),
    (24000, 256, 256),
]  # fmt: skip
ARRANGED_SIZES = [1024, 4096]
ARRANGEMENTS = ["row_col_row", "col_row_row", "col_col_row", "row_row_col", "col_col_col"]
BATCHED = [(1000, 32), (256, 128), (64, 512)]


def list_cases() -> list[Case]:
    if SMOKE:
        cases = [Case(dtype, 6, 5, 3) for dtype in DTYPES]
        return [*cases, Case("float32", 3, 4, 2, "col_row_col", batch=2)]
    cases = []
    for dtype in DTYPES:
        cases += [Case(dtype, n, n, n) for n in SQUARES]
        cases += [Case(dtype, *shape) for shape in RAGGED + NARROW]
        cases += [Case(dtype, n, n, n, order) for n in ARRANGED_SIZES for order in ARRANGEMENTS]
        cases += [Case(dtype, n, n, n, batch=batch) for batch, n in BATCHED]
    return cases


@dataclass
class Measurement:
    """One case: per implementation its attempt, and the samples of those that were timed."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    samples_s: dict[str, list[float]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def timer() -> Timer:
    return make_timer()


@pytest.fixture(scope="module", params=list_cases(), ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="module")
def measurement(case: Case, timer: Timer) -> Measurement:
    """Check every implementation, then time those that pass, interleaved."""
    trial = Trial(case, timer)
    result = Measurement({name: trial.attempt(name) for name in IMPLEMENTATIONS})
    timed = {}
    for name, attempt in result.attempts.items():
        if attempt.refusal or attempt.is_wrong:
            continue
        if attempt.call_s > LONGEST_CALL_S and name != "cublas":
            attempt.refusal = f"one call takes {attempt.call_s:.2f} s"
            continue
        timed[name] = attempt
    result.samples_s = interleaved(case, timed, timer)
    return result


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def bench_implementation(
    benchmark: Any, case: Case, measurement: Measurement, implementation: str
) -> None:
    attempt = measurement.attempts[implementation]
    if attempt.refusal:
        pytest.skip(attempt.refusal)
    if attempt.is_wrong:
        pytest.fail(f"{implementation} gives a wrong result for {case}", pytrace=False)
    benchmark.group = str(case)
    config = attempt.explanation.config
    benchmark.extra_info.update(row(case, implementation, config, measurement.samples_s))
    replay(benchmark, measurement.samples_s[implementation])
