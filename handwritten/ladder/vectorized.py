"""128-bit accesses to global and shared memory.

Idea: grown from `thread_tile_2d`. One instruction moves 16 bytes instead of 4 or 8, so that a
quarter (float64: half) as many instructions carry the same data. For that the tile of a is stored
transposed, k by k, and a thread's rows and columns are adjacent: it reads thread_m elements of a
and thread_n of b in vectors. Bank conflicts remain: see `conflict_free`.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; compiled for the layouts of a
and b.
Constraints: see `Config`. Operands that are not contiguous or not aligned to 16 bytes, and tiles at
an edge, are read element by element.
Source: S. Boehm, "How to Optimize a CUDA Matmul Kernel", kernel 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import VectorConfig as Config
from dxgemm.handwritten.parts.fragment import thread_fragment
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.result import Origin, Result
from dxgemm.handwritten.parts.tiles import (
    layouts_of,
    make_find_tile,
    make_store_result,
    make_tile_copy,
    plain_layout,
    smem_alignment,
)


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
    threads_n = tile_n // thread_n
    a_size, b_size, alignment = tile_m * tile_k, tile_n * tile_k, smem_alignment()

    width = VECTOR_BYTES // np.dtype(dtype).itemsize
    a_layout, b_layout = plain_layout(tile_m), plain_layout(tile_n)
    find_tile = make_find_tile(tile_m, tile_n)
    a_place, a_load, a_store, load_a_frag = make_tile_copy(
        a_mode, True, tile_m, tile_k, a_layout, threads, dtype, (thread_m, width)
    )
    b_place, b_load, b_store, load_b_frag = make_tile_copy(
        b_mode, False, tile_n, tile_k, b_layout, threads, dtype, (thread_n, width)
    )
    fragment = thread_fragment((thread_m, width, width), (thread_n, width, width))
    store_result = make_store_result(fragment, dtype, epilogue)

    @gemm_kernel
    def vectorized_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        a_smem = cuda.shared.array(a_size, scalar, alignment)
        b_smem = cuda.shared.array(b_size, scalar, alignment)

        # --- This block's tile, this thread's first element ---
        matrix, tile_row, tile_col = find_tile(cuda.blockIdx.x, m, n)
        thread: int32 = cuda.threadIdx.x & 1023
        thread_row: int32 = thread // threads_n * thread_m
        thread_col: int32 = thread % threads_n * thread_n
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

        # --- Main loop ---
        acc = zeros(scalar, thread_m * thread_n)
        left = k
        while left > 0:
            is_full = is_inside and left >= tile_k
            depth: int32 = min(left, tile_k)
            a_depth: int32 = depth - a_k
            b_depth: int32 = depth - b_k
            # New: 16 bytes at a time, from global memory to shared memory to registers.
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
        cuda.syncthreads()
        matrix, tile_row, tile_col = parked[0], parked[1], parked[2]
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n
        store_result(
            acc, tile_row + thread_row, tile_col + thread_col, is_inside,
            Origin(matrix, matrix * c.batch, matrix * out.batch),
            Result(alpha, beta, c, out, m, n, batch, extra),
        )  # fmt: skip

    return vectorized_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=128, tile_k=8, thread_m=8, thread_n=8),
        Config(tile_m=64, tile_n=64, tile_k=8, thread_m=8, thread_n=4),
    ),
    simulator_configs=(
        Config(tile_m=8, tile_n=8, tile_k=4, thread_m=4, thread_n=4),
        Config(tile_m=8, tile_n=16, tile_k=4, thread_m=8, thread_n=4),
    ),
    variant=layouts_of,
    takes_pairs=True,
)
