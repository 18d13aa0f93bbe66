"""Operand values, by name: random, integer-exact, canary and badly scaled data."""

import zlib
from collections.abc import Callable

import numpy as np

from oracle.kinds import KINDS, numpy_dtype

Operands = tuple[np.ndarray, np.ndarray, np.ndarray]
Fill = Callable[[np.random.Generator, tuple[int, ...], str], np.ndarray]


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normally distributed values; integers from all that the dtype holds."""
    if dtype in ("int8", "int32"):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Integers in [-8, 8]: products and sums are exact up to k = 2**17 in float32."""
    return rng.integers(-8, 9, shape).astype(numpy_dtype(dtype))


def odd_integers(bits: int, spread: int, unit: float = 1.0) -> Fill:
    """Odd integers of more than `bits` and up to `bits + spread` significant bits, times a unit.

    Arithmetic of fewer bits cannot hold them. With entries of {-1, 0, 1} in b, their sums are exact
    in the right accumulator: in float32 for up to 2048 terms.
    """

    def fill(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        odd = 2 * rng.integers(2 ** (bits - 1) + 1, 2 ** (bits + spread - 1), shape) + 1
        return (unit * odd).astype(numpy_dtype(dtype))

    return fill


def signs(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Entries of {-1, 0, 1}."""
    return rng.integers(-1, 2, shape).astype(numpy_dtype(dtype))


# Fills of a and b by kind, with which a lesser arithmetic fails: TF32 for float32, float32 for
# float64, bfloat16 for the other two of eleven bits, and sums in less than float32 for all kinds.
# The unit keeps results within float16. Sums of int8 outgrow 16 bits within eight terms, and most
# of them the integers that float32 holds within 2048.
CANARIES = {
    "float32": (odd_integers(11, 2), signs),
    "float64": (odd_integers(25, 2), signs),
    "tf32": (odd_integers(8, 3), signs),
    "emulated": (odd_integers(11, 2), signs),
    "float16": (odd_integers(8, 3, 2.0**-6), signs),
    "bfloat16": (odd_integers(6, 2), signs),
    "int8": (odd_integers(6, 1), odd_integers(6, 1)),
}

FILLS: dict[str, tuple[Fill, Fill, Fill]] = {
    "random": (random, random, random),
    "integers": (integers, integers, integers),
}


def operands(
    data: str,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    c_shape: tuple[int, ...],
    kind: str,
) -> Operands:
    """Returns a, b and c of one kind of data, the same for the same arguments."""
    dtype, out_dtype = KINDS[kind].dtype, KINDS[kind].out_dtype
    seed = zlib.crc32(repr((data, a_shape, b_shape, c_shape, kind)).encode())
    rng = np.random.default_rng(seed)
    canary = *CANARIES[KINDS[kind].arithmetic], integers
    fill_a, fill_b, fill_c = canary if data == "canary" else FILLS[data]
    return fill_a(rng, a_shape, dtype), fill_b(rng, b_shape, dtype), fill_c(rng, c_shape, out_dtype)


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
    """
    row = random(np.random.default_rng(size), (size,), dtype)
    circulant = np.stack([np.roll(row, shift) for shift in range(size)]).astype(np.float64)
    spread = np.linspace(-exponents, exponents, size).astype(int)
    a, b = np.ldexp(circulant, spread), np.ldexp(circulant, -spread[:, None])
    return a.astype(row.dtype), b.astype(row.dtype)
