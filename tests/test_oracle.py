"""The oracle tests itself first: honest arithmetic passes, every injected fault is flagged."""

import dataclasses
from itertools import product as product_of

import numpy as np
import pytest
from oracle.buffers import Arena
from oracle.cases import Case
from oracle.check import Refusal, check
from oracle.compare import compare
from oracle.faults import (
    FAULTS,
    FLOAT_FAULTS,
    INTEGER_FAULTS,
    Call,
    cut_to_bits,
    narrow_sums,
    round_to_bits,
)
from oracle.freivalds import freivalds_ratio, lines_ratio
from oracle.inputs import operands
from oracle.kinds import FLOAT_KINDS, KINDS, limits, numpy_dtype
from oracle.layouts import LAYOUTS
from oracle.libraries import LIBRARIES
from oracle.padded import Padded
from oracle.reference import combine, product, sliced_product

SHAPES = ((16, 16, 16), (33, 17, 29), (5, 64, 200))


def judge(call: Call, actual: np.ndarray, limit: float = 1.0):
    factors = product(call.a, call.b, call.precision)
    expected = combine(factors, call.c, call.alpha, call.beta, call.a.dtype.name)
    return compare(actual, expected, limit)


def make_call(data: str, m: int, n: int, k: int, kind: str, **factors: float) -> Call:
    values = operands(data, (m, k), (k, n), (m, n), kind)
    alpha, beta = KINDS[kind].factors
    call = Call(*values, alpha, beta, KINDS[kind].precision)
    return dataclasses.replace(call, **factors)


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_is_flagged(kind):
    more = INTEGER_FAULTS if KINDS[kind].is_integer else FLOAT_FAULTS
    for fault, shape in product_of(FAULTS + more, SHAPES):
        call = make_call("random", *shape, kind)
        comparison = judge(call, fault(call))
        assert comparison.failures and comparison.ratio > 1, (fault.__name__, shape, comparison)


@pytest.mark.parametrize("kind", KINDS)
def test_exact_data_has_ratio_zero(kind):
    for data, shape in product_of(("integers", "canary"), SHAPES):
        call = make_call(data, *shape, kind, alpha=1.0, beta=2.0)
        assert judge(call, call.result(), limit=0).ratio == 0, (data, shape)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].dtype != "float64"])
@pytest.mark.parametrize("k", [1, 16, 256, 16384])
def test_honest_arithmetic_passes_with_room_to_spare(k, kind):
    call = make_call("random", 24, 24, k, kind)
    # A half-precision result may use all of its own rounding.
    room = 1.0 if KINDS[kind].out_dtype in ("float16", "bfloat16") else 0.5
    assert judge(call, call.result()).ratio < room


@pytest.mark.parametrize("k", [1, 16, 256, 4096])
def test_true_float32_and_operands_cut_off_pass_for_tf32(k):
    call = make_call("random", 64, 64, k, "tf32", beta=0.0)
    true_float32 = Call(call.a, call.b, call.c, call.alpha, call.beta)
    assert judge(call, true_float32.result()).ratio < 0.01
    cut = true_float32.result_with(a=cut_to_bits(call.a, 11), b=cut_to_bits(call.b, 11))
    assert judge(call, cut).ratio < 0.9


@pytest.mark.parametrize("k", [1, 16, 256, 1024, 4096])
def test_bfloat16_operands_are_flagged_as_tf32(k):
    call = make_call("random", 64, 64, k, "tf32")
    a, b = round_to_bits(call.a, 8), round_to_bits(call.b, 8)
    assert judge(call, call.result_with(a=a, b=b)).failures


@pytest.mark.parametrize("k", [16, 256, 1024, 4096])
def test_tf32_is_flagged(k):
    call = make_call("random", 64, 64, k, "float32")
    a, b = round_to_bits(call.a, 11), round_to_bits(call.b, 11)
    assert judge(call, call.result_with(a=a, b=b)).failures


@pytest.mark.parametrize(
    "kind, bits",
    [("float32", 11), ("float64", 24), ("tf32", 8), ("float16_to_float32", 8)],
)
@pytest.mark.parametrize("k", [16, 2048])
def test_the_canary_convicts_reduced_precision_nearly_everywhere(k, kind, bits):
    call = make_call("canary", 32, 32, k, kind, alpha=1.0, beta=0.0)
    rounded = call.result_with(a=round_to_bits(call.a, bits))
    assert judge(call, rounded, limit=0).failures > 0.9 * rounded.size


