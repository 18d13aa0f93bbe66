"""Products of integers modulo 2**32 as products of their bytes, which int8 tensor cores multiply.

`digit_terms` says which products there are. Each is a kernel that adds to the result; or all are
one kernel, which goes through them along k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from dxgemm.handwritten.parts.digit_terms import Term, digits_of, terms_of
from dxgemm.handwritten.parts.kernel import MOST_INDEX
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES
from dxgemm.problem.dtypes import ITEM_SIZES, PRODUCT_BITS
from dxgemm.problem.layout import MAX_ALIGNMENT, Strides, copied_step
from dxgemm.problem.problem import Problem


@dataclass(frozen=True)
class DigitForm:
    """Integers of 16 or 32 bits with a result of 32 bits, by their digits.

    Attributes:
        problem: the problem.
    """

    problem: Problem

    @property
    def digits(self) -> int:
        """Digits of an element."""
        return digits_of(self.problem.dtype)

    @property
    def kind(self) -> str:
        """Kind of the digits, as the kernel `digits` names it."""
        return "bytes" if self.digits == 2 else "balanced"

    @cached_property
    def step(self) -> int:
        """Bytes of a digit of a row, with a margin of 0."""
        return copied_step(self.problem.k, "int8")

    @property
    def terms(self) -> tuple[Term, ...]:
        """Products, the highest weight first."""
        return terms_of(self.problem.dtype)

    @property
    def products(self) -> int:
        """Products of bytes for each product of elements."""
        return sum(term.width for term in self.terms)

    def product_of(self, dtype: str, count: int, apart: int, triangle: str = "") -> Problem:
        """Problem of so many products of digits along k; rows are `apart` digits apart."""
        own, pitch = self.problem, apart * self.step
        return replace(
            own,
            dtype=dtype,
            k=count * self.step,
            a=Strides(own.m * pitch if own.a.batch else 0, pitch, 1),
            b=Strides(own.n * pitch if own.b.batch else 0, 1, pitch),
            out_dtype="int32",
            a_alignment=MAX_ALIGNMENT,
            b_alignment=MAX_ALIGNMENT,
            padded="ab",
            triangle=triangle,
            adds_transpose=False,
            copies_any_size=False,
        )

    def __str__(self) -> str:
        return f"{self.products} products of bytes"


class ByteForm(DigitForm):
    """Integers by a product for each weight of the digits."""

    def product(self, term: Term) -> Problem:
        """Problem of a term."""
        return self.product_of(term.dtype, term.width, self.digits)

    def offsets(self, term: Term) -> tuple[int, int]:
        """Bytes from the digits of a and of b to those of a term."""
        return term.a * self.step, (self.digits - 1 - term.b) * self.step


class JoinedForm(DigitForm):
    """Integers by one kernel for all products of digits: see `digit_wgmma`."""

    @cached_property
    def step(self) -> int:
        """Bytes of a digit of a row, which are whole stages."""
        return -(-self.problem.k // ROW_BYTES) * ROW_BYTES

    @property
    def product(self) -> Problem:
        """Problem for which `wgmma` takes as long as the kernel of all products."""
        triangle = "" if self.problem.adds_transpose else self.problem.triangle
        return self.product_of("int8", self.products, self.products, triangle)

    def __str__(self) -> str:
        return f"{self.products} products of bytes, in one kernel"


def digit_forms(problem: Problem) -> list[ByteForm | JoinedForm]:
    """Forms of a problem with a result of 32 bits; none of one that has no such form."""
    bits = PRODUCT_BITS.get(problem.dtype, 0)
    is_plain = problem.epilogue is None and not problem.is_empty and problem.k > 0
    is_plain = is_plain and not problem.modulus
    if bits < 16 or not is_plain or ITEM_SIZES[problem.out_dtype] > 4:
        return []
    # Kernels index no longer k.
    joined, apart = JoinedForm(problem), ByteForm(problem)
    forms = [joined] if joined.products * joined.step <= MOST_INDEX else []
    return [*forms, apart] if apart.digits * problem.k <= MOST_INDEX else []
