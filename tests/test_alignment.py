"""Base addresses decide a route: what relies on 16 bytes is never run on less."""

import numpy as np
import pytest
from oracle.cases import DTYPES
from oracle.check import assert_right
from oracle.inputs import operands

import dxgemm
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.layout import ALIGNMENTS, MAX_ALIGNMENT

SIZE = (3, 5, 8) if simulator_enabled() else (129, 65, 32)
GUARD = 64


@pytest.fixture(params=DTYPES)
def values(request):
    m, n, k = SIZE
    return operands("random", (m, k), (k, n), (m, n), request.param)


def shifted(home, value, elements):
    """A copy of `value` whose base lies some elements behind a 16-byte boundary."""
    held = np.full(value.size + 2 * GUARD, np.nan, value.dtype)
    held[GUARD + elements : GUARD + elements + value.size] = value.ravel()
    sent = home.send(held)
    return sent[GUARD + elements : GUARD + elements + value.size].reshape(value.shape)


def expected_alignment(elements, dtype):
    offset = elements * np.dtype(dtype).itemsize
    return min(offset & -offset, MAX_ALIGNMENT) if offset else MAX_ALIGNMENT


def test_the_alignment_of_an_address_is_looked_up():
    for address in range(64):
        powers = [power for power in (1, 2, 4, 8, 16) if address % power == 0]
        assert ALIGNMENTS[address & 15] == max(powers)


@pytest.mark.parametrize("shift_b", range(4))
@pytest.mark.parametrize("shift_a", range(4))
def test_operands_of_any_alignment_give_the_right_result(home, values, shift_a, shift_b):
    a, b = shifted(home, values[0], shift_a), shifted(home, values[1], shift_b)
    c = home.send(values[2])
    plan = dxgemm.plan(a, b, c, 0.7, 1.3)
    problem = plan.route.problem
    assert problem.a_alignment == expected_alignment(shift_a, a.dtype)
    assert problem.b_alignment == expected_alignment(shift_b, b.dtype)
    assert_right(home.fetch(dxgemm.gemm(a, b, c, 0.7, 1.3)), *values, 0.7, 1.3)


def test_one_layout_at_two_alignments_takes_two_routes(home, values):
    b = home.send(values[1])
    aligned, misaligned = (
        [dxgemm.plan(shifted(home, values[0], elements), b) for _ in range(2)]
        for elements in (0, 1)
    )
    assert aligned[0].route is aligned[1].route
    assert misaligned[0].route is misaligned[1].route
    assert aligned[0].route is not misaligned[0].route
    for plan in (*aligned, *misaligned):
        assert_right(home.fetch(plan()), *values, 1.0, 0.0)


def test_explain_names_what_is_misaligned(home, values):
    b = home.send(values[1])
    explanation = dxgemm.explain(shifted(home, values[0], 1), b)
    item_size = values[0].itemsize
    assert explanation.work.alignments == {"a": item_size, "b": MAX_ALIGNMENT}
    assert f"a row_major at {item_size} bytes, b row_major, " in str(explanation)
    assert " bytes, b" not in str(dxgemm.explain(home.send(values[0]), b))


def test_alignments_are_exchanged_with_the_operands(home, values):
    m, n, _ = SIZE
    a, b = shifted(home, values[0], 1), home.send(values[1])
    out = home.send(np.empty((n, m), values[0].dtype)).T
    problem = dxgemm.plan(a, b, out=out).route.problem
    assert problem.is_transposed
    assert problem.a_alignment == MAX_ALIGNMENT
    assert problem.b_alignment == values[0].itemsize
