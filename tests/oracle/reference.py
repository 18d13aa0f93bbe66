"""Reference results of a GEMM in a wider type, with the magnitudes that scale their tolerances."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

LONGDOUBLE_WORK = 2**24  # multiply-adds; about 60 ms, beyond which BLAS on exact slices is faster


TF32_EPS = 2.0**-11  # rounding to TF32's eleven significant bits, relative, at most
TF32_CONFIDENCE = 6.0  # Hoeffding: a right result exceeds it in fewer than 3 of 10**8 elements


@dataclass(frozen=True)
class Reference:
    """Reference result, and the quantities that bound the rounding error of a result."""

    value: np.ndarray  # alpha * a @ b + beta * c, in float64 or longdouble, or int64 modulo 2**64
    magnitude: np.ndarray  # the same expression of the absolute values, in float64
    k: int  # length of the sums
    # bound on the change of the value if a and b are rounded to the precision
    input_error: np.ndarray


def product(a: np.ndarray, b: np.ndarray, precision: str | None = None) -> Reference:
    """Multiplies (m, k) by (k, n), or batches of them, in a type wider than theirs.

    All but float64 is multiplied in float64, in which products of two of them are exact, and sums
    of int8 too. float64 is multiplied in `np.longdouble` while that is quick, else by BLAS on
    slices short enough for every partial sum to be exact.
    """
    k = a.shape[-1]
    with np.errstate(invalid="ignore", over="ignore"):
        a_size, b_size = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
        magnitude = np.matmul(a_size, b_size)
        if a.dtype != np.float64:
            value = np.matmul(a.astype(np.float64), b.astype(np.float64))
            if a.dtype == np.int8:
                value = value.astype(np.int64)
        elif magnitude.size * k <= LONGDOUBLE_WORK or a.ndim != 2 or b.ndim != 2:
            value = np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))
        else:
            value = sliced_product(a, b)
        input_error = np.zeros(magnitude.shape)
        if precision == "tf32":
            input_error = tf32_input_error(a_size, b_size, value)
    return Reference(value, magnitude, k, input_error)


def tf32_input_error(a_size: np.ndarray, b_size: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Returns a bound on the change of a @ b if a and b are rounded to TF32.

    Rounding to nearest changes each factor by at most eps = 2**-11 of itself, with a random sign,
    so each product by about twice that. By Hoeffding's inequality their sum moves by more than
    6 eps sqrt(sum (a b)**2) in fewer than 3 of 10**8 elements; for one product that is three times
    the most it can move. A bound by sum |a b|, as for rounding in sums, would let bfloat16 pass
    from k of about 100 on: errors of random signs grow with the root. Cutting the last bits off
    instead of rounding moves every product the same way, by 2 eps on average, and the value with
    them: hence 2 eps |value|.
    """
    spread = np.sqrt(np.matmul(np.square(a_size), np.square(b_size)))
    return TF32_EPS * (TF32_CONFIDENCE * spread + 2 * np.abs(value).astype(np.float64))


def combine(product: Reference, c: np.ndarray, alpha: float, beta: float, dtype: str) -> Reference:
    """Returns alpha * product + beta * c, reading neither where its factor is zero."""
    scalar: Any = {"float64": np.float64, "int8": np.int64}.get(dtype, np.float32)
    alpha, beta = scalar(alpha), scalar(beta)
    wide = product.value.dtype.type
    value = np.zeros(c.shape, wide)
    magnitude = np.zeros(c.shape)
    input_error = np.zeros(c.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0 and product.k:
            value = value + wide(alpha) * product.value
            magnitude = magnitude + abs(float(alpha)) * product.magnitude
            input_error = input_error + abs(float(alpha)) * product.input_error
        if beta != 0:
            value = value + wide(beta) * c.astype(wide)
            magnitude = magnitude + abs(float(beta)) * np.abs(c.astype(np.float64))
    return Reference(value, magnitude, product.k, input_error)


def logsumexp(lines: np.ndarray) -> np.ndarray:
    """Logarithm of the sum of exponentials along the last axis, in longdouble, in two passes.

    Exponentials are relative to the largest element, unless that is infinite or NaN, where they
    need not be: the result is as well.
    """
    lines = lines.astype(np.longdouble)
    highest = np.max(lines, axis=-1, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, 0)
    with np.errstate(over="ignore", divide="ignore"):
        shifted: np.ndarray = np.log(np.sum(np.exp(lines - shift[..., np.newaxis]), axis=-1))
    return shift + shifted


def columns_in_pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Even and odd columns, of which an epilogue over pairs takes one each."""
    return values[..., ::2], values[..., 1::2]


def sliced_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns a @ b of finite float64 matrices as the longdouble sum of exact products.

    Each matrix is split into slices of so few bits that float64 holds every partial sum of two
    slices exactly (Ozaki et al., "Error-free transformations of matrix multiplication", 2012).
    """
    bits = (53 - a.shape[1].bit_length()) // 2
    total = np.zeros((a.shape[0], b.shape[1]), np.longdouble)
    b_slices = list(_slices(b, 0, bits))
    for a_slice in _slices(a, 1, bits):
        for b_slice in b_slices:
            total += a_slice @ b_slice
    return total


def _slices(matrix: np.ndarray, axis: int, bits: int) -> Iterator[np.ndarray]:
    """Yields matrices of `bits` significant bits per row or column, whose sum is `matrix`."""
    rest = matrix.copy()
    while rest.any():
        _, exponent = np.frexp(np.abs(rest).max(axis, keepdims=True))
        unit = np.ldexp(1.0, exponent - bits)
        term = np.rint(rest / unit) * unit
        yield term
        rest -= term
