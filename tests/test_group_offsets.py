"""`gemm_grouped` with offsets on the device: its results, and the table that a kernel makes."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from oracle.kinds import numpy_dtype
from oracle.libraries import LIBRARIES

import dxgemm
from dxgemm import epilogues as e
from dxgemm import errors
from dxgemm import reductions as r
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.group_table import FIELDS
from dxgemm.lower.group_offsets import maker_step, most_tiles, offset_specs
from dxgemm.lower.group_wgmma import refusal
from dxgemm.lower.grouped import DTYPES
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Strides
from dxgemm.runtime.device import device_facts

M, N, K = (3, 5, 4) if simulator_enabled() else (40, 72, 33)
# Ends of groups. Empty groups at the beginning, in the middle and at the end; a rest without one.
OFFSETS = {
    "one group": [7],
    "even": [4, 8, 12],
    "uneven": [0, 1, 1, 1, 6, 11, 11],
    "all empty": [0, 0, 0],
}
if not simulator_enabled():
    OFFSETS |= {"a thousand": np.cumsum([i * 37 % 7 for i in range(1000)]).tolist()}
REST = 3


def parts(offsets, total):
    """Slice of each group: wrong offsets are as good as the nearest right ones."""
    ends = np.clip(offsets, 0, total).tolist()
    return [slice(start, max(start, end)) for start, end in zip([0, *ends], ends)]


def group_shapes(shared, total, count):
    """Shapes of a, b and the result."""
    return {
        "m": ((total, K), (count, K, N), (total, N)),
        "n": ((count, M, K), (K, total), (M, total)),
        "k": ((M, total), (total, N), (count, M, N)),
    }[shared]


def expected(shared, a, b, c, alpha, beta, offsets):
    """The result, in float64."""
    a, b, result = a.astype(float), b.astype(float), c.astype(float)
    total = a.shape[0] if shared == "m" else a.shape[1] if shared == "k" else b.shape[1]
    for index, part in enumerate(parts(offsets, total)):
        places, a_part, b_part = {
            "m": (part, part, index),
            "n": ((slice(None), part), index, (slice(None), part)),
            "k": (index, (slice(None), part), part),
        }[shared]
        added = beta * result[places] if beta else 0.0
        result[places] = alpha * (a[a_part] @ b[b_part]) + added
    return result


@pytest.fixture(params=("m", "n", "k"))
def shared(request):
    """The dimension that is shared out."""
    return request.param


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results(make, home, shared, dtype, offsets):
    total = offsets[-1] + REST
    shapes = group_shapes(shared, total, len(offsets))
    for layout, alpha, beta, kind in (
        ("row", 1.0, 0.0, "int32"),
        ("row_aligned", -2.0, 3.0, "int64"),
        ("col", 1.0, 1.0, "int32"),
        ("row@1", 2.0, 0.0, "int32"),
        ("col_aligned", 0.0, 2.0, "int32"),
    ):
        (a, a_sent), (b, b_sent), (c, c_sent) = (make(shape, dtype, layout) for shape in shapes)
        sent = home.send(np.array(offsets, kind))
        result = dxgemm.gemm_grouped(
            a_sent.array, b_sent.array, c_sent.array, alpha, beta, offsets=sent
        )
        assert result is c_sent.array
        wanted = expected(shared, a, b, c, alpha, beta, offsets)
        np.testing.assert_array_equal(c_sent.fetch().astype(float), wanted)
        for operand in (a_sent, b_sent):
            operand.assert_unchanged()


def test_new_results_and_out(make, home, shared):
    offsets = OFFSETS["uneven"]
    shapes = group_shapes(shared, offsets[-1], len(offsets))
    (a, a_sent), (b, b_sent), (c, c_sent) = (make(shape, "float32") for shape in shapes)
    sent = home.send(np.int32(offsets))
    new = dxgemm.gemm_grouped(a_sent.array, b_sent.array, offsets=sent)
    np.testing.assert_array_equal(home.fetch(new), expected(shared, a, b, c, 1.0, 0.0, offsets))
    out = make(shapes[2], "float32")[1]
    dxgemm.gemm_grouped(
        a_sent.array, b_sent.array, c_sent.array, 1.0, 2.0, out=out.array, offsets=sent
    )
    np.testing.assert_array_equal(out.fetch(), expected(shared, a, b, c, 1.0, 2.0, offsets))
    c_sent.assert_unchanged()


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_half_precision_into_float32(make, home, shared, out_dtype):
    offsets = OFFSETS["even"]
    shapes = group_shapes(shared, offsets[-1], len(offsets))
    (a, a_sent), (b, b_sent) = (make(shape, "float16") for shape in shapes[:2])
    c, out = make(shapes[2], out_dtype)
    dxgemm.gemm_grouped(
        a_sent.array, b_sent.array, out=out.array, offsets=home.send(np.int32(offsets))
    )
    wanted = expected(shared, a, b, c, 1.0, 0.0, offsets)
    np.testing.assert_array_equal(out.fetch().astype(float), wanted)


@pytest.mark.parametrize(
    "offsets", [[-5, 3, 2, 100, 7], [100, 100], [-1, -1], [2**31 - 1, -(2**31)]], ids=str
)
def test_wrong_offsets_touch_nothing_outside(make, home, shared, offsets):
    """Guard pads around the operands would show it; groups do not overlap in these cases."""
    total = 8
    shapes = group_shapes(shared, total, len(offsets))
    (a, a_sent), (b, b_sent), (c, c_sent) = (make(shape, "float32") for shape in shapes)
    dxgemm.gemm_grouped(
        a_sent.array, b_sent.array, c_sent.array, offsets=home.send(np.int32(offsets))
    )
    if offsets[0] >= 0 or shared == "k":
        wanted = expected(shared, a, b, c, 1.0, 0.0, offsets)
        np.testing.assert_array_equal(c_sent.fetch(), wanted)
    else:
        c_sent.fetch()


def test_a_plan_reads_the_offsets_of_each_call(make, home, shared):
    total = 12
    shapes = group_shapes(shared, total, 3)
    (a, a_sent), (b, b_sent), (c, c_sent) = (make(shape, "float32") for shape in shapes)
    sent = home.send(np.int32([4, 8, 12]))
    plan = dxgemm.plan_grouped(a_sent.array, b_sent.array, out=c_sent.array, offsets=sent)
    for offsets in ([4, 8, 12], [0, 12, 12], [1, 2, 12]):
        sent[...] = home.send(np.int32(offsets))
        assert plan() is c_sent.array
        wanted = expected(shared, a, b, c, 1.0, 0.0, offsets)
        np.testing.assert_array_equal(c_sent.fetch(), wanted)


def test_nan_where_nothing_is_multiplied(make, home):
    """A group without k is beta * c, even with a NaN in alpha."""
    a, b = make((2, 6), "float32")[1].array, make((6, 3), "float32")[1].array
    c, c_sent = make((3, 2, 3), "float32")
    offsets = home.send(np.int32([0, 6, 6]))
    dxgemm.gemm_grouped(a, b, c_sent.array, np.nan, 2.0, offsets=offsets)
    result = c_sent.fetch()
    np.testing.assert_array_equal(result[[0, 2]], 2 * c[[0, 2]])
    assert np.isnan(result[1]).all()


def test_nothing_is_written_where_c_stays(make, home, shared):
    """alpha == 0 with beta == 1 in place leaves every bit, the sign of a zero among them."""
    shapes = group_shapes(shared, 6, 2)
    a, b = (make(shape, "float32")[1].array for shape in shapes[:2])
    c = home.send(np.full(shapes[2], -0.0, "float32"))
    dxgemm.gemm_grouped(a, b, c, 0.0, 1.0, offsets=home.send(np.int32([2, 6])))
    assert np.signbit(home.fetch(c)).all()


def test_empty_calls(home, shared):
    for total, count in ((0, 0), (0, 3)):
        shapes = group_shapes(shared, total, count)
        a, b = (home.send(np.ones(shape, "float32")) for shape in shapes[:2])
        result = dxgemm.gemm_grouped(a, b, offsets=home.send(np.zeros(count, "int32")))
        assert result.shape == shapes[2]
        assert (home.fetch(result) == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("a_rows", [1, 5, 40])
@pytest.mark.parametrize("offsets", [[9], [4, 4, 9], [0, 1, 1, 2, 7], [1]], ids=str)
def test_gathered_rows(make, home, dtype, a_rows, offsets):
    """Indices in any order, some repeated, some outside of a, which count as the nearest row."""
    rows = np.array([4, 0, 0, 3, -7, 99, 2, 2, 1][-offsets[-1] :])
    total, count = len(rows), len(offsets)
    for a_layout, c_layout, beta, k, kind in (
        ("row", "row", 0.0, K, "int32"),
        ("row_aligned", "col", 2.0, 8, "int64"),
        ("row@1", "row@1", 1.0, 1, "int32"),
        ("col", "row_aligned", 0.0, K, "int64"),
        ("rows_reversed", "row", 1.0, 3, "int32"),
        ("row", "col", 2.0, 0, "int32"),
    ):
        a, a_sent = make((a_rows, k), dtype, a_layout)
        b, b_sent = make((count, k, N), dtype)
        c, c_sent = make((total, N), dtype, c_layout)
        options = {
            "offsets": home.send(np.int32(offsets)),
            "rows": home.send(rows.astype(kind)),
        }
        call = a_sent.array, b_sent.array, c_sent.array, 2.0, beta
        dxgemm.gemm_grouped(*call, **options)
        gathered = a[np.clip(rows, 0, a_rows - 1)]
        wanted = expected("m", gathered, b, c, 2.0, beta, offsets)
        np.testing.assert_array_equal(c_sent.fetch().astype(float), wanted)
        for operand in (a_sent, b_sent):
            operand.assert_unchanged()


def test_a_plan_reads_the_indices_of_each_call(make, home):
    (a, a_sent), (b, b_sent) = make((6, K), "float32"), make((2, K, N), "float32")
    offsets, rows = home.send(np.int32([3, 8])), home.send(np.zeros(8, "int32"))
    out = make((8, N), "float32")[1]
    plan = dxgemm.plan_grouped(
        a_sent.array, b_sent.array, out=out.array, offsets=offsets, rows=rows
    )
    for seed in range(3):
        drawn = np.random.default_rng(seed).integers(0, 6, 8)
        rows[...] = home.send(np.int32(drawn))
        plan()
        wanted = expected("m", a[drawn], b, np.zeros((8, N)), 1.0, 0.0, [3, 8])
        np.testing.assert_array_equal(out.fetch(), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offsets", [[9], [4, 4, 9], [0, 1, 1, 2, 7], [1]], ids=str)
def test_scattered_rows(make, home, dtype, offsets):
    """Rows go where their indices say; others of out keep every bit, and so does memory around."""
    rows = np.array([4, 0, 11, -1, 7, 99, 2, 12, 1])
    total, count = len(rows), len(offsets)
    for a_layout, out_layout, k, n, beta, kind in (
        ("row", "row", K, N, 0.0, "int32"),
        ("row_aligned", "row_aligned", 8, 8, 2.0, "int64"),
        ("row_aligned", "col", 8, 8, 0.0, "int32"),
        ("row@1", "row@1", K, N, 1.0, "int32"),
        ("row", "rows_reversed", 0, N, 2.0, "int64"),
        ("col", "row", 3, 1, 0.0, "int64"),
    ):
        (a, a_sent), (b, b_sent) = make((total, k), dtype, a_layout), make((count, k, n), dtype)
        (c, c_sent), (out, out_sent) = make((total, n), dtype), make((12, n), dtype, out_layout)
        options = {"offsets": np.int32(offsets), "out_rows": rows.astype(kind)}
        options = {name: home.send(indices) for name, indices in options.items()}
        operands = a_sent.array, b_sent.array, c_sent.array, 2.0, beta
        result = dxgemm.gemm_grouped(*operands, out=out_sent.array, **options)
        assert result is out_sent.array
        sums, wanted = expected("m", a, b, c, 2.0, beta, offsets), out.astype(float)
        for row, line in enumerate(rows[: offsets[-1]]):
            if 0 <= line < 12:
                wanted[line] = sums[row]
        np.testing.assert_array_equal(out_sent.fetch().astype(float), wanted)
        for operand in (a_sent, b_sent, c_sent):
            operand.assert_unchanged()


def test_no_row_is_read_where_nothing_is_multiplied(home):
    """alpha == 0 gives beta * c, whatever a holds."""
    a, b = home.send(np.full((3, 4), np.nan)), home.send(np.ones((2, 4, 5)))
    c = home.send(np.ones((6, 5)))
    offsets, rows = home.send(np.int32([2, 6])), home.send(np.int32([0, 1, 2, 0, 1, 2]))
    dxgemm.gemm_grouped(a, b, c, 0.0, 3.0, offsets=offsets, rows=rows)
    assert (home.fetch(c) == 3).all()


def test_bad_calls_write_nothing(make, home):
    a, b = make((8, 4), "float32")[1].array, make((2, 4, 3), "float32")[1].array
    c_sent = make((8, 3), "float32")[1]
    c, offsets, rows = c_sent.array, home.send(np.int32([3, 8])), home.send(np.int32([0] * 8))
    for operands, options, error, words in (
        ((a, b[0, :3], c), {}, errors.ShapeError, "inner dimensions differ"),
        ((a, b[:, :3], c), {}, errors.ShapeError, r"inner dimensions differ"),
        ((a, b[0], c), {}, errors.ShapeError, r"c is \(8, 3\), but the result is \(2, 8, 3\)"),
        ((b, b, c), {}, errors.ShapeError, "with offsets, pass"),
        ((a, b[:1], c), {}, errors.ShapeError, r"b is \(1, 4, 3\), but offsets has 2"),
        ((a, b, c[:4]), {}, errors.ShapeError, r"c is \(4, 3\), but the result is \(8, 3\)"),
        ((a, b, c), {"offsets": offsets.astype("float32")}, errors.DtypeError, "int32 or int64"),
        ((a, b, c), {"offsets": offsets[None]}, errors.ShapeError, "one dimension"),
        (
            (a, b, c),
            {"offsets": [3, 8]},
            errors.ArrayTypeError,
            "not an array",
        ),
        ((a, b, c), {"alpha": "two"}, errors.ScalarError, "alpha"),
        ((a, b, c), {"alpha": 1e300}, errors.ScalarError, "overflows"),
        ((a.astype("int32"), b, c), {}, errors.DtypeError, "int32"),
        ((a, b.astype("float64"), c), {}, errors.DtypeError, "dtypes differ"),
        ((c, make((2, 3, 3), "float32")[1].array, c), {}, errors.OverlapError, "with a"),
        ((a, b), {"beta": 1.0}, errors.MissingOperandError, "beta"),
        ((a, b, c[:7]), {"rows": rows}, errors.ShapeError, "but the result is"),
        ((a, b, c), {"rows": rows.astype("float32")}, errors.DtypeError, "rows has dtype float32"),
        ((a, b, c), {"rows": rows[None]}, errors.ShapeError, "rows is"),
        ((a[:0], b, c), {"rows": rows}, errors.ShapeError, "no rows for 8 indices"),
        ((b, a.T[:3], None), {"rows": rows}, errors.ShapeError, "with rows, pass"),
        ((a, b, c), {"rows": rows, "offsets": None}, errors.MissingOperandError, "rows= goes with"),
        ((a, b, c), {"out_rows": rows}, errors.MissingOperandError, "out_rows= goes with out="),
        ((a, b), {"out_rows": rows[:7], "out": c}, errors.ShapeError, "result has 8 rows"),
        ((a, b), {"out_rows": rows, "out": c[:, :2]}, errors.ShapeError, r"must be \(any, 3\)"),
        ((a, b), {"out_rows": rows[None], "out": c}, errors.ShapeError, "out_rows is"),
        ((b, a.T[:3]), {"out_rows": rows, "out": c}, errors.ShapeError, "with out_rows, pass"),
        ((a, b), {"out_rows": rows, "out": c, "beta": 2.0}, errors.MissingOperandError, "beta"),
    ):
        with pytest.raises(error, match=words) as raised:
            dxgemm.gemm_grouped(*operands, **{"offsets": offsets, **options})
        assert str(raised.value).startswith("gemm_grouped: ")
    c_sent.assert_unchanged()
    wide = home.send(np.int32([3, 0, 8, 0]))[::2]
    with pytest.raises(errors.LayoutError, match="contiguous"):
        dxgemm.gemm_grouped(a, b, offsets=wide)


@pytest.mark.parametrize("offsets", [[7], [0, 1, 1, 1, 6, 11, 11], [9, 3, 40, -2], [5] * 13])
@pytest.mark.parametrize("is_batched", [True, False])
def test_the_table_is_that_of_the_problems(home, shared, offsets, is_batched):
    """Runs the kernel that makes the table, and reads it as the product's kernel does."""
    count, total, tile_m, tile_n = len(offsets), 11, 4, 2
    sizes = {"m": 6, "n": 5, "k": 3, shared: total}
    problem = contiguous_problem("float32", **sizes)
    strides = {"a": Strides(100, 7, 2), "b": Strides(200, 3, 1), "c": Strides(300, 1, 9)}
    strides["out"] = Strides(400, 11, 5)
    if not is_batched:
        strides = {name: entry._replace(batch=0) for name, entry in strides.items()}
    problem = replace(problem, **strides)
    table = home.send(np.full((count + 1) * (1 + len(FIELDS)), -1, "int64"))
    scalars = home.send(np.full(2 * count + 2, -1, "float32"))
    sent = home.send(np.int32(offsets))
    making = maker_step(replace(problem, batch=count), shared, "int32", ())
    maker = making.bind(device_facts(0).arch, 0)
    address = (lambda x: x.ctypes.data) if simulator_enabled() else (lambda x: x.data.ptr)
    arrays = [number for x in (sent, table, scalars) for number in (address(x), x.size)]
    maker((0, 0, 0, 0, 3.0, 2.0, *arrays, tile_m, tile_n), 0)
    table, scalars = home.fetch(table), home.fetch(scalars)

    axes = {"m": ("a row", "c row", "out row"), "n": ("b col", "c col", "out col")}
    axes["k"] = ("a col", "b row")
    tiles = 0
    for index, part in enumerate(parts(offsets, total)):
        own = sizes | {shared: part.stop - part.start}
        row = [own["m"], own["n"], own["k"]]
        for name, entry in strides.items():
            start = index * entry.batch
            for axis in ("row", "col"):
                if f"{name} {axis}" in axes[shared]:
                    start += part.start * getattr(entry, axis)
            row += [start, entry.row, entry.col]
        row.append(part.start)
        first = count + 1 + index * len(FIELDS)
        assert table[index] == tiles
        assert table[first : first + len(FIELDS)].tolist() == row
        assert scalars[2 * index : 2 * index + 2].tolist() == [3.0 if own["k"] else 0.0, 2.0]
        tiles += -(-own["m"] // tile_m) * -(-own["n"] // tile_n)
    assert table[count] == tiles
    if offsets == sorted(offsets):
        assert tiles <= most_tiles(problem, shared, count, tile_m, tile_n)
    # Tiles behind the last belong to an empty problem, whose columns a place can be divided by.
    assert table[-len(FIELDS) :].tolist() == [0, 1, *[0] * (len(FIELDS) - 2)]
    assert scalars[-2:].tolist() == [0.0, 0.0]


def test_the_kernels_of_offsets_are_built_ahead():
    on_ampere = Counter(spec.implementation for spec in offset_specs(DTYPES[::2], "sm_80"))
    # Rows of two dtypes, read in two orders.
    assert on_ampere == {"group_offsets": 3, "align_rows": 4, "scatter_rows": 2}
    on_hopper = Counter(spec.implementation for spec in offset_specs(DTYPES, "sm_90a"))
    assert on_hopper["group_offsets"] == 6
    assert on_hopper.keys() == {
        "group_offsets", "group_maps", "align_rows", "scatter_rows", "grouped_wgmma",
        "grouped_wgmma_k",
    }  # fmt: skip
    assert not offset_specs(("int8",), "sm_90a")
    assert not offset_specs(DTYPES, "sm_75")


@pytest.mark.gpu
def test_a_graph_reads_the_offsets_of_each_replay(make, cupy, home, shared):
    total = 12
    shapes = group_shapes(shared, total, 3)
    (a, a_sent), (b, b_sent), (c, c_sent) = (make(shape, "float16") for shape in shapes)
    sent = home.send(np.int32([4, 8, 12]))
    arrays = a_sent.array, b_sent.array, c_sent.array
    dxgemm.gemm_grouped(*arrays, offsets=sent)  # builds and loads the kernels
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        dxgemm.gemm_grouped(*arrays, offsets=sent)
        graph = stream.end_capture()
        for offsets in ([4, 8, 12], [0, 0, 12], [3, 3, 4]):
            sent[...] = home.send(np.int32(offsets))
            c_sent.array[...] = home.send(c)
            graph.launch()
            stream.synchronize()
            wanted = expected(shared, a, b, c, 1.0, 0.0, offsets)
            np.testing.assert_array_equal(c_sent.fetch().astype(float), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_uneven_groups(home, shared, dtype):
    sizes = [0, 1, 700, 129, 0, 64, 300]
    offsets = np.cumsum(sizes)
    total, count = int(offsets[-1]) + 5, len(sizes)
    k, n, m = 256, 192, 320
    shapes = {
        "m": ((total, k), (count, k, n)),
        "n": ((count, m, k), (k, total)),
        "k": ((m, total), (total, n)),
    }[shared]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(numpy_dtype(dtype)) for shape in shapes)
    result = dxgemm.gemm_grouped(
        *map(home.send, (a, b)), offsets=home.send(offsets.astype("int32"))
    )
    fetched = home.fetch(result).astype(float)
    c = np.zeros(fetched.shape)
    wanted = expected(shared, a, b, c, 1.0, 0.0, offsets.tolist())
    used = {"m": np.s_[: offsets[-1]], "n": np.s_[:, : offsets[-1]], "k": np.s_[:]}[shared]
    exact = wanted.astype(numpy_dtype(dtype)).astype(float)
    np.testing.assert_array_equal(fetched[used], exact[used])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("a_order", "b_order"), [*product("FC", "CF")])
