"""The user's function between alpha * A @ B + beta * C and memory.

A kernel calls `finish(values, matrix, row, col, extra)` on neighbouring elements of a row and
writes the values that it returns. `extra` is the kernel's last parameter, the epilogue's operands:
numbers, and for arrays (pointer, stride_batch, stride_row, stride_col). Without an epilogue it is
empty, and finish returns its values unchanged.

All operands are read first, 16 bytes at a time where their layout allows it. Then elements are
computed one by one. Auxiliary outputs are written last.

A stage that takes pairs of columns halves the number of values. finish is then given values from an
even column on and returns half as many; this stage and later ones see the result's columns.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.elementary import FUNCTIONS, ROUNDED_FUNCTIONS
from dxgemm.handwritten.parts.fragment import quad_places
from dxgemm.handwritten.parts.intrinsics import (
    device_function,
    exactly,
    given,
    read_vector,
    store_vector,
)
from dxgemm.handwritten.parts.operands import HALVES, ROUNDED, VECTOR_BYTES
from dxgemm.handwritten.parts.unroll import static_range, unroll
from dxgemm.handwritten.parts.widening import NARROW, WIDEN, stored_type

LINE_BYTES = 128  # bytes of a line of the L2 cache
FULL_WARP = 0xFFFFFFFF

# Type of Python float literals in the function, by the dtype of sums.
LITERALS = {
    "float32": np.float32, "float64": np.float64, "int32": np.float32, "int64": np.float64,
}  # fmt: skip


def columns_for_one(epilogue: Any) -> int:
    """Columns of the product per column of the result: 2 if the epilogue takes pairs, else 1."""
    return 2 if epilogue is not None and epilogue.pair_stage is not None else 1


def make_finish(
    epilogue: Any, dtype: str, out_dtype: str, width: int | None = None,
    rounds: bool = False, is_read: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Make the device function `finish`.

    Args:
        epilogue: None, or a `Fusion`.
        dtype: dtype of sums and of the values given: "float32", "float64" or "int32".
        out_dtype: dtype of the values returned, before they are narrowed: the same as dtype, or
            "float32" if dtype is "int32".
        width: number of neighbours in a row, given as a tuple; None for one bare value. It is even
            if the epilogue takes pairs.
        rounds: True if the values returned are rounded to float16 or bfloat16.
        is_read: True if `extra` is a result of the function of `make_read`.
    """
    if epilogue is None or not epilogue.stages:
        return device_function(lambda values, matrix, row, col, extra: values)
    if width is None:
        finish_one = make_finish(epilogue, dtype, out_dtype, 1, rounds, is_read)
        return device_function(
            lambda value, matrix, row, col, extra: finish_one((value,), matrix, row, col, extra)[0]
        )
    pair, end = epilogue.pair_stage, len(epilogue.stages)
    rounds = rounds and all(
        operand.dtype in ROUNDED for operand in epilogue.stage_operands if operand.kind == "output"
    )
    how = ROUNDED_FUNCTIONS if rounds else FUNCTIONS, is_read
    if pair is None:
        return _make_apply(epilogue, 0, end, how, dtype, width, out_dtype)
    halve = _make_apply(epilogue, pair, end, how, dtype, width // 2, out_dtype)
    widely = device_function(lambda values, matrix, row, col, extra: values)
    if pair > 0:
        widely = _make_apply(epilogue, 0, pair, how, dtype, width)

    def finish_pairs(values, matrix, row, col, extra):
        values = widely(values, matrix, row, col, extra)
        return halve(values, matrix, row, col // 2, extra)

    return device_function(finish_pairs)


def _make_apply(
    epilogue: Any, first: int, end: int, how: tuple[dict[str, Any], bool], dtype: str, width: int,
    out_dtype: str | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Make the device function that applies stages `first` to `end` - 1 to neighbours.

    Args:
        epilogue: a `Fusion`.
        first, end: range of stages in the chain; only the first of them may take pairs.
        how: the elementary functions that the stages call, and True if operands are read already.
        dtype: dtype of sums.
        width: number of values returned.
        out_dtype: dtype of the values returned; None to leave them as the functions return them.
    """
    stages = epilogue.stages[first:end]
    place = sum(len(stage.operands) for stage in epilogue.stages[:first])  # of its first operand
    operands = epilogue.stage_operands[place:][: sum(len(stage.operands) for stage in stages)]
    is_transposed, taken = epilogue.is_transposed, 2 if stages[0].takes_pairs else 1
    elementary, is_read = how
    reals = _real_parts(stages, operands, out_dtype)
    functions = tuple(
        stage.make_function(LITERALS[dtype], device_function, elementary, real)
        for stage, real in zip(stages, reals)
    )
    numbered = tuple(enumerate(operands, place))
    inputs = tuple(i for i, operand in numbered if operand.kind != "output")
    outputs = tuple(i for i, operand in numbered if operand.kind == "output")
    readers = tuple(_given if is_read else _make_reader(operands[i - place], width) for i in inputs)
    writers = tuple(_make_writer(operands[i - place], width) for i in outputs)
    # The inputs of a stage run from its first input up to the first input of the next stage.
    first_inputs = tuple(accumulate((len(stage.parameters) for stage in stages), initial=0))
    output_counts = tuple(len(stage.outputs) for stage in stages)
    count = len(outputs)
    is_last = out_dtype is not None
    as_result = np.dtype(out_dtype).type

    def finish(values, matrix, row, col, extra):
        read = ()
        for i in static_range(len(inputs)):
            read = read + (readers[i](matrix, row, col, extra[inputs[i]]),)
        results, kept = (), ()
        for column in static_range(width):
            value = values[taken * column]
            for stage in static_range(len(output_counts)):
                arguments = (col + column, row) if is_transposed else (row, col + column)
                for i in static_range(first_inputs[stage], first_inputs[stage + 1]):
                    arguments = arguments + (read[i][column],)
                if taken > 1 and stage == 0:
                    arguments = (values[taken * column + 1],) + arguments
                value = given(first + stage, reals[stage], functions[stage](value, *arguments))
                if output_counts[stage] > 0:
                    returned = exactly(1 + output_counts[stage], value)
                    value, kept = returned[0], kept + returned[1:]
            results = results + (as_result(value) if is_last else value,)
        for i in static_range(count):
            writers[i](kept[i::count], matrix, row, col, extra[outputs[i]])
        return results

    return device_function(unroll(finish))


def _real_parts(stages: Any, operands: Any, out_dtype: str | None) -> tuple[int, ...]:
    """Masks, one per stage, with a bit for its result and each output: 1 if its dtype is real."""
    remaining, parts = iter(operands), []
    for place, stage in enumerate(stages):
        own = [next(remaining) for _ in stage.operands]
        dtypes = [out_dtype if place == len(stages) - 1 else None]
        dtypes += [operand.dtype for operand in own if operand.kind == "output"]
        are_real = (dtype is not None and not dtype.startswith("complex") for dtype in dtypes)
        parts.append(stage.returns_real | sum(real << bit for bit, real in enumerate(are_real)))
    return tuple(parts)


def make_read(epilogue: Any, width: int) -> Callable[..., Any]:
    """Make a device function: (matrix, row, col, extra) -> extra with its operands read.

    Kernels call it well before `finish`, which works the same with values read ahead.

    Args:
        epilogue: None, or a `Fusion`.
        width: number of neighbours in a row; even if the epilogue takes pairs.
    """
    operands = epilogue.operands if epilogue is not None else ()
    wide = len(epilogue.wide_operands) if epilogue is not None else 0
    count, taken = len(operands), columns_for_one(epilogue)
    widths = tuple(width if i < wide else width // taken for i in range(count))
    readers = tuple(
        _make_reader(operand, widths[i]) if operand.kind in ("array", "number") else _given
        for i, operand in enumerate(operands)
    )

    def read(matrix, row, col, extra):
        elements = ()
        for i in static_range(count):
            place = col if widths[i] == width else col // taken
            elements = elements + (readers[i](matrix, row, place, extra[i]),)
        return elements

    return device_function(unroll(read))


def make_read_once(
    epilogue: Any, blocks: int, row_order: str = ""
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make the device functions read_once and take: a warp reads the operands of 16 rows once.

    From an array with one element per column, a lane reads two neighbours in each block of 64
    columns, and `take` fetches those of another lane by a shuffle. From an array with one element
    per row, a lane reads the elements of its two rows.

    read_once(lane, rows, cols, matrix, top, left, extra) reads the elements; outside of the result
    it reads those of the edge. take(held, block, step, lane) returns the values that the function
    of `make_read` would return for columns 8 * step + lane % 4 * 2 and + 1 of a block, for the
    lane's two rows.

    Args:
        epilogue: None, or a `Fusion` whose arrays have one element per row or one per column.
        blocks: number of blocks of 64 columns.
        row_order: see `chunk_store.Chunk`.
    """
    from numba import cuda, int32

    operands = epilogue.operands if epilogue is not None else ()
    count, read = len(operands), make_read(epilogue, 2)
    by_column = tuple(o.kind == "array" and o.access != "same" for o in operands)
    loads = tuple(_make_load(o, 2) if o.kind == "array" else _given for o in operands)
    widens = tuple(_widen(o) if o.kind == "array" else _given for o in operands)
    scalars = tuple(stored_type(o.dtype) if o.kind == "array" else np.int32 for o in operands)
    # A shuffle moves 32 or 64 bits: two 16-bit floats, or one element of another type.
    are_halves = tuple(o.dtype in HALVES for o in operands)
    carriers = tuple(np.int32 if np.dtype(s).itemsize < 4 else s for s in scalars)
    quad_rows, apart = quad_places(row_order)

    def read_once(lane, rows, cols, matrix, top, left, extra):
        upper: int32 = top + min(lane // 4 * quad_rows, rows - 1)
        lower: int32 = top + min(lane // 4 * quad_rows + apart, rows - 1)
        first: int32 = left + min(0, cols - 2)  # the whole tile may be outside
        columns = ()
        for i in static_range(count):
            pairs = ()
            for block in static_range(blocks if by_column[i] else 0):
                col: int32 = left + min(64 * block + 2 * lane, cols - 2)
                pair = loads[i](matrix, top, col, extra[i])
                if are_halves[i]:
                    pairs = pairs + ((int32(pair[0]) | int32(pair[1]) << 16,),)
                else:
                    pairs = pairs + ((carriers[i](pair[0]), carriers[i](pair[1])),)
            columns = columns + (pairs,)
        return (
            read(matrix, upper, first, extra),
            read(matrix, lower, first, extra),
            columns,
        )

    def take(held, block, step, lane):
        upper, lower = (), ()
        owner: int32 = 4 * step + lane % 4
        for i in static_range(count):
            above, below = held[0][i], held[1][i]
            if by_column[i]:
                pair = held[2][i][block]
                if are_halves[i]:
                    bits = cuda.shfl_sync(FULL_WARP, pair[0], owner)
                    first, second = bits & 0xFFFF, bits >> 16 & 0xFFFF
                else:
                    first = cuda.shfl_sync(FULL_WARP, pair[0], owner)
                    second = cuda.shfl_sync(FULL_WARP, pair[1], owner)
                above = widens[i](scalars[i](first)), widens[i](scalars[i](second))
                below = above
            upper, lower = upper + (above,), lower + (below,)
        return upper, lower

    return device_function(unroll(read_once)), device_function(unroll(take))


def make_prefetch(
    epilogue: Any, tile_m: int, tile_n: int, threads: int
) -> Callable[..., None] | None:
    """Make a device function that prefetches the epilogue's matrices for a tile into L2.

    All threads call it before the tile is multiplied, with the matrix, the tile's first row and
    column, m, n and extra. It saves the epilogue the latency of memory, which a few blocks per SM
    do not hide. The result is None if the epilogue reads no matrix.

    Args:
        epilogue: None, or a `Fusion`.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import cuda, global_address, prefetch_line

    operands = epilogue.wide_operands if epilogue is not None else ()
    numbers = tuple(
        number
        for number, operand in enumerate(operands)
        if operand.kind == "array" and operand.has_rows and operand.access != "same"
    )
    if not numbers:
        return None
    count = len(numbers)
    item_bytes = tuple(np.dtype(stored_type(operands[number].dtype)).itemsize for number in numbers)
    # A row that begins anywhere is in one line more.
    more = tuple(operands[number].access != "vector" for number in numbers)
    lines = tuple(-(-tile_n * size // LINE_BYTES) + one for size, one in zip(item_bytes, more))
    turns = tuple(-(-tile_m * per_row // threads) for per_row in lines)

    def prefetch(matrix, tile_row, tile_col, m, n, extra):
        thread: int32 = cuda.threadIdx.x & 1023
        for i in static_range(count):
            pointer, batch_step, row_step, col_step = extra[numbers[i]]
            last_col = min(n, tile_col + tile_n) - 1
            start = global_address(pointer) + matrix * batch_step * item_bytes[i]
            for turn in static_range(turns[i]):
                line: int32 = thread + turn * threads
                row = tile_row + line // lines[i]
                col = tile_col + line % lines[i] * (LINE_BYTES // item_bytes[i])
                if row < min(m, tile_row + tile_m) and col_step == 1:
                    prefetch_line(start + (row * row_step + min(col, last_col)) * item_bytes[i])

    return device_function(unroll(prefetch))


@device_function
def _given(matrix, row, col, argument):
    return argument


def _make_reader(operand: Any, width: int) -> Callable[..., Any]:
    """Make a device function that reads an operand for `width` neighbours, as a widened tuple."""
    is_number = operand.kind == "number"
    load = _given if is_number else _make_load(operand, width)
    widen = _given if is_number else _widen(operand)

    def read(matrix, row, col, argument):
        stored, elements = load(matrix, row, col, argument), ()
        for column in static_range(width):
            elements = elements + (argument if is_number else widen(stored[column]),)
        return elements

    return device_function(unroll(read))


def _widen(operand: Any) -> Any:
    """Conversion of an operand's elements to the type that the functions take."""
    return WIDEN.get(operand.dtype, stored_type(operand.dtype))


def _make_load(operand: Any, width: int) -> Callable[..., Any]:
    """Make a device function that loads an array for `width` neighbours, as a tuple."""
    scalar, count = stored_type(operand.dtype), _vector_width(operand, width)
    access, locate = operand.access, _make_locate(operand)

    def load(matrix, row, col, argument):
        stored = ()
        pointer, index, step = locate(matrix, row, col, argument)
        for first in static_range(0, width, count):
            if access == "vector":
                stored = stored + read_vector(scalar, count, pointer, index + first)
            else:
                place = index if access == "same" else index + first * step
                stored = stored + (pointer[place],)
        return stored

    return device_function(unroll(load))


def _make_writer(operand: Any, width: int) -> Callable[..., None]:
    """Make a device function that narrows values of neighbours and writes them to an output."""
    narrow = NARROW.get(operand.dtype, stored_type(operand.dtype))
    count = _vector_width(operand, width)
    locate = _make_locate(operand)

    def write(values, matrix, row, col, argument):
        pointer, index, step = locate(matrix, row, col, argument)
        elements = ()
        for column in static_range(width):
            elements = elements + (narrow(values[column]),)
        for first in static_range(0, width, count):
            if count > 1:
                store_vector(pointer, index + first, elements[first : first + count])
            else:
                pointer[index + first * step] = elements[first]

    return device_function(unroll(write))


def _make_locate(operand: Any) -> Callable[..., Any]:
    """Make a device function: the pointer, the index of an element, the step to its neighbour."""
    has_rows, is_vector = operand.has_rows, operand.access == "vector"

    def locate(matrix, row, col, array):
        pointer, batch_step, row_step, col_step = array
        step = 1 if is_vector else col_step
        start = matrix * batch_step + (row * row_step if has_rows else 0)
        return pointer, start + col * step, step

    return device_function(unroll(locate))


def _vector_width(operand: Any, width: int) -> int:
    """Elements per access to an operand; PTX vectors have at most four."""
    item_bytes = np.dtype(stored_type(operand.dtype)).itemsize
    return min(width, VECTOR_BYTES // item_bytes, 4) if operand.access == "vector" else 1
