"""`gemm_grouped`: every problem is right, whatever its sizes, or an error names it."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from complex_operands import integers
from known_devices import H200
from oracle.cases import DTYPES
from oracle.kinds import KINDS, numpy_dtype, round_to_dtype
from oracle.padded import Padded

import dxgemm
from dxgemm import errors
from dxgemm.call import grouped as _grouped
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import time_candidates
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import grouped, grouped_tensor_tile
from dxgemm.handwritten.parts.group_table import FIELDS, make_find_problem
from dxgemm.lower import grouped as _lowering
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS
from dxgemm.problem.layout import Strides
from dxgemm.runtime.program import Step

HALF_DTYPES = ("float16", "bfloat16")
# Results of half precision in both dtypes, each from another dtype of operands.
GROUPED_KINDS = (*DTYPES, "float16", "bfloat16_to_float32")
SIZES = {
    "equal": [(4, 4, 4)] * 5,
    "one": [(5, 6, 7)],
    "small": [(1, 1, 1), (4, 4, 4), (5, 3, 7), (8, 8, 8), (2, 9, 3)],
    "some empty": [(0, 3, 2), (3, 2, 0), (2, 0, 5), (3, 3, 3), (0, 0, 0)],
}
if not simulator_enabled():
    SIZES |= {
        "many": [(4, 4, 4)] * 3000,
        "up to 16": [(16, 16, 16), (15, 17, 13), (1, 16, 3)] * 40,
        "up to 128": [(64, 64, 64), (33, 31, 65), (128, 7, 9)] * 10,
        "mixed": [(1, 1, 1), (300, 200, 100), (64, 64, 64), (31, 500, 7), (2, 3, 1000)],
        "a thousand": [(7 * i % 70, 1 + i % 33, 11 * i % 130) for i in range(1000)],
        "large": [(1000, 700, 129), (0, 64, 64), (129, 1030, 257), (513, 260, 0)],
    }
# Of a, b and c; problems take them in turn, so that no kernel for one of them fits all.
LAYOUTS = {
    "rows": [("row_aligned", "row_aligned", "row")],
    "columns": [("col_aligned", "col_aligned", "col")],
    "mixed": [("row", "row", "row"), ("col", "row+1", "row"), ("row", "col", "col")],
    "one misaligned": [("row_aligned", "col_aligned", "row_aligned")] * 2
    + [("row@1", "col", "row")],
    "columns at any address": [("col@1", "row+1", "row"), ("col+1", "row@3", "row@1")],
    "strided": [("row/2", "col_reversed", "row/3cols"), ("rows_reversed", "col/2", "col")],
}


class Operands:
    """Lists of padded a, b and c of small integers, and what their problems must give."""

    def __init__(self, home, sizes, kind, layouts=LAYOUTS["rows"]):
        rng = np.random.default_rng(0)
        read, written = numpy_dtype(KINDS[kind].dtype), numpy_dtype(KINDS[kind].out_dtype)
        self.values = [
            [
                rng.integers(-3, 4, shape).astype(dtype)
                for shape, dtype in (((m, k), read), ((k, n), read), ((m, n), written))
            ]
            for m, n, k in sizes
        ]
        self.padded = [
            [Padded(home, values, layout) for values, layout in zip(problem, of_problem)]
            for problem, of_problem in zip(self.values, cycle(layouts))
        ]

    @property
    def lists(self):
        return [[padded.array for padded in of_all] for of_all in zip(*self.padded, strict=True)]

    def check(self, alpha, beta):
        for (a, b, c), padded, factor, addend in zip(self.values, self.padded, alpha, beta):
            exact = factor * product(a, b) + addend * c.astype(float)
            np.testing.assert_array_equal(padded[2].fetch(), round_to_dtype(exact, c.dtype))
            padded[0].assert_unchanged()
            padded[1].assert_unchanged()


def product(a, b):
    """a @ b of small integers, exactly."""
    return a.astype(float) @ b.astype(float)


@pytest.mark.parametrize("kind", GROUPED_KINDS)
@pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_every_problem_is_right(home, sizes, layouts, kind):
    operands = Operands(home, sizes, kind, layouts)
    a, b, c = operands.lists
    alpha = [index % 3 for index in range(len(sizes))]
    beta = [index % 2 for index in range(len(sizes))]
    results = dxgemm.gemm_grouped(a, b, c, alpha, beta)
    assert all(result is array for result, array in zip(results, c, strict=True))
    operands.check(alpha, beta)


@pytest.mark.parametrize("dtype", DTYPES + HALF_DTYPES)
def test_results_are_allocated_or_written_to_out(home, dtype):
    operands = Operands(home, SIZES["small"], dtype)
    a, b, c = operands.lists
    wanted = [product(x, y) for x, y, _ in operands.values]
    for result, value in zip(dxgemm.gemm_grouped(a, b), wanted, strict=True):
        assert type(result) is type(a[0]) and result.dtype == a[0].dtype
        np.testing.assert_array_equal(home.fetch(result), value)
    out = [home.send(np.full_like(added, np.nan)) for _, _, added in operands.values]
    assert dxgemm.gemm_grouped(a, b, c, beta=2.0, out=out)[0] is out[0]
    for array, value, (_, _, added) in zip(out, wanted, operands.values, strict=True):
        np.testing.assert_array_equal(home.fetch(array), value + 2 * added.astype(float))
    operands.check([0] * len(c), [1] * len(c))


def test_operands_may_be_shared_by_problems(home):
    weights = home.send(np.eye(4, dtype=np.float32))
    inputs = [home.send(np.full((size, 4), size, np.float32)) for size in (1, 2, 3)]
    for size, result in enumerate(dxgemm.gemm_grouped(inputs, [weights] * 3), 1):
        np.testing.assert_array_equal(home.fetch(result), np.full((size, 4), size))


def test_numpy_operands_are_computed_too():
    a, b = np.eye(3), np.arange(6.0).reshape(3, 2)
    (result,) = dxgemm.gemm_grouped([a], [b], alpha=3)
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, 3 * b)


def test_nothing_is_launched_for_empty_lists():
    assert dxgemm.gemm_grouped([], []) == []
    assert dxgemm.plan_grouped([], [])() == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_beta_zero_reads_no_c_and_alpha_zero_no_a_and_b(home, dtype):
    nan, ones = (np.full((3, 3), value, dtype) for value in (np.nan, 1))
    a, c = ([home.send(values) for values in pair] for pair in ((ones, nan), (nan, ones)))
    results = dxgemm.gemm_grouped(a, a, c, alpha=[1, 0], beta=[0, 2])
    np.testing.assert_array_equal(home.fetch(results[0]), np.full((3, 3), 3))
    np.testing.assert_array_equal(home.fetch(results[1]), np.full((3, 3), 2))


@pytest.mark.parametrize("kind", (*DTYPES, "bfloat16", "float16_to_float32"))
def test_a_plan_computes_what_the_arrays_hold_by_then(home, kind):
    operands = Operands(home, SIZES["small"], kind)
    a, b, c = operands.lists
    plan = dxgemm.plan_grouped(a, b, c, 1.0, 1.0)
    operands.check([0] * len(c), [1] * len(c))
    assert plan() is plan()
    operands.check([2] * len(c), [1] * len(c))


def matrix(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


TWICE = [matrix(2, 2), matrix(2, 2)]


@pytest.mark.parametrize("dtype", COMPLEX_PARTS)
@pytest.mark.parametrize("is_planned", [False, True])
def test_complex_problems(home, dtype, is_planned):
    sizes = [(3, 4, 5), (2, 0, 3), (4, 2, 0), (1, 6, 7)]
    kept = [[integers(s, dtype) for s in ((m, k), (k, n), (m, n))] for m, n, k in sizes]
    alpha, beta = [1j, 1, 2, 2 - 1j], 1 + 1j
    a, b, c = ([home.send(array) for array in arrays] for arrays in zip(*kept, strict=True))
    grouped_call = dxgemm.plan_grouped if is_planned else dxgemm.gemm_grouped
    results = grouped_call(a, b, c, alpha, beta)
    results = results() if is_planned else results
    for result, array, (x, y, z), factor in zip(results, c, kept, alpha, strict=True):
        assert result is array
        np.testing.assert_array_equal(home.fetch(result), factor * (x @ y) + beta * z)
    with pytest.raises(errors.ScalarError, match="alpha is 1j"):
        dxgemm.gemm_grouped([home.send(kept[0][0].real.copy())], [b[0].real.copy()], None, 1j)


HALVES = [matrix(2, 2, dtype=np.float16)] * 2
BUFFER = matrix(4, 8)
REFUSED = {
    "inner dimensions": (
        (([matrix(2, 2), matrix(4, 5)], [matrix(2, 2), matrix(6, 7)])),
        errors.ShapeError,
        r"_grouped: inner dimensions differ: a\[1\] is \(4, 5\), b\[1\] is \(6, 7\)",
    ),
    "an array": ((matrix(2, 2, 2), TWICE), errors.ArrayTypeError, "a is a ndarray; pass a list"),
    "no list": ((TWICE, None), errors.ArrayTypeError, "b is a NoneType; pass a list"),
    "lengths": ((TWICE, TWICE[:1]), errors.ShapeError, "a has 2, b has 1 arrays"),
    "a batch": (([matrix(2, 2, 2)], [matrix(2, 2)]), errors.ShapeError, r"a\[0\] is \(2, 2,"),
    "no array": ((TWICE, [TWICE[0], 3]), errors.ArrayTypeError, r"b\[1\] is 3, not an array"),
    "two dtypes of results": (
        (HALVES, HALVES, [matrix(2, 2, dtype=np.float16), matrix(2, 2)]),
        errors.DtypeError,
        r"c\[0\] is float16, c\[1\] is float32; all results must have one dtype",
    ),
    "a dtype that does not fit": (
        (HALVES, HALVES, [matrix(2, 2), matrix(2, 2, dtype=np.float64)]),
        errors.DtypeError,
        r"dtypes differ: a\[1\] is float16, b\[1\] is float16, c\[1\] is float64",
    ),
    "overflow of sums": ((HALVES, HALVES, None, 1e39), errors.ScalarError, "overflows float32"),
    "two dtypes": (
        ([matrix(2, 2), matrix(2, 2, dtype=np.float64)],) * 2,
        errors.DtypeError,
        r"a\[0\] is float32, a\[1\] is float64",
    ),
    "no c": ((TWICE, TWICE, None, 1.0, [0, 1]), errors.MissingOperandError, r"beta\[1\] is not"),
    "alphas": ((TWICE, TWICE, None, [1.0]), errors.ShapeError, "alpha has 1 numbers for 2"),
    "a scalar": ((TWICE, TWICE, None, [1, "2"]), errors.ScalarError, r"alpha\[1\] is '2'"),
    "overflow": ((TWICE, TWICE, None, 1e39), errors.ScalarError, r"alpha is 1e\+39"),
    "one result twice": (
        (TWICE, TWICE, [BUFFER[:2, :2], BUFFER[1:3, 1:3]]),
        errors.OverlapError,
        r"c\[0\] shares memory with c\[1\], which is written too",
    ),
    "the operand of another": (
        (TWICE, [TWICE[0], BUFFER[1:3, 1:3]], [BUFFER[:2, :2], matrix(2, 2)]),
        errors.OverlapError,
        r"c\[0\] shares memory with b\[1\], which is read while c\[0\] is written",
    ),
}


@pytest.mark.parametrize("arguments, error, message", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("call", [dxgemm.gemm_grouped, dxgemm.plan_grouped])
def test_an_error_names_the_problem_and_nothing_is_written(call, arguments, error, message):
    with pytest.raises(error, match=message):
        call(*arguments)
    assert (BUFFER == 1).all() and all((array == 1).all() for array in TWICE)


def test_results_that_interleave_share_nothing():
    buffer = np.zeros((3, 8), np.float32)
    a, b = [np.eye(3, dtype=np.float32)] * 2, [np.full((3, 4), v, np.float32) for v in (1, 2)]
    dxgemm.gemm_grouped(a, b, [buffer[:, ::2], buffer[:, 1::2]])
    np.testing.assert_array_equal(buffer, np.tile([1.0, 2.0], (3, 4)))


def test_c_may_be_read_in_place_of_out():
    a = [np.eye(2, dtype=np.float32)]
    c = [np.ones((2, 2), np.float32)]
    dxgemm.gemm_grouped(a, a, c, beta=1.0, out=c)
    np.testing.assert_array_equal(c[0], np.eye(2) + 1)
    with pytest.raises(errors.OverlapError, match=r"out\[0\] shares memory with c\[0\]"):
        dxgemm.gemm_grouped(a, a, c, beta=1.0, out=[c[0].T])


def test_tables_are_for_tensor_cores_where_there_are_some():
    tall = {config.tile_m for config in grouped.TENSOR_CONFIGS}
    for dtype, capability in (("float32", 90), ("float64", 80), ("float64", 90)):
        configs = grouped.table_configs(dtype, capability)
        assert sorted({config.tile_m for config in configs}) == [4, 8, 16, 32, 64]
        on_cores = {c.tile_m for c in configs if isinstance(c, grouped.TensorTableConfig)}
        assert on_cores == (tall if dtype == "float64" else set())


@pytest.mark.parametrize("size, tile", [(4, (64, 64)), (64, (64, 64)), (2048, (128, 128))])
@pytest.mark.parametrize("layouts", [("k16", "x16"), ("k", "any")])
def test_half_precision_takes_tiles_that_fit_the_problems(layouts, size, tile):
    sizes = np.array([size] * 50)
    configs = grouped_tensor_tile.table_configs("float16", 90, layouts)
    config = _lowering.choose_config(configs, grouped_tensor_tile.share, sizes, sizes, sizes, H200)
    assert (config.tile_m, config.tile_n) == tile


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_half_precision_is_launched_once_with_a_table(monkeypatch, out_dtype):
    """The launch has a block for each tile; the table counts elements of the operands' dtypes."""
    monkeypatch.setattr(Step, "bind", lambda step, *place: step)
    _lowering.forget_launches()
    shapes = [(100, 8, 24), (0, 8, 24), (8, 72, 24)]
    a, b, c = zip(
        *([np.ones(shape, "float16") for shape in ((m, k), (k, n), (m, n))] for m, n, k in shapes)
    )
    c = [array.astype(out_dtype) for array in c]
    members = _grouped.GroupOfLists(a, b, c, [1, 2, 3], [0, 4, 5], None, None).members
    (table, scalars), step = _lowering._table([m.launched for m in members], H200, 0)
    spec, problem, blocks = step.spec, step.arguments, step.blocks
    _lowering.forget_launches()
    assert (spec.implementation, spec.dtype) == ("grouped_tensor_tile", "float16")
    assert spec.variant == ("k16", "x16", out_dtype)
    assert spec.epilogue.format == problem.epilogue.format == "PqPq"
    assert (blocks, problem.m, problem.k, problem.batch) == (4, 2, 24, 4)
    assert scalars.dtype == np.float32 and scalars.tolist() == [[1, 0], [3, 5]]
    assert table[:2].tolist() == [0, 2]
    first, last = (dict(zip(FIELDS, row, strict=True)) for row in table[2:].reshape(2, -1))
    assert (first["m"], first["n"], first["k"]) == (100, 8, 24)
    assert first["a_start"] * 2 == a[0].ctypes.data
    assert last["b_start"] * 2 == b[2].ctypes.data
    assert last["out_start"] * c[2].itemsize == c[2].ctypes.data
    assert (last["b_stride_k"], last["b_stride_n"], last["out_stride_m"]) == (72, 1, 72)


