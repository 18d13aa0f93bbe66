"""CUDA graphs: detection of a capture, and calls that must stay outside of it.

While a stream is captured, calls such as an allocation fail in every thread and spoil the capture,
unless the thread has relaxed its capture mode.
Source: CUDA Driver API, "cuStreamBeginCapture", "cuThreadExchangeStreamCaptureMode".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dxgemm.runtime.device import driver_api


class _Launching(threading.local):
    """Stream that this thread prepares a launch for."""

    stream: int | None = None


_launching = _Launching()


def is_captured(stream: int) -> bool:
    """True if work queued on a stream, a raw handle, would become part of a CUDA graph.

    Also true for the legacy default stream while it cannot be used: its work would wait for the
    captured streams, and spoil their capture.
    """
    driver = driver_api()
    error, status = driver.cuStreamIsCapturing(stream)
    if error == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return True
    none = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return bool(not error and status != none)


class launching_on:
    """Context in which this thread looks up kernels for a launch on a stream."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before, _launching.stream = _launching.stream, self._stream

    def __exit__(self, *_: object) -> None:
        _launching.stream = self._before


def launch_is_captured() -> bool:
    """True if the launch that this thread prepares would become part of a CUDA graph."""
    return _launching.stream is not None and is_captured(_launching.stream)


@contextmanager
def outside_capture() -> Iterator[None]:
    """Let this thread allocate, free and load while any thread captures a stream."""
    driver = driver_api()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, mode = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(mode)
