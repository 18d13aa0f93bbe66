"""Products of digits that make up a product of integers modulo 2**32.

Of digits of base 256, a_i and b_j have the weight 256 ** (i + j). In memory, the digits of a row of
a are side by side from the lowest on, those of a column of b from the highest on, so that those to
be multiplied by each other are neighbours along k. Integers of 32 bits have four digits of -128 to
127; those of 16 bits have their two bytes, the upper one with the integer's sign.
"""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """Product of digits that have one weight.

    Fields: digits of a and of b that are multiplied first; number of digits of each; bits by which
    the product is shifted; dtype of the digits.
    """

    a: int
    b: int
    width: int
    shift: int
    dtype: str


def digits_of(dtype: str) -> int:
    """Digits of an integer, by the dtype of a product."""
    return 2 if "16" in dtype else 4


def terms_of(dtype: str) -> tuple[Term, ...]:
    """Terms of a product of integers of 16 or 32 bits, the highest weight first."""
    digits = digits_of(dtype)
    a, _, b = dtype.partition(" ")
    if digits == 2 and not (a == "uint16" and b in ("", a)):
        a_bytes, b_bytes = (_byte_dtypes(factor) for factor in (a, b or a))
        pairs = sorted(((i, j) for i in range(2) for j in range(2)), key=sum, reverse=True)
        return tuple(
            Term(i, j, 1, 8 * (i + j), _product_dtype(a_bytes[i], b_bytes[j])) for i, j in pairs
        )
    terms = []
    for weight in reversed(range(min(4, 2 * digits - 1))):
        first = max(0, weight - digits + 1)
        count = min(weight, digits - 1) - first + 1
        byte = "uint8" if digits == 2 else "int8"
        terms.append(Term(first, weight - first, count, 8 * weight, byte))
    return tuple(terms)


def _byte_dtypes(factor: str) -> tuple[str, str]:
    """Dtypes of the low and the high byte of an integer of 16 bits."""
    return "uint8", "uint8" if factor.startswith("u") else "int8"


def _product_dtype(a: str, b: str) -> str:
    return a if a == b else f"{a} {b}"
