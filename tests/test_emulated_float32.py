"""float32 precision="emulated": the parts and the validity check, by a model in NumPy."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from emulation import ACROSS, pointer_of, rows_of, split_by_kernel
from oracle.split_model import is_accepted, split_product, split_rows

import dxgemm
from dxgemm import reductions
from dxgemm.choice.emulation import native_config, partial_results
from dxgemm.choice.emulation_parts import operand_parts
from dxgemm.choice.kernel_files import file_spec
from dxgemm.handwritten.kernels import emulated_float32, validity_check
from dxgemm.handwritten.parts.emulation import UNFIT
from dxgemm.handwritten.parts.kernel import MOST_INDEX
from dxgemm.handwritten.parts.reduction import slot_count
from dxgemm.lower.emulated import check_arguments
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import FusedReduction, Fusion
from dxgemm.problem.layout import Strides
from dxgemm.runtime.binding import launch_kernel
from dxgemm.runtime.device import device_facts

SIZES = [(1, 1), (3, 1), (1, 5), (5, 7), (8, 64), (13, 33), (9, 40)]


def parts_by_kernel(home, x, across):
    """High and low parts, factors and status of the rows of x."""

    def parts_of(strides, rows, k):
        return operand_parts(strides, rows, k, 1, 16 if k % 4 == rows % 4 == 0 else 4)

    parts, memory, factors, status = split_by_kernel(home, parts_of, x, across)
    rows, k = x.shape
    lies_across = parts.innermost == "mn"
    inner, outer = (rows, k) if lies_across else (k, rows)
    halves = memory.buffer(0, parts.part_items, np.float16).reshape(2, outer, -1)[..., :inner]
    return halves.transpose(0, 2, 1) if lies_across else halves, factors, status


@pytest.mark.parametrize("across", ACROSS.values(), ids=ACROSS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_operand_is_split_as_the_model_splits_it(home, size, across):
    rng = np.random.default_rng(0)
    for spread, tiny in ((0, 1.0), (60, 1.0), (30, 2.0**-40)):
        x = rows_of(rng, size, spread).astype(np.float32)
        x[:, -1] *= np.float32(tiny)
        (hi, lo), factors, (weak, is_lax) = parts_by_kernel(home, x, across)
        expected = split_rows(x)
        np.testing.assert_array_equal(hi, expected.hi)
        np.testing.assert_array_equal(lo, expected.lo)
        np.testing.assert_array_equal(factors, expected.factors)
        assert (weak, is_lax) == (max(expected.weak), expected.is_lax)


@pytest.mark.parametrize("across", ACROSS.values(), ids=ACROSS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 2.0**80, -(2.0**80)])
def test_a_row_out_of_range_is_unfit(home, value, across):
    x = np.ones((6, 9), np.float32)
    x[4, 8] = value
    assert parts_by_kernel(home, x, across)[2][0] == UNFIT
    assert split_rows(x).weak[4] is None


@pytest.mark.parametrize(
    ("exponent", "fits"), [(-81, False), (-80, True), (79, True), (-149, False)]
)
def test_the_range_of_a_row(home, exponent, fits):
    x = np.full((4, 8), np.float32(2.0**exponent))
    assert (parts_by_kernel(home, x, False)[2][0] != UNFIT) == fits
    assert (split_rows(x).weak[0] is not None) == fits


@pytest.mark.parametrize(
    ("a_status", "b_status", "k", "flag"),
    [
        ([(0, 0)], [(0, 0)], 8, 0),
        ([(8, 0)], [(8, 0)], 8, 0),  # strict, however weak
        ([(3, 1)], [(4, 0)], 8, 0),
        ([(4, 0), (0, 1)], [(4, 0)], 8, 1),  # together more than 7/8 k
        ([(0, 0)] * 9 + [(5, 0)], [(0, 0)] * 5 + [(3, 1)], 8, 1),
        ([(UNFIT, 0)], [(0, 0)], 8, 1),
        ([(UNFIT, 0)], [(UNFIT, 0)], MOST_INDEX, 1),
    ],
)
def test_the_validity_check(home, a_status, b_status, k, flag):
    buffers = [home.send(np.array(status, np.int32)) for status in (a_status, b_status)]
    found, count = (home.send(np.full(1, 7, np.int32)) for _ in range(2))
    sizes = check_arguments(k, len(a_status), len(b_status))
    launch = launch_kernel(file_spec(validity_check, sizes), sizes, 1, device_facts(0).arch, 0)
    extra = [x for array in (*buffers, found, count) for x in (pointer_of(array), array.size)]
    launch((*(pointer_of(found),) * 4, 0, 0, *extra), 0)
    assert (home.fetch(found)[0], home.fetch(count)[0]) == (flag, 7 + flag)


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
    """Errors are no larger than those of float32 sums of 1024 terms, cuBLAS's for so long a k."""
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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"a_alignment": 4, "b": Strides(0, 3, 200)}, None),
        ({"precision": None}, "precision='emulated'"),
        ({"precision": "tf32"}, "precision='emulated'"),
        ({"k": 0}, None),
        ({"m": 2**31}, "32-bit"),
    ],
)
def test_what_the_kernel_refuses(change, reason):
    problem = contiguous_problem("float32", 128, 128, 128, precision="emulated")
    refusal = emulated_float32.KERNEL.supports(replace(problem, **change))
    assert refusal is None if reason is None else reason in refusal


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 65, 128, 200, 513])
@pytest.mark.parametrize("is_split", [True, False])
def test_either_product_leaves_partial_results_that_are_reduced(hopper, n, is_split):
    """Row 7 fails the validity check if not is_split; then all rows are multiplied as they are."""
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-9, 10, size).astype(np.float32) for size in ((300, 40), (40, n)))
    if not is_split:
        a[7] = np.where(np.arange(40) % 2, 2.0**100, 2.0**-100)
    product, before = a.astype(float) @ b, dxgemm.emulation_fallbacks()
    sent = hopper.asarray(a), hopper.asarray(b)
    for config in emulated_float32.KERNEL.configs:
        for reduction, expected in (
            (reductions.argmin(axis=1), product.argmin(axis=1)),
            (reductions.max(axis=1), product.max(axis=1).astype(np.float32)),
            (reductions.argmax(), np.unravel_index(product.argmax(), product.shape)),
        ):
            for right in (sent[1], dxgemm.prepare(sent[1])):
                found = dxgemm.gemm(
                    sent[0], right, epilogue=replace(reduction, fused=True),
                    implementation=("emulated_float32", config), precision="emulated",
                )  # fmt: skip
                np.testing.assert_array_equal(found.get(), expected, f"{config} {reduction}")
    fallbacks = 0 if is_split else 2 * 3 * len(emulated_float32.KERNEL.configs)
    assert dxgemm.emulation_fallbacks() == before + fallbacks


