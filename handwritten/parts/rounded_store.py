"""The store of 16-bit results to which no c is added: rounded before they pass shared memory.

That halves the traffic of shared memory, and lines of 64 elements fit there. Rows are stored by
each warp, 16 x 64 at a time. Of columns a warp has only 16 rows, 32 bytes of a line: there the four
warps of a warpgroup put 64 rows together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.chunk_store import LANES

BLOCK_COLS = 64
LINE_BYTES = 128  # of a block's row
BLOCK_BYTES = 2048  # of 16 rows of 64 elements, without padding: see `make_store_rounded`


def make_store_rounded(
    out_dtype: str, tile_n: int, chunk_bytes: int, epilogue: Any = None, acc_dtype: str = "float32"
) -> Callable[..., Any]:
    """The device function store_rounded, for all columns of a warp's 16 rows.

    Arguments are those of `make_store_chunk`. Rows are contiguous and not split. Blocks of 64
    columns take turns in the warp's `chunk_bytes` of shared memory: while one is read, the next is
    written. Of row r, the 16 bytes in place p lie in place p ^ r % 8, against bank conflicts.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.epilogue import make_finish, make_read_once
    from dxgemm.handwritten.parts.hopper import pack_pair
    from dxgemm.handwritten.parts.intrinsics import (
        load_shared,
        scaled,
        store_global,
        store_shared,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")
    blocks, turns = -(-tile_n // BLOCK_COLS), chunk_bytes // BLOCK_BYTES
    read_once, take = make_read_once(epilogue, blocks)
    finish_pair = make_finish(epilogue, acc_dtype, "float32", 2, rounds=True, is_read=True)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_rounded(
        acc, chunk_smem, lane, rows, cols, alpha, out, out_line_bytes, matrix, top, left, extra
    ):  # fmt: skip
        held = read_once(lane, rows, cols, matrix, top, left, extra)
        quad: int32 = lane // 4
        member: int32 = lane % 4
        upper: int32 = top + quad
        line: int32 = lane // 8
        piece: int32 = lane % 8
        write: int32 = chunk_smem + quad * LINE_BYTES + member * 4
        turn: int32 = quad * 16
        even: int32 = chunk_smem + line * LINE_BYTES + (piece ^ line) * 16
        odd: int32 = even ^ 64
        rows_left: int32 = rows - line
        cols_left: int32 = cols - piece * 8
        for block in static_range(blocks):
            if block == 0 or turns == 1:
                cuda.syncwarp()  # the block before has been read
            for step in static_range(min(BLOCK_COLS, tile_n - BLOCK_COLS * block) // 8):
                i = 32 * block + 4 * step
                col: int32 = left + BLOCK_COLS * block + 8 * step + 2 * member
                above, below = take(held, block, step, lane)
                x = finish_pair(
                    (scaled(alpha, acc[i]), scaled(alpha, acc[i + 1])), matrix, upper, col, above
                )
                y = finish_pair(
                    (scaled(alpha, acc[i + 2]), scaled(alpha, acc[i + 3])), matrix,
                    int32(upper + 8), col, below,
                )  # fmt: skip
                place: int32 = write + (turn ^ 16 * step)
                store_shared(place, block % turns * BLOCK_BYTES, (pack_pair(kind, x[0], x[1]),))
                store_shared(
                    place,
                    block % turns * BLOCK_BYTES + 8 * LINE_BYTES,
                    (pack_pair(kind, y[0], y[1]),),
                )
            cuda.syncwarp()
            lines = ()
            for step in static_range(4):
                source = odd if step % 2 else even
                lines = lines + (
                    load_shared(
                        int32, 4, source, block % turns * BLOCK_BYTES + 4 * step * LINE_BYTES
                    ),
                )
            target = out + int32(line * out_line_bytes + piece * 16 + LINE_BYTES * block)
            limit: int32 = rows_left if cols_left > BLOCK_COLS * block else 0
            for step in static_range(4):
                if limit > 4 * step:
                    store_global(target, 0, lines[step])
                target += int32(4 * out_line_bytes)

    return store_rounded


def make_store_turned(out_dtype: str, tile_n: int, chunk_bytes: int) -> Callable[..., Any]:
    """A device function: store 64 rows of a tile as columns, in 16 bits, without c.

    The threads of a warpgroup call it together, with their sums, the shared memory of their warp,
    the rows and columns from the warpgroup's first on that are in the result, alpha, the address of
    its first element there, and the bytes from one line of the result to the next. Lines lie in
    shared memory as in `make_store_rounded`.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.hopper import pack_pair, store_columns, sync_warpgroup
    from dxgemm.handwritten.parts.intrinsics import load_shared, store_global
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")
    block_bytes = 4 * BLOCK_BYTES
    turns = 4 * chunk_bytes // block_bytes

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_turned(acc, chunk_smem, lane, rows, cols, alpha, out, out_line_bytes):
        thread: int32 = cuda.threadIdx.x & 1023
        barrier: int32 = 1 + thread // (4 * LANES)
        warp: int32 = thread // LANES % 4
        smem: int32 = chunk_smem - warp * chunk_bytes
        # Of two times two matrices of 8 x 8, side by side and one above the other.
        write: int32 = smem + (lane // 16 * 8 + lane % 8) * LINE_BYTES
        write += int32((2 * warp + lane // 8 % 2 ^ lane % 8) * 16)
        line: int32 = 4 * warp + lane // 8
        piece: int32 = lane % 8
        read: int32 = smem + line * LINE_BYTES + (piece ^ line % 8) * 16
        cols_left: int32 = cols - line if piece * 8 < rows else 0
        target = out + int32(line * out_line_bytes + piece * 16)
        for block in static_range(-(-tile_n // BLOCK_COLS)):
            if block == 0 or turns == 1:
                sync_warpgroup(barrier)  # the block before has been read
            for columns in static_range(0, min(BLOCK_COLS, tile_n - BLOCK_COLS * block), 16):
                pairs = ()
                for i in static_range(4):
                    first = 32 * block + columns // 2 + 2 * i
                    pairs = pairs + (pack_pair(kind, alpha * acc[first], alpha * acc[first + 1]),)
                store_columns(write, block % turns * block_bytes + columns * LINE_BYTES, pairs)
            sync_warpgroup(barrier)
            lines = ()
            for step in static_range(4):
                lines = lines + (
                    load_shared(
                        int32, 4, read, block % turns * block_bytes + 16 * step * LINE_BYTES
                    ),
                )
            for step in static_range(4):
                if cols_left > BLOCK_COLS * block + 16 * step:
                    store_global(target, 0, lines[step])
                target += int32(16 * out_line_bytes)
        sync_warpgroup(barrier)  # before a warp puts its next tile there

    return store_turned
