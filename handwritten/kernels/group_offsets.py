"""The table of a group whose sizes are on the device: one block, launched before `grouped`.

Idea: one dimension of m, n and k is shared out among the problems by offsets, the last index of
each plus one. A thread has neighbouring problems: it counts the tiles of their results, learns by a
scan how many come before, and writes their rows of the table. The grid of the product is as large
as offsets could make it, because the host does not know them. So the table ends with an empty
problem, to which the tiles beyond the last one belong.
Layout: a (m, k), b (k, n), c and out (m, n), as one call has them. In the dimension that is shared
out, m, n or k counts the elements of all problems, and operands that have it are one problem after
the other. Other operands have a matrix for each problem. `table` is that of group_table.py, with
starts relative to the operands; `scalars` holds alpha and beta of each problem.
Constraints: offsets outside of the dimension count as its ends, and a problem that ends before it
begins is empty.
Source: W. D. Hillis and G. L. Steele, "Data parallel algorithms", for the scan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.group_table import FIELDS, make_find_part
from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig, one_block
from dxgemm.handwritten.parts.unroll import device, gemm_kernel, static_range

SHARED = ("m", "n", "k")  # dimensions that may be shared out


@dataclass(frozen=True)
class Config(ThreadsConfig):
    """Threads of the block, which share their findings."""

    def smem_bytes(self, dtype: str) -> int:
        return self.threads * 8


def table_items(problems: int) -> int:
    """Numbers of a table, its last, empty problem included."""
    return (problems + 1) * (1 + len(FIELDS))


def make_find_own(shared: str) -> Callable[..., Any]:
    """A device function: (offsets, problem, m, n, k) -> first index of a problem, its m, n and k.

    The index is that in the dimension that is shared out.
    """
    by_m, by_n, by_k = (shared == name for name in SHARED)
    find_part = make_find_part()

    @device
    def find_own(offsets, problem, m, n, k):
        first, size = find_part(offsets, problem, m if by_m else n if by_n else k)
        return first, size if by_m else m, size if by_n else n, size if by_k else k

    return find_own


def make_count_tiles() -> Callable[..., Any]:
    """A device function: (m, n, tile_m, tile_n) -> tiles of a result."""

    @device
    def count_tiles(m, n, tile_m, tile_n):
        return (m + tile_m - 1) // tile_m * ((n + tile_n - 1) // tile_n)

    return count_tiles


def make_kernel(config: Config, dtype: str, shared: str, epilogue: Any) -> Callable[..., None]:
    """The kernel, as a Python function to compile or to simulate.

    Args:
        config, dtype: config, and dtype of alpha and beta.
        shared: dimension that is shared out: "m", "n" or "k".
        epilogue: a `Fusion` of three buffers (offsets, table, scalars) and two numbers: rows and
            columns of a tile.
    """
    # Global, because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32, int64

    threads, fields = config.threads, len(FIELDS)
    scalar = np.dtype(dtype).type
    steps = threads.bit_length() - 1
    by_m, by_n, by_k = (shared == name for name in SHARED)
    find_problem, count_tiles = make_find_own(shared), make_count_tiles()

    @gemm_kernel
    def group_offsets_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        counts = cuda.shared.array(threads, int64)
        offsets, table, scalars = extra[0][0], extra[1][0], extra[2][0]
        tile_m, tile_n = extra[3], extra[4]

        # --- This thread's problems, and the tiles of their results ---
        thread: int32 = cuda.threadIdx.x & 1023
        share: int32 = (batch + threads - 1) // threads
        begin: int32 = min(share * thread, batch)
        end: int32 = min(begin + share, batch)
        tiles = int64(0)
        for problem in range(begin, end):
            _, own_m, own_n, _ = find_problem(offsets, problem, m, n, k)
            tiles += count_tiles(own_m, own_n, tile_m, tile_n)

        # --- Tiles of the threads before this one ---
        counts[thread] = tiles
        cuda.syncthreads()
        for step in static_range(steps):
            before = int64(0)
            if thread >= 1 << step:
                before = counts[thread - (1 << step)]
            cuda.syncthreads()
            counts[thread] += before
            cuda.syncthreads()
        place = counts[thread] - tiles

        # --- Their rows of the table ---
        rows = batch + 1
        for problem in range(begin, end):
            first, own_m, own_n, own_k = find_problem(offsets, problem, m, n, k)
            table[problem] = place
            place += count_tiles(own_m, own_n, tile_m, tile_n)
            row = rows + problem * fields
            a_start, b_start = problem * a.batch, problem * b.batch
            c_start, out_start = problem * c.batch, problem * out.batch
            if by_m:
                a_start += first * a.row
                c_start += first * c.row
                out_start += first * out.row
            if by_n:
                b_start += first * b.col
                c_start += first * c.col
                out_start += first * out.col
            if by_k:
                a_start += first * a.col
                b_start += first * b.row
            table[row], table[row + 1], table[row + 2] = own_m, own_n, own_k
            table[row + 3], table[row + 4], table[row + 5] = a_start, a.row, a.col
            table[row + 6], table[row + 7], table[row + 8] = b_start, b.row, b.col
            table[row + 9], table[row + 10], table[row + 11] = c_start, c.row, c.col
            table[row + 12], table[row + 13], table[row + 14] = out_start, out.row, out.col
            table[row + 15] = first
            # Where k is 0, even a NaN in alpha is ignored.
            scalars[2 * problem] = alpha if own_k > 0 else scalar(0)
            scalars[2 * problem + 1] = beta
        if thread == threads - 1:
            table[batch] = counts[thread]
            row = rows + batch * fields
            for field in static_range(fields):
                table[row + field] = 0
            table[row + 1] = 1  # n, by whose tiles a place is divided
            scalars[2 * batch] = scalar(0)
            scalars[2 * batch + 1] = scalar(0)

    return group_offsets_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(threads=256),),
    simulator_configs=(Config(threads=4),),
    block_count=one_block,
)
