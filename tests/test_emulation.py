"""precision="emulated" in float32 and float64: products on a GPU, and which of them answers."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from known_devices import H200

import dxgemm
from dxgemm import errors
from dxgemm.choice.emulation_parts import parts_of_problem
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.product import lower_product
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.problem import flattened, oriented
from dxgemm.runtime import program
from dxgemm.runtime.program import ProgramLaunch


@dataclass(frozen=True)
class Scheme:
    """An emulated precision."""

    implementation: str
    kind: str  # a name from `KINDS`
    dtype: str
    # bound of a product's error, in units of |A| |B|: far below what the kernel guarantees in
    # float64, and above what random data need
    error: float
    rounding: float  # the same of what is added to it
    huge: float  # an element that cannot be split
    native: str  # the kernel that answers for what cannot be split

    def normal(self, rng, *size):
        return rng.standard_normal(size).astype(self.dtype)

    def bound(self, a, b):
        return self.error * (np.abs(a.astype(float)) @ np.abs(b.astype(float)))

    def gemm(self, *arrays, **options):
        options = {"implementation": self.implementation, "precision": "emulated", **options}
        return dxgemm.gemm(*arrays, **options)


SCHEMES = (
    Scheme("emulated_float32", "emulated", "float32", 2.0**-20, 2.0**-22, 3e38, "tuned"),
    Scheme(
        "emulated_float64", "emulated_float64", "float64", 2.0**-50, 2.0**-50, 1e300, "tensor_core"
    ),
    Scheme("emulated_float32_tile", "emulated", "float32", 2.0**-20, 2.0**-22, 3e38, "tuned"),
    Scheme(
        "emulated_float64_tile", "emulated_float64", "float64", 2.0**-50, 2.0**-50, 1e300,
        "tensor_core",
    ),
)  # fmt: skip


@pytest.fixture(params=SCHEMES, ids=lambda scheme: scheme.implementation)
def scheme(request):
    return request.param


@pytest.mark.parametrize(
    "dtype, precision",
    [("float32", "emulated"), ("float64", "emulated"), ("float64", "emulated14")],
)
def test_native_products_answer_where_parts_are_not_multiplied(home, dtype, precision):
    rng = np.random.default_rng(6)
    a, b = (home.send(rng.integers(-3, 4, (4, 4)).astype(dtype)) for _ in range(2))
    expected = home.fetch(a) @ home.fetch(b)
    np.testing.assert_array_equal(home.fetch(dxgemm.gemm(a, b, precision=precision)), expected)
    prepared = dxgemm.prepare(b, precision=precision)
    assert prepared.array is b
    np.testing.assert_array_equal(home.fetch(dxgemm.gemm(a, prepared)), expected)
    np.testing.assert_array_equal(home.fetch(dxgemm.plan(a, prepared)()), expected)
    explanation = dxgemm.explain(a, prepared)
    assert (explanation.work.precision, explanation.choice.fallback) == (precision, None)
    assert f"{precision} permitted" in str(explanation)


@pytest.mark.parametrize("m, n, k", [(1, 5, 7), (3, 1, 64), (40, 64, 7), (1, 1, 64)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_rows_of_a_batch_take_the_parts_that_one_row_takes(dtype, m, n, k):
    """`prepare` makes the parts of b for a single row."""
    row, batch = (
        contiguous_problem(dtype, *s, precision="emulated") for s in ((1, n, k), (m, n, k, 4))
    )
    oriented_b = "a" if batch.is_transposed else "b"
    shared = replace(batch, **{oriented_b: getattr(batch, oriented_b)._replace(batch=0)})
    flat = oriented(flattened(shared))
    assert flat.batch == 1
    assert parts_of_problem(flat)["a" if flat.is_transposed else "b"] == parts_of_problem(row)["b"]


def test_parts_are_made_once_where_b_is_the_transpose_of_a(monkeypatch, scheme):
    monkeypatch.setattr(program, "fallback_counter", lambda ordinal: SimpleNamespace(pointer=0))
    monkeypatch.setattr(program.Step, "bind", lambda step, *place: step)
    implementation = find_implementation(scheme.implementation)
    config = implementation.kernel.configs[0]
    rows = contiguous_problem(scheme.dtype, 64, 64, 64, precision="emulated")
    same, a = replace(rows, b=rows.a.transposed(), triangle="both"), 512
    for problem, b, copies in ((same, a, 1), (same, 1024, 2), (rows, a, 2)):
        lowered = lower_product(implementation, problem, config, H200)
        calls = [*ProgramLaunch(lowered, H200.arch, 0)._calls((a, b, 0, 0, 1.0, 0.0), 0)]
        places = {values[6] for step, values in calls if step.makes}
        assert len(places) == copies
        (product,) = (values for step, values in calls if step.spec.config is config)
        assert places == {*product[:2]}


def test_what_cannot_be_prepared(home):
    b, double = home.send(np.ones((4, 4), np.float32)), home.send(np.ones((4, 4)))
    for wrong in (b, double):
        with pytest.raises(errors.PrecisionError, match="prepare: precision is 'tf32'"):
            dxgemm.prepare(wrong, precision="tf32")
    with pytest.raises(errors.PrecisionError, match="'emulated' is for float32 and float64"):
        dxgemm.prepare(home.send(np.ones((4, 4), np.float16)))
    with pytest.raises(errors.PrecisionError, match="'emulated14' is for float64"):
        dxgemm.prepare(b, precision="emulated14")
    for precision in ("emulated1", "emulated21", "emulated016", "emulated-3", "emulateds"):
        with pytest.raises(errors.PrecisionError, match="pass 'tf32' or 'emulated'"):
            dxgemm.gemm(double, double, precision=precision)
    with pytest.raises(errors.ShapeError):
        dxgemm.prepare(b[0])
    with pytest.raises(errors.ArrayTypeError):
        dxgemm.prepare([[1.0]])


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
@pytest.mark.parametrize("b_order", ["row", "col"])
@pytest.mark.parametrize("a_order", ["row", "col"])
@pytest.mark.parametrize(
    "size", [(128, 128, 64), (128, 256, 128), (127, 129, 65), (1, 300, 77), (300, 5, 1000)]
)
def test_a_product_of_parts(hopper, scheme, size, a_order, b_order, batch):
    m, n, k = size
    rng = np.random.default_rng(7)
    a, b, c = (scheme.normal(rng, *batch, *shape) for shape in ((m, k), (k, n), (m, n)))

    def send(x, order):
        turned = np.ascontiguousarray(x.swapaxes(-1, -2) if order == "col" else x)
        sent = hopper.asarray(turned)
        return sent.swapaxes(-1, -2) if order == "col" else sent

    sent = send(a, a_order), send(b, b_order), send(c, "row")
    before = dxgemm.emulation_fallbacks()
    result = scheme.gemm(*sent, alpha=0.5, beta=2.0).get()
    assert dxgemm.emulation_fallbacks() == before
    error = np.abs(result - (0.5 * (a.astype(float) @ b) + 2.0 * c))
    assert (error <= scheme.bound(a, b) + scheme.rounding * np.abs(c)).all()
    again = scheme.gemm(send(a, a_order), dxgemm.prepare(sent[1]), send(c, "row"), 0.5, 2.0)
    np.testing.assert_array_equal(again.get(), result)


@pytest.mark.gpu
def test_what_cannot_be_split_is_multiplied_as_it_is(hopper, scheme):
    rng = np.random.default_rng(8)
    a, b = scheme.normal(rng, 256, 192), scheme.normal(rng, 192, 384)
    a[100, 7], b[5, 3] = np.inf, np.nan
    sent, before = (hopper.asarray(a), hopper.asarray(b)), dxgemm.emulation_fallbacks()
    results = [scheme.gemm(*sent), scheme.gemm(sent[0], dxgemm.prepare(sent[1]))]
    assert dxgemm.emulation_fallbacks() == before + 2
    with np.errstate(invalid="ignore"):
        expected = a.astype(float) @ b
    for result in results:
        np.testing.assert_array_equal(np.isnan(result.get()), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(result.get()), np.isinf(expected))


@pytest.mark.gpu
def test_nothing_is_read_where_alpha_is_zero(hopper, scheme):
    a, c = hopper.full((64, 64), np.nan, scheme.dtype), hopper.ones((64, 64), scheme.dtype)
    assert (scheme.gemm(a, a, c, 0.0, 2.0).get() == 2).all()


@pytest.mark.gpu
def test_an_epilogue_is_applied_once_by_either_product(hopper, scheme):
    rng = np.random.default_rng(9)
    a, b, v = (scheme.normal(rng, *size) for size in ((200, 100), (100, 300), (300,)))
    for element in (1.0, scheme.huge):
        a[0, 0] = element
        chain = dxgemm.epilogues.bias(hopper.asarray(v)) | dxgemm.epilogues.relu
        result = scheme.gemm(hopper.asarray(a), hopper.asarray(b), epilogue=chain).get()
        expected = np.maximum(a.astype(float) @ b + v, 0)
        limit = scheme.bound(a, b) + scheme.rounding * np.abs(v)
        assert (np.abs(result - expected) <= limit)[1:].all()


@pytest.mark.gpu
def test_runs_give_the_same_bits_and_a_plan_sees_new_contents(hopper, scheme):
    rng = np.random.default_rng(10)
    a, b = (hopper.asarray(scheme.normal(rng, 500, 500)) for _ in range(2))
    plan = dxgemm.plan(a, b, implementation=scheme.implementation, precision="emulated")
    first = plan().get()
    assert all((plan().get() == first).all() for _ in range(20))
    text = str(plan.explain())
    assert f"if the validity check fails: {scheme.native}" in text
    assert ("15 moduli" in text) == (scheme.dtype == "float64")
    a *= 2
    np.testing.assert_array_equal(plan().get(), 2 * first)
    a[3, 3] = np.nan
    assert np.isnan(plan().get()[3]).all()
    a[3, 3] = 1
    assert np.isfinite(plan().get()).all()
