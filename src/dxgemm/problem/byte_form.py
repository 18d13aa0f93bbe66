"""Products of integers modulo 2**32 as products of their bytes, which int8 tensor cores multiply.

With digits of base 256, a @ b is the sum of a_i @ b_j times 256 ** (i + j), where digits of a
weight of 2**32 and more do not count. The products of one weight are one product of matrices: in
memory, a's digits are side by side from the lowest on, b's from the highest on, so that those to be
multiplied by each other are neighbours along k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from dxgemm.handwritten.parts.kernel import MOST_INDEX
from dxgemm.problem.dtypes import ITEM_SIZES, PRODUCT_BITS, factor_dtypes, product_dtype
from dxgemm.problem.layout import MAX_ALIGNMENT, Strides, copied_step
from dxgemm.problem.problem import Problem


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


@dataclass(frozen=True)
class ByteForm:
    """Integers of 16 or 32 bits with a result of 32 bits, by their bytes.

    Attributes:
        problem: the problem.
        digits: digits of an element.
        is_balanced: True for digits of -128 to 127, False for the bytes themselves.
    """

    problem: Problem
    digits: int
    is_balanced: bool

    @cached_property
    def step(self) -> int:
        """Bytes of a digit of a row, with a margin of 0."""
        return copied_step(self.problem.k, "int8")

    @property
    def terms(self) -> tuple[Term, ...]:
        """Products, the highest weight first."""
        if not self.is_balanced:
            a, b = (_byte_dtypes(factor) for factor in factor_dtypes(self.problem.dtype))
            if a[0] == a[1] == b[0] == b[1]:
                return _stacked(self.digits)
            pairs = sorted(((i, j) for i in range(2) for j in range(2)), key=sum, reverse=True)
            dtypes = [product_dtype(a[i], b[j]) or "" for i, j in pairs]
            return tuple(Term(i, j, 1, 8 * (i + j), d) for (i, j), d in zip(pairs, dtypes))
        return _stacked(self.digits, "int8")

    @property
    def products(self) -> int:
        """Products of bytes for each product of elements."""
        return sum(term.width for term in self.terms)

    def product(self, term: Term) -> Problem:
        """Problem of a term."""
        own, pitch = self.problem, self.digits * self.step
        return replace(
            own,
            dtype=term.dtype,
            k=term.width * self.step,
            a=Strides(own.m * pitch if own.a.batch else 0, pitch, 1),
            b=Strides(own.n * pitch if own.b.batch else 0, 1, pitch),
            out_dtype="int32",
            a_alignment=MAX_ALIGNMENT,
            b_alignment=MAX_ALIGNMENT,
            padded="ab",
            triangle="",
        )

    def offsets(self, term: Term) -> tuple[int, int]:
        """Bytes from the digits of a and of b to those of a term."""
        return term.a * self.step, (self.digits - 1 - term.b) * self.step

    def __str__(self) -> str:
        return f"{self.products} products of bytes"


def _byte_dtypes(factor: str) -> tuple[str, str]:
    """Dtypes of the low and the high byte of an integer of 16 bits."""
    return "uint8", "uint8" if factor.startswith("u") else "int8"


def _stacked(digits: int, dtype: str = "uint8") -> tuple[Term, ...]:
    """Terms of digits of one dtype, a term for each weight."""
    terms = []
    for weight in reversed(range(min(4, 2 * digits - 1))):
        first = max(0, weight - digits + 1)
        count = min(weight, digits - 1) - first + 1
        terms.append(Term(first, weight - first, count, 8 * weight, dtype))
    return tuple(terms)


def byte_form(problem: Problem) -> ByteForm | None:
    """Form of a problem with a result of 32 bits; None of one that has no such form."""
    bits = PRODUCT_BITS.get(problem.dtype, 0)
    is_plain = problem.epilogue is None and not problem.is_empty and problem.k > 0
    is_plain = is_plain and not problem.modulus
    if bits < 16 or not is_plain or ITEM_SIZES[problem.out_dtype] > 4:
        return None
    digits = bits // 8
    if digits * problem.k > MOST_INDEX:
        return None  # kernels index no such k
    return ByteForm(problem, digits, is_balanced=bits > 16)
