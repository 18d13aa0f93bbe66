"""Epilogues over pairs of columns, with half as many columns in the result."""

import pickle

import numpy as np
import pytest
from oracle.kinds import KINDS, limits, round_to_dtype
from oracle.reference import columns_in_pairs

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.epilogues import ColumnVector, Matrix, RowVector, Scalar, geglu, swiglu
from dxgemm.gpu.status import simulator_enabled

FLOATS = [name for name, kind in KINDS.items() if not kind.is_integer]
KERNELS = [entry for entry in IMPLEMENTATIONS if hasattr(entry, "kernel")]
TAKE_PAIRS = {entry.name for entry in KERNELS if entry.kernel.takes_pairs}
# Whole tiles, edges on every side, one pair alone, one row; never square.
SIZES = [(16, 32, 4), (5, 6, 3), (1, 2, 2)]
if not simulator_enabled():
    SIZES = [(256, 512, 64), (130, 266, 43), (257, 2, 33), (1, 270, 40), (128, 264, 32)]


# Of out, c, vectors and matrices, and beta: aligned rows, columns, and what begins in the middle of
# 16 bytes. On the simulator a size has two of them.
ARRANGEMENTS = (
    ("row_aligned", "row_aligned", "row", "row_aligned", 0.0),
    ("row_aligned", "row_aligned", "row", "row_aligned", 2.0),
    ("col", "col", "row@1", "row", 1.0),
    ("row@1", "row+1", "row@1", "row+1", 2.0),
)
STEP = 2 if simulator_enabled() else 1


@dxgemm.epilogue(pairs=True, outputs=("difference",))
def joined(
    first, second, row, col, factor: Scalar, shift: RowVector, height: ColumnVector, extra: Matrix
):
    """Uses each kind of operand, its place, and which value is which."""
    place = float(row % 3) * 16.0 + float(col % 5)
    return factor * first + 4.0 * second + shift + height + extra + place, first - second


@pytest.fixture
def make_operands(make_operands, implementation):
    """Those of implementations that take pairs."""
    if implementation.name not in TAKE_PAIRS:
        pytest.skip("it takes no pairs")
    return make_operands


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", FLOATS)
def test_every_operand_in_every_implementation(make, make_operands, implementation, kind, size):
    wanted = KINDS[kind]
    m, n, _ = size
    half, sums = n // 2, wanted.scalar_dtype
    for out_layout, c_layout, vector, matrix, beta in ARRANGEMENTS[m % STEP :: STEP]:
        (a, a_sent), (b, b_sent) = make_operands(kind, size)
        c, c_sent = make((m, n), wanted.out_dtype, c_layout)
        out_sent = make((m, half), wanted.out_dtype, out_layout)[1]
        given = {
            "wide": make((1, n), sums, vector),
            "kept": make((m, n), sums, matrix),
            "shift": make((1, half), sums, vector),
            "height": make((1, m), sums, vector),
            "extra": make((m, half), sums, matrix),
            "difference": make((m, half), sums, matrix),
            "narrow": make((m, half), sums, matrix),
        }

        def chain(wide, kept, shift, height, extra, difference, narrow):
            return (
                epilogues.bias(wide[0])
                | epilogues.keep(kept=kept)
                | joined(2.0, shift[0], height[0], extra, difference=difference)
                | epilogues.residual(narrow)
                | epilogues.scale(0.5)
            )

        result = dxgemm.gemm(
            a_sent.array, b_sent.array, c_sent.array, -2.0, beta, out=out_sent.array,
            epilogue=chain(**{name: sent.array for name, (_, sent) in given.items()}),
            implementation=implementation.name, precision=wanted.precision,
        )  # fmt: skip
        assert result is out_sent.array
        values = -2.0 * (a.astype(float) @ b.astype(float)) + beta * c.astype(float)
        arrays = {name: array for name, (array, _) in given.items()}
        expected, outputs = chain(**arrays).on_host(values.astype(sums))
        np.testing.assert_array_equal(
            out_sent.fetch().astype(float), round_to_dtype(expected, c.dtype).astype(float)
        )
        for name, (_, sent) in given.items():
            if name in outputs:
                np.testing.assert_array_equal(sent.fetch(), outputs[name])
            else:
                sent.assert_unchanged()
        for sent in (a_sent, b_sent, c_sent):
            sent.assert_unchanged()


