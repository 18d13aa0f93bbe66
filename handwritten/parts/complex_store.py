"""The result of a tile of complex sums, from registers to global memory.

Sums are pairs of real and imaginary parts. A thread stores 16 bytes at a time where the result lies
so, and one element anywhere else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dxgemm.handwritten.parts.operands import VECTOR_BYTES


def make_store_complex(
    thread_m: int, thread_n: int, row_group: int, col_group: int, row_width: int, dtype: str,
    real_dtype: str, index: Any,
) -> Any:  # fmt: skip
    """A device function: write a thread's elements of alpha * acc + beta * c.

    They lie in vectors of 16 bytes along rows and in row_width neighbouring rows; these are
    row_group and col_group elements apart. c_start and out_start are where the matrices begin, in
    elements; factors are real and imaginary parts. c is not read if beta is 0.

    Args:
        index: int32 or int64, the type of strides in bytes.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        global_address,
        load_global,
        plus_scaled,
        scaled,
        store_global,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    real, item_size = np.dtype(real_dtype).type, np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size

    def multiply(acc, factor_re, factor_im):
        results = ()
        if factor_im == 0:  # an infinite part is not multiplied by 0
            for place in static_range(2 * thread_m * thread_n):
                results = results + (scaled(factor_re, acc[place]),)
        else:
            for place in static_range(0, 2 * thread_m * thread_n, 2):
                re, im = acc[place], acc[place + 1]
                product_re = plus_scaled(scaled(factor_re, re), -factor_im, im)
                product_im = plus_scaled(scaled(factor_re, im), factor_im, re)
                results = results + (product_re, product_im)
        return results

    def plus_multiple(values, factor_re, factor_im, added):
        """A row of results."""
        results = ()
        if factor_im == 0:
            for place in static_range(2 * thread_n):
                results = results + (plus_scaled(values[place], factor_re, added[place]),)
        else:
            for place in static_range(0, 2 * thread_n, 2):
                re, im = added[place], added[place + 1]
                sum_re = plus_scaled(values[place], factor_re, re)
                sum_im = plus_scaled(values[place + 1], factor_re, im)
                sum_re, sum_im = (
                    plus_scaled(sum_re, -factor_im, im),
                    plus_scaled(sum_im, factor_im, re),
                )
                results = results + (sum_re, sum_im)
        return results

    multiply, plus_multiple = (device_function(unroll(f)) for f in (multiply, plus_multiple))

    def make_write(count: int, has_addend: bool) -> Any:
        """The store of `count` neighbours at a time, contiguous if there are several."""

        def write(
            acc, rows, cols, beta_re, beta_im, c_first, c_row, c_col, out_first, out_row, out_col
        ):
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
                    values = plus_multiple(values, beta_re, beta_im, added)
                out_line = out_first + int64(int32(step)) * int64(out_row)
                for j in static_range(0, thread_n, count):
                    place = j // width * col_group + j % width
                    if step < rows and place < cols:
                        out_to = out_line + int64(int32(place)) * int64(out_col)
                        store_global(out_to, 0, values[2 * j : 2 * (j + count)])

        return device_function(unroll(write))

    write, write_sum = make_write(1, False), make_write(1, True)
    write_vectors, write_vector_sums = make_write(width, False), make_write(width, True)

    def store_complex(
        acc, row, col, m, n, alpha_re, alpha_im, beta_re, beta_im, c, c_start, out, out_start
    ):
        rows: int32 = m - row
        cols: int32 = n - col
        c_row, c_col = index(c.row * item_size), index(c.col * item_size)
        out_row, out_col = index(out.row * item_size), index(out.col * item_size)
        c_first = global_address(c.data) + c_start * item_size
        out_first = global_address(out.data) + out_start * item_size
        is_vector = out.col == 1 and n % width == 0 and (out_first | out_row) % VECTOR_BYTES == 0
        c_first += int64(int32(row)) * int64(c_row) + int64(int32(col)) * int64(c_col)
        out_first += int64(int32(row)) * int64(out_row) + int64(int32(col)) * int64(out_col)
        acc = multiply(acc, alpha_re, alpha_im)
        if beta_re == 0 and beta_im == 0:
            if width > 1 and is_vector:
                write_vectors(
                    acc, rows, cols, beta_re, beta_im,
                    c_first, c_row, c_col, out_first, out_row, out_col,
                )  # fmt: skip
            else:
                write(
                    acc, rows, cols, beta_re, beta_im,
                    c_first, c_row, c_col, out_first, out_row, out_col,
                )  # fmt: skip
        elif width > 1 and is_vector and c.col == 1 and (c_first | c_row) % VECTOR_BYTES == 0:
            write_vector_sums(
                acc, rows, cols, beta_re, beta_im,
                c_first, c_row, c_col, out_first, out_row, out_col,
            )  # fmt: skip
        else:
            write_sum(
                acc, rows, cols, beta_re, beta_im,
                c_first, c_row, c_col, out_first, out_row, out_col,
            )  # fmt: skip

    return device_function(unroll(store_complex))
