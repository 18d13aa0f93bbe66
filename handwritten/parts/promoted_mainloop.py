"""Main loop by wgmma that promotes the sums of each stage: the `multiply` of `wgmma_float8`.

Hopper's tensor core aligns the products of float8 to the largest and keeps about 14 bits of their
sum. So it sums a stage alone, 128 of k, and ordinary instructions add that to sums in float32,
multiplied by the scales of the stage's blocks if there are any. Meanwhile the block's other
warpgroup keeps the tensor core busy.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3.2, "Increasing
Accumulation Precision".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.block_scales import BLOCK_K, BlockScales
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
    """Make a device function: (totals, sums, factors, first, extra, block, col, n) -> new totals.

    Args:
        items: sums of a thread, in the layout of `wgmma`.
        scales: readers of scales; None to add the sums as they are.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import add_scaled, device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    is_scaled, by_column = scales is not None, scales is not None and scales.by_column
    read_column = scales.read_column if scales else None

    def promote(totals, sums, factors, first, extra, block, col, n):
        promoted = ()
        if not is_scaled:
            promoted = add_scaled(totals, sums, factors[0])
        else:
            upper, lower = factors[0] * factors[2], factors[1] * factors[2]
            for i in static_range(0, items, 4):
                above, below = (upper, upper), (lower, lower)
                if by_column:
                    left: int32 = col + 2 * i
                    x = read_column(extra, first, block, min(left, n - 1))
                    y = read_column(extra, first, block, min(left + 1, n - 1))
                    above, below = (upper * x, upper * y), (lower * x, lower * y)
                promoted = promoted + (
                    totals[i] + above[0] * sums[i],
                    totals[i + 1] + above[1] * sums[i + 1],
                    totals[i + 2] + below[0] * sums[i + 2],
                    totals[i + 3] + below[1] * sums[i + 3],
                )
        return promoted

    return device_function(unroll(promote))


def make_multiply(config: Any, dtype: str, scales: BlockScales | None = None) -> Callable[..., Any]:
    """`wgmma_mainloop.make_multiply` for K-major bytes, which promotes the sums of each stage.

    With scales it also takes the tile and the `Result`.

    Args:
        config: a `WgmmaConfig` whose warpgroups share each tile.
        dtype: dtype of a and b, of float8.
        scales: readers of the scales of blocks; None without any.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function, zeros
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind, is_paired, is_scaled = KINDS[dtype], config.is_paired, scales is not None
    items = config.tile_n // 2
    begin_scales, read_scales = (scales.begin, scales.read) if scales else (None, None)
    free, promote, after = make_free(config), make_promote(items, scales), make_after(config.stages)
    a_bytes, step_bytes = config.tile_m * ROW_BYTES, ROW_BYTES // STEPS
    stage_step = config.stage_bytes // 16  # addresses in descriptors are in units of 16 bytes
    low, high = hopper.descriptor_halves(ROW_BYTES * ROW_BYTES, SWIZZLE_ROWS * ROW_BYTES)

    def multiply_stage(sums, a_at, b_at):
        """Issue the products of a stage, of which the first replaces the sums before."""
        for step in static_range(STEPS):
            a_part: int32 = a_at + step * step_bytes // 16
            b_part: int32 = b_at + step * step_bytes // 16
            if step == 0:
                sums = hopper.wgmma_anew(kind, high, sums, a_part, b_part, False, False)
            else:
                sums = hopper.wgmma(kind, high, sums, a_part, b_part, False, False)
        return sums

    multiply_stage = device_function(unroll(multiply_stage))

    def multiply_tile(smem, full, empty, thread, k_tiles, stage, parity, tile, result):
        member: int32 = thread % WARPGROUP
        group: int32 = thread // WARPGROUP
        a_smem: int32 = smem + group * (WARPGROUP_ROWS * ROW_BYTES)
        a_desc: int32 = low + a_smem // 16
        b_desc: int32 = low + (smem + a_bytes) // 16
        if is_paired:  # the bits above those of an address hold the block's rank
            a_desc = low + (a_smem // 16 & 0x3FFF)
            b_desc = low + ((smem + a_bytes) // 16 & 0x3FFF)
        totals, sums = zeros(float32, items), zeros(float32, items)
        first, factors, extra = (0, 0, 0), (float32(1), float32(1), float32(1)), ()
        col: int32 = 0
        n: int32 = 0
        block: int32 = 0
        if is_scaled:
            extra, n, col = result.extra, result.n, tile.col + thread % 4 * 2
            block = tile.first_k // BLOCK_K
            first = begin_scales(tile, thread, result)
            if k_tiles > 0:
                factors = read_scales(extra, first, block)
        previous = stage
        left: int32 = k_tiles
        while left > 0:
            hopper.wait_barrier(full + 8 * stage, parity)
            a_at: int32 = a_desc + stage * stage_step
            b_at: int32 = b_desc + stage * stage_step
            hopper.begin_wgmma()
            sums = multiply_stage(sums, a_at, b_at)
            hopper.commit_wgmma()
            # All warps are past the fence, so that all have read the stage before.
            if left < k_tiles and member == 0:
                free(empty + 8 * previous)
            now = factors
            if is_scaled and left > 1:  # those of the next stage arrive meanwhile
                factors = read_scales(extra, first, int32(block + 1))
            sums = hopper.wait_wgmma_of(0, sums)
            totals = promote(totals, sums, now, first, extra, block, col, n)
            previous = stage
            block += 1
            left -= 1
            stage, parity = after(stage, parity)
        if k_tiles > 0 and member == 0:
            free(empty + 8 * previous)
        return totals, stage, parity

    return device_function(unroll(multiply_tile))
