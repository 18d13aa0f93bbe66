"""Workspaces: device memory of a launch besides its operands."""

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
from dxgemm.runtime.graphs import drop_released
from dxgemm.runtime.memory import allocate

ALIGNMENT = 256  # bytes, alignment of the driver's allocations
KEPT_BYTES = 256 << 20  # memory that a pool keeps for later calls; the rest goes to the driver

_kept: list[Any] = []  # owners of the pools, kept for the life of the process


@contextmanager
def borrowed(size: int, ordinal: int, stream: int) -> Iterator[int]:
    """Borrow a workspace in stream order; the work queued on the stream meanwhile may use it.

    Args:
        size: bytes, at least 1.
        ordinal: ordinal of the GPU.
        stream: raw handle. It may be under capture.

    Raises:
        LaunchError: there is not enough memory.
    """
    if simulator_enabled():
        memory = _host_memory(size)
        yield memory.ctypes.data
        return
    driver = driver_api()
    with current_device(ordinal):
        pool = _pool(ordinal)
        pointer = allocate(
            f"workspace of {size} bytes",
            ordinal,
            lambda: driver.cuMemAllocFromPoolAsync(size, pool, stream),
        )
    try:
        yield int(pointer)
    finally:
        with current_device(ordinal):
            driver.cuMemFreeAsync(pointer, stream)


class Workspace:
    """Workspace that is freed with this object; freeing waits for the work that uses it.

    A graph that uses it keeps it, if `keep_in_graph` is called for each stream of a launch.
    """

    def __init__(self, size: int, ordinal: int) -> None:
        if simulator_enabled():
            self._memory = _host_memory(size)
            self.pointer: int = self._memory.ctypes.data
            return
        driver = driver_api()
        drop_released()
        with current_device(ordinal), outside_capture():
            pointer = allocate(
                f"workspace of {size} bytes", ordinal, lambda: driver.cuMemAlloc(size)
            )
        self.pointer = int(pointer)
        weakref.finalize(self, _free, self.pointer, ordinal)


def _host_memory(size: int) -> np.ndarray:
    """Memory for a workspace on the simulator."""
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError) as error:
        raise LaunchError(f"gemm: no workspace of {size} bytes: {error}.") from None


def _free(pointer: int, ordinal: int) -> None:
    with current_device(ordinal), outside_capture():
        driver_api().cuMemFree(pointer)


@cache
def _pool(ordinal: int) -> Any:
    """Memory pool of dxgemm's own: the settings of the default pool belong to the caller."""
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
