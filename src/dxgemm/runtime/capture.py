"""CUDA graphs: detection of a capture, and calls that must stay outside of it.

While a stream is captured, calls such as an allocation fail in every thread and spoil the capture,
unless the thread has relaxed its capture mode.
Source: CUDA Driver API, "cuStreamBeginCapture", "cuThreadExchangeStreamCaptureMode".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dxgemm.compiler.locks import Guard
from dxgemm.errors import LaunchError
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


def check_same_capture(waiting: int, producing: int) -> None:
    """Check that two streams may be ordered: both are in one capture, or neither is in any.

    Raises:
        LaunchError: the events would spoil a capture.
    """
    if not (is_captured(waiting) or is_captured(producing)):
        return
    captures = {_capture_number(waiting), _capture_number(producing)}
    if len(captures) == 1 and None not in captures:
        return
    raise LaunchError(
        "gemm: a stream is under capture, and the library of an operand works on another one, "
        "outside of that capture; make the captured stream the current one of that library too, "
        "or pass arrays of the capturing library."
    )


def _capture_number(stream: int) -> int | None:
    """Number of the capture that a stream is part of."""
    driver = driver_api()
    error, status, number, *_ = driver.cuStreamGetCaptureInfo(stream)
    active = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return None if error or status != active else int(number)


class launching_on:
    """Context in which this thread looks up kernels for a launch on a stream."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before, _launching.stream = _launching.stream, self._stream

    def __exit__(self, *_: object) -> None:
        _launching.stream = self._before


# Context of the first call of its kind, which imports, binds and builds: modules may be half
# imported, and locks are held.
first_call = Guard(
    LaunchError,
    "gemm: a signal handler or finalizer makes the first call of a kind, and interrupts such a "
    "call of its own thread; make the call, or its plan, once before.",
)


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
