"""Arrays, times and tables of the examples: of CuPy on a GPU, of NumPy and untimed without one.

`IS_SIMULATED` is whether kernels run on numba's simulator, which importing this module enables
where there is no GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import dxgemm

CALLS, ROUNDS = 20, 7
IS_SIMULATED = dxgemm.simulate(unless_gpu=True)
IS_TIMED = not IS_SIMULATED and find_spec("cupy") is not None
xp = import_module("cupy" if IS_TIMED else "numpy")
CLOCK = (
    f"Times: CUDA events around {CALLS} calls, median of {ROUNDS} rounds."
    if IS_TIMED
    else "Not timed: no GPU with CuPy."
)

send = xp.asarray  # copies an array to the GPU


def fetch(array: Any) -> Any:
    """Copy an array from the GPU."""
    return array.get() if IS_TIMED else array


def call_us(call: Callable[[], Any]) -> float:
    """Microseconds of a call on the GPU; NaN where nothing is timed."""
    if not IS_TIMED:
        return math.nan
    start, stop, times = xp.cuda.Event(), xp.cuda.Event(), []
    for _ in range(ROUNDS):
        start.record()
        for _ in range(CALLS):
            call()
        stop.record()
        stop.synchronize()
        times.append(1e3 * xp.cuda.get_elapsed_time(start, stop) / CALLS)
    return median(times)


def time_text(microseconds: float | None) -> str:
    return f"{microseconds:.1f} us" if microseconds and math.isfinite(microseconds) else ""


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print columns, aligned; those whose name begins with ">" to the right."""
    cells = [[name.removeprefix(">") for name in header], *([str(c) for c in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for line in cells:
        padded = zip(line, header, widths)
        print("  ".join(c.rjust(w) if h[0] == ">" else c.ljust(w) for c, h, w in padded).rstrip())
