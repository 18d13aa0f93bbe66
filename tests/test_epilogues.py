"""Epilogues fused into every implementation, against the same functions on the host."""

import math
from fractions import Fraction
from itertools import product as combinations

import numpy as np
import pytest
from oracle.kinds import KINDS, limits, round_to_dtype
from oracle.padded import Padded

import dxgemm
from dxgemm import epilogues, errors, inners
from dxgemm.call import route
from dxgemm.epilogues import Matrix, RowVector, Scalar
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem import pieces

FLOATS = [name for name, kind in KINDS.items() if not kind.is_integer]
# Whole tiles, edges on every side, a single row, on a GPU a single column; never square.
SIZES = [(3, 5, 4), (4, 2, 3), (1, 6, 3)]
if not simulator_enabled():
    SIZES = [(256, 512, 64), (130, 266, 43), (257, 1, 33), (1, 270, 40)]


@pytest.fixture
def make_operands(make_operands, implementation):
    """Those of dxgemm's own implementations."""
    if not implementation.is_own:
        pytest.skip("a baseline")
    return make_operands


@pytest.fixture
def fuse(implementation):
    """`gemm` by the implementation of a test, of padded operands."""

    def fuse(kind, epilogue, *operands, out=None):
        arrays = (x.array if isinstance(x, Padded) else x for x in operands)
        return dxgemm.gemm(
            *arrays, out=out and out.array, epilogue=epilogue, implementation=implementation.name,
            precision=KINDS[kind].precision,
        )  # fmt: skip

    return fuse


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", FLOATS)
def test_every_operand_in_every_implementation(make, make_operands, fuse, kind, size):
    wanted = KINDS[kind]
    m, n, _ = size
    sums = wanted.scalar_dtype
    # Aligned rows; then vectors and matrices that begin in the middle of 16 bytes, and columns.
    for c_layout, vector_layout, matrix_layout, beta in (
        ("row_aligned", "row", "row_aligned", 0.0),
        ("row@1", "row@1", "row+1", 2.0),
        ("col", "row@1", "row", 1.0),
    ):
        (a, a_sent), (b, b_sent) = make_operands(kind, size)
        c, c_sent = make((m, n), wanted.out_dtype, c_layout)
        row, row_sent = make((1, n), sums, vector_layout)
        column, column_sent = make((1, m), sums, vector_layout)
        matrix, matrix_sent = make((m, n), sums, matrix_layout)
        kept, kept_sent = make((m, n), sums, matrix_layout)

        def chain(row, column, matrix, kept):
            return (
                epilogues.bias(row)
                | epilogues.keep(kept=kept)
                | epilogues.relu
                | epilogues.scale_rows(column)
                | epilogues.residual(matrix)
                | marked(8.0)
            )

        epilogue = chain(
            row_sent.array[0], column_sent.array[0], matrix_sent.array, kept_sent.array
        )
        assert fuse(kind, epilogue, a_sent, b_sent, c_sent, -2.0, beta) is c_sent.array
        values = -2.0 * (a.astype(float) @ b.astype(float)) + beta * c.astype(float)
        expected, outputs = chain(row[0], column[0], matrix, kept).on_host(values.astype(sums))
        np.testing.assert_array_equal(
            c_sent.fetch().astype(float), round_to_dtype(expected, c.dtype).astype(float)
        )
        np.testing.assert_array_equal(kept_sent.fetch(), outputs["kept"])
        for sent in (a_sent, b_sent, row_sent, column_sent, matrix_sent):
            sent.assert_unchanged()


def test_an_epilogue_without_operands_is_applied_on_the_host():
    values = np.array([[-1.0, 2.0], [3.0, -4.0]])
    for result in (epilogues.relu.on_host(values), epilogues.relu.bound.on_host(values)):
        np.testing.assert_array_equal(result[0], np.maximum(values, 0.0))
    assert epilogues.relu.on_host(values, "float16")[0].dtype == "float16"
    with pytest.raises(errors.EpilogueError, match=r"bias: vector .* is missing"):
        epilogues.bias.on_host(values)
    with pytest.raises(errors.EpilogueError, match="pass it as inner="):
        inners.l1.on_host(values)


