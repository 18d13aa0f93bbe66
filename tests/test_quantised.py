"""Results that an epilogue turns into int8: rounded, clamped, stored by every kernel that can."""

import numpy as np
import pytest
from oracle.kinds import KINDS

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.epilogues import ColumnVector, RowVector, Scalar
from dxgemm.gpu.status import simulator_enabled

NARROW = ("float16", "bfloat16", "int8")
QUANTISE = [entry for entry in IMPLEMENTATIONS if entry.is_own and entry.kernel.quantises]
in_every_implementation = pytest.mark.parametrize(
    "implementation", QUANTISE, ids=[entry.name for entry in QUANTISE]
)
# Whole tiles, edges on every side, a single column, a single row; never square.
SIZES = [(3, 5, 4), (4, 2, 3), (5, 1, 2), (1, 6, 3)]
if not simulator_enabled():
    SIZES = [(256, 512, 64), (130, 266, 43), (257, 1, 33), (1, 270, 40), (128, 144, 32)]


@dxgemm.epilogue
def scaled(value, row, col, factor: Scalar, rows: ColumnVector, columns: RowVector):
    """Different in every place: halves are ties, and many values lie beyond int8."""
    return (np.float32(value) * rows + float(row % 5) - 2.0 * float(col % 7)) * columns * factor


@dxgemm.epilogue(pairs=True)
def difference(first, second, row, col):
    return np.float32(first) - np.float32(second)


def scales(rng, size):
    """Powers of two, so that products are exact; with what no int8 holds among them."""
    values = rng.choice(np.float32([0.25, 0.5, 1.0, 4.0, 64.0]), size)
    values[::3] *= -1
    if size > 4:
        values[-1], values[1], values[3] = np.inf, np.nan, -np.inf
    return values


