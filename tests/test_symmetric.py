"""Symmetric results: half the tiles, both triangles or one, and products that are recognised."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from contract import misfit
from known_devices import H200
from oracle.kinds import KINDS, numpy_dtype

import dxgemm
from dxgemm import errors, reductions
from dxgemm.call.route import clear_routes
from dxgemm.choice import legality, selection
from dxgemm.choice.selection import choose
from dxgemm.epilogues import Matrix, relu, residual
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts import triangle as lower
from dxgemm.problem.define import contiguous_problem

TRIANGLES = lower.TRIANGLES
FACTORS = ((1, 0), (2, -1))
# Layouts of a and c, and a triangle; each is a kernel of its own.
PLACED = (
    ("row_aligned", "row", "both"),
    ("row_aligned", "row", "lower"),
    ("row_aligned", "col", "lower"),
    ("col_aligned", "row", "upper"),
    ("col", "row", "both"),
    ("row", "col", "both"),
)
MIDDLE = 300  # a size between those of tiles
BATCHES = ((1000, 96, 1), (777, 200, 3), (1024, 512, 1))  # n, k and matrices
CHOSEN = ((64, 64), (256, 512), (257, 5000), (1000, 1000), (2048, 512))  # n and k
ROUNDING = {
    "float64": 2**-52, "float32": 2**-22, "tf32": 2**-10, "emulated": 2**-20, "float16": 2**-10,
    "bfloat16": 2**-7,
}  # fmt: skip
ADDITION = {"float64": 2**-53}  # rounding of a sum; 2**-24 elsewhere
KERNELS = {
    "tuned": ("float32", "float64"),
    "tensor_core": ("float64",),
    "tensor_core_tf32": ("tf32",),
    "wgmma": ("tf32", "float16", "float16_to_float32", "bfloat16"),
    "emulated_float32": ("emulated",),
    "emulated_float32_tile": ("emulated",),
    "emulated_float64": ("emulated_float64",),
    "emulated_float64_tile": ("emulated_float64",),
}
EMULATED = [(name, *KERNELS[name]) for name in KERNELS if name.startswith("emulated")]
HALVED = [
    pytest.param(implementation, config, kind, id=f"{implementation.name}-{config}-{kind}")
    for implementation in dxgemm.implementations()
    for kind in KERNELS.get(implementation.name, ())
    for config in implementation.configs(KINDS[kind].dtype)
]


def written(triangle, n):
    """True where a triangle's elements are."""
    rows, cols = np.indices((n, n))
    return {"both": rows == rows, "lower": rows >= cols, "upper": rows <= cols}[triangle]


def symmetric(values):
    """The lower triangle of each matrix, mirrored."""
    kept = np.tril(values)
    return kept + np.tril(kept, -1).swapaxes(-1, -2)


def same_bits(first, second):
    return np.ascontiguousarray(first).tobytes() == np.ascontiguousarray(second).tobytes()


@pytest.fixture
def only_halves(monkeypatch):
    """Kernels compute half the tiles where they can, also where all of them are quicker."""

    def paths(implementation, problem):
        found = legality.triangle_paths(implementation, problem)
        return ("half",) if "half" in found and problem.triangle else found

    monkeypatch.setattr(selection, "triangle_paths", paths)
    clear_routes()
    yield
    clear_routes()


