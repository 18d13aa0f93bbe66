"""A `load` of the frame `resident`: half precision, whole lines at any address.

A line of a tile is neighbouring elements of the operand, along k or along m or n ("x"). Lines in
shared memory are 16 bytes longer than the tile, an odd number of chunks of 16 bytes: eight that
follow each other share no bank when `ldmatrix` reads them. A thread copies always the same unit of
every so many lines.
If all lines begin and end at multiples of 16, 8 or 4 bytes, units are so long and go straight to
their slots. Lines of odd length begin at every even address. The aligned vectors that hold such a
line are copied, one more than it has chunks, and fill its slot in shared memory. Then each chunk
is shifted out of the two vectors around it, by the warp that copied the line: its lanes have read
all before one writes. Of a vector across an end of the operand, which may be the end of all memory,
only the elements inside are read, one by one.
Source: PTX ISA, "cp.async", "ldmatrix", "shf".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.batch_load import Load, TileBytes
from dxgemm.handwritten.parts.line_tiles import (
    CHUNK_BYTES,
    WORD_BYTES,
    WORDS,
    layout,
    make_chunk_loads,
)
from dxgemm.handwritten.parts.unroll import device, static_range

ITEM_BYTES = 2
CHUNK_ITEMS = CHUNK_BYTES // ITEM_BYTES
LONGEST_LINE = 2**21  # elements: byte offsets of all lines of a tile must fit in 32 bits
TOGETHER = 2  # chunks in a thread's registers
UNITS = 16, 8, 4  # bytes that cp.async copies
MODES = (*(f"{kind}{unit}" for kind in "kx" for unit in UNITS), "k", "x")


def line_mode(problem: Any, name: str) -> str:
    """Mode of operand "a" or "b" of a problem, one of `MODES`; "any" if it has no lines."""
    kind = layout(problem, name)[0]
    if kind not in "kx":
        return "any"
    batch, row, col = getattr(problem, name)
    x, x_step, k_step = (problem.m, row, col) if name == "a" else (problem.n, col, row)
    items, step, lines = (problem.k, x_step, x) if kind == "k" else (x, k_step, problem.k)
    # A power of two divides numbers if it divides their bitwise or. A stride along an extent of 1
    # is never taken.
    ends = (batch | step * (lines > 1) | items) * ITEM_BYTES | getattr(problem, f"{name}_alignment")
    return f"{kind}{next((unit for unit in UNITS if ends % unit == 0), '')}"


def line_bytes(items: int) -> int:
    """Bytes from a line of so many elements to the next, in shared memory."""
    return items * ITEM_BYTES + CHUNK_BYTES


class Lines(NamedTuple):
    """How threads share out a tile's lines in shared memory, and the units of each.

    Attributes:
        is_along_k: True if lines run along k.
        unit_bytes: bytes that a thread copies at a time.
        is_aligned: True if units are; otherwise they are chunks, shifted on the way.
        lines, items: their number, and elements of each.
        sharing: neighbouring threads that share out the units of so many lines at a time.
        together: lines of these threads at a time.
        at_once: lines of all threads.
        passes: lines of a thread.
    """

    is_along_k: bool
    unit_bytes: int
    is_aligned: bool
    lines: int
    items: int
    sharing: int
    together: int
    at_once: int
    passes: int

    @property
    def row_bytes(self) -> int:
        """Bytes from one line to the next in shared memory."""
        return line_bytes(self.items)

    @property
    def units(self) -> int:
        """Units of a line."""
        return self.items * ITEM_BYTES // self.unit_bytes

    @property
    def place(self) -> TileBytes:
        """The tile in shared memory."""
        steps = TileBytes(self.row_bytes, ITEM_BYTES)
        return steps if self.is_along_k else TileBytes(*reversed(steps))


def share_lines(mode: str, tile_x: int, tile_k: int, threads: int) -> Lines:
    """The lines of a tile whose operand has one of `MODES`."""
    is_along_k, is_aligned = mode.startswith("k"), mode[1:] != ""
    count, items = (tile_x, tile_k) if is_along_k else (tile_k, tile_x)
    unit_bytes = int(mode[1:] or CHUNK_BYTES)
    # A warp shifts lines of its own; otherwise neighbouring units are shared out among all threads.
    sharing = threads if is_aligned else 32
    together = sharing // (items * ITEM_BYTES // unit_bytes)
    at_once = threads // sharing * together
    passes = -(-count // at_once)
    return Lines(
        is_along_k, unit_bytes, is_aligned, count, items, sharing, together, at_once, passes
    )


class LineCopies(NamedTuple):
    """Lines of a tile that a thread copies.

    Attributes:
        target: offset of its first unit in shared memory.
        step: bytes from one line of the operand to the next.
        line, item: of its first unit.
        matrix, batch: the operand.
        lines, length: lines of the operand's matrices, and elements of each.
        is_inside: True if all vectors around the matrix's elements are between them.
    """

    target: Any
    step: Any
    line: Any
    item: Any
    matrix: Any
    batch: Any
    lines: Any
    length: Any
    is_inside: Any


class Extents(NamedTuple):
    """How much of its lines a thread copies.

    Attributes:
        rest: bytes of a line of the operand from the thread's unit on.
        left: lines from its first on that are inside.
        needed: those that are needed: along k, multiples of 16 elements are.
    """

    rest: Any
    left: Any
    needed: Any


def make_begin_lines(lines: Lines) -> Callable[..., Any]:
    """The `begin` of the load."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import global_address

    sharing, together, units, items = lines.sharing, lines.together, lines.units, lines.items
    is_along_k, row_bytes, unit_items = lines.is_along_k, lines.row_bytes, lines.unit_bytes // 2

    @device
    def begin(smem, tile, first, matrix, outer, depth, batch):
        thread: int32 = tile.thread
        member: int32 = thread % sharing
        line: int32 = thread // sharing * together + member // units
        item: int32 = member % units * unit_items
        if member >= together * units:  # nothing to copy
            line, item = int32(0), int32(items)
        if is_along_k:
            stride, first_line, first_item = matrix.row, int32(first + line), item
            line_count, length = outer, depth
        else:
            stride, first_line, first_item = matrix.col, line, int32(first + item)
            line_count, length = depth, outer
        step: int32 = stride * ITEM_BYTES
        source = global_address(matrix.data) + matrix.start * ITEM_BYTES
        source += int64(first_line) * int64(step) + first_item * ITEM_BYTES
        # Around a matrix between others all vectors are inside the operand.
        is_between = tile.matrix > 0 and tile.matrix < batch - 1
        is_inside = is_between and abs(matrix.batch * ITEM_BYTES) >= 2 * CHUNK_BYTES
        target: int32 = smem + line * row_bytes + item * ITEM_BYTES
        copies = LineCopies(target, step, line, item, matrix, batch, line_count, length, is_inside)
        return copies, source

    return begin


