"""Locks of libraries that are not thread-safe; a fork waits until they are free.

A forked child inherits the state of its parent's locks, but not the thread that would release one:
it would wait forever.
"""

from __future__ import annotations

import os
import threading

# numba: dxgemm also replaces functions of it while it compiles.
numba_lock = threading.Lock()
# libmathdx keeps its last error for the whole process, and NVRTC compiles one thing at a time.
mathdx_lock = threading.Lock()

_IN_ORDER = (numba_lock, mathdx_lock)  # the order in which a thread may take both


def _take_all() -> None:
    for lock in _IN_ORDER:
        lock.acquire()


def _give_all_back() -> None:
    for lock in _IN_ORDER:
        lock.release()


os.register_at_fork(before=_take_all, after_in_parent=_give_all_back, after_in_child=_give_all_back)
