"""float64 precision="emulated": residues, validity check, reconstruction, by a model in NumPy."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import gcd, prod

import numpy as np
import pytest
from emulation import ACROSS, pointer_of, rows_of, split_by_kernel
from oracle import residue_model
from oracle.residue_model import combine, is_accepted, residues_of, scale_rows

import dxgemm
from dxgemm.choice.emulation_parts import operand_residues
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import emulated_float64, reconstruct
from dxgemm.handwritten.parts import moduli, residue_store
from dxgemm.handwritten.parts.emulation import PADDING, UNFIT
from dxgemm.handwritten.parts.triangle import TRIANGLES
from dxgemm.lower.emulated import reconstruction_step
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import MODULI_COUNTS
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.layout import Strides
from dxgemm.runtime.device import device_facts

SIZES = [(1, 1), (3, 1), (1, 5), (5, 7), (4, 32), (13, 33), (9, 40)]


def test_moduli_are_coprime_and_as_many_as_may_be_asked_for():
    assert residue_model.MODULI == moduli.MODULI
    assert all(gcd(x, y) == 1 for x, y in combinations(moduli.MODULI, 2))
    assert MODULI_COUNTS[0] == 2 and MODULI_COUNTS[-1] == len(moduli.MODULI)


@pytest.mark.parametrize("count", MODULI_COUNTS)
def test_sums_stay_below_half_the_product_of_the_moduli(count):
    product = prod(moduli.MODULI[:count])
    for k in (1, 2, 3, 64, 1000, 8192, moduli.LONGEST_K):
        bits = moduli.operand_bits(count, k)
        assert bits == residue_model.operand_bits(count, k) or bits < 0
        if bits >= 0:
            assert 2 * k * 4**bits < product
            assert bits == moduli.MOST_BITS or 2 * k * 4 ** (bits + 1) >= product * (1 - 2**-31)


def test_moduli_keep_53_bits_and_sums_fit_int32() -> None:
    for k in (1, 64, 1024, 8192, moduli.LONGEST_K):
        problem = contiguous_problem("float64", 8, 8, k, precision="emulated")
        count = moduli.moduli_count(problem)
        assert moduli.operand_bits(count, k) >= 53 > moduli.operand_bits(count - 1, k)
        assert moduli.moduli_count(replace(problem, precision="emulated12")) == 12
    assert moduli.LONGEST_K * max(m // 2 for m in moduli.MODULI if m % 2) ** 2 < 2**31


def bytes_of(value, width):
    return [value >> 8 * i & 255 for i in range(width)]


BIASES = [(0, 4), (2**31, 4), (2**62, 8), (2**63, 8)]


@pytest.mark.parametrize(("bias", "width"), BIASES)
def test_residues_by_float32_are_exact(bias, width):
    """`make_residue`, in NumPy, for every sum of bytes that it may be given."""
    rng = np.random.default_rng(0)
    low, high = -bias, 2 ** (8 * width) - bias
    drawn = (int(x) % (high - low) for x in rng.integers(0, 2**62, 50))
    values = [low, 0, 1, high - 1, *(low + x for x in drawn)]
    for modulus in moduli.MODULI:
        packed, offset = moduli.byte_weights(modulus, bias, width)
        weights = [w for word in packed for w in word.to_bytes(4, "little", signed=True)]
        weights = [w - 256 if w > 127 else w for w in weights]
        least, most = (offset + 255 * sum(w for w in weights if w * s > 0) for s in (-1, 1))
        total = np.arange(least, most + 1, dtype=np.int32)
        whole = total.view(np.float32).astype(np.int64)
        assert (np.diff(whole) == 1).all()
        # A product of two float32 is exact in float64.
        product = total.view(np.float32).astype(float) * float(np.float32(1 / modulus))
        quotient = (np.rint(product) + moduli.ROUNDING).astype(np.float32).view(np.int32)
        residue = (total.astype(np.int64) - quotient.astype(np.int64) * modulus).astype(np.int8)
        assert (2 * np.abs(residue.astype(int)) <= modulus).all()
        assert ((whole - residue) % modulus == 0).all()
        for value in values:
            index = sum(w * x for w, x in zip(weights, bytes_of(value + bias, width), strict=True))
            assert (int(whole[offset + index - least]) - value) % modulus == 0


def residues_by_kernel(home, x, across, count):
    """Remainders, factors and status of the rows of x."""

    def parts_of(strides, rows, k):
        return operand_residues(strides, rows, k, 1, 16 if k % 2 == 0 else 8, count)

    parts, memory, factors, status = split_by_kernel(home, parts_of, x, across)
    rows, k = x.shape
    by_modulus = memory.buffer(0, parts.part_items, np.int8).reshape(count, rows, -1)[..., :k]
    return by_modulus, factors, status


@pytest.mark.parametrize("across", ACROSS.values(), ids=ACROSS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_operand_is_split_as_the_model_splits_it(home, size, across):
    rng = np.random.default_rng(0)
    for count, spread, tiny in ((2, 0, 1.0), (15, 300, 1.0), (16, 30, 2.0**-40), (20, 5, 2.0**-60)):
        x = rows_of(rng, size, spread)
        x[:, -1] *= tiny
        found, factors, (weak, is_lax) = residues_by_kernel(home, x, across, count)
        expected = scale_rows(x, residue_model.operand_bits(count, size[1]))
        np.testing.assert_array_equal(found, residues_of(expected.integers, count))
        np.testing.assert_array_equal(factors, np.ldexp(1.0, expected.exponents))
        assert (weak, is_lax) == (max(expected.weak), expected.is_lax)


@pytest.mark.parametrize("across", ACROSS.values(), ids=ACROSS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 2.0**400, 5e-324])
def test_a_row_out_of_range_is_unfit(home, value, across):
    x = np.ones((6, 9))
    x[4, :8], x[4, 8] = 0, value
    assert residues_by_kernel(home, x, across, 4)[2][0] == UNFIT
    assert scale_rows(x, 10).weak[4] is None


@pytest.mark.parametrize(("exponent", "fits"), [(-401, False), (-400, True), (399, True)])
def test_the_range_of_a_row(home, exponent, fits):
    x = np.full((4, 8), 2.0**exponent)
    assert (residues_by_kernel(home, x, False, 15)[2][0] != UNFIT) == fits
    assert (scale_rows(x, 53).weak[0] is not None) == fits


def extremes(count):
    """Integers from -P / 2 to P / 2, near both ends, around 0 and powers of two, and at random."""
    product = prod(moduli.MODULI[:count])
    most = (product - 1 - product // 2**32) // 2
    rng = np.random.default_rng(count)
    near = [0, 1, most, most - 1, *(2**i for i in range(most.bit_length()))]
    near += [2**i - 1 for i in range(1, most.bit_length())]
    random = [int.from_bytes(rng.bytes(24), "little") % most for _ in range(50)]
    shorter = [value >> int(rng.integers(0, most.bit_length())) for value in random]
    return [sign * value for value in (*near, *random, *shorter) for sign in (1, -1)]


def nearest(value, modulus):
    return (value + modulus // 2) % modulus - modulus // 2


def reconstructed(home, problem, stored, factors, c, alpha, beta, before):
    """Result of the kernel, which writes nothing where the flag says that the check has failed."""
    launch = reconstruction_step(problem, ()).bind(device_facts(0).arch, 0)
    sent = [home.send(x) for x in (stored.ravel(), *factors, c)]
    for has_failed in (1, 0):
        flag, out = home.send(np.full(1, has_failed, np.int32)), home.send(before)
        extra = [v for array in (*sent[:3], flag) for v in (pointer_of(array), array.size)]
        pointers = (pointer_of(sent[0]),) * 2 + (pointer_of(sent[3]), pointer_of(out))
        launch((*pointers, alpha, beta, *extra), 0)
        if has_failed:
            assert (home.fetch(out) == before).all()
    return home.fetch(out)


@pytest.mark.parametrize("count", MODULI_COUNTS)
def test_sums_of_limbs_are_exact(count):
    weights, product = reconstruct.limbs_of_weights(count)
    limbs = range(len(product))
    whole = [
        sum(int(limb) << reconstruct.LIMB_BITS * i for i, limb in enumerate(parts))
        for parts in (*weights, product)
    ]
    total = prod(moduli.MODULI[:count])
    assert whole[-1] == total
    for index, weight in enumerate(whole[:-1]):
        remainder = [weight % modulus for modulus in moduli.MODULI[:count]]
        assert remainder == [int(i == index) for i in range(count)]
        assert abs(weight) <= total / 2
    quotient = 1 + 128 * sum(abs(weight) for weight in whole[:-1]) // total
    for limb in limbs:
        most = 128 * sum(abs(weight[limb]) for weight in weights)
        assert most + quotient * abs(product[limb]) + 2**12 < 2**53


@pytest.mark.skipif(not simulator_enabled(), reason="calls a device function")
@pytest.mark.parametrize("count", MODULI_COUNTS)
def test_an_integer_is_found_by_its_remainders(count):
    find = reconstruct.make_combine(count)
    for value in extremes(count):
        signed = [nearest(value, modulus) for modulus in moduli.MODULI[:count]]
        assert combine(signed) == value
        found = find(tuple(np.float64(remainder) for remainder in signed))
        error = abs(Fraction(float(found)) - value)
        unit = Fraction(float(np.spacing(abs(float(value)))))
        assert error <= unit / 2 * (1 + Fraction(1, 2**40)) and (value or found == 0)
        # An even modulus has two remainders that are nearest.
        other = (-signed[0] if abs(signed[0]) == 128 else signed[0], *signed[1:])
        assert find(tuple(np.float64(remainder) for remainder in other)) == found


@pytest.mark.parametrize("count", [2, 9, 16])
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 9), (2, 20)], ids=str)
def test_reconstruction_applies_factors_alpha_beta_and_c(home, size, count):
    m, n = size
    rng = np.random.default_rng(count)
    product = prod(moduli.MODULI[:count])
    integers = [
        [int(rng.integers(0, 2**62)) ** 2 % (product // 4) for _ in range(n)] for _ in range(m)
    ]
    pitch = residue_store.row_bytes(n)
    stored = np.zeros((count, m, pitch), np.int8)
    for index, modulus in enumerate(moduli.MODULI[:count]):
        stored[index, :, :n] = np.array(
            [[nearest(x, modulus) & 255 for x in row] for row in integers], np.uint8
        ).view(np.int8)
    factors = [np.ldexp(1.0, rng.integers(-99, 0, -(-s // PADDING) * PADDING)) for s in size]
    c = rng.standard_normal(size)
    problem = replace(
        contiguous_problem("float64", m, n, 8, precision=f"emulated{count}"), reads_c=True
    )
    found = reconstructed(home, problem, stored, factors, c, 0.5, 2.0, np.full(size, 7.0))
    exact = np.array([[float(x) for x in row] for row in integers])
    exact *= factors[0][:m, None] * factors[1][:n]
    np.testing.assert_allclose(found, 0.5 * exact + 2.0 * c, rtol=4e-16, atol=1e-300)


@dxgemm.epilogue
def placed(value, row, col):
    return value + 1000 * row + col


@pytest.mark.parametrize("beta", [0.0, 3.0])
@pytest.mark.parametrize("triangle", TRIANGLES)
@pytest.mark.parametrize("n", [1, 9, 18] if simulator_enabled() else [1, 9, 130, 300])
def test_reconstruction_mirrors_the_lower_triangle(home, n, triangle, beta):
    count, batch, rng = 3, 2, np.random.default_rng(n)
    lower = np.tril(rng.integers(-1000, 1000, (batch, n, n)))
    # Residues above the diagonal are left out by the product, where no tile reaches them.
    stored = rng.integers(-99, 100, (batch, count, n, residue_store.row_bytes(n))).astype(np.int8)
    for index, modulus in enumerate(moduli.MODULI[:count]):
        of_modulus = (lower + modulus // 2) % modulus - modulus // 2
        stored[:, index, :, :n][:, np.tri(n, dtype=bool)] = of_modulus[:, np.tri(n, dtype=bool)]
    factors = np.ones(batch * -(-n // PADDING) * PADDING)
    c, before = rng.integers(-9, 9, (batch, n, n)).astype(float), np.full((batch, n, n), 7.0)
    exact = 2 * (lower + np.tril(lower, -1).swapaxes(1, 2)) + beta * c
    is_written = np.tril(np.ones((n, n), bool)) if triangle != "upper" else np.tri(n, dtype=bool).T
    is_written |= triangle == "both"
    rows, cols = np.indices((n, n))
    for epilogue in (None, Fusion(bound_epilogue(placed).stages, ())):
        problem = contiguous_problem("float64", n, n, 8, batch, precision=f"emulated{count}")
        problem = replace(problem, reads_c=beta != 0, epilogue=epilogue, triangle=triangle)
        found = reconstructed(home, problem, stored, [factors] * 2, c, 2.0, beta, before)
        expected = exact + (1000 * rows + cols if epilogue else 0)
        np.testing.assert_array_equal(found, np.where(is_written, expected, before))


def exact(a, b):
    """a @ b.T and |a| @ |b|.T, as fractions."""
    rows, cols = ([[Fraction(float(v)) for v in row] for row in x] for x in (a, b))
    sums = [[sum(x * y for x, y in zip(r, c, strict=True)) for c in cols] for r in rows]
    sizes = [[sum(abs(x * y) for x, y in zip(r, c, strict=True)) for c in cols] for r in rows]
    return sums, sizes


@pytest.mark.parametrize("count", [2, 5, 10, 14, 15, 16, 18, 20])
def test_what_is_accepted_is_within_the_bound(count):
    rng = np.random.default_rng(count)
    accepted = refused = 0
    for _ in range(60):
        k = int(rng.integers(1, 60))
        bits = residue_model.operand_bits(count, k)
        a, b = (
            rng.standard_normal((2, k))
            * 2.0 ** (rng.uniform(-1, 1, (2, k)) * rng.choice([0, 2, 10, 40]))
            * (rng.random((2, k)) < rng.choice([0.1, 0.6, 1]))
            for _ in range(2)
        )
        rows = scale_rows(a, bits), scale_rows(b, bits)
        if not is_accepted(*rows):
            refused += 1
            continue
        accepted += 1
        found = residue_model.residue_product(*rows, count)
        sums, sizes = exact(a, b)
        for i, j in np.ndindex(found.shape):
            error = abs(Fraction(float(found[i, j])) - sums[i][j])
            bound = Fraction(2) ** (residue_model.LOST_BITS - bits) * sizes[i][j]
            assert error <= bound + Fraction(float(np.spacing(abs(found[i, j])))) / 2
    assert min(accepted, refused) > 5


@pytest.mark.parametrize("k", [64, 256, 1024])
@pytest.mark.parametrize("data", ["normal", "uniform", "rows over 60 binades"])
def test_the_model_is_as_right_as_float64(data, k):
    rng = np.random.default_rng(3)
    a, b = (
        rng.random((6, k)) if data == "uniform" else rng.standard_normal((6, k)) for _ in range(2)
    )
    if data == "rows over 60 binades":
        a *= 2.0 ** rng.uniform(-30, 30, (6, 1))
    problem = contiguous_problem("float64", 6, 6, k, precision="emulated")
    count = moduli.moduli_count(problem)
    bits = moduli.operand_bits(count, k)
    rows = scale_rows(a, bits), scale_rows(b, bits)
    assert is_accepted(*rows)
    sums, sizes = exact(a, b)
    native = np.zeros((6, 6))
    for x, y in zip(a.T, b.T, strict=True):
        native = native + np.multiply.outer(x, y)

    def errors_of(result):
        return np.array(
            [
                [float(abs(Fraction(float(r)) - s) / t) for r, s, t in zip(*line, strict=True)]
                for line in zip(result, sums, sizes, strict=True)
            ]
        )

    found = errors_of(residue_model.residue_product(*rows, count))
    assert found.max() <= errors_of(native).max()
    assert (found**2).mean() <= (errors_of(native) ** 2).mean()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"precision": "emulated2"}, None),
        ({"a_alignment": 8, "b": Strides(0, 3, 200)}, None),
        ({"precision": None}, "precision='emulated'"),
        ({"k": 2**17}, None),
        ({"k": 2**17 + 1}, "k up to 131072"),
        ({"k": 2**16, "precision": "emulated2"}, "no bit of the operands"),
        ({"k": 0}, None),
        ({"m": 2**31}, "32-bit"),
    ],
)
def test_what_the_kernel_refuses(change, reason):
    problem = contiguous_problem("float64", 128, 128, 128, precision="emulated")
    refusal = emulated_float64.KERNEL.supports(replace(problem, **change))
    assert refusal is None if reason is None else reason in refusal


def test_the_accuracy_is_stated():
    problem = contiguous_problem("float64", 8192, 8192, 8192, precision="emulated")
    assert emulated_float64.accuracy(problem) == (
        "16 moduli, 55 bits below the largest of a row of a or column of b; "
        "error at most 2**-42 |A| |B|"
    )


COMPILE = """
import json
from dxgemm.choice.emulation_parts import parts_of_problem
from dxgemm.problem.define import contiguous_problem
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
problem = contiguous_problem("float64", 512, 512, 512, precision="emulated16")
specs = [(part.spec, "sm_90a") for part in parts_of_problem(problem).values()]
for name, arch in (("emulated_float64", "sm_90a"), ("emulated_float64_tile", "sm_80")):
    product = find_implementation(name)
    specs.append((product.spec_for(product.configs("float64")[0], problem), arch))
