"""G6: any strides of any operand, any base pointer, batches and their broadcasting."""

import numpy as np
import pytest
from oracle.buffers import Arena
from oracle.cases import Case, layout_groups, plain_layouts
from oracle.kinds import KINDS
from oracle.layouts import LAYOUTS

import dxgemm
from dxgemm import epilogues, reductions
from dxgemm.epilogues import ColumnVector, Matrix, RowVector
from dxgemm.gpu.status import simulator_enabled

SIZES = [(5, 3, 4)] if simulator_enabled() else [(5, 3, 4), (65, 33, 47), (130, 257, 96)]
# The simulator runs the same Python for float64 as for float32.
PLACED = [kind for kind in KINDS if kind != "float64"] if simulator_enabled() else [*KINDS]

BATCHES = [
    (3, 3, 3), (3, None, 3), (None, 3, 3), (3, 1, 3), (1, 3, 3), (1, 1, 1), (1, None, 1),
    (None, None, 3), (0, 0, 0), (0, None, 0),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("kind", PLACED)
def test_every_layout_of_every_operand(contract, kind, size):
    contract(layout_groups(kind, *size, tuple(LAYOUTS)))


@pytest.mark.parametrize("kind", PLACED)
def test_batches_broadcast(contract, kind):
    layouts = [plain_layouts(kind), ("col+1", "row+1", "row+1"), ("row", "col", "col_reversed")]
    factors = KINDS[kind].factors
    groups = (
        tuple(Case(kind, *SIZES[-1], names, *factors, batch=batch) for names in layouts)
        for batch in BATCHES
    )
    contract(groups)


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_layout_is_copied(home, name):
    m, n, k = SIZES[0]
    arena = Arena("float32")
    slots = [arena.place("", shape, LAYOUTS[name], None) for shape in ((m, k), (k, n))]
    sent = home.send(arena.fill())
    assert dxgemm.explain(*(home.view(sent, slot) for slot in slots)).work.copied == ()


# Views of an array (4, 3, size, 2 size): matrices whose rows lie evenly, one after the other, and
# matrices of which no single stride leads to all rows.
EVEN = {
    "padded rows": lambda x: x[:, :, 0, : x.shape[2]],
    "backwards": lambda x: x[::-1, ::-1, 0, : x.shape[2]],
    "every other column": lambda x: x[:, :, 1, ::2],
    "one row": lambda x: x[:, 1:2, 0, : x.shape[2]],
    "one row, backwards": lambda x: x[::-1, 1:2, 0, : x.shape[2]],
}
UNEVEN = {
    "two rows of three": lambda x: x[:, :2, 0, : x.shape[2]],
    "rows backwards": lambda x: x[:, ::-1, 0, : x.shape[2]],
    "matrices backwards": lambda x: x[::-1, :, 0, : x.shape[2]],
}
PLACES = {**EVEN, **UNEVEN}
N, K = 5, 4


@pytest.fixture
def placed(home):
    """Makes an array of small integers with a view of it that lies in a way, and its numbers."""
    rng = np.random.default_rng(0)

    def placed(place, size):
        numbers = rng.integers(-3, 4, (4, 3, size, 2 * size)).astype("float32")
        return PLACES[place](home.send(numbers)), PLACES[place](numbers).copy()

    return placed


def fitting(place):
    """Ways to lie that have as many rows as this one."""
    rows = [PLACES[name](np.empty((4, 3, 2, 4))).shape[1] for name in (place, *PLACES)]
    return [name for name, count in zip(PLACES, rows[1:]) if count == rows[0]]


@pytest.mark.parametrize("place", PLACES)
def test_a_batch_that_shares_a_factor_is_one_product_where_its_rows_lie_evenly(home, placed, place):
    b = np.random.default_rng(1).integers(-3, 4, (K, N)).astype("float32")
    b_sent = home.send(b)
    for c_place in fitting(place):
        for beta in (None, 0.0, 2.0):  # None: no c
            a_sent, a = placed(place, K)
            c_sent, c = placed(c_place, N)
            for out_place in fitting(place) if beta == 2 else (c_place,):
                out, _ = placed(out_place, N)
                addend = () if beta is None else (c_sent, 1.0, beta)
                expected = a @ b + (beta or 0) * c
                places = {place, out_place, *([c_place] if beta else [])}
                explained = dxgemm.explain(a_sent, b_sent, *addend, out=out)
                text = f"4 matrices that share b: one product of {4 * a.shape[1]} rows"
                assert explained.work.computed_as == (None if places & {*UNEVEN} else text)
                assert (explained.work.computed_as is None) == (explained.work.batch == 4)
                assert not explained.work.is_transposed
                dxgemm.gemm(a_sent, b_sent, *addend, out=out)
                np.testing.assert_array_equal(home.fetch(out.copy()), expected)
                # The same with columns, which share a.
                a_turned, c_turned, turned = (x.swapaxes(1, 2) for x in (a_sent, c_sent, out))
                turned[...] = 77
                addend = () if beta is None else (c_turned, 1.0, beta)
                explained = dxgemm.explain(b_sent.T, a_turned, *addend, out=turned)
                text = f"4 matrices that share a: one product of {4 * a.shape[1]} columns"
                assert explained.work.computed_as == (None if places & {*UNEVEN} else text)
                assert explained.work.is_transposed
                dxgemm.gemm(b_sent.T, a_turned, *addend, out=turned)
                np.testing.assert_array_equal(home.fetch(out.copy()), expected)
    a_sent, a = placed(place, K)
    c_sent, c = placed(place, N)
    dxgemm.gemm(a_sent, b_sent, c_sent, -1.0, 2.0)
    np.testing.assert_array_equal(home.fetch(c_sent.copy()), 2 * c - a @ b)


@dxgemm.epilogue
def add_row(value, row, col, column: ColumnVector):
    return value + column + row


@dxgemm.epilogue
def add_all(value, row, col, vector: RowVector, column: ColumnVector, matrix: Matrix):
    return value + vector + column + 2 * matrix + col


@dxgemm.epilogue(pairs=True, outputs=("kept",))
def differences(first, second, row, col, vector: RowVector):
    return first - second + vector, first


# Epilogues of arrays of these shapes, and True if rows may be flattened.
FUSED = {
    "a vector": (3, epilogues.bias, [(6,)], True),
    "a vector for each matrix": (3, epilogues.bias, [(4, 6)], False),
    "a vector for each row": (1, epilogues.bias, [(4, 6)], True),
    "a column for each matrix": (3, epilogues.bias_column, [(4, 3)], True),
    "a column for all": (3, epilogues.bias_column, [(3,)], False),
    "a number for each row": (1, epilogues.bias_column, [(1,)], True),
    "a residual": (3, epilogues.residual, [(4, 3, 6)], True),
    "one residual": (3, epilogues.residual, [(3, 6)], False),
    "one residual for all rows": (1, epilogues.residual, [(1, 6)], True),
    "all": (3, add_all, [(6,), (4, 3), (4, 3, 6)], True),
    "one that is not": (3, add_all, [(6,), (3,), (4, 3, 6)], False),
    "the row": (3, add_row, [(4, 3)], False),
    "the only row": (1, add_row, [(4, 1)], False),
    "pairs": (3, differences, [(3,)], True),
    "pairs of one row": (1, differences, [(4, 3)], True),
}


@pytest.mark.parametrize("m, epilogue, shapes, is_flattened", FUSED.values(), ids=FUSED)
def test_epilogues_of_a_batch_that_shares_b(home, m, epilogue, shapes, is_flattened):
    rng = np.random.default_rng(0)
    n = 6
    a, b, *arrays = (
        rng.integers(-3, 4, shape).astype("float32") for shape in ((4, m, K), (K, n), *shapes)
    )
    a_sent, b_sent, *sent = map(home.send, (a, b, *arrays))
    cols = n // 2 if epilogue.takes_pairs else n
    kept = home.send(np.zeros((4, m, cols), "float32"))
    outputs = {"kept": kept} if epilogue.outputs else {}
    bound, on_host = epilogue(*sent, **outputs), epilogue(*arrays, **outputs)
    for chain, host_chain in ((bound, on_host), (bound | epilogues.relu, on_host | epilogues.relu)):
        assert (dxgemm.explain(a_sent, b_sent, epilogue=chain).work.batch == 1) is is_flattened
        expected, expected_outputs = host_chain.on_host(a @ b)
        result = home.fetch(dxgemm.gemm(a_sent, b_sent, epilogue=chain))
        np.testing.assert_array_equal(result, expected)
        for name, array in expected_outputs.items():
            np.testing.assert_array_equal(home.fetch(outputs[name]), array)
        # Matrices one below the other, whose columns are contiguous.
        out = home.send(np.zeros((cols, 4, m), "float32")).transpose(1, 2, 0)
        assert (
            dxgemm.explain(a_sent, b_sent, out=out, epilogue=chain).work.batch == 1
        ) is is_flattened
        dxgemm.gemm(a_sent, b_sent, out=out, epilogue=chain)
        np.testing.assert_array_equal(home.fetch(out.copy()), expected)
    if not epilogue.takes_pairs:
        reduced = bound | reductions.sum(axis=1)
        assert dxgemm.explain(a_sent, b_sent, epilogue=reduced).work.computed_as is None


def test_matrices_side_by_side_are_one_product_of_all_columns(home):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype("float32") for shape in ((3, K), (K, 4, N)))
    out = home.send(np.zeros((3, 4, N), "float32"))
    operands = home.send(a), home.send(b).swapaxes(0, 1)
    explained = dxgemm.explain(*operands, out=out.swapaxes(0, 1))
    assert (explained.work.m, explained.work.n, explained.work.batch) == (3, 4 * N, 1)
    assert not explained.work.is_transposed
    assert explained.work.computed_as == f"4 matrices that share a: one product of {4 * N} columns"
    dxgemm.gemm(*operands, out=out.swapaxes(0, 1))
    np.testing.assert_array_equal(home.fetch(out), (a @ b.reshape(K, -1)).reshape(out.shape))
    # With an epilogue, columns are left as they are.
    dxgemm.gemm(*operands, out=out.swapaxes(0, 1), epilogue=epilogues.bias(home.send(b[0, 0])))
    expected = (a @ b.reshape(K, -1)).reshape(out.shape) + b[0, 0]
    np.testing.assert_array_equal(home.fetch(out), expected)


