"""G8: zero sizes. k == 0 gives beta * c; an empty result touches nothing."""

from itertools import product

import numpy as np
import pytest
from oracle.cases import Case
from oracle.kinds import FLOAT_KINDS, KINDS, numpy_dtype

EMPTY = [shape for shape in product((0, 1, 3), repeat=3) if 0 in shape]


def padded_layouts(kind):
    padding = "_aligned" if KINDS[kind].is_reduced else "+1"
    return f"row{padding}", f"col{padding}", "row+1"


def dtypes(kind):
    """NumPy's dtype of a and b, and that of the result."""
    return numpy_dtype(KINDS[kind].dtype), numpy_dtype(KINDS[kind].out_dtype)


@pytest.mark.parametrize("batch", [(None, None, None), (2, 2, 2), (0, 0, 0), (2, None, 2)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_zero_sizes(contract, kind, batch):
    alpha, beta = KINDS[kind].factors
    contract(
        [
            tuple(
                Case(kind, *shape, padded_layouts(kind), *factors, batch=batch)
                for factors in product((0.0, alpha), (0.0, 1.0, beta))
            )
            for shape in EMPTY
        ],
        thin=True,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_k_and_no_c_gives_zeros(multiply, kind):
    dtype, out_dtype = dtypes(kind)
    result = multiply(np.empty((3, 0), dtype), np.empty((0, 4), dtype))
    assert result.shape == (3, 4) and result.dtype == out_dtype and not result.any()


@pytest.mark.parametrize("kind", FLOAT_KINDS)
@pytest.mark.parametrize("alpha", [np.nan, np.inf])
def test_no_k_makes_the_product_zero_whatever_alpha_is(multiply, kind, alpha):
    dtype, out_dtype = dtypes(kind)
    c = np.arange(12).astype(out_dtype).reshape(3, 4)
    result = multiply(np.empty((3, 0), dtype), np.empty((0, 4), dtype), c, alpha, 2.0)
    np.testing.assert_array_equal(result, 2 * c)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_result_has_its_shape(multiply, kind):
    dtype, _ = dtypes(kind)
    assert multiply(np.ones((0, 5), dtype), np.ones((5, 4), dtype)).shape == (0, 4)
    assert multiply(np.ones((2, 3, 5), dtype), np.ones((5, 0), dtype)).shape == (2, 3, 0)
