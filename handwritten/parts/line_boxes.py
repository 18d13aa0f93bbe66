"""Tiles of `line_wgmma` that come by TMA: a box per warp and stage, asked for by its own threads.

Source: PTX ISA, "Tensor Memory Access"; the barriers are those of `wgmma_ring`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.line_wgmma import WarpgroupConfig, make_stages
from dxgemm.handwritten.parts.unroll import device, static_range
from dxgemm.handwritten.parts.wgmma_ring import (
    ROW_BYTES,
    WARPGROUP,
    WARPGROUP_ROWS,
    make_after,
    make_init_ring,
)

BOX = WARPGROUP_ROWS  # rows and columns of all boxes, so that an argument has one tensor map
BOX_BYTES = BOX * ROW_BYTES


class Boxes(NamedTuple):
    """Device functions of all threads for a product whose operands come by TMA.

    Attributes:
        fetch: (smem, thread, maps of a and b, row, col, k): have all stages but the last filled,
            where a store may still have a part of another tile.
        multiply: the same -> sums.
    """

    fetch: Callable[..., None]
    multiply: Callable[..., Any]


class Box(NamedTuple):
    """A warp's copies of each stage: up to `BOX` rows or columns of an operand.

    Fields: the tensor map; the offset in a stage; the place of the first one, innermost index
    first, and from one stage to the next.
    """

    map: Any
    offset: Any
    inner: Any
    outer: Any
    inner_step: Any
    outer_step: Any


def make_find_box(config: WarpgroupConfig, layouts: tuple[str, str], copies_a: bool) -> Any:
    """A device function: (thread, maps of a and b, row, col) -> the `Box` of its warp."""
    from numba import int32

    a_boxes = config.tile_m // BOX if copies_a else 0
    # Steps along the innermost index: an operand is stored along k, or across it.
    a_along, b_along = (0 if layout.startswith("x") else BOX for layout in layouts)

    @device
    def find_box(thread, maps, row, col):
        number: int32 = thread // 32
        along: int32 = col + (number - a_boxes) * BOX
        inner_step: int32 = b_along
        tensor_map = maps[1]
        if number < a_boxes:
            along = row + number * BOX
            inner_step = a_along
            tensor_map = maps[0]
        outer_step: int32 = BOX - inner_step
        inner, outer = along, int32(0)
        if inner_step != 0:
            inner, outer = int32(0), along
        return Box(tensor_map, int32(number * BOX_BYTES), inner, outer, inner_step, outer_step)

    return find_box


def make_boxes(
    config: WarpgroupConfig, dtype: str, layouts: tuple[str, str], kept_a: int | None = None
) -> Boxes:
    """A ring that the multiplying warps have filled, a box of a stage each.

    A warp asks for its next box once both warpgroups have read the stage, while they multiply the
    one after. So no warp is left to copying, and all threads are the user's.

    Args:
        layouts, kept_a: see `line_wgmma.make_multiply`.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import opaque, sync_block, zeros

    copies_a, stages, tile_k = kept_a is None, config.stages, config.tile_k
    _, stage_bytes, begin, multiply_stage = make_stages(config, dtype, layouts, kept_a)
    groups, a_bytes = config.tile_m // WARPGROUP_ROWS, config.tile_m * ROW_BYTES
    full_at, sums_count = config.barriers_at, config.tile_n // 2
    empty_at, boxes = full_at + 8 * stages, stage_bytes // BOX_BYTES
    init_ring, after = make_init_ring(stages, groups, boxes), make_after(stages)
    find_box = make_find_box(config, layouts, copies_a)

    @device
    def fill(smem, stage, box, turn):
        barrier: int32 = smem + full_at + 8 * stage
        hopper.expect_bytes(barrier, BOX_BYTES)
        place = int32(box.inner + turn * box.inner_step), int32(box.outer + turn * box.outer_step)
        hopper.copy_box(
            int32(smem + stage * stage_bytes + box.offset), box.map, barrier, place + (int32(0),)
        )  # fmt: skip

    @device
    def copies(thread):
        return thread % 32 == 0 and thread < 32 * boxes

    @device
    def fetch(smem, thread, maps, row, col, k):
        k_tiles: int32 = (k + tile_k - 1) // tile_k
        if thread == 0:
            init_ring(int32(smem + full_at), int32(smem + empty_at))
        hopper.publish_shared()
        sync_block()
        if copies(thread):
            box = find_box(thread, maps, row, col)
            stage, end = int32(0), min(k_tiles, int32(stages - 1))
            while stage < end:
                fill(smem, stage, box, stage)
                stage = opaque(int32(stage + 1))  # not unrolled: code that runs once is slow

    @device
    def multiply(smem, thread, maps, row, col, k):
        k_tiles: int32 = (k + tile_k - 1) // tile_k
        descriptors, box = begin(smem, thread), find_box(thread, maps, row, col)
        acc = zeros(float32, sums_count)
        stage, parity, previous = int32(0), int32(0), int32(stages - 1)
        hopper.publish_shared()  # what is kept, and what a store left in the last stage
        sync_block()
        for turn in range(k_tiles):
            hopper.wait_barrier(int32(smem + full_at + 8 * stage), parity)
            read: int32 = stage * stage_bytes
            a_read = read if copies_a else int32(turn * a_bytes)
            acc = multiply_stage(acc, descriptors, a_read, read)
            hopper.wait_wgmma(1)  # the previous stage is read, this one is still multiplied
            empty: int32 = smem + empty_at + 8 * previous
            ahead: int32 = turn + stages - 1
            if turn > 0 and thread % WARPGROUP == 0:
                hopper.arrive(empty)
            if copies(thread) and ahead < k_tiles:
                if turn > 0:
                    hopper.wait_barrier(empty, int32(parity ^ int32(stage == 0)))
                fill(smem, previous, box, ahead)
            previous = stage
            stage, parity = after(stage, parity)
        acc = hopper.wait_wgmma_of(0, acc)
        sync_block()
        if thread == 0:
            for slot in static_range(2 * stages):
                hopper.end_barrier(smem + full_at + 8 * slot)
        return acc

    return Boxes(fetch, multiply)
