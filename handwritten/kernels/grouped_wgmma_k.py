"""Half precision of groups that share out k, in one launch, on Hopper's `wgmma`.

Idea: `wgmma`, with a result for each group as for each member of a batch. The producer asks for
boxes between the ends of the tile's group, by tensor maps that `group_maps` made: what belongs to
the next group arrives as zeros. Results of empty groups are beta * c.
Layout: a (m, k), b (k, n), as `wgmma` takes them; c and out (groups, m, n). `table` is that of
group_maps.py.
Constraints: those of `wgmma`. Both operands are MN-major, as in the gradient of weights: a group
may begin at any k, but TMA reads from multiples of 16 bytes on.
Source: as `wgmma` and `group_maps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.kernels import wgmma
from dxgemm.handwritten.kernels.grouped_wgmma import SHARES, Config
from dxgemm.handwritten.parts import tile_order, wgmma_layouts, wgmma_ring
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.wgmma_ring import WARPGROUP


def supports(problem: Any) -> str | None:
    """Reason why TMA cannot read a and b from any k on; None if it can."""
    reason = wgmma_layouts.supports(problem)
    if reason is None and wgmma_layouts.variant(None, problem)[:2] != ("mn", "mn"):
        reason = "TMA cannot begin at any k of a K-major a or b"
    return reason


def make_kernel(
    config: Config,
    dtype: str,
    a_innermost: str,
    b_innermost: str,
    out_dtype: str | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and one layout, as a Python function to compile.

    Its last parameter holds the operands of the epilogue, then the table.
    """
    from numba import cuda, float32, int32, uint8

    from dxgemm.handwritten.kernels.group_maps import (
        FIRST,
        ITEM_BYTES,
        MAP_BYTES,
        ROW_ITEMS,
        SIZE,
    )
    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import global_address, shared_address, zeros
    from dxgemm.handwritten.parts.unroll import gemm_kernel
    from dxgemm.handwritten.parts.wgmma_store import make_store_tile

    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    consumers = config.consumers
    chunks_smem, chunk_bytes = config.stages * config.stage_bytes, config.chunk_bytes
    full_smem = chunks_smem + consumers * 4 * chunk_bytes
    empty_smem = full_smem + 8 * config.stages
    a_across, b_across = a_innermost == "mn", b_innermost == "mn"
    locate = tile_order.make_locate(tile_m, tile_n, config.swizzle_rows)
    fetch = wgmma_ring.make_fetch(config, tile_k, a_across, b_across)
    fill = wgmma.make_fill(config, tile_k, fetch)
    init_ring = wgmma_ring.make_init_ring(config.stages, config.consumers)
    multiply = wgmma.make_multiply(config, kind, a_across, b_across)
    fused = epilogue if epilogue and epilogue.stages else None
    table_place = len(epilogue.stage_operands) if epilogue else 0
    allows_vectors, store_tile = make_store_tile(
        tile_n, out_dtype or dtype, True, False, fused, chunk_bytes=chunk_bytes
    )

    @gemm_kernel
    def grouped_wgmma_k_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        table = extra[table_place][0]

        # --- The ring, the tiles of all groups ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + full_smem
        empty: int32 = smem + empty_smem
        thread: int32 = cuda.threadIdx.x & 1023
        if thread == 0:
            init_ring(full, empty)
        cuda.syncthreads()
        index: int32 = cuda.blockIdx.x
        blocks: int32 = cuda.gridDim.x
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        tiles: int32 = batch * tiles_m * tiles_n
        stage: int32 = 0
        parity: int32 = 0

        if thread >= consumers * WARPGROUP:
            # --- Producer: one thread ---
            if thread == consumers * WARPGROUP:
                last: int32 = -1
                while index < tiles:
                    group, row, col = locate(index, tiles_m, tiles_n)
                    index += blocks
                    place = group * ROW_ITEMS
                    a_map = global_address(table) + place * ITEM_BYTES
                    b_map = a_map + MAP_BYTES
                    if group != last:
                        hopper.acquire_tensor_map(a_map)
                        hopper.acquire_tensor_map(b_map)
                        last = group
                    first: int32 = table[place + FIRST]
                    end: int32 = first + table[place + SIZE]
                    stage, parity = fill(
                        smem, full, empty, stage, parity, row, col, first, end,
                        a_map, int32(0), b_map, int32(0),
                    )  # fmt: skip
        else:
            # --- Consumers: warpgroups of 64 rows of the tile each ---
            lane: int32 = thread % 32
            warp: int32 = thread // 32
            chunk_smem: int32 = smem + chunks_smem + warp * chunk_bytes
            has_vectors = allows_vectors(m, n, beta, c, out)
            while index < tiles:
                group, row, col = locate(index, tiles_m, tiles_n)
                index += blocks
                size: int32 = table[group * ROW_ITEMS + SIZE]
                k_tiles: int32 = (size + tile_k - 1) // tile_k
                # --- Main loop: the k tiles of the group ---
                acc = zeros(float32, tile_n // 2)
                acc, stage, parity = multiply(
                    acc, smem, full, empty, thread, k_tiles, stage, parity
                )
                # --- Epilogue: the producer is already fetching the next tile ---
                # Where k is 0, even a NaN in alpha is ignored.
                factor: float32 = alpha if size > 0 else 0.0
                top: int32 = row + warp * 16
                store_tile(
                    acc, chunk_smem, lane, group, top, col, m, n, has_vectors, factor, beta, c, out,
                    extra,
                )  # fmt: skip

    return grouped_wgmma_k_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=tuple(SHARES),
    dtypes=("float16", "bfloat16"),
    only_arch=90,
    supports=supports,
    variant=wgmma_layouts.variant,
    tensor_maps=wgmma_layouts.tensor_maps,
    is_persistent=True,
    takes_pairs=True,
)