def test_half_precision_is_built_ahead_for_common_layouts():
    specs = _lowering.group_specs(HALF_DTYPES, "sm_80")
    assert {spec.config for spec in specs} == set(grouped_tensor_tile.KERNEL.configs)
    for dtype in HALF_DTYPES:
        results = {spec.variant[-1] for spec in specs if spec.dtype == dtype}
        assert results == {dtype, "float32"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_problems_take_what_is_quickest_for_a_batch(configs_of_a_gpu, dtype):
    for size in (4, 16, 32, 48):
        batch = contiguous_problem(dtype, size, size, size, 1000)
        same = batch.a._replace(batch=0)
        config = _lowering._choose_alike(replace(batch, a=same, b=same), H200)
        kernels = [find_implementation(name) for name in ("small_batch", "tensor_batch")]
        (times,) = time_candidates(batch, H200, [k for k in kernels if k.configs(dtype)])
        assert times.columns.rows[times.us.argmin()].config == config


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_captured_plan_computes_what_the_arrays_hold_by_then(cupy, dtype):
    a = [cupy.full((size, 3), size, dtype) for size in (2, 5)]
    b = [cupy.ones((3, 4), dtype)] * 2
    plan = dxgemm.plan_grouped(a, b)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        results = plan()
        graph = stream.end_capture()
        for factor in (1, 2):
            for array in a:
                array *= factor
            graph.launch(stream)
            stream.synchronize()
            for array, result in zip(a, results, strict=True):
                assert (result == 3 * array[0, 0]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_call_under_capture_is_refused(cupy, dtype):
    a = [cupy.ones((3, 3), dtype)]
    out = [cupy.zeros((3, 3), dtype)]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(errors.LaunchError, match="plan_grouped"):
            dxgemm.gemm_grouped(a, a, out=out)
        stream.end_capture()


@pytest.mark.gpu
def test_tables_of_many_calls_do_not_mix(cupy):
    b = [cupy.eye(4, dtype="float32")] * 7
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    rounds = []
    for number in range(60):
        a = [cupy.full((size, 4), number + size, "float32") for size in range(1, 8)]
        cupy.cuda.get_current_stream().synchronize()
        rounds.append((a, dxgemm.gemm_grouped(a, b, stream=streams[number % 3])))
    cupy.cuda.Device().synchronize()
    for a, results in rounds:
        assert all((x == y).all() for x, y in zip(a, results, strict=True))


@pytest.mark.parametrize(
    "operands, modes",
    [
        ([("row16", "col16")] * 2, ("row16", "col")),
        ([("row16", "row16"), ("row", "row16")], ("row", "row16")),
        ([("row16", "row"), ("col16", "col")], ("row", "row")),
        ([("col16", "row16"), ("col", "row")], ("col", "row")),
    ],
)
def test_a_kernel_reads_all_operands_in_one_layout(operands, modes):
    assert grouped.modes(operands) == modes


def half(m, n, depth, **changes):
    return replace(contiguous_problem("float16", m, n, depth), **changes)


@pytest.mark.parametrize(
    "problems, layouts",
    [
        ([half(8, 8, 64), half(1, 200, 128)], ("k16", "x16")),
        ([half(8, 8, 64), half(8, 8, 72)], ("k16", "x16")),
        ([half(8, 8, 64), half(9, 12, 8)], ("k16", "x")),
        ([half(8, 8, 64), half(8, 8, 64, a_alignment=2)], ("k", "x16")),
        ([half(8, 8, 64), half(8, 8, 64, a=Strides(0, 1, 8))], ("any", "x16")),
        ([half(8, 8, 64, a=Strides(0, 1, 8)), half(8, 8, 1)], ("x16", "x16")),
        ([half(8, 8, 64), half(8, 8, 64, k=0, a_alignment=2)], ("k16", "x16")),
        ([half(8, 8, 64, k=0)], ("k16", "x16")),
    ],
)
def test_half_precision_is_read_in_one_layout(problems, layouts):
    assert grouped_tensor_tile.table_variant(problems) == (*layouts, "float16")
    for config in grouped_tensor_tile.table_configs("float16", 80, layouts):
        is_aligned = "16" in layouts[0] and "16" in layouts[1]
        assert (config in grouped_tensor_tile.ALIGNED_SHARES) == is_aligned


def test_a_tile_finds_its_problem_in_the_table():
    tiles = [3, 1, 1, 7, 2]
    first_tiles = np.cumsum(tiles) - tiles
    find_problem = make_find_problem()
    find_problem = getattr(find_problem, "py_func", find_problem)
    expected = [(problem, place) for problem, count in enumerate(tiles) for place in range(count)]
    for tile, (problem, place) in enumerate(expected):
        row = len(tiles) + problem * len(FIELDS)
        assert find_problem(first_tiles, len(tiles), tile) == (problem, place, row)
