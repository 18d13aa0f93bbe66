"""Index arithmetic of every kernel at sizes, strides and numbers of elements beyond 32 bits.

Kernels run in numba's simulator, over operands without memory: single blocks of grids of up to
2**31 - 1, with the configs of GPUs where the simulator has none. There a cast to int32 that would
wrap raises an error, as does an access outside of an operand. Every element that a block writes is
compared with the product.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from math import isqrt
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest

from dxgemm.gpu.status import simulator_enabled

if not simulator_enabled():
    pytest.skip("needs the simulator", allow_module_level=True)

import simulated_instructions
from numba import int32
from simulated_kernels import (
    FLAG,
    Table,
    check_tile,
    first_config,
    launch,
    matrices,
    ones,
    problem_of_shape,
    product_of,
)  # fmt: skip
from sparse_operands import (
    FIRST_READS,
    FIRST_ROUNDS,
    MOST_ROUNDS,
    SparseOperand,
    plain_device_functions,
    small,
)

from dxgemm.choice.emulation import product_problem
from dxgemm.choice.emulation_parts import buffers, operand_parts, operand_residues
from dxgemm.choice.kernel_files import file_spec
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.compiler import KernelSpec
from dxgemm.handwritten import kernels
from dxgemm.handwritten.kernels import (
    add_residues,
    align_rows,
    clean_triangle,
    complex_copy,
    complex_sum,
    digits,
    grouped,
    grouped_tensor_tile,
    merge_partials,
    quantise_rows,
    reconstruct,
    reduce_tiles,
    scatter_rows,
    select_rows,
)
from dxgemm.handwritten.kernels.group_offsets import table_items
from dxgemm.handwritten.parts.emulation import SCHEMES, parts_layout
from dxgemm.handwritten.parts.group_table import FIELDS
from dxgemm.handwritten.parts.moduli import MODULI
from dxgemm.handwritten.parts.operands import LEAST_LARGEST
from dxgemm.handwritten.parts.reduction import NO_INDEX, slot_count
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.handwritten.parts.simulated_integers import below_2_31, casts_are_checked, low_word
from dxgemm.lower.emulated import native_step, reconstruction_step
from dxgemm.lower.group_offsets import maker_step
from dxgemm.lower.grouped import table_operands
from dxgemm.lower.product import adding_step
from dxgemm.problem.complex_form import direct_form, with_parts_of_beta
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES
from dxgemm.problem.fusion import FusedOperand, FusedReduction, Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import NO_STRIDES, Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.arrays import numpy_dtype
from dxgemm.runtime.program import OUT

MOST = 2**31 - 2**12  # rows, columns, k or matrices of one launch
MOST_BLOCKS = 2**31 - 1
TILE = 64  # beside 2**31 and 2**32; strides beyond keep an alignment of 16 bytes
HALF = "float16"
FEW_THREADS = 32
GRID = 132  # blocks of a persistent kernel


KINDS = ("rows", "columns", "matrices", "strides", "long k")
TWO_KINDS = ("rows", "strides")  # of kernels that are run for another dtype, too


@dataclass(frozen=True)
class Subject:
    """Kernel, and the problems that it is given."""

    name: str  # registered name
    dtype: str = "float32"  # dtype of a and b
    k: int = 5  # depth of the products
    few: int = 2  # rows, or columns, beside a long dimension
    # "row" or "col" for a and for b, with a long dimension of rows, and of columns
    orders: tuple[str, str, str, str] = ("row", "row", "col", "col")
    options: tuple[tuple[str, Any], ...] = ()  # further attributes of the problems
    kinds: tuple[str, ...] = KINDS  # kinds of its cases
    most_line: int = 2**33  # largest stride of its lines

    def __str__(self) -> str:
        return f"{self.name}-{self.dtype}"


INT8 = (("out_dtype", "int32"),)
TF32 = (("precision", "tf32"),)
FLOAT8, EIGHT_BITS = "float8_e4m3fn", (("out_dtype", "float32"),)
K_MAJOR = ("row", "col", "row", "col")
SUBJECTS = (
    *(
        Subject(name, kinds=(*KINDS, "elements", "bytes"))
        for name in (
            "naive", "coalesced", "shared_tile", "thread_tile_1d", "thread_tile_2d", "vectorized",
            "conflict_free", "warp_tile", "double_buffer", "async_copy", "ping_pong", "tuned",
            "small_batch",
        )
    ),
    Subject("gemv", few=1),
    Subject("widening_tile", HALF),
    Subject("widening_tile", "int8", options=INT8, kinds=TWO_KINDS),
    Subject("tensor_core", "float64"),
    Subject("tensor_core_tf32", options=TF32),
    Subject("wgmma", HALF, k=64, few=8, orders=("row", "col", "col", "row")),
    Subject("wgmma", "int8", k=128, few=16, orders=K_MAJOR, options=INT8, kinds=TWO_KINDS),
    Subject("wgmma", k=32, few=8, orders=("col", "col", "row", "row"), options=TF32),
    Subject("wgmma_float8", FLOAT8, k=128, few=16, orders=K_MAJOR, options=EIGHT_BITS),
    Subject("skinny_wgmma", HALF, k=64, few=8, orders=("row", "col", "row", "row")),
    Subject("skinny_wgmma", "int8", k=64, few=8, orders=K_MAJOR, options=INT8, kinds=TWO_KINDS),
    Subject("skinny_shifted", HALF, k=33, few=7, orders=("row", "col", "row", "row")),
    Subject("skinny_fma", k=32, few=8, orders=("row", "col", "row", "row")),
    Subject("gemv", HALF, few=1, kinds=TWO_KINDS),
    Subject("gemv", "float64", few=1, kinds=TWO_KINDS),
    Subject("gemv", "int64", few=1, kinds=TWO_KINDS),
    Subject("tensor_batch", "float64"),
    Subject("half_batch", HALF, kinds=("rows", "matrices", "strides"), most_line=2**21),
    Subject("tensor_tile", HALF, k=64, few=8, orders=("row", "col", "col", "row")),
    Subject("tensor_tile", "int8", k=64, few=16, orders=K_MAJOR, options=INT8, kinds=TWO_KINDS),
    Subject(
        "tensor_tile_float8", FLOAT8, k=128, few=16, orders=K_MAJOR, options=EIGHT_BITS,
        kinds=TWO_KINDS,
    ),
    Subject("shifted_tile", HALF, k=33, few=7),
    Subject("shifted_tile", "int8", k=33, few=7, options=INT8, kinds=TWO_KINDS),
    Subject("complex_batch", "complex64"),
    Subject("complex_tile", "complex64"),
    Subject("complex_tensor_core", "complex128"),
)  # fmt: skip
SLICED = ("tuned", "tensor_core", "wgmma", "tensor_tile", "shifted_tile", "complex_tile")


@pytest.fixture(autouse=True)
def _stand_ins():
    """Kernels import stand-ins for the instructions that the simulator lacks."""
    with simulated_instructions.instructions(), plain_device_functions():
        yield


def problem_of(subject: Subject, kind: str, tile: tuple[int, int]) -> Problem:
    """Problem of a kind for a kernel whose blocks have such a tile."""
    k, few, (tile_m, tile_n) = subject.k, subject.few, tile
    across = kind == "columns"
    a_order, b_order = subject.orders[2:] if across else subject.orders[:2]
    batch, m, n = {
        "rows": (1, MOST, few),
        "columns": (1, few, MOST),
        "matrices": (MOST, few, few),
        "elements": (3, 70_000, 70_000),
        "long k": (1, few, few),
    }.get(kind, (2, tile_m + 3, tile_n + 5))
    if kind == "elements" and 3 * -(-m // tile_m) * -(-n // tile_n) > MOST_BLOCKS:
        batch = 1
    if kind == "long k":
        k = MOST
    lines: dict[str, int] = {}
    least = 0
    if kind in ("strides", "bytes"):
        # In elements and in bytes, in turn.
        units = (1, ITEM_SIZES[subject.dtype]) * 2
        if kind == "bytes":
            units = units[::-1]
        around = (2**31 - TILE, 2**31 + TILE, 2**32 - TILE, 2**32 + TILE)
        fitting = (
            min(line // unit, subject.most_line) for line, unit in zip(around, units, strict=True)
        )
        lines, least = dict(zip(("a", "b", "c", "out"), fitting, strict=True)), 2**32 + TILE
    options = {"out_dtype": subject.dtype, **dict(subject.options)}
    return Problem(
        dtype=subject.dtype, m=m, n=n, k=k, batch=batch,
        a=matrices(batch, m, k, a_order, lines.get("a", 0), least),
        b=matrices(batch, k, n, b_order, lines.get("b", 0), least),
        c=matrices(batch, m, n, "row", lines.get("c", 0), least),
        out=matrices(batch, m, n, "row", lines.get("out", 0), least),
        reads_c=True, in_place=False, **options,
    )  # fmt: skip


def points(blocks: int, threads: int) -> list[int]:
    """Blocks to run: the last one; of few threads, which are quick, the first and a middle one."""
    return [blocks - 1] if threads > FEW_THREADS else [0, blocks // 2, blocks - 1]


def sparse(problem: Any, names: str = "a b c out") -> dict[str, SparseOperand]:
    """Operands of a problem, by name."""
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    kinds = {
        "a": (problem.dtype, (batch, m, k)), "b": (problem.dtype, (batch, k, n)),
        "c": (problem.c_dtype, (batch, m, n)), "out": (problem.out_dtype, (batch, m, n)),
    }  # fmt: skip
    return {name: SparseOperand(*kinds[name], getattr(problem, name)) for name in names.split()}


def run(
    spec: KernelSpec, problem: Any, operands: dict[str, SparseOperand], blocks: int, point: int,
    *extra: Any, factors: tuple[int, int] = (0, 0), **options: Any,
) -> None:  # fmt: skip
    """Launch a block of a grid of one dimension."""
    scalar = np.dtype(COMPLEX_PARTS.get(problem.dtype, problem.scalar_dtype)).type
    numbers = scalar(factors[0]), scalar(factors[1])
    launch(spec, problem, operands, extra, numbers, (blocks, 1, 1), (point, 0, 0), **options)


def test_a_cast_that_would_wrap_is_an_error():
    with casts_are_checked():
        assert int32(2**31 - 1) + 1 == 2**31
        for wrapping in (2**31, -(2**31) - 1, np.int64(2**40)):
            with pytest.raises(OverflowError, match=str(wrapping)):
                int32(wrapping)
    assert low_word(2**31) == -(2**31) and low_word(-(2**40) + 5) == 5
    assert below_2_31(2**31 - 1) == 2**31 - 1
    for outside in (-1, 2**31):
        with pytest.raises(OverflowError, match=str(outside)):
            below_2_31(outside)


@pytest.mark.parametrize(
    ("subject", "kind"), [(s, kind) for s in SUBJECTS for kind in s.kinds], ids=str
)
def test_every_product_is_right_beyond_32_bits(subject, kind):
    implementation = find_implementation(subject.name)
    kernel, config = implementation.kernel, first_config(implementation, subject.dtype)
    tile = config.tile_m, config.tile_n
    problem = problem_of(subject, kind, tile)
    is_complex = subject.dtype in COMPLEX_PARTS
    if is_complex:
        problem = direct_form(problem, "").product
    assert implementation.supports(problem) is None
    assert implementation.computed(problem) is problem
    spec = implementation.spec_for(config, problem)
    blocks = kernel.block_count(config, problem)
    assert blocks <= MOST_BLOCKS
    alpha, beta = 2, 3
    scalar = np.dtype(COMPLEX_PARTS.get(problem.dtype, problem.scalar_dtype)).type
    extra = (scalar(beta), scalar(0)) if is_complex else ()
    grid = GRID if kernel.is_persistent else blocks
    for point in points(blocks, config.threads):
        operands, rounds = sparse(problem), MOST_ROUNDS
        if kind == "long k":
            rounds = FIRST_ROUNDS
            operands["a"].reads_left = operands["b"].reads_left = FIRST_READS
        maps = kernel.tensor_maps(config, problem)
        run(
            spec, problem, operands, grid, point, *extra, maps=maps, most_rounds=rounds,
            factors=(alpha, 0 if is_complex else beta),
        )  # fmt: skip
        if kind != "long k":
            expected = product_of(operands, np.arange(problem.k), alpha, beta)
            check_tile(operands["out"], expected, point == blocks - 1)


@pytest.mark.parametrize(
    "subject", [s for s in SUBJECTS if s.name in SLICED and s.dtype != "int8"], ids=str
)
def test_the_last_slice_of_a_long_k_is_right(subject):
    implementation = find_implementation(subject.name)
    kernel, config = implementation.kernel, first_config(implementation, subject.dtype)
    tile_k = getattr(config, "tile_k", 64) if subject.dtype != "float32" else min(config.tile_k, 32)
    slices = isqrt(MOST // tile_k)  # of as many tiles, so that the last one has a single tile
    k = ((slices - 1) ** 2 + 1) * tile_k
    out_dtype = {HALF: "float32"}.get(subject.dtype, subject.dtype)
    m, n = config.tile_m + 8, config.tile_n + 8
    problem = Problem(
        dtype=subject.dtype, m=m, n=n, k=k, batch=1, a=matrices(1, m, k),
        b=matrices(1, k, n, "col"),
        c=NO_STRIDES, out=matrices(slices, m, n), out_dtype=out_dtype, slices=slices,
        **{name: value for name, value in subject.options if name != "out_dtype"},
    )  # fmt: skip
    assert implementation.supports(problem) is None
    spec = implementation.spec_for(config, problem)
    blocks = kernel.block_count(config, problem)
    operands = sparse(problem, "a b")
    operands["out"] = SparseOperand(out_dtype, (slices, m, n), problem.out)
    scalar = np.dtype(COMPLEX_PARTS.get(subject.dtype, problem.scalar_dtype)).type
    is_complex = subject.dtype in COMPLEX_PARTS
    launch(
        spec, problem, operands, (), (scalar(1), scalar(0)), (blocks, slices, 1),
        (blocks - 1, slices - 1, 0), kernel.tensor_maps(config, problem),
    )  # fmt: skip
    assert not is_complex or spec.epilogue is None
    a, b = operands["a"], operands["b"]
    depth = np.arange((slices - 1) ** 2 * tile_k, k)

    def expected(matrix, row, col):
        first = np.zeros_like(row)[:, None]
        return (a.at(first, row[:, None], depth) * b.at(first, depth, col[:, None])).sum(1)

    check_tile(operands["out"], expected, True)


SHAPES = ((1, MOST, 3), (1, 3, MOST), (1, 70_000, 70_001), (3, 40_000, 40_001), (MOST, 2, 3))


@pytest.mark.parametrize(
    ("triangle", "added"), [("", False), ("both", False), ("lower", False), ("upper", True)]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_of_a_matrix_is_the_sum_of_its_slices(shape, triangle, added):
    batch, m, n = shape
    if triangle:
        batch, m = 1, min(n, 92_683)
        n = m
    slices, sheet = 2, batch * m * n
    problem = Problem(
        dtype="float32", m=m, n=n, k=slices, batch=batch, a=Strides(m * n, n, sheet), b=NO_STRIDES,
        c=matrices(batch, m, n), out=matrices(batch, m, n), out_dtype="float32", reads_c=True,
        triangle=triangle, adds_transpose=added,
    )  # fmt: skip
    spec = adding_step(problem, OUT, problem.a, slices, triangle).spec
    elements = spec.config.elements
    blocks = batch * -(-m * n // elements)
    a = SparseOperand("float32", (batch, m, slices, n), (*problem.a, 1))
    for point in (0, blocks // 2, blocks - 1) if blocks <= MOST_BLOCKS else (0,):
        c, out = sparse(problem, "c out").values()
        run(spec, problem, {"a": a, "c": c, "out": out}, blocks, point, factors=(2, 3))
        own = np.arange(elements) + point % -(-m * n // elements) * elements
        own = own[own < m * n]
        row, col = own // n, own % n
        if triangle in ("lower", "upper"):
            keeps = row >= col if triangle == "lower" else row <= col
            row, col = row[keeps], col[keeps]
        matrix = np.full_like(row, point // -(-m * n // elements))
        sum_row, sum_col = (
            (row, col) if added or not triangle else (np.maximum(row, col), np.minimum(row, col))
        )
        total = sum(a.at(matrix, sum_row, part, sum_col) for part in range(slices))
        if added:
            total = total + sum(a.at(matrix, sum_col, part, sum_row) for part in range(slices))
        index = map(int, matrix * problem.out.batch + row * problem.out.row + col)
        sums = 2 * total + 3 * c.at(matrix, row, col)
        assert out.writes == dict(zip(index, sums, strict=True))


@pytest.mark.parametrize("products", ["three", "of parts", "slices", "both", "lower"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_of_a_complex_matrix_is_made_of_its_products(shape, products):
    batch, m, n = shape
    if products in ("both", "lower"):
        batch, m = 1, min(n, 92_683)
        n = m
    count = {"three": 3}.get(products, 2)
    width = 2 if products in ("of parts", "slices") else 1  # real elements of one of a
    sheet = batch * m * n * width
    problem = Problem(
        dtype="float32", m=m, n=n, k=count, batch=batch,
        a=Strides(m * n * width, n * width, width), b=Strides(sheet, 0, 0),
        c=Strides(2 * m * n, 2 * n, 2), out=Strides(2 * m * n, 2 * n, 2), out_dtype="float32",
        epilogue=with_parts_of_beta(None, "complex64"),
    )  # fmt: skip
    spec = file_spec(complex_sum, problem, (products,))
    blocks = batch * -(-m * n // spec.config.elements)
    a = SparseOperand("float32", (batch, m, n, count, width), (*problem.a, sheet, 1))
    c = SparseOperand("float32", (batch, m, n, 2), (*problem.c, 1))
    for point in (0, blocks // 2, blocks - 1) if blocks <= MOST_BLOCKS else ():
        out = SparseOperand("float32", (batch, m, n, 2), (*problem.out, 1))
        beta, operands = (np.float32(3), np.float32(0)), {"a": a, "c": c, "out": out}
        run(spec, problem, operands, blocks, point, *beta, factors=(2, 0))
        (matrix, row, col, part), values = out.written()
        own = np.arange(spec.config.elements) + point % (blocks // batch) * spec.config.elements
        own = own[(own < m * n) & ((products != "lower") | (own // n >= own % n))]
        assert (np.unique(row * n + col) == own).all() and len(values) == 2 * len(own)
        assert (matrix == point // (blocks // batch)).all()
        source = (row, col)
        if products in ("both", "lower"):
            source = np.maximum(row, col), np.minimum(row, col)
        p, q = ([a.at(matrix, *source, i, j) for j in range(width)] for i in range(2))
        if products == "three":
            re, im = p[0] - q[0], a.at(matrix, row, col, 2, 0) - p[0] - q[0]
        elif products == "of parts":
            re, im = p[0] - q[1], p[1] + q[0]
        elif products == "slices":
            re, im = p[0] + q[0], p[1] + q[1]
        else:
            re, im = p[0], np.where(row < col, -q[0], q[0])
        is_own = 0 if products in ("both", "lower") else -1
        totals = 2 * np.where(part == 0, re, im) + 3 * c.at(matrix, row, col, part)
        if is_own == 0:  # the diagonal of a Hermitian result is real
            totals = np.where((row == col) & (part == 1), 0, totals)
        np.testing.assert_array_equal(values, totals)


@pytest.mark.parametrize("expands", ["", "i", "parts and sums"])
@pytest.mark.parametrize("order", ["straight", "turned"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_of_a_complex_matrix_is_copied(shape, order, expands):
    batch, m, n = shape
    config = complex_copy.choose_config(complex_copy.KERNEL.simulator_configs, n)
    row, col = (2 * n, 2) if order == "straight" else (2, 2 * m)
    part = batch * m * n
    out_strides = {
        "": Strides(2 * m * n, 2 * n, 2), "i": Strides(4 * m * n, 2 * n, 2),
        "parts and sums": Strides(m * n, n, 1),
    }[expands]  # fmt: skip
    problem = Problem(
        dtype="float32", m=m, n=n, k=1, batch=batch, a=Strides(2 * m * n, row, col), b=NO_STRIDES,
        c=Strides(part, 0, 0), out=out_strides, out_dtype="float32",
    )  # fmt: skip
    variant = (order, "conjugate", expands)
    spec = KernelSpec("complex_copy", complex_copy.__name__, config, "float32", variant)
    blocks = complex_copy.block_count(config, problem)
    if blocks > MOST_BLOCKS:
        pytest.skip("more blocks than a launch has")
    a = SparseOperand("float32", (batch, m, n, 2), (*problem.a, 1))
    copies = 2 if expands == "i" else 1
    sizes = (batch, copies * m, n, 2)
    strides = (*problem.out, 1)
    if expands == "parts and sums":
        sizes, strides = (batch, m, n, 3), (*problem.out, part)
    for point in (0, blocks // 2, blocks - 1):
        out = SparseOperand("float32", sizes, strides)
        run(spec, problem, {"a": a, "out": out}, blocks, point, factors=(2, 0))

        def expected(matrix, row, col, part):
            re, im = (f * a.at(matrix, row // copies, col, i) for i, f in enumerate((2, -2)))
            if expands == "i":  # times i below
                re, im = np.where(row % 2, -im, re), np.where(row % 2, re, im)
            return np.choose(part, [re, im, re + im])

        check_tile(out, expected, point == blocks - 1)


@pytest.mark.parametrize("dtype", [HALF, "int8"])
@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 300, 300)], ids=str)
def test_every_row_is_copied_to_an_aligned_one(shape, order, dtype):
    batch, m, n = shape
    chunk = 8 if dtype == HALF else 16
    pitch = -(-n // chunk) * chunk
    line = 2**31 + 1 if shape == (2, 300, 300) else 0
    problem = Problem(
        dtype=dtype, m=m, n=n, k=0, batch=batch, a=matrices(batch, m, n, order, line), b=NO_STRIDES,
        c=NO_STRIDES, out=matrices(batch, m, pitch), out_dtype=dtype, a_alignment=2,
    )  # fmt: skip
    (config,) = align_rows.KERNEL.configs
    spec = file_spec(align_rows, problem, align_rows.variant(config, problem), config)
    blocks = align_rows.block_count(spec.config, problem)
    a = SparseOperand(dtype, (batch, m, n), problem.a)
    out = SparseOperand(dtype, (batch, m, pitch), problem.out)
    run(spec, problem, {"a": a, "out": out}, blocks, blocks - 1)

    def expected(matrix, row, col):
        return np.where(col < n, a.at(matrix, row, np.minimum(col, n - 1)), 0)

    check_tile(out, expected, True)


@pytest.mark.parametrize("columns", [8, 5])
def test_every_row_is_copied_to_its_index(columns):
    m, pitch = MOST, -(-columns // 8) * 8
    epilogue = Fusion((), (FusedOperand("buffer", "int64"), FusedOperand("buffer", "int64")))
    problem = Problem(
        dtype=HALF, m=m, n=columns, k=m, batch=1, a=Strides(0, pitch, 1), b=NO_STRIDES,
        c=NO_STRIDES, out=Strides(0, columns, 1), out_dtype=HALF, epilogue=epilogue,
    )  # fmt: skip
    (config,) = scatter_rows.KERNEL.configs
    spec = KernelSpec("scatter_rows", scatter_rows.__name__, config, HALF, (), epilogue)
    blocks = scatter_rows.block_count(config, problem)
    a = SparseOperand(HALF, (1, m, pitch), (0, pitch, 1))
    out = SparseOperand(HALF, (1, m, columns), (0, columns, 1))
    rows = SparseOperand("int64", (m,), function=lambda index: m - 1 - index)
    offsets = SparseOperand("int64", (1,), function=lambda index: m)
    for point in (0, blocks - 1):
        out.writes.clear()
        run(spec, problem, {"a": a, "out": out}, blocks, point, (rows, m), (offsets, 1))
        check_tile(out, lambda matrix, row, col: a.at(matrix, m - 1 - row, col), point == 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("shape", [(1, MOST, 5), (MOST, 2, 5), (3, 40_000, 5)], ids=str)
def test_every_line_is_split_into_parts(shape, order, dtype):
    batch, m, k = shape
    line = {1: 0, MOST: 0, 3: 2**32 + 1}[batch]
    if dtype == "float32":
        parts = operand_parts(matrices(batch, m, k, order, line), m, k, batch, 4)
        layout = parts_layout(SCHEMES["f16x3"], parts.innermost, m, k)
        sizes = batch, 2, layout.rows, layout.row_items
    else:
        parts = operand_residues(matrices(batch, m, k, order, line), m, k, batch, 8, 2)
        sizes = batch, 2, m, row_bytes(k)
    problem, blocks = parts.sizes, parts.blocks
    pitch = parts.factor_items // batch
    a = SparseOperand(dtype, (batch, m, k), problem.a)
    for point in (0, blocks // 2, blocks - 1):
        made = SparseOperand({"float32": HALF}.get(dtype, "int8"), sizes)
        factors = SparseOperand(dtype, (batch, pitch))
        status = SparseOperand("int32", (blocks, 2))
        buffers = ((made, parts.part_items), (factors, parts.factor_items))
        extra = (*buffers, (status, parts.status_items), *parts.numbers)
        run(parts.spec, problem, {"a": a}, blocks, point, *extra)
        (matrix, part, row, col), values = made.written()
        if dtype == "float32" and parts.innermost == "mn":
            row, col = col, row
        is_inside = (row < m) & (col < k)
        matrix, part, row, col = (x[is_inside] for x in (matrix, part, row, col))
        scale = np.array([factors.writes[i] for i in matrix * pitch + row])
        numbers = np.where((row < m) & (col < k), a.at(matrix, row, col), 0) / scale
        if dtype == "float32":
            wanted = np.where(part == 0, numbers, 0)
        else:
            moduli = np.array(MODULI[:2])[part]
            wanted = (numbers.astype(object) + moduli // 2) % moduli - moduli // 2
        np.testing.assert_array_equal(values[is_inside], wanted.astype(float))
        assert len(np.unique(row)) * 2 * k == len(row)
        assert (row.max() == m - 1 and matrix.max() == batch - 1) == (point == blocks - 1)
        assert status.written()[0][0].tolist() == [point] * 2


RESULTS = ((1, MOST, 3), (1, 3, MOST), (1, 70_000, 70_016), (2**20, 60, 70))


@pytest.mark.parametrize("triangle", ["", "both"])
@pytest.mark.parametrize("shape", RESULTS, ids=str)
def test_every_element_is_reconstructed(shape, triangle):
    batch, m, n = shape
    if triangle:
        batch, m, n = 1, min(m, n, 70_000), min(m, n, 70_000)
    problem = problem_of_shape(
        "float64", (batch, m, n), 4, precision="emulated2", triangle=triangle
    )
    spec, count, pitch = reconstruction_step(problem, ()).spec, 2, row_bytes(n)
    sheet = m * pitch

    def residue(index: Any) -> Any:
        """The same for each modulus."""
        return small(index // (count * sheet) * sheet + index % sheet)

    own = SparseOperand("int8", (batch, count, m, pitch), function=residue)
    factors = SparseOperand("float64", (batch * -(-max(m, n) // 256) * 256,), function=ones)
    buffers = ((own, 0), (factors, 0), (factors, 0), FLAG)
    blocks = reconstruct.block_count(spec.config, problem)
    for point in (0, blocks // 2, blocks - 1) if blocks <= MOST_BLOCKS else ():
        operands = sparse(problem, "c out")
        run(spec, problem, operands, blocks, point, *buffers, factors=(2, 3))
        (matrix, row, col), values = operands["out"].written()
        lower = (np.maximum(row, col), np.minimum(row, col)) if triangle else (row, col)
        products = own.at(matrix, 0 * matrix, *lower)
        np.testing.assert_array_equal(values, 2 * products + 3 * operands["c"].at(matrix, row, col))
        assert triangle or len(values) == len(np.unique(row)) * len(np.unique(col))
        if point == blocks - 1:
            assert (matrix.max(), row.max(), col.max()) == (batch - 1, m - 1, n - 1)


@pytest.mark.parametrize("form", ["balanced", "residues"])
@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_integer_is_split_into_bytes(shape, order, form):
    batch, m, n = shape
    step, count = row_bytes(n), 2
    config, strides = digits.KERNEL.simulator_configs[0], matrices(batch, m, n, order)
    rows, apart = Strides(count * m * step, step, 1), m * step
    epilogue = Fusion((), buffers("int32")) if form == "residues" else None
    arguments = KernelArguments(
        "int32", m, n, 0, batch, strides, Strides(0, apart, step), out=rows, out_dtype="int8",
        epilogue=epilogue,
    )  # fmt: skip
    variant = (*digits.variant(config, arguments), str(count), form, "up")
    spec = file_spec(digits, arguments, variant, config)
    blocks = digits.block_count(config, arguments)
    if blocks > MOST_BLOCKS:
        pytest.skip("more blocks than a launch has")
    a = SparseOperand("int32", (batch, m, n), strides)
    out = SparseOperand("int8", (batch, m, step, count), (*rows, apart))
    flag = (FLAG,) if epilogue else ()
    run(spec, arguments, {"a": a, "out": out}, blocks, blocks - 1, *flag)

    def expected(matrix, row, col, part):
        x = np.where(col < n, a.at(matrix, row, np.minimum(col, n - 1)), 0).astype(np.int64)
        if form == "residues":
            modulus = np.array(MODULI)[part]
            return (x + modulus // 2) % modulus - modulus // 2
        return ((x + 0x80808080) >> (8 * part) & 255) - 128

    check_tile(out, expected, True)


@pytest.mark.parametrize("shape", RESULTS, ids=str)
def test_every_integer_is_made_of_its_residues(shape):
    batch, m, n = shape
    count, c_strides, row = 2, matrices(batch, m, n), row_bytes(n)
    sheet = m * row
    arguments = KernelArguments(
        "int64", m, n, count, batch, Strides(count * sheet, row, sheet), c=c_strides,
        out=c_strides, epilogue=Fusion((), buffers("int32")), reads_c=True,
    )  # fmt: skip
    config = add_residues.KERNEL.simulator_configs[0]
    spec = file_spec(add_residues, arguments, ("int64", str(count)), config)
    blocks = add_residues.block_count(spec.config, arguments)
    if blocks > MOST_BLOCKS:
        pytest.skip("more blocks than a launch has")

    def same(index):
        """The same for each modulus."""
        return small(index // (count * sheet) * (count * sheet) + index % sheet)

    own = SparseOperand(
        "int8", (batch, m, row, count), (count * sheet, row, 1, sheet), function=same
    )
    c, out = (SparseOperand("int64", (batch, m, n), c_strides) for _ in range(2))
    operands = {"c": c, "out": out}
    run(spec, arguments, operands, blocks, blocks - 1, (own, 0), factors=(2, 3))

    def expected(matrix, row, col):
        total, added = own.at(matrix, row, col, 0), c.at(matrix, row, col)
        return 2 * total.astype(np.int64) + 3 * added.astype(np.int64)

    positions, values = out.written()
    assert [position.max() + 1 for position in positions] == [batch, m, n]
    np.testing.assert_array_equal(values, expected(*positions))


@pytest.mark.parametrize("name", ["emulated_float32", "emulated_float32_tile"])
@pytest.mark.parametrize("shape", [(1, MOST, 8), (1, 8, MOST), (2**25, 8, 8)], ids=str)
def test_every_product_of_parts_is_right_beyond_32_bits(name, shape):
    implementation = find_implementation(name)
    kernel, config = implementation.kernel, first_config(implementation, "float32")
    problem = problem_of_shape("float32", shape, 32, precision="emulated", b_order="col")
    assert implementation.supports(problem) is None
    batch, m, n = shape
    own, spec = product_problem(problem), implementation.spec_for(config, problem)
    blocks = kernel.block_count(config, problem)
    grid = GRID if kernel.is_persistent else blocks
    operands = sparse(problem, "c out")
    for operand, along, innermost in (("a", m, spec.variant[1]), ("b", n, spec.variant[2])):
        layout = parts_layout(SCHEMES["f16x3"], innermost, along, problem.k)
        assert innermost == "k"
        operands[operand] = SparseOperand(HALF, (batch, 2, layout.rows, layout.row_items))
    factors = SparseOperand("float32", (batch * -(-max(m, n) // 256) * 256,), function=ones)
    maps = kernel.tensor_maps(config, problem, *spec.variant)
    extra = (factors, 0), (factors, 0), FLAG
    run(spec, own, operands, grid, blocks - 1, *extra, factors=(1, 3), maps=maps)
    depth = np.arange(problem.k)

    def expected(matrix, row, col):
        matrix, row, col = matrix[:, None], row[:, None], col[:, None]
        a, b = (
            [operands[name].at(matrix, part, line, depth) for part in (0, 1)]
            for name, line in (("a", row), ("b", col))
        )
        small_products = (a[0] * b[1] + a[1] * b[0]).sum(1) / 2**12
        return (a[0] * b[0]).sum(1) + small_products + 3 * operands["c"].at(matrix, row, col)[:, 0]

    check_tile(operands["out"], expected, True)


@pytest.mark.parametrize("name", ["emulated_float64", "emulated_float64_tile"])
@pytest.mark.parametrize("shape", [(1, MOST, 8), (1, 8, MOST), (2**25, 8, 8)], ids=str)
def test_every_product_of_residues_is_right_beyond_32_bits(name, shape):
    implementation = find_implementation(name)
    kernel, config = implementation.kernel, first_config(implementation, "float64")
    batch, m, n = shape
    count = 14
    problem = problem_of_shape("float64", shape, 16, precision="emulated14", b_order="col")
    assert implementation.supports(problem) is None
    own, spec = product_problem(problem), implementation.spec_for(config, problem)
    blocks, pitch = kernel.block_count(config, problem), row_bytes(16)
    assert blocks <= MOST_BLOCKS
    sizes = batch * count, m, row_bytes(n)
    operands = {
        "a": SparseOperand("int8", (batch * count, m, pitch)),
        "b": SparseOperand("int8", (batch * count, n, pitch)),
        "out": SparseOperand("int8", sizes),
    }
    grid = GRID if kernel.is_persistent else blocks
    maps = kernel.tensor_maps(config, problem, *spec.variant)
    run(spec, own, operands, grid, blocks - 1, FLAG, count, maps=maps)
    a, b, depth = operands["a"], operands["b"], np.arange(16)

    def expected(matrix, row, col):
        inside = np.minimum(col, n - 1)
        left = a.at(matrix[:, None], row[:, None], depth)
        products = (left * b.at(matrix[:, None], inside[:, None], depth)).sum(1)
        return np.where(col < n, products, 0)

    check_tile(operands["out"], expected, True)


def test_lines_of_many_elements_are_read_by_the_kernel_of_small_matrices():
    """With a k of 1, half_batch reads lines along m that have more than 2**31 bytes."""
    implementation = find_implementation("half_batch")
    kernel, config = implementation.kernel, first_config(implementation, HALF)
    problem = problem_of_shape(HALF, (1, MOST, 3), 1)
    problem = replace(problem, a=Strides(0, 1, 0))
    assert implementation.supports(problem) is None
    spec = implementation.spec_for(config, problem)
    blocks = kernel.block_count(config, problem)
    for point in (0, blocks - 1):
        operands = sparse(problem)
        run(spec, problem, operands, blocks, point, factors=(2, 3))
        expected = product_of(operands, np.arange(1), 2, 3)
        check_tile(operands["out"], expected, point == blocks - 1)


def reducing(kind: str, axis: int | None, dtypes: tuple[str, ...]) -> Fusion:
    reduction = FusedReduction(kind, axis, dtypes)
    return Fusion((), reduction.buffers, reduction=reduction)


@pytest.mark.parametrize("axis", [1, 0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tile_is_reduced(shape, axis):
    batch, m, n = shape
    config, _ = reduce_tiles.KERNEL.simulator_configs
    epilogue = reducing("sum", axis, ("float64",))
    strides = matrices(batch, m, n)
    problem = Problem(
        dtype="float32", m=m, n=n, k=n, batch=batch, a=strides, b=NO_STRIDES, c=NO_STRIDES,
        out=NO_STRIDES, out_dtype="float32", epilogue=epilogue,
    )  # fmt: skip
    spec = KernelSpec("reduce_tiles", reduce_tiles.__name__, config, "float32", (), epilogue)
    blocks = reduce_tiles.KERNEL.block_count(config, problem)
    if blocks > MOST_BLOCKS:
        pytest.skip("more blocks than a launch has")
    tile = config.tile_m, config.tile_n
    slots = slot_count(config, tile, epilogue.reduction, (m, n), reduce_tiles.READ_WIDTH)
    lines, length = (m, n) if axis == 1 else (n, m)
    width = tile[axis] * -(-length // tile[axis]) // slots  # elements of a slot
    a = SparseOperand("float32", (batch, m, n), strides)
    for point in (0, blocks // 2, blocks - 1):
        made = SparseOperand("float64", (batch, slots, lines))
        run(spec, problem, {"a": a}, blocks, point, (made, batch * slots * lines))
        (matrix, slot, line), values = made.written()
        along = slot[:, None] * width + np.arange(width)
        row, col = (line[:, None], along) if axis == 1 else (along, line[:, None])
        elements = a.at(matrix[:, None], np.minimum(row, m - 1), np.minimum(col, n - 1))
        np.testing.assert_array_equal(values, np.where(along < length, elements, 0).sum(1))
        if point == blocks - 1:
            assert (matrix.max(), slot.max(), line.max()) == (batch - 1, slots - 1, lines - 1)


@pytest.mark.parametrize("file", [reduce_tiles, select_rows], ids=lambda file: file.__name__[32:])
def test_the_index_of_an_element_of_a_whole_matrix_is_right(file):
    m, n = 70_000, 70_001
    config, _ = file.KERNEL.simulator_configs
    epilogue = reducing("largest", None, ("float32", "int64"))
    problem = Problem(
        dtype="float32", m=m, n=n, k=n, batch=1, a=Strides(0, n, 1), b=NO_STRIDES, c=NO_STRIDES,
        out=NO_STRIDES, out_dtype="float32", epilogue=epilogue,
    )  # fmt: skip
    spec = KernelSpec(file.__name__[32:], file.__name__, config, "float32", (), epilogue)
    blocks = file.KERNEL.block_count(config, problem)
    slots = blocks // m
    if file is reduce_tiles:
        tile = config.tile_m, config.tile_n
        slots = slot_count(config, tile, epilogue.reduction, (m, n), reduce_tiles.READ_WIDTH)
    a = SparseOperand("float32", (1, m, n), (0, n, 1))
    values, indices = SparseOperand("float32", (1, slots, m)), SparseOperand("int64", (1, slots, m))
    extra = (values, slots * m), (indices, slots * m)
    run(spec, problem, {"a": a}, blocks, blocks - 1, *extra)
    (_, _, line), found = indices.written()
    is_found = found != NO_INDEX  # some threads have no element
    line, found = line[is_found], found[is_found]
    assert (found // n == line).all() and found.max() > 2**32
    np.testing.assert_array_equal(a.at(0, found // n, found % n), values.written()[1][is_found])


@pytest.mark.parametrize("shape", [(1, MOST, 3), (MOST, 2, 3), (3, 70_000, 70)], ids=str)
def test_partial_results_of_every_line_are_merged(shape):
    batch, m, k = shape
    config = merge_partials.KERNEL.simulator_configs[0]
    reduction = FusedReduction("sum", 1, ("float64",))
    operands = (*reduction.buffers, FusedOperand("output", "float32"))
    epilogue = Fusion((), operands, reduction=reduction)
    problem = Problem(
        dtype="float32", m=m, n=1, k=k, batch=batch, a=NO_STRIDES, b=NO_STRIDES, c=NO_STRIDES,
        out=NO_STRIDES, out_dtype="float32", epilogue=epilogue,
    )  # fmt: skip
    variant = (merge_partials.LINES, "values")
    spec = KernelSpec(
        "merge_partials", merge_partials.__name__, config, "float32", variant, epilogue
    )
    blocks = merge_partials.block_count(config, problem)
    partials, slots = SparseOperand("float64", (batch, k, m)), np.arange(k)
    for point in (0, blocks - 1):
        out = SparseOperand("float32", (batch, m), (m * 5, 5))
        run(spec, problem, {}, blocks, point, (partials, batch * k * m), (out, m * 5, 5, 0))
        check_tile(
            out, lambda matrix, line: partials.at(matrix[:, None], slots, line[:, None]).sum(1),
            point == blocks - 1,
        )  # fmt: skip


def of_groups(file: Any, problem: Problem) -> KernelSpec:
    """Kernel that takes its problems from a table, by the config of the fewest threads."""
    variant = file.table_variant([problem])
    configs = file.table_configs(problem.dtype, 80, variant)
    config = min((c for c in configs if c.matrices == 1), key=lambda c: c.threads)
    fusion, name = Fusion((), table_operands(problem.dtype)), file.__name__.rpartition(".")[2]
    return KernelSpec(name, file.__name__, config, problem.dtype, variant, fusion)


GROUPED = [(grouped, "float32"), (grouped, "float64"), (grouped_tensor_tile, HALF)]


@pytest.mark.parametrize(("file", "dtype"), GROUPED)
@pytest.mark.parametrize("sizes", [(MOST, 8), (8, MOST)], ids=str)
def test_a_problem_of_a_group_is_right_beyond_32_bits(file, dtype, sizes):
    """The second of two, whose operands begin beyond 2**32 elements."""
    (m, n), k, start = sizes, 64 if dtype == HALF else 4, 2**36
    problem = problem_of_shape(dtype, (1, m, n), k)
    spec = of_groups(file, problem)
    tiles = -(-m // spec.config.tile_m) * -(-n // spec.config.tile_n)
    row = [m, n, k]
    for strides in (problem.a, problem.b, problem.c, problem.out):
        row += [start, strides.row, strides.col]
    first = [spec.config.tile_m, spec.config.tile_n, k, *row[3:]]
    table = Table("int64", [0, 1, *first, 0, *row, 0])
    scalars = Table(problem.scalar_dtype, [5, 5, 2, 3])
    shifted = {
        name: SparseOperand(dtype, (2, rows, cols), (start, *getattr(problem, name)[1:]))
        for name, rows, cols in (("a", m, k), ("b", k, n), ("c", m, n), ("out", m, n))
    }
    own = replace(problem, m=2, n=0, batch=tiles + 1, epilogue=spec.epilogue)
    run(spec, own, shifted, tiles + 1, tiles, (table, 0), (scalars, 0), factors=(1, 1))
    check_tile(shifted["out"], product_of(shifted, np.arange(k), 2, 3), True)


@pytest.mark.parametrize(("file", "dtype"), GROUPED)
@pytest.mark.parametrize("behind", [1, 9])
def test_a_tile_behind_the_last_writes_nothing(file, dtype, behind):
    """The table ends as that of `group_offsets` does, with an empty problem of one column."""
    problem = problem_of_shape(dtype, (1, 8, 8), 8)
    spec = of_groups(file, problem)
    row = [8, 8, 8]
    for strides in (problem.a, problem.b, problem.c, problem.out):
        row += [0, strides.row, strides.col]
    table = Table("int64", [0, 1, *row, 0, 0, 1, *[0] * (len(FIELDS) - 2)])
    scalars = Table(problem.scalar_dtype, [2, 3, 0, 0])
    operands = {name: SparseOperand(dtype, (1, 8, 8)) for name in ("a", "b", "c", "out")}
    own = replace(problem, m=2, n=0, batch=1 + behind, epilogue=spec.epilogue)
    run(spec, own, operands, 1 + behind, behind, (table, 0), (scalars, 0), factors=(1, 1))
    assert not operands["out"].writes


@pytest.mark.parametrize("shared", ["m", "n", "k"])
def test_the_table_of_offsets_holds_numbers_of_64_bits(shared):
    size = {"m": (MOST, 8, 8), "n": (8, MOST, 8), "k": (8, 8, MOST)}[shared]
    m, n, k = size
    problem = problem_of_shape("float32", (1, m, n), k)
    problem = replace(problem, batch=3, a=problem.a._replace(batch=2**33))
    spec = maker_step(problem, shared, "int64", ()).spec
    offsets = Table("int64", [5, 2**30, MOST])
    table = SparseOperand("int64", (table_items(3),))
    scalars = SparseOperand("float32", (8,))
    run(spec, problem, {}, 1, 0, (offsets, 3), (table, 0), (scalars, 0), 64, 64, factors=(1, 1))
    last = {name: int(table.writes[4 + 2 * len(FIELDS) + i]) for i, name in enumerate(FIELDS)}
    assert last[shared] == MOST - 2**30 and last["first"] == 2**30
    step = {"m": problem.a.row, "n": 0, "k": problem.a.col}[shared]
    assert last["a_start"] == 2 * 2**33 + 2**30 * step
    assert last["b_start"] == 2**30 * {"m": 0, "n": problem.b.col, "k": problem.b.row}[shared]
    assert last["out_start"] == 2**30 * {"m": problem.out.row, "n": problem.out.col, "k": 0}[shared]
    tiles = {"k": 2, "m": 1 + -(-(2**30 - 5) // 64), "n": 1 + -(-(2**30 - 5) // 64)}[shared]
    assert table.writes[2] == tiles


def test_the_fallback_has_the_indices_of_the_kernel_that_it_stands_for():
    problem = problem_of_shape("float32", (1, MOST, 3), 5, precision="emulated")
    spec = native_step(problem, None, ()).spec
    file = import_module("dxgemm.handwritten.kernels.tuned")
    blocks = file.KERNEL.block_count(spec.config, problem)
    flag, operands = (SparseOperand("int32", (1,), function=ones), 1), sparse(problem)
    run(spec, problem, operands, blocks, blocks - 1, flag, factors=(2, 3))
    check_tile(operands["out"], product_of(operands, np.arange(5), 2, 3), True)


# Kernels whose index arithmetic is not run here, and why.
NOT_RUN = {
    "validity_check": "one block walks through the status of all blocks, with counters of 64 bits",
    "group_maps": "replaces numbers in tensor maps, which only a GPU reads",
    "grouped_wgmma": "`wgmma` with the tiles of a table: both are run on their own",
    "grouped_wgmma_float8": "`wgmma_float8` with the tiles of a table: both are run on their own",
    "grouped_wgmma_k": "`wgmma` with tensor maps of `group_maps`",
    "digit_wgmma": "`wgmma` with stages of digits, which test_tma_kernels finds",
    "pipeline": "cuBLASDx reads its operands, by addresses of 64 bits",
    "pipeline_tma": "cuBLASDx reads its operands, by tensor maps",
}


@pytest.mark.parametrize("triangle", ["lower", "unit upper"])
@pytest.mark.parametrize("shape", [(1, 50_000, 50_000), (60_000, 200, 200)], ids=str)
def test_every_triangle_is_copied(shape, triangle):
    batch, m, n = shape
    *unit, side = triangle.split()
    sizes = KernelArguments(
        "float32", m, n, n, batch, matrices(batch, m, n, "col"), out=matrices(batch, m, n)
    )
    (config,) = clean_triangle.KERNEL.configs
    spec = file_spec(clean_triangle, sizes, (side, "float32" if unit else "", ""), config)
    blocks = clean_triangle.block_count(config, sizes)
    a, out = (SparseOperand("float32", shape, strides) for strides in (sizes.a, sizes.out))
    run(spec, sizes, {"a": a, "out": out}, blocks, blocks - 1)

    def expected(matrix, row, col):
        values = np.where((col <= row) == (side == "lower"), a.at(matrix, row, col), 0)
        return np.where(row == col, 1, values) if unit else values

    check_tile(out, expected, True)


@pytest.mark.parametrize("block", ["", "128"])
@pytest.mark.parametrize("shape", [(1, 40_000_000, 130), (50_000, 900, 130)], ids=str)
def test_every_row_is_quantised(shape, block):
    batch, m, n = shape
    pieces = 2 if block else 1
    listed = tuple(FusedOperand("output", dtype) for dtype in ("float8_e4m3fn", "float32"))
    sizes = KernelArguments(
        "float32", m, n, n, batch, matrices(batch, m, n), epilogue=Fusion((), listed)
    )
    config = quantise_rows.KERNEL.simulator_configs[bool(block)]
    spec = file_spec(quantise_rows, sizes, ("float8_e4m3fn", *([block] if block else [])), config)
    blocks = batch * -(-m * pieces // config.groups)
    a = SparseOperand("float32", shape)
    elements = SparseOperand("float8_e4m3fn", shape)
    scales = SparseOperand("float32", (batch, m, pieces))
    extra = (elements, *elements.strides), (scales, *scales.strides)
    run(spec, sizes, {"a": a}, blocks, blocks - 1, *extra)
    width, cols = int(block or n), np.arange(n)

    def largest(matrix, row, piece):
        own = abs(a.at(matrix[:, None], row[:, None], cols)) * (cols // width == piece[:, None])
        return np.where(own.max(1) > 0, own.max(1), LEAST_LARGEST).astype(np.float32)

    def element(matrix, row, col):
        inverse = np.float32(448) / largest(matrix, row, col // width)
        scaled = np.float32(a.at(matrix, row, col)) * inverse
        return scaled.astype(numpy_dtype("float8_e4m3fn")).astype(float)

    check_tile(elements, element, True)
    check_tile(scales, lambda *at: largest(*at) / np.float32(448), True)


def test_no_kernel_is_forgotten():
    files = {name for _, name, _ in iter_modules(kernels.__path__)}
    files |= {i.name for i in IMPLEMENTATIONS if i.is_own}
    tried = {s.name for s in SUBJECTS} | {
        "add_slices", "complex_sum", "complex_copy", "align_rows", "scatter_rows", "decompose",
        "residues", "reconstruct", "emulated_float32", "emulated_float32_tile", "emulated_float64",
        "emulated_float64_tile", "reduce_tiles", "merge_partials", "grouped",
        "grouped_tensor_tile", "group_offsets", "native_fallback", "add_residues", "digits",
        "clean_triangle", "quantise_rows", "select_rows",
    }  # fmt: skip
    assert files == tried | {*NOT_RUN}
