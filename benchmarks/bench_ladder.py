"""GPU time of every rung of the ladder, each with its best config for the problem.

Every config is checked and timed alone first, with operands out of the L2 cache as in what follows;
`configs_us` holds the least of three samples. The quickest of each rung, and those that come close
to it, then run interleaved with the other rungs and with cuBLAS; `comparison.py` says how. The one
that is quickest there stands for its rung. Where one call takes longer than LONGEST_CALL_S, by the
time taken or by the rate of the size before, a config is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from comparison import SMOKE, Attempt, Case, Timer, Trial, interleaved, make_timer, row
from interleave import replay, replay_clock
from twins import find_twin

import dxgemm
from dxgemm.problem.define import contiguous_problem

LONGEST_CALL_S = 60 if SMOKE else 0.4
CONFIG_SAMPLES = 1 if SMOKE else 3
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

pytestmark = pytest.mark.benchmark(timer=replay_clock)


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
    return [*names, "cublas"] if names else []


def is_made_for(rung: Any, case: Case) -> bool:
    """Tells whether a rung computes a case, in the precision that the case is about.

    What permits TF32 is served by true float32 too, which is a case of its own.
    """
    shape = (case.dtype, case.m, case.n, case.k)
    problem = contiguous_problem(*shape, precision=case.precision)
    if not rung.configs(case.dtype) or rung.supports(problem) is not None:
        return False
    return case.precision is None or rung.supports(contiguous_problem(*shape)) is not None


PARAMETERS = [
    pytest.param(case, name, id=f"{case}-{name}")
    for case in list_cases()
    for name in names_for(case)
]


@dataclass
class Measurement:
    """One case: attempts by rung, one a config, the best of each rung, and its samples."""

    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    best: dict[str, Attempt] = field(default_factory=dict)
    samples_s: dict[str, list[float]] = field(default_factory=dict)


class Ladder:
    """Measures cases as they come and remembers the last one, and how quick each config was."""

    def __init__(self) -> None:
        self._timer: Timer = make_timer()
        self._flops_per_s: dict[Any, float] = {}
        self._case: Case | None = None
        self._measurement = Measurement()

    def measure(self, case: Case) -> Measurement:
        if case != self._case:
            self._case, self._measurement = case, self._measure(case)
        return self._measurement

    def _measure(self, case: Case) -> Measurement:
        result = Measurement()
        trial = Trial(case, self._timer)
        for name in names_for(case):
            result.attempts[name] = [
                self._attempt(trial, case, implementation)
                for implementation in configs_of(name, case.dtype)
            ]
        del trial  # its operands: the next ones may be as large
        contenders = {
            (name, index): attempt
            for name, attempts in result.attempts.items()
            for index, attempt in enumerate(attempts)
            if not attempt.refusal
            and attempt.call_s < CLOSE * min(a.call_s for a in attempts if not a.refusal)
        }
        samples_s = interleaved(case, contenders, self._timer, INTERLEAVED_S)
        for key in sorted(samples_s, key=lambda key: -statistics.median(samples_s[key])):
            result.best[key[0]] = contenders[key]
            result.samples_s[key[0]] = samples_s[key]
        return result

    def _attempt(self, trial: Trial, case: Case, implementation: Any) -> Attempt:
        key = (implementation, case.dtype, case.precision)
        if key in self._flops_per_s:
            expected_s = case.flops / self._flops_per_s[key]
            if expected_s > LONGEST_CALL_S and implementation != "cublas":
                return Attempt(implementation, refusal=f"one call would take {expected_s:.2g} s")
        attempt = trial.attempt(implementation, CONFIG_SAMPLES)
        self._flops_per_s[key] = case.flops / attempt.call_s
        if attempt.call_s > LONGEST_CALL_S and implementation != "cublas" and not attempt.refusal:
            attempt.refusal = f"one call takes {attempt.call_s:.2g} s"
        return attempt


def configs_of(name: str, dtype: str) -> Iterator[Any]:
    """Values of `implementation=` for each config of a rung."""
    if name == "cublas":
        yield name
        return
    (rung,) = (rung for rung in RUNGS if rung.name == name)
    for config in rung.configs(dtype):
        yield name, config


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    return Ladder()


@pytest.mark.parametrize(("case", "name"), PARAMETERS)
def bench_rung(benchmark: Any, ladder: Ladder, case: Case, name: str) -> None:
    measurement = ladder.measure(case)
    attempts = measurement.attempts[name]
    wrong = [str(attempt.implementation) for attempt in attempts if attempt.is_wrong]
    if wrong:
        pytest.fail(f"wrong results for {case}: {', '.join(wrong)}", pytrace=False)
    if name not in measurement.best:
        pytest.skip(attempts[0].refusal or "no config")
    benchmark.group = str(case)
    explanation = measurement.best[name].explanation
    per_sm = explanation.occupancy.per_sm
    extra = row(case, name, explanation.choice.config, measurement.samples_s)
    twin = find_twin(
        name, case.dtype, case.precision, (case.m, case.n, case.k), explanation.work.device
    )
    benchmark.extra_info.update(
        extra,
        rung=next((rung.rung for rung in RUNGS if rung.name == name), None),
        twin_tflops=twin.tflops if twin else None,
        vs_twin=extra["tflops"] / twin.tflops if twin else None,
        blocks=explanation.occupancy.blocks,
        waves=explanation.occupancy.waves,
        threads=explanation.occupancy.threads,
        registers=explanation.occupancy.registers,
        smem_bytes=explanation.occupancy.smem_bytes,
        blocks_per_sm=per_sm and per_sm.blocks,
        configs_us={
            attempt.explanation.choice.config: 1e6 * attempt.call_s
            for attempt in attempts
            if attempt.explanation is not None and not attempt.refusal
        },
    )
    replay(benchmark, measurement.samples_s[name])
