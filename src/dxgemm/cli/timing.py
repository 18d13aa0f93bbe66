"""Arrays on the GPU, and the time of a plan, by CUDA events if CuPy is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

from dxgemm.errors import MissingPackageError
from dxgemm.gpu.status import simulator_enabled

TIMED_CALLS, TIMED_ROUNDS = 20, 7
SIMULATED_CLOCK = "wall clock on the simulator, which says nothing of a GPU"


def uses_cupy() -> bool:
    return not simulator_enabled() and find_spec("cupy") is not None


def array_module() -> Any:
    """Module of the arrays: CuPy if they go to a GPU, else NumPy."""
    return import_module("cupy" if uses_cupy() else "numpy")


def send(array: np.ndarray) -> Any:
    """Copy an array to the GPU, if CuPy is used."""
    return array_module().asarray(array)


def fetch(array: Any) -> np.ndarray:
    return array.get() if uses_cupy() else array


def to_dtype(array: Any, dtype: str) -> Any:
    """Round an array to a dtype; bfloat16, which NumPy lacks, becomes a torch tensor."""
    if dtype != "bfloat16":
        return array.astype(dtype, copy=False)
    if find_spec("torch") is None:
        raise MissingPackageError(
            "bfloat16 arrays are torch's, which is not installed; pip install 'dxgemm[torch]'."
        )
    import torch

    return torch.from_dlpack(array).to(torch.bfloat16)


def clock_name() -> str:
    """Describe the clock of `call_us` in words."""
    if simulator_enabled():
        return SIMULATED_CLOCK
    if uses_cupy():
        return f"CUDA events around up to {TIMED_CALLS} calls, median of {TIMED_ROUNDS} rounds"
    return f"wall clock, copies to and from the GPU included, median of {TIMED_ROUNDS} rounds"


def call_us(plan: Callable[[], Any]) -> float:
    """Measure the microseconds per call of a plan that has run before."""
    if uses_cupy():
        return median(event_time_us(plan, TIMED_CALLS) for _ in range(TIMED_ROUNDS))
    return median(wall_time_us(plan) for _ in range(TIMED_ROUNDS))


def event_time_us(plan: Callable[[], Any], calls: int) -> float:
    """Measure the microseconds per call of several in a row, on CuPy's current stream."""
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(calls):
        plan()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e3 / calls


def wall_time_us(plan: Callable[[], Any]) -> float:
    start = time.perf_counter()
    plan()
    return (time.perf_counter() - start) * 1e6


def time_text(microseconds: float | None) -> str:
    """Write a time with its unit; nothing for None, which was not measured."""
    if microseconds is None:
        return ""
    return f"{microseconds:.1f} us" if microseconds < 1e5 else f"{microseconds / 1e6:.2f} s"