for spec, arch in specs:
    kernel = compile_kernel(spec, arch)
    record = kernel.record
    calls = kernel.ptx.count("call"), kernel.ptx.count("dp4a"), kernel.ptx.count("k32.s32.s8.s8")
    print(json.dumps((record.registers, record.stack_bytes, *calls)))
"""


@pytest.mark.long_build
def test_kernels_stay_in_their_registers(run_python):
    compiled = [json.loads(line) for line in run_python(COMPILE).splitlines()]
    *splitting, product, tile = compiled
    for registers, stack_bytes, calls, sums_of_bytes, _ in splitting:
        # Two blocks share a multiprocessor; remainders by 256 need no upper bytes.
        assert (registers <= 64, stack_bytes, calls) == (True, 0, 0)
        assert sums_of_bytes >= 4 * 2 * 15
    registers, stack_bytes, calls, _, steps = product
    # In a kernel that calls anything, ptxas makes wgmmas wait for each other.
    assert (stack_bytes, calls, steps) == (0, 0, 4)
    assert registers * emulated_float64.KERNEL.configs[0].threads <= 65536
    registers, stack_bytes, calls, _, _ = tile
    assert (registers <= 255, stack_bytes, calls) == (True, 0, 0)


@pytest.fixture(params=["emulated_float64", "emulated_float64_tile"])
def product(request, cupy):
    """Emulated float64 by one implementation, of NumPy arrays."""

    def multiply(a, b, precision):
        sent = cupy.asarray(a), cupy.asarray(b)
        return dxgemm.gemm(*sent, implementation=request.param, precision=precision).get()

    if request.param == "emulated_float64":
        request.getfixturevalue("hopper")
    return multiply


@pytest.mark.gpu
@pytest.mark.parametrize("count", MODULI_COUNTS)
def test_small_integers_are_exact_by_any_number_of_moduli(product, count):
    k = 96
    most = 2 ** min(residue_model.operand_bits(count, k), 20) - 1
    rng = np.random.default_rng(count)
    a, b = (rng.integers(-most, most + 1, shape) for shape in ((130, k), (k, 260)))
    a[0, :], b[:, 0] = most, most
    result = product(a.astype(float), b.astype(float), f"emulated{count}")
    np.testing.assert_array_equal(result, (a @ b).astype(float))


@pytest.mark.gpu
def test_a_product_is_that_of_the_model(product):
    rng = np.random.default_rng(11)
    for count in (4, 11, 16, 20):
        a, b = rng.standard_normal((9, 200)), rng.standard_normal((200, 17))
        bits = residue_model.operand_bits(count, 200)
        rows = scale_rows(a, bits), scale_rows(b.T, bits)
        expected = residue_model.residue_product(*rows, count)
        result = product(a, b, f"emulated{count}")
        np.testing.assert_array_equal(result, expected)
