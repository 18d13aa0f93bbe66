"""Main loop by wgmma that promotes the sums of each stage: the `multiply` of `wgmma_float8`.

Hopper's tensor core aligns the products of float8 to the largest and keeps about 14 bits of their
sum. So it sums a stage alone, 128 of k, and ordinary instructions add that to sums in float32,
multiplied by the scales of the stage's blocks if there are any. Meanwhile the block's other
warpgroup, or the next stage, keeps the tensor core busy. Warpgroups get out of step by themselves:
barriers that make them take turns cost 4 % on an H200.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3.2, "Increasing
Accumulation Precision".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.block_scales import BLOCK_K, BlockScales
from dxgemm.handwritten.parts.left_bytes import make_left_bytes
from dxgemm.handwritten.parts.unroll import device, static_range
from dxgemm.handwritten.parts.wgmma_mainloop import KINDS, make_free
from dxgemm.handwritten.parts.wgmma_ring import (
    ROW_BYTES,
    STEPS,
    SWIZZLE_ROWS,
    WARPGROUP,
    WARPGROUP_ROWS,
    make_after,
)


def make_promote(items: int, scales: BlockScales | None) -> Callable[..., Any]:
    """Make a device function: (totals, sums, scales of rows, of columns) -> new totals.

    Args:
        items: sums of a thread, in the layout of `wgmma`.
        scales: how scales belong to them; None to add the sums as they are.
    """
    from numba import float32

    from dxgemm.handwritten.parts.intrinsics import add_scaled

    is_scaled = scales is not None
    width, count = (scales.width, scales.columns) if scales else (1, 1)
    panel_items = width // 2

    @device
    def promote(totals, sums, rows, columns):
        promoted = ()
        if not is_scaled:
            promoted = add_scaled(totals, sums, float32(1))
        else:
            upper, lower = rows
            for panel in static_range(items // panel_items):
                x, y = columns[count * panel], columns[count * panel + count - 1]
                some = totals[panel * panel_items : (panel + 1) * panel_items]
                more = sums[panel * panel_items : (panel + 1) * panel_items]
                factors = upper * x, upper * y, lower * x, lower * y
                promoted = promoted + add_scaled(some, more, factors)
        return promoted

    return promote


def make_multiply_stage(items: int, kind: str, high: int, a_across: bool) -> Callable[..., Any]:
    """Make a device function: (a, b) -> the sums of a stage, whose products it issues.

    b is a descriptor, and a too, or registers of all steps.
    """
    from numba import int32

    from dxgemm.handwritten.parts.hopper import commit_wgmma, wgmma, wgmma_anew

    step = ROW_BYTES // STEPS // 16  # addresses in descriptors are in units of 16 bytes

    @device
    def multiply_stage(a, b):
        sums = ()
        for i in static_range(STEPS):
            b_part: int32 = b + i * step
            if a_across:
                a_part = a[4 * i : 4 * i + 4]
            else:
                a_part = int32(a + i * step)
            if i == 0:
                sums = wgmma_anew(kind, high, items, a_part, b_part, False, False)
            else:
                sums = wgmma(kind, high, sums, a_part, b_part, False, False)
        commit_wgmma()
        return sums

    return multiply_stage


def make_multiply(
    config: Any, dtype: str, a_across: bool, scales: BlockScales | None = None, in_flight: int = 1
) -> Callable[..., Any]:
    """`wgmma_mainloop.make_multiply` for bytes, which promotes the sums of each stage.

    With scales it also takes the tile and the `Result`.

    Args:
        config: a `WgmmaConfig` whose warpgroups share each tile.
        dtype: dtype of a and b, of float8.
        a_across: True for an MN-major a, which goes through registers; b is K-major.
        scales: device functions that bring the scales of blocks; None without any.
        in_flight: stages, 1 or 2, that are issued before the first one's sums are promoted.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import zeros

    is_paired, is_scaled = config.is_paired, scales is not None
    items = config.tile_n // 2
    begin_scales, take_scales = (scales.begin, scales.take) if scales else (None, None)
    begin_left, read_left = make_left_bytes()
    free, promote, after = make_free(config), make_promote(items, scales), make_after(config.stages)
    a_bytes, stage_bytes = config.tile_m * ROW_BYTES, config.stage_bytes
    chunks_smem, chunk_bytes = config.stages * stage_bytes, config.chunk_bytes
    low, high = hopper.descriptor_halves(ROW_BYTES * ROW_BYTES, SWIZZLE_ROWS * ROW_BYTES)
    multiply_stage = make_multiply_stage(items, KINDS[dtype], high, a_across)

    @device
    def multiply_tile(smem, full, empty, thread, k_tiles, stage, parity, tile, result):
        member: int32 = thread % WARPGROUP
        group: int32 = thread // WARPGROUP
        a_smem: int32 = smem + group * (WARPGROUP_ROWS * ROW_BYTES)
        a_desc: int32 = low + a_smem // 16
        b_desc: int32 = low + (smem + a_bytes) // 16
        if is_paired:  # the bits above those of an address hold the block's rank
            a_desc = low + (a_smem // 16 & 0x3FFF)
            b_desc = low + ((smem + a_bytes) // 16 & 0x3FFF)
        left_places = begin_left(smem, thread)
        totals = zeros(float32, items)
        places = ()
        block: int32 = tile.first_k // BLOCK_K
        if is_scaled:
            warp_smem: int32 = smem + chunks_smem + thread // 32 * chunk_bytes
            places = begin_scales(tile, thread, warp_smem, k_tiles, result)
        previous, first = stage, stage
        left: int32 = k_tiles
        while left > 0:
            # --- A stage, or two: of an odd number, the last one is multiplied twice ---
            sums = ()
            for number in static_range(in_flight):
                if number > 0 and left > 1:
                    stage, parity = after(stage, parity)
                hopper.wait_barrier(full + 8 * stage, parity)
                offset: int32 = stage * stage_bytes
                if a_across:
                    a = read_left(left_places, offset)
                else:
                    a = int32(a_desc + offset // 16)
                hopper.begin_wgmma()
                sums = sums + multiply_stage(a, int32(b_desc + offset // 16))
                if number == 0:
                    # All warps are past the fence, so that all have read the stages before.
                    if left < k_tiles and member == 0:
                        free(empty + 8 * previous)
                        if in_flight > 1:
                            free(empty + 8 * first)
                    first = stage
            # --- Their sums, one by one ---
            for number in static_range(in_flight):
                if number == 0 or left > number:
                    rows, columns = (), ()
                    if is_scaled:
                        rows, columns = take_scales(places, thread, block, int32(left - number))
                    some = sums[number * items : number * items + items]
                    some = hopper.wait_wgmma_of(in_flight - 1 - number, some)
                    totals = promote(totals, some, rows, columns)
                    block += 1
            if a_across:
                hopper.wait_wgmma_of(0, a)  # until here, these registers are read
            elif in_flight > 1:
                hopper.wait_wgmma(0)
            previous = stage
            left -= in_flight
            stage, parity = after(stage, parity)
        if k_tiles > 0 and member == 0:
            free(empty + 8 * previous)
            if in_flight > 1 and k_tiles % 2 == 0:
                free(empty + 8 * first)
        return totals, stage, parity

    return multiply_tile
