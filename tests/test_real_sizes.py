"""G3: the sizes that applications have, and products too large to recompute."""

import pytest
from oracle.abilities import fitting_layouts
from oracle.cases import DTYPES, REAL_SHAPES, Case
from oracle.freivalds import freivalds_ratio, lines_ratio
from oracle.inputs import operands
from oracle.kinds import KINDS

import dxgemm

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", REAL_SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("kind", KINDS)
def test_real_sizes(contract, kind, shape):
    contract(
        [
            (
                Case(
                    kind,
                    *shape,
                    fitting_layouts(contract.implementation, kind),
                    *KINDS[kind].factors,
                ),
            )
        ]
    )


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8191, 4099, 2053)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_large_products_by_random_signs_rows_and_columns(multiply, kind, shape):
    m, n, k = shape
    a, b, _ = operands("random", (m, k), (k, n), (1, 1), kind)
    result = multiply(a, b)
    precision = KINDS[kind].precision
    assert freivalds_ratio(a, b, result, precision) < 1
    assert lines_ratio(a, b, result, precision) < 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_automatic_choice_is_right(home, dtype):
    m, n, k = 639, 640, 347
    a, b, _ = operands("random", (m, k), (k, n), (1, 1), dtype)
    result = home.fetch(dxgemm.gemm(home.send(a), home.send(b)))
    assert lines_ratio(a, b, result) < 1
