"""Many problems of any sizes in one launch: a block finds its own in a table.

Idea: grown from `small_batch`, whose tiles it computes. What the problems have in common is a
parameter; sizes, strides and where the operands begin stand in a table in global memory, a row for
each problem. Tiles are numbered through all problems; a binary search over the first tile of each
leads from a tile to its problem.
Layout: a (m, k), b (k, n), c and out (m, n), different for each problem, any strides. `table` holds
the first tile of each problem, in their order, then FIELDS numbers for each; an operand starts so
many elements after the pointer of its name. `scalars` holds alpha and beta of each.
Constraints: those of `small_batch`. No problem is empty. If a block has several tiles, each takes
as many steps as the longest k.
Source: NVIDIA's CUTLASS, "Grouped Kernel Schedulers", for the visit of tiles by their problem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.small_batch import Config, make_compute_tile

MINIMUM_ARCH = 80
# Of a problem, in the order of its row in the table. Starts and strides count elements.
FIELDS = (
    "m", "n", "k", "a_start", "a_stride_m", "a_stride_k", "b_start", "b_stride_k", "b_stride_n",
    "c_start", "c_stride_m", "c_stride_n", "out_start", "out_stride_m", "out_stride_n",
)  # fmt: skip

CONFIGS = (
    Config(64, 64, 32, thread_m=8, thread_n=4, matrices=1),
    Config(32, 32, 32, thread_m=4, thread_n=4, matrices=1),
    Config(16, 16, 16, thread_m=2, thread_n=4, matrices=4),
    Config(8, 8, 8, thread_m=2, thread_n=4, matrices=16),
    Config(4, 4, 4, thread_m=1, thread_n=4, matrices=32),
)


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    The parameters are those of every kernel: m counts problems, batch tiles, and k is the longest.
    The last one has the table and the scalars.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.intrinsics import divide, shared_address

    scalar = np.dtype(dtype).type
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    tile_threads, matrices = config.tile_threads, config.matrices
    tile_bytes, fields = config.tile_bytes(dtype), len(FIELDS)
    compute_tile = make_compute_tile(config, dtype, a_mode, b_mode)

    def grouped_kernel(
        a_gmem, b_gmem, c_gmem, out_gmem, alpha, beta, m, n, k, batch,
        a_stride_batch, a_stride_m, a_stride_k, b_stride_batch, b_stride_k, b_stride_n,
        c_stride_batch, c_stride_m, c_stride_n, out_stride_batch, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x & 1023)
        member, thread = int32(thread // tile_threads), int32(thread % tile_threads)
        smem = int32(shared_address(cuda.shared.array(0, scalar)) + member * tile_bytes)
        table, scalars = extra[0][0], extra[1][0]

        # The last problem whose first tile is not behind this one.
        found = cuda.blockIdx.x * matrices + member
        tile = min(found, batch - 1)
        problem, last = int32(0), int32(m - 1)
        while problem < last:
            middle = int32((problem + last + 1) >> 1)
            if table[middle] <= tile:
                problem = middle
            else:
                last = int32(middle - 1)

        place = int32(tile - table[problem])
        row = m + problem * fields
        own_m, own_n, own_k = table[row], table[row + 1], table[row + 2]
        tiles_n = int32((own_n + tile_n - 1) // tile_n)
        tile_row = divide(place, tiles_n)
        tile_col = int32(place - tile_row * tiles_n)
        # Threads of several tiles must meet at the same barriers.
        longest = own_k if matrices == 1 else k
        compute_tile(
            thread, smem, found < batch, 0, tile_row * tile_m, tile_col * tile_n,
            int32((longest + tile_k - 1) // tile_k),
            scalars[2 * problem], scalars[2 * problem + 1], own_m, own_n, own_k,
            a_gmem, table[row + 3], table[row + 4], table[row + 5],
            b_gmem, table[row + 6], table[row + 7], table[row + 8],
            c_gmem, table[row + 9], table[row + 10], table[row + 11],
            out_gmem, table[row + 12], table[row + 13], table[row + 14], (),
        )  # fmt: skip

    return grouped_kernel


def modes(operands: list[tuple[str, str]]) -> tuple[str, str]:
    """What a kernel is compiled for: the way in which all of a and all of b lie in memory.

    Args:
        operands: `operand_mode` of a and b of each problem.
    """
    a_mode, b_mode = (_common_mode(set(of_all)) for of_all in zip(*operands, strict=True))
    return a_mode, b_mode.replace("col16", "col")


def _common_mode(found: set[str]) -> str:
    """One that any of these operands can be read in: by elements it may be either direction."""
    if len(found) == 1:
        return found.pop()
    directions = {mode.removesuffix("16") for mode in found}
    return directions.pop() if len(directions) == 1 else "row"
