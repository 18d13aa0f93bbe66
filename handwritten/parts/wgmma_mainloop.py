"""Main loops by wgmma over the stages of `wgmma_ring`: the `multiply` of the frame `tma`.

wgmma reads 16-bit operands K-major or MN-major from shared memory. tf32 and bytes must be K-major
there, but the left operand of tf32 may be in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.diagonal import make_clear
from dxgemm.handwritten.parts.operands import FLOAT8, FLOAT8_KINDS
from dxgemm.handwritten.parts.wgmma_ring import (
    INTEGERS,
    ITEM_BYTES,
    ROW_BYTES,
    STEPS,
    SWIZZLE_ROWS,
    WARPGROUP,
    WARPGROUP_ROWS,
    make_after,
)

KINDS = {
    "float16": "f16", "bfloat16": "bf16", "float32": "tf32",
    "int8": "s8", "uint8": "u8", "int8 uint8": "s8.u8", "uint8 int8": "u8.s8",
}  # fmt: skip
KINDS |= {dtype: ".".join(FLOAT8_KINDS[factor] for factor in dtype.split(" ")) for dtype in FLOAT8}


def make_free(config: Any) -> Callable[..., Any]:
    """Make a device function that tells this block, and its partner, that a stage has been read."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import cluster_address, device_function
    from dxgemm.handwritten.parts.unroll import unroll

    is_paired = config.is_paired

    def free(barrier):
        hopper.arrive(barrier)
        if is_paired:
            partner: int32 = cuda.blockIdx.x % 2 ^ 1
            hopper.arrive_at(cluster_address(int32(barrier), partner))

    return device_function(unroll(free))


