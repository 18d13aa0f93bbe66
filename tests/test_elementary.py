"""The functions that kernels have in place of those of `dxgemm.epilogues.elementary`.

In the simulator they run with stand-ins for their few instructions; on a GPU as they are.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from oracle.kinds import numpy_dtype

import dxgemm
from dxgemm import epilogues
from dxgemm.epilogues import logistic, normal_cdf
from dxgemm.gpu.status import simulator_enabled

mpmath = pytest.importorskip("mpmath")
FITTING = Path(__file__).parents[1] / "docs" / "elementary.py"
COUNT_BRANCHES_AND_DIVISIONS = """
from dataclasses import replace
from dxgemm import epilogues
from dxgemm.problem.fusion import Fusion
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import compile_kernel

(spec, *_) = common_specs(find_implementation("coalesced"), ("{dtype}",))
for epilogue in (epilogues.relu, epilogues.gelu, epilogues.gelu_tanh, epilogues.sigmoid,
                 epilogues.silu, epilogues.tanh):
    fusion = Fusion((epilogue,), ())
    ptx = compile_kernel(replace(spec, epilogue=fusion), "sm_90a").ptx
    print(*(ptx.count(text) for text in ("bra", "call", "div.")))
"""


@dxgemm.epilogue
def cdf(value, row, col):
    return normal_cdf(value)


# The exact function, and from where on float32 and float64 results are the same.
EXACT = {
    "sigmoid": (epilogues.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), (104, 746)),
    "cdf": (cdf, mpmath.ncdf, (15, 39)),
    "tanh": (epilogues.tanh, mpmath.tanh, (10, 20)),
}


def computed(home, epilogue, values):
    """Apply an epilogue to values in a kernel, which gets them as c."""
    m, n = values.shape
    a, b = np.zeros((m, 1), values.dtype), np.zeros((1, n), values.dtype)
    c = home.send(values.copy())
    return home.fetch(dxgemm.gemm(home.send(a), home.send(b), c, 0.0, 1.0, epilogue=epilogue))


def units(result, exact, of=None):
    """The error in units in the last place of a number, subnormal or not: of the exact value."""
    info = np.finfo(result.dtype)
    exponent = max(mpmath.frexp(exact if of is None else of)[1] - 1, info.minexp)
    return float(abs(mpmath.mpf(float(result)) - exact) / mpmath.mpf(2) ** (exponent - info.nmant))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXACT)
def test_results_are_within_units_of_the_last_place(home, name, dtype):
    epilogue, function, ends = EXACT[name]
    end = ends[dtype == "float64"]
    rng = np.random.default_rng(3)
    count = 100 if simulator_enabled() else 20000
    parts = (
        rng.normal(0, 1, count),
        rng.uniform(-end, end, count),
        rng.choice([-1, 1], count) * np.exp(rng.uniform(-80, 3, count)),
    )
    values = np.stack(parts).astype(dtype)
    results = computed(home, epilogue, values)
    with mpmath.workdps(50):
        errors = [
            units(result, function(mpmath.mpf(float(value))))
            for value, result in zip(values.flat, results.flat, strict=True)
        ]
    assert max(errors) < 5, f"{values.flat[np.argmax(errors)]!r}"


ROUNDED = {
    "gelu": (epilogues.gelu, lambda x: x * mpmath.ncdf(x)),
    "silu": (epilogues.silu, lambda x: x / (1 + mpmath.exp(-x))),
    "sigmoid": EXACT["sigmoid"][:2],
    "cdf": EXACT["cdf"][:2],
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_results_are_within_a_unit_of_the_last_place(name, dtype):
    epilogue, function = ROUNDED[name]
    rng = np.random.default_rng(5)
    shape = (16, 16) if simulator_enabled() else (128, 256)
    parts = np.where(rng.random(shape) < 0.5, rng.normal(0, 1, shape), rng.uniform(-9, 9, shape))
    values = parts.astype(numpy_dtype(dtype))
    result = dxgemm.gemm(np.eye(shape[0], dtype=values.dtype), values, epilogue=epilogue)
    least_exponent, digits = (-14, 10) if dtype == "float16" else (-126, 7)
    errors = []
    for value, rounded in zip(values.flat, result.flat, strict=True):
        exact = function(mpmath.mpf(float(value)))
        exponent = max(mpmath.frexp(exact)[1] - 1, least_exponent)
        off = abs(mpmath.mpf(float(rounded)) - exact)
        errors.append(float(off / mpmath.mpf(2) ** (exponent - digits)))
    assert max(errors) < 0.6, f"{values.flat[np.argmax(errors)]!r}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_is_within_units_of_the_last_place_of_its_argument(home, dtype):
    rng = np.random.default_rng(4)
    count = 100 if simulator_enabled() else 5000
    small = np.exp(rng.uniform(-80, 0, count))
    values = np.abs(np.stack([rng.normal(0, 1, count), rng.uniform(0, 12, count), small]))
    values = values.astype(dtype)
    positive, negative = (computed(home, epilogues.gelu, sign * values) for sign in (1, -1))
    with mpmath.workdps(50):
        exact = [mpmath.mpf(float(value)) for value in values.flat]
        above = [units(y, x * mpmath.ncdf(x)) for x, y in zip(exact, positive.flat, strict=True)]
        below = [
            units(y, -x * mpmath.ncdf(-x), of=x) for x, y in zip(exact, negative.flat, strict=True)
        ]
    assert max(above) < (3 if dtype == "float64" else 5), f"{values.flat[np.argmax(above)]!r}"
    assert max(below) < 2, f"-{values.flat[np.argmax(below)]!r}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_limits_of_gelu(home, dtype):
    huge = float(np.finfo(dtype).max)
    values = np.array([[-math.inf, -huge, 0.0, huge, math.inf, math.nan, -math.nan]], dtype)
    results = computed(home, epilogues.gelu, values)
    np.testing.assert_array_equal(results, [[0, 0, 0, huge, math.inf, math.nan, math.nan]])
    assert np.signbit(results[0, :5]).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "epilogue, low, high",
    [(epilogues.sigmoid, 0, 1), (cdf, 0, 1), (epilogues.tanh, -1, 1)],
    ids=["sigmoid", "cdf", "tanh"],
)
def test_limits_are_exact_and_nan_stays_nan(home, epilogue, low, high, dtype):
    huge = float(np.finfo(dtype).max)
    values = np.array([[-math.inf, -huge, 0.0, huge, math.inf, math.nan]], dtype)
    middle = (low + high) / 2
    np.testing.assert_array_equal(
        computed(home, epilogue, values), [[low, low, middle, high, high, math.nan]]
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_activations_have_the_branches_and_divisions_of_relu(run_python, dtype):
    counts = run_python(COUNT_BRANCHES_AND_DIVISIONS.replace("{dtype}", dtype)).splitlines()
    assert len(counts) == 6 and len(set(counts)) == 1, counts


def test_functions_keep_the_type_on_the_host():
    @dxgemm.epilogue
    def narrow(value, row, col):
        used = (logistic(value), normal_cdf(value))
        return 1.0 if all(number.dtype == np.float32 for number in used) else 0.0

    assert narrow.bound.on_host(np.float32([[0.3]]))[0] == 1


def test_integers_become_float64(home):
    a, b = np.full((2, 1), 2, np.int8), np.ones((1, 3), np.int8)
    out = home.send(np.zeros((2, 3), np.float32))
    dxgemm.gemm(home.send(a), home.send(b), out=out, epilogue=cdf)
    np.testing.assert_allclose(home.fetch(out), 0.9772498680518208, rtol=1e-6)


def test_the_polynomials_are_those_that_are_fitted():
    subprocess.run([sys.executable, FITTING, "--check"], check=True)
