"""Main loop by wgmma that promotes the sums of each stage: the `multiply` of `wgmma_float8`.

Hopper's tensor core aligns the products of float8 to the largest and keeps about 14 bits of their
sum. So it sums a stage alone, 128 of k, and ordinary instructions add that to sums in float32,
multiplied by the scales of the stage's blocks if there are any. Meanwhile the next stage keeps the
tensor core busy, if a thread has registers for two, or else the block's other warpgroup. These get
out of step by themselves: barriers that make them take turns cost 4 % on an H200.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3.2, "Increasing
Accumulation Precision".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.block_scales import BlockScales
from dxgemm.handwritten.parts.left_bytes import make_left_bytes
from dxgemm.handwritten.parts.unroll import device, static_range
from dxgemm.handwritten.parts.wgmma_mainloop import KINDS, make_free, make_origins
from dxgemm.handwritten.parts.wgmma_ring import (
    ROW_BYTES,
    STEPS,
    SWIZZLE_ROWS,
    WARPGROUP,
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


def make_issue(config: Any, kind: str, a_across: bool) -> Callable[..., Any]:
    """Make a device function that issues the products of a stage as soon as it is full.

    It takes the descriptors of a and b and the places of `make_left_bytes`, all of the first stage,
    the barriers, the stage and its parity. It returns the sums, and the registers of a.
    """
    from numba import int32

    from dxgemm.handwritten.parts import hopper

    items, stage_bytes = config.tile_n // 2, config.stage_bytes
    _, high = hopper.descriptor_halves(ROW_BYTES * ROW_BYTES, SWIZZLE_ROWS * ROW_BYTES)
    step = ROW_BYTES // STEPS // 16  # addresses in descriptors are in units of 16 bytes
    a_step = ROW_BYTES // STEPS * ROW_BYTES  # bytes of a panel
    _, read_left = make_left_bytes()

    @device
    def issue(origin, full, stage, parity):
        hopper.wait_barrier(int32(full + 8 * stage), parity)
        a_desc, b_desc, left_places = origin
        offset: int32 = stage * stage_bytes
        a, sums = (), ()
        for i in static_range(STEPS):
            b_part: int32 = b_desc + offset // 16 + i * step
            if a_across:  # read while the step before is multiplied
                a_part = read_left(left_places, int32(offset + i * a_step))
                a = a + a_part
            else:
                a_part = int32(a_desc + offset // 16 + i * step)
            if a_across or i == 0:
                hopper.begin_wgmma()
            if i == 0:
                sums = hopper.wgmma_anew(kind, high, items, a_part, b_part, False, False)
            else:
                sums = hopper.wgmma(kind, high, sums, a_part, b_part, False, False)
        hopper.commit_wgmma()
        return sums, a

    return issue


def make_settle(config: Any, a_across: bool, pending: int) -> Callable[..., Any]:
    """Make a device function that waits for the sums of a stage: it returns them.

    It takes what `issue` returned, the barrier that frees the stage, and the thread. After it,
    `pending` stages are in flight.
    """
    from dxgemm.handwritten.parts import hopper

    free = make_free(config)

    @device
    def settle(issued, barrier, thread):
        sums, a = issued
        sums = hopper.wait_wgmma_of(pending, sums)
        if a_across:
            hopper.wait_wgmma_of(pending, a)  # until here, these registers are read
        if thread % WARPGROUP == 0:
            free(barrier)
        return sums

    return settle


def make_multiply(
    config: Any, dtype: str, a_across: bool, scales: BlockScales | None = None, ahead: bool = False
) -> Callable[..., Any]:
    """`wgmma_mainloop.make_multiply` for bytes, which promotes the sums of each stage.

    With scales it also takes the tile and the `Result`.

    Args:
        config: a `WgmmaConfig` whose warpgroups share each tile.
        dtype: dtype of a and b, of float8.
        a_across: True for an MN-major a, which goes through registers; b is K-major.
        scales: device functions that bring the scales of blocks; None without any.
        ahead: True to issue a stage before the sums of the one before it are promoted, which takes
            twice the registers for them; not with scales.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import zeros

    items, is_scaled = config.tile_n // 2, scales is not None
    begin_scales, fetch, take = scales[:3] if scales else (None, None, None)
    issue, begin_left = make_issue(config, KINDS[dtype], a_across), make_left_bytes()[0]
    settle, settle_last = (make_settle(config, a_across, pending) for pending in (1, 0))
    promote, after = make_promote(items, scales), make_after(config.stages)
    chunks_smem, chunk_bytes = config.stages * config.stage_bytes, config.chunk_bytes
    low, _ = hopper.descriptor_halves(ROW_BYTES * ROW_BYTES, SWIZZLE_ROWS * ROW_BYTES)
    origins = make_origins(config, low)

    @device
    def multiply_tile(smem, full, empty, thread, k_tiles, stage, parity, tile, result):
        origin = origins(smem, thread) + (begin_left(smem, thread),)
        totals = zeros(float32, items)
        rows, columns = (), ()
        left: int32 = k_tiles
        if ahead and k_tiles > 0:
            # Two stages per turn, the first of which is in flight. No branch joins paths with
            # products in flight: the compiler would wait for each of them.
            first, freed = issue(origin, full, stage, parity), int32(empty + 8 * stage)
            stage, parity = after(stage, parity)
            while True:
                if left == 1:
                    totals = promote(totals, settle_last(first, freed, thread), rows, columns)
                    break
                second, next_freed = issue(origin, full, stage, parity), int32(empty + 8 * stage)
                stage, parity = after(stage, parity)
                totals = promote(totals, settle(first, freed, thread), rows, columns)
                if left == 2:
                    totals = promote(totals, settle_last(second, next_freed, thread), rows, columns)
                    break
                first, freed = issue(origin, full, stage, parity), int32(empty + 8 * stage)
                stage, parity = after(stage, parity)
                totals = promote(totals, settle(second, next_freed, thread), rows, columns)
                left -= 2
        elif not is_scaled:
            while left > 0:
                issued, freed = issue(origin, full, stage, parity), int32(empty + 8 * stage)
                stage, parity = after(stage, parity)
                totals = promote(totals, settle_last(issued, freed, thread), rows, columns)
                left -= 1
        elif k_tiles > 0:
            warp_smem: int32 = smem + chunks_smem + thread // 32 * chunk_bytes
            places = begin_scales(tile, thread, warp_smem, k_tiles, result)
            first, freed = issue(origin, full, stage, parity), int32(empty + 8 * stage)
            stage, parity = after(stage, parity)
            fetch(places, int32(0), k_tiles)
            rows, columns = take(places, thread, int32(0))
            while True:
                left -= 1
                block: int32 = k_tiles - left  # the next one, whose scales are read meanwhile
                fetch(places, block, k_tiles)
                sums = settle_last(first, freed, thread)
                next_rows, next_columns = take(places, thread, block)
                totals = promote(totals, sums, rows, columns)
                rows, columns = next_rows, next_columns
                if left == 0:
                    break
                first, freed = issue(origin, full, stage, parity), int32(empty + 8 * stage)
                stage, parity = after(stage, parity)
        return totals, stage, parity

    return multiply_tile
