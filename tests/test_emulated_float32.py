"""precision="split": the parts and the verdict by a model in NumPy, its product on a GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import dxgemm
from dxgemm import errors, reductions
from dxgemm._fusion import FusedReduction, Fusion
from dxgemm._gpu import simulator_enabled
from dxgemm._parts import operand_parts
from dxgemm._problem import Strides, contiguous_problem
from dxgemm._split import native_config, partial_results, validity_problem, validity_spec
from dxgemm.handwritten.kernels import emulated_float32
from dxgemm.handwritten.parts.emulation import UNFIT
from dxgemm.handwritten.parts.reduction import slot_count
from dxgemm.runtime.binding import launch_kernel
from dxgemm.runtime.device import device_facts
from dxgemm.testing.inputs import operands
from dxgemm.testing.split_model import is_accepted, split_product, split_rows

SIZES = [(1, 1), (3, 1), (1, 5), (5, 7), (8, 64), (13, 33), (9, 40)]


def pointer_of(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def split_by_kernel(home, x, across):
    """Parts, factors and status of rows that lie along k, or across it."""
    rows, k = x.shape
    sent = home.send(np.ascontiguousarray(x.T if across else x))
    strides = Strides(0, 1, rows) if across else Strides(0, k, 1)
    strides = Strides(0, *(s if n > 1 else 0 for s, n in zip(strides[1:], x.shape, strict=True)))
    parts = operand_parts(strides, rows, k, 1, 16 if k % 4 == rows % 4 == 0 else 4)
    memory = home.send(np.full(parts.size, 0xFF, np.uint8))
    launch = parts.bind(device_facts(0).arch, 0)
    launch(*(pointer_of(sent),) * 4, 0, 0, 0, parts.arguments(pointer_of(memory)))
    stored = home.fetch(memory)

    def buffer(address, items, dtype):
        return stored[address : address + items * np.dtype(dtype).itemsize].view(dtype)

    lies_across = parts.innermost == "mn"
    inner, outer = (rows, k) if lies_across else (k, rows)
    halves = buffer(0, parts.part_items, np.float16).reshape(2, outer, -1)[..., :inner]
    status = buffer(*parts.status(0), np.int32).reshape(-1, 2)
    return (
        halves.transpose(0, 2, 1) if lies_across else halves,
        buffer(*parts.factors(0), np.float32)[:rows],
        status.max(axis=0),
    )


def rows_of(rng, size, spread):
    x = rng.standard_normal(size) * 2.0 ** rng.uniform(-spread, spread, (size[0], 1))
    x[rng.random(size) < 0.1] = 0
    if size[0] > 4:
        x[2] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("across", [False, True], ids=["along_k", "across_k"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_operand_is_split_as_the_model_splits_it(home, size, across):
    rng = np.random.default_rng(0)
    for spread, tiny in ((0, 1.0), (60, 1.0), (30, 2.0**-40)):
        x = rows_of(rng, size, spread)
        x[:, -1] *= np.float32(tiny)
        (hi, lo), factors, (weak, is_lax) = split_by_kernel(home, x, across)
        expected = split_rows(x)
        np.testing.assert_array_equal(hi, expected.hi)
        np.testing.assert_array_equal(lo, expected.lo)
        np.testing.assert_array_equal(factors, expected.factors)
        assert (weak, is_lax) == (max(expected.weak), expected.is_lax)


@pytest.mark.parametrize("across", [False, True], ids=["along_k", "across_k"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 2.0**80, -(2.0**80)])
def test_a_row_out_of_range_is_unfit(home, value, across):
    x = np.ones((6, 9), np.float32)
    x[4, 8] = value
    assert split_by_kernel(home, x, across)[2][0] == UNFIT
    assert split_rows(x).weak[4] is None


@pytest.mark.parametrize(
    ("exponent", "fits"), [(-81, False), (-80, True), (79, True), (-149, False)]
)
def test_the_range_of_a_row(home, exponent, fits):
    x = np.full((4, 8), np.float32(2.0**exponent))
    assert (split_by_kernel(home, x, False)[2][0] != UNFIT) == fits
    assert (split_rows(x).weak[0] is not None) == fits


@pytest.mark.parametrize(
    ("a_status", "b_status", "k", "verdict"),
    [
        ([(0, 0)], [(0, 0)], 8, 0),
        ([(8, 0)], [(8, 0)], 8, 0),  # strict, however weak
        ([(3, 1)], [(4, 0)], 8, 0),
        ([(4, 0), (0, 1)], [(4, 0)], 8, 1),  # together more than 7/8 k
        ([(0, 0)] * 9 + [(5, 0)], [(0, 0)] * 5 + [(3, 1)], 8, 1),
        ([(UNFIT, 0)], [(0, 0)], 8, 1),
        ([(UNFIT, 0)], [(UNFIT, 0)], 2**31 - 1, 1),
    ],
)
def test_the_verdict(home, a_status, b_status, k, verdict):
    buffers = [home.send(np.array(status, np.int32)) for status in (a_status, b_status)]
    found, count = (home.send(np.full(1, 7, np.int32)) for _ in range(2))
    problem = validity_problem(k, len(a_status), len(b_status))
    launch = launch_kernel(validity_spec(problem), problem, 1, device_facts(0).arch, 0)
    extra = [x for array in (*buffers, found, count) for x in (pointer_of(array), array.size)]
    launch(*(pointer_of(found),) * 4, 0, 0, 0, tuple(extra))
    assert (home.fetch(found)[0], home.fetch(count)[0]) == (verdict, 7 + verdict)


def exact(a, b):
    """a @ b.T and |a| @ |b|.T."""
    a, b = a.astype(np.longdouble), b.astype(np.longdouble)
    return a @ b.T, np.abs(a) @ np.abs(b).T


def in_float32(a, b):
    """a @ b.T, one fused multiply-add after the other."""
    total = np.zeros((len(a), len(b)), np.float32)
    for x, y in zip(a.T.astype(float), b.T.astype(float), strict=True):
        total = (total + np.multiply.outer(x, y)).astype(np.float32)
    return total


def rms(error, size=1):
    return np.sqrt(((error / size) ** 2).mean())


DATA = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "uniform": lambda rng, size: rng.random(size),
    "rows over 60 binades": lambda rng, size: (
        rng.standard_normal(size) * 2.0 ** rng.uniform(-30, 30, (size[0], 1))
    ),
    "cancelling": lambda rng, size: rng.standard_normal(size) * (-1) ** np.arange(size[1]),
}


@pytest.mark.parametrize("k", [64, 256, 1024])
@pytest.mark.parametrize("data", DATA)
def test_the_model_is_as_right_as_float32(data, k):
    rng = np.random.default_rng(3)
    a, b = (DATA[data](rng, (24, k)).astype(np.float32) for _ in range(2))
    value, size = exact(a, b)
    rows = split_rows(a), split_rows(b)
    assert is_accepted(*rows)
    config = emulated_float32.KERNEL.configs[0]
    error = np.abs(split_product(*rows, 16 * config.promote, config.section) - value) / size
    native = np.abs(in_float32(a, b) - value) / size
    assert error.max() <= native.max()
    assert rms(error) <= rms(native)


def test_without_promotion_truncation_is_a_bias():
    rng = np.random.default_rng(4)
    a, b = (rng.random((16, 1024)).astype(np.float32) for _ in range(2))
    value, size = exact(a, b)
    rows = split_rows(a), split_rows(b)
    often, never = (np.abs(split_product(*rows, k, 1024) - value) / size for k in (32, 1024))
    assert never.mean() > 20 * often.mean()


def test_sections_keep_long_sums_of_one_sign_right():
    """As right as float32 sums of 1024 terms each, which is how cuBLAS cuts so long a k."""
    rng = np.random.default_rng(4)
    k, config = 2**14, emulated_float32.KERNEL.configs[0]
    a, b = (rng.random((8, k)).astype(np.float32) for _ in range(2))
    value, size = exact(a, b)
    rows = split_rows(a), split_rows(b)
    in_sections, in_one = (
        rms(split_product(*rows, 16 * config.promote, section) - value, size)
        for section in (config.section, k)
    )
    native = np.zeros(value.shape, np.float32)
    for first in range(0, k, 1024):
        native += in_float32(a[:, first : first + 1024], b[:, first : first + 1024])
    assert in_sections <= rms(native - value, size)
    assert in_one > 3 * in_sections


def test_what_is_accepted_is_within_the_bound():
    rng = np.random.default_rng(5)
    accepted = refused = 0
    for _ in range(300):
        k = int(rng.integers(1, 40))
        a, b = (
            (
                rng.standard_normal((3, k))
                * 2.0 ** (rng.uniform(-1, 1, (3, k)) * rng.choice([0, 2, 10, 40]))
                * (rng.random((3, k)) < rng.choice([0.1, 0.6, 1]))
            ).astype(np.float32)
            for _ in range(2)
        )
        rows = split_rows(a), split_rows(b)
        if not is_accepted(*rows):
            refused += 1
            continue
        accepted += 1
        value, size = exact(a, b)
        x, y = rows
        hi, lo, high, low = (part.astype(np.longdouble) for part in (x.hi, x.lo, y.hi, y.lo))
        sums = hi @ high.T + (hi @ low.T + lo @ high.T) / 2**12
        error = np.abs(sums * x.factors[:, None] * y.factors - value)
        assert (error <= 2.0**-21 * (1 + 2.0**-5) * size).all()
    assert min(accepted, refused) > 50


def test_float32_answers_where_the_parts_are_not_multiplied(home):
    rng = np.random.default_rng(6)
    a, b = (home.send(rng.integers(-3, 4, (4, 4)).astype(np.float32)) for _ in range(2))
    expected = home.fetch(a) @ home.fetch(b)
    np.testing.assert_array_equal(home.fetch(dxgemm.gemm(a, b, precision="split")), expected)
    prepared = dxgemm.prepare(b)
    assert prepared.array is b
    np.testing.assert_array_equal(home.fetch(dxgemm.gemm(a, prepared)), expected)
    np.testing.assert_array_equal(home.fetch(dxgemm.plan(a, prepared)()), expected)
    explanation = dxgemm.explain(a, prepared)
    assert explanation.precision == "split"
    assert explanation.fallback is None
    assert "split permitted" in str(explanation)


def test_what_cannot_be_prepared(home):
    b = home.send(np.ones((4, 4), np.float32))
    with pytest.raises(errors.PrecisionError, match="prepare: precision is 'tf32'"):
        dxgemm.prepare(b, precision="tf32")
    with pytest.raises(errors.PrecisionError, match="'split' is for float32 and float64"):
        dxgemm.prepare(home.send(np.ones((4, 4), np.float16)))
    with pytest.raises(errors.ShapeError):
        dxgemm.prepare(b[0])
    with pytest.raises(errors.ArrayTypeError):
        dxgemm.prepare([[1.0]])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"a_alignment": 4, "b": Strides(0, 3, 200)}, None),
        ({"precision": None}, "precision='split'"),
        ({"precision": "tf32"}, "precision='split'"),
        ({"k": 0}, None),
        ({"m": 2**31}, "32-bit"),
    ],
)
def test_what_split_wgmma_refuses(change, reason):
    problem = contiguous_problem("float32", 128, 128, 128, precision="split")
    refusal = emulated_float32.KERNEL.supports(replace(problem, **change))
    assert refusal is None if reason is None else reason in refusal


@pytest.fixture
def hopper():
    """CuPy, on a GPU that has the kernel."""
    cupy = pytest.importorskip("cupy")
    if simulator_enabled() or cupy.cuda.Device().compute_capability != "90":
        pytest.skip("needs a GPU of compute capability 9.0")
    return cupy


def split_gemm(*arrays, **options):
    return dxgemm.gemm(*arrays, implementation="emulated_float32", precision="split", **options)


def normal(rng, *size):
    return rng.standard_normal(size, dtype=np.float32)


def bound(a, b):
    return 2.0**-20 * (np.abs(a.astype(float)) @ np.abs(b.astype(float)))


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
@pytest.mark.parametrize("b_order", ["row", "col"])
@pytest.mark.parametrize("a_order", ["row", "col"])
@pytest.mark.parametrize("size", [(128, 128, 64), (127, 129, 65), (1, 300, 77), (300, 5, 1000)])
def test_a_product_of_parts(hopper, size, a_order, b_order, batch):
    m, n, k = size
    rng = np.random.default_rng(7)
    a, b, c = normal(rng, *batch, m, k), normal(rng, *batch, k, n), normal(rng, *batch, m, n)

    def send(x, order):
        turned = np.ascontiguousarray(x.swapaxes(-1, -2) if order == "col" else x)
        sent = hopper.asarray(turned)
        return sent.swapaxes(-1, -2) if order == "col" else sent

    sent = send(a, a_order), send(b, b_order), send(c, "row")
    before = dxgemm.split_fallbacks()
    result = split_gemm(*sent, alpha=0.5, beta=2.0).get()
    assert dxgemm.split_fallbacks() == before
    error = np.abs(result - (0.5 * (a.astype(float) @ b) + 2.0 * c))
    assert (error <= bound(a, b) + 2.0**-22 * np.abs(c)).all()
    again = split_gemm(send(a, a_order), dxgemm.prepare(sent[1]), send(c, "row"), 0.5, 2.0)
    np.testing.assert_array_equal(again.get(), result)


@pytest.mark.gpu
def test_what_cannot_be_split_is_multiplied_as_it_is(hopper):
    rng = np.random.default_rng(8)
    a, b = normal(rng, 256, 192), normal(rng, 192, 384)
    a[100, 7] = np.inf
    b[5, 3] = np.nan
    sent, before = (hopper.asarray(a), hopper.asarray(b)), dxgemm.split_fallbacks()
    results = [split_gemm(*sent), split_gemm(sent[0], dxgemm.prepare(sent[1]))]
    assert dxgemm.split_fallbacks() == before + 2
    with np.errstate(invalid="ignore"):
        expected = a.astype(float) @ b
    for result in results:
        np.testing.assert_array_equal(np.isnan(result.get()), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(result.get()), np.isinf(expected))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 65, 128, 200, 513])
@pytest.mark.parametrize("is_split", [True, False])
def test_either_product_leaves_partial_results_that_are_reduced(hopper, n, is_split):
    """Of one row nothing is scaled within the bound, so that all are multiplied as they are."""
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-9, 10, size).astype(np.float32) for size in ((300, 40), (40, n)))
    if not is_split:
        a[7] = np.where(np.arange(40) % 2, 2.0**100, 2.0**-100)
    product, before = a.astype(float) @ b, dxgemm.split_fallbacks()
    sent = hopper.asarray(a), hopper.asarray(b)
    for config in emulated_float32.KERNEL.configs:
        for reduction, expected in (
            (reductions.argmin(axis=1), product.argmin(axis=1)),
            (reductions.max(axis=1), product.max(axis=1).astype(np.float32)),
            (reductions.argmax(), np.unravel_index(product.argmax(), product.shape)),
        ):
            for right in (sent[1], dxgemm.prepare(sent[1])):
                found = dxgemm.gemm(
                    sent[0],
                    right,
                    epilogue=replace(reduction, fused=True),
                    implementation=("emulated_float32", config),
                    precision="split",
                )
                np.testing.assert_array_equal(found.get(), expected, f"{config} {reduction}")
    fallbacks = 0 if is_split else 2 * 3 * len(emulated_float32.KERNEL.configs)
    assert dxgemm.split_fallbacks() == before + fallbacks


def test_both_products_leave_as_many_partial_results():
    """That of parts has a tile for each, or else fills it: it never has more."""
    for kind, axis in itertools.product(("smallest", "sum"), (1, None)):
        reduction = FusedReduction(kind, axis, ("float32",))
        for m, n in ((1, 1), (64, 64), (129, 257), (70000, 200), (8, 30000), (4096, 4096)):
            plain = contiguous_problem("float32", m, n, 64, precision="split")
            fusion = Fusion((), reduction.buffers, reduction=reduction)
            problem = replace(plain, epilogue=fusion, must_fuse=True)
            for config in emulated_float32.KERNEL.configs:
                native = native_config(problem, config)
                tile = native.tile_m, native.tile_n
                slots = slot_count(native, tile, reduction, (m, n), 4)
                assert partial_results(config, problem) == slots >= -(-n // config.tile_n)


@pytest.mark.gpu
def test_the_canary_is_exact(hopper):
    a, b, _ = operands("canary", (256, 2048), (2048, 384), (256, 384), "split")
    result = split_gemm(hopper.asarray(a), hopper.asarray(b)).get()
    np.testing.assert_array_equal(result, a.astype(float) @ b)


@pytest.mark.gpu
def test_nothing_is_read_where_alpha_is_zero(hopper):
    a, c = hopper.full((64, 64), np.nan, np.float32), hopper.ones((64, 64), np.float32)
    assert (split_gemm(a, a, c, 0.0, 2.0).get() == 2).all()


NATIVE = """
import dxgemm
from dataclasses import replace
from dxgemm._fusion import Fusion
from dxgemm._problem import contiguous_problem
from dxgemm._split import other_specs
from dxgemm.compiler import compile_kernel
from dxgemm.epilogues.function import bound_epilogue

