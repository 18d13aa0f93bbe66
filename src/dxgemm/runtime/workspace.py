"""Memory that a launch needs besides its operands."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from dxgemm._errors import LaunchError
from dxgemm._gpu import simulator_enabled
from dxgemm.runtime.device import current_device, driver_api

ALIGNMENT = 256  # bytes, of what the driver allocates
KEPT_BYTES = (
    256 << 20
)  # that stay allocated for later calls; what is beyond goes back to the driver


@contextmanager
def borrowed(size: int, ordinal: int, stream: int) -> Iterator[int]:
    """Address of memory that is free again when the work queued on a stream meanwhile is done.

    Args:
        size: bytes, at least 1.
        ordinal: the GPU.
        stream: raw handle. It may be under capture.

    Raises:
        LaunchError: there is not enough memory.
    """
    if simulator_enabled():
        memory = np.empty(size, np.uint8)
        yield memory.ctypes.data
        return
    from cuda.core import Stream

    with current_device(ordinal):
        queue = Stream.from_handle(stream)
        try:
            buffer = _pool(ordinal).allocate(size, stream=queue)
        except Exception as error:
            raise LaunchError(f"gemm: no workspace of {size} bytes: {error}") from error
    try:
        yield int(buffer.handle)
    finally:
        with current_device(ordinal):
            buffer.close(queue)


class Workspace:
    """Memory of its own, freed with this object. Freeing waits for the work that uses it."""

    def __init__(self, size: int, ordinal: int) -> None:
        if simulator_enabled():
            self._memory = np.empty(size, np.uint8)
            self.pointer: int = self._memory.ctypes.data
            return
        with current_device(ordinal):
            error, pointer = driver_api().cuMemAlloc(size)
        if error:
            raise LaunchError(f"gemm: no workspace of {size} bytes: {error.name}")
        self.pointer = int(pointer)
        weakref.finalize(self, _free, self.pointer, ordinal)


def _free(pointer: int, ordinal: int) -> None:
    with current_device(ordinal):
        driver_api().cuMemFree(pointer)


@cache
def _pool(ordinal: int) -> Any:
    from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

    pool = DeviceMemoryResource(ordinal, DeviceMemoryResourceOptions())
    driver = driver_api()
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    driver.cuMemPoolSetAttribute(pool.handle, threshold, driver.cuuint64_t(KEPT_BYTES))
    return pool
