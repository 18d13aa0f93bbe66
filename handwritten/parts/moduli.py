"""Pairwise coprime moduli, and the reduction of numbers by them.

All kernels of the residue number system use them: `residues`, `emulated_float64`, `reconstruct`.

A sum of products of integers up to 2**bits is known from its residues by moduli whose product P
is more than twice as large as any such sum: k * 4**bits < P / 2 (Chinese remainders).
Source: K. Ozaki, Y. Uchino and T. Imamura, "Ozaki Scheme II", arXiv 2504.08009; Y. Uchino, K. Ozaki
and T. Imamura, arXiv 2508.03984, for these moduli.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

# The largest first; residues from -128 to 127 are int8.
MODULI = (
    256, 255, 253, 251, 247, 241, 239, 233, 229, 227,
    223, 217, 211, 199, 197, 193, 191, 181, 179, 173,
)  # fmt: skip
FULL_BITS = 53  # of a float64, which numbers keep unless fewer moduli are asked for
MOST_BITS = 62  # integers of 64 bits, with their sign
LOST_BITS = 13  # of the operands' bits, in the bound on the error: see `residues`
LONGEST_K = 2**17  # sums of k products of odd moduli's residues, 127**2 at most, fit int32

# Residues are found by float32: numbers below 2**23 become one when these bits are put before
# them, and one that is added to 1.5 * 2**23 is rounded to an integer.
TOTAL_BITS, TOTAL = 0x4B000000, 2.0**23
ROUNDING_BITS, ROUNDING = 0x4B400000, 1.5 * 2.0**23
BYTE_SUM = 8 * 255 * 127  # no sum of eight bytes times residues is larger


def operand_bits(count: int, k: int) -> int:
    """Bits of the integers that `count` moduli allow in products of depth k.

    The sums stay below P / 2 by 2**-32 of it, which a quotient in float64 has to tell apart.
    """
    most = prod(MODULI[:count])
    largest = (most - 1 - (most >> 32)) // (2 * max(k, 1))
    return min((largest.bit_length() - 1) // 2, MOST_BITS)


def moduli_count(problem: Any) -> int:
    """Number of moduli: what a problem asks for, or the fewest that keep all bits of a float64."""
    asked: int | None = problem.moduli
    if asked is not None:
        return asked
    counts = range(2, len(MODULI) + 1)
    return next(count for count in counts if operand_bits(count, problem.k) >= FULL_BITS)


def byte_weights(modulus: int, bias: int, width: int) -> tuple[tuple[int, ...], int]:
    """Weights of the `width` bytes of u = x + bias, and an offset: their sum is x modulo `modulus`.

    Returns:
        Residues of 256**i, four signed bytes to an int32, the lowest first; and the offset, which
        also brings the sum into [0, 2**20).
    """
    weights = [_symmetric(256**i, modulus) for i in range(width)]
    packed = tuple(
        int.from_bytes(bytes(w & 255 for w in weights[i : i + 4]), "little", signed=True)
        for i in range(0, width, 4)
    )
    return packed, -bias % modulus + -(-BYTE_SUM // modulus) * modulus


def _symmetric(value: int, modulus: int) -> int:
    """The residue nearest to 0."""
    residue = value % modulus
    return residue - modulus if 2 * residue > modulus else residue


def make_residue() -> Callable[..., Any]:
    """A device function: a number in [0, 2**20) to its residue nearest to 0."""
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import bits_float, device_function, float_bits

    total_float, rounding = float32(TOTAL), float32(ROUNDING)

    def residue(total, modulus, inverse):
        """total - modulus * rint(total / modulus).

        The quotient is below 2**13, so that its error in float32 is below 2**-10: less than what
        lies between it and the middle of two integers, 1 / (2 * modulus) for an odd modulus.
        """
        quotient = (bits_float(int32(total + TOTAL_BITS)) - total_float) * inverse + rounding
        return int32(total - modulus * (float_bits(quotient) - ROUNDING_BITS))

    return device_function(residue)
