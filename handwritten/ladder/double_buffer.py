"""Two tiles in shared memory: one is multiplied while the next one is fetched.

Idea: grown from `warp_tile`, whose warps all wait for global memory at the same time. The loads of
the next tile are issued before this tile is multiplied, and the values stay in registers until
then. They are stored to the other of two buffers, so that one barrier per tile is enough.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; compiled for the layouts of a
and b.
Constraints: see `Config`. Operands that are not contiguous or not aligned to 16 bytes, and tiles at
an edge, are read element by element.
Source: NVIDIA's CUTLASS, "Efficient GEMM in CUDA", "Software pipelining".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import LANES_M, LANES_N, PARKED_BYTES, WarpVectorConfig
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
    def smem_bytes(self, dtype: str) -> int:
        """Bytes of shared memory for the two buffers."""
        return 2 * super().smem_bytes(dtype) + PARKED_BYTES


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate."""
    from numba import cuda, int32, int64

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
    stage_size = a_size + b_size
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
    def double_buffer_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = cuda.shared.array(2 * stage_size, scalar, alignment)

        # --- This block's tile, this thread's first element ---
        matrix, tile_row, tile_col = find_tile(cuda.blockIdx.x, m, n)
        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        # Eight lanes that are served together read two vectors of a and four of b. With one and
        # eight vectors, shared memory would be busy for longer.
        lane_row: int32 = lane >> 1 & 3
        lane_col: int32 = lane & 1 | lane >> 2 & 6
        thread_row: int32 = warp // warps_n * warp_m + lane_row * width
        thread_col: int32 = warp % warps_n * warp_n + lane_col * width
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n

        # Kept in shared memory during the main loop, which needs the registers.
        parked = cuda.shared.array(3, int64)
        if thread == 0:
            parked[0], parked[1], parked[2] = matrix, tile_row, tile_col

        # The first element of each tile that this thread copies, and the rows and columns left.
        a_row, a_k = a_place(thread)
        b_col, b_k = b_place(thread)
        a_index = matrix * a.batch + (tile_row + a_row) * a.row + a_k * a.col
        b_index = matrix * b.batch + (tile_col + b_col) * b.col + b_k * b.row
        rows: int32 = min(m - tile_row, tile_m) - a_row
        cols: int32 = min(n - tile_col, tile_n) - b_col

        # --- Prologue: the first tile, into registers ---
        full: int32 = k // tile_k if is_inside else 0  # tiles without edges are the first ones
        done: int32 = 0
        a_values, b_values = (), ()

        def fetch():
            nonlocal a_values, b_values
            is_full = done < full
            depth: int32 = min(k - int64(done) * tile_k, tile_k)
            a_depth: int32 = depth - a_k
            b_depth: int32 = depth - b_k
            a_values = a_load(a.data, a_index, a.row, a.col, is_full, rows, a_depth)
            b_values = b_load(b.data, b_index, b.col, b.row, is_full, cols, b_depth)

        fetch()

        # --- Main loop ---
        acc = zeros(scalar, thread_m * thread_n)
        stage: int32 = 0
        while int64(done) * tile_k < k:
            a_store(smem, stage, a_row, a_k, a_values)
            b_stage: int32 = stage + a_size
            b_store(smem, b_stage, b_col, b_k, b_values)
            # One barrier per tile is enough: a thread stores to this buffer again only after the
            # next barrier, which all threads that read the buffer here have passed too.
            cuda.syncthreads()
            done += 1
            a_index += tile_k * a.col
            b_index += tile_k * b.row
            fetch()  # New: the next tile arrives while this one is multiplied.
            for kk in static_range(tile_k):
                a_frag = load_a_frag(smem, stage, thread_row, kk)
                b_frag = load_b_frag(smem, b_stage, thread_col, kk)
                acc = outer_product(acc, a_frag, b_frag)
            stage = stage_size - stage  # the other buffer

        # --- Epilogue ---
        cuda.syncthreads()
        matrix, tile_row, tile_col = parked[0], parked[1], parked[2]
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n
        store_result(
            acc, tile_row + thread_row, tile_col + thread_col, is_inside,
            Origin(matrix, matrix * c.batch, matrix * out.batch),
            Result(alpha, beta, c, out, m, n, batch, extra),
        )  # fmt: skip

    return double_buffer_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=128, tile_k=8, thread_m=8, thread_n=8),
        Config(tile_m=64, tile_n=64, tile_k=8, thread_m=8, thread_n=4),
    ),
    simulator_configs=(Config(tile_m=16, tile_n=32, tile_k=8, thread_m=4, thread_n=4),),
    variant=layouts_of,
    takes_pairs=True,
    order_of_sums="fma",
)
