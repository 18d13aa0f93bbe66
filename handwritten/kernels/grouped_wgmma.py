"""Half precision of problems that share out the rows of a, in one launch, on Hopper's `wgmma`.

Idea: `wgmma`, whose blocks find their tiles in a table as those of `grouped` do. The problems lie
one after the other along m, so one tensor map serves all of them: a tile begins at any row. Rows of
the next problem come along behind the last one of a problem; their sums are not stored.
Layout: a (total, k), b (problems, k, n), c and out (total, n), as `wgmma` takes them. The table is
that of group_table.py; its end, an empty problem, says how many tiles there are.
Constraints: those of `wgmma`.
Source: as `wgmma` and `grouped`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten import wgmma
from dxgemm.handwritten.parts import wgmma_layouts, wgmma_ring
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, WARPGROUP


class Config(WgmmaConfig):
    tile_k = ROW_BYTES // 2  # of 16-bit elements
    matrices = 1  # a block computes one tile at a time


# Configs, with the fraction of its peak that an SM reaches: an estimate, after those of `wgmma`.
SHARES = {
    Config(tile_m=128, tile_n=256, stages=4): 0.75,
    Config(tile_m=128, tile_n=128, stages=6): 0.62,
    Config(tile_m=64, tile_n=64, stages=8): 0.28,
}


def make_locate(
    tile_m: int, tile_n: int, swizzle_rows: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The device functions find_tile, and locate_rows for the producer of `wgmma`."""
    from numba import int32

    from dxgemm.handwritten.parts.group_table import FIELDS, make_find_problem
    from dxgemm.handwritten.parts.intrinsics import device_function

    find_problem = make_find_problem()
    locate = wgmma_ring.make_locate(tile_m, tile_n, swizzle_rows)
    a_start = FIELDS.index("a_start")

    def find_tile(index, table, problems, tiles_n):
        """Problem of a tile, the place of its numbers, and the first row and column of the tile."""
        problem, place, fields = find_problem(table, problems, index)
        tiles_m = int32((table[fields] + tile_m - 1) // tile_m)
        _, row, col = locate(int32(place), tiles_m, tiles_n)
        return problem, fields, row, col

    find_tile = device_function(find_tile)

    def locate_rows(index, group, tiles_n):
        """Matrix of b, first row of a and first column of b of a tile."""
        table, problems, a_row = group
        problem, fields, row, col = find_tile(index, table, problems, tiles_n)
        return problem, int32(table[fields + a_start] // a_row + row), col

    return find_tile, device_function(locate_rows)


def make_kernel(
    config: Config,
    dtype: str,
    a_innermost: str,
    b_innermost: str,
    out_dtype: str | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and one layout, as a Python function to compile.

    Its last parameter holds the table, and alpha and beta of each problem.
    """
    from numba import cuda, float32, int32, int64, uint8

    from dxgemm.handwritten.parts.group_table import FIELDS
    from dxgemm.handwritten.parts.hopper import tensor_map
    from dxgemm.handwritten.parts.intrinsics import shared_address, zeros
    from dxgemm.handwritten.parts.unroll import gemm_kernel
    from dxgemm.handwritten.parts.wgmma_store import make_store_tile

    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    consumers = config.consumers
    chunks_smem, chunk_bytes = config.stages * config.stage_bytes, config.chunk_bytes
    full_smem = chunks_smem + consumers * 4 * chunk_bytes
    empty_smem = full_smem + 8 * config.stages
    a_across, b_across = a_innermost == "mn", b_innermost == "mn"
    a_parameter, b_parameter = wgmma_layouts.TENSOR_MAPS
    c_start, out_start = FIELDS.index("c_start"), FIELDS.index("out_start")
    find_tile, locate_rows = make_locate(tile_m, tile_n, config.swizzle_rows)
    multiply = wgmma.make_multiply(config, kind, a_across, b_across)
    fetch = wgmma_ring.make_fetch(config, tile_k, a_across, b_across)
    init_ring, produce = wgmma.make_ring(config, tile_k, locate_rows, fetch)
    allows_vectors, store_tile = make_store_tile(tile_n, out_dtype or dtype, True, False)

    @gemm_kernel
    def grouped_wgmma_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        table, scalars = extra[0][0], extra[1][0]

        # --- The ring, the tiles of all problems ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + full_smem
        empty: int32 = smem + empty_smem
        thread: int32 = cuda.threadIdx.x & 1023
        if thread == 0:
            init_ring(full, empty)
        cuda.syncthreads()
        block: int32 = cuda.blockIdx.x
        blocks: int32 = cuda.gridDim.x
        problems: int32 = batch + 1
        tiles: int32 = table[batch]
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        k_tiles: int32 = (k + tile_k - 1) // tile_k

        if thread >= consumers * WARPGROUP:
            # --- Producer: one thread ---
            if thread == consumers * WARPGROUP and k_tiles > 0:
                group = table, problems, max(int64(a.row), int64(1))
                produce(
                    smem, full, empty, block, blocks, tiles, group, tiles_n, int32(k), int32(1),
                    tensor_map(a_parameter), a.batch, tensor_map(b_parameter), b.batch,
                )  # fmt: skip
        else:
            # --- Consumers: warpgroups of 64 rows of the tile each ---
            lane: int32 = thread % 32
            warp: int32 = thread // 32
            chunk_smem: int32 = smem + chunks_smem + warp * chunk_bytes
            index: int32 = block
            stage: int32 = 0
            parity: int32 = 0
            while index < tiles:
                problem, fields, row, col = find_tile(index, table, problems, tiles_n)
                index += blocks
                # The problem counts as matrix 1 of a batch: its start is the stride.
                rows: int32 = table[fields]
                c.batch, out.batch = table[fields + c_start], table[fields + out_start]
                alpha, beta = scalars[2 * problem], scalars[2 * problem + 1]
                # --- Main loop: all k tiles ---
                acc = zeros(float32, tile_n // 2)
                acc, stage, parity = multiply(
                    acc, smem, full, empty, thread, k_tiles, stage, parity
                )
                # --- Epilogue: the producer is already fetching the next tile ---
                top: int32 = row + warp * 16
                has_vectors = allows_vectors(rows, n, beta, c, out)
                store_tile(
                    acc, chunk_smem, lane, int32(1), top, col, rows, n, has_vectors, alpha, beta,
                    c, out, extra,
                )  # fmt: skip

    return grouped_wgmma_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=tuple(SHARES),
    dtypes=("float16", "bfloat16"),
    only_arch=90,
    supports=wgmma_layouts.supports,
    variant=wgmma_layouts.variant,
    tensor_maps=wgmma_layouts.tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    is_persistent=True,
)