@dxgemm.epilogue
def scaled(value, row, col):
    return value * 123.0

plain = replace(contiguous_problem("float32", 64, 64, 64), precision="split")
fused = replace(plain, epilogue=Fusion(bound_epilogue(scaled).shape.functions, ()))
for problem in plain, fused:
    print("0f42F60000" in compile_kernel(other_specs(problem)[-1], "sm_90a").ptx)
"""


def test_the_native_product_has_the_epilogue(run_python):
    assert run_python(NATIVE).split() == ["False", "True"]


@pytest.mark.gpu
def test_an_epilogue_is_applied_once_by_either_product(hopper):
    rng = np.random.default_rng(9)
    a, b, v = normal(rng, 200, 100), normal(rng, 100, 300), normal(rng, 300)
    for element in (1.0, 3e38):
        a[0, 0] = element
        chain = dxgemm.epilogues.bias(hopper.asarray(v)) | dxgemm.epilogues.relu
        result = split_gemm(hopper.asarray(a), hopper.asarray(b), epilogue=chain).get()
        expected = np.maximum(a.astype(float) @ b + v, 0)
        assert (np.abs(result - expected) <= bound(a, b) + 2.0**-22 * np.abs(v))[1:].all()


@pytest.mark.gpu
def test_it_is_deterministic_and_a_plan_sees_new_contents(hopper):
    rng = np.random.default_rng(10)
    a, b = (hopper.asarray(normal(rng, 500, 500)) for _ in range(2))
    plan = dxgemm.plan(a, b, implementation="emulated_float32", precision="split")
    first = plan().get()
    assert all((plan().get() == first).all() for _ in range(20))
    assert "or, for what cannot be split: tuned" in str(plan.explain())
    a *= 2
    np.testing.assert_array_equal(plan().get(), 2 * first)
    a[3, 3] = np.nan
    assert np.isnan(plan().get()[3]).all()
    a[3, 3] = 1
    assert np.isfinite(plan().get()).all()
