"""The user's function between alpha * A @ B + beta * C and memory.

A kernel calls `finish(values, matrix, row, col, extra)` on neighbouring elements of a row and
writes what that returns. `extra` is the kernel's last parameter, the epilogue's operands: numbers,
and for arrays (pointer, stride_batch, stride_row, stride_col). Without an epilogue it is empty, and
finish returns its values unchanged.

The function is generated, since numba cannot loop over operands of different types: it reads all
operands first, 16 bytes at a time where they lie so, then computes element by element, and writes
the auxiliary outputs last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.elementary import FUNCTIONS
from dxgemm.handwritten.parts.intrinsics import device_function, read_vector, store_vector
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.widening import NARROW, WIDEN, stored_type

LINE_BYTES = 128  # of the L2 cache

# The type of Python's floats in the function, by the dtype of sums.
LITERALS = {"float32": np.float32, "float64": np.float64, "int32": np.float32}


def make_finish(
    epilogue: Any, dtype: str, out_dtype: str, width: int | None = None
) -> Callable[..., Any]:
    """The device function `finish`.

    Args:
        epilogue: None, or a `Fusion`.
        dtype: dtype of sums and of the values given: "float32", "float64" or "int32".
        out_dtype: dtype of the values returned: the same, or "float32" after "int32".
        width: number of neighbours in a row, given as a tuple; None for one bare value.
    """
    if epilogue is None or not epilogue.stages:
        return device_function(lambda values, matrix, row, col, extra: values)
    known: dict[str, Any] = {
        "read_vector": read_vector,
        "store_vector": store_vector,
        "as_result": np.dtype(out_dtype).type,
    }
    for number, operand in enumerate(epilogue.stage_operands):
        if operand.kind != "number":
            known[f"element_{number}"] = stored_type(operand.dtype)
            known[f"widen_{number}"] = WIDEN.get(operand.dtype)
            known[f"narrow_{number}"] = NARROW.get(operand.dtype, stored_type(operand.dtype))
    for number, stage in enumerate(epilogue.stages):
        function = stage.make_function(LITERALS[dtype], device_function, FUNCTIONS)
        known[f"stage_{number}"] = function
    columns = range(width or 1)
    lines = _reading(epilogue.stage_operands, columns)
    results, outputs = [], []
    for column in columns:
        value = "values" if width is None else f"values[{column}]"
        computing, result, kept = _computing(epilogue, value, column)
        lines += computing
        results.append(f"as_result({result})")
        outputs.append(kept)
    lines += _writing(epilogue.stage_operands, outputs)
    lines.append(f"return {results[0] if width is None else _tuple(results)}")
    source = "def finish(values, matrix, row, col, extra):\n    " + "\n    ".join(lines)
    exec(source, known)
    return device_function(known["finish"])


def make_prefetch(
    epilogue: Any, tile_m: int, tile_n: int, threads: int
) -> Callable[..., None] | None:
    """A device function: prefetch the epilogue's matrices for a tile into the L2 cache.

    Called before the tile is multiplied, it spares the epilogue the way to memory, which a few
    blocks an SM do not hide. All threads call it, with the matrix, the tile's first row and column,
    m, n and extra. None if no matrix is read.

    Args:
        epilogue: None, or a `Fusion`.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import global_address, prefetch_line
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    operands = epilogue.stage_operands if epilogue is not None else ()
    numbers = tuple(
        number
        for number, operand in enumerate(operands)
        if operand.kind == "array" and operand.has_rows and operand.access == "vector"
    )
    if not numbers:
        return None
    count = len(numbers)
    item_bytes = tuple(np.dtype(stored_type(operands[number].dtype)).itemsize for number in numbers)
    lines = tuple(-(-tile_n * size // LINE_BYTES) for size in item_bytes)
    turns = tuple(-(-tile_m * per_row // threads) for per_row in lines)

    def prefetch(matrix, tile_row, tile_col, m, n, extra):
        thread: int32 = cuda.threadIdx.x & 1023
        for i in static_range(count):
            pointer, batch_step, row_step, _ = extra[numbers[i]]
            start = global_address(pointer) + matrix * batch_step * item_bytes[i]
            for turn in static_range(turns[i]):
                line: int32 = thread + turn * threads
                row = tile_row + line // lines[i]
                col = tile_col + line % lines[i] * (LINE_BYTES // item_bytes[i])
                if row < min(m, tile_row + tile_m) and col < n:
                    prefetch_line(start + (row * row_step + col) * item_bytes[i])

    return device_function(unroll(prefetch))


def _reading(operands: Any, columns: range) -> list[str]:
    """Statements that define operand_N: a number, or a tuple of an element for each column."""
    lines = []
    for number, operand in enumerate(operands):
        if operand.kind == "number":
            lines.append(f"operand_{number} = extra[{number}]")
            continue
        pointer, index, step = f"pointer_{number}", f"index_{number}", f"step_{number}"
        rows = "row * row_step + " if operand.has_rows else ""
        cols = "col" if operand.access == "vector" else f"col * {step}"
        lines += [
            f"{pointer}, batch_step, row_step, {step} = extra[{number}]",
            f"{index} = matrix * batch_step + {rows}{cols}",
        ]
        if operand.kind == "output":
            continue
        if operand.access == "vector":
            count = _vector_width(operand, columns)
            elements = " + ".join(
                f"read_vector(element_{number}, {count}, {pointer}, {index} + {first})"
                for first in columns[::count]
            )
        elif operand.access == "same":
            lines.append(f"same_{number} = {pointer}[{index}]")
            elements = _tuple([f"same_{number}" for _ in columns])
        else:
            elements = _tuple([f"{pointer}[{index} + {column} * {step}]" for column in columns])
        lines.append(f"operand_{number} = {elements}")
        if operand.dtype in NARROW:
            widened = [f"widen_{number}(operand_{number}[{column}])" for column in columns]
            lines.append(f"operand_{number} = {_tuple(widened)}")
    return lines


def _computing(epilogue: Any, value: str, column: int) -> tuple[list[str], str, dict[int, str]]:
    """Statements for the element of one column, its result, and outputs by their number."""
    place = f"col + {column}, row" if epilogue.is_transposed else f"row, col + {column}"
    lines, outputs, number = [], {}, 0
    for position, stage in enumerate(epilogue.stages):
        inputs = [value, place]
        for operand in epilogue.stage_operands[number : number + len(stage.parameters)]:
            inputs.append(
                f"operand_{number}" if operand.kind == "number" else f"operand_{number}[{column}]"
            )
            number += 1
        value = f"value_{position}_{column}"
        returned = [value]
        for _ in stage.outputs:
            returned.append(f"{value}_{number}")
            outputs[number] = f"narrow_{number}({value}_{number})"
            number += 1
        # numba refuses to unpack another number of values.
        lines.append(f"{', '.join(returned)} = stage_{position}({', '.join(inputs)})")
    return lines, value, outputs


def _writing(operands: Any, outputs: list[dict[int, str]]) -> list[str]:
    """Statements that write auxiliary outputs, given for each column by their number."""
    lines = []
    columns = range(len(outputs))
    for number in outputs[0]:
        elements = [output[number] for output in outputs]
        pointer, index = f"pointer_{number}", f"index_{number}"
        count = _vector_width(operands[number], columns)
        if operands[number].access == "vector" and count > 1:
            for first in columns[::count]:
                vector = _tuple(elements[first : first + count])
                lines.append(f"store_vector({pointer}, {index} + {first}, {vector})")
        else:
            for column, element in enumerate(elements):
                lines.append(f"{pointer}[{index} + {column} * step_{number}] = {element}")
    return lines


def _vector_width(operand: Any, columns: range) -> int:
    """Elements of an operand that are read or written in one access: PTX has vectors of four."""
    item_bytes = np.dtype(stored_type(operand.dtype)).itemsize
    return min(len(columns), VECTOR_BYTES // item_bytes, 4)


def _tuple(elements: list[str]) -> str:
    return f"({', '.join(elements)},)"
