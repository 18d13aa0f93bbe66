"""Integers through the public calls: sums that are exact or wrap, integers for alpha and beta."""

import itertools
from dataclasses import replace
from fractions import Fraction
from itertools import product as combinations

import numpy as np
import pytest
from oracle.check import assert_right
from oracle.inputs import operands

import dxgemm
from dxgemm import errors
from dxgemm.call.bind import computation_of_reals
from dxgemm.call.route import clear_routes
from dxgemm.choice import byte_products, cublas_limits
from dxgemm.choice.legality import Candidate
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import choose
from dxgemm.gpu.cards import find_card
from dxgemm.gpu.facts import SIMULATED_DEVICE
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.moduli import MODULI
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.lower.residue_products import lower_residues
from dxgemm.problem import integer_forms as _integer_forms
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import INTEGER_BITS, MIXED_BITS, factor_dtypes
from dxgemm.problem.integer_forms import (
    DigitForm,
    JoinedForm,
    RemainderForm,
    ResidueForm,
    residue_form,
)
from dxgemm.problem.layout import Strides
from dxgemm.runtime.program import Symbol
from dxgemm.runtime.simulator import SimulatedLaunch

SIZE = (5, 3, 8) if simulator_enabled() else (129, 65, 48)
LEAST, LARGEST = -(2**31), 2**31 - 1

# Results of all products of integers; a new one has the first.
WIDER = ("int32", "uint32", "int64", "uint64")
RESULTS = {
    name: WIDER if bits < 32 else tuple(x for x in WIDER if bits == 32 or x.endswith("64"))
    for name, bits in (INTEGER_BITS | MIXED_BITS).items()
}
NEW = {"uint32": "uint32", "uint64": "uint64", "int64": "int64"}
NEW |= dict.fromkeys(("int32 uint32", "uint32 int32"), "int64")

# Operands and results that are computed by products of their bytes, or of residues.
BY_BYTES = [
    ("int16", "int32"), ("uint16", "uint32"), ("uint16 int16", "int32"), ("int16 uint16", "int64"),
    ("int32", "int32"), ("uint32", "uint32"), ("int32 uint32", "int32"), ("uint32", "int64"),
    ("int32", "uint64"), ("int64", "int64"), ("uint64", "uint64"), ("int64", "uint64"),
]  # fmt: skip


def whole(rng, shape, dtype):
    """Integers of all that a dtype holds, its extremes among them."""
    if dtype == "bool":
        return rng.integers(0, 4, shape) == 0
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    values.flat[0], values.flat[-1] = limits.min, limits.max
    return values


def exact(a, b, dtype, alpha=1, beta=0, c=None):
    """alpha * a @ b + beta * c modulo 2**64, and then modulo what the dtype holds."""
    product = a.astype(np.uint64) @ b.astype(np.uint64) * np.uint64(alpha % 2**64)
    if beta:
        product += c.astype(np.uint64) * np.uint64(beta % 2**64)
    return product != 0 if dtype == "bool" else product.astype(dtype)


def factors(rng, sizes, dtype, out_dtype=None):
    """a, b, and c where its dtype is given."""
    m, n, k = sizes
    a_dtype, b_dtype = factor_dtypes(dtype)
    c = () if out_dtype is None else (whole(rng, (m, n), out_dtype),)
    return whole(rng, (m, k), a_dtype), whole(rng, (k, n), b_dtype), *c


# Of the forms, bytes make results of 32 bits, residues those of 64. The simulator runs two.
FORMS = {
    "themselves": type(None), "by bytes": DigitForm, "in one kernel": JoinedForm,
    "by residues": ResidueForm, "by remainders": RemainderForm,
}  # fmt: skip
WAYS = list(FORMS)[: 2 if simulator_enabled() else 4]
CASES = [
    (way, *dtypes)
    for way in WAYS
    for dtypes in BY_BYTES
    if way == "themselves" or (way != "by residues") == dtypes[1].endswith("32")
]
all_ways = pytest.mark.parametrize("way, dtype, out_dtype", CASES, indirect=["way"])


@pytest.fixture
def way(request, monkeypatch):
    """Has integers multiplied themselves, or by their bytes or residues."""
    monkeypatch.setattr(
        byte_products,
        "quickest",
        lambda problem, forms, device: next(
            (form for form in forms if type(form) is FORMS[request.param]), None
        ),
    )
    clear_routes()
    yield request.param
    clear_routes()


@pytest.fixture
def rng():
    return np.random.default_rng(79)


@pytest.fixture(params=["int8"])
def kind(request):
    return request.param


@pytest.fixture
def values():
    m, n, k = SIZE
    return operands("random", (m, k), (k, n), (m, n), "int8")


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
    "a fraction": 0.5, "NaN": np.nan, "infinity": np.inf, "too large": 2**31,
    "too small": -(2**31) - 1, "nearly one": 1 + 2**-52, "not representable": 2**53 + 1,
}  # fmt: skip


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


