"""Tiles of half-precision operands in shared memory, whole lines at any address.

A line of a tile is neighbouring elements of the operand, along k or along m or n ("x"). Lines in
shared memory are 16 bytes longer than the tile, an odd number of chunks of 16 bytes: eight that
follow each other share no bank when `ldmatrix` reads them. A thread copies always the same unit of
every so many lines.
If all lines begin and end at multiples of 16, 8 or 4 bytes, units are so long and go straight to
their places. Lines of odd length begin at every even address. The aligned vectors that hold such a
line are copied, one more than it has chunks, and fill its place in shared memory. Then each chunk
is shifted out of the two vectors around it, by the warp that copied the line: its lanes have read
all before one writes. Of a vector across an end of the operand, which may be the end of all memory,
only the elements inside are read, one by one.
Source: PTX ISA, "cp.async", "ldmatrix", "shf".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.line_tiles import (
    CHUNK_BYTES,
    WORD_BYTES,
    WORDS,
    layout,
    make_chunk_loads,
)

ITEM_BYTES = 2
CHUNK_ITEMS = CHUNK_BYTES // ITEM_BYTES
LONGEST_LINE = 2**21  # elements: all lines of a tile must lie within 32 bits of bytes
TOGETHER = 2  # chunks in a thread's registers
UNITS = 16, 8, 4  # bytes that cp.async copies
MODES = (*(f"{kind}{unit}" for kind in "kx" for unit in UNITS), "k", "x")


class LineLoad(NamedTuple):
    """Device functions for the tile of one operand.

    Attributes:
        place: (thread) -> (line, item) of the first unit that a thread copies; chunks are units
            that are not aligned.
        extents: (line, item, x_left, k_left) -> (rest, left, needed): bytes of a line of the
            operand from the thread's unit on, and how many lines from its first on are inside, or
            are needed: along k, multiples of 16 elements are.
        start: (target, source, step, item, rest, left, needed): start all copies. target and
            source are the addresses of the first unit, step is bytes from a line to the next.
        align: the same parameters; called when the copies of the warp have arrived, it puts chunks
            that are not aligned in their places.
        start_inside: with the parameters begin and end, it starts those copies of whole vectors
            that lie between these addresses of the operand's ends. Only vectors of the first and
            the last matrix do not.
        patch: the same parameters; after `align` it stores chunks of vectors that were left out.
        lane: (lane) -> (x, k) of the line whose address the lane gives to `ldmatrix`.
        is_transposed: True if `ldmatrix` transposes.
        x_bytes, k_bytes: from an element of the tile to the next along x, and along k.
    """

    place: Callable[..., Any]
    extents: Callable[..., Any]
    start: Callable[..., Any]
    align: Callable[..., Any]
    start_inside: Callable[..., Any]
    patch: Callable[..., Any]
    lane: Callable[..., Any]
    is_transposed: bool
    x_bytes: int
    k_bytes: int


def line_mode(problem: Any, name: str) -> str:
    """Mode of operand "a" or "b" of a problem, one of `MODES`; "any" if it has no lines."""
    kind = layout(problem, name)[0]
    if kind not in "kx":
        return "any"
    batch, row, col = getattr(problem, name)
    x, x_step, k_step = (problem.m, row, col) if name == "a" else (problem.n, col, row)
    items, step, lines = (problem.k, x_step, x) if kind == "k" else (x, k_step, problem.k)
    # A power of two divides the bitwise or of what it divides. A stride along an extent of 1 is
    # never taken.
    ends = (batch | step * (lines > 1) | items) * ITEM_BYTES | getattr(problem, f"{name}_alignment")
    return f"{kind}{next((unit for unit in UNITS if ends % unit == 0), '')}"


def line_bytes(items: int) -> int:
    """Bytes from a line of so many elements to the next, in shared memory."""
    return items * ITEM_BYTES + CHUNK_BYTES


def make_find_ends() -> Callable[..., Any]:
    """A device function: (address, batch, batch_step, lines, step, length) -> an operand's ends.

    Steps and length are bytes, of a batch of matrices of lines.
    """
    from numba import int64

    from dxgemm.handwritten.parts.intrinsics import device_function

    def find_ends(address, batch, batch_step, lines, step, length):
        last_matrix, last_line = int64(batch - 1) * batch_step, int64(lines - 1) * int64(step)
        begin = address + min(last_matrix, 0) + min(last_line, 0)
        return begin, address + max(last_matrix, 0) + max(last_line, 0) + length

    return device_function(find_ends)


def make_line_load(
    mode: str, side: str, tile_x: int, tile_k: int, threads: int, is_cached: bool
) -> LineLoad:
    """Make the functions for one operand, whose tile `threads` copy together.

    Args:
        mode: one of `MODES`.
        side: "left" or "right" operand of the instruction.
        is_cached: True if copies go through L1.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        load_shared,
        low_word,
        store_shared,
    )
    from dxgemm.handwritten.parts.line_intrinsics import (
        copy_async_if,
        shift_words,
        store_chunk_if,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    def device(function: Callable[..., Any]) -> Any:
        return device_function(unroll(function))

    is_along_k, is_left = mode.startswith("k"), side == "left"
    is_aligned, unit_bytes = mode[1:] != "", int(mode[1:] or CHUNK_BYTES)
    items, lines = (tile_k, tile_x) if is_along_k else (tile_x, tile_k)
    row_bytes = line_bytes(items)
    units = items * ITEM_BYTES // unit_bytes
    # A warp shifts lines of its own; else neighbouring units are shared out among all threads.
    sharing = threads if is_aligned else 32
    lines_together = sharing // units
    lines_at_once = threads // sharing * lines_together
    passes = -(-lines // lines_at_once)
    pass_bytes = lines_at_once * row_bytes
    gather, _ = make_chunk_loads(ITEM_BYTES)
    has_excess = passes * lines_at_once > lines

    def place(thread):
        member: int32 = thread % sharing
        line = int32(thread // sharing * lines_together + member // units)
        item = int32(member % units * (unit_bytes // ITEM_BYTES))
        if member >= lines_together * units:  # nothing to copy
            line, item = int32(0), int32(items)
        return line, item

    def extents(line, item, x_left, k_left):
        k_needed: int32 = min(int32(k_left + 15 & -16), tile_k)
        if is_along_k:
            length, length_needed, left, needed = k_left, k_needed, x_left, x_left
        else:
            length, length_needed, left, needed = x_left, min(x_left, items), k_left, k_needed
        if item >= length_needed:
            needed = int32(0)
        return (
            # More than a chunk makes no difference; all bytes might need more than 32 bits.
            int32(min(int32(length - item), int32(2 * CHUNK_ITEMS)) * ITEM_BYTES),
            int32(left - line),
            int32(min(needed, lines) - line),
        )

    def last_vectors(item, rest):
        """Shift beyond which a thread copies the vector behind that of its chunk, too."""
        if rest <= CHUNK_BYTES or item == items - CHUNK_ITEMS:
            return int32(CHUNK_BYTES - min(max(rest, 0), CHUNK_BYTES))
        return int32(CHUNK_BYTES)

    last_vectors = device(last_vectors)

    def start(target, source, step, item, rest, left, needed):
        at, next_lines = source, int64(lines_at_once * step)
        if is_aligned:
            inside: int32 = min(max(rest, 0), unit_bytes)
            for i in static_range(passes):
                count: int32 = inside * (i * lines_at_once < left)
                copy_async_if(
                    unit_bytes, is_cached, target, i * pass_bytes, at, count,
                    int32(i * lines_at_once < needed),
                )  # fmt: skip
                at += next_lines
        else:
            wanted: int32 = min(left, needed) if rest > 0 else 0
            beyond = last_vectors(item, rest)
            for i in static_range(passes):
                vector = at & -CHUNK_BYTES
                shift: int32 = low_word(at) & (CHUNK_BYTES - 1)
                copy_async_if(
                    CHUNK_BYTES, is_cached, target, i * pass_bytes, vector, int32(CHUNK_BYTES),
                    int32(i * lines_at_once < wanted),
                )  # fmt: skip
                copy_async_if(
                    CHUNK_BYTES, is_cached, target, i * pass_bytes + CHUNK_BYTES,
                    vector + CHUNK_BYTES, int32(CHUNK_BYTES),
                    int32(i * lines_at_once < wanted and shift > beyond),
                )  # fmt: skip
                at += next_lines

    def start_inside(target, source, step, item, rest, left, needed, begin, end):
        at, to, line = source, target, int32(0)
        wanted: int32 = min(left, needed) if rest > 0 else 0
        beyond = last_vectors(item, rest)
        while line < wanted:
            vector = at & -CHUNK_BYTES
            shift: int32 = low_word(at) & (CHUNK_BYTES - 1)
            has_first = vector >= begin and vector + CHUNK_BYTES <= end
            copy_async_if(
                CHUNK_BYTES, is_cached, to, 0, vector, int32(CHUNK_BYTES), int32(has_first)
            )
            has_second = shift > beyond and vector + 2 * CHUNK_BYTES <= end
            copy_async_if(
                CHUNK_BYTES, is_cached, to, CHUNK_BYTES, vector + CHUNK_BYTES, int32(CHUNK_BYTES),
                int32(has_second),
            )  # fmt: skip
            at += int64(lines_at_once * step)
            to = int32(to + pass_bytes)
            line = int32(line + lines_at_once)

    def patch(target, source, step, item, rest, left, needed, begin, end):
        at, to, line = source, target, int32(0)
        inside: int32 = min(max(rest, 0), CHUNK_BYTES)
        wanted: int32 = min(left, needed) if rest > 0 else 0
        while line < wanted:
            vector = at & -CHUNK_BYTES
            shift: int32 = low_word(at) & (CHUNK_BYTES - 1)
            behind = vector + CHUNK_BYTES * (1 + (inside + shift > CHUNK_BYTES))
            if vector < begin or behind > end:
                store_shared(to, 0, gather(at, int64(ITEM_BYTES), inside))
            at += int64(lines_at_once * step)
            to = int32(to + pass_bytes)
            line = int32(line + lines_at_once)

    def read_pair(target, line, needed):
        """The two vectors that hold a chunk."""
        at: int32 = target + line * row_bytes
        if has_excess:
            at = target if line >= needed else at
        return load_shared(int32, WORDS, at, 0) + load_shared(int32, WORDS, at, CHUNK_BYTES)

    def shift_pair(words, shift, masks):
        chunk = shift_words(words, shift)
        return (
            int32(chunk[0] & masks[0]), int32(chunk[1] & masks[1]),
            int32(chunk[2] & masks[2]), int32(chunk[3] & masks[3]),
        )  # fmt: skip

    read_pair, shift_pair = device(read_pair), device(shift_pair)

    def align(target, source, step, item, rest, left, needed):
        inside: int32 = min(max(rest, 0), CHUNK_BYTES)
        masks = ()
        for word in static_range(WORDS):  # what follows in memory must count as zero
            bytes_left: int32 = inside - word * WORD_BYTES
            mask = int32(-1) if bytes_left >= WORD_BYTES else int32(0xFFFF)
            masks = masks + (mask if bytes_left > 0 else int32(0),)
        for first in static_range(0, passes, TOGETHER):
            pairs = ()
            for i in static_range(first, first + TOGETHER):
                if i < passes:
                    pairs = pairs + (read_pair(target, int32(i * lines_at_once), needed),)
            cuda.syncwarp()
            for i in static_range(first, first + TOGETHER):
                if i < passes:
                    shift: int32 = low_word(source) + i * lines_at_once * step & CHUNK_BYTES - 1
                    if not is_along_k:  # whole lines are zero
                        mask = int32(-1) if i * lines_at_once < left else int32(0)
                        masks = (mask, mask, mask, mask)
                    chunk = shift_pair(pairs[i - first], shift, masks)
                    store_chunk_if(target, i * pass_bytes, chunk, int32(i * lines_at_once < needed))

    def lane_place(lane):
        """Matrices of 8 lines in the order of the instruction's registers (PTX ISA, mma.m16n8k16):
        rows and then k for the left operand, k and then columns for the right one."""
        inner, outer = lane // 8 % 2, lane // 16
        if not is_left:
            inner, outer = outer, inner
        # Now inner counts 8 x, outer 8 k.
        if is_along_k:
            return int32(inner * 8 + lane % 8), int32(outer * 8)
        return int32(inner * 8), int32(outer * 8 + lane % 8)

    steps = (row_bytes, ITEM_BYTES) if is_along_k else (ITEM_BYTES, row_bytes)
    return LineLoad(
        device(place), device(extents), device(start), device(align), device(start_inside),
        device(patch), device(lane_place), not is_along_k, *steps,
    )  # fmt: skip