def make_find_ends() -> Callable[..., Any]:
    """A device function: (copies) -> the operand's first address and its end."""
    from numba import int64

    from dxgemm.handwritten.parts.intrinsics import global_address

    @device
    def find_ends(copied):
        last_matrix = int64(copied.batch - 1) * copied.matrix.batch * ITEM_BYTES
        last_line = int64(copied.lines - 1) * int64(copied.step)
        address = global_address(copied.matrix.data)
        begin = address + min(last_matrix, 0) + min(last_line, 0)
        end = address + max(last_matrix, 0) + max(last_line, 0) + copied.length * ITEM_BYTES
        return begin, end

    return find_ends


def make_extents(lines: Lines, tile_k: int) -> Callable[..., Any]:
    """A device function: (line, item, x_left, k_left) -> the `Extents` of a thread."""
    from numba import int32

    is_along_k, count, items = lines.is_along_k, lines.lines, lines.items

    @device
    def extents(line, item, x_left, k_left):
        k_needed: int32 = min(int32(k_left + 15 & -16), tile_k)
        if is_along_k:
            length, length_needed, left, needed = k_left, k_needed, x_left, x_left
        else:
            length, length_needed, left, needed = x_left, min(x_left, items), k_left, k_needed
        if item >= length_needed:
            needed = int32(0)
        # More than a chunk makes no difference; all bytes might need more than 32 bits.
        rest: int32 = min(int32(length - item), int32(2 * CHUNK_ITEMS)) * ITEM_BYTES
        return Extents(rest, int32(left - line), int32(min(needed, count) - line))

    return extents


