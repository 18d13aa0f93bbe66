"""A `load` of the frame `resident`: elements by cp.async, lines of one operand's tile.

A line of a tile is neighbouring elements, along k or along the operand's other index, its outer
one. Units of it are copied at a time: 16 bytes, or single elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.async_tiles import Turns, share_out
from dxgemm.handwritten.parts.batch_tiles import FAR, SHARED_A
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.unroll import device, static_range

LANES_K = 8  # neighbours that copy along k for a transposition: they write to other banks


class Load(NamedTuple):
    """Device functions that copy an operand's tile to shared memory; all its threads take part.

    The operand's rows are its outer index, its columns are k.

    Attributes:
        begin: (smem, tile, first, matrix, outer, depth, batch) -> the thread's copies, and the
            address from which on it copies. `first` is the tile's first row, `outer` and
            `depth` are the sizes of the matrix.
        start: (copies, source, part, outer_left, k_left): start the copies of a part of k. So many
            elements from the part's first on are inside the operand, the others become zero.
        advance: (copies, source) -> the address for the next part of k.
        start_whole: (copies, source, part): `start` if all elements are inside; None if that is not
            quicker.
        finish: (copies, source, outer_left, k_left): called when the copies of the warp have
            arrived; None if there is nothing left to do.
    """

    begin: Callable[..., Any]
    start: Callable[..., None]
    advance: Callable[..., Any]
    start_whole: Callable[..., None] | None = None
    finish: Callable[..., None] | None = None


class TileBytes(NamedTuple):
    """A tile in shared memory: bytes from an element to the next along its outer index and k."""

    outer: int
    k: int


class Copies(NamedTuple):
    """A thread's copies to a tile that begins at smem. Strides are bytes of int32, or of int64."""

    smem: Any
    thread: Any
    outer_stride: Any
    k_stride: Any


def make_copy(turns: Turns, piece: int, is_predicated: bool, is_cached: bool) -> Any:
    """A device function: a thread's copies, `piece` elements at a time: a unit, or one."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        copy_async,
        copy_async_cached,
        copy_async_part,
        copy_async_part_cached,
    )

    start_copy = copy_async_cached if is_cached else copy_async
    start_part = copy_async_part_cached if is_cached else copy_async_part
    line_count, width, item_size, line_bytes, item_bytes, _, _, lines, items, are_partial, _ = turns
    copies, piece_bytes = len(lines), piece * item_size

    @device
    def copy(target, first, line, stride, line_stride, length_left, lines_left):
        for i in static_range(copies):
            if not are_partial[i] or line < line_count - lines[i]:
                for item in static_range(items[i], items[i] + width, piece):
                    at = (
                        first
                        + int64(int32(lines[i])) * int64(line_stride)
                        + int64(int32(item)) * int64(stride)
                    )
                    if is_predicated:
                        is_inside = lines[i] < lines_left and item < length_left
                        start_part(
                            piece_bytes, target, lines[i] * line_bytes + item * item_bytes, at,
                            int32(piece_bytes * is_inside),
                        )  # fmt: skip
                    else:
                        start_copy(
                            piece_bytes, target, lines[i] * line_bytes + item * item_bytes, at
                        )

    return copy


def make_tile_load(
    config: Any, dtype: str, name: str, mode: str, place: TileBytes, notes: tuple[str, ...]
) -> Load:
    """The load of operand "a" or "b".

    Copies go through L1 if other blocks read the same, or neighbours of it: all of b that is not
    transposed on the way, and an a that matrices share.

    Args:
        config: a `BatchConfig` with `parts`.
        mode: the operand's `operand_mode`, which ends with 16 if vectors are copied.
        place: the tile in shared memory; vectors need contiguous elements there too.
        notes: see `batch_notes`.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import global_address

    index, part_k = int64 if FAR in notes else int32, config.tile_k // config.parts
    part_bytes, item_size = part_k * place.k, np.dtype(dtype).itemsize
    is_a, tile_outer = name == "a", config.tile_m if name == "a" else config.tile_n
    is_along_k = mode.startswith("row") is is_a
    is_turned = is_along_k and place.k != item_size
    is_cached = SHARED_A in notes if is_a else not is_turned
    count, length = (tile_outer, part_k) if is_along_k else (part_k, tile_outer)
    line_bytes, item_bytes = steps = place if is_along_k else (place.k, place.outer)
    width = VECTOR_BYTES // item_size if mode.endswith("16") else 1
    most = LANES_K if is_turned else config.tile_threads
    turns = share_out(count, length, steps, width, item_size, config.tile_threads, most)
    line_threads, at_once, has_idle = turns.line_threads, turns.at_once, turns.has_idle
    copy_all = make_copy(turns, width, False, is_cached)
    copy_units, copy_elements = (make_copy(turns, n, True, is_cached) for n in (width, 1))

    @device
    def begin(smem, tile, first, matrix, outer, depth, batch):
        outer_stride, k_stride = index(matrix.row * item_size), index(matrix.col * item_size)
        source = global_address(matrix.data) + matrix.start * item_size
        source += int64(int32(first)) * int64(outer_stride)
        return Copies(smem, tile.thread, outer_stride, k_stride), source

    @device
    def first_unit(copied, source, part):
        """The thread's first line and item, their offset in shared memory, and their address."""
        line: int32 = copied.thread // line_threads
        item: int32 = copied.thread % line_threads * width
        if has_idle and line >= at_once:
            line = count
        target: int32 = copied.smem + part * part_bytes + line * line_bytes + item * item_bytes
        stride, line_stride = copied.k_stride, copied.outer_stride
        if not is_along_k:
            stride, line_stride = line_stride, stride
        first = source + int64(line) * int64(line_stride)
        if width > 1:
            first += item * item_size
        else:
            first += int64(item) * int64(stride)
        return line, item, target, first, stride, line_stride

    @device
    def start_whole(copied, source, part):
        line, _, target, first, stride, line_stride = first_unit(copied, source, part)
        copy_all(target, first, line, stride, line_stride, length, count)

    @device
    def start(copied, source, part, outer_left, k_left):
        line, item, target, first, stride, line_stride = first_unit(copied, source, part)
        length_left, lines_left = k_left, outer_left
        if not is_along_k:
            length_left, lines_left = outer_left, k_left
        has_units = length_left % width == 0
        length_left = int32(length_left - item)
        lines_left = int32(lines_left - line)
        if width > 1 and has_units:
            copy_units(target, first, line, stride, line_stride, length_left, lines_left)
        else:
            copy_elements(target, first, line, stride, line_stride, length_left, lines_left)

    @device
    def advance(copied, source):
        return source + int64(int32(part_k)) * int64(copied.k_stride)

    return Load(begin, start, advance, start_whole)
