"""The sums of an `mma.sync` to global memory: in pairs from registers, or through shared memory.

A lane holds four sums of each instruction: rows 0 and 1 from its own first row of the left operand,
each in columns 0 and 1. A pair lies along the contiguous index of the result. Sums go through
shared memory if the result has no place for pairs, if a cluster adds them up, or if there is an
epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.triangle import Side, mirrored


def make_store(pairs_in_rows: bool, dtype: str) -> Callable[..., Any]:
    """A device function that writes alpha * sums + beta * c for the four sums of one mma, in pairs.

    It takes the sums, alpha, beta, and of c and of the result the address of the lane's first
    element and the bytes from one pair to the other.

    Args:
        pairs_in_rows: True if columns 0 and 1 of a row are neighbours in the result; else rows 0
            and 1 of a column are.
    """
    from numba import cuda

    from dxgemm.handwritten.parts.intrinsics import load_global, plus_scaled, scaled, store_global
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    scalar = np.dtype(dtype).type

    def store(sums, alpha, beta, c, c_step, out, out_step):
        for i in static_range(2):
            if pairs_in_rows:
                first, second = scaled(alpha, sums[2 * i]), scaled(alpha, sums[2 * i + 1])
            else:
                first, second = scaled(alpha, sums[i]), scaled(alpha, sums[i + 2])
            if beta != 0:
                old = load_global(scalar, 2, c + i * c_step, 0)
                first, second = plus_scaled(first, beta, old[0]), plus_scaled(second, beta, old[1])
            store_global(out + i * out_step, 0, (first, second))

    return cuda.jit(device=True, forceinline=True)(unroll(store))


def make_store_through_smem(
    config: Any, pairs_in_rows: bool, dtype: str, epilogue: Any, side: Side | None = None
) -> Any:
    """A device function that adds up a cluster's sums, finishes and writes them (`tile_store`).

    The block's tile goes through shared memory, as rows of the result, which must hold it and which
    nobody needs any more. All threads of the block, and of the cluster if there is one, must call
    it together. lane_row, lane_col and tile_row, tile_col are the first element of the lane in the
    tile, and of the tile in the product of the left and the right operand.

    Args:
        config: a `Config` of `tensor_core`.
        pairs_in_rows: True if that product is the result; else it is its transpose.
        epilogue: None, or a `Fusion`.
        side: elements of the product that are written; None for all.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import cluster_sync, store_shared
    from dxgemm.handwritten.parts.mma_operands import MMA_COLS, MMA_ROWS
    from dxgemm.handwritten.parts.tile_store import (
        make_allows_vectors,
        make_store_from_smem,
        row_bytes,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

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
        tile_m, tile_n, config.threads, split_k, dtype, epilogue=epilogue,
        side=side if pairs_in_rows else mirrored(side),
    )  # fmt: skip

    def store_through_smem(
        acc, smem, rank, matrix, lane_row, lane_col, tile_row, tile_col, m, n, alpha, beta,
        c, c_start, out, out_start,
        extra,
    ):  # fmt: skip
        cuda.syncthreads()
        target: int32 = smem + lane_row * row_step + lane_col * col_step
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
        is_vector = allows_vectors(beta, c, c_start, out, out_start)
        store_from_smem(
            smem, rank, matrix,
            tile_row if pairs_in_rows else tile_col, tile_col if pairs_in_rows else tile_row,
            m, n, beta, is_vector, c, c_start, out, out_start, extra,
        )  # fmt: skip
        if split_k > 1:
            cluster_sync()  # until then, others read this block's shared memory

    return cuda.jit(device=True, forceinline=True)(unroll(store_through_smem))
