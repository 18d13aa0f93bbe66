"""How an operand lies in memory, as far as a kernel is compiled for it."""

from __future__ import annotations

from typing import Any

import numpy as np

VECTOR_BYTES = 16  # of the widest access to memory


def operand_mode(problem: Any, name: str) -> str:
    """`"row"`, `"col"`, `"row16"` or `"col16"` of operand "a" or "b" of a problem.

    Row means that columns are closer to each other than rows, as in a row-major matrix. With 16,
    that stride is 1 and every row (or column) starts at a multiple of 16 bytes, so that elements
    can be read 16 bytes at a time.
    """
    strides = getattr(problem, name)
    along_rows = abs(strides.col) <= abs(strides.row) or problem_rows(problem, name) == 1
    direction = "row" if along_rows else "col"
    unit, other = (strides.col, strides.row) if along_rows else (strides.row, strides.col)
    item_size = 2 if problem.dtype in ("float16", "bfloat16") else np.dtype(problem.dtype).itemsize
    starts = (strides.batch * item_size, other * item_size, getattr(problem, f"{name}_alignment"))
    is_vector = unit == 1 and all(start % VECTOR_BYTES == 0 for start in starts)
    return direction + "16" if is_vector else direction


def problem_rows(problem: Any, name: str) -> int:
    """Rows of an operand."""
    rows: int = problem.m if name == "a" else problem.k
    return rows
