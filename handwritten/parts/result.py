"""The result of a kernel, as all stores are told it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Result(NamedTuple):
    """Parameters of the kernel that stores read."""

    alpha: Any
    beta: Any
    c: Any
    out: Any
    m: Any
    n: Any
    batch: Any
    extra: Any


class Piece(NamedTuple):
    """Rows and columns of the result that a warp stores together: the first ones, and where the
    result, or the part of it that they belong to, ends."""

    matrix: Any
    top: Any
    left: Any
    end_row: Any
    end_col: Any


class Origin(NamedTuple):
    """Number of a matrix of the result, and its first element in c and in out."""

    matrix: Any
    c: Any
    out: Any
