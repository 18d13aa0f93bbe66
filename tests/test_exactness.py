"""G4 and G5: exact data gives exact bits, and errors grow as conventional arithmetic's do."""

import numpy as np
import pytest
from oracle.abilities import fitting_layouts
from oracle.cases import Case
from oracle.inputs import operands, planted_zeros, scaled_circulants
from oracle.kinds import FLOAT_KINDS, KINDS, limits
from oracle.reference import product

from dxgemm.gpu.status import simulator_enabled

SIZES = [(5, 6, 7), (3, 9, 40)] if simulator_enabled() else [(129, 65, 33), (300, 500, 2048)]
SIZE = 8 if simulator_enabled() else 200


@pytest.mark.parametrize("data", ["integers", "canary"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("kind", KINDS)
def test_exact_data_gives_exact_bits(contract, kind, size, data):
    factors = [(1.0, 0.0), (1.0, 1.0), (2.0, -1.0)]
    factors.append(KINDS[kind].factors if KINDS[kind].is_integer else (-0.5, 0.5))
    cases = [
        Case(kind, *size, fitting_layouts(contract.implementation, kind), alpha, beta, data)
        for alpha, beta in (factors if data == "integers" else factors[:1])
    ]
    contract([tuple(cases)], limit=0)


@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_planted_zeros_stay_zero(multiply, kind):
    a, b, is_zero = planted_zeros(SIZE, SIZE + 1, SIZE + 2, KINDS[kind].dtype)
    result = multiply(a, b)
    assert not result[is_zero].any()
    assert result[~is_zero].all()


# float16 has too few exponents; what "emulated" adds depends on the scale of rows and columns.
SCALED_KINDS = [kind for kind in FLOAT_KINDS if not kind.startswith(("float16", "emulated"))]


@pytest.mark.parametrize("kind", SCALED_KINDS)
def test_inner_scaling_by_powers_of_two_changes_no_bit(multiply, kind):
    dtype = KINDS[kind].dtype
    exponents = limits(dtype).minexp // -2 - 3
    plain = multiply(*scaled_circulants(SIZE, 0, dtype))
    scaled = multiply(*scaled_circulants(SIZE, exponents, dtype))
    assert plain.tobytes() == scaled.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_errors_grow_at_most_linearly(multiply, kind):
    sizes = [16, 32, 64, 128, 256, 512, 1024]
    errors = []
    for size in sizes:
        a, b, _ = operands("random", (size, size), (size, size), (1, 1), kind)
        expected = product(a, b)
        error = np.abs(multiply(a, b) - expected.value) / expected.magnitude
        errors.append(float(error.max()))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope <= 1, dict(zip(sizes, errors))
