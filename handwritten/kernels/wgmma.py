"""Hopper's own path: TMA feeds shared memory, warpgroups multiply out of it.

Idea: grown from `tensor_core`. One thread, the producer, has TMA bring boxes of a and b to shared
memory; two warpgroups, the consumers, multiply them by wgmma. Between them is a ring of stages,
each with barriers for "full" and "empty". While a block stores a tile, it fetches the next one.
Layout: a (m, k), b (k, n), any batch, row- or column-major; c and out (m, n), any strides.
wgmma reads 16-bit operands K-major or MN-major. tf32 operands must be K-major in shared memory, but
the left one may come from registers: an MN-major one is made the left, if need be of b.T @ a.T.
Constraints: bases and strides at multiples of 16 bytes, as TMA wants. m, n and k are free: what
lies outside arrives as zeros. A stage is 128 bytes of k deep.
Source: NVIDIA, "Hopper Tuning Guide" and PTX ISA; CUTLASS's `KernelTmaWarpSpecializedCooperative`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts import wgmma_layouts
from dxgemm.handwritten.parts.configs import WgmmaConfig as Config
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.tile_order import make_share, make_tile_map
from dxgemm.handwritten.parts.wgmma_mainloop import make_first_row, make_multiply_from_registers
from dxgemm.handwritten.parts.wgmma_ring import (
    ITEM_BYTES,
    ROW_BYTES,
    STEPS,
    SWIZZLE_ROWS,
    WARPGROUP,
    WARPGROUP_ROWS,
    make_after,
    make_fetch,
    make_init_ring,
    make_produce,
)


def make_fill(config: Any, tile_k: int, fetch: Callable[..., Any]) -> Callable[..., Any]:
    """The device function fill of the producer: have TMA fill stages with the k of one tile.

    It takes the first k of the tile and its end, and returns the next stage and its parity.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.unroll import unroll

    stage_bytes, after = config.stage_bytes, make_after(config.stages)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def fill(
        smem, full, empty, stage, parity, row, col, first, end, a_map, a_matrix, b_map, b_matrix
    ):  # fmt: skip
        depth: int32 = first
        while depth < end:
            barrier: int32 = full + 8 * stage
            target: int32 = smem + stage * stage_bytes
            hopper.wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
            hopper.expect_bytes(barrier, stage_bytes)
            fetch(target, barrier, row, col, depth, a_map, a_matrix, b_map, b_matrix)
            depth += tile_k
            stage, parity = after(stage, parity)
        return stage, parity

    return fill


