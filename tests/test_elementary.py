"""The functions that kernels have in place of those of `dxgemm.epilogues.elementary`.

In the simulator they run with stand-ins for their few instructions; on a GPU as they are.
"""

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
from dxgemm.handwritten.parts.elementary import ROUNDED_FUNCTIONS

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


def computed(home, epilogue, values, **how):
    """Apply an epilogue to values in a kernel, which gets them as c."""
    m, n = values.shape
    a, b = np.zeros((m, 8), values.dtype), np.zeros((8, n), values.dtype)
    c = home.send(values.copy())
    return home.fetch(
        dxgemm.gemm(home.send(a), home.send(b), c, 0.0, 1.0, epilogue=epilogue, **how)
    )


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


def gelu_by_tanh(x):
    return x / (
        1 + mpmath.exp(-2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))
    )


# On a GPU, a kernel that knows that its results are rounded.
ROUNDS = {} if simulator_enabled() else {"implementation": "tensor_tile"}
ROUNDED = {
    "gelu_tanh": (epilogues.gelu_tanh, gelu_by_tanh),
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
    identity = np.eye(shape[0], dtype=values.dtype)
    result = dxgemm.gemm(identity, values, epilogue=epilogue, **ROUNDS)
    least_exponent, digits = (-14, 10) if dtype == "float16" else (-126, 7)
    errors = []
    for value, rounded in zip(values.flat, result.flat, strict=True):
        exact = function(mpmath.mpf(float(value)))
        exponent = max(mpmath.frexp(exact)[1] - 1, least_exponent)
        off = abs(mpmath.mpf(float(rounded)) - exact)
        errors.append(float(off / mpmath.mpf(2) ** (exponent - digits)))
    assert max(errors) < 0.6, f"{values.flat[np.argmax(errors)]!r}"


@pytest.mark.skipif(not simulator_enabled(), reason="calls functions of kernels from Python")
@pytest.mark.parametrize(
    "name, exact",
    [
        ("logistic", EXACT["sigmoid"][1]),
        ("gelu_tanh", gelu_by_tanh),
        ("normal_cdf", mpmath.ncdf),
        ("times_normal_cdf", lambda x: x * mpmath.ncdf(x)),
    ],
)
def test_functions_for_rounded_results_are_as_close_as_documented(name, exact):
    # Weights below 2**-126 are any number up to that: from there on.
    end = {"logistic": 87, "gelu_tanh": 9.9}.get(name, 12.9)
    values = np.linspace(-end, end, 1001, dtype=np.float32)
    values[::7] *= np.float32(2.0**-20)
    with mpmath.workdps(20):
        errors = [
            abs(
                mpmath.mpf(float(ROUNDED_FUNCTIONS[name](value))) / exact(mpmath.mpf(float(value)))
                - 1
            )
            for value in values[values != 0]
        ]
    assert max(errors) < 2.0**-14, f"2**{mpmath.log(max(errors), 2)}"
    with np.errstate(all="ignore"):
        low, zero, high, nan = (
            ROUNDED_FUNCTIONS[name](np.float32(x)) for x in (-math.inf, 0.0, math.inf, math.nan)
        )
    is_weight = name in ("logistic", "normal_cdf")
    assert abs(low) < 2.0**-134 and np.signbit(low) != is_weight  # half a subnormal bfloat16
    assert abs(zero - is_weight / 2) < 2.0**-14 and not np.signbit(zero)
    assert abs(high - 1) < 2.0**-14 if is_weight else high == math.inf
    assert math.isnan(nan)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_fast_functions_are_off_by_as_much_as_documented(home, dtype):
    count = 256 if simulator_enabled() else 20000
    rng = np.random.default_rng(6)
    parts = rng.normal(0, 1, count), rng.normal(0, 5, count)
    values = np.stack(parts).astype(numpy_dtype(dtype))
    wide = values.astype(np.float64)
    exact = {
        epilogues.fast_gelu_tanh: wide / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (
            wide + 0.044715 * wide**3))),
        epilogues.fast_silu: wide / (1 + np.exp(-wide)),
    }  # fmt: skip
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-22}[dtype]
    for epilogue, wanted in exact.items():
        errors = np.abs(computed(home, epilogue, values).astype(np.float64) - wanted)
        bounds = 2.0**-12 * np.abs(wide) + rounding * np.abs(wanted) + 2.0**-25
        assert (errors <= bounds).all()
        if dtype == "float32":  # the instruction for tanh was taken
            assert (errors > 2.0**-20 * np.abs(wide)).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_limits_of_functions_for_rounded_results(home, dtype):
    values = [-math.inf, -60000, 0, 60000, math.inf, math.nan, -0.0, 1]
    values = np.array([values], numpy_dtype(dtype))
    given = values.astype(np.float32)[0, :6]
    for epilogue in (epilogues.gelu, epilogues.gelu_tanh, epilogues.silu, epilogues.fast_gelu_tanh,
                     epilogues.fast_silu):  # fmt: skip
        results = computed(home, epilogue, values, **ROUNDS)
        results = results.astype(np.float32)[0]
        np.testing.assert_array_equal(results[:6], np.where(given < 0, 0, given), epilogue.name)
        is_fast = epilogue.name.startswith("fast")
        assert np.signbit(results[:3]).tolist() == [not is_fast] * 2 + [False], epilogue.name
    weights = computed(home, epilogues.sigmoid, values, **ROUNDS)
    np.testing.assert_array_equal(weights.astype(np.float32)[0, :6], [0, 0, 0.5, 1, 1, math.nan])


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