@pytest.mark.parametrize("dtype", RESULTS)
def test_every_dtype_is_multiplied_exactly_into_every_wider_one(home, rng, dtype):
    m, n, _ = SIZE
    a, b = factors(rng, SIZE, dtype)
    sent = home.send(a), home.send(b)
    result = home.fetch(dxgemm.gemm(*sent))
    assert result.dtype == NEW.get(dtype, "int32")
    np.testing.assert_array_equal(result, exact(a, b, result.dtype))
    for out_dtype in RESULTS[dtype][:: 1 if simulator_enabled() else 3]:  # kernels take seconds
        out = home.send(np.zeros((m, n), out_dtype))
        assert dxgemm.gemm(*sent, out=out) is out
        np.testing.assert_array_equal(home.fetch(out), exact(a, b, out_dtype))


def test_the_reference_is_that_of_python_integers(rng):
    a, b, c = whole(rng, (3, 5), "int64"), whole(rng, (5, 4), "int64"), whole(rng, (3, 4), "int64")
    expected = 3 * (a.astype(object) @ b.astype(object)) - 7 * c.astype(object)
    wrapped = (expected + 2**63) % 2**64 - 2**63
    assert (exact(a, b, "int64", 3, -7, c) == wrapped).all()


# Sizes of the memory of a matrix, by its own, and the matrix as a view of it.
LAYOUTS = {
    "row": (lambda m, n: (m, n), lambda x: x),
    "column": (lambda m, n: (n, m), lambda x: x.T),
    "strided": (lambda m, n: (2 * m, 3 * n), lambda x: x[::2, ::3]),
    "reversed": (lambda m, n: (m, n), lambda x: x[::-1, ::-1]),
    "offset": (lambda m, n: (m + 2, n + 2), lambda x: x[1:-1, 1:-1]),
}


def laid(home, values, layout):
    """A matrix of the library with these values, as it lies in memory by a layout."""
    sizes, view = LAYOUTS[layout]
    found = view(home.send(np.zeros(sizes(*values.shape), values.dtype)))
    found[...] = home.send(values)
    return found


@all_ways
def test_all_ways_give_the_same_bits_in_every_layout(home, rng, way, dtype, out_dtype):
    a, b, c = factors(rng, SIZE, dtype, out_dtype)
    layouts = list(LAYOUTS)
    first = BY_BYTES.index((dtype, out_dtype)) % len(layouts)
    for layout in layouts[first:][:1] if simulator_enabled() else layouts:
        sent = [laid(home, value, layout) for value in (a, b, c)]
        out = laid(home, np.zeros_like(c), layout)
        dxgemm.gemm(*sent, alpha=-3, beta=5, out=out)
        np.testing.assert_array_equal(home.fetch(out), exact(a, b, out_dtype, -3, 5, c))
        np.testing.assert_array_equal(home.fetch(sent[2]), c)


def extremes(m, n, k, a_dtype, b_dtype):
    """Rows of a and columns of b whose elements are all the least or all the largest."""
    of_a, of_b = np.iinfo(a_dtype), np.iinfo(b_dtype)
    a, b = np.full((m, k), of_a.min, a_dtype), np.full((k, n), of_b.min, b_dtype)
    a[::2], b[:, ::2] = of_a.max, of_b.max
    return a, b


@all_ways
def test_extremes_and_tails_of_k(home, way, dtype, out_dtype):
    for k in (33,) if simulator_enabled() else (1, 7, 33):
        a, b = extremes(3, 2, k, *factor_dtypes(dtype))
        out = home.send(np.zeros((3, 2), out_dtype))
        dxgemm.gemm(home.send(a), home.send(b), out=out)
        np.testing.assert_array_equal(home.fetch(out), exact(a, b, out_dtype))


@all_ways
def test_batches_with_a_broadcast_factor(home, rng, way, dtype, out_dtype):
    m, n, k = (3, 2, 5) if simulator_enabled() else SIZE
    a_dtype, b_dtype = factor_dtypes(dtype)
    a, b = whole(rng, (2, m, k), a_dtype), whole(rng, (2, k, n), b_dtype)
    for left, right in ((a[0], b), (a, b[0])) if simulator_enabled() else ((a, b), (a[0], b)):
        out = home.send(np.zeros((2, m, n), out_dtype))
        dxgemm.gemm(home.send(left), home.send(right), out=out)
        np.testing.assert_array_equal(home.fetch(out), exact(left, right, out_dtype))


@pytest.mark.gpu
@all_ways
@pytest.mark.parametrize("extreme", ["min", "max", "random"])
def test_long_sums_are_exact_or_wrap(cupy, rng, way, dtype, out_dtype, extreme):
    a_dtype, b_dtype = factor_dtypes(dtype)
    a, b = whole(rng, (9, 2**17), a_dtype), whole(rng, (2**17, 5), b_dtype)
    if extreme != "random":
        a[...], b[...] = getattr(np.iinfo(a_dtype), extreme), getattr(np.iinfo(b_dtype), extreme)
    out = cupy.zeros((9, 5), out_dtype)
    dxgemm.gemm(cupy.asarray(a), cupy.asarray(b), out=out)
    np.testing.assert_array_equal(out.get(), exact(a, b, out_dtype))


