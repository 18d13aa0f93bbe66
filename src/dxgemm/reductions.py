"""Reductions of the result, which `gemm` returns instead of the matrix.

    nearest = dxgemm.gemm(x, y, alpha=-2.0, epilogue=bias(norms) | reductions.argmin(axis=1))

A reduction is the end of an epilogue, or all of it. `gemm` then returns its results. The matrix
itself is stored only if `out` is passed, and c is only read.

`axis` counts within each matrix of a batch: 1 or -1 gives one result per row, 0 or -2 one per
column, None one per matrix. Results are the same in every run. -0.0 equals 0.0. Among equal values
the one with the lowest index comes first; a whole matrix is searched row by row. Values have the
dtype of the matrix, or float32 for float16 and bfloat16; indices are int64. If `out` or c has half
precision, the matrix is rounded to it before it is reduced. Of complex numbers there are `sum` and
`mean`, and `norm` and `abs_max`, which are real; the others need an epilogue that makes them real,
such as `dxgemm.epilogues.magnitude`.

All take these arguments:
    axis: see above.
    out: the array to write, or a pair of them for `smallest` and `largest`; None to allocate.
    fused: True to reduce each tile in the kernel that computes it, or raise
        `UnsupportedProblemError`; False to store the matrix in a workspace and reduce it by another
        kernel; None for the one that is predicted to be faster.
    keepdims: True to keep a dimension of length 1 for each that is reduced, as NumPy does. That of
        the `smallest` or `largest` of a row or column has length k in any case.
"""

from __future__ import annotations

from typing import Any

from dxgemm.epilogues.reduction import (
    INDICES,
    MEANS,
    QUANTISED,
    SCALES,
    VALUES,
    Extremes,
    Quantisation,
    Quantised,
    Reduction,
)
from dxgemm.errors import DtypeError, EpilogueError, named_in_errors, shown
from dxgemm.handwritten.parts.block_scales import BLOCK_K
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.problem.dtypes import dtype_name

__all__ = [
    "Extremes",
    "Quantisation",
    "Quantised",
    "Reduction",
    "abs_max",
    "argmax",
    "argmin",
    "largest",
    "logsumexp",
    "max",
    "mean",
    "min",
    "norm",
    "quantise_rows",
    "smallest",
    "sum",
]


def __dir__() -> list[str]:
    return __all__


