"""Check of a gemm with a group of cases: every bit of the memory is compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.buffers import Arena, Slot
from oracle.cases import Case
from oracle.compare import compare
from oracle.inputs import Operands, operands
from oracle.layouts import LAYOUTS
from oracle.libraries import NumpyLibrary
from oracle.reference import Reference, combine, product

Gemm = Callable[..., Any]
REPORTED = 5


@dataclass(frozen=True)
class Refusal:
    """Refusal of a case by gemm."""

    case: Case  # the case
    reason: str  # message of the refusal
    # True if rows or columns of a and b were contiguous, and at multiples of 16 bytes, so that
    # tensor cores can read them
    was_aligned: bool


def check(
    cases: Sequence[Case],
    gemm: Gemm,
    library: NumpyLibrary,
    *,
    limit: float = 1.0,
    refusal: type[Exception] | tuple[()] = (),
) -> list[Refusal]:
    """Runs all cases, then asserts that each is right and that nothing else was written.

    Operands that must not be read are full of guards: c if beta is 0, a and b if alpha is 0.

    Args:
        cases: one group: equal in all but layouts, alpha and beta.
        gemm: called with a, b, c, alpha, beta and, if the case has one, precision; updates c in
            place and returns it.
        library: library of the arrays to pass.
        limit: the ratio of `compare` to accept: 1 for the rule, 0 for data whose sums are exact.
        refusal: an exception with which gemm may decline a case, leaving c as it was.

    Returns:
        The refusals.

    Raises:
        AssertionError: naming the first cases that failed, each with its worst element.
    """
    first = cases[0]
    values = operands(first.data, *first.shapes, first.kind)
    options = {"precision": first.precision} if first.precision else {}
    arena = Arena(first.dtype)
    c_arena = arena if first.out_dtype == first.dtype else Arena(first.out_dtype)
    placed = [_place((arena, arena, c_arena), case, values) for case in cases]
    before = {arena: arena.fill() for arena in (arena, c_arena)}
    sent = {arena: library.send(buffer) for arena, buffer in before.items()}
    refused, finished = [], []
    for case, slots in zip(cases, placed):
        a, b = (library.view(sent[arena], slot) for slot in slots[:2])
        c = library.view(sent[c_arena], slots[2])
        try:
            result = gemm(a, b, c, case.alpha, case.beta, **options)
        except refusal as error:
            item_size = before[arena].itemsize
            was_aligned = all(slot.is_aligned(item_size) for slot in slots[:2])
            refused.append(Refusal(case, str(error), was_aligned))
        else:
            assert result is c, f"{case}: c was not returned"
            finished.append((case, slots))
    after = {arena: library.fetch(buffer) for arena, buffer in sent.items()}

    complaints = []
    for each in before:
        written = [slots[2] for _, slots in finished] if each is c_arena else []
        damage = each.damage(before[each], after[each], written)
        if damage:
            complaints.append(damage)
    products: dict[Any, Reference] = {}
    for case, (_, _, c_slot) in finished:
        a_layout, b_layout, _ = (LAYOUTS[name] for name in case.layouts)
        repeats = a_layout.repeats, b_layout.repeats
        if repeats not in products:
            a, b = a_layout.hold(values[0]), b_layout.hold(values[1])
            products[repeats] = product(a, b, first.precision)
        expected = combine(products[repeats], values[2], case.alpha, case.beta, case.dtype)
        comparison = compare(c_slot.view(after[c_arena]), expected, limit)
        if comparison.failures:
            complaints.append(f"{case}: {comparison.message}")
    assert not complaints, "\n".join(complaints[:REPORTED])
    return refused


def assert_right(
    actual: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str | None = None,
) -> None:
    """Asserts that `actual` is alpha * a @ b + beta * c by the acceptance rule."""
    comparison = compare(actual, combine(product(a, b, precision), c, alpha, beta, a.dtype.name))
    assert not comparison.failures, comparison.message


def _place(arenas: tuple[Arena, Arena, Arena], case: Case, values: Operands) -> tuple[Slot, ...]:
    """Places a, b and c of one case; operands that must not be read get no values."""
    is_read = case.alpha != 0, case.alpha != 0, case.beta != 0
    slots = []
    for arena, name, shape, layout_name, value, read in zip(
        arenas, "abc", case.shapes, case.layouts, values, is_read, strict=True
    ):
        layout = LAYOUTS[layout_name]
        held = layout.hold(value) if read else None
        slots.append(arena.place(f"{name} of {case}", shape, layout, held))
    return tuple(slots)
