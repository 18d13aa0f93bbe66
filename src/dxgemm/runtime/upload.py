"""Copies of small host arrays to a GPU in stream order, without waiting for the stream, and back.

A copy from ordinary memory may make the host wait for the stream. So the array first goes to pinned
memory, which is reused when an event tells that the copy from there is done.
Source: CUDA Driver API, "API synchronization behavior".
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dxgemm.runtime.capture import outside_capture
from dxgemm.runtime.device import call_driver, current_device, driver_api

LEAST_BYTES = 64 << 10  # least size of a piece of pinned memory


class _Pinned(NamedTuple):
    """Pinned memory to copy from, and the event after the last copy."""

    pointer: int
    size: int
    copied: Any


_pinned: dict[int, list[_Pinned]] = {}  # by GPU; pieces that are not being filled
_call = partial(call_driver, failure="gemm: copying to or from the GPU")


def upload(array: np.ndarray, target: int, ordinal: int, stream: int) -> None:
    """Queue the copy of an array, which may change as soon as this returns.

    Args:
        array: a contiguous array.
        target: address on the GPU.
        ordinal: ordinal of the GPU.
        stream: raw handle. It must not be under capture: a graph would copy from memory that later
            uploads fill again.
    """
    with current_device(ordinal), outside_capture():
        pinned = _take(array.nbytes, ordinal)
        try:
            ctypes.memmove(pinned.pointer, array.ctypes.data, array.nbytes)
            _call("cuMemcpyHtoDAsync", target, pinned.pointer, array.nbytes, stream)
            _call("cuEventRecord", pinned.copied, stream)
        finally:
            _pinned[ordinal].append(pinned)


def upload_now(array: np.ndarray, target: int, ordinal: int) -> None:
    """Copy an array to the GPU and wait for the copy, but for no other work of the GPU."""
    _copy_now("cuMemcpyHtoDAsync", target, array.ctypes.data, array.nbytes, ordinal)


def download_now(array: np.ndarray, source: int, ordinal: int) -> None:
    """Fill an array from the GPU, and wait for the copy alone."""
    _copy_now("cuMemcpyDtoHAsync", array.ctypes.data, source, array.nbytes, ordinal)


def _copy_now(function: str, target: int, source: int, size: int, ordinal: int) -> None:
    driver = driver_api()
    with current_device(ordinal), outside_capture():
        stream = _call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        try:
            _call(function, target, source, size, stream)
            _call("cuStreamSynchronize", stream)
        finally:
            driver.cuStreamDestroy(stream)


def _take(size: int, ordinal: int) -> _Pinned:
    """Take pinned memory that no copy reads any more from the list; allocate if there is none."""
    driver = driver_api()
    kept = _pinned.setdefault(ordinal, [])
    for _ in range(len(kept)):
        try:
            pinned = kept.pop(0)  # without a lock, for which a signal handler could wait forever
        except IndexError:
            break
        if pinned.size >= size and not driver.cuEventQuery(pinned.copied)[0]:
            return pinned
        kept.append(pinned)
    size = max(1 << (size - 1).bit_length(), LEAST_BYTES)
    pointer = _call("cuMemHostAlloc", size, 0)
    event = _call("cuEventCreate", driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    return _Pinned(int(pointer), size, event)
