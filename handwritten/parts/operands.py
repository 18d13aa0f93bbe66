"""Layout of an operand in memory, as far as a kernel is compiled for it."""

from __future__ import annotations

from itertools import permutations
from typing import Any

VECTOR_BYTES = 16  # of the widest access to memory
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4,
    "complex64": 8, "complex128": 16, "uint8": 1, "int8 uint8": 1, "uint8 int8": 1,
}  # fmt: skip
HALVES = ("float16", "bfloat16")
# Formats of one byte, by their dtypes, as PTX names them; then the dtypes of products of them.
FLOAT8_KINDS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
ROUNDED = (*HALVES, *FLOAT8_KINDS)  # results whose activations need no more than their bits
FLOAT8_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
LEAST_LARGEST = 2.0**-100  # largest value of rows of zeros, so that their scale has an inverse
FLOAT8 = (*FLOAT8_KINDS, *(" ".join(pair) for pair in permutations(FLOAT8_KINDS)))
ITEM_BYTES |= dict.fromkeys(FLOAT8, 1)
# Dtypes of a and b, or of both if they differ, that tensor cores multiply with sums of int32.
BYTES = ("int8", "uint8", "int8 uint8", "uint8 int8")


def sums_dtype(dtype: str) -> str:
    """Dtype of the sums of tensor cores, for operands of up to 4 bytes."""
    return "int32" if dtype in BYTES else "float32"


def exchanged_dtype(dtype: str) -> str:
    """Dtype of the transposed product, whose factors are exchanged."""
    return " ".join(reversed(dtype.split(" ")))


def operand_mode(problem: Any, name: str) -> str:
    """`"row"`, `"col"`, `"row16"` or `"col16"` of operand "a" or "b" of a problem.

    Row means that columns are closer to each other than rows, as in a row-major matrix. With 16,
    that stride is 1 and every row (or column) starts at a multiple of 16 bytes, so that elements
    can be read 16 bytes at a time.
    """
    batch, row, col = getattr(problem, name)
    if abs(col) <= abs(row) or problem_rows(problem, name) == 1:
        direction, unit, other = "row", col, row
    else:
        direction, unit, other = "col", row, col
    # A power of two that divides all starts of rows, in bytes, divides their bitwise or.
    starts = (batch | other) * ITEM_BYTES[problem.dtype] | getattr(problem, f"{name}_alignment")
    return direction + "16" if unit == 1 and starts % VECTOR_BYTES == 0 else direction


def problem_rows(problem: Any, name: str) -> int:
    """Rows of an operand."""
    rows: int = problem.m if name == "a" else problem.k
    return rows