@named_in_errors("reductions.sum")
def sum(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """Sum of the elements; int64 for int32 and int64 results of integers, modulo 2**64.

    A thread adds up to 256 elements in their own type; these partial sums are added in float64.
    """
    return _reduction("sum", "sum", axis, out, fused, keepdims)


@named_in_errors("reductions.mean")
def mean(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """The `sum` divided by the number of elements; float64 for integers, NaN for no elements."""
    return _reduction("mean", "sum", axis, out, fused, keepdims, results=(MEANS,))


@named_in_errors("reductions.norm")
def norm(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """Euclidean norm, or the Frobenius norm of a whole matrix; float64 for int8 products.

    Squares and their sums are float64, so that squares of float32 do not overflow.
    """
    return _reduction("norm", "squares", axis, out, fused, keepdims)


@named_in_errors("reductions.logsumexp")
def logsumexp(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """log(sum(exp(element))), as `scipy.special.logsumexp`; float64 for int8 products.

    No exponential overflows: each is relative to the largest element so far, and the sum is scaled
    when a larger one comes. NaN if there is one; else infinity if there is one; minus infinity if
    all elements are, or if there are none.

    A thread adds up to 256 exponentials in the elements' own type, or float64 for int32; these
    partial sums are merged in float64. Of L elements, the error is at most
    2**-13 + 2**-24 * abs(result) in float32 and 8 * L * 2**-53 + 2**-53 * abs(result) in float64,
    beside that of the elements: the result changes by at most as much as they do.

    Source: M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    return _reduction("logsumexp", "exponentials", axis, out, fused, keepdims)


@named_in_errors("reductions.min")
def min(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """Smallest value; NaN if there is one, as in `numpy.min`."""
    return _reduction("min", "smallest", axis, out, fused, keepdims)


@named_in_errors("reductions.max")
def max(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """Largest value; NaN if there is one, as in `numpy.max`."""
    return _reduction("max", "largest", axis, out, fused, keepdims)


@named_in_errors("reductions.abs_max")
def abs_max(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """Largest absolute value; NaN if there is one."""
    return _reduction("abs_max", "largest", axis, out, fused, keepdims, of_magnitudes=True)


@named_in_errors("reductions.argmin")
def argmin(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """Index of the smallest value; of the first NaN if there is one, as in `numpy.argmin`.

    The index in a whole matrix is a pair, row and column.
    """
    return _reduction("argmin", "smallest", axis, out, fused, keepdims, results=(INDICES,))


@named_in_errors("reductions.argmax")
def argmax(
    axis: int | None = None, *, out: Any = None, fused: bool | None = None, keepdims: bool = False
) -> Reduction:
    """Index of the largest value; of the first NaN if there is one, as in `numpy.argmax`.

    The index in a whole matrix is a pair, row and column.
    """
    return _reduction("argmax", "largest", axis, out, fused, keepdims, results=(INDICES,))


@named_in_errors("reductions.smallest")
def smallest(
    k: int,
    axis: int | None = None,
    *,
    out: Any = None,
    fused: bool | None = None,
    keepdims: bool = False,
) -> Reduction:
    """The k smallest values in ascending order, and their indices.

    NaN comes after all other values, as in `numpy.sort`.

    Args:
        k: number of values, 1 to 32.
        axis, out, fused, keepdims: see `dxgemm.reductions`.

    Returns:
        A reduction with which `gemm` returns `Extremes`. Values and indices have shape (m, k) for
        axis 1 and (k, n) for axis 0. For axis None, values have shape (k,) and indices (k, 2), a
        row and a column each.
    """
    return _extremes("smallest", k, axis, False, out, fused, keepdims)


@named_in_errors("reductions.largest")
def largest(
    k: int,
    axis: int | None = None,
    *,
    out: Any = None,
    fused: bool | None = None,
    keepdims: bool = False,
) -> Reduction:
    """The k largest values in descending order, and their indices: see `smallest`.

    NaN comes before all other values; `numpy.sort` too takes it for the largest.
    """
    return _extremes("largest", k, axis, True, out, fused, keepdims)


@named_in_errors("reductions.quantise_rows")
def quantise_rows(
    dtype: Any = "float8_e4m3fn", block: int | None = None, *, out: Any = None
) -> Quantisation:
    """The matrix in float8, each row divided by its scale: operands of the next product of float8.

    `values, scales = gemm(a, b, epilogue=bias(v) | quantise_rows())`, then
    `gemm(values, w, scale_a=scales, scale_b=...)`. A scale is the largest absolute value of the row
    over that of the format, 448 or 57344. The kernel of the product leaves the matrix as `gemm`
    would return it, in a workspace if out is not passed, and another one reads it.

    Args:
        dtype: "float8_e4m3fn" or "float8_e5m2", or "e4m3" or "e5m2", or such a dtype of torch or
            ml_dtypes.
        block: columns of a row that share a scale: 128, as the scales of blocks of a; None for all.
        out: pair of arrays for the results.

    Returns:
        An end of an epilogue with which `gemm` returns `Quantised`: values (m, n), and scales
        (m, 1), or (m, ceil(n / 128)), float32. Rounding is to nearest, ties to even. The scale of
        zeros is 2**-100 / 448 (or / 57344). With a NaN in a row, or a block of it, its scale is
        NaN; with an infinity, infinity.

    Raises:
        DtypeError: the dtype is none of float8.
        EpilogueError: block is not 128, or out is no pair.

    Source: T. Dettmers et al., "LLM.int8()", NeurIPS 2022, section 2: vector-wise quantisation.
    """
    given = dtype_name(dtype)
    short = {kind: known for known, kind in FLOAT8_KINDS.items()}
    name = short.get(given, given) if isinstance(given, str) else ""
    if name not in FLOAT8_KINDS:
        raise DtypeError(f"dtype is {shown(dtype)}; pass {' or '.join(map(repr, FLOAT8_KINDS))}.")
    if block is not None and not (isinstance(block, int) and block == BLOCK_K):
        raise EpilogueError(f"block is {shown(block)}; pass 128, or None for whole rows.")
    arrays = tuple(out) if isinstance(out, tuple | list) else _single(out)
    return Quantisation(
        "quantise_rows", QUANTISED, 1, is_ranked=True, results=(VALUES, SCALES), fused=False,
        out=arrays, dtype=name, block=block or 0,
    )  # fmt: skip


def _reduction(
    name: str, kind: str, axis: Any, out: Any, fused: Any, keepdims: Any, **options: Any
) -> Reduction:
    """Make a reduction that has one result."""
    return Reduction(name, kind, axis, fused=fused, keepdims=keepdims, out=_single(out), **options)


def _extremes(
    kind: str,
    k: int,
    axis: int | None,
    nan_first: bool,
    out: Any,
    fused: bool | None,
    keepdims: bool,
) -> Reduction:
    arrays = tuple(out) if isinstance(out, tuple | list) else _single(out)
    results = (VALUES, INDICES)
    return Reduction(
        kind, kind, axis, k, True, results, nan_first, fused=fused, keepdims=keepdims, out=arrays
    )


def _single(out: Any) -> tuple[Any, ...]:
    return () if out is None else (out,)
