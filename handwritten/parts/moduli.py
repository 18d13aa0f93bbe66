"""Pairwise coprime moduli, the reduction of numbers modulo them, and of residues to numbers.

All kernels of the residue number system use them: `residues`, `emulated_float64`, `reconstruct`.

A sum of products of integers up to 2**bits is determined by its residues if the product P of the
moduli is more than twice any such sum: k * 4**bits < P / 2 (Chinese remainder theorem).
Source: K. Ozaki, Y. Uchino and T. Imamura, "Ozaki Scheme II", arXiv 2504.08009; Y. Uchino, K. Ozaki
and T. Imamura, arXiv 2508.03984, for these moduli.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from dxgemm.handwritten.parts.unroll import device, static_range

# The largest modulus is first; residues from -128 to 127 are int8.
MODULI = (
    256, 255, 253, 251, 247, 241, 239, 233, 229, 227,
    223, 217, 211, 199, 197, 193, 191, 181, 179, 173,
)  # fmt: skip
FULL_BITS = 53  # bits of a float64, which numbers keep unless fewer moduli are requested
MOST_BITS = 62  # the integers have 64 bits, with their sign
LOST_BITS = 13  # bits of the operands that the bound on the error loses: see `residues`
LONGEST_K = 2**17  # sums of k products of odd moduli's residues, 127**2 at most, fit int32

# Residues are computed in float32. Setting these bits above an integer below 2**23 makes it the
# float32 2**23 + integer. Adding 1.5 * 2**23 to a float32 rounds it to an integer, whose low bits
# are then its own.
TOTAL_BITS, TOTAL = 0x4B000000, 2**23
ROUNDING = 1.5 * 2.0**23
MASK = 2**32 - 1  # of the low word
SHARE_BITS = 20  # after the point, of a share of P: the sum of 20, with their errors, fits int32


def operand_bits(count: int, k: int) -> int:
    """Bits of the integers that `count` moduli allow in products of depth k.

    The sums stay below P / 2 by a margin of 2**-32 of it, which a float64 quotient can resolve.
    """
    most = prod(MODULI[:count])
    largest = (most - 1 - (most >> 32)) // (2 * max(k, 1))
    return min((largest.bit_length() - 1) // 2, MOST_BITS)


def moduli_count(problem: Any) -> int:
    """Number of moduli that a problem requests, or the fewest that keep all bits of a float64."""
    asked: int | None = problem.moduli
    if asked is not None:
        return asked
    counts = range(2, len(MODULI) + 1)
    return next(count for count in counts if operand_bits(count, problem.k) >= FULL_BITS)


def byte_weights(modulus: int, bias: int, width: int) -> tuple[tuple[int, ...], int]:
    """Weights of the `width` bytes of u = x + bias, and an offset.

    The weighted sum of the bytes plus the offset are the bits of a float32, an integer that is
    congruent to x modulo `modulus`: it is 2**23 or little more.

    Returns:
        Residues of 256**i, four signed bytes per int32, the lowest first; and the offset.
    """
    weights = [_symmetric(256**i, modulus) for i in range(width)]
    packed = tuple(
        int.from_bytes(bytes(w & 255 for w in weights[i : i + 4]), "little", signed=True)
        for i in range(0, width, 4)
    )
    below = 255 * -sum(w for w in weights if w < 0)
    return packed, TOTAL_BITS + below + (-bias - TOTAL - below) % modulus


def _symmetric(value: int, modulus: int) -> int:
    """Residue nearest to 0."""
    residue = value % modulus
    return residue - modulus if 2 * residue > modulus else residue


def make_residue() -> Callable[..., Any]:
    """Make a device function: (total, modulus, inverse) -> a word with the residue as low byte.

    The total is what `byte_weights` makes. The residue is the one nearest to 0.
    """
    from numba import float32, int64

    from dxgemm.handwritten.parts.elementary import fma
    from dxgemm.handwritten.parts.intrinsics import (
        bits_float,
        device_function,
        float_bits,
        low_word,
    )

    rounding = float32(ROUNDING)

    def residue(total, modulus, inverse):
        """total - modulus * rint(total / modulus).

        The quotient is rounded once, to an integer. It has to be exact up to the distance of a
        fraction from the midpoint of two integers, 1 / (2 * modulus) for an odd modulus. The error
        of `inverse` times 2**23 is less. Bits above those of both integers do not reach a low byte.
        """
        quotient = float_bits(fma(bits_float(total), inverse, rounding))
        return low_word(int64(total) - int64(quotient) * int64(modulus))

    return device_function(residue)


def _word(value: int) -> int:
    """The low 64 bits of an integer, as an int64."""
    return (value + 2**63) % 2**64 - 2**63


def weights_of(count: int) -> tuple[list[int], int]:
    """W_i for each modulus, nearest to 0, and P."""
    moduli, weights = MODULI[:count], []
    product = prod(moduli)
    for modulus in moduli:
        others = product // modulus
        weight = others * pow(others, -1, modulus)
        weights.append(weight if 2 * weight < product else weight - product)
    return weights, product


def numbers_modulo(modulus: int, count: int) -> tuple[int | float, ...]:
    """The numbers that follow the residues for a result modulo a number."""
    weights, product = weights_of(count)
    moved = -128 * sum(weights) % modulus
    of_moduli = (weight % modulus for weight in weights)
    return modulus, 1 / modulus, product % modulus, moved, *of_moduli


def make_combine(count: int, is_modular: bool) -> Callable[..., Any]:
    """A device function: (residues, extra) -> the integer that has `count` residues, as int64.

    Modulo a number, an integer of up to 2**12 times that which is congruent to it.
    """
    from numba import int32, int64, uint32

    from dxgemm.handwritten.parts.elementary import wide_product
    from dxgemm.handwritten.parts.intrinsics import low_word

    wholes, product = weights_of(count)
    shares = tuple(round(2**SHARE_BITS * whole / product) for whole in wholes)
    lower, upper = (tuple(whole >> bits & MASK for whole in wholes) for bits in (0, 32))
    # Residues are made positive, for products of 64 bits of numbers without a sign.
    moved, product_word = _word(-128 * sum(wholes)), _word(product)

    @device
    def combine(residues, extra):
        total, high, share = int64(0), low_word(0), int32(1 << (SHARE_BITS - 1))
        for i in static_range(count):
            share = int32(share + residues[i] * shares[i])
            positive = uint32(residues[i] + 128)
            if is_modular:
                total += int64(wide_product(positive, uint32(extra[5 + i])))
            else:
                total += int64(wide_product(positive, uint32(lower[i])))
                high = low_word(high + int64(positive) * int64(upper[i]))
        quotient = int64(share >> SHARE_BITS)
        if is_modular:
            return total + extra[4] - quotient * extra[3]
        return total + (int64(high) << 32) + int64(moved) - quotient * int64(product_word)

    return combine
