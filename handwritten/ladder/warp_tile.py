"""A tile per warp, between the block's tile and the thread's.

Idea: grown from `conflict_free`. The threads of a warp no longer cover two long rows of thread
tiles but form a small matrix of LANES_M x LANES_N. The tile of a warp, warp_m x warp_n, is then
nearly square, and the warp reads fewer elements of shared memory for as many multiplications. With
16 x 8 elements per thread, six vectors feed 128 multiplications.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; compiled for the layouts of a
and b.
Constraints: see `Config`. Operands that are not contiguous or not aligned to 16 bytes, and tiles at
an edge, are read element by element.
Source: NVIDIA's CUTLASS, "Efficient GEMM in CUDA", for the hierarchy of tiles; S. Boehm, "How to
Optimize a CUDA Matmul Kernel", kernel 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import LANES_M, LANES_N, WarpVectorConfig, min_blocks
from dxgemm.handwritten.parts.fragment import thread_fragment
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.result import Origin, Result
from dxgemm.handwritten.parts.tiles import (
    layouts_of,
    make_find_tile,
    make_store_result,
    make_tile_copy,
    padded_layout,
    smem_alignment,
)


class Config(WarpVectorConfig):
    def min_blocks(self, dtype: str) -> int:
        addresses = 16  # registers for addresses, more than without warp tiles
        return min_blocks(self.threads, self.thread_m * self.thread_n + addresses, dtype)


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import outer_product, zeros
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    scalar = np.dtype(dtype).type
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    thread_m, thread_n, threads = config.thread_m, config.thread_n, config.threads
    warp_m, warp_n = config.warp_m, config.warp_n
    warps_n = tile_n // warp_n
    width = VECTOR_BYTES // np.dtype(dtype).itemsize
    a_layout, b_layout = padded_layout(tile_m, dtype), padded_layout(tile_n, dtype)
    a_size, b_size, alignment = tile_k * a_layout.row, tile_k * b_layout.row, smem_alignment()
    row_group, col_group = LANES_M * width, LANES_N * width  # between a thread's vectors
    find_tile = make_find_tile(tile_m, tile_n)
    a_place, a_load, a_store, load_a_frag = make_tile_copy(
        a_mode, True, tile_m, tile_k, a_layout, threads, dtype, (thread_m, row_group)
    )
    b_place, b_load, b_store, load_b_frag = make_tile_copy(
        b_mode, False, tile_n, tile_k, b_layout, threads, dtype, (thread_n, col_group)
    )
    fragment = thread_fragment((thread_m, width, row_group), (thread_n, width, col_group))
    store_result = make_store_result(fragment, dtype, epilogue)

    @gemm_kernel
    def warp_tile_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        a_smem = cuda.shared.array(a_size, scalar, alignment)
        b_smem = cuda.shared.array(b_size, scalar, alignment)

        # --- This block's tile, this thread's first element ---
        matrix, tile_row, tile_col = find_tile(cuda.blockIdx.x, m, n)
        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        # New: a warp's threads form a tile of their own.
        # Eight lanes that are served together read two vectors of a and four of b. With one and
        # eight vectors, shared memory would be busy for longer.
        lane_row: int32 = lane >> 1 & 3
        lane_col: int32 = lane & 1 | lane >> 2 & 6
        thread_row: int32 = warp // warps_n * warp_m + lane_row * width
        thread_col: int32 = warp % warps_n * warp_n + lane_col * width
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n

        # The first element of each tile that this thread copies, and the rows and columns left.
        a_row, a_k = a_place(thread)
        b_col, b_k = b_place(thread)
        a_index = matrix * a.batch + (tile_row + a_row) * a.row + a_k * a.col
        b_index = matrix * b.batch + (tile_col + b_col) * b.col + b_k * b.row
        rows: int32 = min(m - tile_row, tile_m) - a_row
        cols: int32 = min(n - tile_col, tile_n) - b_col

        # --- Main loop ---
        acc = zeros(scalar, thread_m * thread_n)
        left = k
        while left > 0:
            is_full = is_inside and left >= tile_k
            depth: int32 = min(left, tile_k)
            a_depth: int32 = depth - a_k
            b_depth: int32 = depth - b_k
            a_values = a_load(a.data, a_index, a.row, a.col, is_full, rows, a_depth)
            b_values = b_load(b.data, b_index, b.col, b.row, is_full, cols, b_depth)
            a_store(a_smem, 0, a_row, a_k, a_values)
            b_store(b_smem, 0, b_col, b_k, b_values)
            a_index += tile_k * a.col
            b_index += tile_k * b.row
            cuda.syncthreads()
            for kk in static_range(tile_k):
                a_frag = load_a_frag(a_smem, 0, thread_row, kk)
                b_frag = load_b_frag(b_smem, 0, thread_col, kk)
                acc = outer_product(acc, a_frag, b_frag)
            cuda.syncthreads()  # before the next tile overwrites this one
            left -= tile_k

        # --- Epilogue ---
        store_result(
            acc, tile_row + thread_row, tile_col + thread_col, is_inside,
            Origin(matrix, matrix * c.batch, matrix * out.batch),
            Result(alpha, beta, c, out, m, n, batch, extra),
        )  # fmt: skip

    return warp_tile_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=128, tile_k=8, thread_m=16, thread_n=8),
        Config(tile_m=128, tile_n=64, tile_k=8, thread_m=8, thread_n=8),
        Config(tile_m=64, tile_n=64, tile_k=8, thread_m=8, thread_n=4),
    ),
    simulator_configs=(Config(tile_m=16, tile_n=32, tile_k=8, thread_m=4, thread_n=4),),
    variant=layouts_of,
    takes_pairs=True,
)
