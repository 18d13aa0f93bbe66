"""Tiles of lines of 128 bytes in shared memory: copied from any layout, read by `ldmatrix`.

A line is one row of all banks. Rows of a and columns of b are called x here. A K-major operand,
whose k are contiguous, is stored in lines of k, one per x; an MN-major one in lines of x,
one for each k, which `ldmatrix.trans` transposes if they have two bytes. A tile is one line of k
deep, so that both have the same size. The eight chunks of 16 bytes of a line are permuted by XOR
with the number of the line: the eight lines that `ldmatrix` reads at a time are in different banks.

Copies depend on the layout in global memory:
    k16, x16    lines at multiples of 16 bytes: cp.async, one chunk per thread
    k16_ragged, x16_ragged    the same, but lines end within a chunk
    k, x        lines at any address: the two aligned vectors around a chunk, shifted in registers
    x4          lines of bytes at multiples of 4: words, whose bytes become lines of k in registers
    any         any strides: elements, into lines of k
    each        the same, an element at a time: slow, but without registers and with little code
Elements outside the operand count as zero, and no address outside of it is read.
Source: PTX ISA, "ldmatrix", "cp.async", "shf"; CUTLASS, "Efficient GEMM in CUDA", for the
permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.operands import ITEM_BYTES
from dxgemm.handwritten.parts.unroll import device, static_range

LINE_BYTES, CHUNK_BYTES = 128, 16
TRANSPOSED_BYTES = 2  # of the elements that ldmatrix transposes
CHUNKS = LINE_BYTES // CHUNK_BYTES
STEPS = 4  # an instruction takes 32 bytes of k
WORDS, WORD_BYTES = 4, 4  # of a chunk
# A kernel for a layout reads operands of those before it too, if their lines run the same way.
LAYOUTS = ("k16", "k16_ragged", "k", "x16", "x16_ragged", "x", "x4", "any")
HELD = 2 * WORDS + 1  # registers for a chunk in flight: two vectors, and by how much to shift


class LineTile(NamedTuple):
    """Device functions for the tiles of one operand.

    Attributes:
        is_async: True if copies go straight to shared memory; then `start` is used, else `load` and
            later `put`.
        first: (thread) -> (x, k) of the first chunk in a tile that a thread copies.
        place: (x, k) -> offset of an element in the tile, in bytes.
        start: (target, source, x_step, k_step, x_left, k_left) starts the thread's copies. target
            and source are the addresses of its first chunk, steps are in bytes; elements x_left or
            k_left and more away from the first are outside the operand.
        load: (source, x_step, k_step, x_left, k_left, begin, end) -> the thread's chunks in
            registers; the operand is between the addresses begin and end.
        put: (target, chunks) writes what `load` returned.
        lane: (lane) -> (x, k) of the line whose address the lane gives to `ldmatrix`.
        read: (address, offset) -> the fragments of 16 x and one step.
        xor, add: tables by step and by 16 x: the lane's address is XORed with the one, and the
            other is added, to get from the first fragments to these.
        load_inside: (source, x_step, k_step) is `load` where the thread's chunks, and the aligned
            vectors around them, are inside the operand; None if the layout is "any" or "x4".
    """

    is_async: bool
    first: Callable[..., Any]
    place: Callable[..., Any]
    start: Callable[..., Any]
    load: Callable[..., Any]
    put: Callable[..., Any]
    lane: Callable[..., Any]
    read: Callable[..., Any]
    xor: tuple[tuple[int, ...], ...]
    add: tuple[tuple[int, ...], ...]
    load_inside: Callable[..., Any] | None


def layout(problem: Any, name: str) -> str:
    """Layout of operand "a" or "b" of a problem, one of those above."""
    return _either(_layout_along("x", problem, name), _layout_along("k", problem, name))


def common_layout(problems: Sequence[Any], name: str) -> str:
    """Layout in which operand "a" or "b" of each of these problems can be read."""
    along_x, along_k = (
        max((_layout_along(kind, problem, name) for problem in problems), key=LAYOUTS.index)
        for kind in "xk"
    )
    return _either(along_x, along_k)


def _either(along_x: str, along_k: str) -> str:
    """The better of an operand's layouts: in whole chunks, or else along k."""
    return along_x if "16" in along_x or along_k == "any" else along_k


