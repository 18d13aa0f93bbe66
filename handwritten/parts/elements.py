"""Elements of the result: which one a thread has, counted row by row, and how one is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.groups import make_find_block
from dxgemm.handwritten.parts.result import Origin, Result
from dxgemm.handwritten.parts.unroll import device, static_range

MOST_ELEMENTS = 2**31 - 2**12  # that are counted in 32 bits, with those of the last block


def make_find_element(block_elements: int) -> Callable[..., Any]:
    """A device function: (block, thread, m, n) -> matrix, row and column of the thread's element.

    A matrix may have more elements than 32 bits count. Then long division finds the row in which a
    block begins: a division of 64 bits is a subroutine, which takes registers.

    Args:
        block_elements: elements of a block, a power of two.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import divide

    bits = block_elements.bit_length() - 1
    assert block_elements == 1 << bits
    find_block = make_find_block(block_elements)

    @device
    def find_element(block, thread, m, n):
        matrix, block, _ = find_block(block, m * n)
        if m * n < MOST_ELEMENTS:
            element: int32 = block * block_elements + thread
            above = divide(element, int32(n))
            return matrix, int64(above), element - int64(above) * n
        # block * 2**i is row * n + col after i steps.
        rows = divide(int32(block), n)
        row, col = int64(rows), int64(block) - int64(rows) * n
        for _ in static_range(bits):
            row, col = row * 2, col * 2
            if col >= n:
                row, col = row + 1, col - n
        place: int32 = col + thread
        below = divide(place, n)
        return matrix, row + below, place - int64(below) * n

    return find_element


def make_put_neighbours(width: int, out_dtype: str) -> Callable[..., None]:
    """A device function: (values, out, place, left) stores neighbours in a row, from a place on.

    There are `width` values, of which those behind `left` are not stored. Aligned ones are stored
    as vectors.
    """
    from dxgemm.handwritten.parts.intrinsics import global_address, store_vector
    from dxgemm.handwritten.parts.operands import VECTOR_BYTES
    from dxgemm.handwritten.parts.widening import stored_type, view_as

    stored = stored_type(out_dtype)
    item_bytes = np.dtype(stored).itemsize
    per_vector = VECTOR_BYTES // item_bytes

    @device
    def put_neighbours(values, out, place, left):
        elements = ()
        for i in static_range(width):
            elements = elements + (stored(values[i]),)
        data = view_as(stored, out.data)
        address = global_address(out.data) + place * item_bytes
        if left >= width and out.col == 1 and address % VECTOR_BYTES == 0:
            for i in static_range(0, width, per_vector):
                store_vector(data, place + i, elements[i : i + per_vector])
        else:
            for i in static_range(width):
                if i < left:
                    data[place + i * out.col] = elements[i]

    return put_neighbours


def make_put_elements(
    count: int, dtype: str, out_dtype: str, epilogue: Any = None
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Device functions that store `count` elements of a matrix of the result.

    begin(matrix, alpha, beta, c, out, extra) returns the values that all elements share: `at`.
    put(sums, at, places) stores alpha * sums + beta * c, finished by the epilogue and rounded. sums
    has a tuple for each element, of one number; for an epilogue that takes pairs, of two neighbours
    in a row, from an even column on. places has a row and a column of the matrix, and True if the
    element is stored. All operands are read first: a store would hold back the loads after it.

    Args:
        dtype: dtype of the sums, alpha and beta.
        out_dtype: dtype of c and out.
        epilogue: None, or a `Fusion`.
    """
    from dxgemm.handwritten.parts.addend import make_plus_c
    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_finish, make_read
    from dxgemm.handwritten.parts.inner import make_plus
    from dxgemm.handwritten.parts.intrinsics import scaled
    from dxgemm.handwritten.parts.operands import ROUNDED
    from dxgemm.handwritten.parts.widening import NARROW, stored_type, view_as

    stored, taken = stored_type(out_dtype), columns_for_one(epilogue)
    narrow, rounds = NARROW.get(out_dtype, stored), out_dtype in ROUNDED
    finished = "float32" if out_dtype in NARROW else out_dtype
    plus_c = make_plus_c(dtype, out_dtype, taken, plus=make_plus(epilogue, dtype))
    read = make_read(epilogue, taken)
    finish = make_finish(epilogue, dtype, finished, taken, rounds, is_read=True)

    @device
    def begin(matrix, alpha, beta, c, out, extra):
        origin = Origin(matrix, matrix * c.batch, matrix * out.batch)
        return origin, Result(alpha, beta, c, out, 0, 0, 0, extra)

    @device
    def put(sums, at, places):
        origin, result = at
        c, out, values, operands = result.c, result.out, (), ()
        for i in static_range(count):
            row, col, _ = places[i]
            index = origin.c + row * c.row + col * c.col
            added = plus_c(scaled(result.alpha, sums[i]), result.beta, c, index, c.col)
            values = values + (added,)
            operands = operands + (read(origin.matrix, row, col, result.extra),)
        for i in static_range(count):
            row, col, is_stored = places[i]
            if is_stored:
                (value,) = finish(values[i], origin.matrix, row, col, operands[i])
                index = origin.out + row * out.row + col // taken * out.col
                view_as(stored, out.data)[index] = narrow(value)

    return begin, put


def make_put_element(
    dtype: str, out_dtype: str, epilogue: Any = None
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """`make_put_elements` for one: put(sums, at, row, col)."""
    begin, put_all = make_put_elements(1, dtype, out_dtype, epilogue)

    @device
    def put(sums, at, row, col):
        put_all((sums,), at, ((row, col, True),))

    return begin, put
