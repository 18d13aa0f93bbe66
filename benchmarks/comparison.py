"""Several implementations of one problem: each checked first, then all timed, interleaved.

A `Trial` checks an implementation bit-exactly on integers and takes a first time. `interleaved`
times those that passed on random operands. Consecutive calls take different operands, and
the L2 cache is overwritten before each batch of calls, so that every call reads its operands from
memory. What is timed is a `Plan` that writes to `out`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any

import numpy as np
from oracle import inputs
from rivals import RIVALS

import dxgemm
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.dtypes import ITEM_SIZES, result_dtypes, step_flops
from dxgemm.tuning import sampling
from dxgemm.tuning.sampling import MOST_CALLS, Name, calls_in_sample, interleave

SMOKE = simulator_enabled()
if SMOKE:
    xp: Any = np
else:
    import cupy as xp

    from dxgemm.tuning.timing import EventTimer

Timer = Callable[[Sequence[Callable[[], object]]], float]

L2_BYTES = 0 if SMOKE else xp.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]
MOST_ROUNDS = 1 if SMOKE else 21
FEWEST_ROUNDS = 1 if SMOKE else 5
CANARY_K = 2048  # up to here float32 sums of canary data are exact, beyond it those of `integers`
WRONG_INTEGER = -1  # sums of int8 canaries are positive


@dataclass(frozen=True)
class Case:
    """One problem; `arrangement` says "row" or "col" of a, b and out.

    `result_dtype` is that of out, where it is not the one that `gemm` would allocate.
    """

    dtype: str
    m: int
    n: int
    k: int
    arrangement: str = "row_row_row"
    batch: int = 1
    precision: str | None = None
    result_dtype: str | None = None

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        precision = "".join(f"-{name}" for name in (self.precision, self.result_dtype) if name)
        return f"{self.dtype}{precision}-{batch}{self.m}x{self.n}x{self.k}-{self.arrangement}"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of a, b and out."""
        batch = (self.batch,) if self.batch > 1 else ()
        matrices = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        return [(*batch, *matrix) for matrix in matrices]

    @property
    def out_dtype(self) -> str:
        return self.result_dtype or result_dtypes(self.dtype)[0]

    @property
    def flops(self) -> int:
        return step_flops(self.dtype) * self.batch * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        """Each operand read once, the result written once."""
        factors = ITEM_SIZES[self.dtype] * (self.m * self.k + self.k * self.n)
        return self.batch * (factors + ITEM_SIZES[self.out_dtype] * self.m * self.n)


@dataclass
class Attempt:
    """One implementation in one trial: a first time, or the reason why there is none.

    Attributes:
        implementation: value of `implementation=`, or one of `RIVALS`.
        explanation: explanation of the plan; None for another library.
        call_s: seconds per call.
        refusal: reason why it was not timed.
        is_wrong: True if its result was not exact.
    """

    implementation: Any
    explanation: Any = None
    call_s: float = math.inf
    refusal: str | None = None
    is_wrong: bool = False


class Trial:
    """Exact operands of one case, on which implementations are tried one after the other."""

    def __init__(self, case: Case, timer: Timer) -> None:
        self._case = case
        self._timer = timer
        # Equal copies, so that consecutive calls find their operands out of the L2 cache.
        copies = [_integers(case) for _ in range(sets_of_operands(case, MOST_CALLS))]
        self._operands = [to_dtypes(case, arrays) for arrays in copies]
        a, b, _ = copies[0]
        exact = xp.matmul(a.astype("float64"), b.astype("float64"))
        self._exact = to_dtype(exact, case.out_dtype)

    def attempt(self, implementation: Any, samples: int = 1) -> Attempt:
        """Check an implementation; the time is the least of so many samples."""
        attempt = Attempt(implementation)
        sets = self._operands if samples > 1 else self._operands[:1]
        try:
            plans = [_plan(self._case, operands, implementation) for operands in sets]
        except (
            dxgemm.errors.UnsupportedProblemError,
            dxgemm.errors.BuildError,
            dxgemm.errors.MissingPackageError,
        ) as error:
            attempt.refusal = str(error)
            return attempt
        if isinstance(plans[0], dxgemm.Plan):
            attempt.explanation = plans[0].explain()
        out = self._operands[0][2]
        out[...] = WRONG_INTEGER if self._case.dtype == "int8" else math.nan
        if not bool((plans[0]() == self._exact).all()):
            attempt.is_wrong = True
            return attempt
        attempt.call_s = self._timer(plans[:1])
        calls = calls_in_sample(attempt.call_s)
        for _ in range(samples - 1):
            batch = list(islice(cycle(plans), calls))
            attempt.call_s = min(attempt.call_s, self._timer(batch))
        return attempt


def make_timer() -> Timer:
    return _seconds_in_simulator if SMOKE else EventTimer(L2_BYTES)


def interleaved(
    case: Case, attempts: Mapping[Name, Attempt], timer: Timer, budget_s: float = math.inf
) -> dict[Name, list[float]]:
    """Seconds a call of each attempt, on random operands; fewer rounds where they take long.

    Args:
        attempts: by name; all have been timed once.
        budget_s: seconds for all rounds, unless that is less than FEWEST_ROUNDS.
    """
    call_s = {name: attempt.call_s for name, attempt in attempts.items()}
    return take_turns(plans_on_random_operands(case, attempts), call_s, timer, budget_s)


