"""Products of integers as products of bytes, which int8 tensor cores multiply.

Modulo 2**32 they are those of digits: `digit_terms` says which there are. Each is a kernel that
adds to the result; or all are one kernel, which goes through them along k. Modulo 2**64, or a
number, they are those of residues by several moduli: a product of whole numbers is known from its
residues if it is below half the product of the moduli. Modulo a number up to 256, the residues
modulo this are bytes, which one product takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

from dxgemm.handwritten.parts.digit_terms import Term, digits_of, terms_of
from dxgemm.handwritten.parts.kernel import MOST_INDEX
from dxgemm.handwritten.parts.moduli import LONGEST_K, MODULI
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES
from dxgemm.problem.dtypes import INTEGER_BITS, ITEM_SIZES, PRODUCT_BITS, factor_dtypes
from dxgemm.problem.layout import MAX_ALIGNMENT, Strides, copied_step
from dxgemm.problem.problem import Problem

MOST_REMAINDER_MODULUS, MOST_SUM, SUM_BYTES = 256, 2**31 - 1, 4
MOST_SHARE = 0.49  # of the product of the moduli, that a result may have: see `add_residues`


@dataclass(frozen=True)
class IntegerForm:
    """Form of a product of integers.

    Attributes:
        problem: the problem.
        slices: parts of k that are multiplied in turn.
    """

    problem: Problem
    slices: int = 1

    how: ClassVar[str] = "of bytes"  # the products are

    @property
    def slice_k(self) -> int:
        """k of a part."""
        return -(-self.problem.k // self.slices)

    @property
    def products(self) -> int:
        """Products of bytes for each product of elements."""
        return 1

    @property
    def product(self) -> Problem:
        """Problem whose kernel computes the products, or takes as long."""
        raise NotImplementedError

    @property
    def passes(self) -> tuple[Problem, ...]:
        """Problems of products that are computed one after the other."""
        return (self.product,) * self.slices

    @property
    def overhead(self) -> tuple[int, int]:
        """Number of other kernels, and bytes that they move, about."""
        return 0, 0

    def of_bytes(self, k: int, pitch: int, **changed: Any) -> Problem:
        """Problem of bytes; rows of a and columns of b are `pitch` bytes apart."""
        own = self.problem
        given: dict[str, Any] = {"dtype": "int8", "out_dtype": "int32", "triangle": ""} | changed
        return replace(
            own,
            k=k,
            a=Strides(own.m * pitch if own.a.batch else 0, pitch, 1),
            b=Strides(own.n * pitch if own.b.batch else 0, 1, pitch),
            a_alignment=MAX_ALIGNMENT,
            b_alignment=MAX_ALIGNMENT,
            modulus=0,
            padded="ab",
            adds_transpose=False,
            copies_any_size=False,
            **given,
        )

    def __str__(self) -> str:
        return f"{self.products} product{'s' * (self.products > 1)} {self.how}"


class DigitForm(IntegerForm):
    """Integers of 16 or 32 bits with a result of 32 bits, by products of each weight's digits."""

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
        return sum(term.width for term in self.terms)

    @property
    def overhead(self) -> tuple[int, int]:
        return 2, 2 * sum(self.problem.operand_bytes) * self.digits

    @property
    def passes(self) -> tuple[Problem, ...]:
        pitch = self.digits * self.step
        return tuple(
            self.of_bytes(term.width * self.step, pitch, dtype=term.dtype) for term in self.terms
        )

    @property
    def product(self) -> Problem:
        """The longest product, of bytes without a sign if there is one: its kernel computes all."""
        return max(self.passes, key=lambda part: (part.dtype != "int8", part.k))

    def offsets(self, term: Term) -> tuple[int, int]:
        """Bytes from the digits of a and of b to those of a term."""
        return term.a * self.step, (self.digits - 1 - term.b) * self.step


class JoinedForm(DigitForm):
    """Integers by one kernel for all products of digits: see `digit_wgmma`."""

    how = "of bytes, in one kernel"

    @cached_property
    def step(self) -> int:
        """Bytes of a digit of a row, which are whole stages."""
        return -(-self.problem.k // ROW_BYTES) * ROW_BYTES

    @property
    def passes(self) -> tuple[Problem, ...]:
        """A product for which `wgmma` takes as long."""
        own, k = self.problem, self.products * self.step
        return (self.of_bytes(k, k, triangle="" if own.adds_transpose else own.triangle),)


@dataclass(frozen=True)
class ResidueForm(IntegerForm):
    """Integers with a result of 64 bits or modulo a number, by their residues.

    Attributes:
        count: number of moduli.
    """

    count: int = 0

    how = "of residues"

    @property
    def products(self) -> int:
        return self.count

    @property
    def product(self) -> Problem:
        """Problem that the kernels of emulated float64 compute by residues."""
        return replace(
            self.problem,
            dtype="float64",
            out_dtype="float64",
            k=self.slice_k,
            precision=f"emulated{self.count}",
            modulus=0,
            reads_c=False,
            triangle="",
            adds_transpose=False,
        )


class RemainderForm(IntegerForm):
    """Integers modulo a number up to 256, by one product of their residues modulo it.

    The sums of a part of k are exact in int32.
    """

    @property
    def step(self) -> int:
        """Bytes of a row of residues, with a margin of 0."""
        return copied_step(self.slice_k, "int8")

    @property
    def product(self) -> Problem:
        """Problem of the product of a part, whose sums are left in a workspace."""
        own, step, row = self.problem, self.step, row_bytes(self.problem.n)
        out = Strides(own.m * row, row, 1)
        return self.of_bytes(step, step, c=out, out=out, reads_c=False, in_place=True)

    @property
    def overhead(self) -> tuple[int, int]:
        own = self.problem
        of_part = own.result_bytes + SUM_BYTES * own.batch * own.m * own.n
        return 3 * self.slices, 2 * sum(own.operand_bytes) + self.slices * of_part


def forms_of(problem: Problem) -> list[IntegerForm]:
    """Forms that a problem has: none with an epilogue."""
    modulus, k, bits = problem.modulus, problem.k, PRODUCT_BITS.get(problem.dtype, 0)
    if problem.epilogue is not None or problem.is_empty or k == 0:
        return []
    if modulus or ITEM_SIZES[problem.out_dtype] == 8:
        forms: list[IntegerForm] = []
        if 0 < modulus <= MOST_REMAINDER_MODULUS:
            longest = min(MOST_SUM // (modulus // 2) ** 2, MOST_INDEX)
            forms.append(RemainderForm(problem, -(-k // longest)))
        return [*forms, residue_form(problem)] if modulus or bits >= 16 else []
    # Kernels index no longer k.
    joined, apart = JoinedForm(problem), DigitForm(problem)
    if bits < 16 or apart.digits * k > MOST_INDEX:
        return []
    return [joined, apart] if joined.passes[0].k <= MOST_INDEX else [apart]


def residue_form(problem: Problem) -> ResidueForm:
    """Form of a problem by the fewest moduli that determine its results."""
    slices = -(-problem.k // LONGEST_K)
    largest = -(-problem.k // slices)
    for factor in factor_dtypes(problem.dtype):
        bits = INTEGER_BITS[factor]
        # Modulo 2**64, an unsigned integer of 64 bits is a signed one.
        most = 2**bits if factor.startswith("u") and bits < 64 else 2 ** (bits - 1)
        largest *= min(most, problem.modulus // 2 + 1) if problem.modulus else most
    counts = range(2, len(MODULI) + 1)
    count = next(c for c in counts if MOST_SHARE * prod(MODULI[:c]) > largest)
    return ResidueForm(problem, slices, count)
