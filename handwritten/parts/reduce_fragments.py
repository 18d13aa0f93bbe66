"""A reduction along the rows of a tile in registers, in the layout that wgmma leaves.

A thread has two neighbouring columns in eight of rows 8 apart: it reduces its share of each row,
the four threads of a row merge that, and one of them writes it to the buffers of `reduction`.
Nothing goes through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FULL_WARP = 0xFFFFFFFF


def make_put_line(epilogue: Any, reducer: Any, tile_n: int) -> Callable[..., None]:
    """A device function: merge what four threads have of a row, and write it."""
    from numba import cuda, int64

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.reduction import make_put_partial
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    reduction, is_transposed = epilogue.reduction, epilogue.is_transposed
    is_whole = reduction.axis is None
    partial, no_partial, merge = reducer.partial, reducer.no_partial, reducer.merge
    members = reducer.values + reducer.indices
    put_partial = make_put_partial(epilogue, "float32")

    def put_line(state, lane, matrix, slots, row, left, m, n, extra):
        if is_whole and is_transposed:  # the index counts row by row, as the caller sees them
            result = partial(state, left * m + row, m)
        elif is_whole:
            result = partial(state, row * n + left, int64(1))
        else:
            result = partial(state, int64(left), int64(1))
        for distance in static_range(1, 3):  # lanes 1 apart, then 2
            other = ()
            for member in static_range(members):
                other = other + (cuda.shfl_xor_sync(FULL_WARP, result[member], distance),)
            result = merge(result, other)
        if lane % 4 == 0 and row < m:
            slot = left // tile_n
            put_partial(result, matrix, slot, slots, row, m, extra)
            if left + tile_n >= n:
                for unused in range(slot + 1, slots):
                    put_partial(no_partial(), matrix, unused, slots, row, m, extra)

    return device_function(unroll(put_line))


def make_reduce_fragments(epilogue: Any, tile_n: int) -> Callable[..., Any]:
    """A device function: finish 16 rows of a float32 tile, all columns of it, and reduce them.

    It takes a thread's elements, its lane, the slots of a row (see `reduction.make_put_partial`),
    the matrix, the first row and column, and the `Result`. A warp's threads must call it together.
    It writes the slot of the tile; the last tile of a row also fills those that no tile has.

    Args:
        epilogue: a `Fusion` with a reduction that is not of columns.
        tile_n: columns of the tile.
    """
    from numba import int32

    from dxgemm.handwritten.parts.addend import make_plus_c
    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import device_function, scaled
    from dxgemm.handwritten.parts.reduction import make_reducer
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    reducer = make_reducer(epilogue.reduction, "float32")
    empty, step, join = reducer.empty, reducer.step, reducer.join
    put_line = make_put_line(epilogue, reducer, tile_n)
    plus_c = make_plus_c("float32")
    finish_one = make_finish(epilogue, "float32", "float32")
    finish_pair = make_finish(epilogue, "float32", "float32", 2)
    eighths = tile_n // 8  # a thread has two neighbours of each

    def reduce_line(acc, half, cols, row, left, first_col, matrix, c_row, result):
        """One of a thread's two rows, element by element: at an edge, or if there is a c."""
        state, c = empty(), result.c
        if row < result.m:
            for j in static_range(eighths):
                for side in static_range(2):
                    place: int32 = first_col + 8 * j + side
                    if place < cols:
                        value = (scaled(result.alpha, acc[4 * j + 2 * half + side]),)
                        value = plus_c(value, result.beta, c, c_row + place * c.col, 0)
                        value = finish_one(value[0], matrix, row, left + place, result.extra)
                        state = step(state, value, place)
        return state

    reduce_line = device_function(unroll(reduce_line))

    def reduce_fragments(acc, lane, slots, matrix, top, left, result):
        alpha, beta, c, _, m, n, _, extra = result
        cols: int32 = min(n - left, tile_n)
        first_col: int32 = lane % 4 * 2
        upper_row = top + int32(lane // 4)
        lower_row = upper_row + 8
        upper_c = matrix * c.batch + upper_row * c.row + left * c.col
        lower_c = upper_c + 8 * c.row
        if beta == 0 and top + 16 <= m and cols == tile_n:
            # Four chains of steps that do not wait for each other, without a branch between.
            upper, upper_odd, lower, lower_odd = empty(), empty(), empty(), empty()
            for j in static_range(eighths):
                place: int32 = first_col + 8 * j
                pair = (alpha * acc[4 * j], alpha * acc[4 * j + 1])
                pair = finish_pair(pair, matrix, upper_row, left + place, extra)
                upper = step(upper, pair[0], place)
                upper_odd = step(upper_odd, pair[1], int32(place + 1))
                pair = (alpha * acc[4 * j + 2], alpha * acc[4 * j + 3])
                pair = finish_pair(pair, matrix, lower_row, left + place, extra)
                lower = step(lower, pair[0], place)
                lower_odd = step(lower_odd, pair[1], int32(place + 1))
            upper, lower = join(upper, upper_odd), join(lower, lower_odd)
        else:
            upper = reduce_line(acc, 0, cols, upper_row, left, first_col, matrix, upper_c, result)
            lower = reduce_line(acc, 1, cols, lower_row, left, first_col, matrix, lower_c, result)
        put_line(upper, lane, matrix, slots, upper_row, left, m, n, extra)
        put_line(lower, lane, matrix, slots, lower_row, left, m, n, extra)

    return device_function(unroll(reduce_fragments))
