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


def make_store_finished(config: Any, pairs_in_rows: bool, dtype: str, epilogue: Any) -> Any:
    """A device function that writes what an epilogue makes of alpha * sums + beta * c.

    The block's tile goes through shared memory, as rows of the result, which must hold it and which
    nobody needs any more. All threads of the block, and of the cluster if there is one, must call
    it together. lane_row, lane_col and tile_row, tile_col are the first element of the lane in the
    tile, and of the tile in the product of the left and the right operand.

    Args:
        config: of `tensor_core`.
        pairs_in_rows: whether that product is the result, or its transpose.
        epilogue: what `dxgemm.handwritten.epilogue` takes.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.intrinsics import cluster_sync, store_shared
    from dxgemm.handwritten.mma_operands import MMA_COLS, MMA_ROWS
    from dxgemm.handwritten.tile_store import (
        make_allows_vectors,
        make_store_from_smem,
        row_bytes,
    )
    from dxgemm.handwritten.unroll import static_range, unroll_static_loops

    split_k = config.split_k
    tile_m, tile_n = config.tile_left, config.tile_right
    if not pairs_in_rows:
        tile_m, tile_n = tile_n, tile_m
    item_bytes = np.dtype(dtype).itemsize
    # From one row of the product to the next in shared memory, and from one column.
    row_step, col_step = row_bytes(tile_n, dtype), item_bytes
    if not pairs_in_rows:
        row_step, col_step = col_step, row_step
    right_mmas = config.warp_right // MMA_COLS
    mmas = config.warp_left // MMA_ROWS * right_mmas
    allows_vectors = make_allows_vectors(dtype)
    store_from_smem = make_store_from_smem(
        tile_m, tile_n, config.threads, split_k, dtype, epilogue=epilogue
    )

    def store_finished(
        acc, smem, rank, matrix, lane_row, lane_col, tile_row, tile_col, m, n, alpha, beta,
        c_gmem, c_start, c_stride_m, c_stride_n, out_gmem, out_start, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        cuda.syncthreads()
        target = int32(smem + lane_row * row_step + lane_col * col_step)
        for mma in static_range(mmas):
            for i in static_range(2):
                if pairs_in_rows:
                    first, second = acc[4 * mma + 2 * i], acc[4 * mma + 2 * i + 1]
                else:
                    first, second = acc[4 * mma + i], acc[4 * mma + i + 2]
                store_shared(
                    target,
                    mma // right_mmas * MMA_ROWS * row_step
                    + mma % right_mmas * MMA_COLS * col_step
                    + i * (row_step if pairs_in_rows else col_step),
                    (alpha * first, alpha * second),
                )
        if split_k == 1:
            cuda.syncthreads()
        else:
            cluster_sync()
        is_vector = allows_vectors(
            beta, c_gmem, c_start, c_stride_m, c_stride_n,
            out_gmem, out_start, out_stride_m, out_stride_n,
        )  # fmt: skip
        store_from_smem(
            smem, rank, matrix,
            tile_row if pairs_in_rows else tile_col, tile_col if pairs_in_rows else tile_row,
            m, n, beta, is_vector, c_gmem, c_start, c_stride_m, c_stride_n,
            out_gmem, out_start, out_stride_m, out_stride_n, extra,
        )  # fmt: skip
        if split_k > 1:
            cluster_sync()  # until then, others read this block's shared memory

    return cuda.jit(device=True, forceinline=True)(unroll_static_loops(store_finished))
