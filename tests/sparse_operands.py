"""Operands of any size over made-up memory, and single blocks of a kernel that run on them.

An element is a small integer that follows from its index, so that no memory is needed to read it.
What is written is kept by index. A block of a grid of any size runs alone, on numba's simulator,
with casts that raise where an int32 would wrap.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator import kernel as simulator
from numba.cuda.simulator import kernelapi

from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.handwritten.parts.simulated_integers import casts_are_checked
from dxgemm.problem.layout import offset_range
from dxgemm.runtime.arrays import numpy_dtype
from dxgemm.runtime.turn_taking import TurnTakingBlock, TurnTakingThread, reused_threads

MOST_ROUNDS = 100_000  # turns of all threads, before they count as waiting for each other
FIRST_ROUNDS, FIRST_READS = 2, 3000  # turns, and elements read, that show how a long loop begins
WARP = 32


def small(index: Any) -> Any:
    """An integer from -2 to 2 for an index, or for an array of them."""
    return (index % 1000003 * 7919 + (index >> 20) % 99991 * 31 + (index >> 33) * 3) % 5 - 2


def bits_of(values: Any, dtype: str) -> Any:
    """Small integers as kernels see elements of a dtype: half precision as its bits."""
    if dtype == "float16":
        return np.asarray(values, np.float16).view(np.uint16)
    if dtype == "bfloat16":
        return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in FLOAT8_KINDS:
        return np.asarray(values, np.float32).astype(numpy_dtype(dtype)).view(np.uint8)
    return np.asarray(values, dtype)


def values_of(bits: Any, dtype: str) -> Any:
    """Values of elements as kernels see them, in float64, int64 or complex128."""
    if dtype == "float16":
        return np.asarray(bits, np.uint16).view(np.float16).astype(float)
    if dtype == "bfloat16":
        return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(float)
    if dtype in FLOAT8_KINDS:
        return np.asarray(bits, np.uint8).view(numpy_dtype(dtype)).astype(float)
    return np.asarray(bits, dtype).astype(np.result_type(dtype, np.int64))


class Enough(Exception):
    """A block has run for long enough."""


class SparseOperand:
    """Counterpart of `runtime.simulator.Pointer` without memory, which keeps what is written."""

    def __init__(
        self,
        dtype: str,
        sizes: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        function: Callable[[Any], Any] = small,
    ) -> None:
        """Make an operand."""
        if strides is None:
            strides = tuple(np.cumprod([1, *sizes[:0:-1]], dtype=object)[::-1])
        self.name, self.sizes, self.strides = dtype, sizes, strides
        self.dtype = bits_of(0, dtype).dtype
        self.first, self.last = offset_range(sizes, strides) if 0 not in sizes else (0, -1)
        self.writes: dict[int, Any] = {}
        self.reads_left: int | None = None
        self._function = function
        self._bits: dict[Any, Any] = {}  # by value

    def _checked(self, index: Any) -> int:
        if not self.first <= index <= self.last:
            raise IndexError(
                f"a kernel reads or writes element {index} of an operand of {self.sizes} with "
                f"strides {self.strides}, elements {self.first} to {self.last}"
            )
        return int(index)

    def values(self, index: Any) -> Any:
        """Elements of an array of indices, before anything was written."""
        if self.dtype.kind == "c":
            return self._function(2 * index) + 1j * self._function(2 * index + 1)
        return self._function(index)

    def at(self, *position: Any) -> Any:
        """Elements at positions, each an array, along the sizes."""
        steps = zip(position, self.strides, strict=True)
        return self.values(sum(np.asarray(index, np.int64) * step for index, step in steps))

    def __getitem__(self, index: Any) -> Any:
        index = self._checked(index)
        if self.reads_left is not None:
            self.reads_left -= 1
            if self.reads_left < 0:
                raise Enough
        if index in self.writes:
            return self.writes[index]
        value = self.values(index)
        if value not in self._bits:
            self._bits[value] = bits_of(value, self.name)[()]
        return self._bits[value]

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.dtype.kind == "i" and isinstance(value, (int, np.integer)):
            value = self.dtype.type(int(value))  # NumPy refuses what does not fit
        self.writes[self._checked(index)] = value

    def written(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Positions along the sizes of all elements that were written, and their values."""
        index = np.array([*self.writes], np.int64)
        values = values_of(np.array([*self.writes.values()], self.dtype), self.name)
        found: dict[int, np.ndarray] = {}
        order = sorted(range(len(self.sizes)), key=lambda i: self.strides[i], reverse=True)
        for place in order:
            step = self.strides[place] if self.sizes[place] > 1 else 0
            found[place] = index // step if step else np.zeros_like(index)
            index = index - found[place] * step
        positions = [found[place] for place in range(len(self.sizes))]
        assert (index == 0).all(), "an element between those of the operand was written"
        for position, size in zip(positions, self.sizes, strict=True):
            assert (position < size).all()
        return positions, values


