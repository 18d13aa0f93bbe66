"""Elementary functions for the bodies of epilogues, as the host computes them.

In kernels, their counterparts in `dxgemm.handwritten.parts.elementary` take their place, which are
fast on a GPU. Functions of a float keep its type, float32 or float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SQRT_HALF = math.sqrt(0.5)
TWICE_SQRT_2_OVER_PI = 2.0 * math.sqrt(2.0 / math.pi)
GELU_TANH_CUBE = 0.044715 * TWICE_SQRT_2_OVER_PI
# Below this, gelu_tanh is -0.0 in every dtype; minus infinity times 0 would be NaN.
GELU_TANH_END = -40.0


def fast_tanh(x: Any) -> Any:
    """tanh(x), in kernels within 2**-11 of itself and in one instruction; NaN stays NaN.

    In float32, that is. For float64 it is `tanh`.
    """
    return math.tanh(x)


def gelu_tanh(x: Any) -> Any:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))); -0.0 at minus infinity."""
    bounded = GELU_TANH_END if x < GELU_TANH_END else x
    return bounded * logistic(bounded * (TWICE_SQRT_2_OVER_PI + GELU_TANH_CUBE * bounded * bounded))


def logistic(x: Any) -> Any:
    """1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow; NaN stays NaN."""
    small = math.exp(-abs(x))
    return (1.0 if x >= 0.0 else small) / (1.0 + small)


def normal_cdf(x: Any) -> Any:
    """Phi(x) = erfc(-x / sqrt(2)) / 2, the normal distribution function; NaN stays NaN."""
    return 0.5 * math.erfc(-SQRT_HALF * x)


def like(value: Any, number: Any) -> Any:
    """The value, in the type of a number."""
    return type(number)(value)


def larger(x: Any, y: Any) -> Any:
    """The larger of two numbers; NaN if one of them is."""
    return x if x > y or x != x else y


def smaller(x: Any, y: Any) -> Any:
    """The smaller of two numbers; NaN if one of them is."""
    return x if x < y or x != x else y


def pair_max(x: Any, y: Any) -> Any:
    """The larger of each two int16; an int32 holds a pair of them."""
    return _of_pairs(np.maximum, x, y)


def pair_min(x: Any, y: Any) -> Any:
    """The smaller of each two int16; an int32 holds a pair of them."""
    return _of_pairs(np.minimum, x, y)


def pair_sum(x: Any, y: Any) -> Any:
    """Sums of int16, which wrap around; an int32 holds a pair of them."""
    return _of_pairs(np.add, x, y)


def _of_pairs(function: Any, *words: Any) -> Any:
    pairs = (np.array([word], np.int64).astype(np.int32).view(np.int16) for word in words)
    return function(*pairs).view(np.int32)[0]


def tanh(x: Any) -> Any:
    """tanh(x); NaN stays NaN."""
    return math.tanh(x)


def times_normal_cdf(x: Any) -> Any:
    """x * Phi(x); -0.0 at minus infinity; NaN stays NaN."""
    return x * normal_cdf(x) if x != -math.inf else -0.0


def wide_product(a: Any, b: Any) -> Any:
    """a * b of two uint32, as uint64."""
    return np.uint64(a) * np.uint64(b)
