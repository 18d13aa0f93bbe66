"""Products of integers modulo 2**64, or a number, as products of residues by several moduli.

The product of whole numbers is found from its residues if it is below half the product of the
moduli. Modulo a number up to 256, the residues modulo this are bytes, which one product takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from dxgemm.handwritten.parts.kernel import MOST_INDEX
from dxgemm.handwritten.parts.moduli import LONGEST_K, MODULI
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.problem.dtypes import INTEGER_BITS, ITEM_SIZES, PRODUCT_BITS, factor_dtypes
from dxgemm.problem.layout import MAX_ALIGNMENT, Strides, copied_step
from dxgemm.problem.problem import Problem

MOST_REMAINDER_MODULUS, MOST_SUM = 256, 2**31 - 1
MOST_SHARE = 0.49  # of the product of the moduli, that a result may have: see `add_residues`


@dataclass(frozen=True)
class ResidueForm:
    """Integers with a result of 64 bits or modulo a number, by their residues.

    Attributes:
        problem: the problem.
        count: number of moduli.
        slices: parts of k that are multiplied in turn.
    """

    problem: Problem
    count: int
    slices: int

    @property
    def slice_k(self) -> int:
        """k of a part."""
        return -(-self.problem.k // self.slices)

    @property
    def products(self) -> int:
        """Products of int8 for each product of elements."""
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
        )

    def __str__(self) -> str:
        return f"{self.count} products of residues"


@dataclass(frozen=True)
class RemainderForm:
    """Integers modulo a number up to 256, by one product of their residues modulo it.

    Attributes:
        problem: the problem.
        slices: parts of k that are multiplied in turn: their sums are exact in int32.
    """

    problem: Problem
    slices: int

    products = 1  # of int8

    @property
    def slice_k(self) -> int:
        """k of a part."""
        return -(-self.problem.k // self.slices)

    @property
    def step(self) -> int:
        """Bytes of a row of residues, with a margin of 0."""
        return copied_step(self.slice_k, "int8")

    @property
    def product(self) -> Problem:
        """Problem of the product of a part, whose sums are left in a workspace."""
        own, step, row = self.problem, self.step, row_bytes(self.problem.n)
        out = Strides(own.m * row, row, 1)
        return replace(
            own,
            dtype="int8",
            out_dtype="int32",
            modulus=0,
            k=step,
            a=Strides(own.m * step if own.a.batch else 0, step, 1),
            b=Strides(own.n * step if own.b.batch else 0, 1, step),
            c=out,
            out=out,
            a_alignment=MAX_ALIGNMENT,
            b_alignment=MAX_ALIGNMENT,
            padded="ab",
            reads_c=False,
            in_place=True,
            triangle="",
            copies_any_size=False,
        )

    def __str__(self) -> str:
        return "1 product of bytes"


def remainder_form(problem: Problem) -> RemainderForm | None:
    """Form of a problem with a modulus up to 256; None of one that has no such form."""
    is_plain = problem.epilogue is None and not problem.is_empty and problem.k > 0
    if not (is_plain and 0 < problem.modulus <= MOST_REMAINDER_MODULUS):
        return None
    longest = min(MOST_SUM // (problem.modulus // 2) ** 2, MOST_INDEX)
    return RemainderForm(problem, -(-problem.k // longest))


def residue_form(problem: Problem) -> ResidueForm | None:
    """Form of a problem of 16 to 64 bits, or with a modulus; None of one that has no such form."""
    is_plain = problem.epilogue is None and not problem.is_empty and problem.k > 0
    has_form = ITEM_SIZES[problem.out_dtype] == 8 and PRODUCT_BITS.get(problem.dtype, 0) >= 16
    if not (is_plain and (has_form or problem.modulus)):
        return None
    slices = -(-problem.k // LONGEST_K)
    largest = -(-problem.k // slices)
    for factor in factor_dtypes(problem.dtype):
        bits = INTEGER_BITS[factor]
        # Modulo 2**64, an unsigned integer of 64 bits is a signed one.
        most = 2**bits if factor.startswith("u") and bits < 64 else 2 ** (bits - 1)
        largest *= min(most, problem.modulus // 2 + 1) if problem.modulus else most
    counts = range(2, len(MODULI) + 1)
    count = next(c for c in counts if MOST_SHARE * prod(MODULI[:c]) > largest)
    return ResidueForm(problem, count, slices)
