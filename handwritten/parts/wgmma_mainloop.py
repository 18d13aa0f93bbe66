"""The main loop of `wgmma` for tf32 with a in registers.

A stage is a tile of a, then a tile of b, each ROW_BYTES deep along k. A K-major operand is rows of
ROW_BYTES, one for each row of a or column of b. An MN-major operand comes in panels: rows of
ROW_BYTES along m or n, one for each k. TMA permutes the 16-byte pieces of every eight rows (the
128-byte swizzle), as wgmma expects them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.wgmma_ring import (
    ITEM_BYTES,
    ROW_BYTES,
    STEPS,
    SWIZZLE_ROWS,
    WARPGROUP,
    WARPGROUP_ROWS,
    make_after,
)


def make_multiply_from_registers(config: Any, b_across: bool) -> Callable[..., Any]:
    """The device function multiply for tf32 with an MN-major a, see `wgmma.make_multiply`.

    Args:
        config: a `WgmmaConfig`.
        b_across: True for an MN-major b.
    """
    from numba import cuda, float32, int32

    from dxgemm.handwritten.parts.hopper import (
        arrive,
        begin_wgmma,
        commit_wgmma,
        descriptor_halves,
        wait_barrier,
        wait_wgmma_of,
        wgmma_from_registers,
    )  # fmt: skip
    from dxgemm.handwritten.parts.intrinsics import load_shared, zeros
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = "tf32"
    stage_bytes, a_bytes = config.stage_bytes, config.tile_m * ROW_BYTES
    panel_bytes = ROW_BYTES // ITEM_BYTES[kind] * ROW_BYTES
    b_step = (panel_bytes if b_across else ROW_BYTES) // STEPS // 16
    stage_step = stage_bytes // 16
    low, high = descriptor_halves(panel_bytes, SWIZZLE_ROWS * ROW_BYTES)
    frag_step = panel_bytes // STEPS
    after = make_after(config.stages)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def multiply_from_registers(acc, smem, full, empty, thread, k_tiles, stage, parity):
        """`multiply` with an MN-major a in registers, read while the step before is multiplied.

        A thread reads two neighbouring rows at a time. The rows of a warp are two runs of eight, 16
        apart, so that the 16 lanes that are served together meet all banks.
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

    return multiply_from_registers


def make_first_row(a_from_registers: bool) -> Callable[..., Any]:
    """A device function: thread -> the first of its warp's 16 rows of the tile."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def first_row(thread):
        warp = int32(thread // 32)
        if a_from_registers:
            return int32(warp // 2 * 32 + warp % 2 * 8)
        return int32(warp * 16)

    return first_row
