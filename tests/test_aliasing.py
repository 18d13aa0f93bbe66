"""G9: results that share memory with operands: right where an order of writes is, else an error."""

import numpy as np
import pytest
from contract import insists_on_alignment
from oracle.buffers import Slot
from oracle.cases import DTYPES
from oracle.check import assert_right

import dxgemm
from dxgemm import errors

pytestmark = pytest.mark.parametrize("kind", DTYPES)


def square(start, row_stride=4, col_stride=1):
    """A 4 x 4 operand in a flat buffer."""
    return Slot("", start, (4, 4), (row_stride, col_stride))


FIRST, SECOND, THIRD, FOURTH = square(0), square(16), square(32), square(48)

# a, b, c and out; a name without out is updated in place.
REFUSED = {
    "c is a": (FIRST, SECOND, FIRST, None),
    "c is b": (FIRST, SECOND, SECOND, None),
    "out is a": (FIRST, SECOND, THIRD, FIRST),
    "out is b": (FIRST, SECOND, THIRD, SECOND),
    "c is a transposed": (square(0, 1, 4), SECOND, FIRST, None),
    "out overlaps a by one element": (FIRST, FOURTH, THIRD, square(15)),
    "out overlaps b by a row": (FIRST, SECOND, FOURTH, square(28)),
    "out overlaps c by a row": (FIRST, SECOND, THIRD, square(44)),
    "out is c transposed": (FIRST, SECOND, THIRD, square(32, 1, 4)),
    "c overlaps a from below": (square(67, -4, 1), SECOND, square(64), None),
    "c repeats one row": (FIRST, SECOND, square(32, 0, 1), None),
    "c repeats one column": (FIRST, SECOND, square(32, 4, 0), None),
    "c runs along a diagonal": (FIRST, SECOND, square(32, 1, 1), None),
    "c meets itself in strides 6 and 4": (FIRST, SECOND, square(32, 6, 4), None),
    "out repeats one row": (FIRST, SECOND, THIRD, square(48, 0, 1)),
}

ALLOWED = {
    "out is c": (FIRST, SECOND, THIRD, THIRD),
    "out is separate": (FIRST, SECOND, THIRD, FOURTH),
    "a is b": (FIRST, FIRST, THIRD, None),
    "a is b transposed": (FIRST, square(0, 1, 4), THIRD, None),
    "a and b overlap": (FIRST, square(8), THIRD, None),
    "a and c are neighbours": (FIRST, SECOND, THIRD, square(48)),
    "c is a of another call": (FIRST, FIRST, FIRST, FOURTH),
    "c repeats one row": (FIRST, SECOND, square(32, 0, 1), FOURTH),
    "c repeats one element": (FIRST, SECOND, square(32, 0, 0), FOURTH),
    "even columns of a, odd columns of c": (square(0, 8, 2), THIRD, square(1, 8, 2), None),
    "even rows of a, odd rows of c": (square(0, 8), THIRD, square(4, 8), None),
    "a and out interleave as blocks": (square(0, 16), SECOND, THIRD, square(68, 16)),
    "c in strides 3 and 4": (FIRST, SECOND, square(32, 3, 4), None),
    "c and out interleave as blocks": (FIRST, SECOND, square(64, 16), square(72, 16)),
}


def may_decline(implementation):
    """True if an implementation need not take every layout."""
    return not implementation.is_own or insists_on_alignment(implementation)


def call(home, implementation, sent, slots):
    a, b, c = (home.view(sent, slot) for slot in slots[:3])
    same = slots[3] is slots[2]
    out = c if same else None if slots[3] is None else home.view(sent, slots[3])
    result = dxgemm.gemm(a, b, c, 0.7, 1.3, out=out, implementation=implementation.name)
    assert result is (c if out is None else out)


@pytest.fixture
def before(kind):
    return np.random.default_rng(0).standard_normal(160).astype(kind)


@pytest.mark.parametrize("slots", REFUSED.values(), ids=REFUSED)
def test_an_overlapping_result_is_refused_before_anything_is_written(
    home, implementation, before, slots
):
    sent = home.send(before)
    refusal = errors.DxgemmError if may_decline(implementation) else errors.OverlapError
    with pytest.raises(refusal, match="gemm: "):
        call(home, implementation, sent, slots)
    assert home.fetch(sent).tobytes() == before.tobytes()


@pytest.mark.parametrize("slots", ALLOWED.values(), ids=ALLOWED)
def test_operands_that_share_memory_harmlessly_are_accepted(home, implementation, before, slots):
    sent = home.send(before)
    try:
        call(home, implementation, sent, slots)
    except errors.UnsupportedProblemError as refusal:
        assert may_decline(implementation), refusal
        pytest.skip(str(refusal))
    after = home.fetch(sent)
    a, b, c = (slot.view(before) for slot in slots[:3])
    written = slots[3] or slots[2]
    assert_right(written.view(after), a, b, c, 0.7, 1.3)
    written.view(after)[...] = written.view(before)
    assert after.tobytes() == before.tobytes()


def test_a_read_only_c_is_refused_in_place_and_read_with_out(kind):
    a, b, c, out = (np.ones((4, 4), kind) for _ in range(4))
    c.flags.writeable = False
    with pytest.raises(errors.ReadOnlyError, match="read-only"):
        dxgemm.gemm(a, b, c, 1.0, 1.0)
    assert dxgemm.gemm(a, b, c, 1.0, 1.0, out=out) is out
    assert (out == 5).all() and (c == 1).all()


def test_a_read_only_out_is_refused(kind):
    a, b, out = (np.ones((4, 4), kind) for _ in range(3))
    out.flags.writeable = False
    with pytest.raises(errors.ReadOnlyError, match="out"):
        dxgemm.gemm(a, b, out=out)
    assert (out == 1).all()


def test_c_broadcast_over_the_batch_is_read_with_out_and_refused_in_place(kind):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((3, 4, 4)).astype(kind) for _ in range(2))
    c = rng.standard_normal((4, 4)).astype(kind)
    for shared in (c, c[None], np.broadcast_to(c, (3, 4, 4))):
        out = np.empty((3, 4, 4), kind)
        dxgemm.gemm(a, b, shared, 1.0, 1.0, out=out)
        assert_right(out, a, b, np.broadcast_to(c, out.shape), 1.0, 1.0)
    with pytest.raises(errors.ShapeError, match=r"\(4, 4\)"):
        dxgemm.gemm(a, b, c, 1.0, 1.0)
