"""Rows of a matrix as float8, each with the scale that its largest absolute value calls for.

Idea: a product's kernel stores a row in several tiles, and knows its largest value too late. So it
leaves the matrix in a workspace, and this kernel reads each row twice, the second time from cache:
a group of threads finds the largest absolute value, then divides by it. With blocks, each 128
columns of a row have a scale of their own, as `wgmma_float8` takes them of a.
Layout: a (m, n), whose columns count as k, any strides, any batch. The elements (m, n) and the
scales (m, 1), or (m, blocks), are the operands behind the parameters, with any strides. n is not
used.
Constraints: none. A scale is at least 2**-100 over the largest number of the format, so that rows
of zeros have one. A NaN makes the scale of its row NaN, an infinity makes it infinite.
Source: T. Dettmers et al., "LLM.int8()", NeurIPS 2022, section 2, for scales of rows; M. Harris,
"Optimizing Parallel Reduction in CUDA".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts.configs import GroupsConfig
from dxgemm.handwritten.parts.groups import make_find_block, make_merge_members
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.operands import FLOAT8_LARGEST, LEAST_LARGEST

READ = 4  # elements that a thread reads at a time


@dataclass(frozen=True)
class Config(GroupsConfig):
    """A `GroupsConfig` whose groups have a row, or a block of one, each."""

    def smem_bytes(self, dtype: str) -> int:
        return self.threads * 4

    def accumulator_bytes(self, dtype: str) -> int:
        return 4


def make_kernel(
    config: Config, dtype: str, kind: str, block: str = "", epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one variant, as a Python function to compile or to simulate.

    Args:
        dtype: dtype of the matrix.
        kind: dtype of the elements, of float8.
        block: columns of a row that share a scale; "" for all.
        epilogue: a `Fusion` of two outputs: elements and scales.
    """
    # Global, because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    import numpy as np
    from numba import cuda, float32, int32, int64

    from dxgemm.handwritten.parts.intrinsics import divide
    from dxgemm.handwritten.parts.unroll import device, gemm_kernel, static_range
    from dxgemm.handwritten.parts.widening import NARROW, WIDEN, view_as

    groups, group_threads, threads = config.groups, config.threads_per_group, config.threads
    columns, largest_number, least = int(block or 0), FLOAT8_LARGEST[kind], LEAST_LARGEST
    widen, narrow, byte = WIDEN.get(dtype, np.float32), NARROW[kind], np.uint8
    find_block = make_find_block(groups)

    @device
    def larger(values, others):
        """The larger absolute value, or the NaN."""
        value, other = values[0], abs(others[0])
        return (other if other > value or other != other else value,)

    @device
    def read(a, source, col, end):
        """Elements that are read together, so that more are under way; 0 behind the end."""
        values = ()
        for i in static_range(READ):
            at: int32 = col + i * group_threads
            value = float32(0)
            if at < end:
                value = widen(a.data[source + int64(at) * a.col])
            values = values + (value,)
        return values

    merge, step = make_merge_members(config, 1, (1,), larger), READ * config.threads_per_group

    @gemm_kernel
    def quantise_rows_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = cuda.shared.array(threads, float32)
        elements, elements_batch, elements_row, elements_col = extra[0]
        scales, scales_batch, scales_row, scales_col = extra[1]

        # --- This group's row, or block of one ---
        thread: int32 = cuda.threadIdx.x & 1023
        member: int32 = thread % group_threads
        pieces: int32 = 1
        if columns:
            pieces = (k + columns - 1) // columns
        matrix, number, _ = find_block(int32(cuda.blockIdx.x), m * pieces)
        number: int32 = number * groups + thread // group_threads
        row: int32 = divide(number, pieces)
        piece: int32 = number - row * pieces
        first: int32 = piece * columns
        end: int32 = k
        if columns:
            end = min(int32(k), first + columns)
        if row >= m:
            end = first
        source = int64(matrix) * a.batch + int64(row) * a.row

        # --- Its largest absolute value ---
        held = (float32(0),)
        for col in range(first + member, end, step):
            values = read(a, source, col, end)
            for i in static_range(READ):
                held = larger(held, (values[i],))
        held = merge((smem,), thread, member, held)
        smem[thread] = held[0]
        cuda.syncthreads()
        largest = smem[thread - member]
        if largest < float32(least):
            largest = float32(least)
        inverse = float32(largest_number) / largest

        # --- Its elements ---
        target = int64(matrix) * elements_batch + int64(row) * elements_row
        for col in range(first + member, end, step):
            values = read(a, source, col, end)
            for i in static_range(READ):
                at: int32 = col + i * group_threads
                if at < end:
                    code = narrow(float32(values[i] * inverse))
                    view_as(byte, elements)[target + int64(at) * elements_col] = code
        if member == 0 and row < m:
            place = int64(matrix) * scales_batch + int64(row) * scales_row
            scales[place + int64(piece) * scales_col] = largest / float32(largest_number)

    return quantise_rows_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(groups=1, threads_per_group=256),
        Config(groups=8, threads_per_group=32),
    ),
    simulator_configs=(
        Config(groups=1, threads_per_group=8),
        Config(groups=2, threads_per_group=4),
    ),
)
