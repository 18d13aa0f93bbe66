"""Memory that a launch needs besides its operands."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from dxgemm.errors import LaunchError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.runtime.capture import outside_capture
from dxgemm.runtime.device import current_device, driver_api

ALIGNMENT = 256  # bytes, of what the driver allocates
KEPT_BYTES = (
    256 << 20
)  # that stay allocated for later calls; what is beyond goes back to the driver

_kept: list[Any] = []  # the pools' owners, for the life of the process


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
    driver = driver_api()
    with current_device(ordinal):
        error, pointer = driver.cuMemAllocFromPoolAsync(size, _pool(ordinal), stream)
    if error:
        raise LaunchError(f"gemm: no workspace of {size} bytes: {error.name}")
    try:
        yield int(pointer)
    finally:
        with current_device(ordinal):
            driver.cuMemFreeAsync(pointer, stream)


class Workspace:
    """Memory of its own, freed with this object. Freeing waits for the work that uses it."""

    def __init__(self, size: int, ordinal: int) -> None:
        if simulator_enabled():
            self._memory = np.empty(size, np.uint8)
            self.pointer: int = self._memory.ctypes.data
            return
        with current_device(ordinal), outside_capture():
            error, pointer = driver_api().cuMemAlloc(size)
        if error:
            raise LaunchError(f"gemm: no workspace of {size} bytes: {error.name}")
        self.pointer = int(pointer)
        weakref.finalize(self, _free, self.pointer, ordinal)


def _free(pointer: int, ordinal: int) -> None:
    with current_device(ordinal), outside_capture():
        driver_api().cuMemFree(pointer)


@cache
def _pool(ordinal: int) -> Any:
    """A pool of dxgemm's own: how much the GPU's default one keeps is not for us to say."""
    from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

    driver = driver_api()
    kept_bytes = driver.cuuint64_t(KEPT_BYTES)
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    with outside_capture():
        _kept.append(DeviceMemoryResource(ordinal, DeviceMemoryResourceOptions()))
        pool = driver.CUmemoryPool(int(_kept[-1].handle))
        (error,) = driver.cuMemPoolSetAttribute(pool, threshold, kept_bytes)
    if error:
        raise LaunchError(f"gemm: the driver refused a memory pool: {error.name}")
    return pool
