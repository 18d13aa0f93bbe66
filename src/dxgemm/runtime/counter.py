"""Counters in GPU memory, which kernels add to."""

from __future__ import annotations

import numpy as np

from dxgemm.errors import LaunchError
from dxgemm.runtime.device import current_device, driver_api
from dxgemm.runtime.upload import upload_now
from dxgemm.runtime.workspace import Workspace


class Counter:
    """Counter in a GPU's memory: an int32, 0 at first."""

    def __init__(self, ordinal: int) -> None:
        self._memory = Workspace(4, ordinal)
        self._ordinal = ordinal
        self.pointer = self._memory.pointer
        upload_now(np.zeros(1, np.int32), self.pointer, ordinal)

    def read(self) -> int:
        """Wait for the work queued on the GPU so far, and return the count."""
        value = np.zeros(1, np.int32)
        with current_device(self._ordinal):
            (error,) = driver_api().cuCtxSynchronize()
            if not error:
                (error,) = driver_api().cuMemcpyDtoH(value.ctypes.data, self.pointer, 4)
        if error:
            raise LaunchError(f"gemm: a counter was not read: {error.name}")
        return int(value[0])
