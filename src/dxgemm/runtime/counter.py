"""Counters in GPU memory, which kernels add to."""

from __future__ import annotations

from functools import partial

import numpy as np

from dxgemm.errors import GpuUnavailableError, named_in_errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.arguments import check_size
from dxgemm.runtime.capture import is_captured, outside_capture
from dxgemm.runtime.device import call_driver, current_device, device_count
from dxgemm.runtime.streams import library_streams
from dxgemm.runtime.upload import download_now, upload_now
from dxgemm.runtime.workspace import Workspace

_call = partial(call_driver, failure="gemm: a counter was not read")


class Counter:
    """Counter in a GPU's memory: an int32, 0 at first."""

    def __init__(self, ordinal: int) -> None:
        self._memory = Workspace(4, ordinal)
        self._ordinal = ordinal
        self.pointer = self._memory.pointer
        upload_now(np.zeros(1, np.int32), self.pointer, ordinal)

    def read(self) -> int:
        """Wait for the work on the streams at hand, and return the count.

        These are the default stream, for which all blocking streams count, and the current ones of
        CuPy and torch. Synchronizing the context would spoil the captures of every thread.
        """
        value = np.zeros(1, np.int32)
        with current_device(self._ordinal), outside_capture():
            for stream in {0, *library_streams(self._ordinal)}:
                if not is_captured(stream):
                    _call("cuStreamSynchronize", stream)
        download_now(value, self.pointer, self._ordinal)
        return int(value[0])


_counters: dict[int, Counter] = {}  # of fallbacks, by GPU


def fallback_counter(ordinal: int) -> Counter:
    """Counter of a GPU to which the validity check of emulated products adds."""
    counter = _counters.get(ordinal)
    # Not by `cache`: two threads would count in two counters, and the memory of one be freed.
    return counter or _counters.setdefault(ordinal, Counter(ordinal))


@named_in_errors("emulation_fallbacks")
def emulation_fallbacks(device: int = 0) -> int:
    """Count the calls with precision="emulated" that multiplied the operands themselves.

    Those operands failed the validity check of the bound on the error. Only the GPU knows the
    count. Reading it waits for the work on the default stream and on the current streams of CuPy
    and torch, but for none that is under capture; calls on other streams count once they have run.
    It disturbs no capture of any thread.

    Args:
        device: CUDA ordinal.

    Returns:
        The number of such calls in this process.
    """
    ordinal = check_size("device", device)
    if simulator_enabled():
        return 0
    if ordinal >= device_count():
        raise GpuUnavailableError(f"gemm: device is {ordinal}; there are {device_count()} GPUs.")
    return fallback_counter(ordinal).read()