def make_origins(config: Any, low: int) -> Callable[..., Any]:
    """Make a device function: (smem, thread) -> descriptors of a and b in the first stage.

    That of a is of the first 64 rows of the thread's warpgroup. `low` is that of
    `descriptor_halves`.
    """
    from numba import int32

    from dxgemm.handwritten.parts.unroll import device

    group_bytes = 0 if config.is_pingpong else WARPGROUP_ROWS * ROW_BYTES
    a_bytes, is_paired = config.tile_m * ROW_BYTES, config.is_paired

    @device
    def origins(smem, thread):
        a_at: int32 = (smem + thread // WARPGROUP * group_bytes) // 16
        b_at: int32 = (smem + a_bytes) // 16
        if is_paired:  # the bits above those of an address hold the block's rank
            a_at, b_at = int32(a_at & 0x3FFF), int32(b_at & 0x3FFF)
        return int32(low + a_at), int32(low + b_at)

    return origins


def make_multiply(
    config: Any, dtype: str, a_across: bool, b_across: bool, clears: str = ""
) -> Callable[..., Any]:
    """Make the device function of the consumers that computes the sums of a tile.

    It takes the addresses of the stages and their barriers, the thread, the tile's number of
    stages, and the next stage with the parity of its phase. It returns the sums, and the stage
    after the last one with its parity. A number below 0 means sums of 0, out of turn.

    Args:
        config: a `WgmmaConfig`.
        dtype: dtype of a and b; sums are int32 for integers, else float32.
        a_across, b_across: True for MN-major operands.
        clears: triangles of a and b that are cleared in shared memory, see `Problem.clears`.
    """
    tile_k = ROW_BYTES // ITEM_BYTES[KINDS[dtype]]
    clear = make_clear(config, dtype, tile_k, (a_across, b_across), clears)
    if dtype == "float32" and a_across:
        return make_multiply_from_registers(config, b_across, clear)
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, zeros
    from dxgemm.handwritten.parts.unroll import unroll

    add = make_add(config, dtype, a_across, b_across, clear)
    scalar = int32 if KINDS[dtype] in INTEGERS else float32
    count = config.strips * config.tile_n // 2

    def multiply(smem, full, empty, thread, k_tiles, stage, parity, tile, result):
        acc = zeros(scalar, count)
        return add(acc, smem, full, empty, thread, k_tiles, stage, parity, tile)

    return device_function(unroll(multiply))


def make_add(
    config: Any, dtype: str, a_across: bool, b_across: bool, clear: Any = None
) -> Callable[..., Any]:
    """`make_multiply` of a device function that adds to sums, which it takes first."""
    from numba import int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind, items = KINDS[dtype], config.tile_n // 2
    strips, stages, is_pingpong = config.strips, config.stages, config.is_pingpong
    free = make_free(config)
    # Each strip of rows of a in a stage is 64 rows of ROW_BYTES, or a panel.
    strip_bytes = config.piece_step * ROW_BYTES  # from a strip of a warpgroup to its next one
    panel_bytes = ROW_BYTES // ITEM_BYTES[kind] * ROW_BYTES
    # Addresses in descriptors are in units of 16 bytes.
    a_step = (panel_bytes if a_across else ROW_BYTES) // STEPS // 16
    b_step = (panel_bytes if b_across else ROW_BYTES) // STEPS // 16
    stage_bytes, stage_step = config.stage_bytes, config.stage_bytes // 16
    low, high = hopper.descriptor_halves(panel_bytes, SWIZZLE_ROWS * ROW_BYTES)
    after, clears, origins = make_after(stages), clear is not None, make_origins(config, low)

    def multiply_step(acc, a_part, b_part):
        """Issue one step for every strip of rows; the sums of the strips are concatenated."""
        sums = ()
        for strip in static_range(strips):
            one = acc[strip * items : strip * items + items]
            a_strip: int32 = a_part + strip * strip_bytes // 16
            sums = sums + hopper.wgmma(kind, high, one, a_strip, b_part, a_across, b_across)
        return sums

    multiply_step = device_function(unroll(multiply_step))

    def add(acc, smem, full, empty, thread, k_tiles, stage, parity, tile):
        member: int32 = thread % WARPGROUP
        group: int32 = thread // WARPGROUP
        a_desc, b_desc = origins(smem, thread)
        previous = stage
        left: int32 = k_tiles
        while left > 0:
            hopper.wait_barrier(full + 8 * stage, parity)
            if clears:
                clear(smem + stage * stage_bytes, k_tiles - left, tile, thread)
            a_at: int32 = a_desc + stage * stage_step
            b_at: int32 = b_desc + stage * stage_step
            hopper.begin_wgmma()
            for step in static_range(STEPS):
                a_part: int32 = a_at + step * a_step
                b_part: int32 = b_at + step * b_step
                acc = multiply_step(acc, a_part, b_part)
            hopper.commit_wgmma()
            hopper.wait_wgmma(1)  # the previous k tile is done, this one is still running
            if left < k_tiles and member == 0:
                free(empty + 8 * previous)
            previous = stage
            left -= 1
            stage, parity = after(stage, parity)
        # All stages are issued: the other warpgroup's turn.
        if is_pingpong and k_tiles >= 0 and member == 0:
            hopper.arrive(empty + 8 * stages + 8 * (1 - group))
        acc = hopper.wait_wgmma_of(0, acc)
        if k_tiles > 0 and member == 0:
            free(empty + 8 * previous)
        return acc, stage, parity

    return device_function(unroll(add))


def make_multiply_from_registers(
    config: Any, b_across: bool, clear: Any = None
) -> Callable[..., Any]:
    """`make_multiply` for tf32 with an MN-major a, read while the previous step is multiplied.

    A thread reads two neighbouring rows at a time. The rows of a warp are two runs of eight, 16
    apart, so that the 16 lanes that are served together access all banks.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function, load_shared, zeros
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind, items = "tf32", config.tile_n // 2
    stage_bytes, a_bytes = config.stage_bytes, config.tile_m * ROW_BYTES
    panel_bytes = ROW_BYTES // ITEM_BYTES[kind] * ROW_BYTES
    b_step = (panel_bytes if b_across else ROW_BYTES) // STEPS // 16
    stage_step = stage_bytes // 16
    low, high = hopper.descriptor_halves(panel_bytes, SWIZZLE_ROWS * ROW_BYTES)
    frag_step = panel_bytes // STEPS
    after, clears = make_after(config.stages), clear is not None

    def multiply(smem, full, empty, thread, k_tiles, stage, parity, tile, result):
        member: int32 = thread % WARPGROUP
        warp: int32 = member // 32
        lane: int32 = thread % 32
        piece: int32 = warp % 2 * 2 + lane // 16 + lane // 8 % 2 * 4  # 16-byte piece of a row
        frags: int32 = smem + thread // WARPGROUP * (WARPGROUP_ROWS * ROW_BYTES)
        frags = frags + warp // 2 * panel_bytes + lane // 4 % 2 * 8
        frags = frags + lane % 4 * ROW_BYTES + (piece ^ (lane % 4)) * 16
        b_desc: int32 = low + (smem + a_bytes) // 16
        acc = zeros(float32, items)
        previous, left = stage, k_tiles
        last_frag = zeros(float32, 4)
        while left > 0:
            hopper.wait_barrier(int32(full + 8 * stage), parity)
            if clears:
                clear(smem + stage * stage_bytes, k_tiles - left, tile, thread)
            upper: int32 = frags + stage * stage_bytes
            b_at: int32 = b_desc + stage * stage_step
            lower: int32 = upper ^ 64  # four rows below, the swizzle swaps the halves of a row
            for step in static_range(STEPS):
                a_frag = load_shared(float32, 2, upper, step * frag_step) + load_shared(
                    float32, 2, lower, step * frag_step + 4 * ROW_BYTES
                )
                hopper.begin_wgmma()
                b_part: int32 = b_at + step * b_step
                acc = hopper.wgmma(kind, high, acc, a_frag, b_part, False, b_across)
                hopper.commit_wgmma()
                hopper.wait_wgmma_of(1, last_frag)  # the previous step is done, this one is running
                last_frag = a_frag
                if step == 0 and left < k_tiles and member == 0:
                    hopper.arrive(int32(empty + 8 * previous))
            previous, left = stage, int32(left - 1)
            stage, parity = after(stage, parity)
        acc = hopper.wait_wgmma_of(0, acc)
        if k_tiles > 0 and member == 0:
            hopper.arrive(int32(empty + 8 * previous))
        return acc, stage, parity

    return device_function(unroll(multiply))
