"""The frame of kernels for few rows or columns: a ring is filled, a warpgroup computes out of it.

The time is that of reading the larger operand once. So it is the left factor, x, of whose rows a
block takes 64; the few rows or columns are those of the right one, y. A stage holds several panels,
each 128 bytes of k, so that memory is read in long runs, and a block's stages together hide its
latency. The blocks of a thread-block cluster share the k of a tile and add up through distributed
shared memory, in the order of their ranks.
Source: NVIDIA, "Hopper Tuning Guide"; CUTLASS's `KernelTmaWarpSpecialized`, with operands swapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.operands import exchanged_dtype, sums_dtype
from dxgemm.handwritten.parts.place import make_skinny_place
from dxgemm.handwritten.parts.skinny_layouts import Config
from dxgemm.handwritten.parts.skinny_load import Producer
from dxgemm.handwritten.parts.skinny_multiply import Consumer
from dxgemm.handwritten.parts.skinny_store import make_add_partial_tiles, make_store
from dxgemm.handwritten.parts.wgmma_ring import WARPGROUP, make_init_ring


def make_skinny_kernel(
    make_consumer: Callable[..., Consumer], make_producer: Callable[..., Producer],
    config: Config, dtype: str, large: str, a_innermost: str, b_innermost: str,
    out_dtype: str | None = None, epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config and one layout, as a Python function to compile.

    Args:
        make_consumer: (config, dtype, and for x and y True if MN-major) -> the `Consumer`.
        make_producer: (config, dtype, large, layouts of x and y) -> the `Producer`.
        large: operand that is the left factor, "a" or "b".
        a_innermost, b_innermost: layouts of a and b: "mn" if MN-major, otherwise another name.
    """
    from numba import cuda, int32, uint8

    from dxgemm.handwritten.parts.intrinsics import (
        cluster_arrive,
        shared_address,
        wait_earlier_kernel,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    large_is_a = large == "a"
    innermosts = (a_innermost, b_innermost) if large_is_a else (b_innermost, a_innermost)
    x_across, y_across = (innermost == "mn" for innermost in innermosts)
    split_k, stages = config.split_k, config.stages
    tile_k = config.tile_k(dtype)
    barriers_smem = stages * config.stage_bytes
    buffer_smem = barriers_smem + 16 * stages
    begin, consume, put, frees = make_consumer(
        config, dtype if large_is_a else exchanged_dtype(dtype), x_across, y_across
    )
    produce, fills = make_producer(config, dtype, large, *innermosts)
    init_ring = make_init_ring(stages, frees, fills)
    partial_tiles = config.partial_tiles
    find = make_skinny_place(config, tile_k, large_is_a)
    add_partial_tiles = make_add_partial_tiles(config)
    store_tile = make_store(config, large_is_a, sums_dtype(dtype), out_dtype or dtype, epilogue)

    @gemm_kernel
    def skinny_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, its share of k ---
        tile = find(m, n, k)

        # --- Prologue: the ring ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + barriers_smem
        empty: int32 = full + 8 * stages
        thread: int32 = cuda.threadIdx.x & 1023
        if thread == 0:
            init_ring(full, empty)
        wait_earlier_kernel()
        cuda.syncthreads()
        if split_k > 1:
            cluster_arrive()

        # --- Main loop: the producer, and the consumer, a warpgroup ---
        sums = begin()
        if thread >= WARPGROUP:
            produce(int32(thread - WARPGROUP), smem, full, empty, a, b, k, tile)
        else:
            sums = consume(sums, smem, full, empty, thread, tile.stages)
        cuda.syncwarp()
        cuda.syncthreads()

        # --- Epilogue: sums overwrite the stages; each block of a cluster adds up a share ---
        if thread < WARPGROUP:
            put(sums, smem, thread)
        if partial_tiles > 1:
            cuda.syncthreads()
            add_partial_tiles(smem, thread)
        store_tile(smem, int32(smem + buffer_smem), thread, tile, alpha, beta, c, out, extra)

    return skinny_kernel
