"""Locks for which a fork waits, and guards against signal handlers that interrupt their holder.

A forked child inherits the state of its parent's locks, but not the thread that would release one:
it would wait forever. So would a call in a signal handler or a finalizer that interrupts a build of
its own thread: it gets an error instead.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from dxgemm.errors import BuildError, DxgemmError

_locks: list[Any] = []  # in the order in which a thread may take several


def lock_across_forks() -> Any:
    """Make a lock that no other thread holds when a process is forked.

    It is reentrant, for a fork by the thread that holds it.
    """
    _locks.append(threading.RLock())
    return _locks[-1]


# numba: dxgemm also replaces functions of it while it compiles.
numba_lock = lock_across_forks()
# libmathdx keeps its last error for the whole process, and NVRTC compiles one thing at a time.
mathdx_lock = lock_across_forks()


class Guard(threading.local):
    """Context that a thread enters once at a time.

    A signal handler or a finalizer that interrupts a thread in it, and would enter it too, gets an
    error.
    """

    is_held = False

    def __init__(self, error: type[DxgemmError], message: str) -> None:
        """Take the error to raise."""
        self._error, self._message = error, message

    def __enter__(self) -> None:
        if self.is_held:
            raise self._error(self._message)
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


# Context of a build; every lock of a build is taken within.
building = Guard(
    BuildError,
    "gemm: a signal handler or finalizer needs a kernel that is not built, and interrupts a build "
    "of its own thread; make the call, or its plan, once before.",
)


def _take_all() -> None:
    for lock in _locks:
        lock.acquire()


def _give_all_back() -> None:
    for lock in _locks:
        lock.release()


os.register_at_fork(before=_take_all, after_in_parent=_give_all_back, after_in_child=_give_all_back)
