"""G7: NaN, infinities, signed zeros and subnormals: NumPy's classes, and nothing read in vain."""

from __future__ import annotations

import numpy as np
import pytest

from dxgemm._gpu import simulator_enabled
from dxgemm.testing.cases import DTYPES
from dxgemm.testing.check import assert_right
from dxgemm.testing.inputs import operands

SIZE = (5, 6, 7) if simulator_enabled() else (70, 66, 35)
SPECIALS = (np.nan, np.inf, -np.inf)

pytestmark = [
    pytest.mark.parametrize("dtype", DTYPES),
    pytest.mark.filterwarnings("ignore:.*encountered in scalar:RuntimeWarning"),
]


def random_operands(dtype):
    m, n, k = SIZE
    return operands("random", (m, k), (k, n), (m, n), dtype)


@pytest.mark.parametrize("special", SPECIALS)
def test_beta_zero_never_reads_c(multiply, dtype, special):
    a, b, c = random_operands(dtype)
    assert_right(multiply(a, b, np.full_like(c, special), 0.7, 0.0), a, b, c, 0.7, 0.0)


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("beta", [0.0, 1.0, 1.3])
def test_alpha_zero_never_reads_a_and_b(multiply, dtype, special, beta):
    a, b, c = random_operands(dtype)
    result = multiply(np.full_like(a, special), np.full_like(b, special), c, 0.0, beta)
    assert_right(result, a, b, c, 0.0, beta)


def test_alpha_zero_beta_one_leaves_every_bit_of_c(multiply, dtype):
    a, b, c = random_operands(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    c[0, :6] = [-0.0, 0.0, np.nan, -np.inf, tiny, -tiny]
    c[1, 0] = -np.nan
    assert multiply(a, b, c, 0.0, 1.0).tobytes() == c.tobytes()


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("operand", "abc")
def test_a_special_at_each_corner_reaches_what_it_must_and_nothing_else(
    multiply, dtype, operand, special
):
    for row in (0, -1):
        for col in (0, -1):
            values = dict(zip("abc", random_operands(dtype)))
            values[operand][row, col] = special
            assert_right(multiply(*values.values(), 0.7, 1.3), *values.values(), 0.7, 1.3)


def test_opposite_infinities_and_infinity_times_zero_give_nan(multiply, dtype):
    a, b, c = random_operands(dtype)
    a[0, 0], a[0, 1], b[0, 0], b[1, 0] = np.inf, -np.inf, 1, 1
    a[1, 2], b[2, 3] = np.inf, 0
    result = multiply(a, b, c, 1.0, 1.0)
    assert np.isnan(result[0, 0]) and np.isnan(result[1, 3])
    assert_right(result, a, b, c, 1.0, 1.0)


def test_overflow_gives_infinities_of_the_right_sign(multiply, dtype):
    a, b, c = (np.ones_like(values) for values in random_operands(dtype))
    a[0], a[1] = np.finfo(dtype).max, -np.finfo(dtype).max
    assert_right(multiply(a, b, c, 1.0, 1.0), a, b, c, 1.0, 1.0)


def test_subnormals_are_kept(multiply, dtype):
    a, b, c = (np.abs(values) for values in random_operands(dtype))
    half_range = np.finfo(dtype).minexp // 2 - 2
    a, b = np.ldexp(a, half_range), np.ldexp(b, half_range)
    c = np.ldexp(c, np.finfo(dtype).minexp - 3)
    result = multiply(a, b, c, 1.0, 1.0)
    assert_right(result, a, b, c, 1.0, 1.0)
    assert result.all()
    assert (np.abs(result) < np.finfo(dtype).tiny).any(), "the data must give subnormals"


def test_scalars_may_be_special(multiply, dtype):
    a, b, c = random_operands(dtype)
    assert np.isnan(multiply(a, b, c, np.nan, 1.0)).all()
    assert np.isnan(multiply(a, b, c, 1.0, np.nan)).all()
    assert np.isinf(multiply(a, b, c, 1.0, np.inf)).all()
