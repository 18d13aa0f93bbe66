"""The store of narrow results to which no c is added: rounded before they pass shared memory.

That saves traffic of shared memory, and lines of 128 bytes fit there. Rows are stored by each warp,
16 x 64 at a time, or 16 x 128 of float8. Of columns a warp has only 16 rows, 32 bytes of a line:
there the four warps of a warpgroup put 64 rows together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.addend import KINDS
from dxgemm.handwritten.parts.chunk_store import LANES
from dxgemm.handwritten.parts.fragment import quad_places
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS, ITEM_BYTES
from dxgemm.handwritten.parts.unroll import device, static_range

BLOCK_COLS = 64  # of 16-bit elements
LINE_BYTES = 128  # of a block's row
BLOCK_BYTES = 2048  # of 16 rows of a block, without padding: see `make_store_rounded`
STEPS = 4  # a thread stores 16 bytes of as many lines of a block


def block_cols(out_dtype: str) -> int:
    """Columns of a block."""
    return LINE_BYTES // ITEM_BYTES[out_dtype]


def make_store_rounded(
    out_dtype: str, tile_n: int, chunk_bytes: int, along_rows: bool, epilogue: Any = None,
    acc_dtype: str = "float32", row_order: str = "",
) -> Callable[..., Any]:  # fmt: skip
    """A device function: store the 16 rows of a warp, or the 64 rows of a warpgroup as columns.

    It takes a thread's sums, the shared memory of its warp, the lane, the `Part` of the result, the
    `Result`, the address of the part's first element, and the bytes from a line to the next. Lines
    are contiguous. Blocks take turns in a warp's `chunk_bytes` of shared memory: while one is read,
    the next is written. Chunk p of line r, 16 bytes, is stored at chunk p ^ r % 8, against bank
    conflicts.

    Args:
        along_rows: False for columns, of 16-bit elements, which get no epilogue.
        row_order: see `Chunk`; rows are not split, and those of columns eight apart.
    """
    from numba import cuda, int32, uint16

    from dxgemm.handwritten.parts.epilogue import make_finish, make_read_once
    from dxgemm.handwritten.parts.hopper import pack_pair, store_columns, sync_warpgroup
    from dxgemm.handwritten.parts.intrinsics import (
        load_shared,
        scaled,
        store_global,
        store_shared,
    )

    kind, warps = KINDS.get(out_dtype) or FLOAT8_KINDS.get(out_dtype, ""), 1 if along_rows else 4
    pair_bytes, pair_type = (4, int32) if out_dtype in KINDS else (2, uint16)
    columns, piece_items = block_cols(out_dtype), 32 // pair_bytes
    blocks, turns = -(-tile_n // columns), chunk_bytes // BLOCK_BYTES
    block_bytes, step_lines = warps * BLOCK_BYTES, warps * 4
    step_cols = 8 if along_rows else 16
    # Rows from a quad's first one to the next quad's, and to its own second one.
    quad_rows, apart = quad_places(row_order)
    read_once, take = make_read_once(epilogue, -(-tile_n // BLOCK_COLS), row_order)
    finish_pair = make_finish(epilogue, acc_dtype, "float32", 2, rounds=True, is_read=True)

    @device
    def sync(barrier):
        if along_rows:
            cuda.syncwarp()
        else:
            sync_warpgroup(barrier)

    @device
    def store_rounded(acc, chunk_smem, lane, part, result, out, line_bytes):
        rows, cols, matrix, top, left = part
        alpha, extra = result.alpha, result.extra
        # --- Places: of the elements that a thread writes, of the lines that it reads ---
        barrier: int32 = 0
        line: int32 = lane // 8
        piece: int32 = lane % 8
        if along_rows:
            held = read_once(lane, rows, cols, matrix, top, left, extra)
            quad: int32 = lane // 4
            member: int32 = lane % 4
            row: int32 = quad * quad_rows
            upper: int32 = top + row
            write: int32 = chunk_smem + row * LINE_BYTES + member * pair_bytes
            turn: int32 = row * 16 & 127
            odd_turn: int32 = turn ^ apart % 8 * 16
            read: int32 = chunk_smem + line * LINE_BYTES + (piece ^ line) * 16
            odd: int32 = read ^ 64
            lines_left: int32 = rows - line
            items_left: int32 = cols - piece * piece_items
        else:
            thread: int32 = cuda.threadIdx.x & 1023
            barrier = 1 + thread // (4 * LANES)
            warp: int32 = thread // LANES % 4
            smem: int32 = chunk_smem - warp * chunk_bytes
            # Of two times two matrices of 8 x 8, side by side and one above the other.
            write = smem + (lane // 16 * 8 + lane % 8) * LINE_BYTES
            write += int32((2 * warp + lane // 8 % 2 ^ lane % 8) * 16)
            line = 4 * warp + lane // 8
            read = smem + line * LINE_BYTES + (piece ^ line % 8) * 16
            lines_left = cols - line if piece * 8 < rows else 0
        for block in static_range(blocks):
            # --- Sums to lines of shared memory ---
            if block == 0 or turns == 1:
                sync(barrier)  # the block before has been read
            for step in static_range(min(columns, tile_n - columns * block) // step_cols):
                if along_rows:
                    i = columns // 2 * block + 4 * step
                    col: int32 = left + columns * block + 8 * step + 2 * member
                    above, below = take(
                        held, (columns * block + 8 * step) // BLOCK_COLS, step % 8, lane
                    )
                    x = finish_pair(
                        (scaled(alpha, acc[i]), scaled(alpha, acc[i + 1])), matrix, upper, col,
                        above,
                    )  # fmt: skip
                    y = finish_pair(
                        (scaled(alpha, acc[i + 2]), scaled(alpha, acc[i + 3])), matrix,
                        int32(upper + apart), col, below,
                    )  # fmt: skip
                    at: int32 = write + (turn ^ 4 * pair_bytes * step // 16 * 16)
                    store_shared(
                        at, block % turns * block_bytes + 4 * pair_bytes * step % 16,
                        (pair_type(pack_pair(kind, x[0], x[1])),),
                    )  # fmt: skip
                    at = write + (odd_turn ^ 4 * pair_bytes * step // 16 * 16)
                    store_shared(
                        at,
                        block % turns * block_bytes + 4 * pair_bytes * step % 16
                        + apart * LINE_BYTES,
                        (pair_type(pack_pair(kind, y[0], y[1])),),
                    )  # fmt: skip
                else:
                    pairs = ()
                    for i in static_range(32 * block + 8 * step, 32 * block + 8 * step + 8, 2):
                        pairs = pairs + (pack_pair(kind, alpha * acc[i], alpha * acc[i + 1]),)
                    store_columns(
                        write, block % turns * block_bytes + 16 * step * LINE_BYTES, pairs
                    )
            sync(barrier)
            # --- Lines to the result ---
            lines = ()
            for step in static_range(STEPS):
                source = odd if along_rows and step % 2 else read
                lines = lines + (
                    load_shared(
                        int32, 4, source,
                        block % turns * block_bytes + step_lines * step * LINE_BYTES,
                    ),
                )  # fmt: skip
            if along_rows or block == 0:  # otherwise, the lines of the next block follow
                target = out + int32(line * line_bytes + piece * 16 + LINE_BYTES * block)
            limit: int32 = lines_left
            if along_rows:
                limit = lines_left if items_left > columns * block else 0
            for step in static_range(STEPS):
                if limit > (0 if along_rows else BLOCK_COLS * block) + step_lines * step:
                    store_global(target, 0, lines[step])
                target += int32(step_lines * line_bytes)
        if not along_rows:
            sync(barrier)  # before a warp puts its next tile there

    return store_rounded