@pytest.mark.parametrize("kind", FLOATS)
def test_operands_along_the_other_side(make, make_operands, fuse, kind):
    wanted = KINDS[kind]
    m, n, _ = SIZES[1]
    (a, a_sent), (b, b_sent) = make_operands(kind, SIZES[1])
    out, out_sent = make((m, n), wanted.out_dtype)
    row, row_sent = make((1, n), wanted.scalar_dtype, "row@1")
    column, column_sent = make((1, m), wanted.scalar_dtype, "row")

    def chain(row, column):
        return (
            epilogues.bias_column(column)
            | epilogues.leaky_relu(0.5)
            | epilogues.scale_columns(row)
            | epilogues.clamp(-100.0, 300.0)
            | epilogues.scale(0.25)
        )

    epilogue = chain(row_sent.array[0], column_sent.array[0])
    fuse(kind, epilogue, a_sent, b_sent, out=out_sent)
    sums = (a.astype(float) @ b.astype(float)).astype(wanted.scalar_dtype)
    expected, _ = chain(row[0], column[0]).on_host(sums)
    np.testing.assert_array_equal(
        out_sent.fetch().astype(float), round_to_dtype(expected, out.dtype).astype(float)
    )


def keeping(name):
    """`keep` with an output of another name."""

    @dxgemm.epilogue(outputs=(name,))
    def kept(value, row, col):
        return value, value

    return kept


ACTIVATIONS = ("gelu", "silu", "tanh", "sigmoid", "gelu_tanh")


@pytest.mark.parametrize("kind", FLOATS)
def test_activations_in_every_implementation(make_operands, home, fuse, kind):
    """Each activation takes the result of the one before it; dropout comes last.

    The reference is the same function in float64.
    """
    wanted = KINDS[kind]
    m, n, k = (3, 16, 4) if simulator_enabled() else (67, 134, 43)
    (_, a), (_, b) = make_operands(kind, (m, n, k))
    values = np.random.default_rng(1).normal(0, 3, (m, n))
    special = [0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 88.0, -88.0, 1e30, -1e30]
    values.flat[: len(special)] = special
    c = Padded(home, round_to_dtype(values, wanted.out_dtype), "row")
    kept = {
        name: home.send(np.zeros((m, n), wanted.scalar_dtype)) for name in ("start", *ACTIVATIONS)
    }
    chain = keeping("start")(start=kept["start"])
    for name in ACTIVATIONS:
        chain = chain | getattr(epilogues, name) | keeping(name)(**{name: kept[name]})
    dropout = epilogues.dropout(0.25, 1234567890123)
    fuse(kind, chain | dropout, a, b, c, 0.0, 1.0)
    found = {name: home.fetch(array) for name, array in kept.items()}
    for before, name in zip(found, ACTIVATIONS, strict=False):
        expected, _ = getattr(epilogues, name).bound.on_host(found[before].astype(float))
        assert_near(name, found[before], found[name], expected, wanted.scalar_dtype)
    expected, _ = dropout.on_host(found[ACTIVATIONS[-1]])
    result = c.fetch().astype(float)
    np.testing.assert_allclose(result, expected, rtol=2 * limits(wanted.out_dtype).eps)
    np.testing.assert_array_equal(result == 0, expected == 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "int8"])
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_operands_of_every_dtype(make, make_operands, fuse, kind, dtype):
    m, n, _ = SIZES[0]
    (a, a_sent), (b, b_sent) = make_operands(kind, SIZES[0])
    row, row_sent = make((1, n), dtype, "row_aligned")
    matrix, matrix_sent = make((m, n), dtype, "row_aligned")
    out, out_sent = make((m, n), kind)
    chain = epilogues.bias(row_sent.array[0]) | epilogues.residual(matrix_sent.array)
    fuse(kind, chain, a_sent, b_sent, out=out_sent)
    exact = a.astype(float) @ b.astype(float) + row.astype(float) + matrix.astype(float)
    np.testing.assert_array_equal(out_sent.fetch().astype(float), round_to_dtype(exact, out.dtype))


@dxgemm.epilogue
def marked(value, row, col, width: Scalar):
    """Adds what only the right row and column give."""
    return value + float(row % 3) * width + float(col % 5)


def assert_near(name, values, found, expected, dtype):
    """Assert that results are within a few units in the last place of the expected ones.

    The units are those of the argument for gelu in float64, whose formula has such an error.
    """
    least = 4.0
    if (name, dtype) == ("gelu", "float64"):
        least = np.clip(np.abs(np.nan_to_num(values)), 4.0, 32.0)
    limit = limits(dtype).eps * (16 * np.abs(expected) + least)
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~is_finite], expected[~is_finite])
    differences = np.abs(found[is_finite] - expected[is_finite])
    assert (differences <= limit[is_finite]).all(), (name, differences.max())