@pytest.mark.parametrize("epilogue", [swiglu, geglu], ids=lambda entry: entry.name)
@pytest.mark.parametrize("kind", FLOATS)
def test_gated_activations(make_operands, home, implementation, kind, epilogue):
    """The reference activates the gate in float64, and multiplies it there."""
    wanted = KINDS[kind]
    (a, a_sent), (b, b_sent) = make_operands(kind, SIZES[0])
    out = home.send(np.zeros((SIZES[0][0], SIZES[0][1] // 2), wanted.out_dtype))
    chain = epilogues.scale(0.25) | epilogue
    dxgemm.gemm(
        a_sent.array, b_sent.array, out=out, epilogue=chain, implementation=implementation.name,
        precision=wanted.precision,
    )  # fmt: skip
    gate, up = columns_in_pairs(0.25 * (a.astype(float) @ b.astype(float)))
    activation = {"swiglu": epilogues.silu, "geglu": epilogues.gelu}[epilogue.name]
    expected = activation.bound.on_host(gate)[0] * up
    eps = max(limits(wanted.out_dtype).eps, limits(wanted.scalar_dtype).eps)
    allowed = eps * (16 * np.abs(expected) + 8 * np.abs(up))
    assert (np.abs(home.fetch(out).astype(float) - expected) <= allowed).all()


@pytest.mark.parametrize("out_dtype", ["float32", "float16"])
def test_int8_products_are_dequantised_first(make, make_operands, implementation, out_dtype):
    m, n, _ = SIZES[1]
    (a, a_sent), (b, b_sent) = make_operands("int8", SIZES[1])
    out_sent = make((m, n // 2), out_dtype)[1]
    rows, rows_sent = make((1, m), "float32", "row@1", 1)
    cols, cols_sent = make((1, n), "float32", "row", 1)
    chain = epilogues.dequantise(rows_sent.array[0], cols_sent.array[0]) | second_minus_first
    options = {"epilogue": chain, "implementation": implementation.name}
    dxgemm.gemm(a_sent.array, b_sent.array, out=out_sent.array, **options)
    values = (a.astype(float) @ b.astype(float)) * rows.T.astype(float) * cols.astype(float)
    first, second = columns_in_pairs(values)
    expected = round_to_dtype(second - first, np.dtype(out_dtype)).astype(float)
    np.testing.assert_array_equal(out_sent.fetch().astype(float), expected)


@dxgemm.epilogue(pairs=True)
def second_minus_first(first, second, row, col):
    return second - first


def test_batches_and_new_results(make, home):
    batch, (m, n, k) = 3, SIZES[1]
    a, a_sent = make((batch, m, k), "float32")
    b, b_sent = make((k, n), "float32")
    gates, gates_sent = make((batch, n // 2), "float32")
    epilogue = second_minus_first | epilogues.bias(gates_sent.array)
    result = home.fetch(dxgemm.gemm(a_sent.array, b_sent.array, epilogue=epilogue))
    first, second = columns_in_pairs(a @ b)
    np.testing.assert_array_equal(result, second - first + gates[:, None, :])
    plan = dxgemm.plan(a_sent.array, b_sent.array, epilogue=epilogue, batch_invariant=True)
    np.testing.assert_array_equal(home.fetch(plan()), result)


def test_k_and_alpha_of_zero(make, home):
    m, n, _ = SIZES[1]
    for alpha, k in ((1.0, 0), (0.0, 3)):
        a, b = make((m, k), "float32")[1].array, make((k, n), "float32")[1].array
        c, c_sent = make((m, n), "float32")
        out = home.send(np.ones((m, n // 2), np.float32))
        dxgemm.gemm(a, b, c_sent.array, alpha, 1.0, out=out, epilogue=second_minus_first)
        first, second = columns_in_pairs(c)
        np.testing.assert_array_equal(home.fetch(out), second - first)


def test_no_columns_are_no_pairs(home):
    a, b = home.send(np.ones((3, 2), np.float32)), home.send(np.ones((2, 0), np.float32))
    assert dxgemm.gemm(a, b, epilogue=swiglu).shape == (3, 0)


def test_refusals_come_before_anything_is_written(make):
    m, n, k = SIZES[1]
    a, b = make((m, k), "float32")[1], make((k, n), "float32")[1]
    odd, c = make((k, n - 1), "float32")[1], make((m, n), "float32")[1]
    wide, wrong = make((1, n), "float32")[1], make((m, n), "float32")[1]
    for given, options, words in (
        ((a, odd), {}, "even number of columns"),
        ((a, b, c), {}, "pass out="),
        ((a, b), {"out": wrong.array}, "the result of an epilogue over pairs"),
        ((a, b), {"epilogue": swiglu | epilogues.bias(wide.array[0])}, "epilogue bias"),
        ((a, b), {"epilogue": epilogues.bias(wide.array[0, :-1]) | swiglu}, "epilogue bias"),
    ):
        arrays = [sent.array for sent in given]
        with pytest.raises(errors.ShapeError, match=words):
            dxgemm.gemm(*arrays, **{"epilogue": swiglu, **options})
    # The same first element and strides, but other columns.
    with pytest.raises(errors.OverlapError, match="shares memory with c"):
        dxgemm.gemm(a.array, b.array, c.array, 1.0, 1.0, out=c.array[:, : n // 2], epilogue=swiglu)
    for sent in (a, b, odd, c, wide, wrong):
        sent.assert_unchanged()


def test_kernels_that_store_no_pairs_say_so(make):
    m, n, k = SIZES[1]
    a, b = make((m, k), "float32")[1].array, make((k, n), "float32")[1].array
    explanation = dxgemm.explain(a, b, epilogue=swiglu)
    assert explanation.implementation in TAKE_PAIRS
    assert "pairs of columns" in explanation.choice.rejected["coalesced"]
    with pytest.raises(errors.UnsupportedProblemError, match="pairs of columns"):
        dxgemm.gemm(a, b, epilogue=swiglu, implementation="coalesced")
    assert len(TAKE_PAIRS) > len(KERNELS) / 2


def test_no_slices_are_added_in_pairs(make):
    a, b = make((4, 16), "float32")[1].array, make((16, 6), "float32")[1].array
    (config, *_) = find_implementation("double_buffer").configs("float32")
    with pytest.raises(errors.UnsupportedProblemError, match="cannot cut"):
        dxgemm.gemm(a, b, epilogue=swiglu, implementation=("double_buffer", config, 2))


def test_a_chain_takes_pairs_once_and_is_not_reduced():
    with pytest.raises(errors.EpilogueError, match="swiglu and geglu take pairs"):
        swiglu | epilogues.relu | geglu
    with pytest.raises(errors.EpilogueError, match="reduce its result"):
        epilogues.relu | swiglu | reductions.sum(axis=1)
    with pytest.raises(errors.EpilogueError, match="the first four are first, second, row and col"):
        dxgemm.epilogue(pairs=True)(lambda value, row, col: value)


def test_a_function_of_pairs_equals_no_other():
    def plain(gate, row, col, scale: Scalar):
        return gate

    single, pairs = dxgemm.epilogue(plain), dxgemm.epilogue(pairs=True)(plain)
    assert single != pairs and len(single.parameters) == 1 and not pairs.parameters
    copied = pickle.loads(pickle.dumps(swiglu))
    assert copied == swiglu and copied.takes_pairs
    assert swiglu(3.0, 0.5, 0, 0) == pytest.approx(0.5 * 3.0 / (1 + np.exp(-3.0)))


def test_on_host_halves_the_columns():
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    place = dxgemm.epilogue(pairs=True)(lambda x, y, row, col: x * 100.0 + y + row * 0.5 + col)
    kept = np.empty((2, 3, 4), np.float32)
    expected = values[..., ::2] * 100 + values[..., 1::2] + np.arange(3)[:, None] * 0.5 + range(2)
    result, outputs = (epilogues.keep(kept=kept) | place).on_host(values)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(outputs["kept"], values)
    with pytest.raises(errors.ShapeError, match="pairs of columns"):
        swiglu.bound.on_host(values[..., :3])