def plans_on_random_operands(
    case: Case, attempts: Mapping[Name, Attempt]
) -> dict[Name, list[Callable[[], Any]]]:
    """Plans of each attempt, on as many sets of random operands as keep them out of the L2."""
    calls = (calls_in_sample(attempt.call_s) for attempt in attempts.values())
    rng = xp.random.default_rng(0)
    sets = sets_of_operands(case, max(calls, default=1))
    operands = [random_operands(case, rng) for _ in range(sets)]
    return {
        name: [_plan(case, matrices, attempt.implementation) for matrices in operands]
        for name, attempt in attempts.items()
    }


def take_turns(
    calls: Mapping[Name, Sequence[Callable[[], object]]],
    call_s: Mapping[Name, float],
    timer: Timer,
    budget_s: float,
) -> dict[Name, list[float]]:
    """Seconds a call of several variants, interleaved.

    Args:
        calls: by name, the same call on each set of operands.
        call_s: by name, the duration of a call in seconds.
        timer: timer of a batch of calls.
        budget_s: as `interleaved` takes it.
    """
    counts = {name: calls_in_sample(seconds) for name, seconds in call_s.items()}
    round_s = sum(counts[name] * seconds for name, seconds in call_s.items())
    rounds = MOST_ROUNDS
    if round_s * MOST_ROUNDS > budget_s:
        rounds = max(FEWEST_ROUNDS, int(budget_s / round_s))

    def sampler(name: Name) -> Callable[[], float]:
        in_turn = cycle(calls[name])
        return lambda: timer(list(islice(in_turn, counts[name])))

    return interleave({name: sampler(name) for name in calls}, rounds)


def row(
    case: Case, implementation: str, config: str | None, samples_s: Mapping[str, list[float]]
) -> dict[str, Any]:
    """The extra_info of one implementation, whose samples stand under its name."""
    seconds = statistics.median(samples_s[implementation])
    cublas = samples_s.get("cublas")
    return {
        **asdict(case),
        "epilogue": "none",
        "implementation": implementation,
        "config": config,
        "gpu_us": 1e6 * seconds,
        "tflops": 1e-12 * case.flops / seconds,
        "gbytes_per_s": 1e-9 * case.bytes_moved / seconds,
        "vs_cublas": statistics.median(cublas) / seconds if cublas else None,
    }


def sets_of_operands(case: Case, calls: int) -> int:
    """Number of sets of operands: enough to fill the L2 cache twice, at most one per call."""
    return sampling.sets_of_operands(case.bytes_moved, L2_BYTES, calls)


def _plan(case: Case, operands: Sequence[Any], implementation: Any) -> Callable[[], Any]:
    if isinstance(implementation, str) and implementation in RIVALS:
        a, b, out = operands
        return RIVALS[implementation](None, SimpleNamespace(a=a, b=b, out=out))
    a, b, out = operands
    return dxgemm.plan(a, b, out=out, implementation=implementation, precision=case.precision)


def _seconds_in_simulator(calls: Sequence[Callable[[], object]]) -> float:
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) / len(calls)


def working_dtype(case: Case) -> str:
    return "float64" if case.dtype == "float64" else "float32"


def _integers(case: Case) -> list[Any]:
    """a, b and out, of values whose products and sums are exact in any order.

    TF32 and half precision hold the small integers exactly, not those of the canary. Sums of int8
    are always exact.
    """
    is_full = case.dtype in ("float32", "float64") and case.precision != "tf32"
    fills = inputs.FILLS["integers"]
    if case.dtype == "int8" or (is_full and case.k <= CANARY_K):
        fills = *inputs.CANARIES[case.dtype], inputs.integers
    rng = xp.random.default_rng(1)
    dtype = working_dtype(case)
    return arrange(case, [fill(rng, s, dtype) for fill, s in zip(fills, case.shapes, strict=True)])


def random_operands(case: Case, rng: Any) -> list[Any]:
    """a, b and out, of standard normal values; of all integers that int8 holds."""
    if case.dtype == "int8":
        matrices = [inputs.random(rng, shape, case.dtype) for shape in case.shapes]
    else:
        dtype = working_dtype(case)
        matrices = [rng.standard_normal(shape, dtype=dtype) for shape in case.shapes]
    return to_dtypes(case, arrange(case, matrices))


def arrange(case: Case, matrices: Sequence[Any]) -> list[Any]:
    orders = case.arrangement.split("_")
    return [_store(matrix, order) for matrix, order in zip(matrices, orders, strict=True)]


def _store(matrix: Any, order: str) -> Any:
    """A copy of a matrix, or of each in a batch, in row- or column-major order."""
    if order == "row":
        return xp.ascontiguousarray(matrix)
    return xp.ascontiguousarray(matrix.swapaxes(-1, -2)).swapaxes(-1, -2)


def to_dtypes(case: Case, matrices: Sequence[Any]) -> list[Any]:
    """a, b and out in the dtypes of a case."""
    dtypes = case.dtype, case.dtype, case.out_dtype
    return [to_dtype(matrix, dtype) for matrix, dtype in zip(matrices, dtypes, strict=True)]


def to_dtype(array: Any, dtype: str) -> Any:
    """The same values, rounded to nearest; bfloat16, which NumPy lacks, as a torch tensor."""
    if dtype != "bfloat16":
        return array.astype(dtype, copy=False)
    import torch

    return torch.from_dlpack(array).to(torch.bfloat16)
