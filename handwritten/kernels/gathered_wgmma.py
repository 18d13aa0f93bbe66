"""`grouped_wgmma` with rows of a in any order: row i of the result is made of row rows[i] of a.

Idea: TMA copies boxes of neighbouring rows, so a's come by cp.async: the producer is a whole
warpgroup, whose threads look up the rows of a tile and copy 16 bytes of them at a time, to where
the 128-byte swizzle puts them. b still comes by TMA, for which the first thread asks. A copy is
reported to the stage's barrier when it has arrived, a few stages later.
Layout: a (any, k), rows of k contiguous elements; `rows` (total,); else as `grouped_wgmma`.
Constraints: those of `grouped_wgmma`; k is a multiple of 8. Rows outside of a count as the nearest.
Source: as `grouped_wgmma`; PTX ISA, "cp.async" and "fence.proxy.async"; NVIDIA's CUTLASS,
`KernelCpAsyncWarpSpecializedCooperative`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten import wgmma
from dxgemm.handwritten.kernels import grouped_wgmma
from dxgemm.handwritten.kernels.grouped_wgmma import PLACE_BYTES
from dxgemm.handwritten.parts import wgmma_layouts, wgmma_ring
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, SWIZZLE_ROWS, WARPGROUP

PIECE_BYTES = 16  # of a row, that a thread copies at a time
PIECES = ROW_BYTES // PIECE_BYTES
LINES = WARPGROUP // PIECES  # rows that the producer copies at a time
PIECE_ITEMS = 8


class Config(grouped_wgmma.Config):
    """Config of `grouped_wgmma` with a producer of four warps."""

    @property
    def late(self) -> int:
        """Stages that are filled after one before that one is waited for, and reported.

        The consumers hold two stages. One is left to fill while a report is due.
        """
        return self.stages - 3

    @property
    def threads(self) -> int:
        return (self.consumers + 1) * WARPGROUP


# Configs, with the fraction of its peak that an SM reaches.
SHARES = {
    Config(config.tile_m, config.tile_n, config.stages): share
    for config, share in grouped_wgmma.SHARES.items()
}


def supports(problem: Any) -> str | None:
    """Reason why the rows of a cannot be gathered; None if they can."""
    reason = wgmma_layouts.supports(problem)
    if reason is None and (problem.a.col != 1 or problem.k % PIECE_ITEMS):
        reason = f"rows of a must be contiguous, and k ({problem.k}) a multiple of {PIECE_ITEMS}"
    return reason


def tensor_maps(config: Config, problem: Any) -> tuple[Any, ...]:
    """The map of b."""
    return wgmma_layouts.tensor_maps(config, problem)[1:]


def make_kernel(
    config: Config,
    dtype: str,
    a_innermost: str,
    b_innermost: str,
    out_dtype: str | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and one layout, as a Python function to compile.

    Its last parameter holds the operands of the epilogue, then the table, `rows`, and the number of
    rows of a.
    """
    from numba import cuda, float32, int32, int64, uint8

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.group_table import FIELDS, make_find_problem
    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        copy_async_part,
        global_address,
        load_shared,
        shared_address,
        store_shared,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range
    from dxgemm.handwritten.parts.wgmma_store import make_store_tile

    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    consumers, stages, places = config.consumers, config.stages, config.places
    chunks_smem, chunk_bytes = stages * config.stage_bytes, config.chunk_bytes
    places_smem = chunks_smem + consumers * 4 * chunk_bytes
    full_smem = places_smem + places * PLACE_BYTES
    empty_smem = full_smem + 8 * stages
    a_bytes, stage_bytes = tile_m * ROW_BYTES, config.stage_bytes
    b_across, b_parameter = b_innermost == "mn", wgmma_layouts.TENSOR_MAPS[1]
    passes, most_late = tile_m // LINES, config.late
    first_field = FIELDS.index("first")
    find_problem = make_find_problem()
    locate = wgmma_ring.make_locate(tile_m, tile_n, config.swizzle_rows)
    after_place = wgmma_ring.make_after(places)
    after = wgmma_ring.make_after(stages)
    multiply = wgmma.make_multiply(config, kind, False, b_across)
    fetch_b = wgmma_ring.make_fetch_operand(tile_n, tile_k, b_across)
    fused = epilogue if epilogue and epilogue.stages else None
    table_place = len(epilogue.stage_operands) if epilogue else 0
    allows_vectors, store_tile = make_store_tile(tile_n, out_dtype or dtype, True, False, fused)

    @gemm_kernel
    def gathered_wgmma_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        table, rows = extra[table_place][0], extra[table_place + 1][0]
        a_rows = extra[table_place + 2]

        # --- The ring, the tiles of all problems ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + full_smem
        empty: int32 = smem + empty_smem
        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        if thread == 0:
            for slot in static_range(stages):
                hopper.init_barrier(full + 8 * slot, 1 + 4)  # TMA's bytes, and the producer's warps
                hopper.init_barrier(empty + 8 * slot, consumers)
            hopper.publish_barriers()
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
            # --- Producer: a warpgroup for a, its first thread for b ---
            member: int32 = thread - consumers * WARPGROUP
            line: int32 = member // PIECES
            piece: int32 = member % PIECES
            swizzled: int32 = piece ^ (line % SWIZZLE_ROWS)
            a_smem: int32 = smem + line * ROW_BYTES + swizzled * PIECE_BYTES
            a_begin = global_address(a.data) + piece * PIECE_BYTES
            b_map = hopper.tensor_map(b_parameter)
            reported: int32 = 0  # the next stage that has arrived
            round_trip: int32 = 0
            late: int32 = 0
            while index < tiles:
                problem, tile, fields = find_problem(table, int32(batch + 1), index)
                index += blocks
                size: int32 = table[fields]
                first: int32 = table[fields + first_field]
                tiles_m: int32 = (size + tile_m - 1) // tile_m
                _, row, col = locate(int32(tile), tiles_m, tiles_n)
                row = int32(row + first)
                end: int32 = first + size
                matrix: int32 = problem if b.batch != 0 else 0
                if member == 0:
                    place_smem: int32 = smem + places_smem + place * PLACE_BYTES
                    store_shared(place_smem, 0, (int32(problem), row, col, end))
                    place, turn = after_place(place, turn)
                sources = ()
                for step in static_range(passes):
                    # Rows behind the last of the problem repeat it; they are not stored.
                    source = int64(rows[min(int32(row + line + step * LINES), int32(end - 1))])
                    source = min(max(source, int64(0)), int64(a_rows - 1))
                    sources = sources + (a_begin + source * a.row * 2,)
                depth: int32 = 0
                while depth < k:
                    barrier: int32 = full + 8 * stage
                    target: int32 = smem + stage * stage_bytes
                    hopper.wait_barrier(empty + 8 * stage, parity ^ 1)
                    if member == 0:
                        hopper.expect_bytes(barrier, stage_bytes - a_bytes)
                        fetch_b(int32(target + a_bytes), barrier, col, depth, b_map, matrix)
                    target = a_smem + stage * stage_bytes
                    inside: int32 = PIECE_BYTES if depth + piece * PIECE_ITEMS < k else 0
                    for step in static_range(passes):
                        copy_async_part(
                            16, target, step * LINES * ROW_BYTES, sources[step] + depth * 2, inside
                        )
                    commit_copies()
                    depth += tile_k
                    stage, parity = after(stage, parity)
                    late += 1
                    if late > most_late:
                        wait_copies(most_late)
                        hopper.publish_shared()
                        cuda.syncwarp()
                        if lane == 0:
                            hopper.arrive(full + 8 * reported)
                        reported, round_trip = after(reported, round_trip)
                        late -= 1
            wait_copies(0)
            hopper.publish_shared()
            cuda.syncwarp()
            while late > 0:
                if lane == 0:
                    hopper.arrive(full + 8 * reported)
                reported, round_trip = after(reported, round_trip)
                late -= 1
        else:
            # --- Consumers: warpgroups of 64 rows of the tile each ---
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
                place, turn = after_place(place, turn)
                problem, row, col, end = load_shared(int32, 4, place_smem, 0)
                top: int32 = row + warp * 16
                store_tile(
                    acc, chunk_smem, lane, problem, top, col, end, n, has_vectors, alpha, beta,
                    c, out, extra,
                )  # fmt: skip

    return gathered_wgmma_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=tuple(SHARES),
    dtypes=("float16", "bfloat16"),
    only_arch=90,
    supports=supports,
    variant=wgmma_layouts.variant,
    tensor_maps=tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS[1:],
    is_persistent=True,
    takes_pairs=True,
)
