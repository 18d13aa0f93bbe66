"""Writing a tile of the result that is at an edge, strided, misaligned or shared by a cluster.

The block puts its tile into shared memory, row by row, and its threads write it element by element,
neighbours in neighbouring columns. Where the blocks of a thread-block cluster have each summed a
part of k, each of them adds up and writes a share of the tile's rows, reading the other blocks'
shared memory: no workspace, no atomics, the order of additions is always the same.
Source: CUDA C++ Programming Guide, "Distributed Shared Memory".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ROW_PADDING_BYTES = 16  # keeps rows apart in the banks and aligned for 16-byte accesses


def row_bytes(tile_n: int, dtype: str) -> int:
    """Bytes from one row of the tile in shared memory to the next."""
    return tile_n * np.dtype(dtype).itemsize + ROW_PADDING_BYTES


def tile_bytes(tile_m: int, tile_n: int, dtype: str) -> int:
    """Shared memory that a tile takes."""
    return tile_m * row_bytes(tile_n, dtype)


def make_store_from_smem(
    tile_m: int, tile_n: int, threads: int, split_k: int, dtype: str
) -> Callable[..., Any]:
    """A device function: write a tile from shared memory.

    It takes the byte address of the tile in shared memory, the block's rank in its cluster, the
    tile's first row and column, m, n, beta and the pointers, offsets and strides of c and out.
    Before it is called every thread must have stored its part, times alpha, and passed a barrier,
    of the cluster if split_k > 1; no block of a cluster may exit before all have returned from it.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.intrinsics import cluster_address, load_cluster, load_shared
    from dxgemm.handwritten.unroll import static_range, unroll_static_loops

    scalar = np.dtype(dtype).type
    item_size = np.dtype(dtype).itemsize
    smem_row_bytes = row_bytes(tile_n, dtype)
    rows = tile_m // split_k
    if rows * split_k != tile_m or threads % tile_n and tile_n % threads:
        raise ValueError(f"{threads} threads cannot share a tile of {rows} x {tile_n} evenly")

    def store_from_smem(
        smem, rank, tile_row, tile_col, m, n, beta,
        c_gmem, c_start, c_stride_m, c_stride_n, out_gmem, out_start, out_stride_m, out_stride_n,
    ):  # fmt: skip
        for element in range(int32(cuda.threadIdx.x & 1023), rows * tile_n, threads):
            smem_row = int32(rank * rows + element // tile_n)
            smem_col = int32(element % tile_n)
            row, col = tile_row + smem_row, tile_col + smem_col
            if row < m and col < n:
                address = int32(smem + smem_row * smem_row_bytes + smem_col * item_size)
                if split_k == 1:
                    value = load_shared(scalar, 1, address, 0)[0]
                else:
                    value = scalar(0)
                    for block in static_range(split_k):
                        value += load_cluster(
                            scalar, 1, cluster_address(address, int32(block)), 0
                        )[0]
                if beta != 0:
                    value += beta * c_gmem[c_start + row * c_stride_m + col * c_stride_n]
                out_gmem[out_start + row * out_stride_m + col * out_stride_n] = value

    return cuda.jit(device=True, forceinline=True)(unroll_static_loops(store_from_smem))
