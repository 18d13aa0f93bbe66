"""Whole small problems by Hopper's kernels, on stand-ins for TMA and wgmma.

All blocks of a launch run, some of them for two tiles, so that the ring goes round. Every element
of the result is compared; none beside them is written.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pytest

from dxgemm.gpu.status import simulator_enabled

if not simulator_enabled():
    pytest.skip("needs the simulator", allow_module_level=True)

import simulated_instructions
from simulated_kernels import (
    FLAG,
    Table,
    first_config,
    launch,
    matrices,
    ones,
    problem_of_shape,
    product_of,
)  # fmt: skip
from sparse_operands import SparseOperand, bits_of, plain_device_functions, values_of

from dxgemm import epilogues
from dxgemm.choice.emulation import product_problem
from dxgemm.choice.kernel_files import file_spec
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import KernelSpec
from dxgemm.epilogues.block_mask import block_mask
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.epilogues.operand_scales import block_scales
from dxgemm.gpu.facts import SIMULATED_DEVICE
from dxgemm.handwritten.kernels import digit_wgmma
from dxgemm.handwritten.kernels.wgmma import Config
from dxgemm.handwritten.kernels.wgmma_float8 import Config as Float8Config
from dxgemm.handwritten.parts.digit_terms import digits_of, terms_of
from dxgemm.handwritten.parts.emulation import SCHEMES, parts_layout
from dxgemm.handwritten.parts.group_table import FIELDS, ROW_ITEMS
from dxgemm.handwritten.parts.moduli import MODULI
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.handwritten.parts.tensor_map import operand_of
from dxgemm.lower.group_wgmma import FILES, lower_groups_of_k, wgmma_step
from dxgemm.problem.dtypes import factor_dtypes, result_dtypes
from dxgemm.problem.fusion import FusedOperand, FusedReduction, Fusion
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem

HALF = "float16"
ALPHA, BETA = 2, 3


@epilogues.epilogue
def placed(value, row, col):
    """The value, moved by where it is."""
    return max(value, 0.0) + 2.0 * row + 3.0 * col


PLACED, RELU = (Fusion(bound_epilogue(e).stages, ()) for e in (placed, epilogues.relu))


@pytest.fixture(autouse=True)
def _stand_ins():
    with simulated_instructions.instructions(), plain_device_functions():
        yield


def problem_of(
    dtype: str, shape: tuple[int, int, int, int], orders: tuple[str, str] = ("row", "col"),
    c_order: str = "row", **options: Any,
) -> Problem:  # fmt: skip
    """A problem of (batch, m, n, k) whose lines follow one another."""
    batch, m, n, k = shape
    out = matrices(batch * options.get("slices", 1), m, n, c_order)
    return Problem(
        dtype=dtype, m=m, n=n, k=k, batch=batch, a=matrices(batch, m, k, orders[0]),
        b=matrices(batch, k, n, orders[1]), c=out, out=out, in_place=False,
        **{"out_dtype": dtype, "reads_c": True, **options},
    )  # fmt: skip


def operands_of(problem: Problem) -> dict[str, SparseOperand]:
    p = problem
    sizes = {"a": (p.m, p.k), "b": (p.k, p.n), "c": (p.m, p.n), "out": (p.m, p.n)}
    a_dtype, b_dtype = factor_dtypes(p.dtype)
    dtypes = {"a": a_dtype, "b": b_dtype, "c": p.c_dtype, "out": p.out_dtype}
    batches = {"out": p.batch * p.slices}
    operands = {}
    for name, size in sizes.items():
        shape = batches.get(name, p.batch), *size
        operands[name] = SparseOperand(dtypes[name], shape, getattr(p, name))
    return operands


def run(
    spec: KernelSpec, problem: Problem, operands: dict[str, Any], extra: tuple[Any, ...] = (),
    factors: tuple[int, int] = (ALPHA, BETA), most_blocks: int = 3, own: Problem | None = None,
) -> None:  # fmt: skip
    """Run all blocks of a launch; `own` is the problem that the kernel is given, if another."""
    kernel = import_module(spec.module).KERNEL
    blocks = kernel.grid(spec.config, problem, most_blocks)
    maps = kernel.tensor_maps(spec.config, problem, *(spec.variant if own else ()))
    scalar = np.dtype(problem.scalar_dtype).type
    for x, y in product(range(blocks), range(problem.slices)):
        launch(
            spec, own or problem, operands, extra, tuple(map(scalar, factors)),
            (blocks, problem.slices, 1), (x, y, 0), maps,
        )  # fmt: skip


def spec_of(name: str, problem: Problem, config: Any = None) -> KernelSpec:
    implementation = find_implementation(name)
    assert implementation.supports(problem) is None
    return implementation.spec_for(config or first_config(implementation, problem.dtype), problem)


def check(out: SparseOperand, expected: Any, count: int | None = None) -> tuple[np.ndarray, ...]:
    """Compare what was written: all of the result, or so many elements. Return where they are."""
    positions, values = out.written()
    assert len(values) == (np.prod(out.sizes) if count is None else count)
    np.testing.assert_array_equal(values, expected(*positions))
    return tuple(positions)


PINGPONG, TURNED = Config(128, 24, is_pingpong=True), Config(64, 24, is_turned=True)
PAIRED, SHARES_B = Config(64, 32, is_paired=True), Config(64, 80, is_paired=True)
THREE, STRIPS = Config(192, 24), Config(256, 24)  # three warpgroups, and two of two strips each
ALL = Config(64, 16, is_pingpong=True, is_turned=True, is_paired=True)
TURNED_STRIPS = replace(STRIPS, is_turned=True, is_paired=True)
KK, KN, MK, MN = product(("row", "col"), ("col", "row"))  # orders of a and b
# Kernel, dtype, sizes, orders, that of the result, config.
PRODUCTS = {
    "edges of a batch": ("wgmma", HALF, (2, 70, 8, 40), KK, "row", None),
    "MN-major, columns stored": ("wgmma", "bfloat16", (1, 8, 24, 72), MN, "col", None),
    "tf32 from registers": ("wgmma", "float32", (1, 20, 12, 36), MK, "row", None),
    "tf32 exchanged": ("wgmma", "float32", (1, 12, 20, 36), KN, "row", None),
    "int8": ("wgmma", "int8", (1, 8, 20, 144), KK, "row", None),
    "few rows": ("skinny_wgmma", HALF, (1, 5, 20, 20), KK, "row", None),
    "few shifted rows": ("skinny_shifted", HALF, (1, 5, 20, 20), KK, "row", None),
    "few rows in float32": ("skinny_fma", "float32", (1, 5, 20, 20), KN, "row", None),
    # Three tiles of one warpgroup, two of the other.
    "pingpong": ("wgmma", HALF, (5, 8, 16, 64), KK, "row", PINGPONG),
    "turned": ("wgmma", HALF, (2, 32, 8, 72), MN, "row", TURNED),
    # The second block of a pair has few rows, or none.
    "paired": ("wgmma", HALF, (1, 72, 40, 40), KK, "row", PAIRED),
    "half a pair": ("wgmma", HALF, (2, 8, 40, 40), MN, "row", PAIRED),
    "pairs that share b": ("wgmma", HALF, (1, 72, 88, 40), KK, "row", SHARES_B),
    "three warpgroups": ("wgmma", HALF, (1, 200, 8, 40), KN, "row", THREE),
    "strips": ("wgmma", HALF, (1, 264, 8, 40), MK, "row", STRIPS),
    "turned pairs of strips": ("wgmma", HALF, (1, 24, 264, 8), KN, "row", TURNED_STRIPS),
    "all at once": ("wgmma", HALF, (1, 40, 136, 40), KK, "row", ALL),
}
# Any multiple of eight columns: stored by blocks, and by chunks if c is read.
PRODUCTS |= {
    f"{width} columns, {orders[1]}": ("wgmma", HALF, (1, 8, width + 16, 64), orders, "row",
                                      Config(64, width))
    for width, orders in ((40, KK), (8, KN), (96, KK))
}  # fmt: skip


@pytest.mark.parametrize("beta", [0, BETA])
@pytest.mark.parametrize("case", PRODUCTS)
def test_every_element_of_a_product(case, beta):
    name, dtype, shape, orders, c_order, config = PRODUCTS[case]
    precision = "tf32" if name == "wgmma" and dtype == "float32" else None
    out_dtype, reads_c = result_dtypes(dtype)[0], beta != 0
    options = {"precision": precision, "out_dtype": out_dtype, "reads_c": reads_c}
    problem = problem_of(dtype, shape, orders, c_order, **options)
    operands, blocks = operands_of(problem), config.cluster if config else 3
    spec = spec_of(name, problem, config)
    run(spec, problem, operands, factors=(ALPHA, beta), most_blocks=blocks)
    check(operands["out"], product_of(operands, np.arange(problem.k), ALPHA, beta))


def test_bytes_of_a_narrow_tile_are_no_vectors():
    """Tiles of 24 columns begin between 16 bytes of an int8 result, and end there."""
    problem = problem_of(HALF, (1, 8, 80, 16), epilogue=RELU, out_dtype="int8", reads_c=False)
    operands = operands_of(problem)
    spec = spec_of("wgmma", problem, Config(64, 24))
    run(spec, problem, operands, factors=(1, 0))
    expected = product_of(operands, np.arange(problem.k), 1, 0)
    check(operands["out"], lambda *position: np.clip(np.rint(expected(*position)), 0, 127))


def moved(sums: Any, change: Any = lambda values: values) -> Any:
    """What `placed` makes of sums, changed as the result's dtype has it."""
    return lambda matrix, row, col: change(
        np.maximum(sums(matrix, row, col), 0) + 2 * row + 3 * col
    )


