"""The store of a chunk of a warp's result: 16 rows x 32 columns, through shared memory.

A tensor core leaves a thread two neighbouring columns of every eighth row: stored as they are,
eight lines of memory would get 32 bytes each (16 in float16). So a warp writes its chunk to shared
memory, in the direction in which the result is contiguous, and reads it back as 16 bytes
of the result per thread. A result that allows no such vectors is stored by elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.addend import KINDS, make_plus_c_at
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS, ITEM_BYTES, ROUNDED
from dxgemm.handwritten.parts.triangle import Side, make_keeps
from dxgemm.handwritten.parts.unroll import device, static_range

CHUNK_COLS = 32
SPLIT_ROWS = 24  # from the first row to the last of a chunk whose rows are split
LONGEST_LINE = 2**23  # elements: 32 lines of the result, in bytes, must fit 32 bits
STORE_BYTES = 2560  # of shared memory for a warp's store: 16 lines of 160 bytes, or 32 of 80
LANES = 32
TOGETHER = 4  # elements of a thread whose operands are read before any is stored
# Lines of a chunk, their elements, and their bytes: padded against bank conflicts. By `along_rows`.
_LINES = {True: (16, 32, 160), False: (32, 16, 80)}


class Part(NamedTuple):
    """A part of the result: so many rows and columns, or more, of a matrix, and the first ones."""

    rows: Any
    cols: Any
    matrix: Any
    top: Any
    left: Any


class Lines(NamedTuple):
    """Address of a part of c or out; bytes from a row, a column and a contiguous line to the next.

    Those of a line have 32 bits, for vectors.
    """

    at: Any
    row: Any
    col: Any
    line: Any


class Chunk(NamedTuple):
    """How a chunk is stored, and what becomes of it.

    Device functions take the `Part` of the result, the `Result`, and c and out as `Lines`.

    Attributes:
        out_dtype: dtype of the result and of c; those of one byte have no c.
        along_rows: True if a row of the chunk is contiguous in the result; else a column is.
        row_order: "" if a thread's two rows are eight apart. As `wgmma` leaves them for an a in
            registers, they are neighbours: "pairs"; or these, and the chunk's rows 8 to 15 are rows
            16 to 23 of the tile: "split pairs".
        epilogue: None, or a `Fusion`, which is applied.
        acc_dtype: dtype of the sums, alpha and beta: "float32" or "int32". int32 that an epilogue
            turns into floats get no c.
    """

    out_dtype: str
    along_rows: bool
    row_order: str
    epilogue: Any
    acc_dtype: str

    @property
    def kind(self) -> str:
        """Name of a 16-bit float that is stored; "" for other results."""
        return KINDS.get(self.out_dtype, "")

    @property
    def byte(self) -> str:
        """Name of a type of one byte that is stored, "s8" for int8; "" for other results."""
        return {"int8": "s8", **FLOAT8_KINDS}.get(self.out_dtype, "")

    @property
    def vector_items(self) -> int:
        """Elements of 16 bytes of the result."""
        return 16 // ITEM_BYTES[self.out_dtype]

    @property
    def lanes_per_line(self) -> int:
        """Lanes that store a line in vectors."""
        return _LINES[self.along_rows][1] // self.vector_items

    def finish(self, width: int, is_read: bool = False) -> Callable[..., Any]:
        """The device function that finishes so many neighbours."""
        from dxgemm.handwritten.parts.epilogue import make_finish

        result = "int32" if self.out_dtype == "int32" else "float32"  # before it is narrowed
        rounds = self.out_dtype in ROUNDED
        return make_finish(self.epilogue, self.acc_dtype, result, width, rounds, is_read)


def make_place(chunk: Chunk) -> Callable[..., Any]:
    """A device function: (line, item) -> row and column, from the chunk's first on."""
    from numba import int32

    along_rows, is_split = chunk.along_rows, "split" in chunk.row_order

    @device
    def place(line, item):
        if along_rows:
            row, col = line, item
        else:
            row, col = item, line
        if is_split:
            row = int32(row + (row & 8))
        return row, col

    return place