@pytest.mark.gpu
@all_ways
@pytest.mark.parametrize("shape", [(300, 500, 700), (1, 1000, 1000), (1000, 3, 513)])
def test_large_products_of_integers(cupy, rng, way, dtype, out_dtype, shape):
    a, b, c = factors(rng, shape, dtype, out_dtype)
    out = dxgemm.gemm(*map(cupy.asarray, (a, b, c)), 3, -1)
    np.testing.assert_array_equal(out.get(), exact(a, b, out_dtype, 3, -1, c))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["uint8", "uint8 int8", "int8 uint8"])
@pytest.mark.parametrize("name", ["wgmma", "tensor_tile", "shifted_tile"])
@pytest.mark.parametrize("order", ["row", "column"])
def test_bytes_without_a_sign_on_tensor_cores(home, cupy, rng, dtype, name, order):
    for m, n in ((64, 8), (8, 64), (150, 170)):
        a, b = factors(rng, (m, n, 96), dtype)
        sent = cupy.asarray(a), cupy.asarray(b.T.copy()).T
        out = laid(home, np.zeros((m, n), np.int32), order)
        dxgemm.gemm(*sent, out=out, implementation=name)
        np.testing.assert_array_equal(out.get(), exact(a, b, "int32"))


STEPS = (Strides(0, 1000, 1), Strides(0, 1, 1001), Strides(0, 2003, 3), Strides(0, -7, -131))


