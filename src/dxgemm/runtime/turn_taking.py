"""Turn-taking for numba's CUDA simulator: each thread of a block runs alone up to its next barrier.

numba's own block manager lets the threads race for Python's lock: a launch takes 20 times longer,
two threads can each create "the" shared array, and a missing barrier shows only by chance. With
turns, a thread that reads values before its neighbours have written them is wrong every time.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel as simulator
from numba.cuda.simulator import kernelapi

from dxgemm.errors import LaunchError

INTERRUPTED = (
    "gemm: a signal handler or finalizer interrupts a simulated kernel, and the simulator runs one "
    "at a time; make the call after it."
)


def _taken_lock() -> threading.Lock:
    """Make a lock that serves as a signal: `acquire` waits for the other side to `release` it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class TurnTakingThread(simulator.BlockThread):  # type: ignore[misc]
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.my_turn, self.turn_over = _taken_lock(), _taken_lock()
        self.is_finished = False

    def run(self) -> None:
        self.my_turn.acquire()
        if not self.abort:
            super().run()
        self.is_finished = True
        self.turn_over.release()

    def syncthreads(self) -> None:
        self.turn_over.release()
        self.my_turn.acquire()
        if self.abort:
            raise RuntimeError("another thread of the block has failed")

    def take_turn(self) -> None:
        self.my_turn.release()
        self.turn_over.acquire()


class TurnTakingBlock(simulator.BlockManager):  # type: ignore[misc]
    def run(self, grid_point: Any, *args: Any) -> None:
        running = [
            TurnTakingThread(lambda: self._f(*args), self, grid_point, point, self._debug)
            for point in np.ndindex(*self._block_dim)
        ]
        for thread in running:
            thread.start()
        failed = None
        while running:
            for thread in running:
                thread.abort = failed is not None
                thread.take_turn()
                if thread.exception and failed is None:
                    failed = thread
            running = [thread for thread in running if not thread.is_finished]
        if failed is not None:
            error, traceback = failed.exception
            raise error.with_traceback(traceback)


class SharedArrays(kernelapi.FakeCUDAShared):  # type: ignore[misc]
    """Shared arrays, one for each line that asks: numba's own reads the stack every time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._arrays: dict[Any, Any] = {}

    def array(self, *args: Any, **options: Any) -> Any:
        caller = sys._getframe(1)
        place = caller.f_code.co_filename, caller.f_lineno
        if place not in self._arrays:
            self._allocations.clear()  # it keeps arrays by its caller's line, which is the next one
            self._arrays[place] = super().array(*args, **options)
        return self._arrays[place]


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep threads that are started on the core at hand: turns pass between cores more slowly."""
    if not hasattr(os, "sched_setaffinity"):
        yield  # not Linux
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {ctypes.CDLL(None).sched_getcpu()})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def threads_take_turns() -> Iterator[None]:
    """Make the simulator run the threads of its blocks in turns.

    Raises:
        LaunchError: it does so already, for the call that this one interrupts.
    """
    originals = simulator.BlockManager, kernelapi.FakeCUDAShared
    if TurnTakingBlock in originals:
        raise LaunchError(INTERRUPTED)
    simulator.BlockManager, kernelapi.FakeCUDAShared = TurnTakingBlock, SharedArrays
    try:
        with on_one_core():
            yield
    finally:
        simulator.BlockManager, kernelapi.FakeCUDAShared = originals
