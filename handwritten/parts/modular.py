"""Integers modulo a number that is known at run time, of up to 31 bits.

The residue nearest to 0 is x - p * rint(x / p), with the quotient by float64. It is exact up to
|x| = 2**33 * p: the error of the quotient is then below 2**-18, and a product of two such residues,
or the sum of eight, stays below 2**63.
Source: T. Granlund and P. Montgomery, "Division by Invariant Integers using Multiplication", PLDI
1994, for the quotient by a reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.unroll import device

SUMMED = 8  # products of nearest residues that may be added to one before it is reduced


def make_nearest() -> Callable[..., Any]:
    """A device function: (value, modulus, inverse) -> its residue nearest to 0, as int64.

    |value| is at most 2**33 * modulus, inverse is 1 / modulus in float64.
    """
    from numba import float64, int64

    from dxgemm.handwritten.parts.intrinsics import low_word

    @device
    def nearest(value, modulus, inverse):
        quotient = int64(round(float64(value) * inverse))
        return int64(low_word(value - quotient * modulus))

    return nearest


def make_residue_of(dtype: str) -> Callable[..., Any]:
    """A device function like `nearest`, for any value of an integer dtype.

    Values of 64 bits are reduced in two halves.
    """
    from numba import int64, uint64

    nearest, is_long, is_unsigned = make_nearest(), dtype.endswith("64"), dtype == "uint64"

    @device
    def residue_of(value, modulus, inverse):
        if not is_long:
            return nearest(int64(value), modulus, inverse)
        if is_unsigned:
            upper, lower = int64(value >> uint64(32)), int64(value & uint64(0xFFFFFFFF))
        else:
            upper, lower = int64(value) >> 32, int64(value) & 0xFFFFFFFF
        joined = nearest(upper, modulus, inverse) * 4294967296 + lower
        return nearest(nearest(joined, modulus, inverse), modulus, inverse)

    return residue_of


def make_finish(out_dtype: str) -> Callable[..., Any]:
    """A device function: (value, alpha, beta, c, index, modulus, inverse) -> the result.

    That is alpha * value + beta * c in [0, modulus), for a value as `nearest` takes it, and alpha
    and beta in [0, modulus). With beta 0, c is not read.
    """
    from numba import int64

    from dxgemm.handwritten.parts.widening import stored_type, view_as

    nearest, stored = make_nearest(), stored_type(out_dtype)
    element = make_residue_of(out_dtype)

    @device
    def finish(value, alpha, beta, c, index, modulus, inverse):
        value = nearest(value, modulus, inverse)
        if alpha != 1 or beta > 0:
            value = value * int64(alpha)
            if beta != 0:
                added = element(view_as(stored, c.data)[index], modulus, inverse)
                value += added * int64(beta)
            value = nearest(value, modulus, inverse)
        return value + modulus if value < 0 else value

    return finish
