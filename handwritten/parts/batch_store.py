"""The `store` of the frame `resident`: the sums of a small matrix to global memory.

Those of half precision pass shared memory. They are rounded and put there as lines of the result,
where neither an epilogue nor c nor float32 wants them whole. Threads then store these lines 16
bytes at a time, or, from an odd address on, in words of two elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.batch_place import make_sync
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES
from dxgemm.handwritten.parts.unroll import device, static_range

ITEM_BYTES, SUM_BYTES = 2, 4
CHUNK_ITEMS = CHUNK_BYTES // ITEM_BYTES
# The line of an element is its number times QUOTIENT / columns, rounded up, over QUOTIENT: exact as
# long as elements * columns are less than QUOTIENT, and in 32 bits for less than 512 rows.
QUOTIENT_BITS = 22
QUOTIENT = 1 << QUOTIENT_BITS
RUN_TURNS = 4  # words of a thread in flight


class Store(NamedTuple):
    """Device function that stores the sums of a thread.

    Attributes:
        store: (sums, row, col, is_inside, origin, result): row and col are the thread's first
            element; is_inside is True if all of the tile is in the result. Or, if is_shared:
            (sums, smem, thread, tile, work, result, held), as in the other frames: all threads of
            the tile call it together.
        is_shared: see above.
        takes_smem: True if it needs the shared memory of a and b.
    """

    store: Callable[..., None]
    is_shared: bool = False
    takes_smem: bool = False


def rounded_line_bytes(tile_n: int) -> int:
    """Bytes from a line of rounded sums to the next: eight rows of four words share no bank."""
    return tile_n * ITEM_BYTES + CHUNK_BYTES


def sum_line_bytes(tile_n: int) -> int:
    """Bytes from a line of sums to the next: four rows of eight words share no bank."""
    return (tile_n + 8) * SUM_BYTES


def tile_bytes(tile_m: int, tile_n: int) -> int:
    """Shared memory of a tile of the result."""
    return tile_m * sum_line_bytes(tile_n)


def line_threads(pieces: int) -> int:
    """Neighbouring threads that store a line of so many pieces: a power of two, a warp at most."""
    return min(32, 1 << (pieces.bit_length() - 1))


def make_put(config: Any, kind: str) -> Callable[..., None]:
    """A device function: put a warp's sums times alpha into lines of shared memory.

    Args:
        kind: "f16" or "bf16" if they are rounded, "" if not.
    """
    from numba import int32

    from dxgemm.handwritten.parts.hopper import pack_pair
    from dxgemm.handwritten.parts.intrinsics import store_shared

    mmas_m, mmas_n = config.warp_m // 16, config.warp_n // 8
    item_bytes = ITEM_BYTES if kind else SUM_BYTES
    line_bytes = rounded_line_bytes(config.tile_n) if kind else sum_line_bytes(config.tile_n)

    @device
    def put(acc, smem, lane, row, col, alpha):
        target: int32 = smem + (row + lane // 4) * line_bytes
        target += (col + lane % 4 * 2) * item_bytes
        for i in static_range(2 * mmas_m):
            for j in static_range(mmas_n):
                place = (i // 2 * mmas_n + j) * 4 + i % 2 * 2
                x, y = alpha * acc[place], alpha * acc[place + 1]
                if kind:
                    values = (pack_pair(kind, x, y),)
                else:
                    values = (x, y)
                store_shared(target, 8 * i * line_bytes + 8 * j * item_bytes, values)

    return put


def make_vectors_out(config: Any) -> Callable[..., None]:
    """A device function: lines of rounded sums to memory, 16 bytes at a time."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import load_shared, store_global

    tile_m, line_bytes = config.tile_m, rounded_line_bytes(config.tile_n)
    chunks = config.tile_n // CHUNK_ITEMS
    lines_at_once = config.tile_threads // chunks
    passes = -(-tile_m // lines_at_once)

    @device
    def vectors_out(smem, thread, rows, cols, target, target_line):
        line: int32 = thread // chunks
        item: int32 = thread % chunks * CHUNK_ITEMS
        if line >= lines_at_once or item >= cols:
            rows = int32(0)
        source: int32 = smem + line * line_bytes + item * ITEM_BYTES
        to = target + line * target_line + item * ITEM_BYTES
        for i in static_range(passes):
            if line + i * lines_at_once < rows:
                words = load_shared(int32, 4, source, i * lines_at_once * line_bytes)
                store_global(to, 0, words)
            to += lines_at_once * target_line

    return vectors_out


def make_join() -> Callable[..., Any]:
    """A device function: (first, second) -> the word of two halves at these shared addresses."""
    from numba import int32, uint16

    from dxgemm.handwritten.parts.intrinsics import load_shared, low_word

    @device
    def join(first, second):
        low = int32(load_shared(uint16, 1, int32(first), 0)[0])
        high = int32(load_shared(uint16, 1, int32(second), 0)[0])
        return low_word(low | high << 16)

    return join


def make_words_out(config: Any) -> Callable[..., None]:
    """A device function: lines of rounded sums to any even addresses, in words of two elements."""
    from numba import int32, uint16

    from dxgemm.handwritten.parts.intrinsics import low_word, store_global

    lines_at_once, line_bytes = config.tile_threads // 32, rounded_line_bytes(config.tile_n)
    word_turns = config.tile_n // 64 + 1
    join = make_join()

    @device
    def put_word(to, item, items, source):
        """Store elements `item` and the next, if they are among `items`."""
        if item < items:
            word = join(source, source + ITEM_BYTES)
            at = to + item * ITEM_BYTES
            if item < 0:
                store_global(at, ITEM_BYTES, (uint16(word >> 16),))
            elif int32(item + 1) < items:
                store_global(at, 0, (word,))
            else:
                store_global(at, 0, (uint16(word),))

    @device
    def words_out(smem, thread, rows, cols, target, target_line):
        line: int32 = thread // 32
        to = target + line * target_line
        source: int32 = smem + line * line_bytes
        while line < rows:
            # Of the first word of a line only the second element is its own, at an odd address.
            item: int32 = thread % 32 * 2 - (low_word(to) >> 1 & 1)
            for _ in static_range(word_turns):
                put_word(to, item, cols, source + item * ITEM_BYTES)
                item += 64
            line += lines_at_once
            to += lines_at_once * target_line
            source += lines_at_once * line_bytes

    return words_out


def make_run_out(config: Any) -> Callable[..., None]:
    """A device function: lines that follow each other without a gap, words across two lines too."""
    from numba import int32, uint16

    from dxgemm.handwritten.parts.intrinsics import divide, load_shared, low_word, store_global
    from dxgemm.handwritten.parts.line_intrinsics import store_word_if

    threads, line_bytes = config.tile_threads, rounded_line_bytes(config.tile_n)
    join = make_join()

    @device
    def run_out(smem, thread, rows, cols, target):
        items: int32 = rows * cols
        gap: int32 = line_bytes - cols * ITEM_BYTES
        inverse = divide(int32(QUOTIENT - 1 + cols), cols)
        # The first word that is whole begins with this element.
        odd: int32 = low_word(target) >> 1 & 1
        first: int32 = 2 * thread + odd
        to = target + first * ITEM_BYTES
        # Casts keep numbers in 32 bits, which numba would compute in 64.
        while int32(first + 1) < items:
            words = ()
            for turn in static_range(RUN_TURNS):
                item: int32 = first + turn * 2 * threads
                item = item if int32(item + 1) < items else 0
                line: int32 = int32(item * inverse) >> QUOTIENT_BITS
                is_last = int32(item + 1) == int32(int32(line + 1) * cols)
                step: int32 = ITEM_BYTES + (gap if is_last else 0)
                source: int32 = smem + item * ITEM_BYTES + line * gap
                words = words + (join(source, source + step),)
            for turn in static_range(RUN_TURNS):
                is_whole = int32(first + (turn * 2 * threads + 1)) < items
                store_word_if(to, turn * 4 * threads, words[turn], int32(is_whole))
            first += RUN_TURNS * 2 * threads
            to += RUN_TURNS * 4 * threads
        if thread == 0 and rows > 0:  # elements that have half a word
            if odd == 1:
                store_global(target, 0, load_shared(uint16, 1, smem, 0))
            if items > odd and items - odd & 1 == 1:
                last: int32 = smem + (rows - 1) * line_bytes + (cols - 1) * ITEM_BYTES
                end = target + (items - 1) * ITEM_BYTES
                store_global(end, 0, load_shared(uint16, 1, last, 0))

    return run_out


def make_elements_out(config: Any, out_dtype: str, epilogue: Any) -> Callable[..., None]:
    """A device function: lines of sums to memory, by elements, plus beta * c and finished."""
    from numba import float32, int32, int64

    from dxgemm.handwritten.parts.elements import make_put_element
    from dxgemm.handwritten.parts.epilogue import columns_for_one
    from dxgemm.handwritten.parts.intrinsics import load_shared

    taken, line_bytes = columns_for_one(epilogue), sum_line_bytes(config.tile_n)
    piece_threads = line_threads(config.tile_n // taken)
    piece_lines = config.tile_threads // piece_threads
    begin, put = make_put_element("float32", out_dtype, epilogue, is_scaled=True)

    @device
    def elements_out(smem, thread, rows, cols, tile, result):
        alpha, beta, c, out, _, _, _, extra = result
        at = begin(int64(tile.matrix), alpha, beta, c, out, extra)
        line: int32 = thread // piece_threads
        while line < rows:
            item: int32 = thread % piece_threads * taken
            while item < cols:
                values = load_shared(float32, taken, int32(smem + line * line_bytes + item * 4), 0)
                row, col = int64(tile.row + line), int64(tile.col + item)
                put(values, at, row, col)
                item += piece_threads * taken
            line += piece_lines

    return elements_out


def make_line_store(
    config: Any, corner: Callable[..., Any], out_dtype: str, epilogue: Any
) -> Store:
    """The store of sums of `mma.sync` through shared memory, in whole lines of the result.

    Args:
        config: a config of `half_batch`.
        corner: device function: (thread) -> the first element of its warp in the tile.
        out_dtype: dtype of c and the result.
        epilogue: None, or a `Fusion`.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import global_address

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")
    rounds = kind != "" and epilogue is None
    tile_m, tile_n = config.tile_m, config.tile_n
    put_sums, elements_out = make_put(config, ""), make_elements_out(config, out_dtype, epilogue)
    put_rounded = make_put(config, kind) if rounds else put_sums
    vectors_out, words_out = make_vectors_out(config), make_words_out(config)
    run_out, sync = make_run_out(config), make_sync(config)

    @device
    def store(sums, smem, thread, tile, work, result, held):
        out = result.out
        row, col = corner(thread)
        rows: int32 = min(result.m - tile.row, tile_m)
        cols: int32 = min(result.n - tile.col, tile_n)
        lane: int32 = thread % 32
        if rounds and result.beta == 0 and out.col == 1:
            own: int32 = smem + CHUNK_BYTES  # the element before a line is read as well
            put_rounded(sums, own, lane, row, col, result.alpha)
            sync()
            line_bytes = out.row * ITEM_BYTES
            target = global_address(out.data) + ITEM_BYTES * (
                int64(tile.matrix) * out.batch + int64(tile.row) * out.row + tile.col
            )
            if (target | line_bytes | cols * ITEM_BYTES) % CHUNK_BYTES == 0:
                vectors_out(own, thread, rows, cols, target, line_bytes)
            elif out.row == cols:
                run_out(own, thread, rows, cols, target)
            else:
                words_out(own, thread, rows, cols, target, line_bytes)
        else:
            put_sums(sums, smem, lane, row, col, result.alpha)
            sync()
            elements_out(smem, thread, rows, cols, tile, result)

    return Store(store, is_shared=True, takes_smem=True)
