"""The store of a warp's 16 rows of a tile: the fastest of four that rows, edges and dtype allow.

The sums have the layout of `wgmma`, or of several adjacent `mma.sync`. Vectors of 16 bytes need
aligned lines, and edges of the result that do not cut a vector. 16-bit results without c are
rounded and pass through shared memory (`rounded_store`). Other results pass through it chunk by
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
    make_store_chunk,
)
from dxgemm.handwritten.parts.operands import ITEM_BYTES
from dxgemm.handwritten.parts.rounded_store import make_store_rounded, make_store_turned
from dxgemm.handwritten.parts.triangle import OTHER, Side, make_keeps, stores


def reads_lines(epilogue: Any) -> bool:
    """True if an epilogue reads, writes or merges whole lines, which threads divide among them."""
    return epilogue.pair_stage is not None or any(
        operand.kind == "output" or (operand.has_rows and operand.access != "same")
        for operand in epilogue.stage_operands
        if operand.kind != "number"
    )


def make_store_tile(
    tile_n: int,
    out_dtype: str,
    along_rows: bool,
    rows_are_split: bool,
    epilogue: Any = None,
    acc_dtype: str = "float32",
    stored: str = "",
    commutes: bool = True,
    chunk_bytes: int = STORE_BYTES,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make the device functions allows_vectors and store_tile, for all columns of a warp's 16 rows.

    allows_vectors(m, n, beta, c, out) is True if 16 bytes can be accessed at a time. store_tile
    applies the epilogue to alpha * acc + beta * c and writes it from row `top` and column `col` of
    a matrix on. A tile of a symmetric result is stored directly, as its mirror image, or both: see
    `triangle.stores`.

    Args:
        along_rows: False if the result is the transposed product.
        rows_are_split, epilogue, acc_dtype: see `make_store_chunk`.
        stored: triangles of a symmetric result that are written; "" for all of another result.
        commutes: False if elements on both sides of a tile's diagonal may differ in their bits.
        chunk_bytes: bytes of shared memory per warp.
    """

    def make(along_rows: bool, side: Side | None = None) -> Any:
        return _make_side(
            tile_n, out_dtype, along_rows, rows_are_split, epilogue, acc_dtype, side, chunk_bytes
        )

    allows_vectors = make_allows_vectors(ITEM_BYTES[out_dtype], along_rows)
    if not stored:
        return allows_vectors, make(along_rows)
    from numba import cuda

    from dxgemm.handwritten.parts.intrinsics import opaque
    from dxgemm.handwritten.parts.unroll import Operand, static_range, unroll

    kinds = stores(stored if along_rows else OTHER[stored], epilogue, commutes)
    # A mirror image is the same tile of the transposed result.
    store_tiles = tuple(make(along_rows is not is_mirrored, side) for is_mirrored, side in kinds)
    are_mirrored = tuple(is_mirrored for is_mirrored, _ in kinds)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_tile(
        acc, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta, c, out, extra
    ):
        # The sums stay in their registers for both stores. Other values are recomputed in each:
        # keeping them live from tile to tile would cost registers.
        for i in static_range(len(store_tiles)):
            lane, chunk_smem, matrix = opaque(lane), opaque(chunk_smem), opaque(matrix)
            top, col, m, n = opaque(top), opaque(col), opaque(m), opaque(n)
            c_row, c_col, out_row, out_col = c.row, c.col, out.row, out.col
            if are_mirrored[i]:
                c_row, c_col, out_row, out_col = c.col, c.row, out.col, out.row
            store_tiles[i](
                acc, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta,
                Operand(c.data, opaque(c.batch), opaque(c_row), opaque(c_col)),
                Operand(out.data, opaque(out.batch), opaque(out_row), opaque(out_col)), extra,
            )  # fmt: skip

    return allows_vectors, store_tile


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


def _make_side(
    tile_n: int,
    out_dtype: str,
    along_rows: bool,
    rows_are_split: bool,
    epilogue: Any,
    acc_dtype: str,
    side: Side | None,
    chunk_bytes: int,
) -> Callable[..., None]:
    """Make the function store_tile of `make_store_tile`, for the elements on one side."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.epilogue import columns_for_one
    from dxgemm.handwritten.parts.intrinsics import global_address, low_word
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    taken = columns_for_one(epilogue)
    row_taken, col_taken = (1, taken) if along_rows else (taken, 1)
    out_bytes = ITEM_BYTES[out_dtype]
    chunks = tile_n // CHUNK_COLS
    # With a in registers and lines along its rows, edges would cost registers in the main loop.
    has_edges = not rows_are_split or not along_rows
    is_fused, is_whole = epilogue is not None, side is None
    read_chunk, store_chunk, store_elements = make_store_chunk(
        out_dtype, along_rows, rows_are_split, has_edges, epilogue, acc_dtype, side
    )
    rounds_first = out_bytes == 2 and along_rows
    if is_fused:  # `store_chunk` finishes mirror images, and may round differently
        rounds_first = rounds_first and is_whole and not reads_lines(epilogue)
    store_rounded = None
    if rounds_first:
        store_rounded = make_store_rounded(out_dtype, tile_n, chunk_bytes, epilogue, acc_dtype)
    store_turned = make_store_turned(out_dtype, tile_n, chunk_bytes)
    is_turned = out_bytes == 2 and not (along_rows or rows_are_split or is_fused)
    _, keeps_tile = make_keeps(side)
    least = side.least if side else 0

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_tile(
        acc, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta, c, out, extra
    ):
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
            operands = read_chunk(lane, rows, cols, matrix, top, col, extra)
            for chunk in static_range(chunks):
                left: int32 = col + chunk * CHUNK_COLS
                now = operands
                if chunk < chunks - 1:  # the next operands arrive while this chunk is stored
                    operands = read_chunk(
                        lane, rows, int32(cols - CHUNK_COLS), matrix, top, int32(left + CHUNK_COLS),
                        extra,
                    )  # fmt: skip
                store_chunk(
                    acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols, alpha, beta,
                    c_at, c_line_bytes, out_at, out_line_bytes, now, matrix, top, left,
                )  # fmt: skip
                step_chunk()

        def store_each():
            """Store each chunk by vectors or by elements, as possible, or not at all."""
            for chunk in static_range(chunks):
                left: int32 = col + chunk * CHUNK_COLS
                keeps_chunk = keeps_tile(top, left, SPLIT_ROWS, CHUNK_COLS, beta)
                if not is_whole and has_vectors and keeps_chunk:
                    # The diagonal crosses the tile, but not this chunk.
                    operands = read_chunk(lane, rows, cols, matrix, top, left, extra)
                    store_chunk(
                        acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols, alpha,
                        beta, c_at, c_line_bytes, out_at, out_line_bytes, operands, matrix, top,
                        left,
                    )  # fmt: skip
                elif is_whole or top + SPLIT_ROWS - left > least:
                    store_elements(
                        acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols, alpha,
                        beta, c_at, c_row_bytes, c_col_bytes, out_at, out_row_bytes,
                        out_col_bytes, matrix, top, left, extra,
                    )  # fmt: skip
                step_chunk()

        # --- The fastest store ---
        if is_turned and turns:
            store_turned(
                acc, chunk_smem, lane, int32(rows + above), cols, alpha, out_at - above * out_bytes,
                out_line_bytes,
            )  # fmt: skip
        elif are_vectors:
            if rounds_first and beta == 0:
                store_rounded(
                    acc, chunk_smem, lane, rows, cols, alpha, out_at, out_line_bytes, matrix, top,
                    col, extra,
                )  # fmt: skip
            else:
                store_chunks()
        else:
            store_each()

    return store_tile
