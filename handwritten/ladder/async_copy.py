"""Asynchronous copies overlapped with the arithmetic: several tiles in flight to shared memory.

Idea: grown from `double_buffer`. cp.async copies from global to shared memory without passing
through registers, so that more than one tile can be in flight: the arithmetic of stages - 1 tiles
hides the latency of a copy, and the copy holds no registers.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; compiled for the layouts of a
and b (see `async_tiles`).
Constraints: see `Config`. Edges are predicated; tiles inside the operands pay one branch for that.
cp.async needs compute capability 8.0.
Source: NVIDIA A100 Tensor Core GPU Architecture white paper, "Asynchronous Copy"; CUDA C++
Programming Guide, "Asynchronous Data Copies".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts import tile_store
from dxgemm.handwritten.parts.async_tiles import copy_modes, make_tile_copy
from dxgemm.handwritten.parts.configs import LANES_M, LANES_N
from dxgemm.handwritten.parts.configs import RingConfig as Config
from dxgemm.handwritten.parts.fragment import thread_fragment
from dxgemm.handwritten.parts.kernel import Kernel, Reductions
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.result import Origin, Result


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile."""
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        divide,
        global_address,
        load_shared,
        outer_product,
        shared_address,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    scalar = np.dtype(dtype).type
    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size  # elements of a 16-byte access
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    tile_k_bytes = tile_k * item_size
    thread_m, thread_n = config.thread_m, config.thread_n
    stages = config.stages
    warps_n = tile_n // config.warp_n
    warp_m, warp_n = config.warp_m, config.warp_n
    a_row_bytes, b_row_bytes = config.a_row_bytes(dtype), config.b_row_bytes(dtype)
    a_bytes = tile_k * a_row_bytes
    stage_bytes = config.stage_bytes(dtype)
    ring_bytes = stages * stage_bytes
    # A thread's rows are vectors of `width`, one from each of thread_m / width row groups.
    row_vectors, col_vectors = thread_m // width, thread_n // width
    row_group, col_group = LANES_M * width, LANES_N * width
    a_offsets = tuple(
        tuple(kk * a_row_bytes + i * row_group * item_size for i in range(row_vectors))
        for kk in range(tile_k)
    )
    b_offsets = tuple(
        tuple(kk * b_row_bytes + j * col_group * item_size for j in range(col_vectors))
        for kk in range(tile_k)
    )
    a_begin, a_copy, a_copy_predicated = make_tile_copy(
        a_mode, tile_m, tile_k, a_row_bytes, config.threads, dtype
    )
    b_begin, b_copy, b_copy_predicated = make_tile_copy(
        b_mode, tile_n, tile_k, b_row_bytes, config.threads, dtype
    )
    fragment = thread_fragment((thread_m, width, row_group), (thread_n, width, col_group))
    store_tile = tile_store.make_store_tile(
        fragment, (tile_m, tile_n), config.threads, dtype, epilogue
    )

    @gemm_kernel
    def async_copy_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = shared_address(cuda.shared.array(0, scalar))

        # --- This block's tile, this thread's first element ---
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        block: int32 = cuda.blockIdx.x
        matrix = divide(block, tiles_m * tiles_n)
        tile: int32 = block - matrix * tiles_m * tiles_n
        row = divide(tile, tiles_n)
        tile_row, tile_col = int64(row) * tile_m, int64(tile - row * tiles_n) * tile_n
        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        # Lanes 0 to 7 read two rows of a and four columns of b: few addresses per access.
        lane_row: int32 = lane >> 1 & 3
        lane_col: int32 = lane & 1 | lane >> 2 & 6
        thread_row: int32 = warp // warps_n * warp_m + lane_row * width
        thread_col: int32 = warp % warps_n * warp_n + lane_col * width

        b_smem: int32 = smem + a_bytes
        a_copying, a_source = a_begin(
            thread,
            smem,
            global_address(a.data) + (matrix * a.batch + tile_row * a.row) * item_size,
            m - tile_row,
            a.row * item_size,
            a.col * item_size,
        )
        b_copying, b_source = b_begin(
            thread,
            b_smem,
            global_address(b.data) + (matrix * b.batch + tile_col * b.col) * item_size,
            n - tile_col,
            b.col * item_size,
            b.row * item_size,
        )
        a_tile_step, b_tile_step = a.col * tile_k_bytes, b.row * tile_k_bytes
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n
        # The number of tiles still to copy, and how many of the last ones need predicates.
        k_tiles: int32 = (k + tile_k - 1) // tile_k
        to_copy: int32 = k_tiles
        last_depth: int32 = k - int64(k_tiles - 1) * tile_k
        predicated: int32 = (0 if last_depth == tile_k else 1) if is_inside else to_copy

        def fetch():
            """Start copying the next tile of a and of b."""
            nonlocal a_source, b_source, to_copy, write_stage
            if to_copy > predicated:
                a_copy(a_copying, write_stage, a_source)
                b_copy(b_copying, write_stage, b_source)
            elif to_copy > 0:
                depth: int32 = last_depth if to_copy == 1 else tile_k
                a_copy_predicated(a_copying, write_stage, a_source, depth)
                b_copy_predicated(b_copying, write_stage, b_source, depth)
            commit_copies()
            a_source += a_tile_step
            b_source += b_tile_step
            to_copy -= 1
            write_stage += stage_bytes

        # --- Prologue: start the copies of all stages but one ---
        write_stage: int32 = 0
        for _ in range(stages - 1):
            fetch()

        # --- Main loop ---
        acc = zeros(scalar, thread_m * thread_n)
        a_address: int32 = smem + thread_row * item_size
        b_address: int32 = smem + a_bytes + thread_col * item_size
        read_stage: int32 = 0
        for _ in range(k_tiles):
            wait_copies(stages - 2)
            cuda.syncthreads()  # the tile has arrived; every thread is done with the one before it
            fetch()
            if write_stage == ring_bytes:
                write_stage = 0

            a_row: int32 = a_address + read_stage
            b_row: int32 = b_address + read_stage
            for kk in static_range(tile_k):
                a_frag, b_frag = (), ()
                for i in static_range(row_vectors):
                    a_frag = a_frag + load_shared(scalar, width, a_row, a_offsets[kk][i])
                for j in static_range(col_vectors):
                    b_frag = b_frag + load_shared(scalar, width, b_row, b_offsets[kk][j])
                acc = outer_product(acc, a_frag, b_frag)
            read_stage += stage_bytes
            if read_stage == ring_bytes:
                read_stage = 0

        # --- Epilogue ---
        wait_copies(0)
        store_tile(
            acc, smem, 0, thread_row, thread_col, tile_row, tile_col,
            Origin(matrix, matrix * c.batch, matrix * out.batch),
            Result(alpha, beta, c, out, m, n, batch, extra),
        )  # fmt: skip

    return async_copy_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(128, 128, 16, 8, 8, stages=3),
        Config(64, 64, 16, 8, 4, stages=3),
    ),
    minimum_arch=80,
    variant=copy_modes,
    reductions=Reductions.ALL,
    takes_pairs=True,
)
