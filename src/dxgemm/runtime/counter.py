"""Counters in GPU memory, which kernels add to."""

from __future__ import annotations

from functools import partial

import numpy as np

from dxgemm.runtime.capture import is_captured, outside_capture
from dxgemm.runtime.device import call_driver, current_device
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