def test_groups_of_k_see_nothing_of_their_neighbours(hopper, home, dtype, a_order, b_order):
    """Every group but one is NaN. Groups begin and end anywhere, one of them is empty."""
    sizes, m, n = [5, 0, 64, 129, 1, 300, 63, 6], 136, 264
    ends = np.cumsum(sizes)
    total, kind = int(ends[-1]), numpy_dtype(dtype)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(kind) for shape in ((m, total), (total, n)))
    offsets = home.send(np.int32(ends))

    def send(array, order):
        return home.send(array) if order == "C" else home.send(array.T.copy()).T

    for group, part in enumerate(parts(ends, total)):
        a_alone, b_alone = np.full_like(a, np.nan), np.full_like(b, np.nan)
        a_alone[:, part], b_alone[part] = a[:, part], b[part]
        operands = send(a_alone, a_order), send(b_alone, b_order)
        result = dxgemm.gemm_grouped(*operands, offsets=offsets)
        exact = (a[:, part].astype(float) @ b[part].astype(float)).astype(kind)
        np.testing.assert_array_equal(home.fetch(result)[group].astype(float), exact.astype(float))


def test_wgmma_takes_layouts_that_tma_can_begin_to_read_anywhere():
    rows = contiguous_problem("bfloat16", 256, 512, 1024)
    gradient = replace(rows, a=Strides(0, 1, 256))
    for problem, dimension, reason in (
        (gradient, "k", None),
        (rows, "m", None),
        (rows, "k", "any k of a K-major a or b"),
        (gradient, "m", "any row of an MN-major a"),
        (replace(rows, a_alignment=2), "m", "a begins at no multiple of 16 bytes"),
        (replace(rows, k=0), "m", "k is 0"),
        (rows, "n", "rows of a, or k"),
    ):
        found = refusal(problem, dimension, "sm_90a")
        assert found is None if reason is None else reason in found
    assert "9.0" in refusal(rows, "m", "sm_80")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("orders", "k"),
    [("CC", 264), ("CC", 8), ("CF", 192), ("CF", 1000), ("CC", 263), ("FC", 264), ("FF", 77)],
)
def test_large_groups_of_gathered_rows(home, dtype, orders, k):
    """Rows in any order, some of them often, some outside of a; what is in no group is NaN.

    Then the rows of the result in another order.
    """
    sizes, n, kind = [0, 1, 700, 129, 0, 64, 300], 264, numpy_dtype(dtype)
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    rng = np.random.default_rng(0)
    a = rng.integers(-2, 3, (500, k)).astype(kind)
    b = rng.integers(-2, 3, (len(sizes), k, n)).astype(kind)
    rows = rng.integers(0, 480, total)  # the others are NaN
    a[480:-1] = np.nan
    rows[[0, 17, 900]] = -1, -(2**31), 2**31 - 1
    a_sent = home.send(a) if orders[0] == "C" else home.send(a.T.copy()).T
    b_sent = home.send(b) if orders[1] == "C" else home.send(b.mT.copy()).swapaxes(1, 2)
    for index_dtype in ("int32", "int64"):
        offsets, indices = home.send(np.int32(ends)), home.send(rows.astype(index_dtype))
        result = dxgemm.gemm_grouped(a_sent, b_sent, offsets=offsets, rows=indices)
        gathered = a[np.clip(rows, 0, 499)]
        wanted = expected("m", gathered, b, np.zeros((total, n)), 1.0, 0.0, ends.tolist())
        exact = wanted.astype(kind).astype(float)
        np.testing.assert_array_equal(home.fetch(result).astype(float), exact)
        places = rng.permutation(total).astype(index_dtype)
        scattered = dxgemm.gemm_grouped(
            a_sent, b_sent, out=result, offsets=offsets, rows=indices, out_rows=home.send(places)
        )
        np.testing.assert_array_equal(home.fetch(scattered)[places].astype(float), exact)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_graph_reads_the_indices_of_each_replay(cupy, home, dtype):
    rng, kind = np.random.default_rng(0), numpy_dtype(dtype)
    a, b = (rng.integers(-2, 3, shape).astype(kind) for shape in ((30, 40), (2, 40, 24)))
    arrays, out = (home.send(a), home.send(b)), home.send(np.zeros((50, 24), kind))
    options = {"offsets": home.send(np.int32([20, 50])), "rows": home.send(np.zeros(50, "int32"))}
    options["out_rows"] = home.send(np.zeros(50, "int32"))
    dxgemm.gemm_grouped(*arrays, out=out, **options)  # builds and loads the kernels
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        dxgemm.gemm_grouped(*arrays, out=out, **options)
        graph = stream.end_capture()
        for _ in range(3):
            rows = rng.integers(0, 30, 50)
            options["rows"][...] = home.send(np.int32(rows))
            places = rng.permutation(50)
            options["out_rows"][...] = home.send(np.int32(places))
            graph.launch()
            stream.synchronize()
            wanted = expected("m", a[rows], b, np.zeros((50, 24)), 1.0, 0.0, [20, 50])
            np.testing.assert_array_equal(home.fetch(out)[places].astype(float), wanted)


