"""Epilogues and reductions of complex products: functions of complex numbers, and real results."""

import itertools

import numpy as np
import pytest
from complex_operands import DTYPES, IS_SIMULATED, integers, put
from test_complex import permitted

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.call.bind import lower
from dxgemm.call.complex_call import DIRECT
from dxgemm.choice import cublas_limits
from dxgemm.choice.legality import Candidate
from dxgemm.choice.registry import find_implementation
from dxgemm.epilogues import ColumnVector, Matrix, RowVector, Scalar, squared_magnitude
from dxgemm.problem.dtypes import COMPLEX_PARTS
from dxgemm.runtime.device import device_facts

# Kernels that have the epilogue; those of another one, of which `complex_sum` makes the result.
NAMED = [None, *DIRECT, "naive" if IS_SIMULATED else "shared_tile"]
SIZES = [(5, 6, 4)] if IS_SIMULATED else [(130, 67, 33), (1, 300, 257), (300, 1, 65)]
SMALL = SIZES[0]
AXES = [None, 0, 1]
HALF_TURN = 1j


@dxgemm.epilogue
def turned(value, row, col, row_vector: RowVector, shift: ColumnVector, by: Scalar, matrix: Matrix):
    return (value + row_vector) * HALF_TURN * by + shift + 2.0 * matrix + (row - 2 * col)


@dxgemm.epilogue(outputs=("before", "size"))
def kept(value, row, col):
    return value * 2.0, value, squared_magnitude(value, row, col)


@dxgemm.epilogue(real=True)
def summed(value, row, col, matrix: Matrix):
    return value.real + matrix.imag * col


@pytest.fixture(params=NAMED, ids=str)
def name(request):
    return request.param


@pytest.fixture(params=DTYPES)
def dtype(request, name):
    if name is not None:
        implementation = find_implementation(name)
        refusal = implementation.runs_on(device_facts(0).arch)
        if refusal or (name in DIRECT and request.param not in implementation.dtypes):
            pytest.skip(refusal or "not of this dtype")
    return request.param


def operands(sizes, dtype, batch=()):
    m, n, k = sizes
    shapes = (*batch, m, k), (*batch, k, n), (*batch, m, n)
    return tuple(integers(shape, dtype, seed) for seed, shape in enumerate(shapes))


def squares(values):
    return values.real**2 + values.imag**2


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("layout", "CFs")
def test_operands_of_every_kind(home, name, dtype, sizes, layout):
    (m, n, _), (a, b, c) = sizes, operands(sizes, dtype)
    row_vector, shift = integers((n,), dtype), integers((m,), dtype).real.copy()
    matrix, by = integers((m, n), dtype, 7), 3.0
    vectors = home.send(row_vector), home.send(shift)
    sent, _ = put(home, matrix, layout)
    bound = turned(*vectors, by, sent)
    rows, cols = np.ogrid[:m, :n]
    for alpha, beta in ((1, 0), (2 - 1j, 0), (2, 3), (1j, 1 - 1j)):
        value = alpha * (a @ b) + beta * c
        wanted = (value + row_vector) * 1j * by + shift[:, None] + 2 * matrix + (rows - 2 * cols)
        target, _ = put(home, c, layout)
        arrays = (put(home, x, layout)[0] for x in (a, b))
        result = dxgemm.gemm(*arrays, target, alpha, beta, epilogue=bound, implementation=name)
        assert result is target
        np.testing.assert_array_equal(home.fetch(result), wanted.astype(dtype))
        host = bound.with_values((row_vector, shift, by, matrix)).on_host(value.astype(dtype))[0]
        np.testing.assert_array_equal(host, wanted.astype(dtype))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_real_results_and_outputs(home, name, dtype, sizes):
    a, b, c = operands(sizes, dtype)
    real, value = COMPLEX_PARTS[dtype], (1 + 1j) * (a @ b) - 2 * c
    sent = [home.send(array) for array in (a, b, c)]
    scalars = {"alpha": 1 + 1j, "beta": -2, "implementation": name}
    out = home.send(np.full(c.shape, np.nan, real))
    result = dxgemm.gemm(*sent, out=out, epilogue=squared_magnitude, **scalars)
    assert result is out
    np.testing.assert_array_equal(home.fetch(out), squares(value))
    np.testing.assert_array_equal(home.fetch(sent[2]), c)
    before, size = home.send(np.zeros_like(c)), home.send(np.zeros(c.shape, real))
    dxgemm.gemm(*sent, epilogue=kept(before=before, size=size), **scalars)
    np.testing.assert_array_equal(home.fetch(sent[2]), 2 * value)
    np.testing.assert_array_equal(home.fetch(before), value)
    np.testing.assert_array_equal(home.fetch(size), squares(value))
    new = dxgemm.gemm(*sent[:2], epilogue=epilogues.scale(0.5) | summed(before))
    assert home.fetch(new).dtype == real
    wanted = (a @ b).real / 2 + value.imag * np.arange(c.shape[1])
    np.testing.assert_array_equal(home.fetch(new), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_magnitude_and_phase(home, dtype):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((9, 18)).view("complex128").astype(dtype) for _ in range(2))
    value, sent = a @ b.T, (home.send(a), home.send(b).T)
    places = 3e-6 if dtype == "complex64" else 1e-14
    for function, numpy_function in ((epilogues.magnitude, np.abs), (epilogues.phase, np.angle)):
        result = home.fetch(dxgemm.gemm(*sent, epilogue=function))
        np.testing.assert_allclose(result, numpy_function(value), rtol=places, atol=places)
        host, _ = function.bound.on_host(value)
        assert host.dtype == result.dtype == COMPLEX_PARTS[dtype]
        np.testing.assert_allclose(host, numpy_function(value), rtol=places)
    large = np.full((1, 1), 0.7 * np.finfo(value.real.dtype).max * (1 + 1j), dtype)
    one = home.send(np.ones((1, 1), dtype))
    assert np.isfinite(home.fetch(dxgemm.gemm(home.send(large), one, epilogue=epilogues.magnitude)))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("batch", "is_stored"), [((), True), ((3,), False)])
