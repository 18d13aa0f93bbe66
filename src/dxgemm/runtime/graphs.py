"""Objects that a CUDA graph keeps: they live as long as the graph that they were captured in.

The graph owns a user object of the driver. When the graph is destroyed, the driver calls a function
with an address, on a thread of its own, where neither CUDA nor Python's lock may be waited for.
That is `sem_post` of the C library, and the next look at the semaphore drops the objects.
Source: CUDA Driver API, "cuUserObjectCreate"; POSIX, "sem_post".
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from dxgemm.errors import LaunchError
from dxgemm.runtime.capture import is_captured
from dxgemm.runtime.device import driver_api

LEGACY_STREAM = 1  # and 0, its other name: the default stream, which cannot be captured
SEMAPHORE_BYTES = 64  # at least sizeof(sem_t)
_NO_DESTRUCTOR_SYNC, _MOVE = 1, 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CU_GRAPH_USER_OBJECT_MOVE

# Addresses of semaphores, and the objects that are kept until they are posted.
_kept: list[tuple[int, tuple[Any, ...]]] = []
_dropping = threading.Lock()


@cache
def _c_library() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = (ctypes.c_size_t,)
    library.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    for name in ("sem_trywait", "sem_post", "free"):
        getattr(library, name).argtypes = (ctypes.c_void_p,)
    return library


def keep_in_graph(stream: int, *objects: Any) -> None:
    """Keep objects as long as the graph that a stream is captured in, if it is.

    Raises:
        LaunchError: the driver refused to; nothing was launched.
    """
    if stream <= LEGACY_STREAM or not is_captured(stream):
        return
    drop_released()
    driver, library = driver_api(), _c_library()
    error, _, _, graph, *_ = driver.cuStreamGetCaptureInfo(stream)
    # Of the C library, so that it outlives Python: the driver may post when the process ends.
    semaphore = library.malloc(SEMAPHORE_BYTES)
    library.sem_init(semaphore, 0, 0)
    if not error:
        function = ctypes.cast(library.sem_post, ctypes.c_void_p).value
        error, user_object = driver.cuUserObjectCreate(
            semaphore, driver.CUhostFn(function), 1, _NO_DESTRUCTOR_SYNC
        )
    if not error:
        (error,) = driver.cuGraphRetainUserObject(graph, user_object, 1, _MOVE)
    if error:
        raise LaunchError(f"gemm: the graph cannot keep a workspace: {error.name}.")
    _kept.append((semaphore, objects))


def drop_released() -> None:
    """Drop the objects whose graphs are gone."""
    if not (_kept and _dropping.acquire(blocking=False)):
        return  # another thread does, or a call that this one interrupts
    try:
        library = _c_library()
        for entry in _kept.copy():
            semaphore, _ = entry
            if library.sem_trywait(semaphore) == 0:
                _kept.remove(entry)
                library.free(semaphore)
    finally:
        _dropping.release()
