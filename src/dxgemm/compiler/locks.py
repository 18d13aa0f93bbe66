"""Locks of builds: those of libraries that are not thread-safe, for which a fork waits.

A forked child inherits the state of its parent's locks, but not the thread that would release one:
it would wait forever. So would a call in a signal handler or a finalizer that interrupts a build of
its own thread: it gets an error instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dxgemm.errors import BuildError

# Reentrant for a fork by the thread that holds them.
# numba: dxgemm also replaces functions of it while it compiles.
numba_lock = threading.RLock()
# libmathdx keeps its last error for the whole process, and NVRTC compiles one thing at a time.
mathdx_lock = threading.RLock()

_IN_ORDER = (numba_lock, mathdx_lock)  # the order in which a thread may take both


class _Building(threading.local):
    """True while this thread builds a kernel, or has one built."""

    is_under_way = False


_building = _Building()


@contextmanager
def building() -> Iterator[None]:
    """Context of a build; every lock of a build is taken within.

    Raises:
        BuildError: this thread is building already: a signal handler or a finalizer interrupts it.
    """
    if _building.is_under_way:
        raise BuildError(
            "gemm: a signal handler or finalizer needs a kernel that is not built, and interrupts "
            "a build of its own thread; make the call, or its plan, once before."
        )
    _building.is_under_way = True
    try:
        yield
    finally:
        _building.is_under_way = False


def _take_all() -> None:
    for lock in _IN_ORDER:
        lock.acquire()


def _give_all_back() -> None:
    for lock in _IN_ORDER:
        lock.release()


os.register_at_fork(before=_take_all, after_in_parent=_give_all_back, after_in_child=_give_all_back)
