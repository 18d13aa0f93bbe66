"""Reductions of the result: what `gemm` computes of it instead of storing it.

    nearest = dxgemm.gemm(x, y, alpha=-2.0, epilogue=bias(norms) | reductions.argmin(axis=1))

A reduction is the end of an epilogue, or all of it. `gemm` then returns its results; the matrix
itself is stored only where `out` is passed, and c is only read.

`axis` counts within each matrix of a batch: 1 or -1 gives one result a row, 0 or -2 one a column,
None one for the matrix. Results are the same in every run. -0.0 equals 0.0; of equal values the one
with the lowest index comes first, of a whole matrix row by row. Values have the dtype of the
matrix, float32 for float16 and bfloat16; indices are int64. With `out`, or c, of half precision the
matrix is rounded to it before it is reduced.
"""

from __future__ import annotations

from typing import Any

from dxgemm.epilogues.reduction import INDICES, VALUES, Extremes, Reduction

__all__ = [
    "Extremes",
    "Reduction",
    "abs_max",
    "argmax",
    "argmin",
    "largest",
    "max",
    "min",
    "norm",
    "smallest",
    "sum",
]


def sum(axis: int | None = None, *, out: Any = None) -> Reduction:
    """The sum; int64 for the int32 sums of int8 products.

    A thread adds up to 256 elements in their own type, and these partial sums are added in float64.

    Args:
        axis: see `dxgemm.reductions`.
        out: the array to write; None to allocate one.
    """
    return Reduction("sum", "sum", axis, out=_single(out))


def norm(axis: int | None = None, *, out: Any = None) -> Reduction:
    """The Euclidean norm; of a whole matrix that of Frobenius. float64 for int8 products.

    Squares and their sums are float64, so that those of float32 do not overflow.
    """
    return Reduction("norm", "squares", axis, out=_single(out))


def min(axis: int | None = None, *, out: Any = None) -> Reduction:
    """The smallest value; NaN if there is one, as `numpy.min`."""
    return Reduction("min", "smallest", axis, out=_single(out))


def max(axis: int | None = None, *, out: Any = None) -> Reduction:
    """The largest value; NaN if there is one, as `numpy.max`."""
    return Reduction("max", "largest", axis, out=_single(out))


def abs_max(axis: int | None = None, *, out: Any = None) -> Reduction:
    """The largest absolute value; NaN if there is one."""
    return Reduction("abs_max", "largest", axis, of_magnitudes=True, out=_single(out))


def argmin(axis: int | None = None, *, out: Any = None) -> Reduction:
    """Where the smallest value is; the first NaN if there is one, as `numpy.argmin`.

    Of a whole matrix it is a pair, row and column.
    """
    return Reduction("argmin", "smallest", axis, results=(INDICES,), out=_single(out))


def argmax(axis: int | None = None, *, out: Any = None) -> Reduction:
    """Where the largest value is; the first NaN if there is one, as `numpy.argmax`.

    Of a whole matrix it is a pair, row and column.
    """
    return Reduction("argmax", "largest", axis, results=(INDICES,), out=_single(out))


def smallest(k: int, axis: int | None = None, *, out: Any = None) -> Reduction:
    """The k smallest values in ascending order, and where they are.

    NaN comes after all others, as in `numpy.sort`.

    Args:
        k: how many, 1 to 8.
        axis: see `dxgemm.reductions`.
        out: a pair of arrays, for values and indices; None to allocate them.

    Returns:
        What makes `gemm` return `Extremes`: values and indices of shape (m, k) for axis 1, (k, n)
        for axis 0; for None (k,), and indices (k, 2): a row and a column each.
    """
    return _extremes("smallest", k, axis, False, out)


def largest(k: int, axis: int | None = None, *, out: Any = None) -> Reduction:
    """The k largest values in descending order, and where they are: see `smallest`.

    NaN comes before all others, as at the end of what `numpy.sort` gives.
    """
    return _extremes("largest", k, axis, True, out)


def _extremes(kind: str, k: int, axis: int | None, nan_first: bool, out: Any) -> Reduction:
    arrays = tuple(out) if isinstance(out, tuple | list) else _single(out)
    results = (VALUES, INDICES)
    return Reduction(kind, kind, axis, k, True, results, nan_first, out=arrays)


def _single(out: Any) -> tuple[Any, ...]:
    return () if out is None else (out,)
