"""The main loop of `wgmma`, from both ends of the ring of stages: the producer's and a consumer's.

A stage is a tile of a, then a tile of b, each ROW_BYTES deep along k. An operand that lies along k
is rows of ROW_BYTES, one for each row of a or column of b. One that lies across k comes in panels:
rows of ROW_BYTES along m or n, one for each k. TMA permutes the 16-byte pieces of
every eight rows (the 128-byte swizzle), as wgmma expects them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ROW_BYTES = 128  # of a row in shared memory: what the swizzle spans, and the depth of a stage
SWIZZLE_ROWS = 8  # rows that the swizzle permutes together
WARPGROUP = 128
WARPGROUP_ROWS = 64  # of the result: what wgmma computes
STEPS = 4  # wgmma takes a quarter of a stage at a time
ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1}  # by kind


def make_mainloop(
    config: Any, kind: str, a_across: bool, b_across: bool
) -> tuple[Callable[..., Any], ...]:
    """The device functions fetch, multiply and first_row.

    Args:
        config: of `wgmma`.
        kind: "f16", "bf16", "tf32" or "s8".
        a_across, b_across: whether the operands lie across k. tf32 takes such an a from registers;
            s8 takes none.
    """
    from numba import cuda, float32, int32

    from dxgemm.handwritten.parts.hopper import (
        arrive,
        begin_wgmma,
        commit_wgmma,
        copy_box,
        descriptor_halves,
        wait_barrier,
        wait_wgmma,
        wait_wgmma_of,
        wgmma,
        wgmma_from_registers,
    )  # fmt: skip
    from dxgemm.handwritten.parts.intrinsics import load_shared, zeros
    from dxgemm.handwritten.parts.unroll import static_range, unroll
    from dxgemm.handwritten.parts.wgmma_ring import make_after, make_corner

    a_from_registers = kind == "tf32" and a_across
    tile_m, tile_n, stages = config.tile_m, config.tile_n, config.stages
    stage_bytes, a_bytes = config.stage_bytes, tile_m * ROW_BYTES
    tile_k = ROW_BYTES // ITEM_BYTES[kind]
    panel_bytes = tile_k * ROW_BYTES
    a_boxes = tile_m // tile_k if a_across else 1
    b_boxes = tile_n // tile_k if b_across else 1
    # Descriptors count in 16 bytes.
    a_step = (panel_bytes if a_across else ROW_BYTES) // STEPS // 16
    b_step = (panel_bytes if b_across else ROW_BYTES) // STEPS // 16
    stage_step = stage_bytes // 16
    low, high = descriptor_halves(panel_bytes, SWIZZLE_ROWS * ROW_BYTES)
    frag_step = panel_bytes // STEPS
    after, corner = make_after(stages), make_corner()

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def fetch(stage_smem, barrier, row, col, depth, a_map, a_matrix, b_map, b_matrix):
        """Have TMA fill a stage."""
        for box in static_range(a_boxes):
            place = corner(a_across, row + box * tile_k, depth, a_matrix)
            copy_box(int32(stage_smem + box * panel_bytes), a_map, barrier, place)
        b_smem: int32 = stage_smem + a_bytes
        for box in static_range(b_boxes):
            place = corner(b_across, col + box * tile_k, depth, b_matrix)
            copy_box(int32(b_smem + box * panel_bytes), b_map, barrier, place)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def multiply(acc, smem, full, empty, thread, k_tiles, stage, parity):
        """acc + a @ b over all k tiles, both out of shared memory; the stage after the last."""
        member: int32 = thread % WARPGROUP
        a_desc: int32 = low + (smem + thread // WARPGROUP * (WARPGROUP_ROWS * ROW_BYTES)) // 16
        b_desc: int32 = low + (smem + a_bytes) // 16
        previous, left = stage, k_tiles
        while left > 0:
            wait_barrier(int32(full + 8 * stage), parity)
            a_at: int32 = a_desc + stage * stage_step
            b_at: int32 = b_desc + stage * stage_step
            begin_wgmma()
            for step in static_range(STEPS):
                a_part: int32 = a_at + step * a_step
                b_part: int32 = b_at + step * b_step
                acc = wgmma(kind, high, acc, a_part, b_part, a_across, b_across)
            commit_wgmma()
            wait_wgmma(1)  # the k tile before is done, this one goes on
            if left < k_tiles and member == 0:
                arrive(int32(empty + 8 * previous))
            previous, left = stage, int32(left - 1)
            stage, parity = after(stage, parity)
        acc = wait_wgmma_of(0, acc)
        if k_tiles > 0 and member == 0:
            arrive(int32(empty + 8 * previous))
        return acc, stage, parity

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def multiply_from_registers(acc, smem, full, empty, thread, k_tiles, stage, parity):
        """`multiply` with a, which lies across k, in registers, read while the last ones multiply.

        A thread reads two neighbouring rows at a time. The rows of a warp are two runs of eight, 16
        apart: so the 16 lanes that are served together meet all banks.
        """
        member: int32 = thread % WARPGROUP
        warp: int32 = member // 32
        lane: int32 = thread % 32
        piece: int32 = warp % 2 * 2 + lane // 16 + lane // 8 % 2 * 4  # of 16 bytes in a row
        frags: int32 = smem + thread // WARPGROUP * (WARPGROUP_ROWS * ROW_BYTES)
        frags = frags + warp // 2 * panel_bytes + lane // 4 % 2 * 8
        frags = frags + lane % 4 * ROW_BYTES + (piece ^ (lane % 4)) * 16
        b_desc: int32 = low + (smem + a_bytes) // 16
        previous, left = stage, k_tiles
        last_frag = zeros(float32, 4)
        while left > 0:
            wait_barrier(int32(full + 8 * stage), parity)
            upper: int32 = frags + stage * stage_bytes
            b_at: int32 = b_desc + stage * stage_step
            lower: int32 = upper ^ 64  # four rows on, the swizzle exchanges the halves of a row
            for step in static_range(STEPS):
                a_frag = load_shared(float32, 2, upper, step * frag_step) + load_shared(
                    float32, 2, lower, step * frag_step + 4 * ROW_BYTES
                )
                begin_wgmma()
                b_part: int32 = b_at + step * b_step
                acc = wgmma_from_registers(kind, high, acc, a_frag, b_part, b_across)
                commit_wgmma()
                wait_wgmma_of(1, last_frag)  # the step before is done, this one goes on
                last_frag = a_frag
                if step == 0 and left < k_tiles and member == 0:
                    arrive(int32(empty + 8 * previous))
            previous, left = stage, int32(left - 1)
            stage, parity = after(stage, parity)
        acc = wait_wgmma_of(0, acc)
        if k_tiles > 0 and member == 0:
            arrive(int32(empty + 8 * previous))
        return acc, stage, parity

    @cuda.jit(device=True, forceinline=True)
    def first_row(thread):
        """Of a warp's 16 rows of the tile, the first."""
        warp = int32(thread // 32)
        if a_from_registers:
            return int32(warp // 2 * 32 + warp % 2 * 8)
        return int32(warp * 16)

    return fetch, multiply_from_registers if a_from_registers else multiply, first_row
