"""Copies of an operand's tile to shared memory by cp.async, for any layout of the operand.

The tile is stored as tile_k rows of tile_outer elements, where `outer` is m for a and n for b: a
thread then reads its rows of a, or columns of b, 16 bytes at a time. There are three modes of
copying, named by what neighbouring threads copy:

    "outer16"  16 bytes along outer, where these are contiguous and aligned
    "outer"    single elements along outer
    "k"        single elements along k, where these are contiguous: a transposition on the way
"""

from __future__ import annotations

from itertools import product
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.operands import ITEM_BYTES, VECTOR_BYTES, operand_mode

# Mode of copying, by the layout of the operand.
A_MODES = {"row": "k", "row16": "k", "col": "outer", "col16": "outer16"}
B_MODES = {"row": "outer", "row16": "outer16", "col": "k", "col16": "k"}


def copy_modes(config: Any, problem: Any) -> tuple[str, str]:
    """Modes of copying a and b of a problem."""
    fewest = VECTOR_BYTES // ITEM_BYTES[problem.dtype] * config.threads
    a_mode = A_MODES[operand_mode(problem, "a")]
    if a_mode == "outer16" and config.tile_m * config.tile_k < fewest:
        a_mode = "outer"
    b_mode = B_MODES[operand_mode(problem, "b")]
    if b_mode == "outer16" and config.tile_n * config.tile_k < fewest:
        b_mode = "outer"
    return a_mode, b_mode


class TileCopy(NamedTuple):
    """Device functions of one operand. Strides are in bytes, stages are byte offsets.

    Attributes:
        begin: (thread, smem, address, outers, stride_outer, stride_k) -> (state, source). smem is
            where the operand's tile of the first stage begins, address where the block's first
            tile begins in global memory, outers how many of its rows or columns exist. source is
            the address of this thread's first element; adding tile_k * stride_k leads to the next
            tile.
        copy: (state, stage, source): start copying a tile that is inside the operand.
        copy_predicated: (state, stage, source, depth): the same where only `depth` of the tile's k
            and `outers` of its rows or columns exist; the rest becomes zero.
    """

    begin: Any
    copy: Any
    copy_predicated: Any


class Turns(NamedTuple):
    """How threads share out the units of a tile's lines: each copies one per turn.

    Attributes:
        line_count: lines of the tile.
        width, item_size: elements of a unit, and bytes of an element.
        line_bytes, item_bytes: in shared memory, from a line and from an element to the next.
        line_threads: neighbours that copy neighbouring units.
        at_once: lines that all threads copy at a time.
        lines, items: from a thread's first unit on, by turn.
        are_partial: True if not every thread takes part: its line may be beyond the last.
        has_idle: True if some threads never do.
    """

    line_count: int
    width: int
    item_size: int
    line_bytes: int
    item_bytes: int
    line_threads: int
    at_once: int
    lines: tuple[int, ...]
    items: tuple[int, ...]
    are_partial: tuple[bool, ...]
    has_idle: bool


def share_out(
    count: int, length: int, steps: tuple[int, int], width: int, item_size: int, threads: int,
    most_line_threads: int = 1024,
) -> Turns:  # fmt: skip
    """The turns for `count` lines of `length` elements, `steps` bytes apart in shared memory.

    Args:
        steps: from a line to the next, and from an element of a line to the next.
        most_line_threads: the most threads that copy neighbouring units of a line. If they copy
            along k, fewer of them keep their writes to shared memory in different banks.
    """
    units, most = length // width, min(threads, most_line_threads)
    line_threads = units if units <= most else gcd(units, most)
    at_once = threads // line_threads
    firsts = product(range(0, count, at_once), range(0, length, line_threads * width))
    lines, items = zip(*firsts, strict=True)
    has_idle = at_once * line_threads < threads
    are_partial = tuple(has_idle or line + at_once > count for line in lines)
    return Turns(
        count, width, item_size, *steps, line_threads, at_once, lines, items, are_partial, has_idle
    )


def make_tile_copy(
    mode: str, tile_outer: int, tile_k: int, row_bytes: int, threads: int, dtype: str
) -> TileCopy:
    """The functions for one operand's tile, whose rows are `row_bytes` apart in shared memory.

    Args:
        mode: how it is copied: "outer16", "outer" or "k".
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import copy_async, copy_async_part, device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size if mode == "outer16" else 1
    size = width * item_size
    # The tile is lines of units: along k, or along outer with a line for each k.
    along_k, steps = mode == "k", (item_size, row_bytes)  # bytes along outer and along k
    lines, length = (tile_outer, tile_k) if along_k else (tile_k, tile_outer)
    turns = share_out(lines, length, steps if along_k else steps[::-1], width, item_size, threads)
    *_, line_threads, lines_at_once, lines_of, items_of, partial, has_idle_threads = turns
    copies = len(lines_of)
    outer_offsets, k_offsets = (lines_of, items_of) if along_k else (items_of, lines_of)
    smem_offsets = tuple(
        k * row_bytes + outer * item_size for k, outer in zip(k_offsets, outer_offsets, strict=True)
    )

    def begin(thread, smem, address, outers, stride_outer, stride_k):
        line, unit = int32(thread // line_threads), int32(thread % line_threads)
        if has_idle_threads and line >= lines_at_once:
            line = int32(lines)
        if along_k:
            first_outer, first_k = line, unit
        else:
            first_outer, first_k = int32(unit * width), line
        target = int32(smem + first_k * row_bytes + first_outer * item_size)
        outers_left = int32(min(outers, tile_outer) - first_outer)
        source = address + first_outer * stride_outer + first_k * stride_k
        return (target, stride_outer, stride_k, outers_left, first_k, line), source

    def copy(state, stage, source):
        target, stride_outer, stride_k, _, _, line = state
        for i in static_range(copies):
            if not partial[i] or line < lines - lines_of[i]:
                offset = int64(outer_offsets[i]) * stride_outer + int64(k_offsets[i]) * stride_k
                copy_async(size, int32(target + stage), smem_offsets[i], source + offset)

    def copy_predicated(state, stage, source, depth):
        target, stride_outer, stride_k, outers, first_k, line = state
        depth_left = int32(depth - first_k)
        for i in static_range(copies):
            if not partial[i] or line < lines - lines_of[i]:
                offset = int64(outer_offsets[i]) * stride_outer + int64(k_offsets[i]) * stride_k
                for part in static_range(width):
                    is_inside = outer_offsets[i] + part < outers and k_offsets[i] < depth_left
                    copy_async_part(
                        item_size,
                        int32(target + stage),
                        smem_offsets[i] + part * item_size,
                        source + offset + part * item_size,
                        int32(item_size * is_inside),
                    )

    return TileCopy(*(device_function(unroll(f)) for f in (begin, copy, copy_predicated)))
