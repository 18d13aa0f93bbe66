"""Half precision of problems that share out the rows of a, in one launch, on Hopper's `wgmma`.

Idea: `wgmma`, whose blocks find their tiles in a table as those of `grouped` do. The problems lie
one after the other along m, so one tensor map serves all of them: a tile begins at any row. Rows of
the next problem come along behind the last one of a problem; their sums are not stored. The
producer searches the table, and leaves what it found for the consumers, who never wait for it.
Layout: a (total, k), b (problems, k, n), c and out (total, n), as `wgmma` takes them. The table is
that of group_table.py; its end, an empty problem, says how many tiles there are.
Constraints: those of `wgmma`; k is not 0. a is K-major: a problem may begin at any row, but TMA
reads from multiples of 16 bytes on.
Source: as `wgmma` and `grouped`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.kernels import wgmma
from dxgemm.handwritten.parts import tile_order, wgmma_layouts, wgmma_ring
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.wgmma_ring import WARPGROUP

PLACE_BYTES = 16  # of a tile: its problem, first row and column, and the problem's last row


class Config(WgmmaConfig):
    matrices = 1  # a block computes one tile at a time

    @property
    def places(self) -> int:
        """Places of tiles in shared memory.

        The producer may be ahead by as many tiles as there are stages, and about to write one more
        place, while the consumers still need that of the tile which they store.
        """
        return self.stages + 2

    def smem_bytes(self, dtype: str) -> int:
        return super().smem_bytes(dtype) + self.places * PLACE_BYTES


# Configs, with the fraction of its peak that an SM reaches: an estimate, after those of `wgmma`.
SHARES = {
    Config(tile_m=128, tile_n=256, stages=4): 0.75,
    Config(tile_m=128, tile_n=192, stages=5): 0.71,
    Config(tile_m=128, tile_n=128, stages=6): 0.62,
    Config(tile_m=64, tile_n=64, stages=8): 0.28,
}


def supports(problem: Any) -> str | None:
    """Reason why TMA cannot read rows of a from any one on; None if it can."""
    reason = wgmma_layouts.supports(problem)
    if reason is None and wgmma_layouts.variant(None, problem)[0] != "k":
        reason = "TMA cannot begin at any row of an MN-major a"
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

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.group_table import FIELDS, make_find_problem
    from dxgemm.handwritten.parts.intrinsics import (
        load_shared,
        shared_address,
        store_shared,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel
    from dxgemm.handwritten.parts.wgmma_store import make_store_tile

    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    consumers, places = config.consumers, config.places
    chunks_smem, chunk_bytes = config.stages * config.stage_bytes, config.chunk_bytes
    places_smem = chunks_smem + consumers * 4 * chunk_bytes
    full_smem = places_smem + places * PLACE_BYTES
    empty_smem = full_smem + 8 * config.stages
    a_across, b_across = a_innermost == "mn", b_innermost == "mn"
    a_parameter, b_parameter = wgmma_layouts.TENSOR_MAPS
    first_field = FIELDS.index("first")
    find_problem = make_find_problem()
    locate = tile_order.make_locate(tile_m, tile_n, config.swizzle_rows)
    after = wgmma_ring.make_after(places)
    multiply = wgmma.make_multiply(config, kind, a_across, b_across)
    fetch = wgmma_ring.make_fetch(config, tile_k, a_across, b_across)
    fill = wgmma.make_fill(config, tile_k, fetch)
    init_ring = wgmma_ring.make_init_ring(config.stages, config.consumers)
    fused = epilogue if epilogue and epilogue.stages else None
    table_place = len(epilogue.stage_operands) if epilogue else 0
    allows_vectors, store_tile = make_store_tile(
        tile_n, out_dtype or dtype, True, False, fused, chunk_bytes=chunk_bytes
    )

    @gemm_kernel
    def grouped_wgmma_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        table = extra[table_place][0]

        # --- The ring, the tiles of all problems ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + full_smem
        empty: int32 = smem + empty_smem
        thread: int32 = cuda.threadIdx.x & 1023
        if thread == 0:
            init_ring(full, empty)
        cuda.syncthreads()
        index: int32 = cuda.blockIdx.x
        blocks: int32 = cuda.gridDim.x
        tiles: int32 = table[batch]
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        k_tiles: int32 = (k + tile_k - 1) // tile_k
        place: int32 = 0
        turn: int32 = 0
        stage: int32 = 0
        parity: int32 = 0

        if thread >= consumers * WARPGROUP:
            # --- Producer: one thread ---
            if thread == consumers * WARPGROUP:
                a_map, b_map = hopper.tensor_map(a_parameter), hopper.tensor_map(b_parameter)
                hopper.prefetch_tensor_map(a_map)
                hopper.prefetch_tensor_map(b_map)
                while index < tiles:
                    problem, tile, fields = find_problem(table, int32(batch + 1), index)
                    index += blocks
                    size: int32 = table[fields]
                    first: int32 = table[fields + first_field]
                    tiles_m: int32 = (size + tile_m - 1) // tile_m
                    _, row, col = locate(int32(tile), tiles_m, tiles_n)
                    row = int32(row + first)
                    place_smem: int32 = smem + places_smem + place * PLACE_BYTES
                    store_shared(place_smem, 0, (int32(problem), row, col, int32(first + size)))
                    place, turn = after(place, turn)
                    matrix: int32 = problem if b.batch != 0 else 0
                    stage, parity = fill(
                        smem, full, empty, stage, parity, row, col, int32(0), int32(k),
                        a_map, int32(0), b_map, matrix,
                    )  # fmt: skip
        else:
            # --- Consumers: warpgroups of 64 rows of the tile each ---
            lane: int32 = thread % 32
            warp: int32 = thread // 32
            chunk_smem: int32 = smem + chunks_smem + warp * chunk_bytes
            has_vectors = allows_vectors(m, n, beta, c, out)
            while index < tiles:
                index += blocks
                # --- Main loop: all k tiles ---
                acc = zeros(float32, tile_n // 2)
                acc, stage, parity = multiply(
                    acc, smem, full, empty, thread, k_tiles, stage, parity
                )
                # --- Epilogue: the producer is already fetching the next tile ---
                place_smem = smem + places_smem + place * PLACE_BYTES
                place, turn = after(place, turn)
                problem, row, col, end = load_shared(int32, 4, place_smem, 0)
                top: int32 = row + warp * 16
                store_tile(
                    acc, chunk_smem, lane, problem, top, col, end, n, has_vectors, alpha, beta,
                    c, out, extra,
                )  # fmt: skip

    return grouped_wgmma_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=tuple(SHARES),
    dtypes=("float16", "bfloat16"),
    only_arch=90,
    supports=supports,
    variant=wgmma_layouts.variant,
    tensor_maps=wgmma_layouts.tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    is_persistent=True,
    takes_pairs=True,
)
