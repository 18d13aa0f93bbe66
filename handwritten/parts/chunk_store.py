"""The store of a chunk of a warp's result: 16 rows x 32 columns, through shared memory.

A tensor core leaves a thread two neighbouring columns of every eighth row: stored as they are,
eight lines of memory would get 32 bytes each (16 in float16). So a warp writes its chunk to shared
memory, in the direction in which the result is contiguous, and reads it back 16 bytes of the result
a thread. A result that allows no such vectors is stored by elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.triangle import Side, make_keeps

CHUNK_COLS = 32
SPLIT_ROWS = 24  # from the first row to the last of a chunk whose rows are split
LONGEST_LINE = 2**23  # elements: 32 lines of the result, in bytes, must fit 32 bits
STORE_BYTES = 2560  # of shared memory for a warp's store: 16 lines of 160 bytes, or 32 of 80
LANES = 32
# Lines of a chunk, their elements, and their bytes: padded against bank conflicts. By `along_rows`.
_LINES = {True: (16, 32, 160), False: (32, 16, 80)}


def make_store_chunk(
    out_dtype: str,
    along_rows: bool,
    rows_are_split: bool,
    has_edges: bool,
    epilogue: Any = None,
    acc_dtype: str = "float32",
    side: Side | None = None,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The device functions that store a chunk of a warp's result, as vectors or as elements.

    The chunk begins at the addresses c and out; rows x cols of it, or more, are in the result. Its
    place there is (top, left), which the epilogue is told.

    Args:
        out_dtype: dtype of the result and of c; "int8" has an epilogue, no c and no split rows.
        along_rows: True if a row of the chunk is contiguous in the result; else a column is.
        rows_are_split: True if the chunk's rows 8 to 15 are rows 16 to 23 of the tile, and each
            thread's two rows are neighbours, as `wgmma` leaves them for an a in registers.
        has_edges: True if chunks stored as vectors may lie across an edge of the result.
        epilogue: None, or a `Fusion`, which is applied.
        acc_dtype: dtype of the sums, alpha and beta: "float32" or "int32". int32 that an epilogue
            turns into floats get no c.
        side: elements that store_elements writes; None for all.

    Returns:
        read_chunk, which reads the epilogue's operands ahead; store_chunk, which takes them and
        stores vectors; and store_elements.
    """
    from numba import cuda, float32, int32, uint16

    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_finish, make_read
    from dxgemm.handwritten.parts.hopper import pack_pair, pack_quad, store_byte, unpack_pair
    from dxgemm.handwritten.parts.intrinsics import (
        load_global,
        load_shared,
        plus_scaled,
        scaled,
        store_global,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")
    is_byte = out_dtype == "int8"
    is_word = not kind and not is_byte  # results of 32 bits
    scalar = {"float32": float32, "int32": int32}[acc_dtype]
    adds_c = acc_dtype in ("float32", out_dtype) and not is_byte
    result = "int32" if out_dtype == "int32" else "float32"  # before it is narrowed
    lines, line_items, line_bytes = _LINES[along_rows]
    item_bytes = 4 if is_word else 1 if is_byte else 2
    vector_items = 16 // item_bytes
    lanes_per_line = line_items // vector_items
    lines_per_step = LANES // lanes_per_line
    steps = lines // lines_per_step
    # Columns of the product for one of the result: neighbours in a line. Then in the chunk.
    taken = columns_for_one(epilogue)
    row_taken, col_taken = (1, taken) if along_rows else (taken, 1)
    line_pieces = line_items // taken
    rounds = bool(kind)
    finish = make_finish(epilogue, acc_dtype, result, taken, rounds)
    read = make_read(epilogue, vector_items)
    finish_vector = make_finish(epilogue, acc_dtype, result, vector_items, rounds, is_read=True)
    is_whole = side is None
    keeps, _ = make_keeps(side)
    write_chunk, place = make_write_chunk(along_rows, rows_are_split)

    @cuda.jit(device=True, forceinline=True)
    def load_element(address):
        if is_word:
            return load_global(scalar, 1, address, 0)[0]
        return unpack_pair(kind, int32(load_global(uint16, 1, address, 0)[0]))[0]

    @cuda.jit(device=True, forceinline=True)
    def store_element(address, value):
        if is_word:
            store_global(address, 0, (value,))
        elif is_byte:
            store_byte(address, pack_quad(value, value, value, value))
        else:
            store_global(address, 0, (uint16(pack_pair(kind, value, value)),))

    def make_plus_c(count: int) -> Any:
        """A device function: values plus beta times `count` neighbours from an address on."""

        def plus_c(values, beta, address):
            if adds_c and beta != 0:
                added = ()
                if count == 1:
                    added = (load_element(address),)
                elif is_word:
                    added = load_global(scalar, 4, address, 0)
                else:
                    pairs = load_global(int32, 4, address, 0)
                    for i in static_range(4):
                        added = added + unpack_pair(kind, pairs[i])
                values = plus_scaled(values, beta, added)
            return values

        return cuda.jit(device=True, forceinline=True)(unroll(plus_c))

    plus_element, plus_vector = make_plus_c(1), make_plus_c(vector_items)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def read_chunk(lane, rows, cols, matrix, top, left, extra):
        """The epilogue's operands for the chunk; outside of the result those of its edge."""
        item: int32 = lane % lanes_per_line * vector_items
        operands = ()
        for step in static_range(steps):
            row, col = place(int32(lane // lanes_per_line + step * lines_per_step), item)
            if along_rows:
                line: int32 = top + min(row, rows - 1)
                along: int32 = left + min(col, cols - vector_items)
            else:
                line = left + min(col, cols - 1)
                along = top + min(row, rows - vector_items)
            operands = operands + (read(matrix, line, along, extra),)
        return operands

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_chunk(
        frag, chunk_smem, lane, rows, cols, alpha, beta, c, c_line_bytes, out, out_line_bytes,
        operands, matrix, top, left,
    ):  # fmt: skip
        """Store 16 bytes at a time, each whole inside the result or whole outside of it."""
        write_chunk(chunk_smem, lane, frag)
        item: int32 = lane % lanes_per_line * vector_items
        row, col = place(int32(lane // lanes_per_line), item)
        if not has_edges:
            lines: int32 = 4 * LANES
        elif along_rows:
            lines = rows if col < cols else 0
        else:
            lines = cols if row < rows else 0
        for step in static_range(steps):
            line = int32(lane // lanes_per_line + step * lines_per_step)
            source: int32 = chunk_smem + line * line_bytes + item * 4
            row, col = place(line, item)
            line, along = (row, col) if along_rows else (col, row)
            if line < lines:
                old = c + int32(line * c_line_bytes + along * item_bytes)
                if taken > 1:
                    along = along // 2
                target = out + int32(line * out_line_bytes + along * item_bytes)
                sums, packed = (), ()
                for i in static_range(0, vector_items, 4):
                    sums = sums + load_shared(scalar, 4, source, 4 * i)
                values = plus_vector(scaled(alpha, sums), beta, old)
                if along_rows:
                    values = finish_vector(values, matrix, top + row, left + col, operands[step])
                else:
                    values = finish_vector(values, matrix, left + col, top + row, operands[step])
                if is_word:
                    packed = values
                elif is_byte:
                    for i in static_range(0, vector_items // taken, 4):
                        quad = pack_quad(values[i], values[i + 1], values[i + 2], values[i + 3])
                        packed = packed + (quad,)
                else:
                    for i in static_range(4 // taken):
                        packed = packed + (pack_pair(kind, values[2 * i], values[2 * i + 1]),)
                store_global(target, 0, packed)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_elements(
        frag, chunk_smem, lane, rows, cols, alpha, beta,
        c, c_row_bytes, c_col_bytes, out, out_row_bytes, out_col_bytes,
        matrix, top, left, extra,
    ):  # fmt: skip
        """Store one element a thread and step, for a result that allows no vectors."""
        write_chunk(chunk_smem, lane, frag)
        line: int32 = lane // line_pieces
        item: int32 = lane % line_pieces * taken
        source: int32 = chunk_smem + line * line_bytes + item * 4
        inside: int32 = min(lines, rows if along_rows else cols)
        while line < inside:
            row, col = place(line, item)
            if row < rows and col < cols and (is_whole or keeps(top + row, left + col)):
                sums, values = load_shared(scalar, taken, source, 0), ()
                for i in static_range(taken):
                    old = c + row * c_row_bytes + col * c_col_bytes
                    old += i * (c_col_bytes if along_rows else c_row_bytes)
                    values = values + plus_element((scaled(alpha, sums[i]),), beta, old)
                if along_rows:
                    values = finish(values, matrix, top + row, left + col, extra)
                else:
                    values = finish(values, matrix, left + col, top + row, extra)
                target = out + row // row_taken * out_row_bytes + col // col_taken * out_col_bytes
                store_element(target, values[0])
            line += LANES // line_pieces
            source += LANES // line_pieces * line_bytes

    return read_chunk, store_chunk, store_elements


def make_write_chunk(
    along_rows: bool, rows_are_split: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The device functions write_chunk and place, for lines in shared memory as `_LINES` says."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import store_shared
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    _, _, line_bytes = _LINES[along_rows]

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def write_chunk(chunk_smem, lane, frag):
        """Put a thread's sums into the lines of the chunk."""
        cuda.syncwarp()  # the chunk before has been read
        quad: int32 = lane // 4
        member: int32 = lane % 4
        if rows_are_split:
            row = int32((quad & 2) * 4 + (quad >> 2) * 4 + (quad & 1) * 2)
        else:
            row = quad
        for j in static_range(CHUNK_COLS // 8):
            col: int32 = 8 * j + 2 * member
            if along_rows:
                start: int32 = chunk_smem + row * line_bytes + col * 4
                store_shared(start, 0, (frag[4 * j], frag[4 * j + 1]))
                below = line_bytes if rows_are_split else 8 * line_bytes
                store_shared(start, below, (frag[4 * j + 2], frag[4 * j + 3]))
            else:
                start = chunk_smem + col * line_bytes + row * 4
                if rows_are_split:
                    store_shared(start, 0, (frag[4 * j], frag[4 * j + 2]))
                    store_shared(start, line_bytes, (frag[4 * j + 1], frag[4 * j + 3]))
                else:
                    for i in static_range(4):
                        store_shared(start, i % 2 * line_bytes + i // 2 * 32, (frag[4 * j + i],))
        cuda.syncwarp()

    @cuda.jit(device=True, forceinline=True)
    def place(line, item):
        """Row and column, from the chunk's first on, of an item of a line."""
        if along_rows:
            row, col = line, item
        else:
            row, col = item, line
        if rows_are_split:
            row = int32(row + (row & 8))
        return row, col

    return write_chunk, place
