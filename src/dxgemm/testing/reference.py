"""The result a GEMM should have, in a wider type, with the magnitude its error is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

LONGDOUBLE_WORK = 2**24  # multiply-adds; about 60 ms, beyond which BLAS on exact slices is faster


@dataclass(frozen=True)
class Reference:
    """An exact-enough result and what bounds its rounding error.

    Attributes:
        value: alpha * a @ b + beta * c, in float64 or longdouble.
        magnitude: the same of the absolute values, in float64.
        k: the length of the sums.
    """

    value: np.ndarray
    magnitude: np.ndarray
    k: int


def product(a: np.ndarray, b: np.ndarray) -> Reference:
    """Multiplies (m, k) by (k, n), or batches of them, in a type wider than theirs.

    float32 is multiplied in float64. float64 is multiplied in `np.longdouble` while that is
    quick, else by BLAS on slices short enough for every partial sum to be exact.
    """
    k = a.shape[-1]
    with np.errstate(invalid="ignore", over="ignore"):
        magnitude = np.matmul(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
        if a.dtype == np.float32:
            value = np.matmul(a.astype(np.float64), b.astype(np.float64))
        elif magnitude.size * k <= LONGDOUBLE_WORK or a.ndim != 2 or b.ndim != 2:
            value = np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))
        else:
            value = sliced_product(a, b)
    return Reference(value, magnitude, k)


def combine(product: Reference, c: np.ndarray, alpha: float, beta: float, dtype: str) -> Reference:
    """Returns alpha * product + beta * c, reading neither where its factor is zero.

    Args:
        product: a @ b.
        c: the matrix before the call.
        alpha: the factor of the product; rounded to `dtype`, as a kernel receives it.
        beta: the factor of c; likewise.
        dtype: "float32" or "float64".
    """
    alpha, beta = np.dtype(dtype).type(alpha), np.dtype(dtype).type(beta)
    wide = product.value.dtype.type
    value = np.zeros(c.shape, wide)
    magnitude = np.zeros(c.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0 and product.k:
            value = value + wide(alpha) * product.value
            magnitude = magnitude + abs(float(alpha)) * product.magnitude
        if beta != 0:
            value = value + wide(beta) * c.astype(wide)
            magnitude = magnitude + abs(float(beta)) * np.abs(c.astype(np.float64))
    return Reference(value, magnitude, product.k)


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
