"""The result of a tile of complex sums, from registers to global memory.

Sums are pairs of real and imaginary parts; the blocks of a cluster that share k first add theirs
up. A thread stores 16 bytes at a time where the result lies so, and one element anywhere else. If
there is an epilogue, a thread first puts its sums into shared memory, from which it takes them a
row at a time: the user's function is compiled for a row of a thread, not for its whole tile. What
is stored is then complex or real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.complex_product import (
    COMPLEX_PARTS,
    make_plus_multiple,
    make_scale,
)
from dxgemm.handwritten.parts.operands import ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.store import Store


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
    up in the order of ranks. All threads of the cluster call it together, when nobody needs what is
    in shared memory any more.
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


def make_store(
    config: Any, tile: ThreadTile, corner: Callable[..., Any], dtype: str, epilogue: Any,
    in_rows: Callable[..., Any] | None = None,
) -> Store:  # fmt: skip
    """Thread tiles of complex sums, which the blocks of a cluster add up, each a share of them.

    Args:
        tile: elements of a thread; a block of a cluster stores some of the rows, or a part of one.
        corner: device function: thread -> first row and column of its elements in the block's tile.
        dtype, epilogue: see `make_store_complex`.
        in_rows: device function that puts a thread's sums in the order of the elements; None if
            they are.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    rows, cols, row_group, col_group, row_width = tile
    split_k, orders, width = config.split_k, in_rows is not None, VECTOR_BYTES // ITEM_BYTES[dtype]
    share_m = max(1, rows // split_k)
    share_n = rows * cols // split_k // share_m
    shares_n = cols // share_n
    share = ThreadTile(share_m, share_n, row_group, col_group, min(row_width, share_m))
    threads, real = config.threads, np.dtype(COMPLEX_PARTS[dtype]).type
    add_blocks = make_add_blocks(real, 2 * rows * cols, threads, split_k) if split_k > 1 else None
    smem_bytes = config.smem_bytes(dtype)
    store_complex = make_store_complex(share, dtype, int64, epilogue, threads, smem_bytes)

    def begin(result):
        return 0

    def store(sums, smem, thread, tile, work, result, held):
        row, col = corner(thread)
        first_row: int32 = tile.row + row
        first_col: int32 = tile.col + col
        if orders:
            sums = in_rows(sums)
        if split_k > 1:
            sums = add_blocks(sums, smem, thread, work.rank)
            own_row: int32 = work.rank // shares_n * share_m
            own_col: int32 = work.rank % shares_n * share_n
            first_row += own_row // row_width * row_group + own_row % row_width
            first_col += own_col // width * col_group + own_col % width
        store_complex(
            sums, smem, thread, tile.matrix, first_row, first_col, result.m, result.n, result.alpha,
            result.beta, result.c, tile.matrix * result.c.batch, result.out,
            tile.matrix * result.out.batch, result.extra,
        )  # fmt: skip

    return Store(device_function(begin), device_function(unroll(store)))


def make_store_complex(
    tile: ThreadTile, dtype: str, index: Any, epilogue: Any, threads: int, smem_bytes: int
) -> Any:
    """A device function: write what an epilogue makes of a thread's alpha * acc + beta * c.

    It takes acc, the address of the threads' shared memory, the thread, the matrix, the thread's
    first row and column, m, n, the parts of alpha, c and out, each with the place where the matrix
    begins, in elements, and the kernel's last parameter. That ends with the parts of beta, which is
    0 without it; c is not read then. With functions to apply, nobody may need what is in shared
    memory.

    Args:
        dtype: dtype of c and of the sums; of out, or that of its parts if the epilogue is real.
        index: int32 or int64, the type of strides in bytes.
        epilogue: a `Fusion` that ends with two numbers; None for a beta of 0.
        threads, smem_bytes: of a block, or of a tile that has threads and memory of its own.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import (
        complex_of,
        device_function,
        global_address,
        load_global,
        load_shared,
        store_global,
        store_shared,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    thread_m, thread_n, row_group, col_group, row_width = tile
    item_size = np.dtype(dtype).itemsize
    real_dtype, real_size = COMPLEX_PARTS[dtype], item_size // 2
    real = np.dtype(real_dtype).type
    width = VECTOR_BYTES // item_size
    has_beta, is_fused = epilogue is not None, epilogue is not None and bool(epilogue.stages)
    factors = len(epilogue.operands) - 2 if has_beta else 0
    is_real = is_fused and epilogue.is_real
    out_size = real_size if is_real else item_size
    out_dtype = real_dtype if is_real else dtype
    # A thread's vectors lie as far apart in shared memory as all threads have room for one. As many
    # rows are there at a time as fit.
    sheet, row_vectors = threads * VECTOR_BYTES, thread_n // width
    fitting = max(1, smem_bytes // (sheet * row_vectors))
    at_once = next(r for r in range(thread_m, 0, -1) if thread_m % r == 0 and r <= fitting)
    finish = make_finish(epilogue, real_dtype, out_dtype, width)
    finish_one = make_finish(epilogue, real_dtype, out_dtype)

    scale = make_scale(thread_m * thread_n)
    plus_multiple, plus_multiple_one = make_plus_multiple(thread_n), make_plus_multiple(1)

    def make_write(count: int, has_addend: bool) -> Any:
        """The store of `count` neighbours at a time, contiguous if there are several."""

        def write(acc, rows, cols, beta, c_place, out_place):
            c_first, c_row, c_col = c_place
            out_first, out_row, out_col = out_place
            for i in static_range(thread_m):
                step = i // row_width * row_group + i % row_width
                values = acc[2 * i * thread_n : 2 * (i + 1) * thread_n]
                if has_addend:  # c's elements of a row are on their way together
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

        return device_function(unroll(write))

    def take(re, im, beta, c_from):
        """The complex number that the epilogue is given."""
        if beta[0] != 0 or beta[1] != 0:
            added = load_global(real, 2, c_from, 0)
            re, im = plus_multiple_one((re, im), beta[0], beta[1], added)
        return complex_of(re, im)

    def put(out_to, result):
        if is_real:
            store_global(out_to, 0, (result,))
        else:
            store_global(out_to, 0, (result.real, result.imag))

    take, put = device_function(unroll(take)), device_function(unroll(put))

    def write_finished(
        acc, rows, cols, beta, c_place, out_place, smem, thread, matrix, row, col, extra
    ):
        c_first, c_row, c_col = c_place
        out_first, out_row, out_col = out_place
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
                    results = ()  # whatever is read for a row is on its way together
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

    write_finished = device_function(unroll(write_finished))
    write, write_sum = make_write(1, False), make_write(1, True)
    write_vectors, write_vector_sums = make_write(width, False), make_write(width, True)

    def store_complex(
        acc, smem, thread, matrix, row, col, m, n, alpha_re, alpha_im, c, c_start, out, out_start,
        extra,
    ):  # fmt: skip
        rows: int32 = m - row
        cols: int32 = n - col
        c_row, c_col = index(c.row * item_size), index(c.col * item_size)
        out_row, out_col = index(out.row * out_size), index(out.col * out_size)
        c_first = global_address(c.data) + c_start * item_size
        out_first = global_address(out.data) + out_start * out_size
        is_vector = out.col == 1 and n % width == 0 and (out_first | out_row) % VECTOR_BYTES == 0
        c_first += int64(int32(row)) * int64(c_row) + int64(int32(col)) * int64(c_col)
        out_first += int64(int32(row)) * int64(out_row) + int64(int32(col)) * int64(out_col)
        acc = scale(acc, alpha_re, alpha_im)
        c_place, out_place = (c_first, c_row, c_col), (out_first, out_row, out_col)
        if has_beta:
            beta = extra[factors], extra[factors + 1]
        else:
            beta = real(0), real(0)
        if is_fused:
            write_finished(
                acc, rows, cols, beta, c_place, out_place,
                smem, thread, matrix, int64(row), int64(col), extra,
            )  # fmt: skip
        elif beta[0] == 0 and beta[1] == 0:
            if width > 1 and is_vector:
                write_vectors(acc, rows, cols, beta, c_place, out_place)
            else:
                write(acc, rows, cols, beta, c_place, out_place)
        elif width > 1 and is_vector and c.col == 1 and (c_first | c_row) % VECTOR_BYTES == 0:
            write_vector_sums(acc, rows, cols, beta, c_place, out_place)
        else:
            write_sum(acc, rows, cols, beta, c_place, out_place)

    return device_function(unroll(store_complex))
