"""Scales of blocks of a and b, by which sums over 128 of k are multiplied as they are promoted.

A scale belongs to 128 of k of one row of a, or of 128 rows; of b, of one column or of 128. Scales
are float32 in global memory, with any strides. Each warp copies those of its rows and of the tile's
columns to shared memory, a few blocks together and ahead: a load takes longer than the products of
a block, and they do not hide its instructions.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.fragment import quad_places
from dxgemm.handwritten.parts.unroll import device, static_range

BLOCK_K = 128
MOST_COLUMNS = 128  # of a tile whose columns have scales of their own, for the room in memory
MOST_PANELS = 8  # of a tile, which share a scale: more cost as much as narrower tiles
ROWS = 16  # of a warp


class BlockScales(NamedTuple):
    """Device functions that bring the scales of a warp's sums, in the layout of `wgmma`.

    Attributes:
        begin: (tile, thread, smem, count, result) -> where a thread copies scales from and to, for
            the tile's `count` blocks of k; the first copies are started. smem is the shared memory
            of the warp.
        fetch: (places, block, count): wait for the scales of the block, start more copies.
        take: (places, thread, block) -> scales of the thread's upper and lower row, and of its
            columns.
        width: adjacent columns of a thread's sums that `columns` scales belong to.
        columns: 1 if they share a scale; 2 if each pair of sums in a row has two.
    """

    begin: Callable[..., Any]
    fetch: Callable[..., None]
    take: Callable[..., Any]
    width: int
    columns: int


def make_block_scales(
    epilogue: Any, is_exchanged: bool, tile_n: int, row_order: str = ""
) -> tuple[Any, BlockScales | None]:
    """Take the block scales from an epilogue.

    Args:
        epilogue: None, or a `Fusion`.
        is_exchanged: True if the kernel computes the transposed product.
        tile_n: columns of a tile.
        row_order: see `chunk_store.Chunk`.

    Returns:
        The epilogue without them; and, if there are any, the device functions that read them.
    """
    if epilogue is None or not epilogue.block_scales:
        return epilogue, None
    from numba import cuda, float32, int32

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        copy_async,
        global_address,
        load_shared,
        wait_copies,
    )

    (a_place, a_block), (b_place, b_block) = _operands(epilogue, is_exchanged)
    panel = gcd(tile_n, b_block)  # columns that share a scale
    panels, by_column = tile_n // panel, panel == 1
    turns = -(-(ROWS + panels) // 32)  # scales that a lane copies: of a row or of columns
    slot_bytes = turns * 128
    group = 4 if turns == 1 else 2  # blocks that are copied together; there is room for two groups
    mask = 2 * group - 1
    quad_bytes, apart_bytes = (4 * rows for rows in quad_places(row_order))

    @device
    def copy(places, first, count):
        target, sources, step, b_step = places
        for i in static_range(group):
            block: int32 = first + i
            if block < count:
                slot: int32 = target + (block & mask) * slot_bytes
                copy_async(4, slot, 0, sources[0] + block * step)
                for turn in static_range(1, turns):
                    copy_async(4, slot, 128 * turn, sources[turn] + block * b_step)
        commit_copies()

    @device
    def begin(tile, thread, smem, count, result):
        a_data, a_batch, a_along, a_step = result.extra[a_place]
        b_data, b_batch, b_along, b_step = result.extra[b_place]
        lane: int32 = thread % 32
        first: int32 = tile.first_k // BLOCK_K
        row: int32 = min(tile.row + thread // 32 * ROWS + lane, result.m - 1)
        of_a = global_address(a_data) + 4 * (tile.matrix * a_batch + row // a_block * a_along)
        of_b = global_address(b_data) + 4 * tile.matrix * b_batch
        sources = ()
        for turn in static_range(turns):
            item: int32 = min(max(lane + 32 * turn - ROWS, 0), panels - 1)
            col: int32 = min(tile.col + item * panel, result.n - 1)
            sources = sources + (of_b + 4 * (col // b_block * b_along + first * b_step),)
        step = 4 * b_step
        if lane < ROWS:
            sources, step = (of_a + 4 * first * a_step,) + sources[1:], 4 * a_step
        places = int32(smem + 4 * lane), sources, step, 4 * b_step
        cuda.syncwarp()  # the shared memory of the store before has been read
        copy(places, int32(0), count)
        return places

    @device
    def fetch(places, block, count):
        if block & group - 1 == 0:
            wait_copies(0)
            cuda.syncwarp()  # the copies of all lanes have arrived, and those before have been read
            copy(places, int32(block + group), count)

    @device
    def take(places, thread, block):
        lane: int32 = thread % 32
        slot: int32 = places[0] - 4 * lane + (block & mask) * slot_bytes
        at: int32 = slot + lane // 4 * quad_bytes
        rows = load_shared(float32, 1, at, 0) + load_shared(float32, 1, at, apart_bytes)
        columns = ()
        if by_column:
            at = slot + lane % 4 * 8
            for group in static_range(tile_n // 8):
                columns = columns + load_shared(float32, 2, at, 4 * ROWS + 32 * group)
        else:
            for column in static_range(0, panels, 4):
                columns = columns + load_shared(float32, 4, slot, 4 * ROWS + 4 * column)
        return rows, columns

    width, columns = (8, 2) if by_column else (panel, 1)
    return epilogue.unscaled, BlockScales(begin, fetch, take, width, columns)


def make_element_scales(epilogue: Any) -> tuple[Any, tuple[Any, Any]]:
    """Take the block scales from an epilogue, for a kernel that scales elements of a and b.

    Returns:
        The epilogue without them; and for a and for b a device function: ((extra, matrix, first
        row or column, first k), row or column and k from these on) -> scale, or None.
    """
    if epilogue is None or not epilogue.block_scales:
        return epilogue, (None, None)

    def make_scale_of(place: int, block: int) -> Callable[..., Any]:
        @device
        def scale_of(origin, outer, k):
            extra, matrix, first, first_k = origin
            data, batch_step, step, k_step = extra[place]
            along = (first + outer) // block
            return data[matrix * batch_step + along * step + (first_k + k) // BLOCK_K * k_step]

        return scale_of

    of_a, of_b = _operands(epilogue, False)
    return epilogue.unscaled, (make_scale_of(*of_a), make_scale_of(*of_b))


def fits(epilogue: Any, tile_n: int, is_exchanged: bool) -> bool:
    """True if a tile's columns have few scales, for which a warp has room."""
    if epilogue is None or not epilogue.block_scales:
        return True
    _, (_, b_block) = _operands(epilogue, is_exchanged)
    return tile_n <= MOST_COLUMNS if b_block == 1 else tile_n // gcd(tile_n, b_block) <= MOST_PANELS


def _operands(epilogue: Any, is_exchanged: bool) -> list[tuple[int, int]]:
    """For the kernel's a and b, the index of its scales in the last parameter, and their block."""
    operands = enumerate(epilogue.operands)
    found = [(place, operand.block) for place, operand in operands if operand.kind == "blocks"]
    return found if epilogue.is_transposed is is_exchanged else found[::-1]