def _layout_along(kind: str, problem: Any, name: str) -> str:
    """Layout of an operand if its lines run along x, or along k; "any" if they cannot."""
    item_bytes = ITEM_BYTES[problem.dtype]
    batch, row, col = getattr(problem, name)
    x, x_step, k_step = (problem.m, row, col) if name == "a" else (problem.n, col, row)
    step, items, line_step, lines = (
        (x_step, x, k_step, problem.k) if kind == "x" else (k_step, problem.k, x_step, x)
    )
    # A stride along an extent of 1 is never taken.
    if step != 1 and items > 1:
        return "any"
    starts = (batch | line_step * (lines > 1)) * item_bytes
    starts |= getattr(problem, f"{name}_alignment")
    if kind == "x" and item_bytes != TRANSPOSED_BYTES:
        return "x4" if item_bytes == 1 and starts % WORD_BYTES == 0 else "any"
    if starts % CHUNK_BYTES:
        return kind
    is_whole = items * item_bytes % CHUNK_BYTES == 0 or name in problem.padded
    return f"{kind}16" if is_whole else f"{kind}16_ragged"


def make_chunk_loads(item_bytes: int) -> tuple[Callable[..., Any], ...]:
    """The device functions gather, load_vectors and load_chunk, which read a chunk of 16 bytes.

    gather(source, step, inside) returns the words of a chunk whose elements are `step` bytes apart;
    only the first `inside` bytes are in bounds, and the rest is zero-filled. load_vectors(source,
    inside, begin, end) returns the two aligned vectors around a chunk at any address, and by how
    many bytes to shift them; the operand is between the addresses begin and end. load_chunk
    takes the same and returns the words of the chunk.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import load_global, low_word
    from dxgemm.handwritten.parts.line_intrinsics import load_item, shift_words

    part_bytes = min(item_bytes, WORD_BYTES)  # half of an element of 8 bytes

    @device
    def gather(source, step, inside):
        words = ()
        for word in static_range(WORDS):
            bits = int32(0)
            for part in static_range(WORD_BYTES // part_bytes):
                place = word * WORD_BYTES + part * part_bytes
                at = source + (place // item_bytes * step + place % item_bytes)
                element = load_item(part_bytes, at, int32(inside > place))
                bits = low_word(bits | element << (8 * part_bytes * part))
            words = words + (bits,)
        return words

    @device
    def load_vectors(source, inside, begin, end):
        shift: int32 = source & (CHUNK_BYTES - 1)
        vector = source - shift
        if inside == CHUNK_BYTES and vector >= begin and vector + 2 * CHUNK_BYTES <= end:
            words = load_global(int32, 4, vector, 0) + load_global(int32, 4, vector, 16)
        else:
            words = gather(source, int32(item_bytes), inside)
            words = words + words
            shift = 0
        return words + (shift,)

    @device
    def load_chunk(source, inside, begin, end):
        read = load_vectors(source, inside, begin, end)
        return shift_words(read[: 2 * WORDS], read[2 * WORDS])

    return gather, load_vectors, load_chunk


def make_lane_place(is_left: bool, is_transposed: bool, chunk_items: int) -> Callable[..., Any]:
    """A device function: (lane) -> (x, k) of the line whose address the lane gives to `ldmatrix`.

    Matrices of 8 lines in the order of the instruction's registers (PTX ISA, mma.m16n8k16): rows
    and then k for the left operand, k and then columns for the right one.
    """
    from numba import int32

    @device
    def lane_place(lane):
        inner, outer = lane // 8 % 2, lane // 16
        if not is_left:
            inner, outer = outer, inner
        # Now inner counts 8 x, outer a chunk of k.
        if is_transposed:
            return int32(inner * 8), int32(outer * chunk_items + lane % 8)
        return int32(inner * 8 + lane % 8), int32(outer * chunk_items)

    return lane_place


def make_line_tile(
    layout: str, side: str, extent: int, warp_extent: int, threads: int, item_bytes: int
) -> LineTile:
    """Make the functions for one operand, whose tiles all threads of a block copy together.

    Args:
        layout: layout of the operand in global memory.
        side: "left" or "right" operand of the instruction.
        extent, warp_extent: x of a tile and of a warp; powers of two, as threads is.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import (
        copy_async_part,
        load_global,
        low_word,
        store_shared,
    )
    from dxgemm.handwritten.parts.line_intrinsics import (
        load_item,
        load_matrices,
        shift_words,
        transpose_bytes,
    )

    line_items, chunk_items = LINE_BYTES // item_bytes, CHUNK_BYTES // item_bytes
    turns_bytes = layout == "x4"
    is_transposed = layout.startswith("x") and not turns_bytes
    is_each, is_ragged = layout == "each", layout.endswith("ragged")
    is_async = "16" in layout or is_each
    # A thread copies a chunk at a time, or, with words of bytes, the chunks of four x; where there
    # are more threads than these, some copy the same ones.
    step_x = WORD_BYTES if turns_bytes else 1
    copies = extent // step_x * CHUNKS
    passes = max(copies // threads, 1)
    threads_x = min(extent // step_x, threads)  # side by side along x, for elements and words
    turns, columns = extent // (step_x * threads_x), threads // threads_x

    def place(x, k):
        if is_transposed:
            line, item = x // line_items * line_items + k, x % line_items
        else:
            line, item = x, k
        # Neither 8 lines in a row nor every fourth of 32 share a bank.
        row = line ^ line // CHUNKS % WORD_BYTES if turns_bytes else line
        chunk = item // chunk_items ^ row % CHUNKS
        return int32(line * LINE_BYTES + chunk * CHUNK_BYTES + item % chunk_items * item_bytes)

    def first(thread):
        if layout in ("any", "each") or turns_bytes:
            x, k = thread % threads_x * step_x, thread // threads_x % CHUNKS * chunk_items
        elif is_transposed:
            x, k = thread % CHUNKS * chunk_items, thread // CHUNKS
        else:
            x, k = thread // CHUNKS, thread % CHUNKS * chunk_items
        return int32(x), int32(k)

    def ahead(number: int) -> tuple[int, int]:
        """x and k from a thread's first chunk to another."""
        if layout in ("any", "each") or turns_bytes:
            return number % turns * threads * step_x, number // turns * columns * chunk_items
        lines = number * threads // CHUNKS
        return (
            (lines // line_items * line_items, lines % line_items) if is_transposed else (lines, 0)
        )

    ahead_x, ahead_k = zip(*map(ahead, range(passes)), strict=True)

    # All sizes are powers of two: an offset is the XOR of those of its index's bits. Those below a
    # line are permuted, the others are added.
    def changes(places: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        offsets = [int(place(x, k)) for x, k in places]
        low = tuple(offset % LINE_BYTES for offset in offsets)
        return low, tuple(offset - offset % LINE_BYTES for offset in offsets)

    pass_xor, pass_add = changes(list(zip(ahead_x, ahead_k, strict=True)))
    word_xor, word_add = changes([(x, 0) for x in range(WORD_BYTES)])
    step_items = line_items // STEPS
    xor, add = zip(
        *(changes([(x, step * step_items) for x in range(0, warp_extent, 16)])
          for step in range(STEPS)),
        strict=True,
    )  # fmt: skip

    def chunk_bytes(x_left, k_left):
        """Bytes of a chunk that are inside the operand."""
        items, lines = (x_left, k_left) if is_transposed else (k_left, x_left)
        return int32(min(max(items * item_bytes, 0), CHUNK_BYTES) * (lines > 0))

    chunk_bytes = device(chunk_bytes)
    gather, load_vectors, _ = make_chunk_loads(item_bytes)

    def count(number, x_left, k_left):
        return chunk_bytes(int32(x_left - ahead_x[number]), int32(k_left - ahead_k[number]))

    count = device(count)

    def start(target, source, x_step, k_step, x_left, k_left):
        for number in static_range(passes):
            inside = count(number, x_left, k_left)
            to = int32(target ^ pass_xor[number])
            at = source + (ahead_x[number] * x_step + ahead_k[number] * k_step)
            if is_ragged:
                if inside == 0 or inside == CHUNK_BYTES:
                    copy_async_part(CHUNK_BYTES, to, pass_add[number], at, inside)
            else:
                copy_async_part(CHUNK_BYTES, to, pass_add[number], at, inside)
        if is_ragged:
            # A chunk across the edge: cp.async would read all of it, so it is read by element.
            along_left, along_step = (x_left, x_step) if is_transposed else (k_left, k_step)
            if along_left > 0 and along_left & (chunk_items - 1) != 0:
                for number in range(passes):
                    line: int32 = number * (threads // CHUNKS)
                    if is_transposed:
                        x, k = int32(line // line_items * line_items), int32(line % line_items)
                    else:
                        x, k = line, int32(0)
                    inside = chunk_bytes(int32(x_left - x), int32(k_left - k))
                    if inside > 0 and inside < CHUNK_BYTES:
                        words = gather(source + (x * x_step + k * k_step), along_step, inside)
                        store_shared(int32(target + number * threads * CHUNK_BYTES), 0, words)

    def start_each(target, source, x_step, k_step, x_left, k_left):
        for number in range(passes):
            x: int32 = number % turns * threads
            k: int32 = number // turns * columns * chunk_items
            inside = chunk_bytes(int32(x_left - x), int32(k_left - k))
            words = gather(source + (x * x_step + k * k_step), k_step, inside)
            offset = place(x, k)
            low: int32 = offset % LINE_BYTES
            store_shared(int32((target ^ low) + offset - low), 0, words)

    def load_words(source, x_step, k_step, x_left, k_left, begin, end):
        """Words of bytes of four neighbouring x, for each k of a chunk."""
        chunks = ()
        for number in static_range(passes):
            at = source + (ahead_x[number] * x_step + ahead_k[number] * k_step)
            x_inside: int32 = x_left - ahead_x[number]
            k_inside: int32 = k_left - ahead_k[number]
            words = ()
            if x_inside >= WORD_BYTES:
                for k in static_range(chunk_items):
                    words = words + (load_item(WORD_BYTES, at + k * k_step, int32(k_inside > k)),)
            else:
                for k in static_range(chunk_items):
                    word = int32(0)
                    for x in static_range(WORD_BYTES):
                        is_inside = int32(k_inside > k and x_inside > x)
                        byte = load_item(1, at + (k * k_step + x), is_inside)
                        word = low_word(word | byte << (8 * x))
                    words = words + (word,)
            chunks = chunks + words
        return chunks

    def put_words(target, chunks):
        for number in static_range(passes):
            words = chunks[chunk_items * number : chunk_items * (number + 1)]
            columns = ()
            for word in static_range(WORDS):
                columns = columns + transpose_bytes(words[4 * word : 4 * word + 4])
            for x in static_range(WORD_BYTES):
                to = int32(target ^ pass_xor[number] ^ word_xor[x])
                store_shared(to, pass_add[number] + word_add[x], columns[x::WORD_BYTES])

    def load(source, x_step, k_step, x_left, k_left, begin, end):
        chunks = ()
        for number in static_range(passes):
            at = source + (ahead_x[number] * x_step + ahead_k[number] * k_step)
            inside = count(number, x_left, k_left)
            if layout == "any":
                chunks = chunks + gather(at, k_step, inside)
            else:
                chunks = chunks + load_vectors(at, inside, begin, end)
        return chunks

    def load_inside(source, x_step, k_step):
        chunks = ()
        for number in static_range(passes):
            at = source + (ahead_x[number] * x_step + ahead_k[number] * k_step)
            shift: int32 = at & (CHUNK_BYTES - 1)
            vector = at - shift
            words = load_global(int32, 4, vector, 0) + load_global(int32, 4, vector, 16)
            chunks = chunks + words + (shift,)
        return chunks

    def put(target, chunks):
        for number in static_range(passes):
            to = int32(target ^ pass_xor[number])
            if layout == "any":
                words = chunks[WORDS * number : WORDS * (number + 1)]
            else:
                words = shift_words(
                    chunks[HELD * number : HELD * number + 2 * WORDS],
                    chunks[HELD * (number + 1) - 1],
                )
            store_shared(to, pass_add[number], words)

    def read(address, offset):
        return load_matrices(is_transposed, address, offset)

    place = device(place)
    start = start_each if is_each else start
    lane_place = make_lane_place(side == "left", is_transposed, chunk_items)
    load, put = (load_words, put_words) if turns_bytes else (load, put)
    return LineTile(
        is_async, device(first), place, device(start), device(load),
        device(put), lane_place, device(read), xor, add,
        None if layout == "any" or turns_bytes else device(load_inside),
    )  # fmt: skip