@pytest.mark.parametrize(("dtype", "shape", "config", "beta"), [
    (HALF, (1, 8, 32, 64), None, BETA),
    ("int8", (1, 8, 32, 8), None, 0),
    (HALF, (1, 8, 32, 64), ALL, BETA),
    (HALF, (1, 8, 32, 64), STRIPS, BETA),
    (HALF, (1, 8, 88, 64), Config(64, 72), 0),  # blocks of 64 columns, one of 8
    (HALF, (1, 136, 40, 64), PINGPONG, 0),
    (HALF, (2, 21, 104, 16), Config(64, 96), 0),
], ids=str)  # fmt: skip
def test_an_epilogue_sees_every_element(dtype, shape, config, beta):
    problem = problem_of(dtype, shape, epilogue=PLACED, reads_c=beta != 0)
    operands = operands_of(problem)
    spec = spec_of("wgmma", problem, config)
    run(spec, problem, operands, factors=(ALPHA, beta), most_blocks=2)
    sums = product_of(operands, np.arange(problem.k), ALPHA, beta)
    most = 127 if dtype == "int8" else np.inf
    check(operands["out"], moved(sums, lambda values: np.minimum(values, most)))


@pytest.mark.parametrize(("triangle", "config"), [
    ("both", None), ("upper", None), ("lower", PINGPONG), ("both", TURNED), ("upper", PAIRED),
    ("lower", THREE),
], ids=str)  # fmt: skip
def test_a_symmetric_result_is_written_once_computed(triangle, config):
    n = 72 if triangle == "both" or config else 16
    problem = problem_of(HALF, (1, n, n, 64), triangle=triangle)
    operands = operands_of(problem)  # b has the elements of a.T
    run(spec_of("wgmma", problem, config), problem, operands, factors=(ALPHA, 0), most_blocks=4)
    expected = product_of(operands, np.arange(problem.k), ALPHA, 0)
    count = n * n if triangle == "both" else n * (n + 1) // 2
    _, row, col = check(operands["out"], expected, count)
    assert triangle == "both" or (row <= col if triangle == "upper" else col <= row).all()


