"""GPU memory: allocations that ask other libraries for the free blocks they hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dxgemm.errors import LaunchError
from dxgemm.runtime.capture import is_captured, outside_capture
from dxgemm.runtime.device import driver_api
from dxgemm.runtime.streams import library_streams


def allocate(what: str, ordinal: int, attempt: Callable[[], tuple[Any, Any]]) -> Any:
    """Allocate memory; if there is none, do so again without the free blocks of CuPy and torch.

    Args:
        what: what the memory is for, in the message.
        ordinal: ordinal of the GPU, whose context is current.
        attempt: calls the driver, and returns its error and the memory.

    Raises:
        LaunchError: there is not enough memory.
    """
    try:
        error, memory = attempt()
    except OverflowError as overflow:  # more bytes than 64 bits count
        raise LaunchError(f"gemm: no {what}: {overflow}.") from None
    given_back = ""
    if error == driver_api().CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        given_back = _give_back_free_blocks(ordinal)
        if given_back:
            error, memory = attempt()
    if error:
        also = f", also after {given_back} gave back free blocks" if given_back else ""
        raise LaunchError(f"gemm: no {what}: {error.name}{also}.")
    return memory


def _give_back_free_blocks(ordinal: int) -> str:
    """Make CuPy and torch give back the memory that they hold for later; return their names.

    Nothing is given back during a capture: graphs use blocks that the libraries count as free.
    """
    if any(map(is_captured, library_streams(ordinal))):
        return ""
    names = []
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    with outside_capture():
        if cupy is not None:
            with suppress(Exception), cupy.cuda.Device(ordinal):
                cupy.get_default_memory_pool().free_all_blocks()
                names.append("CuPy")
        if torch is not None and torch.cuda.is_initialized():
            with suppress(Exception):
                torch.cuda.empty_cache()
                names.append("torch")
    return " and ".join(names)