@pytest.mark.parametrize("out_dtype", ["int32", "float32", "float16", "bfloat16"])
def test_int8_sums_become_anything(make, make_operands, fuse, out_dtype):
    m, n, _ = SIZES[1]
    (a, a_sent), (b, b_sent) = make_operands("int8", SIZES[1])
    out, out_sent = make((m, n), out_dtype, "row+1")
    rows, rows_sent = make((1, m), "float32", "row@1", 1)
    cols, cols_sent = make((1, n), "float32", "row", 1)
    epilogue = epilogues.dequantise(rows_sent.array[0], cols_sent.array[0])
    fuse("int8", epilogue, a_sent, b_sent, out=out_sent)
    exact = (a.astype(float) @ b.astype(float)) * rows.T.astype(float) * cols.astype(float)
    expected = round_to_dtype(exact, out.dtype).astype(float)
    np.testing.assert_array_equal(out_sent.fetch().astype(float), expected)


def test_batches_share_operands_or_have_their_own(make):
    batch, (m, n, k) = 3, SIZES[0]
    a, a_sent = make((batch, m, k), "float32")
    b, b_sent = make((k, n), "float32")
    rows, rows_sent = make((batch, n), "float32")
    matrix, matrix_sent = make((m, n), "float32")
    epilogue = epilogues.bias(rows_sent.array) | epilogues.residual(matrix_sent.array)
    result = dxgemm.gemm(a_sent.array, b_sent.array, epilogue=epilogue)
    expected = a @ b + rows[:, None, :] + matrix
    fetched = result.get() if hasattr(result, "get") else result
    np.testing.assert_array_equal(fetched, expected)


def test_a_plan_and_changed_numbers(make, home):
    m, n, k = SIZES[0]
    a, a_sent = make((m, k), "float32")
    b, b_sent = make((k, n), "float32")
    plans = [
        dxgemm.plan(a_sent.array, b_sent.array, epilogue=epilogues.scale(factor))
        for factor in (2.0, 3.0)
    ]
    for _ in range(2):
        for plan, factor in zip(plans, (2.0, 3.0), strict=True):
            np.testing.assert_array_equal(home.fetch(plan()), factor * (a @ b))
    assert "epilogue        scale" in str(plans[0].explain())


@pytest.mark.parametrize("factor", [2, np.float32(2), np.int8(2), Fraction(2)], ids=repr)
def test_scalars_of_any_type(make, home, factor):
    m, n, k = SIZES[0]
    a, a_sent = make((m, k), "float32")
    b, b_sent = make((k, n), "float32")
    result = dxgemm.gemm(a_sent.array, b_sent.array, epilogue=epilogues.scale(factor))
    np.testing.assert_array_equal(home.fetch(result), 2 * (a @ b))


def test_host_arrays_of_an_epilogue_are_copied_too():
    m, n, k = SIZES[0]
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    kept = np.zeros((m, n), np.float32)
    row = np.arange(n, dtype=np.float32)
    epilogue = epilogues.bias(row) | epilogues.keep(kept=kept) | epilogues.scale(0.5)
    result = dxgemm.gemm(a, b, epilogue=epilogue)
    np.testing.assert_array_equal(kept, k + np.tile(row, (m, 1)))
    np.testing.assert_array_equal(result, kept / 2)


def test_k_of_zero_and_alpha_of_zero_still_finish(make, home):
    m, n, _ = SIZES[0]
    for alpha, k in ((1.0, 0), (0.0, 3)):
        a_sent = make((m, k), "float32")[1]
        b_sent = make((k, n), "float32")[1]
        c, c_sent = make((m, n), "float32")
        dxgemm.gemm(
            a_sent.array, b_sent.array, c_sent.array, alpha, 1.0, epilogue=epilogues.scale(2.0)
        )
        np.testing.assert_array_equal(c_sent.fetch(), 2 * c)