@pytest.mark.parametrize("card", ["H200", "A100"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint8 int8", "int16", "int32", "int64"])
def test_no_sizes_layouts_or_alignments_of_integers_are_refused(card, dtype):
    device = find_card(card).facts
    sizes = [(m, n, k) for m in (1, 3, 16, 17) for n, k in ((1, 1), (7, 19), (1000, 999))]
    for index, (m, n, k) in enumerate(sizes + [(n, m, k) for m, n, k in sizes]):
        for a, b in combinations(STEPS, repeat=2):
            problem = replace(
                contiguous_problem(dtype, m, n, k), a=a, b=b, a_alignment=1 << index % 5,
                b_alignment=1 << index % 3,
            )  # fmt: skip
            computation = computation_of_reals(problem, None, device)
            assert choose(computation.product, device).implementation.is_own


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint8 int8"])
def test_few_rows_of_bytes_of_any_layout(home, cupy, rng, dtype):
    for m, n, k in ((1, 7, 19), (3, 1000, 999), (16, 129, 4097), (9, 64, 64)):
        for m_now, n_now in ((m, n), (n, m)):
            a, b = factors(rng, (m_now, n_now, k), dtype)
            for left, right in combinations(LAYOUTS, repeat=2):
                out = dxgemm.gemm(laid(home, a, left), laid(home, b, right))
                np.testing.assert_array_equal(home.fetch(out), exact(a, b, "int32"))


@pytest.mark.gpu
@all_ways
def test_few_rows_and_columns(cupy, rng, way, dtype, out_dtype):
    """Those of `gemv`, of all its configs and layouts; and what is chosen."""
    if way != "themselves":
        pytest.skip("gemv multiplies integers themselves")
    configs = [("gemv", str(config)) for config in find_implementation("gemv").kernel.configs]
    for few, many, k in ((1, 65, 1), (3, 201, 1041), (7, 130, 4097)):
        for m, n in ((few, many), (many, few)):
            a, b, c = factors(rng, (m, n, k), dtype, out_dtype)
            expected = exact(a, b, out_dtype, 3, -1, c)
            for left in (cupy.asarray(a), cupy.asarray(a.T.copy()).T):
                for right in (cupy.asarray(b), cupy.asarray(b.T.copy()).T):
                    for name in (None, *configs):
                        sent = left, right, cupy.asarray(c)
                        out = dxgemm.gemm(*sent, 3, -1, implementation=name)
                        np.testing.assert_array_equal(out.get(), expected)


@pytest.mark.parametrize("alpha, beta", [(1, 0), (0, 1), (1, 1)])
def test_bool_is_whether_a_sum_is_not_0(home, rng, alpha, beta):
    m, n, k = SIZE
    a, b, c = (whole(rng, shape, "bool") for shape in ((m, k), (k, n), (m, n)))
    expected = (alpha * (a.astype(int) @ b) + beta * c) != 0
    result = home.fetch(dxgemm.gemm(*map(home.send, (a, b, c)), alpha, beta))
    assert result.dtype == bool
    np.testing.assert_array_equal(result, expected)
    result = dxgemm.gemm(home.send(a), home.send(b))
    np.testing.assert_array_equal(home.fetch(result), (a.astype(int) @ b) != 0)
    counts = dxgemm.gemm(home.send(a), home.send(b), out=home.send(np.zeros((m, n), np.int32)))
    np.testing.assert_array_equal(home.fetch(counts), a.astype(int) @ b)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint32", "int64"])
def test_empty_products_of_integers(home, dtype):
    for m, n, k in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
        a, b = home.send(np.ones((m, k), dtype)), home.send(np.ones((k, n), dtype))
        result = home.fetch(dxgemm.gemm(a, b))
        assert result.shape == (m, n) and not result.any()


@pytest.mark.parametrize("way", ["themselves", *WAYS[3:]], indirect=True)
def test_alpha_and_beta_of_64_bits_are_exact(home, way):
    a, b = np.ones((2, 3), np.uint64), np.ones((3, 2), np.uint64)
    c = np.full((2, 2), 3, np.uint64)
    for alpha, beta in ((2**63 + 1, 2**64 - 1), (-(2**63), -1), (2**53 + 1, 0)):
        result = dxgemm.gemm(*map(home.send, (a, b, c)), alpha, beta)
        assert (home.fetch(result) == (3 * alpha + 3 * beta) % 2**64).all()
        c[...] = 3


@pytest.mark.parametrize(
    "dtype, value",
    [("bool", 2), ("int16", 2**31), ("uint32", 2**32), ("int32", -(2**31) - 1), ("int64", 2**64)],
)
def test_factors_that_do_not_fit_are_refused(dtype, value):
    a = np.ones((2, 2), dtype)
    with pytest.raises(errors.ScalarError, match=f"alpha is .*{dtype} products are summed"):
        dxgemm.gemm(a, a, alpha=value)


@pytest.mark.parametrize(
    "a, b, out",
    [
        ("int8", "int16", None), ("int64", "uint64", None), ("bool", "int8", None),
        ("int32", "float32", None), ("int64", "int64", "int32"), ("int16", "int16", "int16"),
        ("int32", "int32", "float64"), ("bool", "bool", "int64"),
    ],
)  # fmt: skip
def test_dtypes_that_do_not_go_together_are_refused(a, b, out):
    given = {} if out is None else {"out": np.zeros((2, 2), out)}
    with pytest.raises(errors.DtypeError, match="dtypes differ: a is"):
        dxgemm.gemm(np.ones((2, 2), a), np.ones((2, 2), b), **given)


def test_epilogues_take_sums_of_32_bits_of_short_integers(home, rng):
    a, b = factors(rng, SIZE, "uint8 int8")
    out = home.send(np.zeros(SIZE[:2], np.float32))
    dxgemm.gemm(home.send(a), home.send(b), out=out, epilogue=dxgemm.epilogues.scale(0.5))
    np.testing.assert_array_equal(home.fetch(out), 0.5 * exact(a, b, "int32"))
    total = dxgemm.gemm(home.send(a), home.send(b), epilogue=dxgemm.reductions.sum())
    assert int(home.fetch(total)) == exact(a, b, "int64").sum()


def test_epilogues_of_long_or_unsigned_sums_are_refused():
    epilogues, reductions = dxgemm.epilogues, dxgemm.reductions
    for dtype, epilogue, words in (
        ("int64", epilogues.scale(2), "8 and 16 bits"),
        ("int64", epilogues.relu | reductions.sum(), "8 and 16 bits"),
        ("uint64", reductions.sum(), "int32 and int64, not uint64"),
        ("int64", replace(reductions.sum(), fused=True), "leave out fused=True"),
    ):
        ones = np.ones((2, 2), dtype)
        with pytest.raises(errors.UnsupportedProblemError, match=words):
            dxgemm.gemm(ones, ones, epilogue=epilogue)
    ones = np.ones((2, 2), np.uint8)
    for out_dtype, name in itertools.product(
        ("uint32", "uint64"), ("sum", "mean", "max", "logsumexp")
    ):
        of, c = {"epilogue": getattr(reductions, name)(1)}, np.full((2, 2), 7, out_dtype)
        for options in (of, of | {"out": c}, of | {"inner": dxgemm.inners.l1}):
            with pytest.raises(errors.UnsupportedProblemError, match=f"not {out_dtype}"):
                dxgemm.gemm(ones, ones, c, **options)
        assert (c == 7).all()
    for call in (dxgemm.gemm, dxgemm.explain):
        with pytest.raises(errors.UnsupportedProblemError, match="no implementation fits"):
            call(ones, ones, np.zeros((2, 2), np.int64), epilogue=reductions.max(0, fused=True))


REDUCTIONS = ("sum", "min", "max", "argmin", "argmax", "norm")


REDUCED = [
    (*case, modulus)
    for case in CASES
    for modulus in (None, 97)
    if case[1:] in (("int32", "int32"), ("int64", "int64"))
    if modulus is None or case[0] in ("themselves", "by residues")
]


@pytest.mark.parametrize("way, dtype, out_dtype, modulus", REDUCED, indirect=["way"])
def test_long_integers_are_reduced_where_they_are_stored(home, rng, way, dtype, out_dtype, modulus):
    a, b, c = factors(rng, SIZE, dtype, out_dtype)
    if modulus:
        matrix = exact_modulo(modulus, a, b, 2, 3, c).astype(out_dtype)
    else:
        matrix = exact(a, b, out_dtype, 2, 3, c)
    sent = [home.send(x) for x in (a, b, c)]
    for index, name in enumerate(REDUCTIONS):
        reduction = getattr(dxgemm.reductions, name)((0, 1, None)[index % 3])
        out = home.send(np.zeros_like(c)) if index % 2 else None
        found = dxgemm.gemm(*sent, 2, 3, out=out, epilogue=reduction, modulus=modulus)
        expected = reduction.on_host(matrix)
        if name == "norm":
            np.testing.assert_allclose(home.fetch(found), expected, rtol=1e-12)
        else:
            np.testing.assert_array_equal(home.fetch(found), expected)
            assert found.dtype == expected.dtype
        if out is not None:
            np.testing.assert_array_equal(home.fetch(out), matrix)


def test_reductions_of_the_extremes_of_int64(home):
    for extreme in (np.iinfo(np.int64).min, np.iinfo(np.int64).max):
        a, b = np.full((3, 1), extreme), np.ones((1, 2), np.int64)
        for name in ("argmin", "argmax", "min", "max", "sum"):
            reduction = getattr(dxgemm.reductions, name)(axis=1)
            found = home.fetch(dxgemm.gemm(home.send(a), home.send(b), epilogue=reduction))
            np.testing.assert_array_equal(found, reduction.on_host(a @ b))


def _smaller(total, value):
    return value if value < total else total


@pytest.mark.parametrize("identity", [2**62 + 1, np.int64(-(2**53) - 1), 2**53 + 1.0, 2**70])
def test_identities_of_inner_functions_are_exact_integers(home, identity):
    @dxgemm.inner(add=_smaller, identity=identity)
    def least(x, y):
        return x + y

    start = min(int(identity), 2**63 - 1)
    a, b = np.array([[start - 1], [start]]), np.array([[0, -1]])
    found = home.fetch(dxgemm.gemm(home.send(a), home.send(b), inner=least))
    np.testing.assert_array_equal(found, [[start - 1, start - 2], [start, start - 1]])


@pytest.mark.parametrize("way", WAYS[:3], indirect=True)
def test_plans_matmul_and_symmetric_results(home, rng, way):
    a, b = factors(rng, SIZE, "int32")
    sent = home.send(a), home.send(b)
    plan = dxgemm.plan(*sent)
    for _ in range(2):
        np.testing.assert_array_equal(home.fetch(plan()), exact(a, b, "int32"))
        a[...] = whole(rng, a.shape, "int32")
        sent[0][...] = home.send(a)
    found = dxgemm.matmul(home.send(a[0]), sent[1])
    np.testing.assert_array_equal(home.fetch(found), exact(a[:1], b, "int32")[0])
    found = dxgemm.gemm_symmetric(sent[0])
    np.testing.assert_array_equal(home.fetch(found), exact(a, a.T, "int32"))


TRIANGLES = {"both": np.ones_like, "lower": np.tril, "upper": np.triu}
SYMMETRIC = [(way, dtype) for way in WAYS for dtype in ("bool", "int8", "int16", "uint32", "int64")]
SYMMETRIC += [("by remainders", "int16")]


@pytest.mark.parametrize("way, dtype", SYMMETRIC, indirect=["way"])
def test_triangles_of_symmetric_results(home, rng, way, dtype):
    """Each triangle, with and without c, a transpose that is added, or a modulus."""
    m, k = (7, 5) if simulator_enabled() else (300, 70)
    a, b = whole(rng, (m, k), dtype), whole(rng, (m, k), dtype)
    out_dtype = "bool" if dtype == "bool" else NEW.get(dtype, "int32")
    c = whole(rng, (m, m), out_dtype)
    c = np.tril(c) + np.tril(c, -1).T
    alpha, beta = (1, 1) if dtype == "bool" else (3, -5)
    for index, (triangle, modulus, adds) in enumerate(
        (triangle, modulus, adds)
        for triangle in TRIANGLES
        for modulus, adds in ((0, False), (0, True), (0 if dtype == "bool" else 97, False))
    ):
        reads_c = index % 4 != 0
        if modulus:
            matrix = exact_modulo(modulus, a, a.T, alpha, beta * reads_c, c).astype(out_dtype)
        elif adds:
            pair = np.concatenate([a, b], axis=1), np.concatenate([b, a], axis=1)
            matrix = exact(pair[0], pair[1].T, out_dtype, alpha, beta * reads_c, c)
        else:
            matrix = exact(a, a.T, out_dtype, alpha, beta * reads_c, c)
        out, b_given = whole(rng, (m, m), out_dtype), home.send(b) if adds else None
        written = TRIANGLES[triangle](np.ones((m, m), bool)).astype(bool)
        result = dxgemm.gemm_symmetric(
            home.send(a), home.send(c) if reads_c else None, alpha, beta * reads_c, b=b_given,
            triangle=triangle, out=home.send(out), modulus=modulus or None,
        )  # fmt: skip
        np.testing.assert_array_equal(home.fetch(result), np.where(written, matrix, out))


def test_integers_of_torch(rng):
    torch = pytest.importorskip("torch")
    device = "cpu" if simulator_enabled() else "cuda"
    for dtype in (*INTEGER_BITS, "bool"):
        a, b = factors(rng, SIZE, dtype)
        found = dxgemm.gemm(torch.tensor(a, device=device), torch.tensor(b, device=device))
        found = found.cpu().numpy()
        np.testing.assert_array_equal(found, exact(a, b, found.dtype.name))


def test_integers_of_jax(rng):
    jax, compiled = pytest.importorskip("jax"), pytest.importorskip("dxgemm.jax")
    for dtype in (*(name for name, bits in INTEGER_BITS.items() if bits < 64), "bool"):
        a, b = factors(rng, SIZE, dtype)
        found = np.asarray(dxgemm.gemm(jax.numpy.asarray(a), jax.numpy.asarray(b)))
        np.testing.assert_array_equal(found, exact(a, b, found.dtype.name))
        found = np.asarray(jax.jit(compiled.gemm)(a, b))
        np.testing.assert_array_equal(found, exact(a, b, found.dtype.name))


@pytest.mark.parametrize(
    "dtype, products",
    [("uint16", "4 products of bytes, in one kernel"),
     ("int16", "4 products of bytes, in one kernel"),
     ("int32", "10 products of bytes, in one kernel"), ("int64", "18 products of residues")],
)  # fmt: skip
def test_explain_says_how_many_products_of_bytes_there_are(dtype, products):
    explained = dxgemm.explain_shape(4096, 4096, 4096, dtype, gpu="H200")
    assert explained.work.computed_as == products
    assert explained.work.dtype == dtype
    assert "digits | digits" in str(explained)
    assert dxgemm.explain_shape(8, 8, 8, "int16", gpu="H200").work.computed_as is None


def multiplied_by_residues(problem, arrays, alpha, beta):
    """All steps of a product by residues but that of residues, which NumPy stands in for."""
    form = residue_form(problem)
    kernel = find_implementation("emulated_float64")
    program = lower_residues(form, Candidate(kernel, kernel.kernel.configs[0]), SIMULATED_DEVICE)
    memory = {name: np.full(size, 77, np.int8) for name, size in program.buffers.items()}
    values = {
        name: array.__array_interface__["data"][0] for name, array in (arrays | memory).items()
    } | {"alpha": alpha, "beta": beta}
    moduli = np.array(MODULI[: form.count])[:, None, None]
    m, n, pitches = problem.m, problem.n, [row_bytes(x) for x in (form.slice_k, problem.n)]
    for index, step in enumerate(program.steps):
        if index % 4 == 2:
            assert not memory["flag"].any()
            a, b = (
                memory[f"digits of {x}"].reshape(form.count, -1, pitches[0]).astype(int)
                for x in "ab"
            )
            assert not a[:, :, form.slice_k :].any()
            found = (a @ b.transpose(0, 2, 1) + 128) % moduli - 128
            memory["residues of the result"].reshape(form.count, m, pitches[1])[:, :, :n] = found
            continue
        given = (values[x.name] + x.offset if isinstance(x, Symbol) else x
                 for x in (*step.values, *step.operands))  # fmt: skip
        SimulatedLaunch(step.spec, step.arguments, step.blocks)(tuple(given), 0)
    return form.count


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32 uint32", "int16"])
@pytest.mark.parametrize(
    "order, modulus, most_k", [("row", 0, 2**17), ("column", 0, 16), ("row", 2**31 - 1, 16)]
)
def test_residues_are_made_of_integers_and_integers_of_residues(
    rng, monkeypatch, dtype, order, modulus, most_k
):
    if not simulator_enabled():
        pytest.skip("the simulator's kernels read NumPy's memory")
    monkeypatch.setattr(_integer_forms, "LONGEST_K", most_k)
    m, n, k = 3, 5, 24 if order == "row" else 19  # rows of 24 are read by vectors
    a_dtype, b_dtype = factor_dtypes(dtype)
    a, b = extremes(m, n, k, a_dtype, b_dtype) if modulus else (
        whole(rng, (m, k), a_dtype), whole(rng, (k, n), b_dtype)
    )  # fmt: skip
    if order == "column":
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    c, out = whole(rng, (m, n), "int64"), np.zeros((m, n), np.int64)
    problem = replace(contiguous_problem(dtype, m, n, k, out_dtype="int64"), reads_c=True)
    if order == "column":
        problem = replace(problem, a=Strides(0, 1, m), b=Strides(0, 1, k))
    if modulus:
        problem = replace(problem, modulus=modulus)
    arrays = {"a": a, "b": b, "c": c, "out": out}
    count = multiplied_by_residues(problem, arrays, -3, 7)
    if modulus:
        np.testing.assert_array_equal(out, exact_modulo(modulus, a, b, -3, 7, c))
        assert count < 12
    else:
        np.testing.assert_array_equal(out, exact(a, b, "int64", -3, 7, c))


PRIMES = (2, 3, 97, 65537, 998_244_353, 2**31 - 2, 2**31 - 1)  # the last but one is no prime


def exact_modulo(modulus, a, b, alpha=1, beta=0, c=None):
    """(alpha * a @ b + beta * c) modulo a number, by Python's integers."""
    product = alpha * (a.astype(object) @ b.astype(object))
    return (product + (beta * c.astype(object) if beta else 0)) % modulus


def test_products_modulo_a_number_are_those_of_python_integers(home, rng):
    """Extremes of all dtypes, every modulus, negative and large factors; dtypes as without."""
    size = (4, 3, 19) if simulator_enabled() else (65, 33, 190)
    for index, dtype in enumerate(x for x in RESULTS if x != "bool"):
        m, n, k = size
        a, b = extremes(m, n, k, *factor_dtypes(dtype))
        a[1:, ::2] = whole(rng, a[1:, ::2].shape, a.dtype)
        b[:, 1:] = whole(rng, (k, n - 1), b.dtype)
        alpha, beta = -(10**20), 10**19 + 7  # beyond all dtypes
        for modulus in PRIMES[index % 3 :: 3] if simulator_enabled() else PRIMES:
            out = home.fetch(dxgemm.gemm(home.send(a), home.send(b), modulus=modulus))
            assert out.dtype == NEW.get(dtype, "int32")
            np.testing.assert_array_equal(out, exact_modulo(modulus, a, b))
            c = whole(rng, (m, n), out.dtype)
            layouts = list(LAYOUTS)[index % len(LAYOUTS) :] + list(LAYOUTS)
            sent = [laid(home, x, layout) for x, layout in zip((a, b, c), layouts)]
            found = home.fetch(dxgemm.gemm(*sent, alpha, beta, modulus=modulus))
            np.testing.assert_array_equal(found, exact_modulo(modulus, a, b, alpha, beta, c))


def residues(values, modulus):
    """Values modulo a number, in [0, modulus), as uint64."""
    if values.dtype == np.uint64:
        return values % np.uint64(modulus)
    return (values.astype(np.int64) % modulus).astype(np.uint64)


@pytest.mark.parametrize("way", ["by remainders"], indirect=True)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint8 int8", "uint64", "int64"])
def test_products_modulo_a_byte_are_one_product_of_bytes(home, rng, monkeypatch, way, dtype):
    """Reduced operands, whose sums are exact in int32 for a part of k at a time."""
    m, n, k = SIZE
    monkeypatch.setattr(_integer_forms, "MOST_SUM", 2**31 - 1 if dtype == "int8" else 3 * 128**2)
    a, b = extremes(m, n, k, *factor_dtypes(dtype))
    a[1:, ::2], b[:, 1:] = whole(rng, a[1:, ::2].shape, a.dtype), whole(rng, (k, n - 1), b.dtype)
    c = whole(rng, (m, n), "int64")
    for modulus in (2, 3, 255, 256):
        sent = [home.send(x) for x in (np.asfortranarray(a), b, c)]
        found = home.fetch(dxgemm.gemm(*sent, -5, 7, modulus=modulus))
        np.testing.assert_array_equal(found, exact_modulo(modulus, a, b, -5, 7, c))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint64"])
@pytest.mark.parametrize("modulus", [2, 998_244_353, 2**31 - 1])
@pytest.mark.parametrize("shape", [(300, 500, 700), (1, 1000, 1000), (100, 3, 2**17 + 5)])
def test_large_products_modulo_a_number(cupy, rng, dtype, modulus, shape):
    m, n, k = shape
    a, b, c = whole(rng, (m, k), dtype), whole(rng, (k, n), dtype), whole(rng, (m, n), "int64")
    left, right, added = (residues(x, modulus) for x in (a, b, c))
    expected = np.zeros((m, n), np.uint64)
    for first in range(0, k, 4):  # products are below 2**62
        x, y = left[:, first : first + 4], right[first : first + 4]
        expected = (expected % modulus) + x @ y
    expected = (5 * (expected % modulus) + (modulus - 1) * added) % modulus
    names = [None, "emulated_float64", "emulated_float64_tile", "widening_tile"]
    for name in names + ["wgmma", "tensor_tile", "shifted_tile"] * (modulus <= 256):
        sent = [cupy.asarray(x) for x in (a, b, c)]
        out = dxgemm.gemm(*sent, 5, -1, modulus=modulus, implementation=name)
        np.testing.assert_array_equal(out.get(), expected)


def test_a_modulus_goes_with_batches_plans_matmul_groups_and_symmetric_results(home, rng):
    a, b = whole(rng, (2, 3, 5), "int64"), whole(rng, (5, 4), "int64")
    sent, expected = (home.send(a), home.send(b)), exact_modulo(97, a, b)
    np.testing.assert_array_equal(home.fetch(dxgemm.gemm(*sent, modulus=97)), expected)
    np.testing.assert_array_equal(home.fetch(dxgemm.matmul(*sent, modulus=97)), expected)
    row = dxgemm.matmul(home.send(a[0, 0]), sent[1], modulus=97)
    np.testing.assert_array_equal(home.fetch(row), expected[0, 0])
    plan = dxgemm.plan(*sent, modulus=97)
    np.testing.assert_array_equal(home.fetch(plan()), expected)
    assert "modulo 97" in repr(plan)
    options = {"triangular": ("lower", None), "modulus": 97}
    found = home.fetch(dxgemm.gemm(sent[0][0], sent[1], **options))
    np.testing.assert_array_equal(found, exact_modulo(97, np.tril(a[0]), b))
    found = dxgemm.gemm_symmetric(sent[0][0], modulus=97)
    np.testing.assert_array_equal(home.fetch(found), exact_modulo(97, a[0], a[0].T))
    lists = [home.send(a[0]), home.send(a[1][:2])], [home.send(b), home.send(b[:, :3].copy())]
    found = [home.fetch(x) for x in dxgemm.gemm_grouped(*lists, modulus=97)]
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1][:2, :3])


