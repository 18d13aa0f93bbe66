"""Device copies of host operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from dxgemm.problem.layout import Layout, contiguous_layout
from dxgemm.runtime.capture import outside_capture
from dxgemm.runtime.device import call_driver, current_device, driver_api
from dxgemm.runtime.memory import allocate


def device_copy_layout(layout: Layout, ordinal: int) -> Layout:
    """Layout of a host operand's copy: row-major and aligned, whatever the operand's own."""
    copy = contiguous_layout(layout.shape, layout.dtype, ordinal)
    return copy._replace(is_conjugate=layout.is_conjugate)


class DeviceCopy:
    """Device memory for one host operand, for the duration of a `with` block.

    Allocated and freed in the order of `stream`; a transfer returns when it is done.
    """

    def __init__(self, host: np.ndarray, ordinal: int, stream: int) -> None:
        self._host = host
        self._ordinal = ordinal
        self._stream = stream

    def __enter__(self) -> DeviceCopy:
        driver, size = driver_api(), max(self._host.nbytes, 1)
        with current_device(self._ordinal):
            pointer = allocate(
                f"memory for a host operand's copy of {size} bytes",
                self._ordinal,
                lambda: driver.cuMemAllocAsync(size, self._stream),
            )
        self.pointer = int(pointer)
        return self

    def __exit__(self, *exception: object) -> None:
        self._call("cuMemFreeAsync", self.pointer, self._stream)

    def upload(self) -> None:
        """Copy the operand to the device."""
        contiguous = np.ascontiguousarray(self._host)
        self._transfer("cuMemcpyHtoDAsync", self.pointer, contiguous.ctypes.data)

    def download(self) -> None:
        """Copy the result back into the operand, whatever its strides."""
        contiguous = np.empty(self._host.shape, self._host.dtype)
        self._transfer("cuMemcpyDtoHAsync", contiguous.ctypes.data, self.pointer)
        self._host[...] = contiguous

    def _transfer(self, function: str, target: int, source: int) -> None:
        self._call(function, target, source, self._host.nbytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def _call(self, function: str, *arguments: int) -> Any:
        """Call a function of the driver in the GPU's context; return its result, if it has one."""
        with current_device(self._ordinal), outside_capture():
            return call_driver(function, *arguments, failure="gemm: copying a host operand")