@pytest.mark.parametrize("kind", KINDS)
def test_the_canary_convicts_narrow_sums(kind):
    call = make_call("canary", 32, 32, 2048, kind, alpha=1.0, beta=0.0)
    assert judge(call, narrow_sums(call), limit=0).failures > 0.5 * call.c.size


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_the_rule_convicts_narrow_sums_of_half_precision(kind):
    for k in (64, 1024):
        call = make_call("random", 32, 32, k, kind)
        assert judge(call, narrow_sums(call)).failures


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_result_one_unit_off_is_flagged(kind):
    call = make_call("random", 16, 16, 16, kind, alpha=1.0, beta=0.0)
    right = call.result()
    bits = right.view(np.uint16)
    wrong = np.where(right != 0, bits + 1, bits).view(right.dtype)
    assert judge(call, wrong).failures > 0.7 * right.size
    cut = cut_to_bits(call.result_with(c=call.c.astype("float32")), 10 if kind == "float16" else 7)
    assert judge(call, cut.astype(right.dtype)).failures


@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_canaries_stay_finite_and_exact_in_the_type_of_sums(kind):
    a, b, _ = operands("canary", (64, 2048), (2048, 64), (1, 1), kind)
    value = a.astype(float) @ b.astype(float)
    assert np.abs(value).max() < limits(KINDS[kind].out_dtype).max
    assert (value.astype(KINDS[kind].scalar_dtype) == value).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_limits_are_those_of_the_dtype(name):
    dtype = numpy_dtype(name).type
    found = limits(name)
    assert float(dtype(1) + dtype(found.eps)) == 1 + found.eps
    assert float(dtype(1) + dtype(found.eps / 4)) == 1
    assert found.tiny == 2.0**found.minexp == float(dtype(found.tiny))
    assert np.isfinite(dtype(found.max)) and float(dtype(found.smallest_subnormal)) > 0


def test_flushed_subnormals_are_flagged():
    call = make_call("random", 8, 8, 8, "float32", beta=0.0)
    scale = np.float32(2.0**-66)
    tiny = Call(call.a * scale, call.b * scale, call.c, 1.0, 0.0)
    honest = tiny.result()
    flushed = np.where(np.abs(honest) < np.finfo("float32").tiny, np.float32(0), honest)
    assert not judge(tiny, honest).failures
    assert judge(tiny, flushed).failures


def test_a_wrong_class_is_flagged_and_a_right_one_is_not():
    call = make_call("random", 8, 8, 8, "float64")
    call.a[1, 2], call.a[3, 4], call.b[5, 6] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        right = call.result()
    assert not judge(call, right).failures
    assert judge(call, np.nan_to_num(right)).ratio == np.inf
    assert judge(call, np.where(np.isinf(right), -right, right)).ratio == np.inf


def test_integers_that_wrap_around_are_right_and_one_off_is_flagged():
    deepest = np.full((2, 2**17), -128, np.int8)
    call = Call(deepest, deepest.T, np.zeros((2, 2), np.int32), 1, 0)
    assert judge(call, np.full((2, 2), -(2**31), np.int32)).ratio == 0
    assert judge(call, np.full((2, 2), 2**31 - 1, np.int32)).ratio == np.inf


def test_a_wrong_shape_is_flagged():
    call = make_call("random", 4, 5, 6, "float32")
    assert judge(call, call.result()[:1]).failures


@pytest.mark.parametrize("shape", [(20, 30, 40), (3, 4, 5000)], ids=str)
def test_the_two_float64_references_agree_to_the_last_bit_of_a_longdouble(shape):
    m, n, k = shape
    a, b, _ = operands("random", (m, k), (k, n), (m, n), "float64")
    slow = np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))
    error = np.abs(slow - sliced_product(a, b))
    bound = np.finfo(np.longdouble).eps * k * (np.abs(a) @ np.abs(b))
    assert np.finfo(np.longdouble).nmant >= 63
    assert (error <= bound).all()


def spacing(kind: str) -> float:
    """Spacing of results of this kind near 1."""
    return 1 if KINDS[kind].is_integer else limits(KINDS[kind].out_dtype).eps


@pytest.mark.parametrize("kind", KINDS)
def test_freivalds_passes_a_right_product_and_flags_each_wrong_row(kind):
    call = make_call("random", 300, 200, 100, kind, alpha=1.0, beta=0.0)
    precision = call.precision
    right = call.result()
    assert freivalds_ratio(call.a, call.b, right, precision) < 0.5
    assert lines_ratio(call.a, call.b, right, precision) <= 1
    swapped = right.copy()
    swapped[[7, 8]] = right[[8, 7]]
    assert freivalds_ratio(call.a, call.b, swapped, precision) > 1
    edge = right.astype(float)
    edge[64, 150] += max(1e4 * spacing(kind), 0.2 * KINDS[kind].is_reduced)
    assert lines_ratio(call.a, call.b, edge.astype(right.dtype), precision) > 1


