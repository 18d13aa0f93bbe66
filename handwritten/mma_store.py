"""The sums of an `mma.sync` to global memory, after those of a cluster's blocks are added up.

Of each instruction a lane holds four sums: rows 0 and 1 from its own first row of the left operand,
each in columns 0 and 1. They leave in pairs, along the contiguous index of the result.
Source: CUDA C++ Programming Guide, "Distributed Shared Memory".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

CHUNK_BYTES = 16  # of the widest access


def make_gather(split_k: int, threads: int, dtype: str) -> tuple[Callable[..., Any], ...]:
    """Device functions that pass sums between the blocks of a cluster through shared memory.

    Returns:
        put: (address, index, sums) stores the sums of one mma. address is the thread's own:
            thread * 16 bytes into the memory.
        take: (address, index) -> the totals over all blocks, added in their order: every run gives
            the same bits.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.intrinsics import cluster_address, load_cluster, store_shared
    from dxgemm.handwritten.unroll import static_range, unroll_static_loops

    scalar, item_bytes = np.dtype(dtype).type, np.dtype(dtype).itemsize
    width = CHUNK_BYTES // item_bytes
    chunks = 4 // width  # of four sums: neighbouring threads store neighbouring chunks
    round_bytes = threads * CHUNK_BYTES

    def put(address, index, sums):
        for part in static_range(chunks):
            target = int32(address + (index * chunks + part) * round_bytes)
            store_shared(target, 0, sums[part * width : part * width + width])

    def take(address, index):
        totals = (scalar(0), scalar(0), scalar(0), scalar(0))
        for block in static_range(split_k):
            remote = cluster_address(address, int32(block))
            sums = ()
            for part in static_range(chunks):
                source = int32(remote + (index * chunks + part) * round_bytes)
                sums = sums + load_cluster(scalar, width, source, 0)
            totals = (
                totals[0] + sums[0], totals[1] + sums[1], totals[2] + sums[2], totals[3] + sums[3]
            )  # fmt: skip
        return totals

    device = cuda.jit(device=True, forceinline=True)
    return device(unroll_static_loops(put)), device(unroll_static_loops(take))


def make_store(pairs_in_rows: bool, dtype: str) -> Callable[..., Any]:
    """A device function that writes alpha * sums + beta * c for the four sums of one mma.

    Args:
        pairs_in_rows: whether columns 0 and 1 of a row are neighbours in the result, or rows 0 and
            1 of a column.
    """
    from numba import cuda

    from dxgemm.handwritten.intrinsics import load_global, store_global
    from dxgemm.handwritten.unroll import static_range, unroll_static_loops

    scalar = np.dtype(dtype).type

    def store(
        sums, alpha, beta, in_pairs, rows_left, cols_left,
        c, c_row_bytes, c_col_bytes, out, out_row_bytes, out_col_bytes,
    ):  # fmt: skip
        if in_pairs:
            for i in static_range(2):
                if pairs_in_rows:
                    first, second = alpha * sums[2 * i], alpha * sums[2 * i + 1]
                    c_pair, out_pair = c + i * c_row_bytes, out + i * out_row_bytes
                else:
                    first, second = alpha * sums[i], alpha * sums[i + 2]
                    c_pair, out_pair = c + i * c_col_bytes, out + i * out_col_bytes
                if beta != 0:
                    old = load_global(scalar, 2, c_pair, 0)
                    first, second = first + beta * old[0], second + beta * old[1]
                store_global(out_pair, 0, (first, second))
        else:
            for i in static_range(4):
                row, col = i // 2, i % 2
                if row < rows_left and col < cols_left:
                    value = alpha * sums[i]
                    if beta != 0:
                        old = load_global(scalar, 1, c + row * c_row_bytes + col * c_col_bytes, 0)
                        value += beta * old[0]
                    store_global(out + row * out_row_bytes + col * out_col_bytes, 0, (value,))

    return cuda.jit(device=True, forceinline=True)(unroll_static_loops(store))
