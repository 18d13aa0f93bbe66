"""G7: NaN, infinities, signed zeros and subnormals: NumPy's classes, and nothing read in vain."""

from functools import partial

import numpy as np
import pytest
from oracle import check
from oracle.inputs import operands
from oracle.kinds import FLOAT_KINDS, KINDS, limits

from dxgemm.gpu.status import simulator_enabled

SIZE = (5, 6, 7) if simulator_enabled() else (70, 66, 35)
SPECIALS = (np.nan, np.inf, -np.inf)

pytestmark = [
    pytest.mark.parametrize("kind", FLOAT_KINDS),
    pytest.mark.filterwarnings("ignore:.*encountered in scalar:RuntimeWarning"),
]


def random_operands(kind):
    m, n, k = SIZE
    return operands("random", (m, k), (k, n), (m, n), kind)


@pytest.fixture
def assert_right(kind):
    """The acceptance rule of a kind."""
    return partial(check.assert_right, precision=KINDS[kind].precision)


@pytest.mark.parametrize("special", SPECIALS)
def test_beta_zero_never_reads_c(multiply, assert_right, kind, special):
    a, b, c = random_operands(kind)
    assert_right(multiply(a, b, np.full_like(c, special), 0.7, 0.0), a, b, c, 0.7, 0.0)


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("beta", [0.0, 1.0, 1.3])
def test_alpha_zero_never_reads_a_and_b(multiply, assert_right, kind, special, beta):
    a, b, c = random_operands(kind)
    result = multiply(np.full_like(a, special), np.full_like(b, special), c, 0.0, beta)
    assert_right(result, a, b, c, 0.0, beta)


def test_alpha_zero_beta_one_leaves_every_bit_of_c(multiply, kind):
    a, b, c = random_operands(kind)
    tiny = limits(c.dtype).smallest_subnormal
    c[0, :6] = [-0.0, 0.0, np.nan, -np.inf, tiny, -tiny]
    c[1, 0] = -np.nan
    assert multiply(a, b, c, 0.0, 1.0).tobytes() == c.tobytes()


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("operand", "abc")
def test_a_special_at_each_corner_reaches_what_it_must_and_nothing_else(
    multiply, assert_right, kind, operand, special
):
    for row in (0, -1):
        for col in (0, -1):
            values = dict(zip("abc", random_operands(kind)))
            values[operand][row, col] = special
            assert_right(multiply(*values.values(), 0.7, 1.3), *values.values(), 0.7, 1.3)


def test_opposite_infinities_and_infinity_times_zero_give_nan(multiply, assert_right, kind):
    a, b, c = random_operands(kind)
    a[0, 0], a[0, 1], b[0, 0], b[1, 0] = np.inf, -np.inf, 1, 1
    a[1, 2], b[2, 3] = np.inf, 0
    result = multiply(a, b, c, 1.0, 1.0)
    assert np.isnan(result[0, 0]) and np.isnan(result[1, 3])
    assert_right(result, a, b, c, 1.0, 1.0)


def test_overflow_gives_infinities_of_the_right_sign(multiply, assert_right, kind):
    a, b, c = (np.ones_like(values) for values in random_operands(kind))
    a[0], a[1] = limits(a.dtype).max, -limits(a.dtype).max
    assert_right(multiply(a, b, c, 1.0, 1.0), a, b, c, 1.0, 1.0)


def test_subnormals_are_kept(multiply, assert_right, kind):
    if kind in ("tf32", "float16_to_float32"):
        pytest.skip("TF32 need not keep them; products of float16 are none in float32")
    a, b, c = (np.abs(values) for values in random_operands(kind))
    minexp = limits(c.dtype).minexp
    a, b = scaled(a, minexp // 2 - 2), scaled(b, minexp // 2 - 2)
    c = scaled(c, minexp - 3)
    result = multiply(a, b, c, 1.0, 1.0)
    assert_right(result, a, b, c, 1.0, 1.0)
    assert (result != 0).all()
    assert (np.abs(result) < limits(c.dtype).tiny).any(), "the data must give subnormals"


def scaled(values, exponent):
    """The values times a power of two, in their dtype."""
    return np.ldexp(values.astype(float), exponent).astype(values.dtype)


def test_scalars_may_be_special(multiply, kind):
    a, b, c = random_operands(kind)
    assert np.isnan(multiply(a, b, c, np.nan, 1.0)).all()
    assert np.isnan(multiply(a, b, c, 1.0, np.nan)).all()
    assert np.isinf(multiply(a, b, c, 1.0, np.inf)).all()