def make_multiply(config: Any, kind: str, a_across: bool, b_across: bool) -> Callable[..., Any]:
    """The device function multiply of a consumer, for K-major or MN-major (across) operands."""
    if kind == "tf32" and a_across:
        return make_multiply_from_registers(config, b_across)
    from numba import cuda, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    a_bytes, panel_bytes = config.tile_m * ROW_BYTES, ROW_BYTES // ITEM_BYTES[kind] * ROW_BYTES
    # Descriptors count in 16 bytes.
    a_step = (panel_bytes if a_across else ROW_BYTES) // STEPS // 16
    b_step = (panel_bytes if b_across else ROW_BYTES) // STEPS // 16
    stage_step = config.stage_bytes // 16
    low, high = hopper.descriptor_halves(panel_bytes, SWIZZLE_ROWS * ROW_BYTES)
    after = make_after(config.stages)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def multiply(acc, smem, full, empty, thread, k_tiles, stage, parity):
        """acc + a @ b over all k tiles, both in shared memory; the next stage and its parity."""
        member: int32 = thread % WARPGROUP
        a_desc: int32 = low + (smem + thread // WARPGROUP * (WARPGROUP_ROWS * ROW_BYTES)) // 16
        b_desc: int32 = low + (smem + a_bytes) // 16
        previous = stage
        left: int32 = k_tiles
        while left > 0:
            hopper.wait_barrier(full + 8 * stage, parity)
            a_at: int32 = a_desc + stage * stage_step
            b_at: int32 = b_desc + stage * stage_step
            hopper.begin_wgmma()
            for step in static_range(STEPS):
                a_part: int32 = a_at + step * a_step
                b_part: int32 = b_at + step * b_step
                acc = hopper.wgmma(kind, high, acc, a_part, b_part, a_across, b_across)
            hopper.commit_wgmma()
            hopper.wait_wgmma(1)  # the k tile before is done, this one goes on
            if left < k_tiles and member == 0:
                hopper.arrive(empty + 8 * previous)
            previous = stage
            left -= 1
            stage, parity = after(stage, parity)
        acc = hopper.wait_wgmma_of(0, acc)
        if k_tiles > 0 and member == 0:
            hopper.arrive(empty + 8 * previous)
        return acc, stage, parity

    return multiply


def make_kernel(
    config: Config, dtype: str, a_innermost: str, b_innermost: str,
    out_dtype: str | None = None, stored: str = "", slicing: str = "", epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, one layout, and the triangles `stored` of a symmetric result.

    If k is sliced, the grid has a y for each slice, and out holds one batch of sums a slice.
    """
    from numba import cuda, float32, int32, uint8

    from dxgemm.handwritten.parts.block_mask import make_is_dead
    from dxgemm.handwritten.parts.hopper import tensor_map
    from dxgemm.handwritten.parts.intrinsics import shared_address, zeros
    from dxgemm.handwritten.parts.triangle_store import make_store_triangle
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    kind = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}[dtype]
    tile_m, tile_n, consumers = config.tile_m, config.tile_n, config.consumers
    tile_k = ROW_BYTES // ITEM_BYTES[kind]
    chunks_smem, chunk_bytes = config.stages * config.stage_bytes, config.chunk_bytes
    full_smem = chunks_smem + consumers * 4 * chunk_bytes
    empty_smem = full_smem + 8 * config.stages
    # From here on a and b are the left and the right factor of what is computed, m its rows.
    exchanged = wgmma_layouts.is_exchanged(dtype, a_innermost, b_innermost)
    order = -1 if exchanged else 1
    a_parameter, b_parameter = wgmma_layouts.TENSOR_MAPS[::order]
    a_across, b_across = (innermost == "mn" for innermost in (a_innermost, b_innermost)[::order])
    a_from_registers = kind == "tf32" and a_across
    locate, count_tiles = make_tile_map(tile_m, tile_n, config.swizzle_rows, stored)
    multiply = make_multiply(config, kind, a_across, b_across)
    fetch = make_fetch(config, tile_k, a_across, b_across)
    produce = make_produce(locate, make_fill(config, tile_k, fetch))
    init_ring, share = make_init_ring(config.stages, consumers), make_share()
    first_row = make_first_row(a_from_registers)
    epilogue, is_masked, is_dead = make_is_dead(epilogue, exchanged)
    allows_vectors, store_tile = make_store_triangle(
        tile_n, out_dtype or dtype, not exchanged, a_from_registers, stored, epilogue,
        chunk_bytes=chunk_bytes,
    )  # fmt: skip

    @gemm_kernel
    def wgmma_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        if exchanged:
            m, n = n, m
            a.batch, b.batch = b.batch, a.batch
            c.row, c.col = c.col, c.row
            out.row, out.col = out.col, out.row

        # --- The ring, this block's tiles ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + full_smem
        empty: int32 = smem + empty_smem
        thread: int32 = cuda.threadIdx.x & 1023
        if thread == 0:
            init_ring(full, empty)
        cuda.syncthreads()
        block: int32 = cuda.blockIdx.x
        blocks: int32 = cuda.gridDim.x
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        tiles: int32 = count_tiles(batch, tiles_m, tiles_n)
        k_tiles: int32 = (k + tile_k - 1) // tile_k
        first: int32 = 0
        if slicing:
            first, k_tiles = share(k_tiles)
            k = min(k, int32((first + k_tiles) * tile_k))
        if is_masked and is_dead(*locate(block, tiles_m, tiles_n)[1:], extra):  # see `Kernel.grid`
            return

        if thread >= consumers * WARPGROUP:
            # --- Producer: one thread ---
            if thread == consumers * WARPGROUP and k_tiles > 0:
                produce(
                    smem, full, empty, block, blocks, tiles, tiles_m, tiles_n,
                    int32(first * tile_k), k, int32(1),
                    tensor_map(a_parameter), a.batch, tensor_map(b_parameter), b.batch,
                )  # fmt: skip
        else:
            # --- Consumers: warpgroups of 64 rows of the tile each ---
            lane: int32 = thread % 32
            chunk_smem: int32 = smem + chunks_smem + thread // 32 * chunk_bytes
            has_vectors = allows_vectors(m, n, beta, c, out)
            index: int32 = block
            stage: int32 = 0
            parity: int32 = 0
            while index < tiles:
                matrix, row, col = locate(index, tiles_m, tiles_n)
                index += blocks
                if slicing:
                    matrix = int32(matrix + int32(cuda.blockIdx.y) * batch)
                # --- Main loop: all k tiles ---
                acc = zeros(float32, tile_n // 2)
                acc, stage, parity = multiply(
                    acc, smem, full, empty, thread, k_tiles, stage, parity
                )
                # --- Epilogue: the producer is already fetching the next tile ---
                top = row + first_row(thread)
                store_tile(
                    acc, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta, c, out,
                    extra,
                )  # fmt: skip

    return wgmma_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    # The first is fastest where its tiles fill the GPU; the others where they do not, to 512^3.
    configs=(
        Config(tile_m=128, tile_n=256, stages=4),
        Config(tile_m=128, tile_n=192, stages=5),
        Config(tile_m=128, tile_n=128, stages=6),
        Config(tile_m=128, tile_n=64, stages=8),
        Config(tile_m=64, tile_n=128, stages=8),
        Config(tile_m=64, tile_n=64, stages=8),
    ),
    dtypes=("float16", "bfloat16", "float32"),
    only_arch=90,
    supports=wgmma_layouts.supports,
    variant=wgmma_layouts.variant,
    block_count=wgmma_layouts.block_count,
    tensor_maps=wgmma_layouts.tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    is_persistent=True,
    order_of_sums="wgmma",
    slices_k=True,
    copies_operands=True,
    takes_triangles=True,
    takes_masks=True,
    takes_pairs=True,
    quantises=True,
)
