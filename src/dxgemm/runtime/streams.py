"""CUDA streams as raw handles: taken from any library's stream object, and ordered in pairs."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from dxgemm.errors import StreamError, shown
from dxgemm.runtime.capture import check_same_capture


def stream_handle(stream: Any) -> int:
    """Raw handle of `stream=`: an int, or a stream object of CuPy, torch, numba or cuda.core.

    Raises:
        StreamError: the argument is none of these.
    """
    handle = stream
    if not isinstance(stream, int):
        try:
            handle = _handle_of(stream)
        except Exception:
            handle = None  # the object only resembles a stream
    if handle is None or isinstance(handle, bool) or not 0 <= handle < 2**64:
        raise StreamError(
            f"gemm: stream is {shown(stream)}; pass a stream of CuPy, torch, numba or cuda.core, "
            "or its raw handle as a non-negative int."
        )
    return handle


def _handle_of(stream: Any) -> int | None:
    """Raw handle of a stream object; None if it has none."""
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for attribute in ("ptr", "cuda_stream", "handle"):
        handle = getattr(stream, attribute, None)
        if handle is not None and not isinstance(handle, str):
            return int(getattr(handle, "value", handle) or 0)
    return None


def wait_for(waiting: int, producing: int) -> None:
    """Make later work on stream `waiting` run after all work queued on `producing` so far.

    Raises:
        LaunchError: one of them is under capture, and the other one is outside of that capture.
    """
    from cuda.core import Stream

    check_same_capture(waiting, producing)
    Stream.from_handle(waiting).wait(Stream.from_handle(producing))


def library_streams(ordinal: int) -> list[int]:
    """Current streams of the libraries that this process has imported, in this thread."""
    streams = []
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None:
        with suppress(Exception):  # of a CuPy whose CUDA the driver is too old for
            streams.append(int(cupy.cuda.get_current_stream().ptr))
    if torch is not None and torch.cuda.is_initialized():
        streams.append(int(torch.cuda.current_stream(ordinal).cuda_stream))
    return streams