def test_without_products_c_is_reduced_by_the_modulus(home):
    c, a = np.int32([[-1, 97, 5]]), np.ones((1, 2), np.int32)
    for alpha, left in ((0, a), (1, a[:, :0])):
        b = np.ones((left.shape[1], 3), np.int32)
        sent = [home.send(x.copy()) for x in (left, b, c)]
        found = dxgemm.gemm(*sent, alpha, 1, modulus=97)
        np.testing.assert_array_equal(home.fetch(found), [[96, 0, 5]])
        sent = [home.send(left)], [home.send(b)], [home.send(c.copy())]
        (found,) = dxgemm.gemm_grouped(*sent, alpha, 1, modulus=97)
        np.testing.assert_array_equal(home.fetch(found), [[96, 0, 5]])


MODULAR_FAULTS = {
    "one": ({"modulus": 1}, errors.SettingError, "pass an integer from 2 to 2147483647"),
    "too large": ({"modulus": 2**31}, errors.SettingError, "modulus is 2147483648"),
    "True": ({"modulus": True}, errors.SettingError, "modulus is True"),
    "a float": ({"modulus": 97.0}, errors.SettingError, "modulus is 97.0"),
    "a precision": ({"modulus": 97, "precision": "tf32"}, errors.PrecisionError, "leave out"),
    "as a precision": ({"precision": "modulo 97"}, errors.PrecisionError, "is 'modulo 97'; pass"),
    "an epilogue": (
        {"modulus": 97, "epilogue": dxgemm.epilogues.scale(2)},
        errors.UnsupportedProblemError, "8 and 16 bits, whose sums are int32, not a modulus",
    ),
    "an inner function": (
        {"modulus": 97, "inner": dxgemm.inners.min_plus},
        errors.UnsupportedProblemError, "inner functions take integers",
    ),
    "a kernel": (
        {"modulus": 257, "implementation": "wgmma"},
        errors.UnsupportedProblemError, "does not compute modulo|needs a GPU",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", [dxgemm.gemm, dxgemm.plan, dxgemm.explain])
@pytest.mark.parametrize("options, error, text", MODULAR_FAULTS.values(), ids=MODULAR_FAULTS)
def test_what_does_not_go_with_a_modulus_is_refused(call, options, error, text):
    a, c = np.ones((2, 2), np.int8), np.full((2, 2), 500, np.int32)
    with pytest.raises(error, match=text):
        call(a, a, c, **options)
    assert (c == 500).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "bool"])
