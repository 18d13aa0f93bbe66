"""The `store` of the frame `resident`: the sums of a small matrix to global memory.

Those of half precision pass shared memory. They are rounded and put there as lines of the result,
where neither an epilogue nor c nor float32 wants them whole. Threads then store these lines 16
bytes at a time, or, from an odd address on, in words of two elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.batch_place import make_sync
from dxgemm.handwritten.parts.fragment import Fragment
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.result import Origin
from dxgemm.handwritten.parts.tile_store import make_allows_vectors
from dxgemm.handwritten.parts.tiles import make_store_result
from dxgemm.handwritten.parts.unroll import device, static_range

ITEM_BYTES, SUM_BYTES = 2, 4
CHUNK_ITEMS = CHUNK_BYTES // ITEM_BYTES
# The line of an element is its number times QUOTIENT / columns, rounded up, over QUOTIENT: exact as
# long as elements * columns are less than QUOTIENT, and in 32 bits for less than 512 rows.
QUOTIENT_BITS = 22
QUOTIENT = 1 << QUOTIENT_BITS
RUN_TURNS = 4  # words of a thread in flight
ELEMENTS = 4  # of a thread whose operands are in flight


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


def make_elements_out(
    config: Any, line_bytes: int, dtype: str, out_dtype: str, epilogue: Any
) -> Callable[..., None]:
    """A device function: lines of sums to memory, neighbours by neighbouring threads, across lines.

    It takes the shared memory, the thread, the rows and columns of the tile that are inside, the
    first row and column, the `Origin`, and the `Result`.

    Args:
        dtype, out_dtype: dtypes of the sums, and of c and the result.
    """
    import numba
    from numba import int32, int64

    from dxgemm.handwritten.parts.elements import make_put_elements
    from dxgemm.handwritten.parts.epilogue import columns_for_one
    from dxgemm.handwritten.parts.intrinsics import divide, load_shared

    scalar, taken, threads = getattr(numba, dtype), columns_for_one(epilogue), config.tile_threads
    piece_bytes = taken * np.dtype(dtype).itemsize
    _, put = make_put_elements(ELEMENTS, dtype, out_dtype, epilogue)

    @device
    def elements_out(smem, thread, rows, cols, top, left, origin, result):
        items: int32 = cols // taken
        line = divide(thread, items)
        item: int32 = thread - line * items
        while line < rows:
            sums, places = (), ()
            for _ in static_range(ELEMENTS):
                y = min(line, int32(rows - 1))
                at: int32 = smem + y * line_bytes + item * piece_bytes
                sums = sums + (load_shared(scalar, taken, at, 0),)
                places = places + ((int64(top + y), int64(left + item * taken), line < rows),)
                item = int32(item + threads % items)
                line = int32(line + threads // items)
                if item >= items:
                    item, line = int32(item - items), int32(line + 1)
            put(sums, (origin, result), places)

    return elements_out


def make_fragment_store(
    config: Any, fragment: Fragment, corner: Callable[..., Any], dtype: str, epilogue: Any,
    is_far: bool,
) -> Store:  # fmt: skip
    """The store of threads that have vectors of rows: from registers, or through shared memory.

    Rows that allow no vectors pass it, if a block has one matrix: stored by the threads that have
    them, elements of neighbouring threads would be a vector apart.

    Args:
        fragment, dtype, epilogue, is_far: see `make_store_result`.
        corner: device function: (thread) -> its first element.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import store_shared

    store_result = make_store_result(fragment, dtype, epilogue, is_far)
    allows_vectors, item_bytes = make_allows_vectors(dtype), np.dtype(dtype).itemsize
    _, step, span, firsts, rows, cols = fragment.runs(VECTOR_BYTES // item_bytes)
    runs, line_bytes = len(firsts), config.tile_n * item_bytes + VECTOR_BYTES
    fits = config.tile_m * line_bytes <= config.tile_bytes(dtype)
    passes_smem, tile_m, tile_n = fits and config.matrices == 1, config.tile_m, config.tile_n
    elements_out = make_elements_out(config, line_bytes, dtype, dtype, epilogue)
    sync = make_sync(config)

    @device
    def store(sums, smem, thread, tile, work, result, is_inside):
        row, col = corner(thread)
        origin = Origin(tile.matrix, work.c.start, work.out.start)
        if passes_smem and result.out.col == 1 and not allows_vectors(origin, result):
            sync()  # the tile of the result overwrites those of a and b
            target: int32 = smem + row * line_bytes + col * item_bytes
            for i in static_range(runs):
                values = sums[firsts[i] : firsts[i] + span : step]
                store_shared(target, rows[i] * line_bytes + cols[i] * item_bytes, values)
            sync()
            lines: int32 = min(result.m - tile.row, tile_m)
            items: int32 = min(result.n - tile.col, tile_n)
            elements_out(smem, thread, lines, items, tile.row, tile.col, origin, result)
        else:
            row, col = int32(tile.row + row), int32(tile.col + col)
            store_result(sums, row, col, is_inside and tile.exists, origin, result)

    return Store(store, is_shared=True)


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
    from numba import float32, int32, int64

    from dxgemm.handwritten.parts.intrinsics import global_address

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")
    rounds = kind != "" and epilogue is None
    tile_m, tile_n = config.tile_m, config.tile_n
    put_sums = make_put(config, "")
    elements_out = make_elements_out(config, sum_line_bytes(tile_n), "float32", out_dtype, epilogue)
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
            put_sums(sums, smem, lane, row, col, float32(1))
            sync()
            origin = Origin(tile.matrix, work.c.start, work.out.start)
            elements_out(smem, thread, rows, cols, tile.row, tile.col, origin, result)

    return Store(store, is_shared=True, takes_smem=True)