@in_every_implementation
@pytest.mark.parametrize("layout", ["row_aligned", "row+1", "row@1", "col_aligned", "col@1"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", NARROW)
def test_every_layout_in_every_implementation(
    make, make_operands, home, implementation, kind, size, layout
):
    m, n, _ = size
    (a, a_sent), (b, b_sent) = make_operands(kind, size)
    out_sent = make((m, n), "int8", layout)[1]
    rng = np.random.default_rng(0)
    rows, columns = scales(rng, m), scales(rng, n)

    def chain(rows, columns):
        return scaled(0.5, rows, columns)

    result = dxgemm.gemm(
        a_sent.array, b_sent.array, alpha=3, out=out_sent.array,
        epilogue=chain(home.send(rows), home.send(columns)), implementation=implementation.name,
    )  # fmt: skip
    assert result is out_sent.array
    sums = (3.0 * (a.astype(float) @ b.astype(float))).astype(KINDS[kind].scalar_dtype)
    expected, _ = chain(rows, columns).on_host(sums, np.int8)
    np.testing.assert_array_equal(out_sent.fetch(), expected)
    for sent in (a_sent, b_sent):
        sent.assert_unchanged()


@in_every_implementation
@pytest.mark.parametrize("layout", ["row_aligned", "row@1", "col"])
@pytest.mark.parametrize("size", [SIZES[1], SIZES[-1]], ids=str)
@pytest.mark.parametrize("kind", NARROW)
def test_pairs_of_columns(make, make_operands, implementation, kind, size, layout):
    m, n, _ = size
    (a, a_sent), (b, b_sent) = make_operands(kind, size)
    out_sent = make((m, n // 2), "int8", layout)[1]
    epilogue = difference | epilogues.scale(7.5)
    dxgemm.gemm(
        a_sent.array, b_sent.array, out=out_sent.array, epilogue=epilogue,
        implementation=implementation.name,
    )  # fmt: skip
    sums = (a.astype(float) @ b.astype(float)).astype(KINDS[kind].scalar_dtype)
    np.testing.assert_array_equal(out_sent.fetch(), epilogue.on_host(sums, np.int8)[0])


def test_rounding_is_to_nearest_even_and_clamps(make, home):
    values = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 126.5, -128.5, -129, 1e30, -1e30, 0.49])
    values = np.append(values, np.float32([np.nan, np.inf, -np.inf, -0.0]))
    wanted = [0, 2, 2, 0, -2, 127, 126, -128, -128, 127, -128, 0, 0, 127, -128, 0]
    ones = make((1, 1), "float16", low=1, high=2)[1].array
    row = make((1, values.size), "float16", low=0, high=1)[1].array
    out = make((1, values.size), "int8")[1].array
    dxgemm.gemm(ones, row, out=out, epilogue=epilogues.bias(home.send(values)))
    np.testing.assert_array_equal(home.fetch(out)[0], np.int8(wanted))


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_auxiliary_outputs_may_be_int8(make, make_operands, implementation, kind):
    """Any kernel writes them: with the result in full precision beside."""
    if not implementation.is_own:
        pytest.skip("a baseline")
    m, n, _ = SIZES[0]
    (a, a_sent), (b, b_sent) = make_operands(kind, SIZES[0])
    (_, out_sent), (_, kept_sent) = make((m, n), KINDS[kind].out_dtype), make((m, n), "int8")

    def chain(kept):
        return epilogues.scale(16.5) | epilogues.keep(kept=kept) | epilogues.scale(2.0)

    dxgemm.gemm(
        a_sent.array, b_sent.array, out=out_sent.array, epilogue=chain(kept_sent.array),
        implementation=implementation.name, precision=KINDS[kind].precision,
    )  # fmt: skip
    sums = (a.astype(float) @ b.astype(float)).astype(KINDS[kind].scalar_dtype)
    _, outputs = chain(np.empty((m, n), np.int8)).on_host(sums)
    np.testing.assert_array_equal(kept_sent.fetch(), outputs["kept"])


@pytest.mark.gpu
def test_sums_of_slices_are_quantised_once(make, home):
    m, n, k = 64, 96, 512
    (a, a_sent), (b, b_sent) = make((m, k), "float16"), make((k, n), "float16")
    out = make((m, n), "int8")[1].array
    config = find_implementation("tensor_tile").configs("float16")[-1]
    epilogue = epilogues.scale(0.125)
    dxgemm.gemm(
        a_sent.array, b_sent.array, out=out, epilogue=epilogue,
        implementation=("tensor_tile", config, 4),
    )  # fmt: skip
    expected, _ = epilogue.on_host((a.astype(float) @ b.astype(float)).astype("f4"), np.int8)
    np.testing.assert_array_equal(home.fetch(out), expected)


def test_batches(make, home):
    batch, (m, n, k) = 3, SIZES[1]
    a, a_sent = make((batch, m, k), "int8", low=-128, high=128)
    b, b_sent = make((k, n), "int8", low=-128, high=128)
    out = make((batch, m, n), "int8")[1].array
    dxgemm.gemm(a_sent.array, b_sent.array, out=out, epilogue=epilogues.scale(2.0**-8))
    expected, _ = epilogues.scale(2.0**-8).on_host(a.astype(np.int32) @ b, np.int8)
    np.testing.assert_array_equal(home.fetch(out), expected)


def test_bad_calls_write_nothing(make):
    m, n, k = SIZES[0]
    half = make((m, k), "float16")[1].array, make((k, n), "float16")[1].array
    single = make((m, k), "float32")[1].array, make((k, n), "float32")[1].array
    integers = make((m, k), "int8")[1].array, make((k, n), "int8")[1].array
    out, addend = make((m, n), "int8")[1], make((m, n), "int8")[1]
    scale = epilogues.scale(0.5)
    for operands, options, error, words in (
        (half, {}, errors.DtypeError, "dtypes differ"),
        (integers, {}, errors.DtypeError, "dtypes differ"),
        (single, {"epilogue": scale}, errors.DtypeError, "dtypes differ"),
        ((*half, addend.array, 1.0, 1.0), {"epilogue": scale}, errors.DxgemmError, "beta at 0"),
        ((*integers, addend.array, 1, 1), {"epilogue": scale}, errors.DxgemmError, "beta at 0"),
        (half, {"epilogue": scale | reductions.sum(axis=1)}, errors.DxgemmError, "stored as int8"),
    ):
        with pytest.raises(error, match=words):
            dxgemm.gemm(*operands, out=out.array, **options)
    for sent in (out, addend):
        sent.assert_unchanged()
    if simulator_enabled():
        return
    assert {entry.name for entry in QUANTISE} == {
        "wgmma",
        "skinny_shifted",
        "skinny_wgmma",
        "tensor_tile",
        "shifted_tile",
        "widening_tile",
    }
    with pytest.raises(errors.UnsupportedProblemError, match="do not store int8"):
        dxgemm.gemm(*half, out=out.array, epilogue=scale, implementation="pipeline")