def make_start_units(lines: Lines, is_cached: bool) -> Callable[..., None]:
    """A device function: (copies, source, extents): start the copies of units that are aligned."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.line_intrinsics import copy_async_if

    unit_bytes, passes, at_once = lines.unit_bytes, lines.passes, lines.at_once
    pass_bytes = at_once * lines.row_bytes

    @device
    def start_units(copied, source, extent):
        at, next_lines = source, int64(at_once * copied.step)
        inside: int32 = min(max(extent.rest, 0), unit_bytes)
        for i in static_range(passes):
            count: int32 = inside * (i * at_once < extent.left)
            is_needed = int32(i * at_once < extent.needed)
            copy_async_if(
                unit_bytes, is_cached, copied.target, i * pass_bytes, at, count, is_needed
            )
            at += next_lines

    return start_units


def make_start_vectors(lines: Lines, is_cached: bool) -> Callable[..., None]:
    """A device function: (copies, source, extents): copy the vectors around chunks."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import low_word
    from dxgemm.handwritten.parts.line_intrinsics import copy_async_if

    items, passes, at_once = lines.items, lines.passes, lines.at_once
    pass_bytes, find_ends = at_once * lines.row_bytes, make_find_ends()

    @device
    def last_vectors(item, rest):
        """Shift beyond which a thread also copies the vector after that of its chunk."""
        if rest <= CHUNK_BYTES or item == items - CHUNK_ITEMS:
            return int32(CHUNK_BYTES - min(max(rest, 0), CHUNK_BYTES))
        return int32(CHUNK_BYTES)

    @device
    def start_pair(to, at, beyond, has_first, has_second):
        vector = at & -CHUNK_BYTES
        has_second = has_second and (low_word(at) & (CHUNK_BYTES - 1)) > beyond
        copy_async_if(CHUNK_BYTES, is_cached, to, 0, vector, int32(CHUNK_BYTES), int32(has_first))
        copy_async_if(
            CHUNK_BYTES, is_cached, to, CHUNK_BYTES, vector + CHUNK_BYTES, int32(CHUNK_BYTES),
            int32(has_second),
        )  # fmt: skip

    @device
    def start_vectors(copied, source, extent):
        at, next_lines = source, int64(at_once * copied.step)
        wanted: int32 = min(extent.left, extent.needed) if extent.rest > 0 else 0
        beyond = last_vectors(copied.item, extent.rest)
        if copied.is_inside:
            for i in static_range(passes):
                is_wanted = i * at_once < wanted
                start_pair(int32(copied.target + i * pass_bytes), at, beyond, is_wanted, is_wanted)
                at += next_lines
        else:
            begin, end = find_ends(copied)
            to: int32 = copied.target
            line: int32 = 0
            while line < wanted:
                vector = at & -CHUNK_BYTES
                has_first = vector >= begin and vector + CHUNK_BYTES <= end
                start_pair(to, at, beyond, has_first, vector + 2 * CHUNK_BYTES <= end)
                at += next_lines
                to += pass_bytes
                line += at_once

    return start_vectors