def test_both_products_leave_as_many_partial_results():
    """The product of parts has a tile for each partial result of a row, or fills the others."""
    for kind, axis in itertools.product(("smallest", "sum"), (1, None)):
        reduction = FusedReduction(kind, axis, ("float32",))
        for m, n in ((1, 1), (64, 64), (129, 257), (70000, 200), (8, 30000), (4096, 4096)):
            plain = contiguous_problem("float32", m, n, 64, precision="emulated")
            fusion = Fusion((), reduction.buffers, reduction=reduction)
            problem = replace(plain, epilogue=fusion, must_fuse=True)
            for config in emulated_float32.KERNEL.configs:
                native = native_config(problem, config)
                tile = native.tile_m, native.tile_n
                slots = slot_count(native, tile, reduction, (m, n), 4)
                assert partial_results(config, problem) == slots >= -(-n // config.tile_n)


NATIVE = """
import dxgemm
from dataclasses import replace
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.define import contiguous_problem
from dxgemm.lower.emulated import native_step
from dxgemm.compiler import compile_kernel
from dxgemm.epilogues.chain import bound_epilogue

@dxgemm.epilogue
def scaled(value, row, col):
    return value * 123.0

problem = contiguous_problem("float32", 64, 64, 64, precision="emulated")
fused = replace(problem, epilogue=Fusion(bound_epilogue(scaled).stages, ()))
print("0f42F60000" in compile_kernel(native_step(fused, None, ()).spec, "sm_90a").ptx)
"""


@pytest.mark.long_build
def test_the_native_product_has_the_epilogue(run_python):
    assert run_python(NATIVE).split() == ["True"]
