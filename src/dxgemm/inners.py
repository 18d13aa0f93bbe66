"""Functions for `gemm(inner=)`, each an ordinary `@dxgemm.inner` function.

    distances = dxgemm.gemm(points, others.T, inner=inners.l1)

Element [i, j] of the result is made of row i of a and column j of b.
"""

from __future__ import annotations

import math

from dxgemm.epilogues.elementary import pair_max, pair_min, pair_sum
from dxgemm.epilogues.inner_function import inner

__all__ = [
    "canberra",
    "chebyshev",
    "hamming",
    "l1",
    "logsumexp",
    "max_min",
    "max_plus",
    "max_plus_int16",
    "min_plus",
    "min_plus_int16",
    "squared_euclidean",
]


def __dir__() -> list[str]:
    return __all__


@inner(symmetric=True)
def l1(x, y):
    """Sum of |x - y|: the Manhattan distance."""
    return abs(x - y)


@inner(add="max", symmetric=True)
def chebyshev(x, y):
    """Largest |x - y|; minus infinity for k = 0."""
    return abs(x - y)


@inner(symmetric=True)
def squared_euclidean(x, y):
    """Sum of (x - y)**2, without the cancellation of |x|**2 - 2 x y + |y|**2."""
    difference = x - y
    return difference * difference


@inner(symmetric=True)
def canberra(x, y):
    """Sum of |x - y| / (|x| + |y|), where 0 / 0 is 0."""
    scale = abs(x) + abs(y)
    return 0.0 if scale == 0.0 else abs(x - y) / scale


@inner(symmetric=True)
def hamming(x, y):
    """Number of places where x and y differ; NaN differs from everything."""
    return 1.0 if x != y else 0.0


@inner(add="min", symmetric=True)
def min_plus(x, y):
    """Smallest x + y: a step of shortest paths, where infinity is "no edge"."""
    return x + y


@inner(add="max", symmetric=True)
def max_plus(x, y):
    """Largest x + y: a step of longest paths, or of Viterbi's on logarithms of probabilities."""
    return x + y


def _smaller_half(total):
    low, high = ((total & 0xFFFF) ^ 0x8000) - 0x8000, total >> 16
    return low if low < high else high


def _larger_half(total):
    low, high = ((total & 0xFFFF) ^ 0x8000) - 0x8000, total >> 16
    return low if low > high else high


def _smaller(total, pair):
    return pair_min(total, pair)


def _larger(total, pair):
    return pair_max(total, pair)


@inner(add=_smaller, identity=0x7FFF7FFF, finish=_smaller_half, symmetric=True)
def min_plus_int16(x, y):
    """`min_plus` of int16, two at a time: sums wrap around, and the result is int32, in `out`.

    Operands are int32, each a pair of int16 that are neighbours along k: `a.view("int32")` for
    rows of a, and `b.T.view("int32").T` for columns of b that are contiguous.
    """
    return pair_sum(x, y)


@inner(add=_larger, identity=-0x7FFF8000, finish=_larger_half, symmetric=True)
def max_plus_int16(x, y):
    """`max_plus` of int16, two at a time, as `min_plus_int16` takes them."""
    return pair_sum(x, y)


@inner(add="max", symmetric=True)
def max_min(x, y):
    """Largest min(x, y): the widest path, whose narrowest edge is as wide as can be."""
    return x if x < y or x != x else y


def _join(total, other):
    """Sums of exponentials, each times the exponential of the largest: (largest, scaled sum)."""
    largest, scaled = total
    second, rescaled = other
    factor = 1.0 if second == largest else math.exp(-abs(second - largest))
    if second > largest:
        return second, scaled * factor + rescaled
    return largest, scaled + rescaled * factor


def _log_of(total):
    largest, scaled = total
    return largest + math.log(scaled) if scaled > 0.0 or scaled != scaled else largest


@inner(add=_join, identity=(-math.inf, 0.0), finish=_log_of, symmetric=True)
def logsumexp(total, x, y):
    """log(sum(exp(x + y))): the product of matrices of logarithms, without overflow.

    A total is the largest x + y and the sum of exponentials less by it: an element takes one
    exponential, and the logarithm is taken once. In float32 the error is at most 6 k 2**-24, as of
    a sum of k positive numbers, and two roundings of the result.
    Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    largest, scaled = total
    value = x + y
    factor = math.exp(-abs(value - largest))
    factor = 1.0 if value == largest else factor  # of two infinities too
    return (value, scaled * factor + 1.0) if value > largest else (largest, scaled + factor)
