"""The first values of each row in sorted order, with their indices, for more than a few of them.

Idea: grown from `reduce_tiles`, whose threads insert values into sorted registers: if one of a warp
does, all of them wait for hundreds of instructions. Here a warp has a part of a row. Only values
that precede the last one kept go to a queue in shared memory. Once the queue holds a value per
thread, it is sorted and merged with the values kept, after which fewer pass.
Layout: a (m, n), whose columns count as k, any strides, any batch. The parameters are those of a
GEMM; b, c and out are not used.
Constraints: a block is one warp, so that its barriers cost little.
Source: J. Johnson, M. Douze and H. Jégou, "Billion-scale similarity search with GPUs", 2017, for
the queue ("WarpSelect").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.kernels.reduce_tiles import widened_dtype
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel
from dxgemm.handwritten.parts.reduction import NO_INDEX, NO_PLACE
from dxgemm.handwritten.parts.selection import make_selection

READS = 4  # elements that a thread reads ahead


@dataclass(frozen=True)
class Config(BaseConfig):
    """Threads of a block, and the elements of a row that it selects from."""

    threads: int
    part: int

    def smem_bytes(self, dtype: str) -> int:
        """Upper bound: 32 values and a queue of two per thread, with their places."""
        return (32 + 2 * self.threads) * 12 + 4

    def min_blocks(self, dtype: str) -> int:
        return 32  # as many as an SM holds

    def accumulator_bytes(self, dtype: str) -> int:
        return READS * 8

    def __str__(self) -> str:
        return f"{self.threads} threads per {self.part} elements"


def slot_count(config: Config, n: int) -> int:
    """Partial results per row of n elements."""
    return -(-n // config.part)


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one per partial result."""
    return problem.batch * problem.m * slot_count(config, problem.n)


def make_kernel(config: Config, dtype: str, epilogue: Any) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        dtype: dtype of the matrix.
        epilogue: a `Fusion` of a reduction alone, "smallest" or "largest" of rows or of a matrix.
    """
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts import intrinsics
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range
    from dxgemm.handwritten.parts.widening import WIDEN

    reduction, is_transposed = epilogue.reduction, epilogue.is_transposed
    count, is_whole = reduction.count, reduction.axis is None
    kept = 1 << (count - 1).bit_length()  # the bitonic networks sort powers of two
    threads, part, queue = config.threads, config.part, 2 * config.threads
    wide_dtype = widened_dtype(dtype)
    scalar = np.dtype(wide_dtype).type
    widen = WIDEN.get(dtype, scalar)
    selection = make_selection(reduction, wide_dtype, kept, queue, threads)
    precedes, worst, keep_first = selection.precedes, selection.worst, selection.keep_first

    @gemm_kernel
    def select_rows_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's part of a row ---
        values = cuda.shared.array(kept + queue, scalar)
        places = cuda.shared.array(kept + queue, np.int32)
        queued = cuda.shared.array(1, np.int32)
        thread: int32 = cuda.threadIdx.x & 1023
        slots: int32 = (n + part - 1) // part
        block: int32 = cuda.blockIdx.x
        line = intrinsics.divide(block, slots)
        slot: int32 = block - line * slots
        matrix = intrinsics.divide(line, int32(m))
        row = int64(line - matrix * int32(m))
        first_col = int64(slot) * part
        items: int32 = min(n - first_col, int64(part))
        for i in range(thread, kept, threads):
            values[i], places[i] = worst(), int32(NO_PLACE)
        if thread == 0:
            queued[0] = 0
        intrinsics.sync_block()
        # --- Main loop ---
        held = int32(0)
        index = matrix * a.batch + row * a.row + first_col * a.col
        ahead = ()
        for read in static_range(READS):
            value = worst()
            if read * threads + thread < items:
                value = widen(a.data[index + (read * threads + thread) * a.col])
            ahead = ahead + (value,)
        for start in range(0, items, threads):
            place: int32 = start + thread
            value, later = ahead[0], worst()
            if place + READS * threads < items:
                later = widen(a.data[index + (place + READS * threads) * a.col])
            ahead = ahead[1:] + (later,)
            is_first = precedes(value, values[count - 1])
            is_first = place < items and (is_first or places[count - 1] == NO_PLACE)
            if is_first:
                item = kept + cuda.atomic.add(queued, 0, 1)
                values[item], places[item] = value, place
            held = held + cuda.syncthreads_count(int32(is_first))
            if held >= threads:
                if thread == 0:
                    queued[0] = 0
                keep_first(values, places, held, thread)
                held = int32(0)
        # --- Epilogue ---
        keep_first(values, places, held, thread)
        first, step = first_col, int64(1)
        if is_whole:  # the index is row-major in the matrix that the caller sees
            first, step = row * n + first_col, int64(1)
            if is_transposed:
                first, step = first_col * m + row, int64(m)
        target = (int64(matrix) * slots + slot) * m + row
        (values_buffer, size), (indices_buffer, _) = extra[0], extra[1]
        for j in range(thread, count, threads):
            place: int32 = places[j]
            at = target + size // count * j
            values_buffer[at] = values[j]
            indices_buffer[at] = int64(NO_INDEX) if place == NO_PLACE else first + place * step

    return select_rows_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    # Long parts let few values pass; short ones are for results with few rows.
    configs=(Config(threads=32, part=4096), Config(threads=32, part=1024)),
    simulator_configs=(Config(threads=4, part=8), Config(threads=4, part=4)),
    block_count=block_count,
)