def make_align(lines: Lines) -> Callable[..., None]:
    """A device function: (copies, source, extents): put chunks in place, out of vectors there."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import load_shared, low_word
    from dxgemm.handwritten.parts.line_intrinsics import shift_words, store_chunk_if

    passes, at_once, is_along_k = lines.passes, lines.at_once, lines.is_along_k
    pass_bytes, has_excess = at_once * lines.row_bytes, passes * at_once > lines.lines

    @device
    def read_pair(target, number, needed):
        """The two vectors that hold the chunk of a pass."""
        at: int32 = target + number * pass_bytes
        if has_excess:
            at = target if number * at_once >= needed else at
        return load_shared(int32, WORDS, at, 0) + load_shared(int32, WORDS, at, CHUNK_BYTES)

    @device
    def shift_pair(words, shift, masks):
        chunk = shift_words(words, shift)
        return (
            int32(chunk[0] & masks[0]), int32(chunk[1] & masks[1]),
            int32(chunk[2] & masks[2]), int32(chunk[3] & masks[3]),
        )  # fmt: skip

    @device
    def align(copied, source, extent):
        inside: int32 = min(max(extent.rest, 0), CHUNK_BYTES)
        masks = ()
        for word in static_range(WORDS):  # what follows in memory must count as zero
            bytes_left: int32 = inside - word * WORD_BYTES
            mask = int32(-1) if bytes_left >= WORD_BYTES else int32(0xFFFF)
            masks = masks + (mask if bytes_left > 0 else int32(0),)
        for first in static_range(0, passes, TOGETHER):
            pairs = ()
            for i in static_range(first, min(first + TOGETHER, passes)):
                pairs = pairs + (read_pair(copied.target, int32(i), extent.needed),)
            cuda.syncwarp()
            for i in static_range(first, min(first + TOGETHER, passes)):
                shift: int32 = low_word(source) + i * at_once * copied.step & CHUNK_BYTES - 1
                if not is_along_k:  # whole lines are zero
                    mask = int32(-1) if i * at_once < extent.left else int32(0)
                    masks = (mask, mask, mask, mask)
                chunk = shift_pair(pairs[i - first], shift, masks)
                is_needed = int32(i * at_once < extent.needed)
                store_chunk_if(copied.target, i * pass_bytes, chunk, is_needed)

    return align


def make_patch(lines: Lines) -> Callable[..., None]:
    """A device function: (copies, source, extents): put chunks whose vectors cross an end."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import low_word, store_shared

    at_once, pass_bytes = lines.at_once, lines.at_once * lines.row_bytes
    gather, *_ = make_chunk_loads(ITEM_BYTES)
    find_ends = make_find_ends()

    @device
    def patch(copied, source, extent):
        begin, end = find_ends(copied)
        at = source
        to: int32 = copied.target
        line: int32 = 0
        inside: int32 = min(max(extent.rest, 0), CHUNK_BYTES)
        wanted: int32 = min(extent.left, extent.needed) if extent.rest > 0 else 0
        while line < wanted:
            vector = at & -CHUNK_BYTES
            shift: int32 = low_word(at) & (CHUNK_BYTES - 1)
            behind = vector + CHUNK_BYTES * (1 + (inside + shift > CHUNK_BYTES))
            if vector < begin or behind > end:
                store_shared(to, 0, gather(at, int64(ITEM_BYTES), inside))
            at += int64(at_once * copied.step)
            to += pass_bytes
            line += at_once

    return patch


def make_line_load(lines: Lines, tile_k: int, is_cached: bool) -> Load:
    """The load of one operand; is_cached is True if copies go through L1."""
    is_along_k, extents = lines.is_along_k, make_extents(lines, tile_k)
    make_start = make_start_units if lines.is_aligned else make_start_vectors
    start_copies, align, patch = make_start(lines, is_cached), make_align(lines), make_patch(lines)

    @device
    def start(copied, source, part, x_left, k_left):
        start_copies(copied, source, extents(copied.line, copied.item, x_left, k_left))

    @device
    def advance(copied, source):
        return source + tile_k * (ITEM_BYTES if is_along_k else copied.step)

    @device
    def finish(copied, source, x_left, k_left):
        extent = extents(copied.line, copied.item, x_left, k_left)
        align(copied, source, extent)
        if not copied.is_inside:
            patch(copied, source, extent)

    begin = make_begin_lines(lines)
    return Load(begin, start, advance, finish=None if lines.is_aligned else finish)
