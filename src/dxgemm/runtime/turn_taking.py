"""Turn-taking for numba's CUDA simulator: each thread of a block runs alone up to its next barrier.

numba's own block manager lets the threads race for Python's lock: a launch takes 20 times longer,
two threads can each create "the" shared array, and a missing barrier shows only by chance. With
turns, a thread that reads values before its neighbours have written them is wrong every time.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from numba.cuda.simulator import kernel as simulator
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.kernelapi import Dim3

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
    """Thread of Python for threads of blocks, one after another: most end sooner than one starts.

    Attributes:
        my_turn: released by the thread whose turn is over.
    """

    def __init__(self, block: TurnTakingBlock) -> None:
        super().__init__(None, block, (0, 0, 0), (0, 0, 0), False)
        self._manager: TurnTakingBlock | None
        self.my_turn = _taken_lock()

    def begin(self, block: TurnTakingBlock, point: tuple[int, ...]) -> None:
        """Become the thread at a point of a block."""
        width, height, _ = block._block_dim
        self._manager = block
        self.blockIdx, self.threadIdx = Dim3(*block.grid_point), Dim3(*point)
        self.thread_id = point[0] + width * (point[1] + height * point[2])

    def run(self) -> None:
        self.my_turn.acquire()
        while (block := self._manager) is not None:
            while block.points:
                self.begin(block, block.points.popleft())
                block.run_thread(self)
            _idle.append(self)
            block.pass_turn()
            self.my_turn.acquire()

    def syncthreads(self) -> None:
        block = self._manager
        assert block is not None
        block.waiting.append(self)
        block.pass_turn(self)
        if block.failure is not None:
            raise RuntimeError("another thread of the block has failed")

    def dismiss(self) -> None:
        """Let the thread end."""
        self._manager = None
        self.my_turn.release()


_idle: list[TurnTakingThread] = []  # of the launch that is running


class TurnTakingBlock(simulator.BlockManager):  # type: ignore[misc]
    """Block whose threads hand over to each other.

    Attributes:
        points: threads that have not begun.
        waiting: those at a barrier, in the order of their next turns.
        failure: the first error of a thread; the others then end at their next barriers.
        report: told of the blocks that are done, and of all, before each block of any launch.
    """

    thread_type = TurnTakingThread
    report: ClassVar[Callable[[int, int], None] | None] = None

    def run(self, grid_point: Any, *args: Any) -> None:
        if TurnTakingBlock.report is not None:
            done = np.ravel_multi_index(grid_point, self._grid_dim)
            TurnTakingBlock.report(int(done), math.prod(self._grid_dim))
        self.grid_point, self._args = grid_point, args
        self.points = deque(np.ndindex(*self._block_dim))
        self.waiting: deque[TurnTakingThread] = deque()
        self.failure: BaseException | None = None
        self._is_over = _taken_lock()
        first = self._following()
        assert first is not None
        try:
            first.my_turn.release()
            self._is_over.acquire()
        except BaseException as interrupt:
            self.fail(interrupt)
            self._is_over.acquire()
        if self.failure is not None:
            raise self.failure

    def run_thread(self, thread: TurnTakingThread) -> None:
        """Run one thread to its end."""
        try:
            self._f(*self._args)
        except Exception as error:
            place = f"tid={list(thread.threadIdx)} ctaid={list(thread.blockIdx)}"
            message = f"{place}: {error}" if str(error) else place
            self.fail(type(error)(message).with_traceback(error.__traceback__))

    def fail(self, error: BaseException) -> None:
        """End the block: threads that have not begun are not run."""
        if self.failure is None:
            self.failure = error
        self.points.clear()

    def pass_turn(self, own: TurnTakingThread | None = None) -> None:
        """Let the next thread run, until it is the turn of one's own, if there is any."""
        following = self._following()
        if following is None:
            self._is_over.release()
        elif following is not own:
            following.my_turn.release()
            if own is not None:
                own.my_turn.acquire()

    def _following(self) -> TurnTakingThread | None:
        """Thread whose turn is next: all begin before one passes a barrier."""
        if not self.points:
            return self.waiting.popleft() if self.waiting else None
        if _idle:
            thread = _idle.pop()
            thread._manager = self
        else:
            thread = self.thread_type(self)
            thread.start()
        return thread


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
def reused_threads() -> Iterator[None]:
    """Keep threads for all blocks of a launch, on one core: between cores turns take longer."""
    allowed = None
    if hasattr(os, "sched_setaffinity"):  # Linux
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {ctypes.CDLL(None).sched_getcpu()})
    _idle.clear()  # a fork in the middle of a launch leaves others'
    try:
        yield
    finally:
        while _idle:
            _idle.pop().dismiss()
        if allowed is not None:
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
        with reused_threads():
            yield
    finally:
        simulator.BlockManager, kernelapi.FakeCUDAShared = originals
