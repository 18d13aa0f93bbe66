"""int8 through the public calls: exact int32 sums modulo 2**32, integers for alpha and beta."""

from __future__ import annotations

from fractions import Fraction
from itertools import product as combinations

import numpy as np
import pytest
from oracle.check import assert_right
from oracle.inputs import operands

import dxgemm
from dxgemm import errors
from dxgemm.choice import cublas_limits
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.define import contiguous_problem

SIZE = (5, 3, 8) if simulator_enabled() else (129, 65, 48)
LEAST, LARGEST = -(2**31), 2**31 - 1


@pytest.fixture(params=["int8"])
def kind(request):
    return request.param


@pytest.fixture
def values():
    m, n, k = SIZE
    return operands("random", (m, k), (k, n), (m, n), "int8")


def test_a_plan_sees_new_contents(home, values):
    a, b, c = (home.send(value) for value in values)
    plan = dxgemm.plan(a, b, c, 2, 0)
    for factor in (1, -1):
        a[...] = home.send(factor * values[0] // 2)
        assert_right(home.fetch(plan()), factor * values[0] // 2, *values[1:], 2, 0)


@pytest.mark.parametrize("extreme", [-128, 127])
def test_extremes_of_int8_are_multiplied_exactly(multiply, extreme):
    m, n, k = SIZE
    a, b = np.full((m, k), -128, np.int8), np.full((k, n), extreme, np.int8)
    assert (multiply(a, b) == -128 * extreme * k).all()


@pytest.mark.gpu
def test_sums_wrap_around_instead_of_saturating(multiply):
    a, b = np.full((3, 2**17), -128, np.int8), np.full((2**17, 5), -128, np.int8)
    assert (multiply(a, b) == LEAST).all()
    b[-16:] = 127
    assert (multiply(a, b) == LARGEST + 1 - 16 * 128 * 255).all()


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1024, 4096])
def test_sums_beyond_the_integers_of_float32_are_exact(multiply, k):
    a, b, c = operands("canary", (33, k), (k, 17), (33, 17), "int8")
    assert_right(multiply(a, b), a, b, c)


@pytest.mark.parametrize("alpha, beta", [*combinations((1, -1, LEAST, LARGEST), repeat=2)])
def test_scaling_wraps_around(multiply, values, alpha, beta):
    assert_right(multiply(*values, alpha, beta), *values, alpha, beta)


def test_alpha_zero_beta_one_leaves_every_bit_of_c(multiply, values):
    assert multiply(*values, 0, 1).tobytes() == values[2].tobytes()


def test_no_k_gives_beta_times_c(multiply):
    c = np.int32([[LEAST, LARGEST, 3]])
    a, b = np.empty((1, 0), np.int8), np.empty((0, 3), np.int8)
    np.testing.assert_array_equal(multiply(a, b, c, 5, 2), [[0, -2, 6]])


@pytest.mark.parametrize(
    "value", [2, 2.0, np.int8(2), np.int64(2), np.float32(2), Fraction(4, 2)], ids=repr
)
def test_integers_of_any_kind_are_accepted(home, values, value):
    sent = [home.send(array) for array in values]
    assert_right(home.fetch(dxgemm.gemm(*sent, value, value)), *values, 2, 2)


NO_INTEGERS = {
    "a fraction": 0.5,
    "NaN": np.nan,
    "infinity": np.inf,
    "too large": 2**31,
    "too small": -(2**31) - 1,
    "nearly one": 1 + 2**-52,
    "not representable": 2**53 + 1,
}


@pytest.mark.parametrize("call", [dxgemm.gemm, dxgemm.plan, dxgemm.explain])
@pytest.mark.parametrize("value", NO_INTEGERS.values(), ids=NO_INTEGERS)
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_what_is_no_int32_is_refused_and_c_unchanged(values, name, value, call):
    c = values[2].copy()
    with pytest.raises(errors.ScalarError, match=f"{name} is .*pass an integer from -2147483648"):
        call(values[0], values[1], c, **{"alpha": 1, "beta": 1, name: value})
    assert c.tobytes() == values[2].tobytes()


def test_fractions_are_refused_where_nothing_is_multiplied(values):
    for a, b in ((values[0][:, :0], values[1][:0]), (values[0][:0], values[1])):
        with pytest.raises(errors.ScalarError, match=r"alpha is 0\.5"):
            dxgemm.gemm(a, b, alpha=0.5)


@pytest.mark.gpu
def test_cublas_says_what_it_cannot_do_with_int8(cupy):
    a, b = cupy.ones((8, 6), np.int8), cupy.ones((6, 8), np.int8)
    with pytest.raises(errors.UnsupportedProblemError, match="a has a leading dimension of 6"):
        dxgemm.gemm(a, b, implementation="cublas")
    a = cupy.ones((8, 8), np.int8)
    with pytest.raises(errors.UnsupportedProblemError, match=r"b has .* alignment of 2"):
        dxgemm.gemm(a, cupy.ones(66, np.int8)[2:].reshape(8, 8), implementation="cublas")
    with pytest.raises(errors.UnsupportedProblemError, match="0 or 1, not 2"):
        dxgemm.gemm(a, a, alpha=2, implementation="cublas")


def test_cublas_is_not_given_more_int8_than_it_counts():
    problem = contiguous_problem("int8", 64, 2**25, 64)
    assert "2147483648" in cublas_limits._int8_reason(problem)
    assert cublas_limits._int8_reason(contiguous_problem("int8", 64, 2**25 - 16, 64)) is None


def test_explain_says_what_becomes_what(home, values):
    explanation = dxgemm.explain(home.send(values[0]), home.send(values[1]))
    assert (explanation.work.dtype, explanation.work.out_dtype) == ("int8", "int32")
    assert "int8 to int32 on" in str(explanation)


def test_the_roofline_is_that_of_the_tensor_cores():
    explained = (dxgemm.explain_shape(8192, 8192, 8192, d, gpu="H200") for d in ("int8", "float16"))
    integers, half = (explanation.prediction.roofline for explanation in explained)
    assert integers.bound == "compute"
    assert integers.time_us == pytest.approx(half.time_us / 2)
