"""The store of a warp's 16 rows of a tile: the fastest of four that rows, edges and dtype allow.

The sums have the layout of `wgmma`, or of several adjacent `mma.sync`. Vectors of 16 bytes need
aligned lines, and edges of the result that do not cut a vector. Results of 16 bits and float8
without c are rounded and pass through shared memory (`rounded_store`). Others pass it chunk by
chunk (`chunk_store`). Where vectors are not possible, elements are stored one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.chunk_store import (
    CHUNK_COLS,
    LANES,
    LONGEST_LINE,
    SPLIT_ROWS,
    STORE_BYTES,
    Chunk,
    Lines,
    Part,
    make_elements_out,
    make_vectors_out,
)
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS, ITEM_BYTES
from dxgemm.handwritten.parts.rounded_store import make_store_rounded
from dxgemm.handwritten.parts.triangle import Side, make_keeps


def reads_lines(epilogue: Any) -> bool:
    """True if an epilogue reads, writes or merges whole lines, which threads divide among them."""
    return epilogue.pair_stage is not None or any(
        operand.kind == "output" or (operand.has_rows and operand.access != "same")
        for operand in epilogue.stage_operands
        if operand.kind != "number"
    )


def make_allows_vectors(out_bytes: int, along_rows: bool) -> Callable[..., bool]:
    """Make a device function: (m, n, beta, c, out) -> True if 16-byte accesses are possible."""
    from numba import cuda

    from dxgemm.handwritten.parts.intrinsics import global_address

    @cuda.jit(device=True, forceinline=True)
    def fits(operand):
        """True if 16-byte accesses along the contiguous direction are possible."""
        unit, other = (operand.col, operand.row) if along_rows else (operand.row, operand.col)
        address = global_address(operand.data)
        is_aligned = (address | (operand.batch | other) * out_bytes) % 16 == 0
        return unit == 1 and is_aligned and abs(other) < LONGEST_LINE

    @cuda.jit(device=True, forceinline=True)
    def allows_vectors(m, n, beta, c, out):
        # Every vector is entirely inside the result or entirely outside of it.
        has_vectors = (n if along_rows else m) * out_bytes % 16 == 0
        has_vectors &= fits(out)
        if beta != 0:
            has_vectors &= fits(c)
        return has_vectors

    return allows_vectors


def make_side(
    tile_n: int,
    out_dtype: str,
    along_rows: bool,
    row_order: str,
    epilogue: Any = None,
    acc_dtype: str = "float32",
    side: Side | None = None,
    chunk_bytes: int = STORE_BYTES,
) -> Callable[..., None]:
    """A device function: finish alpha * acc + beta * c and write it, for a warp's 16 rows.

    It takes a thread's sums, the shared memory of its warp, the lane, the `Piece` of the result,
    what `make_allows_vectors` said, and the `Result`.

    Args:
        along_rows: False if the result is the transposed product.
        row_order, epilogue, acc_dtype: see `Chunk`.
        side: elements that are written; None for all.
        chunk_bytes: bytes of shared memory per warp.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.epilogue import columns_for_one
    from dxgemm.handwritten.parts.intrinsics import global_address, low_word
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    taken = columns_for_one(epilogue)
    row_taken, col_taken = (1, taken) if along_rows else (taken, 1)
    out_bytes = ITEM_BYTES[out_dtype]
    chunks = tile_n // CHUNK_COLS
    # With a in registers and lines along its rows, edges would cost registers in the main loop.
    has_edges = "split" not in row_order or not along_rows
    is_fused, is_whole = epilogue is not None, side is None
    chunk_kind = Chunk(out_dtype, along_rows, row_order, epilogue, acc_dtype)
    read_chunk, store_chunk = make_vectors_out(chunk_kind, has_edges)
    store_elements = make_elements_out(chunk_kind, side)
    rounds_first = (out_bytes == 2 or out_dtype in FLOAT8_KINDS) and along_rows
    if is_fused:  # `store_chunk` finishes mirror images, and may round differently
        rounds_first = rounds_first and is_whole and not reads_lines(epilogue)
    is_turned = out_bytes == 2 and not (along_rows or row_order or is_fused)
    store_rounded = None
    if rounds_first or is_turned:
        store_rounded = make_store_rounded(
            out_dtype, tile_n, chunk_bytes, along_rows, epilogue, acc_dtype, row_order
        )
    _, keeps_tile = make_keeps(side)
    least = side.least if side else 0

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_side(acc, chunk_smem, lane, piece, has_vectors, result):
        matrix, top, col, m, n = piece
        beta, c, out, extra = result.beta, result.c, result.out, result.extra
        # --- Addresses ---
        out_row_bytes, out_col_bytes = out.row * out_bytes, out.col * out_bytes
        c_row_bytes, c_col_bytes = c.row * out_bytes, c.col * out_bytes
        out_chunk_bytes = CHUNK_COLS // col_taken * out_col_bytes
        c_chunk_bytes = CHUNK_COLS * c_col_bytes
        # Only vector accesses use these; their lines are below LONGEST_LINE.
        out_line_bytes = low_word(out_row_bytes if along_rows else out_col_bytes)
        c_line_bytes = low_word(c_row_bytes if along_rows else c_col_bytes)
        c_at = global_address(c.data) + (matrix * c.batch + top * c.row + col * c.col) * out_bytes
        out_at = global_address(out.data) + out_bytes * (
            matrix * out.batch + top // row_taken * out.row + col // col_taken * out.col
        )
        rows: int32 = m - top
        cols: int32 = n - col

        # --- What the tile allows ---
        are_vectors = has_vectors  # in all chunks
        if not has_edges:
            are_vectors = are_vectors and rows >= SPLIT_ROWS and cols >= tile_n
        if not is_whole:
            are_vectors = are_vectors and keeps_tile(top, col, SPLIT_ROWS, tile_n, beta)
        if is_turned:
            above: int32 = (cuda.threadIdx.x & 127) // LANES * 16  # rows of the preceding warps
            turns = has_vectors and beta == 0 and keeps_tile(top - above, col, 64, tile_n, beta)

        def step_chunk():
            nonlocal c_at, out_at, cols
            c_at += c_chunk_bytes
            out_at += out_chunk_bytes
            cols -= CHUNK_COLS

        def store_chunks():
            """Store each chunk as vectors."""
            operands = read_chunk(lane, Part(rows, cols, matrix, top, col), extra)
            for chunk in static_range(chunks):
                left: int32 = col + chunk * CHUNK_COLS
                now = operands
                if chunk < chunks - 1:  # the next operands arrive while this chunk is stored
                    follows = Part(
                        rows, int32(cols - CHUNK_COLS), matrix, top, int32(left + CHUNK_COLS)
                    )
                    operands = read_chunk(lane, follows, extra)
                store_chunk(
                    acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane,
                    Part(rows, cols, matrix, top, left), result,
                    Lines(c_at, c_row_bytes, c_col_bytes, c_line_bytes),
                    Lines(out_at, out_row_bytes, out_col_bytes, out_line_bytes), now,
                )  # fmt: skip
                step_chunk()

        def store_each():
            """Store each chunk by vectors or by elements, as possible, or not at all."""
            for chunk in static_range(chunks):
                left: int32 = col + chunk * CHUNK_COLS
                frag, part = acc[16 * chunk : 16 * chunk + 16], Part(rows, cols, matrix, top, left)
                c_lines = Lines(c_at, c_row_bytes, c_col_bytes, c_line_bytes)
                out_lines = Lines(out_at, out_row_bytes, out_col_bytes, out_line_bytes)
                keeps_chunk = keeps_tile(top, left, SPLIT_ROWS, CHUNK_COLS, beta)
                if not is_whole and has_vectors and keeps_chunk:
                    # The diagonal crosses the tile, but not this chunk.
                    operands = read_chunk(lane, part, extra)
                    store_chunk(frag, chunk_smem, lane, part, result, c_lines, out_lines, operands)
                elif is_whole or top + SPLIT_ROWS - left > least:
                    store_elements(frag, chunk_smem, lane, part, result, c_lines, out_lines)
                step_chunk()

        # --- The fastest store ---
        if is_turned and turns:
            whole = Part(int32(rows + above), cols, matrix, top, col)
            first = out_at - above * out_bytes
            store_rounded(acc, chunk_smem, lane, whole, result, first, out_line_bytes)
        elif are_vectors:
            if rounds_first and beta == 0:
                part = Part(rows, cols, matrix, top, col)
                store_rounded(acc, chunk_smem, lane, part, result, out_at, out_line_bytes)
            else:
                store_chunks()
        else:
            store_each()

    return store_side