def test_a_modulus_is_for_integers(dtype):
    a = np.ones((2, 2), dtype)
    with pytest.raises(
        errors.DtypeError, match=f"integers of 8 to 64 bits, but a and b are {dtype}"
    ):
        dxgemm.gemm(a, a, modulus=97)
    with pytest.raises(errors.ScalarError, match=r"alpha is 0\.5"):
        dxgemm.gemm(np.ones((2, 2), np.int32), np.ones((2, 2), np.int32), alpha=0.5, modulus=97)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint32", "int64", "uint8 int8"])
def test_groups_of_integers(home, rng, dtype):
    a_dtype, b_dtype = factor_dtypes(dtype)
    sizes = (3, 4, 5), (1, 2, 7), (2, 0, 3), (3, 2, 0)
    lists = [
        (whole(rng, (m, k), a_dtype), whole(rng, (k, n), b_dtype)) if m * n * k else
        (np.ones((m, k), a_dtype), np.ones((k, n), b_dtype)) for m, n, k in sizes
    ]  # fmt: skip
    a, b = ([home.send(x) for x in side] for side in zip(*lists))
    for group in (dxgemm.gemm_grouped(a, b), dxgemm.plan_grouped(a, b)()):
        for (left, right), found in zip(lists, map(home.fetch, group), strict=True):
            np.testing.assert_array_equal(found, exact(left, right, found.dtype.name))
    for alpha in (0.5, 2**64, -(2**63) - 1):
        with pytest.raises(errors.ScalarError, match=r"alpha\[1\] is .*pass an integer from"):
            dxgemm.gemm_grouped(a, b, alpha=[1, alpha, 1, 1])


def test_one_kernel_computes_all_products_of_bytes():
    """Few rows of int16, of whose bytes one product alone has signs."""
    problem = contiguous_problem("int16", 8, 1000, 1024, layout="row_col")
    form = DigitForm(problem)
    kernel = choose(form.product, find_card("H200").facts)
    assert {kernel.implementation.supports(part) for part in form.passes} == {None}


def test_explain_says_what_a_modulus_costs():
    explained = dxgemm.explain_shape(4096, 4096, 4096, "int64", modulus=998_244_353, gpu="H200")
    assert explained.work.computed_as == "9 products of residues"
    assert "int64 modulo 998244353 on" in str(explained)
    with pytest.raises(errors.SettingError, match="modulus is 0"):
        dxgemm.explain_shape(8, 8, 8, "int64", modulus=0, gpu="H200")
