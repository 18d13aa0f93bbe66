"""Operand values, by name: random, integer-exact, canary and badly scaled data."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

Operands = tuple[np.ndarray, np.ndarray, np.ndarray]
Fill = Callable[[np.random.Generator, tuple[int, ...], str], np.ndarray]


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normally distributed values."""
    return rng.standard_normal(shape).astype(dtype)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Integers in [-8, 8]: products and sums are exact up to k = 2**17 in float32."""
    return rng.integers(-8, 9, shape).astype(dtype)


def canary_left(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Odd integers that need one or two bits more than a reduced-precision input keeps.

    In float32 they lie in [2051, 8191], which TF32's eleven bits cannot hold; with entries of
    {-1, 0, 1} on the right every sum of up to 2048 of them is below 2**24, so exact. In float64
    they lie near 2**26, beyond float32.
    """
    low, high = (1025, 4096) if dtype == "float32" else (2**24 + 1, 2**26)
    return (2 * rng.integers(low, high, shape) + 1).astype(dtype)


def signs(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Entries of {-1, 0, 1}."""
    return rng.integers(-1, 2, shape).astype(dtype)


FILLS: dict[str, tuple[Fill, Fill, Fill]] = {
    "random": (random, random, random),
    "integers": (integers, integers, integers),
    "canary": (canary_left, signs, integers),
}


def operands(
    data: str,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    c_shape: tuple[int, ...],
    dtype: str,
) -> Operands:
    """Returns a, b and c of one kind of data, the same for the same arguments.

    Args:
        data: a name in `FILLS`.
        a_shape: (m, k) or (batch, m, k).
        b_shape: (k, n) or (batch, k, n).
        c_shape: (m, n) or (batch, m, n).
        dtype: "float32" or "float64".
    """
    seed = zlib.crc32(repr((data, a_shape, b_shape, c_shape, dtype)).encode())
    rng = np.random.default_rng(seed)
    fill_a, fill_b, fill_c = FILLS[data]
    return fill_a(rng, a_shape, dtype), fill_b(rng, b_shape, dtype), fill_c(rng, c_shape, dtype)


def planted_zeros(m: int, n: int, k: int, dtype: str) -> Operands:
    """Returns a, b and the mask of entries of a @ b that are zero in every term.

    Even rows of a and even columns of b use the first half of k, odd ones the second, so each
    product of an even with an odd one has no term that is not zero. Fast (Strassen-like)
    algorithms return rounding errors there.
    """
    rng = np.random.default_rng(k)
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    a[0::2, k // 2 :] = 0
    a[1::2, : k // 2] = 0
    b[k // 2 :, 0::2] = 0
    b[: k // 2, 1::2] = 0
    return a, b, np.add.outer(np.arange(m), np.arange(n)) % 2 == 1


def scaled_circulants(size: int, exponents: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a badly scaled pair, a = C 2**d and b = 2**-d C, with C a random circulant.

    The inner powers of two cancel in every term, so conventional arithmetic gives the bits of
    C @ C, however wide d spreads.

    Args:
        size: m = n = k.
        exponents: d runs from minus to plus this.
        dtype: "float32" or "float64".
    """
    row = random(np.random.default_rng(size), (size,), dtype)
    circulant = np.stack([np.roll(row, shift) for shift in range(size)])
    spread = np.linspace(-exponents, exponents, size).astype(int)
    return np.ldexp(circulant, spread), np.ldexp(circulant, -spread[:, None])