@pytest.mark.parametrize(
    "tile_m, tile_n, swizzle_rows",
    [(128, 256, 8), (128, 192, 16), (160, 192, 8), (16, 128, 8), (64, 32, 8), (128, 128, 16)],
)
def test_every_tile_of_the_lower_triangle_has_one_index(tile_m, tile_n, swizzle_rows):
    if not simulator_enabled():
        pytest.skip("device functions are called as functions of Python")
    locate, count = lower.make_tile_map(tile_m, tile_n, swizzle_rows)
    longer = max(tile_m, tile_n)
    for n in (1, tile_m, tile_n + 1, 5 * longer + 3, 21 * longer - 1):
        tiles_m, tiles_n = -(-n // tile_m), -(-n // tile_n)
        tiles = lower.tile_count(n, tile_m, tile_n)
        assert count(tiles_m, tiles_n) == tiles
        found = [tuple(map(int, locate(i, tiles_m, tiles_n))) for i in range(tiles)]
        expected = {
            (0, row, col)
            for row, col in product(range(tiles_m), range(tiles_n))
            if min((row + 1) * tile_m, n) > col * tile_n
        }
        assert len(found) == tiles and set(found) == expected
        assert tuple(map(int, locate(3 * tiles - 1, tiles_m, tiles_n))) == (2, *found[-1][1:])


@pytest.mark.parametrize("kind, triangle", [*product(("float32", "float16"), TRIANGLES)])
@pytest.mark.parametrize("order", ["row", "col"])
def test_a_triangle_is_read_and_written_and_the_other_is_not(make, kind, triangle, order):
    for n, k, (alpha, beta) in product((1, 9), (0, 5), FACTORS):
        for transpose in (False, True):
            (a, padded), (c, padded_c) = make((n, k), kind), make((n, n), kind, order)
            if transpose:
                a, padded = make((k, n), kind)
                a = a.T
            result = dxgemm.gemm_symmetric(
                padded.array, padded_c.array, alpha, beta, transpose=transpose, triangle=triangle
            )
            assert result is padded_c.array
            padded.assert_unchanged()
            found, is_written = padded_c.fetch(), written(triangle, n)
            expected = alpha * (a.astype(float) @ a.T.astype(float)) + beta * c.astype(float)
            assert (found[is_written] == expected[is_written]).all()
            assert same_bits(found[~is_written], c[~is_written])


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("triangle", TRIANGLES)
def test_a_product_and_its_transpose_are_added(make, kind, triangle):
    n, wholes = 5, ((False, ()), (True, (2,)))
    for (transpose, batch), k, (alpha, beta) in product(wholes, (0, 3), (*FACTORS, (0, 1))):
        shape = (*batch, k, n) if transpose else (*batch, n, k)
        (a, padded_a), (b, padded_b) = make(shape, kind), make(shape[-2:], kind)
        c, padded_c = make((*batch, n, n), kind)
        dxgemm.gemm_symmetric(
            padded_a.array, padded_c.array, alpha, beta, b=padded_b.array, transpose=transpose,
            triangle=triangle,
        )  # fmt: skip
        x, y = a.astype(float), b.astype(float)
        half = x.swapaxes(-1, -2) @ y if transpose else x @ y.swapaxes(-1, -2)
        exact = alpha * (half + half.swapaxes(-1, -2)) + beta * c.astype(float)
        found, is_written = padded_c.fetch(), written(triangle, n)
        assert (found[..., is_written] == exact[..., is_written]).all()
        assert same_bits(found[..., ~is_written], c[..., ~is_written])
        padded_a.assert_unchanged()
        padded_b.assert_unchanged()


def test_the_sum_of_both_sides_is_symmetric_bit_for_bit(home):
    rng = np.random.default_rng(0)
    a, b, t = (rng.standard_normal((9, 9)).astype(np.float32) for _ in range(3))
    sent, other, table = map(home.send, (a, b, t + t.T))
    for epilogue in (None, residual(table) | relu):
        out = home.send(np.empty((9, 9), np.float32))
        dxgemm.gemm_symmetric(sent, b=other, alpha=1.3, out=out, epilogue=epilogue)
        assert same_bits(home.fetch(out), home.fetch(out).T)


def test_each_place_has_its_own_row_and_column(make, home):
    @dxgemm.epilogue
    def placed(value, row, col, table: Matrix):
        return value + 100 * row + col + table

    (a, padded), (t, padded_t) = make((2, 6, 4), "float32"), make((6, 6), "float32")
    rows, cols = np.indices((6, 6))
    expected = a @ a.swapaxes(1, 2) + 100 * rows + cols + t
    for triangle in TRIANGLES:
        epilogue = placed(padded_t.array)
        out = home.send(np.zeros((2, 6, 6), np.float32))
        dxgemm.gemm_symmetric(padded.array, triangle=triangle, out=out, epilogue=epilogue)
        is_written = written(triangle, 6)
        assert (home.fetch(out) == np.where(is_written, expected, 0)).all()


@pytest.mark.parametrize("kind", ["float64", "int8"])
def test_a_new_result(make, home, kind):
    a, padded = make((7, 3), kind)
    result = home.fetch(dxgemm.gemm_symmetric(padded.array))
    assert result.dtype.name == KINDS[kind].out_dtype and same_bits(result, result.T)
    assert (result == a.astype(int) @ a.T.astype(int)).all()


def test_an_explanation_speaks_for_the_symmetric_call(make, home):
    (_, sent_a), (_, sent_b), (_, sent_c) = (
        make(shape, "float32") for shape in ((6, 4), (6, 4), (6, 6))
    )
    explained = dxgemm.explain_symmetric(sent_a.array, sent_c.array, triangle="lower")
    assert (explained.work.m, explained.work.n, explained.work.k) == (
        6,
        6,
        4,
    ) and explained.work.symmetry is not None
    added = dxgemm.explain_symmetric(sent_a.array, sent_c.array, b=sent_b.array)
    assert added.work.symmetry != explained.work.symmetry
    with pytest.raises(errors.ShapeError, match="triangle is 'left'"):
        dxgemm.explain_symmetric(sent_a.array, triangle="left")
    sent_c.assert_unchanged()


def test_what_cannot_be_symmetric_is_refused_before_anything_is_written(make, home):
    shapes = ((6, 4), (6, 6), (6, 3))
    (_, a), (_, c), (_, narrow) = (make(shape, "float32") for shape in shapes)

    @dxgemm.epilogue(pairs=True)
    def halves(value, gate, row, col):
        return value * gate

    for error, text, call in (
        (errors.ShapeError, "triangle is 'left'", {"triangle": "left"}),
        (errors.ShapeError, "must have that shape", {"out": narrow.array}),
        (errors.UnsupportedProblemError, "no square", {"epilogue": reductions.sum(axis=1)}),
        (errors.UnsupportedProblemError, "no square", {"epilogue": halves, "out": narrow.array}),
        (errors.MissingOperandError, "no c", {"beta": 1.0}),
    ):
        with pytest.raises(error, match=text):
            dxgemm.gemm_symmetric(a.array, **{"triangle": "lower", **call})
    with pytest.raises(errors.OverlapError):
        dxgemm.gemm_symmetric(c.array, c.array)
    with pytest.raises(errors.ShapeError, match="must have the same shape"):
        dxgemm.gemm_symmetric(a.array, c.array, b=narrow.array)
    with pytest.raises(errors.DtypeError):
        dxgemm.gemm_symmetric(a.array, c.array, b=make((6, 4), "float64")[1].array)
    c.assert_unchanged()
    narrow.assert_unchanged()


def test_no_transpose_is_added_modulo_a_number(make):
    (_, a), (_, c) = make((6, 4), "int8"), make((6, 6), "int32")
    with pytest.raises(errors.UnsupportedProblemError, match="leave b out"):
        dxgemm.gemm_symmetric(a.array, c.array, b=a.array, modulus=97)
    c.assert_unchanged()


def test_a_product_with_its_own_transpose_is_recognised(make, home):
    (a, padded), (_, c) = make((9, 5), "float32"), make((9, 9), "float32")
    x, y = padded.array, home.send(np.array(a))
    for is_recognised, arguments, options in (
        (True, (x, x.T), {}),
        (True, (x.T, x), {"alpha": 2.0}),
        (True, (x, x.T), {"precision": "emulated"}),
        (False, (x, dxgemm.prepare(x.T)), {}),
        (False, (x, x.T), {"epilogue": relu}),
        (False, (x, y.T), {}),
        (False, (x[:, :4], x[:4].T[:4, :4]), {}),
        (False, (x, x.T, c.array), {"beta": 1.0}),
        (False, (x, x.T), {"alpha": 0.0}),
        (False, (x, x.T), {"implementation": "naive"}),
        (False, (x, x.T), {"batch_invariant": True}),
        (False, (x, x.T), {"epilogue": reductions.sum()}),
    ):
        explained = dxgemm.explain(*arguments, **options)
        assert (explained.work.symmetry is not None) is is_recognised, (options, explained)
        assert ("b is a.T" in str(explained)) is is_recognised
    assert (home.fetch(dxgemm.gemm(x, x.T)) == a @ a.T).all()


@pytest.mark.parametrize("name, kind", EMULATED)
def test_emulated_products_mirror_where_no_bit_of_gemm_changes(configs_of_a_gpu, name, kind):
    dtype = KINDS[kind].dtype
    problem = contiguous_problem(dtype, 4096, 4096, 4096, precision="emulated")
    problem = replace(problem, b=problem.a.transposed())
    for triangle in (*TRIANGLES, "either"):
        chosen = choose(replace(problem, triangle=triangle), H200, name)
        is_whole = triangle == "either" and dtype == "float32"
        assert chosen.triangle == ("whole" if is_whole else "half"), triangle
        assert ("half the tiles" in str(chosen)) is not is_whole
    summed = replace(problem, triangle="both", adds_transpose=True)
    assert choose(summed, H200, name).triangle == "folded"


@pytest.mark.parametrize("transpose", [False, True])
def test_tf32_has_a_choice_for_either_layout(configs_of_a_gpu, transpose):
    problem = contiguous_problem("float32", 64, 64, 64)
    x = problem.a.transposed() if transpose else problem.a
    problem = replace(problem, a=x, b=x.transposed(), triangle="both", precision="tf32")
    assert choose(problem, H200).triangle != "folded"


@pytest.mark.gpu
@pytest.mark.parametrize("implementation, config, kind", HALVED)
def test_half_the_tiles(only_halves, make, home, implementation, config, kind):
    if reason := misfit(implementation, config, kind) or implementation.runs_on(H200.arch):
        pytest.skip(reason)
    wanted, pinned = KINDS[kind], (implementation.name, config)
    edges, fallbacks = {config.tile_m, config.tile_n, MIDDLE}, dxgemm.emulation_fallbacks()
    sizes = sorted({1, *edges, *(size + 1 for size in edges), max(edges) * 2 - 1})
    for a_layout, c_layout, triangle in PLACED:
        for n, k, (alpha, beta) in product(sizes, (33, 64), FACTORS):
            a, padded = make((n, k), wanted.dtype, a_layout)
            c, padded_c = make((n, n), wanted.out_dtype, c_layout)
            dxgemm.gemm_symmetric(
                padded.array, padded_c.array, alpha, beta, triangle=triangle,
                implementation=pinned, precision=wanted.precision,
            )  # fmt: skip
            found, is_written = padded_c.fetch().astype(float), written(triangle, n)
            expected = alpha * (a.astype(float) @ a.T.astype(float)) + beta * c.astype(float)
            expected = expected.astype(c.dtype).astype(float)
            assert (found[is_written] == expected[is_written]).all(), (n, k, triangle)
            assert (found[~is_written] == c.astype(float)[~is_written]).all(), (n, k, triangle)
    assert dxgemm.emulation_fallbacks() == fallbacks


@pytest.mark.gpu
@pytest.mark.parametrize("triangle", TRIANGLES)
@pytest.mark.parametrize("name, kind", EMULATED)
def test_what_is_not_emulated_is_written_to_the_same_triangle(
    only_halves, make, home, name, kind, triangle
):
    options = {"implementation": name, "precision": "emulated", "triangle": triangle}
    dtype = KINDS[kind].dtype
    for n, k, element, order in (
        (300, 40, np.nan, "row"),
        (129, 64, np.inf, "col"),
        (65, 0, None, "row"),
    ):
        (a, _), (c, padded_c) = make((n, k), dtype), make((n, n), dtype, order)
        if element is not None:
            a[min(n // 2, 100), 7] = element
        before = dxgemm.emulation_fallbacks()
        dxgemm.gemm_symmetric(home.send(a), padded_c.array, 2, -1, **options)
        assert dxgemm.emulation_fallbacks() == before + (k > 0)
        found, is_written = padded_c.fetch(), written(triangle, n)
        with np.errstate(invalid="ignore"):
            expected = 2 * (a.astype(float) @ a.astype(float).T) - c
        np.testing.assert_array_equal(found[is_written], expected[is_written])
        assert same_bits(found[~is_written], c[~is_written])


@pytest.mark.gpu
@pytest.mark.parametrize("name, kind", EMULATED)
def test_half_the_tiles_of_an_emulated_product_have_the_bits_of_all(only_halves, home, name, kind):
    a = np.random.default_rng(0).standard_normal((777, 200)).astype(KINDS[kind].dtype)
    x, twin = home.send(a), home.send(a)
    options = {"implementation": name, "precision": "emulated"}
    whole = home.fetch(dxgemm.gemm(x, twin.T, **options))
    mirrored = home.fetch(dxgemm.gemm_symmetric(x, **options))
    assert same_bits(np.tril(mirrored), np.tril(whole))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", sorted({kind for _, kind in EMULATED}))
def test_recognition_changes_no_bit_of_an_emulated_product(home, kind):
    a = np.random.default_rng(0).standard_normal((2048, 2048)).astype(KINDS[kind].dtype)
    x, twin = home.send(a), home.send(a)
    whole = home.fetch(dxgemm.gemm(x, twin.T, precision="emulated"))
    assert same_bits(home.fetch(dxgemm.gemm(x, x.T, precision="emulated")), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("implementation, config, kind", HALVED)
def test_bits_are_equal_on_both_sides(only_halves, home, implementation, config, kind):
    if reason := misfit(implementation, config, kind) or implementation.runs_on(H200.arch):
        pytest.skip(reason)
    wanted, rng = KINDS[kind], np.random.default_rng(0)
    dtype, out_dtype = numpy_dtype(wanted.dtype), numpy_dtype(wanted.out_dtype)
    options = {"implementation": (implementation.name, config), "precision": wanted.precision}
    for n, k, batch in BATCHES:
        a = rng.standard_normal((batch, n, k)).astype(dtype)
        c, t = (symmetric(rng.standard_normal((batch, n, n)).astype(out_dtype)) for _ in "ct")
        x, old, table = map(home.send, (a, c, t))
        magnitudes = np.abs(a.astype(float))
        product = a.astype(float) @ a.astype(float).swapaxes(1, 2)
        scale = magnitudes @ magnitudes.swapaxes(1, 2) + np.abs(c.astype(float)) + 1
        for alpha, beta, epilogue in (
            (-1.3, 0.0, None),
            (-1.3, 0.7, None),
            (0.3, 0.0, residual(table)),
            (0.3, 0.7, residual(table) | relu),
        ):
            out = home.send(np.empty((batch, n, n), out_dtype))
            dxgemm.gemm_symmetric(x, old, alpha, beta, out=out, epilogue=epilogue, **options)
            found = home.fetch(out)
            assert same_bits(found, found.swapaxes(1, 2)), (n, alpha, beta)
            if epilogue is None:
                expected = alpha * product + beta * c.astype(float)
                worst = (np.abs(found.astype(float) - expected) / scale).max()
                rounding = max(ROUNDING[wanted.arithmetic], ROUNDING[wanted.out_dtype])
                assert worst < 4 * rounding + k * ADDITION.get(wanted.arithmetic, 2**-24)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*KINDS])
def test_the_choice_is_symmetric_bit_for_bit(home, kind):
    wanted, rng = KINDS[kind], np.random.default_rng(0)
    for n, k in CHOSEN:
        a = rng.standard_normal((n, k)).astype(np.float32)
        x = home.send((20 * a if wanted.is_integer else a).astype(numpy_dtype(wanted.dtype)))
        out = home.send(np.empty((n, n), numpy_dtype(wanted.out_dtype)))
        for transpose in (False, True):
            operand = home.send(np.ascontiguousarray(home.fetch(x).T)) if transpose else x
            found = home.fetch(
                dxgemm.gemm_symmetric(
                    operand, transpose=transpose, out=out, precision=wanted.precision
                )
            )
            assert same_bits(found, found.T), (n, k, transpose)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not KINDS[kind].is_integer])
def test_the_transpose_is_added_by_every_choice(make, home, kind):
    wanted = KINDS[kind]
    for n, k in CHOSEN:
        (a, padded_a), (b, padded_b) = (make((n, k), wanted.dtype) for _ in "ab")
        out = home.send(np.empty((n, n), numpy_dtype(wanted.out_dtype)))
        dxgemm.gemm_symmetric(padded_a.array, b=padded_b.array, out=out, precision=wanted.precision)
        half = a.astype(float) @ b.astype(float).T
        exact = (half + half.T).astype(numpy_dtype(wanted.out_dtype))
        assert same_bits(home.fetch(out), exact), (n, k)