def test_reductions(home, name, dtype, axis, batch, is_stored):
    if IS_SIMULATED and name in DIRECT:
        pytest.skip("the kernels after the product are the same")
    if IS_SIMULATED and (AXES.index(axis) + len(batch) + (name is None) + (dtype == DTYPES[0])) % 2:
        pytest.skip("half of the cases: each value of a parameter with each of another")
    sizes = SMALL if IS_SIMULATED else (70, 45, 33)
    a, b, c = operands(sizes, dtype, batch)
    value = (2 * (a @ b) + 1j * c).astype(dtype)
    sent = [home.send(array) for array in (a, b, c)]
    axes = (-2, -1) if axis is None else axis - 2
    places = 1e-6 if dtype == "complex64" else 1e-13
    names = {"implementation": name, "alpha": 2, "beta": 1j}

    def reduced(epilogue, out_dtype=dtype):
        out = home.send(np.zeros(value.shape, out_dtype)) if is_stored else None
        result = dxgemm.gemm(*sent, epilogue=epilogue, out=out, **names)
        return home.fetch(result), None if out is None else home.fetch(out)

    total, stored = reduced(reductions.sum(axis))
    assert total.dtype == dtype
    np.testing.assert_array_equal(total, value.sum(axes))
    np.testing.assert_array_equal(total, reductions.sum(axis).on_host(value))
    if is_stored:
        np.testing.assert_array_equal(stored, value)
    mean, _ = reduced(reductions.mean(axis))
    np.testing.assert_allclose(mean, value.mean(axes), rtol=places)
    np.testing.assert_allclose(mean, reductions.mean(axis).on_host(value), rtol=places)
    real = COMPLEX_PARTS[dtype]
    norm, stored = reduced(reductions.norm(axis), real)
    np.testing.assert_allclose(norm, np.sqrt(squares(value).sum(axes)), rtol=places)
    np.testing.assert_allclose(norm, reductions.norm(axis).on_host(value), rtol=places)
    if is_stored:
        np.testing.assert_allclose(stored, np.abs(value), rtol=places)
    largest, _ = reduced(reductions.abs_max(axis), real)
    np.testing.assert_allclose(largest, np.abs(value).max(axes), rtol=places)
    place, _ = reduced(squared_magnitude | reductions.argmax(axis), real)
    np.testing.assert_array_equal(place, reductions.argmax(axis).on_host(squares(value)))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", [None, NAMED[-1]])
