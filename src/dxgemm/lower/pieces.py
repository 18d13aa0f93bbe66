"""Programs of a product in pieces, each of which its kernels can index."""

from __future__ import annotations

from collections.abc import Sequence

from dxgemm.lower.product import lower_sums
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.pieces import Piece, needs_sums, summed_problem
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import OUT, A, B, C, Name, Program, Symbol, Value


def lower_pieces(
    problem: Problem,
    pieces: Sequence[tuple[Piece, Program, bool]],
    epilogue_strides: Sequence[tuple[int, ...]],
) -> Program:
    """Program of all pieces, which use the same workspace one after the other.

    Args:
        problem: the whole problem.
        pieces: each piece, its program, and True if that takes b for a and a for b.
        epilogue_strides: strides of each operand of the epilogue, () of a number.
    """
    are_summed = needs_sums(problem)
    whole = summed_problem(problem) if are_summed else problem
    joined = Program(())
    for piece, program, is_exchanged in pieces:
        values = _arguments(whole, piece, is_exchanged)
        if whole.epilogue:
            values |= _epilogue_arguments(whole, piece, epilogue_strides)
        joined += program.given(values)
    return lower_sums(problem, whole, joined) if are_summed else joined


def _arguments(problem: Problem, piece: Piece, is_exchanged: bool) -> dict[Name, Value]:
    """Arguments of a piece in the place of those of the whole."""
    _, matrix, row, col, depth = piece
    a = A + _distance(problem.a, matrix, row, depth) * ITEM_SIZES[problem.dtype]
    b = B + _distance(problem.b, matrix, depth, col) * ITEM_SIZES[problem.dtype]
    out = OUT + _distance(problem.out, matrix, row, col) * ITEM_SIZES[problem.out_dtype]
    values: dict[Name, Value] = {"a": a, "b": b, "out": out}
    if is_exchanged:
        values |= {"a": b, "b": a}
    if depth:  # behind the first piece along k: to the sums so far
        return values | {"c": out, "beta": 1}
    c = C + _distance(problem.c, matrix, row, col) * ITEM_SIZES[problem.c_dtype]
    return values | {"c": c}


def _epilogue_arguments(
    problem: Problem, piece: Piece, strides: Sequence[tuple[int, ...]]
) -> dict[Name, Value]:
    """Addresses of a piece's elements of the epilogue's operands."""
    assert problem.epilogue is not None
    values: dict[Name, Value] = {}
    position = 0  # among the arguments of the kernel
    for operand, steps in zip(problem.epilogue.operands, strides):
        if steps:
            distance = _distance(steps, piece.matrix, piece.row, piece.col)
            values[position] = Symbol(position) + distance * ITEM_SIZES[operand.dtype]
        position += 1 + len(steps)
    return values


def _distance(strides: tuple[int, ...], matrix: int, row: int, col: int) -> int:
    """Elements from the first one of the whole to that of a piece."""
    return matrix * strides[0] + row * strides[1] + col * strides[2]