@e.epilogue(pairs=True)
def product_of_pairs(first, second, row, col):
    return first * second


def check_epilogue(library, shared, name, dtype, sizes, ends, gathers=False):
    """Compare with the epilogue of the exact sums, group by group."""
    (m, n, k), total, count, kind = sizes, ends[-1], len(ends), numpy_dtype(dtype)
    m, n, k = {"m": (total, n, k), "n": (m, total, k), "k": (m, n, total)}[shared]
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.integers(-2, 3, shape).astype(kind)

    a, b = draw(m, k), draw(k, n)
    result_shape = (count, m, n) if shared == "k" else (m, n)
    if shared == "m":
        b = draw(count, k, n)
    elif shared == "n":
        a = draw(count, m, k)
    options, a_sent = {}, a
    if gathers:
        rows = rng.integers(0, m, m)
        a_sent, a = a, a[rows]
        options["rows"] = library.send(np.int32(rows))
    of_groups = draw(count, m) if shared == "n" else draw(count, n)
    vector, matrix = draw(n), draw(*result_shape)
    send = library.send
    epilogue = {
        "of groups": lambda: (e.bias_column if shared == "n" else e.bias)(send(of_groups)) | e.relu,
        "of all": lambda: e.bias(send(vector)) | e.relu | e.residual(send(matrix)),
        "pairs": lambda: product_of_pairs | e.bias(send(vector[: n // 2])),
    }[name]()
    offsets = send(np.int32(ends))
    # Groups of k run on wgmma with the layout of the gradient of weights.
    a_sent = send(a_sent.T.copy()).T if shared == "k" else send(a_sent)
    if gathers:  # and scatters
        places = rng.permutation(m)
        options["out_rows"] = send(np.int32(places))
        options["out"] = send(np.zeros((m, n // 2 if name == "pairs" else n), kind))
    result = dxgemm.gemm_grouped(a_sent, send(b), offsets=offsets, epilogue=epilogue, **options)
    sums = expected(shared, a, b, np.zeros(result_shape), 1.0, 0.0, ends)
    fetched = library.fetch(result).astype(float)
    if gathers:
        fetched = fetched[places]
    for index, part in enumerate(parts(ends, total)):
        place = {"m": (part,), "n": (slice(None), part), "k": (index,)}[shared]
        wanted = sums[place]
        if name == "of groups":
            own = of_groups[index].astype(float)
            wanted = np.maximum(wanted + (own[:, None] if shared == "n" else own), 0)
        elif name == "of all":
            own = vector[part] if shared == "n" else vector
            wanted = np.maximum(wanted + own.astype(float), 0) + matrix[place].astype(float)
        else:
            wanted = wanted[:, ::2] * wanted[:, 1::2] + vector[: n // 2].astype(float)
        np.testing.assert_array_equal(fetched[place], wanted.astype(kind).astype(float))


@pytest.mark.parametrize("name", ["of groups", "of all", "pairs"])
@pytest.mark.parametrize("kind", ["m", "n", "k", "rows"])
def test_epilogues_in_host_memory(kind, name):
    if (kind, name) == ("n", "pairs"):
        pytest.skip("groups of columns may tear pairs apart")
    shared, gathers = ("m", True) if kind == "rows" else (kind, False)
    check_epilogue(LIBRARIES["numpy"], shared, name, "float32", (3, 6, 4), [2, 2, 7], gathers)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["of groups", "of all", "pairs"])
@pytest.mark.parametrize("kind", ["m", "k", "rows"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_epilogues(hopper, home, dtype, kind, name):
    """Groups end anywhere in tiles; one is empty."""
    shared = "m" if kind == "rows" else kind
    ends = [3, 3, 203, 204, 512]
    check_epilogue(home, shared, name, dtype, (136, 400, 72), ends, gathers=kind == "rows")


def test_bad_epilogues_are_refused(make, home):
    a, b = make((8, 4), "float32")[1].array, make((2, 4, 6), "float32")[1].array
    c_sent = make((8, 6), "float32")[1]
    offsets, vector = home.send(np.int32([3, 8])), home.send(np.ones(5, "float32"))
    columns = home.send(np.ones((2, 8), "float32"))
    for epilogue, options, error, words in (
        (e.bias(vector), {}, errors.ShapeError, r"bias: .* is \(5,\)"),
        (e.bias_column(columns), {}, errors.ShapeError, r"is \(2, 8\)"),
        (e.relu | r.sum(1), {}, errors.UnsupportedProblemError, "ends in a reduction"),
        (e.scale(1e300), {}, errors.ScalarError, "overflows"),
        (e.residual(c_sent.array), {}, errors.OverlapError, "shares memory"),
        (e.relu, {"offsets": None}, errors.MissingOperandError, "epilogue= goes with"),
        (product_of_pairs, {}, errors.ShapeError, r"the result is \(8, 3\)"),
    ):
        with pytest.raises(error, match=words) as raised:
            dxgemm.gemm_grouped(
                a, b, out=c_sent.array, epilogue=epilogue, **{"offsets": offsets, **options}
            )
        assert str(raised.value).startswith("gemm_grouped: ")
    with pytest.raises(errors.UnsupportedProblemError, match="tear apart"):
        dxgemm.gemm_grouped(b, c_sent.array.T, epilogue=product_of_pairs, offsets=offsets)
    c_sent.assert_unchanged()
