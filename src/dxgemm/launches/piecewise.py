"""Launches of a product in pieces, each of which its kernels can index."""

from __future__ import annotations

from typing import Any

from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.pieces import Piece
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch


class PiecewiseLaunch(LaunchSeries):
    """Launch of each piece, with the addresses of its parts of the operands."""

    def __init__(
        self, problem: Problem, pieces: list[tuple[Piece, Launch, bool]], ordinal: int
    ) -> None:
        """Keep the launches.

        Args:
            problem: the whole problem.
            pieces: each piece, its launch, and True if that takes b for a and a for b.
            ordinal: ordinal of the GPU.
        """
        super().__init__(ordinal)
        self._problem, self._pieces = problem, pieces

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        problem, (a, b, c, out, alpha, beta) = self._problem, call
        item_size = ITEM_SIZES[problem.dtype]
        calls = []
        for piece, launch, is_exchanged in self._pieces:
            _, matrix, row, col, depth = piece
            sources = (
                a + _distance(problem.a, matrix, row, depth) * item_size,
                b + _distance(problem.b, matrix, depth, col) * item_size,
            )
            target = out + _distance(problem.out, matrix, row, col) * ITEM_SIZES[problem.out_dtype]
            addend, factor = target, 1  # behind the first piece along k, the sums so far
            if depth == 0:
                addend = c + _distance(problem.c, matrix, row, col) * ITEM_SIZES[problem.c_dtype]
                factor = beta
            arguments = (*sources[:: -1 if is_exchanged else 1], addend, target, alpha, factor)
            calls.append(Call(launch, arguments, self._moved(operands, piece)))
        return calls

    def _moved(self, operands: tuple[Any, ...], piece: Piece) -> tuple[Any, ...]:
        """Epilogue arguments with the addresses of a piece's elements."""
        left, moved = iter(operands), []
        epilogue = self._problem.epilogue
        for operand in epilogue.operands if epilogue else ():
            moved.append(next(left))
            if operand.kind != "number":
                strides = next(left), next(left), next(left)
                distance = _distance(strides, piece.matrix, piece.row, piece.col)
                moved[-1] += distance * ITEM_SIZES[operand.dtype]
                moved += strides
        return tuple(moved)


def _distance(strides: tuple[int, ...], matrix: int, row: int, col: int) -> int:
    """Elements from the first one of the whole to that of a piece."""
    return matrix * strides[0] + row * strides[1] + col * strides[2]
