"""The store of `wgmma`: from the registers of a warp, through shared memory, to whole lines.

A wgmma leaves a thread two neighbouring columns of every eighth row: stored as they are, eight
lines of memory would get 32 bytes each (16 in float16). So a warp writes 16 rows x 32 columns to
shared memory, in the direction in which the result is contiguous, and reads them back 16 bytes of
the result a thread. A mirror image in 16 bits has lines of 16 rows, 32 bytes: there the four warps
of a warpgroup put 64 rows together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.triangle import OTHER, make_keeps, side_of, stores

CHUNK_COLS = 32
LONGEST_LINE = 2**23  # elements: 32 lines of the result, in bytes, must fit 32 bits
SPLIT_ROWS = 24  # from the first row to the last of a chunk whose rows are split
ROUNDED_BYTES = 144  # of a line of 64 16-bit elements, padded against bank conflicts
WARP_BYTES = 2560  # of shared memory for a warp; four of them hold 64 such lines
_LANES = 32


def make_store(
    out_dtype: str,
    along_rows: bool,
    rows_are_split: bool,
    has_edges: bool,
    epilogue: Any = None,
    acc_dtype: str = "float32",
    least: int | None = None,
) -> tuple[Callable[..., Any], ...]:
    """The device functions that store a chunk of a warp's result, as vectors or as elements.

    The chunk begins at the addresses c and out; rows x cols of it, or more, are in the result.

    Args:
        out_dtype: dtype of the result and of c; "int8" has an epilogue, no c and no split rows.
        along_rows: True if a row of the chunk is contiguous in the result; else a column is.
        rows_are_split: True if the chunk's rows 8 to 15 are rows 16 to 23 of the tile, and each
            thread's two rows are neighbours, as `wgmma` leaves them for an a in registers.
        has_edges: True if chunks stored as vectors may lie across an edge of the result.
        epilogue: None, or a `Fusion`; store_elements and store_finished apply it.
        acc_dtype: dtype of the sums, alpha and beta: "float32" or "int32". int32 that an epilogue
            turns into floats get no c.
        least: least row - column of an element that store_elements writes; None for all.

    Returns:
        store_vectors, read_pairs, store_rounded, store_elements, read_chunk, store_finished.
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
        store_shared,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")
    is_byte = out_dtype == "int8"
    is_word = not kind and not is_byte  # results of 32 bits
    scalar = {"float32": float32, "int32": int32}[acc_dtype]
    adds_c = acc_dtype in ("float32", out_dtype) and not is_byte
    result = "int32" if out_dtype == "int32" else "float32"  # before it is narrowed
    lines, line_items, line_bytes = (16, 32, 160) if along_rows else (32, 16, 80)
    item_bytes = 4 if is_word else 1 if is_byte else 2
    vector_items = 16 // item_bytes
    lanes_per_line = line_items // vector_items
    lines_per_step = _LANES // lanes_per_line
    steps = lines // lines_per_step
    # Columns of the product for one of the result: neighbours in a line. Then in the chunk.
    taken = columns_for_one(epilogue)
    row_taken, col_taken = (1, taken) if along_rows else (taken, 1)
    line_pieces = line_items // taken
    rounds = bool(kind)
    finish = make_finish(epilogue, acc_dtype, result, taken, rounds)
    read = make_read(epilogue, vector_items)
    finish_vector = make_finish(epilogue, acc_dtype, result, vector_items, rounds, is_read=True)
    read_pair = make_read(epilogue, 2)
    finish_pair = make_finish(epilogue, acc_dtype, result, 2, rounds, is_read=True)
    has_rows = epilogue is not None and any(o.has_rows for o in epilogue.stage_operands)
    is_whole = least is None
    takes_no_c = not (along_rows and is_whole)
    keeps, _ = make_keeps(side_of(False, least))

    @cuda.jit(device=True, forceinline=True)
    def sum_pair(alpha, x, y, beta, old):
        c = unpack_pair(kind, old)
        first = plus_scaled(scaled(alpha, x), beta, c[0])
        return pack_pair(kind, first, plus_scaled(scaled(alpha, y), beta, c[1]))

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

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def write_chunk(chunk_smem, lane, frag):
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
        """Row and column in the tile of an item of a line of the chunk."""
        if along_rows:
            row, col = line, item
        else:
            row, col = item, line
        if rows_are_split:
            row = int32(row + (row & 8))
        return row, col

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_vectors(
        frag, chunk_smem, lane, rows, cols, alpha, beta, c, c_line_bytes, out, out_line_bytes
    ):
        """Store 16 bytes at a time, each whole inside the result or whole outside of it."""
        write_chunk(chunk_smem, lane, frag)
        item: int32 = lane % lanes_per_line * vector_items
        row, col = place(int32(lane // lanes_per_line), item)
        if not has_edges:
            lines: int32 = 4 * _LANES
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
                target = out + int32(line * out_line_bytes + along * item_bytes)
                old = c + int32(line * c_line_bytes + along * item_bytes)
                x = load_shared(scalar, 4, source, 0)
                if is_word:
                    sums = ()
                    if adds_c and beta != 0:
                        z = load_global(scalar, 4, old, 0)
                        for i in static_range(4):
                            sums = sums + (plus_scaled(scaled(alpha, x[i]), beta, z[i]),)
                    else:
                        for i in static_range(4):
                            sums = sums + (scaled(alpha, x[i]),)
                else:
                    y = load_shared(scalar, 4, source, 16)
                    if takes_no_c and beta == 0:  # else `store_rounded` stores them
                        sums = (
                            pack_pair(kind, alpha * x[0], alpha * x[1]),
                            pack_pair(kind, alpha * x[2], alpha * x[3]),
                            pack_pair(kind, alpha * y[0], alpha * y[1]),
                            pack_pair(kind, alpha * y[2], alpha * y[3]),
                        )
                    else:
                        z = load_global(int32, 4, old, 0)
                        sums = (
                            sum_pair(alpha, x[0], x[1], beta, z[0]),
                            sum_pair(alpha, x[2], x[3], beta, z[1]),
                            sum_pair(alpha, y[0], y[1], beta, z[2]),
                            sum_pair(alpha, y[2], y[3], beta, z[3]),
                        )
                store_global(target, 0, sums)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def read_pairs(lane, rows, cols, matrix, top, left, extra):
        """The epilogue's operands for `store_rounded`; outside of the result those of its edge."""
        upper: int32 = top + min(lane // 4, rows - 1)
        lower: int32 = top + min(lane // 4 + 8, rows - 1)
        operands = ()
        for j in static_range(2 * CHUNK_COLS // 8):
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
        """Finish and store two chunks side by side, of 16-bit elements to which no c is added.

        Elements are rounded before they go through shared memory, which halves its traffic.
        """
        quad: int32 = lane // 4
        member: int32 = lane % 4
        upper: int32 = top + quad
        start: int32 = chunk_smem + quad * ROUNDED_BYTES + member * 4
        cuda.syncwarp()  # the chunk before has been read
        for j in static_range(2 * CHUNK_COLS // 8):
            col: int32 = left + 8 * j + 2 * member
            x = (scaled(alpha, frag[4 * j]), scaled(alpha, frag[4 * j + 1]))
            x = finish_pair(x, matrix, upper, col, operands[j][0])
            y = (scaled(alpha, frag[4 * j + 2]), scaled(alpha, frag[4 * j + 3]))
            y = finish_pair(y, matrix, int32(upper + 8), col, operands[j][1])
            store_shared(start, 16 * j, (pack_pair(kind, x[0], x[1]),))
            store_shared(start, 16 * j + 8 * ROUNDED_BYTES, (pack_pair(kind, y[0], y[1]),))
        cuda.syncwarp()
        line: int32 = lane // 8
        piece: int32 = lane % 8
        source: int32 = chunk_smem + line * ROUNDED_BYTES + piece * 16
        target = out + int32(line * out_line_bytes + piece * 16)
        for step in static_range(4):
            if line + 4 * step < rows and piece * 8 < cols:
                store_global(target, 0, load_shared(int32, 4, source, 4 * step * ROUNDED_BYTES))
            target += int32(4 * out_line_bytes)

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
    def store_finished(
        frag, chunk_smem, lane, rows, cols, alpha, beta, c, c_line_bytes, out, out_line_bytes,
        operands, matrix, top, left,
    ):  # fmt: skip
        """Apply the epilogue to the chunk, which begins at (top, left), and store as vectors."""
        write_chunk(chunk_smem, lane, frag)
        item: int32 = lane % lanes_per_line * vector_items
        for step in static_range(steps):
            line = int32(lane // lanes_per_line + step * lines_per_step)
            source: int32 = chunk_smem + line * line_bytes + item * 4
            row, col = place(line, item)
            if row < rows and col < cols:
                line, along = (row, col) if along_rows else (col, row)
                old = c + int32(line * c_line_bytes + along * item_bytes)
                if taken > 1:
                    along = along // 2
                target = out + int32(line * out_line_bytes + along * item_bytes)
                sums, added, values = (), (), ()
                for i in static_range(0, vector_items, 4):
                    sums = sums + load_shared(scalar, 4, source, 4 * i)
                for i in static_range(vector_items):
                    values = values + (scaled(alpha, sums[i]),)
                if adds_c and beta != 0:
                    if is_word:
                        added = load_global(scalar, 4, old, 0)
                    else:
                        pairs = load_global(int32, 4, old, 0)
                        for i in static_range(4):
                            added = added + unpack_pair(kind, pairs[i])
                    totals = ()
                    for i in static_range(vector_items):
                        totals = totals + (plus_scaled(values[i], beta, added[i]),)
                    values = totals
                if along_rows:
                    values = finish_vector(values, matrix, top + row, left + col, operands[step])
                else:
                    values = finish_vector(values, matrix, left + col, top + row, operands[step])
                packed = ()
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
                    value = scaled(alpha, sums[i])
                    if adds_c and beta != 0:
                        old = c + row * c_row_bytes + col * c_col_bytes
                        old += i * (c_col_bytes if along_rows else c_row_bytes)
                        value = plus_scaled(value, beta, load_element(old))
                    values = values + (value,)
                if along_rows:
                    values = finish(values, matrix, top + row, left + col, extra)
                else:
                    values = finish(values, matrix, left + col, top + row, extra)
                target = out + row // row_taken * out_row_bytes + col // col_taken * out_col_bytes
                store_element(target, values[0])
            line += _LANES // line_pieces
            source += _LANES // line_pieces * line_bytes

    return store_vectors, read_pairs, store_rounded, store_elements, read_chunk, store_finished


def make_store_turned(out_dtype: str, tile_n: int) -> Callable[..., Any]:
    """A device function: store 64 rows of a tile as columns, in 16 bits, without c.

    The threads of a warpgroup call it together, with their sums, the shared memory of their warp,
    the rows and columns from the warpgroup's first on that are in the result, alpha, the address of
    its first element there, and the bytes from one line of the result to the next.
    """
    from numba import cuda, int32, uint16

    from dxgemm.handwritten.parts.hopper import pack_pair, sync_warpgroup
    from dxgemm.handwritten.parts.intrinsics import load_shared, store_global, store_shared
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = {"float16": "f16", "bfloat16": "bf16"}.get(out_dtype, "")

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_turned(acc, chunk_smem, lane, rows, cols, alpha, out, out_line_bytes):
        thread: int32 = cuda.threadIdx.x & 1023
        barrier: int32 = 1 + thread // (4 * _LANES)
        warp: int32 = thread // _LANES % 4
        smem: int32 = chunk_smem - warp * WARP_BYTES
        write: int32 = smem + lane % 4 * 2 * ROUNDED_BYTES + (16 * warp + lane // 4) * 2
        line: int32 = 4 * warp + lane // 8
        piece: int32 = lane % 8
        read: int32 = smem + line * ROUNDED_BYTES + piece * 16
        target = out + int32(line * out_line_bytes + piece * 16)
        for part in static_range(tile_n // 64):
            sync_warpgroup(barrier)  # the lines before have been read
            for i in static_range(16):  # columns 8 apart, each in two rows 8 apart
                x, y = alpha * acc[32 * part + 2 * i], alpha * acc[32 * part + 2 * i + 1]
                pair = pack_pair(kind, x, y)
                store_shared(write, i // 2 * 8 * ROUNDED_BYTES + i % 2 * 16, (uint16(pair),))
                store_shared(
                    write, (i // 2 * 8 + 1) * ROUNDED_BYTES + i % 2 * 16, (uint16(pair >> 16),)
                )
            sync_warpgroup(barrier)
            for step in static_range(4):
                if line + 16 * step < cols and piece * 8 < rows:
                    values = load_shared(int32, 4, read, 16 * step * ROUNDED_BYTES)
                    store_global(target + int32(16 * step * out_line_bytes), 0, values)
            target += int32(64 * out_line_bytes)
            cols = int32(cols - 64)
        sync_warpgroup(barrier)  # before a warp puts its next tile there

    return store_turned


def reads_lines(epilogue: Any) -> bool:
    """True if an epilogue reads, writes or merges whole lines, which threads then share out."""
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
    least: int | None = None,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The device functions allows_vectors and store_tile, for all columns of a warp's 16 rows.

    allows_vectors(m, n, beta, c, out) tells whether 16 bytes can be accessed at a time; store_tile
    writes alpha * acc + beta * c, finished, from row `top` and column `col` of a matrix on.
    Arguments are those of `make_store`.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.epilogue import columns_for_one
    from dxgemm.handwritten.parts.intrinsics import global_address
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    taken = columns_for_one(epilogue)
    row_taken, col_taken = (1, taken) if along_rows else (taken, 1)
    out_bytes = {"int8": 1, "float16": 2, "bfloat16": 2}.get(out_dtype, 4)
    chunks = tile_n // CHUNK_COLS
    # With a in registers and lines along its rows, edges would take registers of the mainloop.
    has_edges = not rows_are_split or not along_rows
    store_vectors, read_pairs, store_rounded, store_elements, read_chunk, store_finished = (
        make_store(out_dtype, along_rows, rows_are_split, has_edges, epilogue, acc_dtype, least)
    )
    is_fused, is_whole = epilogue is not None, least is None
    _, keeps_tile = make_keeps(side_of(False, least))
    rounds_first = out_bytes == 2 and along_rows
    if is_fused:  # mirror images are finished by `store_finished`, which may round another way
        rounds_first = rounds_first and is_whole and not reads_lines(epilogue)
    is_turned = out_bytes == 2 and not (along_rows or rows_are_split or is_fused)
    store_turned = make_store_turned(out_dtype, tile_n) if is_turned else None

    @cuda.jit(device=True, forceinline=True)
    def fits(operand):
        """True if 16-byte accesses along the contiguous direction are possible."""
        unit, other = (operand.col, operand.row) if along_rows else (operand.row, operand.col)
        address = global_address(operand.data)
        is_aligned = (address | (operand.batch | other) * out_bytes) % 16 == 0
        return unit == 1 and is_aligned and abs(other) < LONGEST_LINE

    @cuda.jit(device=True, forceinline=True)
    def allows_vectors(m, n, beta, c, out):
        # Vectors that lie whole inside the result or whole outside of it.
        has_vectors = (n if along_rows else m) * out_bytes % 16 == 0
        has_vectors &= fits(out)
        if beta != 0:
            has_vectors &= fits(c)
        return has_vectors

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_tile(
        acc, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta, c, out, extra
    ):
        out_row_bytes, out_col_bytes = out.row * out_bytes, out.col * out_bytes
        c_row_bytes, c_col_bytes = c.row * out_bytes, c.col * out_bytes
        out_chunk_bytes = CHUNK_COLS // col_taken * out_col_bytes
        c_chunk_bytes = CHUNK_COLS * c_col_bytes
        if along_rows:
            out_line_bytes: int32 = out_row_bytes
            c_line_bytes: int32 = c_row_bytes
        else:
            out_line_bytes = out_col_bytes
            c_line_bytes = c_col_bytes
        c_at = global_address(c.data) + (matrix * c.batch + top * c.row + col * c.col) * out_bytes
        out_at = global_address(out.data) + out_bytes * (
            matrix * out.batch + top // row_taken * out.row + col // col_taken * out.col
        )
        rows: int32 = m - top
        cols: int32 = n - col
        are_vectors = has_vectors
        if not has_edges:
            are_vectors = are_vectors and rows >= SPLIT_ROWS and cols >= tile_n
        if not is_whole:
            are_vectors = are_vectors and keeps_tile(top, col, SPLIT_ROWS, tile_n)
        if is_turned:
            above: int32 = (cuda.threadIdx.x & 127) // _LANES * 16  # rows of the warps before
            turns = has_vectors and beta == 0 and keeps_tile(top - above, col, 64, tile_n)
        if is_turned and turns:
            store_turned(
                acc, chunk_smem, lane, int32(rows + above), cols, alpha, out_at - above * out_bytes,
                out_line_bytes,
            )  # fmt: skip
        elif are_vectors:
            if rounds_first and beta == 0:
                operands = read_pairs(lane, rows, cols, matrix, top, col, extra)
                for pair in static_range(chunks // 2):
                    left: int32 = col + 2 * pair * CHUNK_COLS
                    now = operands
                    if pair < chunks // 2 - 1:  # on their way while these chunks are stored
                        operands = read_pairs(
                            lane, rows, int32(cols - 2 * CHUNK_COLS), matrix, top,
                            int32(left + 2 * CHUNK_COLS), extra,
                        )  # fmt: skip
                    store_rounded(
                        acc[32 * pair : 32 * pair + 32], chunk_smem, lane, rows, cols,
                        alpha, out_at, out_line_bytes, now, matrix, top, left,
                    )  # fmt: skip
                    out_at += 2 * out_chunk_bytes
                    cols = cols - 2 * CHUNK_COLS
            else:
                if is_fused:
                    operands = read_chunk(lane, rows, cols, matrix, top, col, extra)
                for chunk in static_range(chunks):
                    if is_fused:
                        left: int32 = col + chunk * CHUNK_COLS
                        now = operands
                        if chunk < chunks - 1:  # on their way while this chunk is stored
                            operands = read_chunk(
                                lane, rows, int32(cols - CHUNK_COLS), matrix, top,
                                int32(left + CHUNK_COLS), extra,
                            )  # fmt: skip
                        store_finished(
                            acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols,
                            alpha, beta, c_at, c_line_bytes, out_at, out_line_bytes,
                            now, matrix, top, left,
                        )  # fmt: skip
                    else:
                        store_vectors(
                            acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols,
                            alpha, beta, c_at, c_line_bytes, out_at, out_line_bytes,
                        )  # fmt: skip
                    c_at += c_chunk_bytes
                    out_at += out_chunk_bytes
                    cols -= CHUNK_COLS
        else:
            for chunk in static_range(chunks):
                left = int32(col + chunk * CHUNK_COLS)
                if not is_whole and has_vectors and keeps_tile(top, left, SPLIT_ROWS, CHUNK_COLS):
                    # Of a tile that the diagonal crosses, a chunk that it does not cross.
                    if is_fused:
                        operands = read_chunk(lane, rows, cols, matrix, top, left, extra)
                        store_finished(
                            acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols,
                            alpha, beta, c_at, c_line_bytes, out_at, out_line_bytes,
                            operands, matrix, top, left,
                        )  # fmt: skip
                    else:
                        store_vectors(
                            acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols,
                            alpha, beta, c_at, c_line_bytes, out_at, out_line_bytes,
                        )  # fmt: skip
                elif is_whole or top + SPLIT_ROWS - left > least:
                    store_elements(
                        acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols, alpha,
                        beta, c_at, c_row_bytes, c_col_bytes, out_at, out_row_bytes,
                        out_col_bytes, matrix, top, left, extra,
                    )  # fmt: skip
                c_at += c_chunk_bytes
                out_at += out_chunk_bytes
                cols -= CHUNK_COLS

    return allows_vectors, store_tile


def make_store_triangle(
    tile_n: int,
    out_dtype: str,
    along_rows: bool,
    rows_are_split: bool,
    triangle: str,
    epilogue: Any = None,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`make_store_tile` for a tile of a symmetric result, stored as `triangle.stores` says.

    Args:
        along_rows: False if the result is the transposed product.
        triangle: triangles of the result that are written; "" for all of another result.
    """
    if not triangle:
        return make_store_tile(tile_n, out_dtype, along_rows, rows_are_split, epilogue)
    kinds = stores(triangle if along_rows else OTHER[triangle])
    from numba import cuda

    from dxgemm.handwritten.parts.intrinsics import opaque
    from dxgemm.handwritten.parts.unroll import Operand, static_range, unroll

    # A mirror image is the same tile in the transposed result.
    made = tuple(
        make_store_tile(
            tile_n, out_dtype, along_rows is not is_mirrored, rows_are_split, epilogue, least=least
        )
        for is_mirrored, least in kinds
    )
    are_mirrored = tuple(is_mirrored for is_mirrored, _ in kinds)
    store_tiles = tuple(store_tile for _, store_tile in made)
    allows_vectors, _ = make_store_tile(tile_n, out_dtype, along_rows, rows_are_split, epilogue)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_tile(
        acc, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta, c, out, extra
    ):
        # The sums stay in their registers for two stores. What these need beside them is computed
        # there, not kept from tile to tile.
        for i in static_range(len(store_tiles)):
            lane, chunk_smem, matrix = opaque(lane), opaque(chunk_smem), opaque(matrix)
            top, col, n = opaque(top), opaque(col), opaque(n)
            c_row, c_col, out_row, out_col = c.row, c.col, out.row, out.col
            if are_mirrored[i]:
                c_row, c_col, out_row, out_col = c.col, c.row, out.col, out.row
            store_tiles[i](
                acc, chunk_smem, lane, matrix, top, col, n, n, has_vectors, alpha, beta,
                Operand(c.data, opaque(c.batch), opaque(c_row), opaque(c_col)),
                Operand(out.data, opaque(out.batch), opaque(out_row), opaque(out_col)), extra,
            )  # fmt: skip

    return allows_vectors, store_tile
