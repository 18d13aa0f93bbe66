"""The store of 16-bit results to which no c is added: rounded before they pass shared memory.

That halves the traffic of shared memory, and lines of 64 elements fit there. Rows are stored by
each warp, 16 x 64 at a time. Of columns a warp has only 16 rows, 32 bytes of a line: there the four
warps of a warpgroup put 64 rows together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.chunk_store import CHUNK_COLS, LANES, STORE_BYTES

LINE_BYTES = 144  # of 64 elements, padded against bank conflicts
PAIR_COLS = 2 * CHUNK_COLS


def make_store_rounded(
    out_dtype: str, epilogue: Any = None, acc_dtype: str = "float32"
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The device functions read_pairs and store_rounded, for two chunks of a warp side by side.

    Arguments are those of `make_store_chunk`. Rows are contiguous and not split.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.epilogue import make_finish, make_read
    from dxgemm.handwritten.parts.hopper import pack_pair
    from dxgemm.handwritten.parts.intrinsics import (
        load_shared,
        scaled,
        store_global,
        store_shared,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")
    read_pair = make_read(epilogue, 2)
    finish_pair = make_finish(epilogue, acc_dtype, "float32", 2, rounds=True, is_read=True)
    has_rows = epilogue is not None and any(o.has_rows for o in epilogue.stage_operands)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def read_pairs(lane, rows, cols, matrix, top, left, extra):
        """The epilogue's operands for `store_rounded`; outside of the result those of its edge."""
        upper: int32 = top + min(lane // 4, rows - 1)
        lower: int32 = top + min(lane // 4 + 8, rows - 1)
        operands = ()
        for j in static_range(PAIR_COLS // 8):
            col: int32 = left + min(8 * j + lane % 4 * 2, cols - 2)
            above = read_pair(matrix, upper, col, extra)
            below = read_pair(matrix, lower, col, extra) if has_rows else above
            operands = operands + ((above, below),)
        return operands

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_rounded(
        frag, chunk_smem, lane, rows, cols, alpha, out, out_line_bytes, operands, matrix, top, left
    ):  # fmt: skip
        """Apply the epilogue to the chunks, which begin at (top, left), and store them."""
        quad: int32 = lane // 4
        member: int32 = lane % 4
        upper: int32 = top + quad
        start: int32 = chunk_smem + quad * LINE_BYTES + member * 4
        cuda.syncwarp()  # the chunk before has been read
        for j in static_range(PAIR_COLS // 8):
            col: int32 = left + 8 * j + 2 * member
            x = (scaled(alpha, frag[4 * j]), scaled(alpha, frag[4 * j + 1]))
            x = finish_pair(x, matrix, upper, col, operands[j][0])
            y = (scaled(alpha, frag[4 * j + 2]), scaled(alpha, frag[4 * j + 3]))
            y = finish_pair(y, matrix, int32(upper + 8), col, operands[j][1])
            store_shared(start, 16 * j, (pack_pair(kind, x[0], x[1]),))
            store_shared(start, 16 * j + 8 * LINE_BYTES, (pack_pair(kind, y[0], y[1]),))
        cuda.syncwarp()
        line: int32 = lane // 8
        piece: int32 = lane % 8
        source: int32 = chunk_smem + line * LINE_BYTES + piece * 16
        target = out + int32(line * out_line_bytes + piece * 16)
        for step in static_range(4):
            if line + 4 * step < rows and piece * 8 < cols:
                store_global(target, 0, load_shared(int32, 4, source, 4 * step * LINE_BYTES))
            target += int32(4 * out_line_bytes)

    return read_pairs, store_rounded


def make_store_turned(out_dtype: str, tile_n: int) -> Callable[..., Any]:
    """A device function: store 64 rows of a tile as columns, in 16 bits, without c.

    The threads of a warpgroup call it together, with their sums, the shared memory of their warp,
    the rows and columns from the warpgroup's first on that are in the result, alpha, the address of
    its first element there, and the bytes from one line of the result to the next.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.hopper import pack_pair, store_columns, sync_warpgroup
    from dxgemm.handwritten.parts.intrinsics import load_shared, store_global
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_turned(acc, chunk_smem, lane, rows, cols, alpha, out, out_line_bytes):
        thread: int32 = cuda.threadIdx.x & 1023
        barrier: int32 = 1 + thread // (4 * LANES)
        warp: int32 = thread // LANES % 4
        smem: int32 = chunk_smem - warp * STORE_BYTES
        # Of two times two matrices of 8 x 8, side by side and one above the other.
        write: int32 = smem + (lane // 16 * 8 + lane % 8) * LINE_BYTES
        write += int32((16 * warp + lane // 8 % 2 * 8) * 2)
        line: int32 = 4 * warp + lane // 8
        piece: int32 = lane % 8
        read: int32 = smem + line * LINE_BYTES + piece * 16
        target = out + int32(line * out_line_bytes + piece * 16)
        for part in static_range(tile_n // 64):
            sync_warpgroup(barrier)  # the lines before have been read
            for columns in static_range(0, 64, 16):
                pairs = ()
                for i in static_range(4):
                    first = 32 * part + columns // 2 + 2 * i
                    pairs = pairs + (pack_pair(kind, alpha * acc[first], alpha * acc[first + 1]),)
                store_columns(write, columns * LINE_BYTES, pairs)
            sync_warpgroup(barrier)
            for step in static_range(4):
                if line + 16 * step < cols and piece * 8 < rows:
                    values = load_shared(int32, 4, read, 16 * step * LINE_BYTES)
                    store_global(target + int32(16 * step * out_line_bytes), 0, values)
            target += int32(64 * out_line_bytes)
            cols = int32(cols - 64)
        sync_warpgroup(barrier)  # before a warp puts its next tile there

    return store_turned