def test_only_rows_are_flattened_where_columns_decide_on_the_arithmetic(home):
    a, b = (home.send(np.ones(shape, "float32")) for shape in ((4, 3, K), (K, N)))
    out = home.send(np.zeros((4, 3, N), "float32"))
    turned = b.T, a.swapaxes(1, 2)
    for options in ({"batch_invariant": True}, {"precision": "emulated"}, {}):
        assert dxgemm.explain(a, b, out=out, **options).work.computed_as
        explained = dxgemm.explain(*turned, out=out.swapaxes(1, 2), **options)
        assert (explained.work.computed_as is None) is bool(options)
    # A single row counts as the first of several without gaps.
    assert dxgemm.explain(a[:, :1], b, batch_invariant=True).work.computed_as is None
    assert dxgemm.explain(a[:, :1], b).work.computed_as
    assert dxgemm.explain(a[0, :, None], b, batch_invariant=True).work.computed_as


def test_symmetric_results_of_a_batch_are_left_as_they_are(home):
    a = home.send(np.arange(K, dtype="float32"))[None, None].repeat(2, 1)
    square = home.fetch(a[0]) @ home.fetch(a[0]).T
    out = home.send(np.zeros((4, 2, 2), "float32"))
    dxgemm.gemm_symmetric(a, out=out)
    np.testing.assert_array_equal(home.fetch(out), np.broadcast_to(square, (4, 2, 2)))
    row = home.send(np.zeros((4, 1, 1), "float32"))
    for triangle in ("both", "lower", "upper"):
        row[...] = 77
        dxgemm.gemm_symmetric(a[:, :1], triangle=triangle, out=row)
        np.testing.assert_array_equal(home.fetch(row), np.full((4, 1, 1), square[0, 0]))
    row[...] = 77
    dxgemm.gemm(a[:, :1], a[0, :1].T, out=row)
    np.testing.assert_array_equal(home.fetch(row), np.full((4, 1, 1), square[0, 0]))
