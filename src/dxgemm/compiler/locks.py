"""Locks of what one thread at a time may use, and no other thread while the process is forked.

A child has its parent's locks as they are at that moment, but not the thread that would give one
back: it would wait for ever.
"""

from __future__ import annotations

import os
import threading

# numba, not least because parts of it are replaced meanwhile.
numba_lock = threading.Lock()
# libmathdx keeps its last error for the whole process, and NVRTC compiles one thing at a time.
mathdx_lock = threading.Lock()

_IN_ORDER = (numba_lock, mathdx_lock)  # as a thread may take them that needs both


def _take_all() -> None:
    for lock in _IN_ORDER:
        lock.acquire()


def _give_all_back() -> None:
    for lock in _IN_ORDER:
        lock.release()


os.register_at_fork(before=_take_all, after_in_parent=_give_all_back, after_in_child=_give_all_back)
