"""The merging of partial results: the second kernel of every reduction.

Each row, or column, has several partial results, one from each tile that it runs through (see
`reduction`). Each group of threads in a block has a line. Its members take the partial results
in turn and merge them pairwise.
Layout: m lines, n results of each, from k partial ones. The last parameter has the buffers of
partial results, then the arrays that are written: values and indices.
Constraints: see `GroupsConfig`.
Source: M. Harris, "Optimizing Parallel Reduction in CUDA": coalesced reads, halves added to halves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import GroupsConfig
from dxgemm.handwritten.parts.groups import make_find_block, make_merge_members
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.reduction import FEW_VALUES, NO_INDEX, make_reducer
from dxgemm.handwritten.parts.unroll import device, gemm_kernel, static_range


@dataclass(frozen=True)
class Config(GroupsConfig):
    """A `GroupsConfig` whose groups have a line each, for up to `most_values` of a thread."""

    most_values: int = FEW_VALUES

    def smem_bytes(self, dtype: str) -> int:
        """Upper bound: values and their indices of 8 bytes each, per thread."""
        return self.threads * self.most_values * 16

    def accumulator_bytes(self, dtype: str) -> int:
        return self.most_values * 16


# Use of the merged results: they are merged again; they are the results of lines; or they are those
# of a whole matrix, in which an index is a row and a column.
AGAIN, LINES, WHOLE = "again", "lines", "whole"


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one for so many lines, matrix after matrix."""
    return problem.batch * -(-problem.m // config.groups)


def make_add(reducer: Any) -> Callable[..., Any]:
    """A device function: (partial, extra, place) -> the same merged with one in the buffers."""
    values, indices = reducer.values, reducer.indices
    merge, merge_stored = reducer.merge, reducer.merge_stored
    in_memory = merge_stored is not None

    @device
    def load(extra, place):
        """A partial result from the buffers."""
        partial = ()
        buffer, size = extra[0]
        for j in static_range(values):
            partial = partial + (buffer[place + size // values * j],)
        if indices > 0:
            index_buffer, size = extra[1]
            for j in static_range(indices):
                partial = partial + (index_buffer[place + size // indices * j],)
        return partial

    @device
    def add(partial, extra, place):
        if in_memory:
            if partial[values] == NO_INDEX:
                return load(extra, place)  # nothing is held yet
            step = extra[0][1] // values
            return merge_stored(partial, extra[0][0], extra[1][0], place, step)
        return merge(partial, load(extra, place))

    return add


def make_kernel(
    config: Config, dtype: str, end: str, written: str, epilogue: Any
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        dtype: dtype of the values that were reduced.
        end: AGAIN, LINES or WHOLE.
        written: "values", "indices", "values indices", or "means", which are values divided by a
            number.
        epilogue: a `Fusion` of a reduction alone. Its operands: the buffers of
            values and of indices; one array for each result, but with WHOLE for indices one
            of rows and one of columns, and the columns of the matrix; of means a further number,
            their divisor.
    """
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, float64, int32, int64

    reduction = epilogue.reduction
    scalar = np.dtype(reduction.partials[0]).type
    reducer = make_reducer(reduction, dtype)
    no_partial, add = reducer.no_partial, make_add(reducer)
    values, indices = reducer.values, reducer.indices
    finish, results = reducer.finish, reducer.results
    lines, group_threads, threads = config.groups, config.threads_per_group, config.threads
    writes_means, writes_indices = written == "means", "indices" in written
    writes_values = writes_means or "values" in written
    first_array = 2 if indices > 0 else 1
    index_array = first_array + (1 if writes_values else 0)
    smem_indices = max(threads * indices, 1)
    find_block = make_find_block(lines)
    counts = values, indices
    merge_members = make_merge_members(config, lines, counts, reducer.merge, reducer.merge_stored)

    @device
    def put(partial, matrix, line, extra):
        """Write a result, or a partial one."""
        if writes_values:
            array, batch_step, line_step, step = extra[first_array]
            if end == AGAIN:
                for j in static_range(values):
                    array[matrix * batch_step + line * line_step + j * step] = partial[j]
            else:
                finished = finish(partial)
                if writes_means:
                    finished = (float64(finished[0]) / float64(extra[first_array + 1]),)
                for j in static_range(results):
                    array[matrix * batch_step + line * line_step + j * step] = finished[j]
        if writes_indices:
            array, batch_step, line_step, step = extra[index_array]
            for j in static_range(indices):
                index = partial[values + j]
                place = matrix * batch_step + line * line_step + j * step
                if end != AGAIN and index == NO_INDEX:
                    index = int64(0)  # no element preceded the worst value: all have it
                if end == WHOLE:
                    cols = extra[index_array + 2]
                    array[place] = index // cols
                    extra[index_array + 1][0][place] = index % cols
                else:
                    array[place] = index

    @gemm_kernel
    def merge_partials_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's lines, this thread's share ---
        values_smem = cuda.shared.array(threads * values, scalar)
        indices_smem = cuda.shared.array(smem_indices, int64)
        thread: int32 = cuda.threadIdx.x & 1023
        matrix, block, _ = find_block(int32(cuda.blockIdx.x), m)
        member: int32 = thread // lines
        line = int64(block) * lines + thread % lines
        # --- Main loop: this member's partial results ---
        partial = no_partial()
        if line < m:
            for slot in range(member, k, group_threads):
                partial = add(partial, extra, (matrix * k + slot) * m + line)
        partial = merge_members((values_smem, indices_smem), thread, member, partial)
        # --- Epilogue ---
        if member == 0 and line < m:
            put(partial, matrix, line, extra)

    return merge_partials_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(groups=32, threads_per_group=8),
        Config(groups=1, threads_per_group=256),
        Config(groups=8, threads_per_group=8, most_values=32),
        Config(groups=1, threads_per_group=64, most_values=32),
    ),
    simulator_configs=(
        Config(groups=2, threads_per_group=4),
        Config(groups=1, threads_per_group=8),
        Config(groups=2, threads_per_group=2, most_values=32),
        Config(groups=1, threads_per_group=4, most_values=32),
    ),
    block_count=block_count,
)