def make_put_chunk(chunk: Chunk) -> Callable[..., Any]:
    """A device function: (chunk_smem, lane, frag): put a thread's sums into lines of the chunk."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import store_shared

    along_rows, are_pairs = chunk.along_rows, "pairs" in chunk.row_order
    is_split = "split" in chunk.row_order
    _, _, line_bytes = _LINES[along_rows]

    @device
    def put_chunk(chunk_smem, lane, frag):
        cuda.syncwarp()  # the chunk before has been read
        quad: int32 = lane // 4
        member: int32 = lane % 4
        if is_split:
            row = int32((quad & 2) * 4 + (quad >> 2) * 4 + (quad & 1) * 2)
        elif are_pairs:
            row = int32(2 * quad)
        else:
            row = quad
        for j in static_range(CHUNK_COLS // 8):
            col: int32 = 8 * j + 2 * member
            if along_rows:
                start: int32 = chunk_smem + row * line_bytes + col * 4
                store_shared(start, 0, (frag[4 * j], frag[4 * j + 1]))
                below = line_bytes if are_pairs else 8 * line_bytes
                store_shared(start, below, (frag[4 * j + 2], frag[4 * j + 3]))
            else:
                start = chunk_smem + col * line_bytes + row * 4
                if are_pairs:
                    store_shared(start, 0, (frag[4 * j], frag[4 * j + 2]))
                    store_shared(start, line_bytes, (frag[4 * j + 1], frag[4 * j + 3]))
                else:
                    for i in static_range(4):
                        store_shared(start, i % 2 * line_bytes + i // 2 * 32, (frag[4 * j + i],))
        cuda.syncwarp()

    return put_chunk


def make_pack(chunk: Chunk) -> Callable[..., Any]:
    """A device function: (values) -> the words of 16 bytes of the result, or of half of them."""
    from dxgemm.handwritten.parts.epilogue import columns_for_one
    from dxgemm.handwritten.parts.hopper import pack_pair, pack_quad

    kind, byte = chunk.kind, chunk.byte
    count = chunk.vector_items // columns_for_one(chunk.epilogue)

    @device
    def pack(values):
        words = ()
        if byte:
            for i in static_range(0, count, 4):
                quad = pack_quad(byte, values[i], values[i + 1], values[i + 2], values[i + 3])
                words = words + (quad,)
        elif kind:
            for i in static_range(0, count, 2):
                words = words + (pack_pair(kind, values[i], values[i + 1]),)
        else:
            words = values
        return words

    return pack


def make_vectors_out(
    chunk: Chunk, has_edges: bool
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Device functions that store a warp's sums, 16 bytes at a time, each whole inside or outside.

    read_chunk(lane, part, extra) reads the epilogue's operands ahead; outside of the result, it
    reads those of its edge. store_chunk takes them.

    Args:
        has_edges: True if chunks may be across an edge of the result.
    """
    from numba import int32

    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_read
    from dxgemm.handwritten.parts.intrinsics import load_shared, scaled, store_global

    out_dtype, along_rows, _, epilogue, acc_dtype = chunk
    scalar, vector_items = np.dtype(acc_dtype).type, chunk.vector_items
    lines_all, _, line_bytes = _LINES[along_rows]
    item_bytes, lanes_per_line = 16 // vector_items, chunk.lanes_per_line
    lines_per_step = LANES // lanes_per_line
    steps, taken = lines_all // lines_per_step, columns_for_one(epilogue)
    plus_c, finish = (
        make_plus_c_at(acc_dtype, out_dtype, vector_items),
        chunk.finish(vector_items, True),
    )
    put_chunk, place, pack = make_put_chunk(chunk), make_place(chunk), make_pack(chunk)
    read = make_read(epilogue, vector_items)

    @device
    def read_chunk(lane, part, extra):
        rows, cols, matrix, top, left = part
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

    @device
    def store_chunk(frag, chunk_smem, lane, part, result, c, out, operands):
        rows, cols, matrix, top, left = part
        put_chunk(chunk_smem, lane, frag)
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
                old = c.at + int32(line * c.line + along * item_bytes)
                if taken > 1:
                    along = along // 2
                target = out.at + int32(line * out.line + along * item_bytes)
                sums = ()
                for i in static_range(0, vector_items, 4):
                    sums = sums + load_shared(scalar, 4, source, 4 * i)
                values = plus_c(scaled(result.alpha, sums), result.beta, old, 0, 0)
                if along_rows:
                    values = finish(values, matrix, top + row, left + col, operands[step])
                else:
                    values = finish(values, matrix, left + col, top + row, operands[step])
                store_global(target, 0, pack(values))

    return read_chunk, store_chunk


