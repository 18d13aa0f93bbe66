"""The result of a small matrix, from the sums of `mma.sync` through shared memory to global memory.

Sums are rounded and put into shared memory as lines of the result, where neither an epilogue nor c
nor float32 wants them whole. Threads then store these lines 16 bytes at a time, or, from an odd
address on, in words of two elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES

ITEM_BYTES, SUM_BYTES = 2, 4
CHUNK_ITEMS = CHUNK_BYTES // ITEM_BYTES
# The line of an element is its number times QUOTIENT / columns, rounded up, over QUOTIENT: exact as
# long as elements * columns are less than QUOTIENT, and in 32 bits for less than 512 rows.
QUOTIENT_BITS = 22
QUOTIENT = 1 << QUOTIENT_BITS
RUN_TURNS = 4  # words of a thread on their way


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


def make_store_tile(
    config: Any, out_dtype: str, epilogue: Any, sync: Callable[..., None]
) -> Callable[..., None]:
    """A device function: write a tile of alpha * sums + beta * c, finished.

    All threads of the tile call it together, with the address of shared memory that they no longer
    need. row and col are the first element of the warp's tile in the block's, tile_row and tile_col
    the first of that in the matrix.

    Args:
        config: a `Config` of `half_batch`.
        out_dtype: dtype of c and the result.
        epilogue: None, or a `Fusion`.
        sync: device function, a barrier over the threads of the tile.
    """
    from numba import float32, int32, int64, uint16

    from dxgemm.handwritten.parts.addend import make_plus_c
    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_finish
    from dxgemm.handwritten.parts.hopper import pack_pair
    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        divide,
        global_address,
        load_shared,
        low_word,
        store_global,
        store_shared,
    )
    from dxgemm.handwritten.parts.line_intrinsics import store_word_if
    from dxgemm.handwritten.parts.unroll import static_range, unroll
    from dxgemm.handwritten.parts.widening import HALVES, NARROW, stored_type, view_as

    def device(function: Callable[..., Any]) -> Any:
        return device_function(unroll(function))

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")
    is_half, rounds = out_dtype in HALVES, out_dtype in HALVES and epilogue is None
    stored = stored_type(out_dtype)
    narrow = NARROW.get(out_dtype, stored)
    tile_m, tile_n, threads = config.tile_m, config.tile_n, config.tile_threads
    mmas_m, mmas_n = config.warp_m // 16, config.warp_n // 8
    half_line, sum_line = rounded_line_bytes(tile_n), sum_line_bytes(tile_n)
    chunks = tile_n // CHUNK_ITEMS
    lines_at_once = threads // chunks
    passes = -(-tile_m // lines_at_once)
    taken = columns_for_one(epilogue)
    word_turns = tile_n // 64 + 1
    piece_threads = line_threads(tile_n // taken)
    piece_lines = threads // piece_threads
    finish = make_finish(epilogue, "float32", "float32", taken, is_half)
    plus_c = make_plus_c("float32", out_dtype, taken)

    def store_word(to, item, items, source, second):
        """Store elements `item` and the next, if they are among `items`; the next is at second."""
        if item < items:
            low = int32(load_shared(uint16, 1, int32(source), 0)[0])
            high = int32(load_shared(uint16, 1, int32(source + second), 0)[0])
            at = to + item * ITEM_BYTES
            if item < 0:
                store_global(at, ITEM_BYTES, (uint16(high),))
            elif int32(item + 1) < items:
                store_global(at, 0, (low_word(low | high << 16),))
            else:
                store_global(at, 0, (uint16(low),))

    store_word = device(store_word)

    def make_put(line_bytes: int, item_bytes: int) -> Callable[..., None]:
        """Put a warp's sums times alpha into lines of shared memory, of words or of halves."""

        def put(acc, smem, lane, row, col, alpha):
            target: int32 = smem + (row + lane // 4) * line_bytes
            target += (col + lane % 4 * 2) * item_bytes
            for i in static_range(2 * mmas_m):
                for j in static_range(mmas_n):
                    place = (i // 2 * mmas_n + j) * 4 + i % 2 * 2
                    x, y = alpha * acc[place], alpha * acc[place + 1]
                    if item_bytes == SUM_BYTES:
                        values = (x, y)
                    else:
                        values = (pack_pair(kind, x, y),)
                    store_shared(target, 8 * i * line_bytes + 8 * j * item_bytes, values)

        return device(put)

    def store_vectors(smem, thread, rows, cols, target, line_bytes):
        line: int32 = thread // chunks
        item: int32 = thread % chunks * CHUNK_ITEMS
        if line >= lines_at_once or item >= cols:
            rows = int32(0)
        source: int32 = smem + line * half_line + item * ITEM_BYTES
        to = target + line * line_bytes + item * ITEM_BYTES
        for i in static_range(passes):
            if line + i * lines_at_once < rows:
                words = load_shared(int32, 4, source, i * lines_at_once * half_line)
                store_global(to, 0, words)
            to += lines_at_once * line_bytes

    def store_words(smem, thread, rows, cols, target, line_bytes):
        line: int32 = thread // 32
        to = target + line * line_bytes
        source: int32 = smem + line * half_line
        while line < rows:
            # Of the first word of a line only the second element is its own, at an odd address.
            item: int32 = thread % 32 * 2 - (low_word(to) >> 1 & 1)
            for _ in static_range(word_turns):
                store_word(to, item, cols, source + item * ITEM_BYTES, ITEM_BYTES)
                item += 64
            line += threads // 32
            to += threads // 32 * line_bytes
            source += threads // 32 * half_line

    def store_run(smem, thread, rows, cols, target):
        """Store lines that follow each other without a gap, words across two lines too."""
        items: int32 = rows * cols
        gap: int32 = half_line - cols * ITEM_BYTES
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
                low = int32(load_shared(uint16, 1, source, 0)[0])
                high = int32(load_shared(uint16, 1, int32(source + step), 0)[0])
                words = words + (low_word(low | high << 16),)
            for turn in static_range(RUN_TURNS):
                is_whole = int32(first + (turn * 2 * threads + 1)) < items
                store_word_if(to, turn * 4 * threads, words[turn], int32(is_whole))
            first += RUN_TURNS * 2 * threads
            to += RUN_TURNS * 4 * threads
        if thread == 0 and rows > 0:  # elements that have half a word
            if odd == 1:
                store_global(target, 0, load_shared(uint16, 1, smem, 0))
            if items > odd and items - odd & 1 == 1:
                last: int32 = smem + (rows - 1) * half_line + (cols - 1) * ITEM_BYTES
                end = target + (items - 1) * ITEM_BYTES
                store_global(end, 0, load_shared(uint16, 1, last, 0))

    def store_elements(
        smem, thread, rows, cols, beta, c, c_start, out, out_start, matrix, tile_row, tile_col,
        extra,
    ):  # fmt: skip
        out_typed = view_as(stored, out.data)
        line: int32 = thread // piece_threads
        while line < rows:
            item: int32 = thread % piece_threads * taken
            while item < cols:
                values = load_shared(float32, taken, int32(smem + line * sum_line + item * 4), 0)
                row, col = int64(tile_row + line), int64(tile_col + item)
                place = c_start + row * c.row + col * c.col
                values = plus_c(values, beta, c, place, c.col)
                values = finish(values, matrix, row, col, extra)
                place = out_start + row * out.row + col // taken * out.col
                out_typed[place] = narrow(values[0])
                item += piece_threads * taken
            line += piece_lines

    put_sums = make_put(sum_line, SUM_BYTES)
    put_rounded = make_put(half_line, ITEM_BYTES) if rounds else put_sums
    stores = store_vectors, store_words, store_run, store_elements
    store_vectors, store_words, store_run, store_elements = (device(store) for store in stores)

    def store_tile(
        acc, smem, thread, exists, matrix, row, col, tile_row, tile_col, m, n, alpha, beta,
        c, out, extra,
    ):  # fmt: skip
        rows: int32 = min(m - tile_row, tile_m) * exists
        cols: int32 = min(n - tile_col, tile_n)
        lane: int32 = thread % 32
        out_start = matrix * out.batch
        if rounds and beta == 0 and out.col == 1:
            own: int32 = smem + CHUNK_BYTES  # the element before a line is read as well
            put_rounded(acc, own, lane, row, col, alpha)
            sync()
            line_bytes = out.row * ITEM_BYTES
            target = global_address(out.data) + ITEM_BYTES * (
                out_start + int64(tile_row) * out.row + tile_col
            )
            if (target | line_bytes | cols * ITEM_BYTES) % CHUNK_BYTES == 0:
                store_vectors(own, thread, rows, cols, target, line_bytes)
            elif out.row == cols:
                store_run(own, thread, rows, cols, target)
            else:
                store_words(own, thread, rows, cols, target, line_bytes)
        else:
            put_sums(acc, smem, lane, row, col, alpha)
            sync()
            store_elements(
                smem, thread, rows, cols, beta, c, matrix * c.batch, out, out_start, matrix,
                tile_row, tile_col, extra,
            )  # fmt: skip

    return device(store_tile)