class _Thread(TurnTakingThread):
    """Thread whose barriers wait for all threads, however many turns these need."""

    def begin(self, block: Any, point: tuple[int, ...]) -> None:
        super().begin(block, point)
        self.calls = self.turns = 0

    def pass_turn(self) -> None:
        self.turns += 1
        if self.turns >= self._manager.most_rounds:
            raise Enough("threads wait for each other")
        super().syncthreads()

    def syncthreads(self) -> None:
        self._manager.meet("block", None)


class Block(TurnTakingBlock):
    """A block that runs: its threads take turns, and meet at barriers."""

    now: "Block"
    thread_type = _Thread

    def __init__(
        self, function: Any, grid: tuple[int, ...], threads: int, most_rounds: int
    ) -> None:
        super().__init__(function, grid, (threads, 1, 1), False)
        self.most_rounds = most_rounds  # turns of a thread
        self._living = threads
        self._barriers: dict[Any, list[int]] = {}
        self._exchanges: dict[Any, list[Any]] = {}
        self.phases: dict[int, list[int]] = {}

    def run(self, grid_point: tuple[int, ...], *args: Any) -> None:
        """Run all threads to their end, or until it is `Enough` of a long loop."""
        Block.now = self
        try:
            super().run(grid_point, *args)
        except Enough:
            if self.most_rounds == MOST_ROUNDS:
                raise

    def run_thread(self, thread: Any) -> None:
        super().run_thread(thread)
        self._living -= 1

    def meet(self, name: Any, members: int | None) -> None:
        """Wait until so many threads have come, or all that run."""
        state, thread = self._barriers.setdefault(name, [0, 0]), this_thread()
        state[0] += 1
        generation = state[1]
        while state[1] == generation:
            if state[0] >= (members or self._living):
                state[0], state[1] = 0, generation + 1
                return
            thread.pass_turn()

    def exchange(self, value: Any) -> tuple[list[Any], dict[Any, Any]]:
        """Give the warp a value; return those of its lanes, and a record that they share."""
        thread = this_thread()
        warp, lane = divmod(thread.threadIdx.x, WARP)
        lanes = min(WARP, self._block_dim[0] - warp * WARP)
        thread.calls += 1
        key = warp, thread.calls
        values, record = self._exchanges.setdefault(key, ({}, {}))
        values[lane] = value
        while len(values) < lanes:
            thread.pass_turn()
        record["readers"] = record.get("readers", 0) + 1
        if record["readers"] == lanes:
            del self._exchanges[key]
        return [values[i] for i in range(lanes)], record


def this_thread() -> Any:
    return simulator.threading.current_thread()


class _Shared:
    """Shared memory of a block: arrays by the line that asks, and one buffer of dynamic size."""

    def __init__(self, size: int) -> None:
        self._arrays: dict[Any, np.ndarray] = {}
        self._bytes = np.zeros(size, np.uint8)

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> np.ndarray:
        item = np.dtype(getattr(dtype, "name", dtype))
        if shape == 0:
            return self._bytes[: self._bytes.size // item.itemsize * item.itemsize].view(item)
        frame = sys._getframe(1)
        key = frame.f_code.co_filename, frame.f_lineno
        if key not in self._arrays:
            self._arrays[key] = np.zeros(shape, item)
        return self._arrays[key]


class _Context(kernelapi.FakeCUDAModule):
    """What `cuda` is inside a kernel."""

    def __init__(self, grid: tuple[int, ...], threads: int, smem_bytes: int) -> None:
        super().__init__(grid, (threads, 1, 1), smem_bytes)
        self._shared = _Shared(smem_bytes)

    def syncwarp(self, mask: int = 0) -> None:
        Block.now.exchange(None)

    def shfl_xor_sync(self, mask: int, value: Any, distance: int) -> Any:
        values, _ = Block.now.exchange(value)
        return values[this_thread().threadIdx.x % WARP ^ distance]

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        return Block.now.exchange(value)[0][int(lane) % WARP]


def _jit(function: Any = None, **options: Any) -> Any:
    """Device functions are called as they are."""
    return function if callable(function) else lambda decorated: decorated


@contextmanager
def plain_device_functions() -> Iterator[None]:
    """Let `cuda` mean the running kernel's everywhere, in closures of device functions too."""
    original = cuda.jit
    cuda.jit = _jit
    cuda.__getattr__ = lambda name: getattr(simulator._get_kernel_context(), name)
    try:
        yield
    finally:
        cuda.jit = original
        del cuda.__getattr__


def run_block(
    kernel: Any, arguments: tuple[Any, ...], grid: tuple[int, ...], point: tuple[int, ...],
    threads: int, smem_bytes: int, most_rounds: int = MOST_ROUNDS,
) -> None:  # fmt: skip
    """Run one block of a grid."""
    context = _Context(grid, threads, smem_bytes)
    with (
        simulator._push_kernel_context(context),
        casts_are_checked(),
        reused_threads(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)
        Block(kernel, grid, threads, most_rounds).run(point, *arguments)
