"""The result of a tile of complex sums, from registers to global memory.

Sums are pairs of real and imaginary parts; the blocks of a cluster that share k first add theirs
up. A thread stores 16 bytes at a time where these are contiguous in the result, else one element
at a time. With an epilogue, a thread first puts its sums into shared memory, from which it takes
them row by row: the user's function is compiled for one row of a thread, not for its whole tile.
The stored elements are then complex or real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.chunk_store import Part
from dxgemm.handwritten.parts.complex_product import (
    COMPLEX_PARTS,
    make_plus_multiple,
    make_scale,
)
from dxgemm.handwritten.parts.operands import ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.store import Store
from dxgemm.handwritten.parts.unroll import device, static_range


class ThreadTile(NamedTuple):
    """Elements of a thread: in vectors of 16 bytes along rows, and in neighbouring rows.

    Attributes:
        rows, cols: their numbers.
        row_group, col_group: elements from one group of neighbours to the next.
        row_width: neighbouring rows.
    """

    rows: int
    cols: int
    row_group: int
    col_group: int
    row_width: int


def make_add_blocks(real: Any, count: int, threads: int, split_k: int) -> Any:
    """A device function: (sums, smem, thread, rank) -> sums over the blocks of a cluster.

    A thread brings `count` real numbers and gets share number `rank`, of split_k equal ones, added
    up in the order of ranks. All threads of the cluster call it together, when no thread needs the
    contents of shared memory any more.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import (
        cluster_address,
        cluster_sync,
        device_function,
        load_cluster,
        store_shared,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    width = VECTOR_BYTES // np.dtype(real).itemsize
    vectors = count // width
    own_vectors = vectors // split_k
    sheet = threads * VECTOR_BYTES  # neighbouring threads, neighbouring vectors

    def add_blocks(sums, smem, thread, rank):
        cuda.syncthreads()
        start: int32 = smem + thread * VECTOR_BYTES
        for i in static_range(vectors):
            store_shared(start, i * sheet, sums[width * i : width * (i + 1)])
        cluster_sync()
        own: int32 = start + rank * (own_vectors * sheet)
        totals = ()
        for i in static_range(own_vectors):
            total = load_cluster(real, width, cluster_address(own, int32(0)), i * sheet)
            for block in static_range(1, split_k):
                added = load_cluster(real, width, cluster_address(own, int32(block)), i * sheet)
                values = ()
                for place in static_range(width):
                    values = values + (total[place] + added[place],)
                total = values
            totals = totals + total
        cluster_sync()  # until then, others read this block's shared memory
        return totals

    return device_function(unroll(add_blocks))


class Share(NamedTuple):
    """Elements of a thread, and how they become elements of the result.

    Device functions take the `Part` of the result from the thread's first element on, the parts of
    beta, and c and out: the address there, bytes from a row, and from a column to the next.

    Attributes:
        tile: elements of the thread.
        dtype: dtype of c and of the sums; of out, or that of its parts if the epilogue is real.
        epilogue: a `Fusion` that ends with two numbers; None for a beta of 0.
    """

    tile: ThreadTile
    dtype: str
    epilogue: Any

    @property
    def real(self) -> Any:
        """Type of a part of an element."""
        return np.dtype(COMPLEX_PARTS[self.dtype]).type

    @property
    def width(self) -> int:
        """Elements of 16 bytes."""
        return VECTOR_BYTES // ITEM_BYTES[self.dtype]

    @property
    def is_fused(self) -> bool:
        """True if there are functions to apply."""
        return self.epilogue is not None and bool(self.epilogue.stages)

    @property
    def is_real(self) -> bool:
        """True if real numbers are stored."""
        return self.is_fused and bool(self.epilogue.is_real)


def make_store(
    tile: ThreadTile,
    corner: Callable[..., Any],
    dtype: str,
    epilogue: Any,
    threads: int,
    smem_bytes: int,
    *,
    split_k: int = 1,
    in_rows: Callable[..., Any] | None = None,
    is_far: bool = True,
) -> Store:
    """Thread tiles of complex sums, which the blocks of a cluster add up, each a share of them.

    Where there are functions to apply, or a cluster, nobody may need what is in shared memory. c is
    not read if beta is 0.

    Args:
        tile: elements of a thread; a block of a cluster stores some of the rows, or a part of one.
        corner: device function: thread -> first row and column of its elements in the block's tile.
        dtype, epilogue: see `Share`.
        threads, smem_bytes: of a block, or of a tile that has threads and memory of its own.
        in_rows: device function that puts a thread's sums in the order of the elements; None if
            they are.
        is_far: True if strides need 64 bits, in bytes.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import global_address

    rows, cols, row_group, col_group, row_width = tile
    orders, item_size, index = in_rows is not None, ITEM_BYTES[dtype], int64 if is_far else int32
    share_m = max(1, rows // split_k)
    share_n = rows * cols // split_k // share_m
    shares_n = cols // share_n
    own = ThreadTile(share_m, share_n, row_group, col_group, min(row_width, share_m))
    share = Share(own, dtype, epilogue)
    real, width, is_fused = share.real, share.width, share.is_fused
    add_blocks = make_add_blocks(real, 2 * rows * cols, threads, split_k) if split_k > 1 else None
    has_beta, out_size = epilogue is not None, item_size // 2 if share.is_real else item_size
    factors = len(epilogue.operands) - 2 if has_beta else 0
    scale, finished_out = (
        make_scale(share_m * share_n),
        make_finished_out(share, threads, smem_bytes),
    )
    one_out, sum_out = make_rows_out(share, 1, False), make_rows_out(share, 1, True)
    vectors_out, vector_sums_out = (make_rows_out(share, width, adds) for adds in (False, True))

    @device
    def begin(result):
        return 0

    @device
    def store(sums, smem, thread, tile, work, result, held):
        first_row, first_col = corner(thread)
        row: int32 = tile.row + first_row
        col: int32 = tile.col + first_col
        if orders:
            sums = in_rows(sums)
        if split_k > 1:
            sums = add_blocks(sums, smem, thread, work.rank)
            own_row: int32 = work.rank // shares_n * share_m
            own_col: int32 = work.rank % shares_n * share_n
            row += own_row // row_width * row_group + own_row % row_width
            col += own_col // width * col_group + own_col % width
        # --- Addresses ---
        alpha_re, alpha_im, c, out, m, n, _, extra = result
        part = Part(int32(m - row), int32(n - col), tile.matrix, row, col)
        c_row, c_col = index(c.row * item_size), index(c.col * item_size)
        out_row, out_col = index(out.row * out_size), index(out.col * out_size)
        c_first = global_address(c.data) + tile.matrix * c.batch * item_size
        out_first = global_address(out.data) + tile.matrix * out.batch * out_size
        is_vector = out.col == 1 and n % width == 0 and (out_first | out_row) % VECTOR_BYTES == 0
        c_first += int64(int32(row)) * int64(c_row) + int64(int32(col)) * int64(c_col)
        out_first += int64(int32(row)) * int64(out_row) + int64(int32(col)) * int64(out_col)
        # --- The fastest store ---
        sums = scale(sums, alpha_re, alpha_im)
        c_lines, out_lines = (c_first, c_row, c_col), (out_first, out_row, out_col)
        if has_beta:
            beta = extra[factors], extra[factors + 1]
        else:
            beta = real(0), real(0)
        if is_fused:
            finished_out(sums, part, beta, c_lines, out_lines, smem, thread, extra)
        elif beta[0] == 0 and beta[1] == 0:
            if width > 1 and is_vector:
                vectors_out(sums, part, beta, c_lines, out_lines)
            else:
                one_out(sums, part, beta, c_lines, out_lines)
        elif width > 1 and is_vector and c.col == 1 and (c_first | c_row) % VECTOR_BYTES == 0:
            vector_sums_out(sums, part, beta, c_lines, out_lines)
        else:
            sum_out(sums, part, beta, c_lines, out_lines)

    return Store(begin, store)


def make_rows_out(share: Share, count: int, adds: bool) -> Callable[..., None]:
    """A device function: store sums, `count` contiguous neighbours at a time, plus beta * c."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import load_global, store_global, zeros

    thread_m, thread_n, row_group, col_group, row_width = share.tile
    real, width, plus_multiple = share.real, share.width, make_plus_multiple(thread_n)

    @device
    def rows_out(acc, part, beta, c, out):
        rows, cols = part.rows, part.cols
        c_first, c_row, c_col = c
        out_first, out_row, out_col = out
        for i in static_range(thread_m):
            step = i // row_width * row_group + i % row_width
            values = acc[2 * i * thread_n : 2 * (i + 1) * thread_n]
            if adds:  # loads of c's elements of a row are in flight together
                c_line = c_first + int64(int32(step)) * int64(c_row)
                added = ()
                for j in static_range(0, thread_n, count):
                    place = j // width * col_group + j % width
                    elements = zeros(real, 2 * count)
                    if step < rows and place < cols:
                        c_from = c_line + int64(int32(place)) * int64(c_col)
                        elements = load_global(real, 2 * count, c_from, 0)
                    added = added + elements
                values = plus_multiple(values, beta[0], beta[1], added)
            out_line = out_first + int64(int32(step)) * int64(out_row)
            for j in static_range(0, thread_n, count):
                place = j // width * col_group + j % width
                if step < rows and place < cols:
                    out_to = out_line + int64(int32(place)) * int64(out_col)
                    store_global(out_to, 0, values[2 * j : 2 * (j + count)])

    return rows_out


def make_finished_out(share: Share, threads: int, smem_bytes: int) -> Callable[..., None]:
    """A device function: store what an epilogue makes of sums plus beta * c, a row at a time.

    It takes the address of the threads' shared memory, the thread, and the kernel's last parameter,
    too.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import (
        complex_of,
        load_global,
        load_shared,
        store_global,
        store_shared,
    )

    (thread_m, thread_n, row_group, col_group, row_width), dtype, epilogue = share
    real, width, is_real, item_size = share.real, share.width, share.is_real, ITEM_BYTES[dtype]
    real_dtype = COMPLEX_PARTS[dtype]
    out_dtype = real_dtype if is_real else dtype
    # A thread's vectors are as far apart in shared memory as all threads have room for one. As many
    # rows are there at a time as fit.
    sheet, row_vectors = threads * VECTOR_BYTES, thread_n // width
    fitting = max(1, smem_bytes // (sheet * row_vectors))
    at_once = next(r for r in range(thread_m, 0, -1) if thread_m % r == 0 and r <= fitting)
    finish = make_finish(epilogue, real_dtype, out_dtype, width)
    finish_one = make_finish(epilogue, real_dtype, out_dtype)
    plus_multiple_one = make_plus_multiple(1)

    @device
    def take(re, im, beta, c_from):
        """The complex number that the epilogue is given."""
        if beta[0] != 0 or beta[1] != 0:
            added = load_global(real, 2, c_from, 0)
            re, im = plus_multiple_one((re, im), beta[0], beta[1], added)
        return complex_of(re, im)

    @device
    def put(out_to, result):
        if is_real:
            store_global(out_to, 0, (result,))
        else:
            store_global(out_to, 0, (result.real, result.imag))

    @device
    def finished_out(acc, part, beta, c, out, smem, thread, extra):
        rows, cols, matrix, row, col = part
        row, col = int64(row), int64(col)
        c_first, c_row, c_col = c
        out_first, out_row, out_col = out
        own: int32 = smem + thread * VECTOR_BYTES
        for first in static_range(0, thread_m, at_once):
            for i in static_range(at_once * row_vectors):
                sums = acc[2 * width * (first * row_vectors + i) :]
                store_shared(own, i * sheet, sums[: 2 * width])
            for i in range(at_once):
                line: int32 = first + i
                step: int32 = line // row_width * row_group + line % row_width
                address: int32 = own + i * row_vectors * sheet
                c_line = c_first + int64(step) * int64(c_row)
                out_line = out_first + int64(step) * int64(out_row)
                if step < rows and (row_vectors - 1) * col_group + width <= cols:
                    results = ()  # all loads for a row are in flight together
                    for j in static_range(row_vectors):
                        parts, values = load_shared(real, 2 * width, address, j * sheet), ()
                        for e in static_range(width):
                            c_from = c_line + int64(int32(j * col_group + e)) * int64(c_col)
                            re, im = parts[2 * e], parts[2 * e + 1]
                            values = values + (take(re, im, beta, c_from),)
                        results = results + finish(
                            values, matrix, row + step, col + j * col_group, extra
                        )
                    for j in static_range(thread_n):
                        offset = int64(int32(j // width * col_group + j % width)) * int64(out_col)
                        put(out_line + offset, results[j])
                else:
                    for j in range(thread_n):
                        place_col: int32 = j // width * col_group + j % width
                        if step < rows and place_col < cols:
                            at: int32 = address + j // width * sheet + j % width * item_size
                            re, im = load_shared(real, 2, at, 0)
                            c_from = c_line + int64(place_col) * int64(c_col)
                            value = take(re, im, beta, c_from)
                            result = finish_one(value, matrix, row + step, col + place_col, extra)
                            put(out_line + int64(place_col) * int64(out_col), result)

    return finished_out