def test_reductions_of_rows_and_columns_alone(home, dtype, name):
    """The transposed product may cost less than the product: then that is computed."""
    for sizes, axis in itertools.product([(5, 1, 3), (1, 5, 1)], AXES):
        a, b, c = operands(sizes, dtype)
        sent = [home.send(array) for array in (a, b, c)]
        options = {"epilogue": reductions.sum(axis), "implementation": name}
        total = dxgemm.gemm(*sent, beta=1.0, **options)
        np.testing.assert_array_equal(home.fetch(total), (a @ b + c).sum(axis))
        out = home.send(np.zeros_like(c))
        for target in (None, out):
            total = dxgemm.gemm(*sent[:2], out=target, **options)
            np.testing.assert_array_equal(home.fetch(total), (a @ b).sum(axis))
        np.testing.assert_array_equal(home.fetch(out), a @ b)


def test_arrays_for_the_results_of_a_reduction(home):
    a, b, _ = operands(SMALL, "complex64")
    sent = home.send(a), home.send(b)
    norms, sums = (
        home.send(np.zeros(len(a), "float32")),
        home.send(np.zeros(2 * b.shape[1], a.dtype)),
    )
    assert dxgemm.gemm(*sent, epilogue=reductions.norm(axis=1, out=norms)) is norms
    np.testing.assert_allclose(home.fetch(norms), np.linalg.norm(a @ b, axis=1), rtol=1e-6)
    dxgemm.gemm(*sent, epilogue=reductions.sum(axis=0, out=sums[::2]))
    np.testing.assert_array_equal(home.fetch(sums)[::2], (a @ b).sum(axis=0))
    assert not home.fetch(sums)[1::2].any()
    with pytest.raises(errors.DtypeError, match="must be float32"):
        dxgemm.gemm(*sent, epilogue=reductions.norm(axis=1, out=sums[: len(a)]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("triangle", ["both", "lower", "upper"])
def test_hermitian_results(home, dtype, triangle):
    a = integers((6, 5) if IS_SIMULATED else (133, 40), dtype)
    value = a @ a.conj().T
    shift, out = integers((len(a),), dtype, 4), home.send(np.zeros_like(value))
    keep = {"both": np.array, "lower": np.tril, "upper": np.triu}[triangle]
    bound = epilogues.bias(home.send(shift)) | epilogues.scale(2.0)
    dxgemm.gemm_symmetric(home.send(a), triangle=triangle, out=out, epilogue=bound)
    np.testing.assert_array_equal(home.fetch(out), keep(2 * (value + shift)))
    out = home.send(np.zeros(value.shape, COMPLEX_PARTS[dtype]))
    dxgemm.gemm_symmetric(home.send(a), triangle=triangle, out=out, epilogue=squared_magnitude)
    np.testing.assert_array_equal(home.fetch(out), keep(squares(value)))


@pytest.mark.parametrize("precision", ["3m", pytest.param("emulated", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("conjugate", ["", "a", "b", "ab"])
def test_products_that_are_asked_for(home, precision, conjugate):
    (a, b, c), dtype = operands(SMALL, "complex64"), "complex64"
    left, right = a.conj() if "a" in conjugate else a, b.conj() if "b" in conjugate else b
    wanted = (2j * (left @ right) + c + b[0]).astype(dtype)
    sent = home.send(a), home.send(b), home.send(c)
    for second in (sent[1], home.send(np.ascontiguousarray(b.T)).T):
        result = dxgemm.gemm(
            sent[0], second, sent[2], 2j, 1, out=home.send(np.zeros_like(c)), conjugate=conjugate,
            epilogue=epilogues.bias(home.send(b[0])), **permitted(dtype, precision),
        )  # fmt: skip
        np.testing.assert_array_equal(home.fetch(result), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_of_k(home, dtype):
    """`complex_sum` adds them, and has the epilogue."""
    a, b, _ = operands((3, 5, 200) if IS_SIMULATED else (40, 50, 30000), dtype)
    name = "complex_tile" if dtype == "complex64" else "complex_batch"
    sent = home.send(a), home.send(b)
    result = dxgemm.gemm(*sent, implementation=name, epilogue=squared_magnitude)
    np.testing.assert_array_equal(home.fetch(result), squares(a @ b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [2, 5])
def test_a_batch_whose_matrices_have_operands_of_their_own(home, dtype, batch):
    m, n, k = SMALL
    a, b, c = operands((m, n, k), dtype, (batch,))
    vectors = integers((batch, n), dtype, 5)
    sent = [home.send(array) for array in (a, b, c)]
    result = dxgemm.gemm(*sent[:2], epilogue=epilogues.bias(home.send(vectors)))
    np.testing.assert_array_equal(home.fetch(result), a @ b + vectors[:, None])
    planned = dxgemm.plan(
        *sent, 1j, 1, epilogue=epilogues.bias(home.send(vectors)) | epilogues.scale(2.0)
    )
    np.testing.assert_array_equal(home.fetch(planned()), 2 * (1j * (a @ b) + c + vectors[:, None]))


def test_arrays_of_the_host():
    a, b, c = operands(SMALL, "complex64")
    result = dxgemm.gemm(a, b, epilogue=epilogues.bias(c[0]) | squared_magnitude)
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, squares(a @ b + c[0]))
    norms = dxgemm.gemm(a, b, epilogue=reductions.norm(axis=1))
    np.testing.assert_allclose(norms, np.linalg.norm(a @ b, axis=1), rtol=1e-6)


@pytest.mark.parametrize("axis", AXES)
def test_empty_results_and_sums(home, axis):
    a, b = (home.send(np.zeros(shape, "complex64")) for shape in ((3, 0), (0, 4)))
    result = dxgemm.gemm(a, b, epilogue=epilogues.bias(home.send(np.ones(4, "complex64"))))
    np.testing.assert_array_equal(home.fetch(result), np.ones((3, 4)))
    none = home.send(np.zeros((0, 3), "complex64"))
    for total in (reductions.sum(axis), reductions.norm(axis)):
        shape = {None: (), 0: (4,), 1: (3,)}[axis]
        assert not home.fetch(dxgemm.gemm(a, b, epilogue=total)).any()
        assert home.fetch(dxgemm.gemm(a, b, epilogue=total)).shape == shape
        shape = {None: (), 0: (4,), 1: (0,)}[axis]
        result = home.fetch(
            dxgemm.gemm(none, home.send(np.ones((3, 4), "complex64")), epilogue=total)
        )
        assert result.shape == shape and not result.any()


def test_the_plan_of_real_operands_is_as_before(home):
    a, b, _ = operands(SMALL, "complex64")
    real = a.real.copy(), b.real.copy()
    result = dxgemm.gemm(*map(home.send, real), epilogue=epilogues.magnitude)
    np.testing.assert_array_equal(home.fetch(result), np.abs(real[0] @ real[1]))


def test_explain_tells_who_has_the_epilogue(home):
    a, b, _ = (home.send(array) for array in operands(SMALL, "complex64"))
    name = "naive" if IS_SIMULATED else "tuned"
    explained = dxgemm.explain(a, b, epilogue=squared_magnitude, implementation=name)
    assert "epilogue: by another kernel" in explained.work.complex_form
    explained = dxgemm.explain(a, b, epilogue=reductions.norm(axis=1))
    assert "one kernel" in explained.work.complex_form and "unfused" in explained.work.reduction
    assert (
        explained.work.out_dtype == "float32"
        and explained.work.epilogue == "magnitude | norm(axis=1)"
    )


@dxgemm.epilogue(real=True)
def not_real(value, row, col):
    return value


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"epilogue": reductions.argmax(1)}, errors.UnsupportedProblemError, "magnitude | argmax"),
        ({"epilogue": reductions.max()}, errors.UnsupportedProblemError, "no max"),
        ({"epilogue": reductions.logsumexp()}, errors.UnsupportedProblemError, "no logsumexp"),
        ({"epilogue": epilogues.swiglu}, errors.UnsupportedProblemError, "pairs of columns"),
        ({"out": "complex64", "epilogue": epilogues.magnitude}, errors.DtypeError, "is float32"),
        ({"out": "float64", "epilogue": epilogues.magnitude}, errors.DtypeError, "is float32"),
        ({"out": "float32", "epilogue": epilogues.scale(2.0)}, errors.DtypeError, "differ"),
        ({"out": "float32"}, errors.DtypeError, "differ"),
        ({"beta": 1, "epilogue": epilogues.magnitude}, errors.DtypeError, "cannot replace it"),
        (
            {"implementation": "cublas", "epilogue": epilogues.scale(2.0)},
            errors.UnsupportedProblemError,
            "cublas",
        ),
    ],
    ids=str,
)
def test_what_is_refused(home, options, error, match):
    a, b, c = operands(SMALL, "complex64")
    sent = home.send(c)
    options = dict(options)
    if "out" in options:
        options["out"] = home.send(np.zeros(c.shape, options["out"]))
    with pytest.raises(error, match=match):
        dxgemm.gemm(home.send(a), home.send(b), sent, **options)
    np.testing.assert_array_equal(home.fetch(sent), c)


def test_operands_that_are_refused(home):
    a, b, c = operands(SMALL, "complex64")
    sent = home.send(a), home.send(b)
    with pytest.raises(errors.DtypeError, match="complex64, float32"):
        dxgemm.gemm(*sent, epilogue=epilogues.bias(home.send(c[0].astype("complex128"))))
    with pytest.raises(errors.DtypeError, match="operand can be float32"):
        real = [home.send(array.real.copy()) for array in (a, b)]
        dxgemm.gemm(*real, epilogue=epilogues.bias(home.send(c[0].copy())))
    with pytest.raises(errors.UnsupportedProblemError, match="not reduced"):
        dxgemm.gemm_symmetric(sent[0], epilogue=reductions.sum())


def test_a_function_that_is_not_real_after_all(home):
    a, b, _ = operands(SMALL, "complex64")
    with pytest.raises(errors.EpilogueError, match="not real"):
        dxgemm.gemm(home.send(a), home.send(b), epilogue=not_real)


def test_a_complex_number_is_not_stored_in_a_real_output(home):
    a, b, c = operands(SMALL, "complex64")
    before = home.send(np.zeros(c.shape, np.float32))
    bound = kept(before=before, size=home.send(np.zeros(c.shape, np.float32)))
    with pytest.raises(errors.EpilogueError, match=r"kept.*not real"):
        dxgemm.gemm(home.send(a), home.send(b), epilogue=bound)
    with pytest.raises(errors.EpilogueError, match=r"kept.*not real"):
        bound.on_host(a @ b)
    assert not home.fetch(before).any()


COMPILE_UNREAL = """
from dataclasses import replace
import dxgemm
from dxgemm import epilogues
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
from dxgemm.lower.ahead import common_specs

turned = dxgemm.epilogue(lambda value, row, col: (1 + 2j) * value)
kept = dxgemm.epilogue(outputs=("kept",))(lambda value, row, col: (value, 1j * value))
unreal = dxgemm.epilogue(real=True)(lambda value, row, col: value)

scales = (FusedOperand("number", "float32"),) * 2
output = (FusedOperand("output", "float32"),)
for name, dtype, stages, operands in (
    ("coalesced", "float32", (turned, epilogues.magnitude), ()),
    ("coalesced", "float32", (turned,), ()),
    ("coalesced", "float32", (kept,), output),
    ("complex_batch", "complex64", (unreal,), scales),
):
    *_, spec = common_specs(find_implementation(name), (dtype,))
    try:
        compile_kernel(replace(spec, epilogue=Fusion(stages, operands)), "sm_90a")
        print("compiled")
    except dxgemm.errors.EpilogueError as error:
        print(error)
"""


def test_a_complex_number_that_is_stored_as_a_real_one_is_not_compiled(run_python):
    refusal = "epilogue <lambda>: it returns a complex number, which is not real"
    said = [line.partition(";")[0] for line in run_python(COMPILE_UNREAL).splitlines()]
    assert said == ["compiled", refusal, refusal, refusal]


def test_a_real_result_needs_the_alignment_of_real_numbers():
    """An array of real numbers may begin between complex ones, where c is not read."""
    out = np.zeros(9, np.float32)[1:5].reshape(2, 2)
    c = np.zeros((2, 2), np.complex64)
    a, b = np.ones((2, 3), np.complex64), np.ones((3, 2), np.complex64)
    for addend in ((), (c,)):
        dxgemm.gemm(a, b, *addend, out=out, epilogue=epilogues.magnitude)
        assert (out == 3).all()


def test_cublas_reduces_no_complex_numbers(monkeypatch):
    monkeypatch.setattr(cublas_limits, "_is_installed", lambda: True)
    a, b, _ = operands(SMALL, "complex64")
    route = dxgemm.plan(a, b, epilogue=reductions.sum(axis=1), implementation=NAMED[-1]).route
    computation = (route.on_device or route).decision.computation
    cublas = Candidate(find_implementation("cublas"), None)
    with pytest.raises(errors.UnsupportedProblemError, match="reduces none"):
        lower(computation, cublas, device_facts(0))
