"""G8: zero sizes. k == 0 gives beta * c; an empty result touches nothing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dxgemm.testing.cases import DTYPES, Case

EMPTY = [shape for shape in product((0, 1, 3), repeat=3) if 0 in shape]
FACTORS = list(product((0.0, 0.7), (0.0, 1.0, 1.3)))


@pytest.mark.parametrize("batch", [(None, None, None), (2, 2, 2), (0, 0, 0), (2, None, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_sizes(contract, dtype, batch):
    contract(
        [
            tuple(
                Case(dtype, *shape, ("row+1", "col+1", "row+1"), alpha, beta, batch=batch)
                for alpha, beta in FACTORS
            )
            for shape in EMPTY
        ],
        thin=True,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_k_and_no_c_gives_zeros(multiply, dtype):
    result = multiply(np.empty((3, 0), dtype), np.empty((0, 4), dtype))
    assert result.shape == (3, 4) and result.dtype == dtype and not result.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [np.nan, np.inf])
def test_no_k_makes_the_product_zero_whatever_alpha_is(multiply, dtype, alpha):
    c = np.arange(12, dtype=dtype).reshape(3, 4)
    result = multiply(np.empty((3, 0), dtype), np.empty((0, 4), dtype), c, alpha, 2.0)
    np.testing.assert_array_equal(result, 2 * c)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_result_has_its_shape(multiply, dtype):
    assert multiply(np.ones((0, 5), dtype), np.ones((5, 4), dtype)).shape == (0, 4)
    assert multiply(np.ones((2, 3, 5), dtype), np.ones((5, 0), dtype)).shape == (2, 3, 0)
