"""Reductions of the result: each block reduces its tile and stores partial results for a merge.

A block that has its tile of the result in shared memory reduces it there: each thread reduces a
row, a part of a row, or a column, and stores one partial result in a buffer. `merge_partials`
merges these into the results. Nothing depends on the order in which blocks run, so every run gives
the same bits.

The state of a reduction is a register tuple. It is a sum; or a maximum and the sum of exponentials
relative to it; or the first `count` values in the requested order, best first, followed by their
indices. Among equal values, the one with the lower index comes first.
Source: M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018, for the
sum of exponentials in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

# Indices that mean "no element": within a tile, and within the whole result.
NO_PLACE, NO_INDEX = 2**31 - 1, 2**63 - 1
# Sorted values that a thread merges whole, in registers; of more it inserts one after the other.
FEW_VALUES = 8
SUMS, INTEGERS = ("sum", "squares"), ("int32", "int64")


def parts_of_lines(rows: int, cols: int, threads: int, axis: int | None, width: int) -> int:
    """Number of threads that share each row, or each column, of a block's rows x cols.

    A thread's part of a row is a multiple of `width` elements, the number that it reads at a time.
    """
    lines, length = (cols, rows) if axis == 0 else (rows, cols // width)
    parts = 1
    while 2 * parts * lines <= threads and length % (2 * parts) == 0:
        parts *= 2
    return parts


def make_reducer(reduction: Any, dtype: str) -> SimpleNamespace:
    """Make the device functions of a reduction.

    Args:
        reduction: a `dxgemm.problem.fusion.FusedReduction`.
        dtype: dtype of the values: "float32", "float64", "int32" or "int64".

    Returns:
        empty: () -> the state without any value.
        step: (state, value, place) -> the state with one more value; `place` is its position, and
            positions must ascend.
        join: (state, other) -> the state of both.
        partial: (state, first, step) -> a partial result, which can be merged: position p becomes
            the index first + p * step.
        no_partial: () -> the partial result without any value.
        merge: (partial, other) -> the partial result of both.
        merge_stored: (partial, values, indices, start, step) -> the partial result merged with one
            in memory, of whose values the first is at `start`; None if `merge` does so.
        finish: (partial) -> a tuple of the values that are results.
        values, indices: number of each in a state.
        results: number of values that are results.
    """
    if reduction.kind in SUMS:
        return _sum_reducer(reduction, dtype)
    if reduction.kind == "exponentials":
        return _exponential_reducer(reduction, dtype)
    return _sorter(reduction, dtype)


def _sum_reducer(reduction: Any, dtype: str) -> SimpleNamespace:
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    wide = np.dtype(reduction.partials[0]).type
    squares = reduction.kind == "squares"
    own = wide if squares or dtype in INTEGERS else np.dtype(dtype).type

    def empty():
        return (own(0),)

    def step(state, value, place):
        value = own(value)
        return (state[0] + (value * value if squares else value),)

    def partial(state, first, step):
        return (wide(state[0]),)

    def no_partial():
        return (wide(0),)

    def merge(state, other):
        return (state[0] + other[0],)

    def finish(partial):
        return (math.sqrt(partial[0]) if squares else partial[0],)

    merge = device_function(merge)
    return SimpleNamespace(
        empty=device_function(empty),
        step=device_function(step),
        join=merge,
        partial=device_function(partial),
        no_partial=device_function(no_partial),
        merge=merge,
        merge_stored=None,
        finish=device_function(unroll(finish)),
        values=1,
        indices=0,
        results=1,
    )


def _exponential_reducer(reduction: Any, dtype: str) -> SimpleNamespace:
    from dxgemm.handwritten.parts.intrinsics import device_function

    wide_dtype = reduction.partials[0]
    own_dtype = wide_dtype if dtype in INTEGERS else dtype
    own, wide = np.dtype(own_dtype).type, np.dtype(wide_dtype).type
    join, merge = _make_exponential_merge(own_dtype), _make_exponential_merge(wide_dtype)
    lowest = -math.inf

    def empty():
        return own(lowest), own(0)

    def step(state, value, place):
        return join(state, (own(value), own(1)))

    def partial(state, first, step):
        return wide(state[0]), wide(state[1])

    def no_partial():
        return wide(lowest), wide(0)

    def finish(partial):
        # In Python the logarithm of 0, the empty sum, is an error.
        return (partial[0] if partial[1] == 0 else partial[0] + math.log(partial[1]),)

    return SimpleNamespace(
        empty=device_function(empty),
        step=device_function(step),
        join=join,
        partial=device_function(partial),
        no_partial=device_function(no_partial),
        merge=merge,
        merge_stored=None,
        finish=device_function(finish),
        values=2,
        indices=0,
        results=1,
    )


def _make_exponential_merge(dtype: str) -> Callable[..., Any]:
    """Make a device function that merges two pairs of a maximum and a sum of exp(value - maximum).

    Neither sum overflows, because no exponent is positive. The maximum is never NaN: a NaN value
    makes the sum NaN, and the sum stays NaN.
    """
    from dxgemm.handwritten.parts.elementary import DECAY
    from dxgemm.handwritten.parts.intrinsics import device_function

    scalar, decay = np.dtype(dtype).type, DECAY[dtype]
    zero = scalar(0)

    def merge(pair, other):
        # Infinity minus infinity would be NaN.
        distance = zero if other[0] == pair[0] else other[0] - pair[0]
        factor = scalar(decay(distance))
        if distance > zero:
            pair, other = other, pair
        return pair[0], other[1] * factor + pair[1]

    return device_function(merge)


def _sorter(reduction: Any, dtype: str) -> SimpleNamespace:
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    count, has_indices = reduction.count, reduction.has_indices
    indices = count if has_indices else 0
    of_magnitudes = reduction.of_magnitudes
    scalar = np.dtype(dtype).type
    worst = worst_value(reduction, dtype)
    precedes = device_function(order(reduction))

    def make_empty(no_index: Any) -> Callable[..., Any]:
        def worst_value():
            return scalar(worst)

        def missing_index():
            return no_index

        worst_value, missing_index = map(device_function, (worst_value, missing_index))

        def empty():
            state = ()
            for _ in static_range(count):
                state = state + (worst_value(),)
            for _ in static_range(indices):
                state = state + (missing_index(),)
            return state

        return device_function(unroll(empty))

    def insert(state, value, index):
        """Insert one more value into the state; the last value is dropped."""
        values, places, is_in = (), (), False
        for j in static_range(count):
            held, held_index = state[j], state[count + j]
            is_in = (
                is_in or precedes(value, held) or (not precedes(held, value) and index < held_index)
            )
            values = values + (value if is_in else held,)
            places = places + (index if is_in else held_index,)
            value = held if is_in else value
            index = held_index if is_in else index
        return values + places

    insert = device_function(unroll(insert))

    def step(state, value, place):
        if of_magnitudes:
            value = abs(value)
        if count > 1:
            # Most values come after all values held, which one comparison finds out.
            if precedes(value, state[count - 1]) or state[2 * count - 1] == NO_PLACE:
                state = insert(state, value, place)
        elif has_indices:
            if precedes(value, state[0]):
                state = (value, place)
        elif precedes(value, state[0]):
            state = (value,)
        return state

    def partial(state, first, step):
        indices_so_far = ()
        for j in static_range(indices):
            place = state[count + j]
            index = int64(NO_INDEX) if place == NO_PLACE else first + int64(place) * step
            indices_so_far = indices_so_far + (index,)
        return state[0:count] + indices_so_far

    def merge(state, other):
        if has_indices:
            for j in static_range(count):
                state = insert(state, other[j], other[count + j])
        elif precedes(other[0], state[0]):
            state = other
        return state

    def finish(partial):
        return partial[0:count]

    merge = device_function(unroll(merge))
    return SimpleNamespace(
        empty=make_empty(int32(NO_PLACE)),
        step=device_function(unroll(step)),
        join=merge,
        partial=device_function(unroll(partial)),
        no_partial=make_empty(int64(NO_INDEX)),
        merge=merge,
        merge_stored=_make_stored_merge(count, precedes, insert) if count > FEW_VALUES else None,
        finish=device_function(unroll(finish)),
        values=count,
        indices=indices,
        results=count,
    )


def _make_stored_merge(
    count: int, precedes: Callable[..., Any], insert: Callable[..., Any]
) -> Callable[..., Any]:
    """Make `merge_stored` of a sorter: its code is that of one insertion, however many values."""
    from dxgemm.handwritten.parts.unroll import device

    @device
    def merge_stored(state, values, indices, start, step):
        for j in range(count):
            value, index = values[start + j * step], indices[start + j * step]
            last, last_index = state[count - 1], state[2 * count - 1]
            if precedes(last, value) or (not precedes(value, last) and last_index <= index):
                break  # it comes after all that are held, and so do those that follow
            state = insert(state, value, index)
        return state

    return merge_stored


def worst_value(reduction: Any, dtype: str) -> float:
    """Value that precedes no other value."""
    ascends = reduction.kind == "smallest"
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return int(limits.max if ascends else limits.min)
    if not reduction.nan_first:
        return math.nan
    return math.inf if ascends else -math.inf


def order(reduction: Any) -> Callable[..., bool]:
    """Make a function (v, w) that is True if v comes before w; all NaN are equal.

    Two comparisons are enough: `not v >= w` holds if v < w and if either of them is NaN.
    """
    orders = {
        ("smallest", True): lambda v, w: not v >= w and w == w,
        ("smallest", False): lambda v, w: not v >= w and v == v,
        ("largest", True): lambda v, w: not v <= w and w == w,
        ("largest", False): lambda v, w: not v <= w and v == v,
    }
    return orders[reduction.kind, reduction.nan_first]


def slot_count(
    config: Any, tile: tuple[int, int], reduction: Any, sizes: tuple[int, int], width: int
) -> int:
    """Number of partial results per row, or per column, of an m x n result.

    Args:
        config: config of the kernel.
        tile: extents of a block's tile.
        sizes: m and n.
        width: see `make_reduce_tile`.
    """
    (tile_m, tile_n), (m, n) = tile, sizes
    split_k = getattr(config, "split_k", 1)
    parts = parts_of_lines(tile_m // split_k, tile_n, config.threads, reduction.axis, width)
    if reduction.axis == 0:
        return -(-m // tile_m) * split_k * parts
    return -(-n // tile_n) * parts


def make_put_partial(epilogue: Any, dtype: str) -> Callable[..., Any]:
    """Make a device function that writes a partial result to the buffers.

    It takes the partial result, the matrix, the slot and the number of slots, the line (a row or a
    column) and the number of lines, and the kernel's last parameter. The buffers are indexed by
    [matrix][slot][line]; the best values of all lines are followed by all second-best values.
    """
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    reducer = make_reducer(epilogue.reduction, dtype)
    values, indices = reducer.values, reducer.indices
    first = len(epilogue.stage_operands)

    def put_partial(partial, matrix, slot, slots, line, lines, extra):
        place = (matrix * slots + slot) * lines + line
        values_buffer, size = extra[first]
        for j in static_range(values):
            values_buffer[place + size // values * j] = partial[j]
        if indices > 0:
            indices_buffer, size = extra[first + 1]
            for j in static_range(indices):
                indices_buffer[place + size // indices * j] = partial[values + j]

    return device_function(unroll(put_partial))


def make_reduce_tile(
    epilogue: Any,
    rows: int,
    tile_n: int,
    threads: int,
    split_k: int,
    dtype: str,
    width: int,
    read_vector: Callable[..., Any],
    read_element: Callable[..., Any],
) -> Callable[..., Any]:
    """Make a device function by which a block reduces its part of the result in shared memory.

    It takes the location of that part, the thread, the matrix, the first row and column, m, n and
    the last parameter. All threads of the block must have passed a barrier since the part was
    written.

    Args:
        epilogue: a `Fusion` with a reduction.
        rows, tile_n: extents of the part that the block reduces.
        split_k: blocks that share the rows of a tile.
        dtype: dtype of the elements.
        width: elements that are read at a time.
        read_vector: device function (where, row, col) -> a tuple of `width` neighbours in a row;
            col is a multiple of width.
        read_element: device function (where, row, col) -> a tuple of one element.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    reduction = epilogue.reduction
    axis, is_transposed = reduction.axis, epilogue.is_transposed
    reducer = make_reducer(reduction, dtype)
    empty, step, partial = reducer.empty, reducer.step, reducer.partial
    put_partial = make_put_partial(epilogue, dtype)
    parts = parts_of_lines(rows, tile_n, threads, axis, width)
    part_rows, part_cols, tile_m = rows // parts, tile_n // parts, rows * split_k

    def reduce_rows(where, thread, matrix, first_row, tile_col, m, n, extra):
        cols_inside = int32(min(n - tile_col, tile_n))
        slots = (n + tile_n - 1) // tile_n * parts
        for item in range(thread, rows * parts, threads):
            row, part = int32(item % rows), int32(item // rows)
            if first_row + row < m:
                state = empty()
                first = int32(part * part_cols)
                end = int32(min(first + part_cols, cols_inside))
                whole_end = int32(end - (end - first) % width) if end > first else first
                for col in range(first, whole_end, width):
                    values = read_vector(where, row, int32(col))
                    for element in static_range(width):
                        state = step(state, values[element], int32(col + element))
                for col in range(whole_end, end):
                    state = step(state, read_element(where, row, int32(col))[0], int32(col))
                line = first_row + row
                if axis is None:  # the index is row-major in the matrix that the caller sees
                    if is_transposed:
                        result = partial(state, tile_col * m + line, m)
                    else:
                        result = partial(state, line * n + tile_col, int64(1))
                else:
                    result = partial(state, tile_col, int64(1))
                put_partial(
                    result, matrix, tile_col // tile_n * parts + part, slots, line, m, extra
                )

    def reduce_columns(where, thread, matrix, first_row, tile_col, m, n, extra):
        rows_inside = int32(max(min(m - first_row, rows), 0))
        slot = first_row // rows * parts
        slots = (m + tile_m - 1) // tile_m * split_k * parts
        for item in range(thread, tile_n * parts, threads):
            col, part = int32(item % tile_n), int32(item // tile_n)
            if tile_col + col < n:
                state = empty()
                first = int32(part * part_rows)
                for row in range(first, int32(min(first + part_rows, rows_inside))):
                    state = step(state, read_element(where, int32(row), col)[0], int32(row))
                result = partial(state, first_row, int64(1))
                put_partial(result, matrix, slot + part, slots, tile_col + col, n, extra)

    return device_function(unroll(reduce_columns if axis == 0 else reduce_rows))