class Writer:
    """A correct gemm over NumPy arrays that may then write one element it should not."""

    def __init__(self, offset: int | None = None, operand: str = "c") -> None:
        self.offset = offset
        self.operand = operand

    def __call__(self, a, b, c, alpha, beta):
        if alpha == 0:
            a, b = np.zeros_like(a), np.zeros_like(b)
        c[...] = Call(a, b, np.zeros_like(c) if beta == 0 else c, alpha, beta).result()
        if self.offset is not None:
            target = {"a": a, "c": c}[self.operand]
            whole = np.lib.stride_tricks.as_strided(target, (self.offset + 1,), (c.itemsize,))
            whole[self.offset] = 7
        return c


GUARDED = [
    Case("float32", 3, 4, 5, ("row+1", "col+1", "row+1"), alpha, beta)
    for alpha in (0.0, 0.7)
    for beta in (0.0, 1.3)
]


def test_a_right_gemm_passes_the_check():
    assert check(GUARDED, Writer(), LIBRARIES["numpy"]) == []


@pytest.mark.parametrize(
    "writer, complaint",
    [
        (Writer(offset=4), "elements from the base of c"),
        (Writer(offset=30), "elements from the base of c"),
        (Writer(offset=0, operand="a"), "input a of float32-3x4x5-row"),
    ],
    ids=["padding", "beyond", "input"],
)
def test_a_stray_write_fails_the_check(writer, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check(GUARDED[3:], writer, LIBRARIES["numpy"])


def test_a_wrong_element_fails_the_check_by_name():
    def off_by_one(a, b, c, alpha, beta):
        Writer()(a, b, c, alpha, beta)[2, 1] += 1
        return c

    with pytest.raises(AssertionError, match=r"float32-3x4x5.*1 of 12.*worst at \[2, 1\]"):
        check(GUARDED[3:], off_by_one, LIBRARIES["numpy"])


def test_reading_what_must_not_be_read_fails_the_check():
    def careless(a, b, c, alpha, beta):
        c[...] = Call(a, b, c, alpha, beta).result()
        return c

    for case in GUARDED[:3]:
        with pytest.raises(AssertionError, match=r"got .*nan"):
            check([case], careless, LIBRARIES["numpy"])


def test_a_refusal_is_reported_and_must_leave_c_alone():
    def refuse(a, b, c, alpha, beta):
        raise NotImplementedError("too small")

    def write_and_refuse(a, b, c, alpha, beta):
        c[0, 0] = 0
        refuse(a, b, c, alpha, beta)

    numpy = LIBRARIES["numpy"]
    (refusal,) = check(GUARDED[:1], refuse, numpy, refusal=NotImplementedError)
    assert refusal == Refusal(GUARDED[0], "too small", was_aligned=False)
    aligned = Case("float16", 3, 4, 5, ("row_aligned", "col_aligned", "row+1"))
    (refusal,) = check([aligned], refuse, numpy, refusal=NotImplementedError)
    assert refusal.was_aligned
    with pytest.raises(AssertionError, match="c of float32"):
        check(GUARDED[:1], write_and_refuse, numpy, refusal=NotImplementedError)


def test_a_padded_array_notices_writes_to_itself_and_around():
    padded = Padded(LIBRARIES["numpy"], np.ones((3, 4), "float32"))
    padded.assert_unchanged()
    padded.array[1, 2] = 5
    assert padded.fetch()[1, 2] == 5
    with pytest.raises(AssertionError, match="operand was written"):
        padded.assert_unchanged()
    np.lib.stride_tricks.as_strided(padded.array, (13,), (4,))[12] = 0
    with pytest.raises(AssertionError, match=r"\+12 elements from the base of operand"):
        padded.fetch()


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (0, 4), (2, 3, 4), (0, 3, 4)], ids=str)
def test_every_layout_holds_its_values_between_guards(name, shape):
    layout = LAYOUTS[name]
    values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    arena = Arena("float32")
    first = arena.place("first", shape, layout, layout.hold(values))
    second = arena.place("second", shape, layout, None)
    buffer = arena.fill()
    np.testing.assert_array_equal(first.view(buffer), layout.hold(values))
    assert np.isnan(second.view(buffer)).all()
    assert np.isfinite(buffer).sum() == len(np.unique(layout.hold(values)))