def test_bad_operands_raise_before_anything_is_written(make):
    m, n, k = SIZES[0]
    a_sent = make((m, k), "float32")[1]
    b_sent = make((k, n), "float32")[1]
    c_sent = make((m, n), "float32")[1]
    wrong_sent = make((1, n + 1), "float32")[1]
    double_sent = make((1, n), "float64")[1]
    arrays = a_sent.array, b_sent.array, c_sent.array
    for epilogue, error, words in (
        (epilogues.bias(wrong_sent.array[0]), errors.ShapeError, "epilogue bias"),
        (epilogues.bias(double_sent.array[0]), errors.DtypeError, "epilogue bias"),
        (epilogues.residual(c_sent.array), errors.OverlapError, "residual"),
        (epilogues.keep(kept=a_sent.array.T), errors.ShapeError, "keep"),
        ("relu", errors.EpilogueError, "relu"),
        (epilogues.scale(1e300), errors.ScalarError, "1e\\+300"),
    ):
        with pytest.raises(error, match=words):
            dxgemm.gemm(*arrays, epilogue=epilogue)
    with pytest.raises(errors.UnsupportedProblemError, match="Python"):
        dxgemm.gemm(*arrays, epilogue=epilogues.relu, implementation="cublas")
    for sent in (a_sent, b_sent, c_sent):
        sent.assert_unchanged()


def test_c_that_is_not_read_may_share_memory_with_an_output(make, home):
    """Nor is its layout taken for that of out, whose rows may be shorter."""
    m, n, k = SIZES[0]
    a, a_sent = make((m, k), "float32")
    b, b_sent = make((k, n), "float32")
    written, wide = (make((2 * m, n), "float32")[1].array for _ in range(2))
    out, kept = written[:m], written[m:]
    apart = wide[::2]  # with the strides of out twice as far from row to row
    for c in (kept, apart):
        dxgemm.gemm(a_sent.array, b_sent.array, c, out=out, epilogue=epilogues.keep(kept=kept))
        np.testing.assert_array_equal(home.fetch(kept), a @ b)
    with pytest.raises(errors.OverlapError, match="kept shares memory with c"):
        dxgemm.gemm(
            a_sent.array, b_sent.array, kept, beta=1.0, out=out, epilogue=epilogues.keep(kept=kept)
        )


def test_pairs_of_columns_are_computed_in_pieces_of_rows(home, monkeypatch):
    """swiglu names its row, only to pass it on to a function that ignores it."""
    monkeypatch.setattr(pieces, "MOST_INDICES", 4)
    route.clear_routes()
    a, b = np.arange(18, dtype="float32").reshape(9, 2) / 8, np.ones((2, 4), np.float32)
    result = home.fetch(dxgemm.gemm(home.send(a), home.send(b), epilogue=epilogues.swiglu))
    expected, _ = epilogues.swiglu.bound.on_host(a @ b)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    place = dxgemm.epilogue(lambda value, row, col: value + row)
    with pytest.raises(errors.UnsupportedProblemError, match="depends on the row"):
        dxgemm.gemm(home.send(a), home.send(b), epilogue=place)
    route.clear_routes()


def test_int8_results_need_a_dtype(make):
    m, n, k = SIZES[0]
    arrays = make((m, k), "int8")[1].array, make((k, n), "int8")[1].array
    with pytest.raises(errors.MissingOperandError, match="pass out"):
        dxgemm.gemm(*arrays, epilogue=epilogues.scale(0.5))


def test_max_and_min_treat_nan_as_python_does(home):
    @dxgemm.epilogue
    def limited(value, row, col):
        return min(max(value, -1.0), 2.0)

    m, n = SIZES[0][:2]
    values = np.resize(np.float32([math.nan, 0.5, -3.0, 7.0, math.inf]), (m, n))
    a, b = home.send(np.zeros((m, 1), "float32")), home.send(np.zeros((1, n), "float32"))
    result = dxgemm.gemm(a, b, home.send(values), 0.0, 1.0, epilogue=limited)
    np.testing.assert_array_equal(home.fetch(result), limited.bound.on_host(values)[0])


COMPILE_UNFIT = """
from dataclasses import replace
import dxgemm
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import compile_kernel

@dxgemm.epilogue
def unfit(value, row, col):
    return value.nothing_like_that

@dxgemm.epilogue
def twofold(value, row, col):
    return value, value

@dxgemm.epilogue(outputs=("kept",))
def threefold(value, row, col):
    return value, value, value

@dxgemm.epilogue
def sometimes(value, row, col):
    found = None
    if value > 0.0:
        found = value
    return found

@dxgemm.epilogue(outputs=("kept",))
def half_told(value, row, col):
    nothing = None
    return value, nothing

(spec, *_) = common_specs(find_implementation("coalesced"), ("float32",))
for epilogue in (unfit, twofold, threefold, sometimes, half_told):
    operands = (FusedOperand("output", "float32"),) if epilogue.outputs else ()
    try:
        compile_kernel(
            replace(spec, epilogue=Fusion((epilogue,), operands)), "sm_90a"
        )
    except (dxgemm.errors.BuildError, dxgemm.errors.EpilogueError) as error:
        print(error, end="\\n\\n")
"""


