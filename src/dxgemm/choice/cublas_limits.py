"""Limits of cuBLAS: problems that it cannot compute with the layouts of their operands."""

from __future__ import annotations

from functools import cache

from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem

INT32_MAX = 2**31 - 1
# Alignment in bytes of addresses, leading dimensions and batch strides of int8.
_INT8_ALIGNMENT = 4


def supports(problem: Problem) -> str | None:
    """Reason why cuBLAS cannot compute a problem with these layouts; None if it can."""
    if not _is_installed():
        return "CuPy with cuBLAS is not installed: the cu12-cublas or cu13-cublas extra brings both"
    if problem.reads_c and not problem.in_place:
        return "cuBLAS adds to C in place: out= cannot differ from c where beta is not zero"
    if max(problem.m, problem.n, problem.k, problem.batch) > INT32_MAX:
        return "cuBLAS counts in 32 bits"
    if problem.is_empty:
        return None  # nothing is launched: its operands may have any layout
    for name, strides, rows, cols in operands_of(problem):
        if leading_dimension(strides, rows, cols) is None:
            return (
                f"cuBLAS needs rows or columns of {name} to be contiguous and not overlapping; its "
                f"strides are {strides.row} and {strides.col}"
            )
    if leading_dimension(problem.out, problem.m, problem.n, row_major=True) is None:
        return f"cuBLAS needs the result's strides ({problem.out}) to be those of a matrix"
    return _int8_reason(problem) if problem.dtype == "int8" else None


@cache
def _is_installed() -> bool:
    try:
        from cupy_backends.cuda.libs import cublas  # noqa: F401
    except ImportError:
        return False
    return True


def _int8_reason(problem: Problem) -> str | None:
    """Reason why cuBLAS cannot multiply these int8 operands; None if it can.

    With a K-major b and a result of more than 2**31 elements, cuBLAS 13.1 read outside of the
    operands, which ends all work of the process on the GPU.
    """
    extents = problem.m * problem.k, problem.k * problem.n, problem.m * problem.n
    if max(extents) > INT32_MAX:
        return f"cuBLAS counts elements of int8 matrices in 32 bits; there are {max(extents)}"
    alignments = {"a": problem.a_alignment, "b": problem.b_alignment}
    for name, strides, rows, cols in operands_of(problem):
        _, leading = leading_dimension(strides, rows, cols) or (True, 1)
        if (leading | strides.batch | alignments[name]) % _INT8_ALIGNMENT:
            return (
                f"cuBLAS needs rows or columns of int8 to start at multiples of {_INT8_ALIGNMENT} "
                f"bytes; {name} has a leading dimension of {leading} and an alignment of "
                f"{alignments[name]}"
            )
    return None


def operands_of(problem: Problem) -> tuple[tuple[str, Strides, int, int], ...]:
    return (
        ("a", problem.a, problem.m, problem.k),
        ("b", problem.b, problem.k, problem.n),
    )


def leading_dimension(
    strides: Strides, rows: int, cols: int, row_major: bool | None = None
) -> tuple[bool, int] | None:
    """Order, True for row-major, and leading dimension; None without contiguous rows or columns."""
    if row_major is not False and (cols <= 1 or strides.col == 1):
        leading = strides.row if rows > 1 else max(cols, 1)
        if max(cols, 1) <= leading <= INT32_MAX:
            return True, leading
    if row_major is not True and (rows <= 1 or strides.row == 1):
        leading = strides.col if cols > 1 else max(rows, 1)
        if max(rows, 1) <= leading <= INT32_MAX:
            return False, leading
    return None