def make_elements_out(chunk: Chunk, side: Side | None) -> Callable[..., Any]:
    """A device function: store a warp's sums one by one, for a result that allows no vectors.

    Args:
        side: elements that are written; None for all.
    """
    from numba import int32, uint16

    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_read
    from dxgemm.handwritten.parts.hopper import pack_pair, pack_quad, store_byte
    from dxgemm.handwritten.parts.intrinsics import load_shared, scaled, store_global

    out_dtype, along_rows, _, epilogue, acc_dtype = chunk
    kind, byte, scalar = chunk.kind, chunk.byte, np.dtype(acc_dtype).type
    lines, line_items, line_bytes = _LINES[along_rows]
    # Columns of the product for one of the result: neighbours in a line. Then in the chunk.
    taken = columns_for_one(epilogue)
    row_taken, col_taken = (1, taken) if along_rows else (taken, 1)
    line_pieces, is_whole = line_items // taken, side is None
    line_step = LANES // line_pieces
    put_chunk, place, (keeps, _) = make_put_chunk(chunk), make_place(chunk), make_keeps(side)
    plus_c, finish = make_plus_c_at(acc_dtype, out_dtype, 1), chunk.finish(taken, True)
    read = make_read(epilogue, taken)

    @device
    def store_element(address, value):
        if byte:
            store_byte(address, pack_quad(byte, value, value, value, value))
        elif kind:
            store_global(address, 0, (uint16(pack_pair(kind, value, value)),))
        else:
            store_global(address, 0, (value,))

    @device
    def place_in_result(part, row, col):
        """Line and element of the result, of its edge for those outside."""
        row = part.top + min(row, part.rows - row_taken)
        col = part.left + min(col, part.cols - col_taken)
        return (row, col) if along_rows else (col, row)

    @device
    def store_elements(frag, chunk_smem, lane, part, result, c, out):
        rows, cols, matrix, top, left = part
        put_chunk(chunk_smem, lane, frag)
        line: int32 = lane // line_pieces
        item: int32 = lane % line_pieces * taken
        source: int32 = chunk_smem + line * line_bytes + item * 4
        inside: int32 = min(lines, rows if along_rows else cols)
        while line < inside:
            # Everything is read first: a store would hold back the loads that follow it.
            values, operands = (), ()
            for number in static_range(TOGETHER):
                row, col = place(int32(line + number * line_step), item)
                sums = load_shared(scalar, taken, source, number * line_step * line_bytes)
                for i in static_range(taken):
                    old = c.at + row * c.row + col * c.col
                    old += i * (c.col if along_rows else c.row)
                    value = (scaled(result.alpha, sums[i]),)
                    if row < rows and col < cols:
                        value = plus_c(value, result.beta, old, 0, 0)
                    values = values + value
                at, beside = place_in_result(part, row, col)
                operands = operands + (read(matrix, at, beside, result.extra),)
            for number in static_range(TOGETHER):
                row, col = place(int32(line + number * line_step), item)
                if row < rows and col < cols and (is_whole or keeps(top + row, left + col)):
                    at, beside = place_in_result(part, row, col)
                    finished = finish(
                        values[taken * number : taken * number + taken], matrix, at, beside,
                        operands[number],
                    )  # fmt: skip
                    target = out.at + row // row_taken * out.row + col // col_taken * out.col
                    store_element(target, finished[0])
            line += TOGETHER * line_step
            source += TOGETHER * line_step * line_bytes

    return store_elements