def test_what_numba_cannot_compile_says_so_with_the_line(run_python, tmp_path):
    program = tmp_path / "unfit.py"
    program.write_text(COMPILE_UNFIT)
    said = run_python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')")
    unfit, twofold, threefold, *without_value = said.strip().split("\n\n")
    assert without_value == [
        f"epilogue {name}: it may return None; return a value on every path."
        for name in ("sometimes", "half_told")
    ]
    assert "nothing_like_that" in unfit and 'unfit.py", line 11:' in unfit
    assert "UniTuple(float32 x 2)" in twofold
    assert "exactly(Literal[int](2), UniTuple(float32 x 3))" in threefold
    for one, name in ((unfit, "unfit"), (twofold, "twofold"), (threefold, "threefold")):
        assert one.startswith("numba could not compile coalesced") and f" ({name}) " in one
        assert len(one.splitlines()) < 12 and "\x1b" not in one and "pipeline" not in one


def test_a_function_that_returns_too_much_is_refused(home):
    twofold = dxgemm.epilogue(lambda value, row, col: (value, value))
    threefold = dxgemm.epilogue(outputs=("kept",))(lambda value, row, col: (value, value, value))
    values = np.ones((2, 3), np.float32)
    for epilogue in (twofold.bound, threefold(kept=values.copy())):
        with pytest.raises(errors.EpilogueError, match="it must return"):
            epilogue.on_host(values)
    a, b, out = (home.send(np.ones((2, 2), np.float32)) for _ in range(3))
    refusal, reason = errors.BuildError, "UniTuple"
    if simulator_enabled():
        refusal, reason = errors.EpilogueError, "it must return one value"
    with pytest.raises(refusal, match=reason):
        dxgemm.gemm(a, b, out=out, epilogue=twofold)
    np.testing.assert_array_equal(home.fetch(out), 1)


@pytest.mark.gpu
def test_arithmetic_on_literals_stays_in_the_type_of_sums(make):
    @dxgemm.epilogue
    def third(value, row, col, shift: RowVector, other: Matrix):
        return value / 3.0 + 0.1 * shift * math.exp(other * 0.5)

    from dxgemm.choice.registry import find_implementation
    from dxgemm.compiler import compile_kernel

    m, n, k = SIZES[0]
    a, b = make((m, k), "float32")[1], make((k, n), "float32")[1]
    row, matrix = make((1, n), "float32")[1], make((m, n), "float32")[1]
    plan = dxgemm.plan(
        a.array, b.array, epilogue=third(row.array[0], matrix.array), implementation="tuned"
    )
    candidate, problem = plan.route.decision.candidate, plan.route.problem
    spec = find_implementation("tuned").spec_for(candidate.config, problem)
    assert ".f64" not in compile_kernel(spec, "sm_90a").ptx


def test_the_same_epilogue_is_one_kernel(make):
    fusions = set()
    for (m, n, k), factor in combinations(SIZES[:2], (0.5, 0.25)):
        a, b = make((m, k), "float32")[1], make((k, n), "float32")[1]
        plan = dxgemm.plan(a.array, b.array, epilogue=epilogues.scale(factor))
        fusions.add(plan.route.problem.epilogue)
    assert len(fusions) == 1


COUNT_PREFETCHES = """
from dataclasses import replace
from dxgemm import epilogues
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler.build import _ptx_of_family

def lines_of_a_thread(config):
    return config.tile_left * config.tile_right * 8 // 128 // config.threads

residual, bias = epilogues.residual, epilogues.bias
specs = common_specs(find_implementation("tensor_core"), ("float64",))
spec = next(spec for spec in specs if lines_of_a_thread(spec.config) == 2)
by_vectors, by_elements, row = (
    FusedOperand("array", "float64", "vector"),
    FusedOperand("array", "float64", "element"),
    FusedOperand("array", "float64", "vector", has_rows=False),
)
for fusion in (
    Fusion((residual,), (by_vectors,)),
    Fusion((residual, bias), (by_elements, row)),
):
    fused = replace(spec, epilogue=fusion)
    print(_ptx_of_family(fused, "sm_90").count("prefetch.global.L2"))
"""


@pytest.mark.long_build
def test_tensor_core_fetches_its_part_of_a_matrix_ahead(run_python):
    assert run_python(COUNT_PREFETCHES).split() == ["2", "0"]
