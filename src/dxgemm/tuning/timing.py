"""GPU time of a call, by CUDA events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cupy
import numpy as np

SPIN_SOURCE = r"""
extern "C" __global__ void spin(long long nanoseconds) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
"""
HOLD_NS, HOLD_NS_A_CALL = 100_000, 15_000
LONGEST_HOLD_NS = 1_000_000_000


class EventTimer:
    """Timer of a batch of calls: seconds per call, between two events on the current stream.

    The L2 cache is overwritten first. Then a spin kernel holds the stream until the host has
    enqueued the whole batch, so that the GPU runs it back to back and the host's cost of launching
    stays out of the time. A batch that was not enqueued in time is measured again, held longer.
    """

    def __init__(self, l2_bytes: int) -> None:
        self._l2_filler = cupy.empty(2 * l2_bytes, dtype=cupy.uint8)
        self._spin = cupy.RawKernel(SPIN_SOURCE, "spin")
        self._start, self._stop = cupy.cuda.Event(), cupy.cuda.Event()

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        hold_ns = HOLD_NS + HOLD_NS_A_CALL * len(calls)
        while hold_ns <= LONGEST_HOLD_NS:
            self.overwrite_l2()
            self._spin((1,), (1,), (np.int64(hold_ns),))
            self._start.record()
            for call in calls:
                call()
            self._stop.record()
            enqueued_in_time = not self._start.done
            self._stop.synchronize()
            if enqueued_in_time:
                elapsed_ms = cupy.cuda.get_elapsed_time(self._start, self._stop)
                return elapsed_ms * 1e-3 / len(calls)
            hold_ns *= 2
        raise RuntimeError(f"{len(calls)} calls were not enqueued in 1 s: does one synchronise?")

    def overwrite_l2(self) -> None:
        """Overwrite the L2 cache, on the current stream."""
        self._l2_filler.fill(0)


def l2_bytes() -> int:
    """Size of the current GPU's L2 cache in bytes."""
    return int(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["l2CacheSize"])
