"""Pieces of a problem that is larger than the 32-bit indices of kernels reach.

A kernel indexes the rows, columns, k and matrices of a launch in 32 bits. A larger problem is cut
along each dimension that is too long. Pieces of rows, columns and matrices write their own part of
the result; pieces along k are added up.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

from dxgemm.errors import UnsupportedProblemError
from dxgemm.problem.dtypes import COMPLEX_PARTS, slice_dtype
from dxgemm.problem.problem import Problem, sliced_problem

# Rows, columns and k of a piece, and its matrices: kernels of emulated products have more of them.
MOST_INDICES, MOST_MATRICES, MOST_PIECES = 2**30, 2**25, 2**16
ALIGNED_INDICES = 1024  # a piece begins at a multiple, with the alignment of the whole


class Piece(NamedTuple):
    """One piece of a problem.

    Attributes:
        problem: the piece, with the strides of the whole.
        matrix, row, col, depth: first of its matrices, m, n and k in the whole.
    """

    problem: Problem
    matrix: int
    row: int
    col: int
    depth: int


def pieces_of(problem: Problem, is_symmetric: bool = False) -> tuple[Piece, ...]:
    """Cut a problem into pieces that kernels can index; empty if it needs no cut.

    Pieces along k follow one another, and each but the first adds to the result. Where the result
    cannot hold sums, they are pieces of `summed_problem`.

    Args:
        problem: the problem of a call, with its epilogue.
        is_symmetric: True if only a triangle of the result is computed.

    Raises:
        UnsupportedProblemError: the result cannot be computed in pieces.
    """
    most = _most_indices(problem)
    if max(problem.m, problem.n, problem.k) <= most and problem.batch <= MOST_MATRICES:
        return ()
    steps = dict.fromkeys("mnk", most) | {"batch": MOST_MATRICES}
    cut = [name for name, step in steps.items() if getattr(problem, name) > step]
    if problem.is_empty:
        return ()
    reason = "a symmetric result is none of it" if is_symmetric else _obstacle(problem, cut)
    if prod(-(-getattr(problem, name) // steps[name]) for name in cut) > MOST_PIECES:
        reason = f"there would be more than {MOST_PIECES}"
    if reason:
        sizes = " and ".join(f"{name} = {getattr(problem, name)}" for name in cut)
        raise UnsupportedProblemError(
            f"gemm: kernels index {steps['m']} rows, columns and k and {steps['batch']} matrices, "
            f"so that {sizes} is computed in pieces, but {reason}; pass parts of the operands."
        )
    if needs_sums(problem):
        problem = summed_problem(problem)

    @cache
    def piece_of(is_first: bool, batch: int, m: int, n: int, k: int) -> Problem:
        piece = replace(problem, batch=batch, m=m, n=n, k=k)
        return piece if is_first else replace(piece, reads_c=True, in_place=True, c=piece.out)

    names = ("batch", "m", "n", "k")
    steps = {name: _even_step(getattr(problem, name), steps[name]) for name in names}
    ranges = [range(0, getattr(problem, name) or 1, steps[name]) for name in names]
    found = []
    for firsts in product(*ranges):
        piece_sizes = [
            min(steps[name], getattr(problem, name) - first) for name, first in zip(names, firsts)
        ]
        found.append(Piece(piece_of(firsts[-1] == 0, *piece_sizes), *firsts))
    return tuple(found)


def needs_sums(problem: Problem) -> bool:
    """True if pieces along k are added up in a workspace, not in the result."""
    is_plain = problem.epilogue is None and problem.out_dtype == slice_dtype(
        problem.dtype, problem.out_dtype
    )
    is_plain = is_plain or problem.modulus > 0
    return problem.k > _most_indices(problem) and not is_plain


def summed_problem(problem: Problem) -> Problem:
    """Problem of the sums in a workspace, before alpha, beta, c and the epilogue."""
    return sliced_problem(problem, 1)


def _even_step(size: int, most: int) -> int:
    """Size of the pieces along a dimension: about equal, so that none is a single row or column."""
    step = -(-size // -(-size // most)) if size else most
    return step + -step % min(ALIGNED_INDICES, most)


def _most_indices(problem: Problem) -> int:
    """Rows, columns and k of a piece: real forms of complex products have twice as many."""
    return MOST_INDICES // 2 if problem.dtype in COMPLEX_PARTS else MOST_INDICES


def _obstacle(problem: Problem, cut: list[str]) -> str | None:
    """Reason why a problem is not computed in pieces; None if it is."""
    stages = problem.epilogue.stages if problem.epilogue else ()
    if problem.reduction is not None:
        return "a reduction takes the result whole"
    if problem.mask_block:
        return "a mask is that of the whole result"
    if problem.has_block_scales:
        return "scales of blocks are those of the whole operands"
    is_added = problem.dtype not in COMPLEX_PARTS and not problem.is_integer
    is_added = is_added and problem.inner is None
    if needs_sums(problem) and (problem.takes_pairs or len(cut) > 1 or not is_added):
        return "pieces along k are not added up for its epilogue, inner function or dtype"
    rows, cols = ("n", "m") if problem.is_transposed else ("m", "n")
    if rows in cut and any(stage.uses_row for stage in stages):
        return "its epilogue depends on the row"
    if cols in cut and (problem.takes_pairs or any(stage.uses_col for stage in stages)):
        return "its epilogue depends on the column"
    return None
