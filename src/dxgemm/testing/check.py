"""Runs a group of cases through one gemm and judges every bit that came back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dxgemm.testing.buffers import Arena, Slot
from dxgemm.testing.cases import Case
from dxgemm.testing.compare import compare
from dxgemm.testing.inputs import Operands, operands
from dxgemm.testing.layouts import LAYOUTS
from dxgemm.testing.libraries import NumpyLibrary
from dxgemm.testing.reference import Reference, combine, product

Gemm = Callable[[Any, Any, Any, float, float], Any]
REPORTED = 5


def check(
    cases: Sequence[Case],
    gemm: Gemm,
    library: NumpyLibrary,
    *,
    limit: float = 1.0,
    refusal: type[Exception] | tuple[()] = (),
) -> list[str]:
    """Runs all cases, then asserts that each is right and that nothing else was written.

    What must not be read is poisoned: c is NaN where beta is 0, a and b are where alpha is 0.

    Args:
        cases: one group: equal in all but layouts, alpha and beta.
        gemm: called with a, b, c, alpha and beta; updates c in place and returns it.
        library: whose arrays to pass.
        limit: the ratio of `compare` to accept: 1 for the rule, 0 for bit-exact data.
        refusal: an exception by which gemm may decline a case, leaving c as it was.

    Returns:
        The messages of the refusals.

    Raises:
        AssertionError: naming the first cases that failed, each with its worst element.
    """
    first = cases[0]
    values = operands(first.data, *first.shapes, first.dtype)
    arena = Arena(first.dtype)
    placed = [_place(arena, case, values) for case in cases]
    before = arena.fill()
    sent = library.send(before)
    refused, finished = [], []
    for case, slots in zip(cases, placed):
        a, b, c = (library.view(sent, slot) for slot in slots)
        try:
            assert gemm(a, b, c, case.alpha, case.beta) is c, f"{case}: c was not returned"
        except refusal as error:
            refused.append(str(error))
        else:
            finished.append((case, slots))
    after = library.fetch(sent)

    complaints = []
    damage = arena.damage(before, after, [slots[2] for _, slots in finished])
    if damage:
        complaints.append(damage)
    products: dict[Any, Reference] = {}
    for case, (_, _, c_slot) in finished:
        a_layout, b_layout, _ = (LAYOUTS[name] for name in case.layouts)
        repeats = a_layout.repeats, b_layout.repeats
        if repeats not in products:
            products[repeats] = product(a_layout.hold(values[0]), b_layout.hold(values[1]))
        expected = combine(products[repeats], values[2], case.alpha, case.beta, case.dtype)
        verdict = compare(c_slot.view(after), expected, limit)
        if verdict.failures:
            complaints.append(f"{case}: {verdict.message}")
    assert not complaints, "\n".join(complaints[:REPORTED])
    return refused


def assert_right(
    actual: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> None:
    """Asserts that `actual` is alpha * a @ b + beta * c by the acceptance rule."""
    verdict = compare(actual, combine(product(a, b), c, alpha, beta, a.dtype.name))
    assert not verdict.failures, verdict.message


def _place(arena: Arena, case: Case, values: Operands) -> tuple[Slot, ...]:
    """Places a, b and c of one case, leaving out the values of what must not be read."""
    is_read = case.alpha != 0, case.alpha != 0, case.beta != 0
    slots = []
    for name, shape, layout_name, value, read in zip(
        "abc", case.shapes, case.layouts, values, is_read, strict=True
    ):
        layout = LAYOUTS[layout_name]
        held = layout.hold(value) if read else None
        slots.append(arena.place(f"{name} of {case}", shape, layout, held))
    return tuple(slots)