@pytest.mark.parametrize("is_pingpong", [False, True])
def test_a_dead_block_is_left_as_it_is(is_pingpong):
    live = [1, 0, 0, 1]
    mask = Table("uint8", live)
    fusion = Fusion((block_mask,), (FusedOperand("mask", "uint8", block=64),))
    problem = problem_of(HALF, (1, 72, 72, 64), epilogue=fusion)
    operands = operands_of(problem)
    spec = spec_of("wgmma", problem, Config(64, 64, is_pingpong=is_pingpong))
    run(spec, problem, operands, ((mask, 0, 2, 1),))
    expected = product_of(operands, np.arange(problem.k), ALPHA, BETA)
    _, row, col = check(operands["out"], expected, 64 * 64 + 8 * 8)
    assert (np.array(live)[row // 64 * 2 + col // 64] == 1).all()


def test_slices_of_k_add_up():
    problem = problem_of(HALF, (1, 8, 24, 72), slices=2, out_dtype="float32", reads_c=False)
    operands = operands_of(problem)
    run(spec_of("wgmma", problem), problem, operands, factors=(1, 0))
    (_, row, col), values = operands["out"].written()
    assert len(values) == 2 * 8 * 24
    sums = np.zeros((8, 24))
    np.add.at(sums, (row, col), values)
    position = [index.ravel() for index in np.indices((1, 8, 24))]
    expected = product_of(operands, np.arange(72), 1, 0)(*position)
    np.testing.assert_array_equal(sums.ravel(), expected)


ROWS = (3, 0, 5)  # of each group


def test_groups_share_out_k():
    sizes, m, n = (64, 0, 8), 8, 24
    ends, k = np.cumsum(sizes), sum(sizes)
    problem = problem_of(HALF, (len(sizes), m, n, k), ("col", "row"))
    problem = replace(problem, a=problem.a._replace(batch=0), b=problem.b._replace(batch=0))
    config = min(FILES["k"].SHARES, key=lambda config: config.tile_m)
    maker, spec = lower_groups_of_k(problem, config, "int32", SIMULATED_DEVICE, (), ()).specs
    table = Table("int64", [0] * len(sizes) * ROW_ITEMS)
    offsets = Table("int32", list(ends))
    operands = operands_of(problem)
    maps = import_module(spec.module).KERNEL.tensor_maps(spec.config, problem)
    launch(
        maker, problem, operands, ((offsets, len(sizes)), (table, 0)), (1, 0), (1, 1, 1),
        (0, 0, 0), maps,
    )  # fmt: skip
    run(spec, problem, operands, ((table, 0),))
    a, b, c = (operands[name] for name in "abc")

    def expected(matrix, row, col):
        depth = np.arange(k)
        products = a.at(0, row[:, None], depth) * b.at(0, depth, col[:, None])
        own = np.searchsorted(ends, depth, "right") == matrix[:, None]
        return ALPHA * (products * own).sum(1) + BETA * c.at(matrix, row, col)

    check(operands["out"], expected)


def test_products_of_residues():
    count, m, n, k = 2, 9, 24, 144
    problem = problem_of_shape("float64", (1, m, n), k, precision="emulated2", b_order="col")
    spec = spec_of("emulated_float64", problem)
    operands = {
        "a": SparseOperand("int8", (count, m, row_bytes(k))),
        "b": SparseOperand("int8", (count, n, row_bytes(k))),
        "out": SparseOperand("int8", (count, m, row_bytes(n))),
    }
    run(spec, problem, operands, (FLAG, count), (0, 0), own=product_problem(problem))
    a, b, depth = operands["a"], operands["b"], np.arange(k)

    def expected(matrix, row, col):
        inside = np.minimum(col, n - 1)[:, None]
        left = a.at(matrix[:, None], row[:, None], depth)
        products = (left * b.at(matrix[:, None], inside, depth)).sum(1)
        half = np.array(MODULI)[matrix] // 2
        return np.where(col < n, (products + half) % np.array(MODULI)[matrix] - half, 0)

    check(operands["out"], expected)


@pytest.mark.parametrize(("integers", "step"), [("int32", 128), ("uint16", 256), ("int16", 128)])
def test_products_of_digits_in_one_kernel(integers, step):
    batch, m, n = 2, 9, 24
    digits, terms = digits_of(integers), terms_of(integers)
    out, pitch, k = matrices(batch, m, n), digits * step, step * sum(t.width for t in terms)
    problem = Problem(
        "int8", m, n, k, batch, Strides(m * pitch, pitch, 1), Strides(0, 1, pitch), out, out,
        "int32", reads_c=True, in_place=False,
    )  # fmt: skip
    spec = file_spec(
        digit_wgmma, problem, (integers,), first_config(find_implementation("wgmma"), "int8")
    )
    operands = {
        "a": SparseOperand("int8", (batch, m, pitch)),
        "b": SparseOperand("int8", (1, n, pitch)),
        "c": SparseOperand("int32", (batch, m, n)),
        "out": SparseOperand("int32", (batch, m, n)),
    }
    run(spec, problem, operands)
    a, b, c, depth = operands["a"], operands["b"], operands["c"], np.arange(step)

    def digit(operand, matrix, line, place, dtype):
        values = operand.at(matrix, line[:, None], place * step + depth)
        return values.astype(np.int8).view(dtype).astype(int)

    def expected(matrix, row, col):
        total = 0
        for term in terms:
            a_dtype, _, b_dtype = term.dtype.partition(" ")
            for i in range(term.width):
                left = digit(a, matrix[:, None], row, term.a + i, a_dtype)
                place = digits - 1 - term.b + i
                right = digit(b, 0, col, place, b_dtype or a_dtype)
                total = total + ((left * right).sum(1) << term.shift)
        total = ALPHA * total + BETA * c.at(matrix, row, col).astype(int)
        return total.astype(np.uint32).view(np.int32)

    check(operands["out"], expected)


FUSED = {
    "": None,
    "an epilogue": RELU,
    "a reduction": Fusion(
        (), (FusedOperand("buffer", "float64"),), reduction=FusedReduction("sum", 1, ("float64",))
    ),
    "both": None,
}


@pytest.mark.parametrize("case", FUSED)
def test_products_of_parts(case):
    triangle = case if case == "both" else ""
    batch, m, n, k = (2, 8, 24, 64) if case else (1, 9, 24, 16)
    if triangle:
        batch, m = 1, n
    options = {"precision": "emulated", "b_order": "col", "triangle": triangle}
    problem = problem_of_shape("float32", (batch, m, n), k, **options, epilogue=FUSED[case])
    spec, own = spec_of("emulated_float32", problem), product_problem(problem)
    operands = operands_of(problem)
    for name, along in (("a", m), ("b", n)):
        layout = parts_layout(SCHEMES["f16x3"], operand_of(problem, name).innermost, along, k)
        operands[name] = SparseOperand(HALF, (batch, 2, layout.rows, layout.row_items))
    factors = SparseOperand("float32", (batch * 256,), function=ones), 0
    partials = SparseOperand("float64", (batch, 1, m))
    extra = (factors, factors, FLAG)
    if case == "a reduction":
        extra = ((partials, batch * m), *extra)
    beta = 0 if triangle else BETA
    run(spec, problem, operands, extra, (ALPHA, beta), own=own)
    depth = np.arange(k)

    def expected(matrix, row, col):
        matrix, row, col = matrix[:, None], row[:, None], col[:, None]
        a, b = (
            [operands[name].at(matrix, part, line, depth) for part in (0, 1)]
            for name, line in (("a", row), ("b", col))
        )
        small_products = (a[0] * b[1] + a[1] * b[0]).sum(1) / 2**12
        sums = ALPHA * ((a[0] * b[0]).sum(1) + small_products)
        sums = sums + beta * operands["c"].at(matrix, row, col)[:, 0]
        return np.maximum(sums, 0) if case == "an epilogue" else sums

    if case != "a reduction":
        check(operands["out"], expected)
        return
    everywhere = [index.ravel() for index in np.indices((batch, m, n))]
    sums = expected(*everywhere).reshape(batch, m, n).sum(2)
    check(partials, lambda matrix, _, row: sums[matrix, row])


E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
WIDE, COLUMNS = Config(128, 16), {"orders": ("col", "col")}
FLOAT8_CASES = [
    ("wgmma", E4M3, (2, 8, 24, 272), None, "fast", {}),
    ("wgmma", f"{E5M2} {E4M3}", (1, 24, 72, 144), TURNED, "fast", {}),
    ("wgmma_float8", E5M2, (2, 70, 8, 272), Config(64, 16), None, {}),
    ("wgmma_float8", f"{E4M3} {E5M2}", (1, 24, 72, 144), Config(64, 16, is_turned=True), None, {}),
    ("wgmma_float8", E4M3, (1, 72, 24, 144), PAIRED, None, {"c_order": "col"}),
    ("wgmma_float8", E4M3, (1, 8, 16, 400), Config(64, 16), None, {"slices": 2}),
    ("wgmma_float8", f"{E4M3} {E5M2}", (1, 144, 24, 272), WIDE, None, COLUMNS),
    ("wgmma_float8", f"{E5M2} {E4M3}", (2, 48, 144, 144), WIDE, None, {"orders": ("row", "row")}),
    ("wgmma_float8", E4M3, (1, 144, 24, 144), WIDE, None, {**COLUMNS, "c_order": "col"}),
    ("tensor_tile_float8", f"{E4M3} {E5M2}", (1, 8, 72, 144), None, None, {}),
    ("tensor_tile_float8", f"{E5M2} {E4M3}", (1, 80, 8, 144), None, None, COLUMNS),
]


@pytest.mark.parametrize(("name", "dtype", "shape", "config", "precision", "options"), FLOAT8_CASES)
def test_float8_in_either_format(name, dtype, shape, config, precision, options):
    is_sliced = "slices" in options
    problem = problem_of(
        dtype, shape, out_dtype="float32", precision=precision, reads_c=not is_sliced, **options
    )
    operands, beta = operands_of(problem), 0 if is_sliced else BETA
    run(spec_of(name, problem, config), problem, operands, factors=(ALPHA, beta), most_blocks=4)
    if not is_sliced:
        check(operands["out"], product_of(operands, np.arange(problem.k), ALPHA, beta))
        return
    positions, values = operands["out"].written()
    for part, depth in enumerate((np.arange(256), np.arange(256, 400))):
        expected = product_of(operands, depth, ALPHA, 0)
        own = [position[positions[0] == part] for position in positions]
        assert len(own[0]) == problem.m * problem.n
        own[0] = own[0] * 0
        np.testing.assert_array_equal(values[positions[0] == part], expected(*own))


@pytest.mark.parametrize(("c_order", "n", "width"), [
    ("row", 40, 16), ("col", 40, 16), ("row", 48, 16), ("row", 176, 72), ("row", 336, 192),
])  # fmt: skip
def test_float8_is_rounded_and_saturates(c_order, n, width):
    """By elements, columns, and lines of up to 128 columns that a tile's edge may cut."""
    problem = problem_of(
        E4M3, (1, 24, n, 144), c_order=c_order, epilogue=PLACED, out_dtype=E4M3, reads_c=False
    )
    operands = operands_of(problem)
    run(spec_of("wgmma_float8", problem, Config(64, width)), problem, operands, factors=(4, 0))
    sums = product_of(operands, np.arange(problem.k), 4, 0)

    def rounded(values):
        return values_of(bits_of(np.minimum(values, 448), E4M3), E4M3)

    check(operands["out"], moved(sums, rounded))


@pytest.mark.parametrize("orders", [("col", "col"), ("row", "row")], ids=str)
def test_rows_of_a_left_operand_in_registers_are_rounded(orders):
    problem = problem_of(
        E4M3, (1, 144, 48, 144), orders, epilogue=PLACED, out_dtype="bfloat16", reads_c=False
    )
    operands = operands_of(problem)
    run(spec_of("wgmma_float8", problem, WIDE), problem, operands, factors=(4, 0))
    sums = product_of(operands, np.arange(problem.k), 4, 0)

    check(operands["out"], moved(sums, lambda x: values_of(bits_of(x, "bfloat16"), "bfloat16")))


# Blocks of the scales, sizes, orders of a and b, config, and if the caller's result is transposed.
SCALED_CASES = [
    ((1, 128), (2, 8, 24, 272), ("row", "col"), Config(64, 16), False),
    ((1, 128), (2, 8, 24, 272), ("row", "col"), Config(64, 16), True),
    ((1, 1), (1, 8, 24, 1168), ("row", "col"), Config(64, 16, is_turned=True), True),
    ((1, 1), (1, 8, 56, 704), ("row", "col"), Config(64, 48), False),
    ((128, 128), (1, 8, 136, 704), ("row", "col"), Config(64, 48), False),  # 96 to 143 have two
    ((1, 1), (1, 144, 24, 144), ("col", "col"), WIDE, False),
    ((128, 1), (1, 24, 144, 144), ("row", "row"), WIDE, False),
]


@pytest.mark.parametrize(("blocks", "shape", "orders", "config", "is_transposed"), SCALED_CASES)
def test_scales_of_blocks_multiply_sums_over_128(blocks, shape, orders, config, is_transposed):
    batch, m, n, k = shape
    own = blocks[::-1] if is_transposed else blocks
    scales = [
        SparseOperand(
            "float32", (batch, -(-size // block), -(-k // 128)), function=lambda i: 2.0 ** (i % 3)
        )
        for size, block in zip((m, n), own, strict=True)
    ]
    listed = tuple(FusedOperand("blocks", "float32", block=block) for block in blocks)
    fusion = Fusion((*RELU.stages, block_scales), listed, is_transposed)
    problem = problem_of(E4M3, shape, orders, out_dtype="float32", epilogue=fusion)
    operands = operands_of(problem)
    extra = tuple((scale, *scale.strides) for scale in scales)
    extra = extra[::-1] if is_transposed else extra
    run(spec_of("wgmma_float8", problem, config), problem, operands, extra, most_blocks=3)
    a, b, c = (operands[name] for name in "abc")
    depth = np.arange(k)

    def expected(matrix, row, col):
        x, y, z = matrix[:, None], row[:, None], col[:, None]
        left = a.at(x, y, depth) * scales[0].at(x, y // own[0], depth // 128)
        right = b.at(x, depth, z) * scales[1].at(x, z // own[1], depth // 128)
        return np.maximum(ALPHA * (left * right).sum(1) + BETA * c.at(matrix, row, col), 0)

    check(operands["out"], expected)


GROUPS = [
    (HALF, min(FILES["m"].SHARES, key=lambda config: config.tile_m), 0),
    (HALF, Config(64, 24, is_pingpong=True), 0),
    *((f"{E4M3} {E5M2}", Float8Config(64, 16), b_block) for b_block in (0, 1, 128)),
]


@pytest.mark.parametrize(("dtype", "config", "b_block"), GROUPS, ids=str)
def test_groups_share_out_rows(dtype, config, b_block):
    """By scales of blocks, if there are any, of single rows of a; a block takes several tiles."""
    groups, total, n, k = len(ROWS), sum(ROWS), 24, 72 if dtype == HALF else 272
    ends, row, scales, fusion = np.cumsum(ROWS), Strides(0, n, 1), [], None
    if b_block:
        shapes = (1, total, 3), (groups, -(-n // b_block), 3)
        scales = [SparseOperand("float32", s, function=lambda i: 2.0 ** (i % 3)) for s in shapes]
        listed = (FusedOperand("blocks", "float32", block=block) for block in (1, b_block))
        fusion = Fusion((*RELU.stages, block_scales), tuple(listed))
    out_dtype = HALF if dtype == HALF else "float32"
    problem = problem_of(dtype, (groups, total, n, k), out_dtype=out_dtype, epilogue=fusion)
    problem = replace(problem, a=Strides(0, k, 1), c=row, out=row)
    spec = wgmma_step(problem, "m", config, 1, SIMULATED_DEVICE, ()).spec
    assert spec.implementation == ("grouped_wgmma" if dtype == HALF else "grouped_wgmma_float8")
    cols = -(-n // config.tile_n)
    tiles = np.cumsum([0, *(-(-rows // config.tile_m) * cols for rows in ROWS)])
    records = np.zeros((groups + 1, len(FIELDS)), int)
    records[:groups, FIELDS.index("m")] = ROWS
    records[:groups, FIELDS.index("first")] = ends - ROWS
    table = Table("int64", [*tiles, *records.ravel()])
    operands = operands_of(problem)
    operands |= {name: SparseOperand(out_dtype, (1, total, n)) for name in ("c", "out")}
    extra = tuple((scale, *scale.strides) for scale in scales)
    if extra:  # all groups share the scales of a
        extra = ((extra[0][0], 0, *extra[0][2:]), extra[1])
    run(spec, problem, operands, (*extra, (table, 0)), most_blocks=2)
    a, b, c = (operands[name] for name in "abc")
    depth = np.arange(k)

    def expected(matrix, row, col):
        group = np.searchsorted(ends, row, "right")[:, None]
        left, right = a.at(0, row[:, None], depth), b.at(group, depth, col[:, None])
        if b_block:
            left = left * scales[0].at(0, row[:, None], depth // 128)
            right = right * scales[1].at(group, col[:, None] // b_block, depth // 128)
        sums = ALPHA * (left * right).sum(1) + BETA * c.at(0, row, col)
        return np.maximum(sums, 0) if b_block else sums

    check(operands["out"], expected)
