"""Time of a plan, and arrays where its operands are: on the GPU if CuPy is installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from dxgemm.gpu.status import simulator_enabled
from dxgemm.tuning.measure import array_module, uses_cupy

TIMED_CALLS, TIMED_ROUNDS = 20, 7


def send(array: np.ndarray) -> Any:
    """Copy an array to the GPU, if CuPy is used."""
    return array_module().asarray(array)


def fetch(array: Any) -> np.ndarray:
    return array.get() if uses_cupy() else array


def clock_name(events: str = f"around {TIMED_CALLS} calls, median of {TIMED_ROUNDS} rounds") -> str:
    """Describe the clock of `seconds_per_call` in words."""
    if simulator_enabled():
        return "wall clock on the simulator, which says nothing of a GPU"
    if uses_cupy():
        return f"CUDA events {events}"
    return f"wall clock, copies to and from the GPU included, median of {TIMED_ROUNDS} rounds"


def seconds_per_call(calls: Sequence[Callable[[], object]]) -> float:
    """Measure a batch of calls: on the GPU with an overwritten L2 cache, or by the host's clock."""
    if uses_cupy():
        return float(_event_timer()(calls))
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) / len(calls)


@cache
def _event_timer() -> Any:
    from dxgemm.tuning.timing import EventTimer, l2_bytes

    return EventTimer(l2_bytes())


def call_us(plan: Callable[[], Any]) -> float:
    """Measure the microseconds per call of a plan that has run before."""
    calls = [plan] * (TIMED_CALLS if uses_cupy() else 1)
    return 1e6 * median(seconds_per_call(calls) for _ in range(TIMED_ROUNDS))


def time_text(microseconds: float | None) -> str:
    """Write a time with its unit; nothing for None, which was not measured."""
    if microseconds is None:
        return ""
    return f"{microseconds:.1f} us" if microseconds < 1e5 else f"{microseconds / 1e6:.2f} s"
