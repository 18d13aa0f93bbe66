"""Inner functions: products by a Python function, against NumPy's broadcasting on the same data."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from known_devices import H100, V100
from oracle.kinds import numpy_dtype
from oracle.padded import Padded

import dxgemm
from dxgemm import epilogues, errors, inners, reductions
from dxgemm.choice import selection
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.choice.selection import rank
from dxgemm.epilogues import Scalar, bias, residual
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import small_batch
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import Fusion
from dxgemm.runtime.device import device_facts

ON_GPU = not simulator_enabled()
SIZE = (133, 150, 37) if ON_GPU else (9, 33, 5)  # several tiles of each kernel
SMALL = SIZE if ON_GPU else (5, 7, 5)  # several of widening_tile's
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
SCALE = 2.0

# By broadcasting, for x of shape (m, 1, k) and y of shape (1, n, k), and the total of no values.
EXPECTED = {
    "l1": (lambda x, y: np.abs(x - y).sum(-1), 0.0),
    "chebyshev": (lambda x, y: np.abs(x - y).max(-1), -math.inf),
    "squared_euclidean": (lambda x, y: ((x - y) ** 2).sum(-1), 0.0),
    "canberra": (lambda x, y: np.nan_to_num(abs(x - y) / (abs(x) + abs(y))).sum(-1), 0.0),
    "hamming": (lambda x, y: (x != y).sum(-1), 0.0),
    "min_plus": (lambda x, y: (x + y).min(-1), math.inf),
    "max_plus": (lambda x, y: (x + y).max(-1), -math.inf),
    "max_min": (lambda x, y: np.minimum(x, y).max(-1), -math.inf),
    "logsumexp": (lambda x, y: np.logaddexp.reduce(x + y, axis=-1), -math.inf),
}
ROUNDED = {"canberra": 1e-6, "logsumexp": 2e-6}  # relative errors in float32
JOINS = {"l1": np.add, "min_plus": np.minimum, "chebyshev": np.maximum}  # c and a result


def expected(form, a, b):
    """The result of an inner function by name, or of a form as `EXPECTED` has them."""
    wide = complex if a.dtype.kind == "c" else float
    form = EXPECTED[form][0] if isinstance(form, str) else form
    with np.errstate(all="ignore"):
        x, y = a.astype(wide)[..., :, None, :], np.swapaxes(b.astype(wide), -1, -2)
        return form(x, y[..., None, :, :])


def computed(home, inner, a, b, c=None, **options):
    """The result of a call; a c is joined."""
    inner = getattr(inners, inner) if isinstance(inner, str) else inner
    sent = [home.send(x) for x in (a, b, c) if x is not None]
    return home.fetch(dxgemm.gemm(*sent, beta=float(c is not None), inner=inner, **options))


def ints(shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    values = rng.integers(-4, 5, shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.integers(-4, 5, shape)
    return values.astype(numpy_dtype(dtype))


def operands(size=SIZE, dtype="float32", batch=()):
    """a, b and c."""
    m, n, k = size
    return [ints((*batch, *shape), dtype, i) for i, shape in enumerate(((m, k), (k, n), (m, n)))]


@dxgemm.inner
def slanted(x, y):
    """No symmetric one: it tells a from b."""
    return x - SCALE * y


def slant(x, y):
    return (x - 2 * y).sum(-1)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions(home, name, dtype):
    if dtype in INTEGERS and name in ROUNDED:
        pytest.skip("it divides, or takes logarithms")
    a, b, _ = operands(SMALL, dtype)
    found, exact = computed(home, name, a, b), expected(name, a, b)
    if name in ROUNDED:
        eps = {"float16": 2**-11, "bfloat16": 2**-8}.get(dtype, ROUNDED[name])
        np.testing.assert_allclose(found.astype(float), exact, eps, 4 * eps)
    else:
        assert (found == exact.astype(found.dtype)).all()


EDGES = (1, 31, 64, 129)
SIZES = [*product(EDGES, EDGES, (1, 9)), (5, 7, 64)] if ON_GPU else [
    (1, 1, 1), (1, 33, 9), (9, 1, 4), (8, 32, 8), (9, 33, 1), (5, 7, 19),
]  # fmt: skip


@pytest.mark.parametrize("name", ["l1", "min_plus"])
def test_sizes(home, name):
    for size in SIZES:
        a, b, c = operands(size)
        padded = [Padded(home, x) for x in (a, b, np.full_like(c, np.nan))]
        dxgemm.gemm(*(x.array for x in padded), inner=getattr(inners, name))
        assert (padded[2].fetch() == expected(name, a, b)).all()


LAYOUTS = [*product(("row", "col", "row+1"), ("row", "col"), ("row", "col"))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS if ON_GPU else LAYOUTS[::3] + LAYOUTS[1::6])
def test_layouts_tell_a_from_b(home, dtype, layout):
    a, b, c = operands(SMALL, dtype)
    *given, out = (Padded(home, x, order) for x, order in zip((a, b, c), layout))
    dxgemm.gemm(*(x.array for x in given), out=out.array, inner=slanted)
    assert (out.fetch() == expected(slant, a, b).astype(a.dtype)).all()


CONFIGS = [
    (name, config)
    for name in ("tuned", "small_batch", "complex_batch")
    for config in find_implementation(name).kernel.configs
]


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "config"), CONFIGS, ids=str)
@pytest.mark.parametrize("is_double", [False, True], ids=["single", "double"])
def test_every_config(home, kernel, config, is_double):
    is_complex = kernel == "complex_batch"
    dtype = ("complex" if is_complex else "float") + f"{32 << is_double << is_complex}"
    if not config.takes(dtype):
        pytest.skip("its accumulators do not fit")
    a, b, _ = operands((200, 280, 43), dtype, (2,))
    forms = [(slanted, slant), ("l1", "l1"), ("min_plus", "min_plus")]
    for inner, form in forms[:1] if is_complex else forms[1 : 3 - is_double]:
        found = computed(home, inner, a, b, implementation=(kernel, config))
        assert (found == expected(form, a, b)).all()


@pytest.fixture
def simulated_small_batch(monkeypatch):
    """Gives `small_batch` a config for the simulator, which has none of it."""
    if not ON_GPU:
        implementation = find_implementation("small_batch")
        tiny = small_batch.Config(8, 8, 8, thread_m=2, thread_n=4, parts=2)
        kernel = replace(implementation.kernel, simulator_configs=(tiny,))
        monkeypatch.setitem(vars(implementation), "kernel", kernel)
        for known in (selection._all_candidates, selection._candidates):
            monkeypatch.setattr(selection, known.__name__, known.__wrapped__)


@pytest.mark.parametrize("orders", [("row", "row"), ("row+1", "col"), ("col", "row")])
def test_small_batches(home, simulated_small_batch, orders):
    """Matrices whose k ends within a part, at its end, and beyond the first tile of k."""
    for k in (3, 4, 19):
        a, b, c = operands((9, 7, k), batch=(2,))
        given = [Padded(home, x, order).array for x, order in zip((a, b), orders)]
        for name in ("l1", "min_plus"):
            out = Padded(home, c)
            options = {"inner": getattr(inners, name), "implementation": "small_batch"}
            dxgemm.gemm(*given, out.array, beta=1.0, **options)
            assert (out.fetch() == JOINS[name](expected(name, a, b), c)).all()
        found = dxgemm.gemm(*given, inner=slanted, implementation="small_batch")
        assert (home.fetch(found) == expected(slant, a, b)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_of_k_are_added_as_the_function_adds(home, dtype):
    """Split-K with a workspace; of `most` slices, the last one is empty."""
    *size, most = (70, 130, 300, 9) if ON_GPU else (9, 33, 17, 4)
    a, b, c = operands(size, dtype)
    *_, smallest = configs = find_implementation("tuned").configs()
    config = configs[2] if ON_GPU else smallest
    for name, slices in (("min_plus", 2), ("chebyshev", most), ("l1", 3)):
        options = {"implementation": ("tuned", config, slices), "epilogue": epilogues.scale(2.0)}
        found = computed(home, name, a, b, c, **options)
        assert (found == 2 * JOINS[name](expected(name, a, b), c)).all()
    asked, whole = ("tuned", config, 2), home.send(b.T.copy())
    found = dxgemm.gemm_symmetric(whole, inner=inners.chebyshev, implementation=asked)
    assert (home.fetch(found) == expected("chebyshev", b.T, b)).all()
    with pytest.raises(errors.UnsupportedProblemError, match="cannot cut this k"):
        computed(home, "logsumexp", a, b, implementation=("tuned", smallest, 2))


@pytest.mark.parametrize("name", ["l1", "chebyshev", "min_plus", "max_min", "logsumexp"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_special_values(home, name, dtype):
    values = np.array([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan], numpy_dtype(dtype))
    # Every two values meet, and then 1 and 1, in both orders of k.
    pairs = np.stack([values, np.ones_like(values)], 1)
    for left in (pairs, pairs[:, ::-1].copy()):
        found = computed(home, name, left, left.T.copy())
        exact = expected(name, left, left.T).astype(found.dtype)
        np.testing.assert_allclose(found.astype(float), exact.astype(float), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", EXPECTED)
def test_no_k_gives_the_identity(home, name):
    a, b, c = operands((3, 5, 0))
    assert (computed(home, name, a, b) == np.full((3, 5), EXPECTED[name][1])).all()
    if getattr(inners, name).parts == 1:
        assert (computed(home, name, a, b, c) == c).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(home, dtype):
    """Extremes of a dtype, whose sums wrap around in 32 or 64 bits as NumPy's do."""
    wide = "int64" if dtype == "int64" else "int32"
    limits, rng = np.iinfo(dtype), np.random.default_rng(0)
    extremes = [limits.min, limits.max, 0, 1, 7]
    a, b = (rng.choice(extremes, shape).astype(dtype) for shape in ((9, 5), (5, 33)))
    c, x, y = ints((9, 33), wide, 2), a.astype(wide)[:, None], b.T.astype(wide)[None]
    with np.errstate(over="ignore"):
        for inner, exact, given in (
            ("min_plus", np.minimum((x + y).min(-1), c), c),
            ("max_min", np.maximum(np.minimum(x, y).max(-1), c), c),
            ("squared_euclidean", ((x - y) * (x - y)).sum(-1, dtype=wide) + c, c),
            (lambda x, y: max(x, y), np.maximum(x, y).max(-1), None),
            (lambda x, y: abs(x - y), np.abs(x - y).max(-1), None),
        ):
            inner = inner if isinstance(inner, str) else dxgemm.inner(inner, add="max")
            assert (computed(home, inner, a, b, given) == exact).all(), inner
        if wide == "int32":
            nearest = computed(home, "max_plus", a, b, epilogue=reductions.argmin(1))
            assert (nearest == (x + y).max(-1).argmin(1)).all()
    found = computed(home, "min_plus", a[:3, :0], b[:0, :5])
    assert found.dtype == wide and (found == np.iinfo(wide).max).all()


@pytest.mark.parametrize("name, join", [("min_plus_int16", np.min), ("max_plus_int16", np.max)])
def test_pairs_of_int16(home, name, join):
    """Two at a time, along k; extremes wrap around as NumPy's int16 do."""
    inner, rng = getattr(inners, name), np.random.default_rng(0)
    for m, n, k in (SIZE, (1, 1, 1), (5, 7, 33), (3, 2, 0)):
        a, b = (rng.integers(-(2**15), 2**15, (rows, 2 * k)).astype("int16") for rows in (m, n))
        start = {np.min: 2**15 - 1, np.max: -(2**15)}[join]
        exact = join(a[:, None] + b[None], axis=-1, initial=start)
        pairs, out = home.send(a.view("int32")), home.send(np.zeros((m, n), "int32"))
        given = pairs, home.send(b.view("int32")).T
        assert (home.fetch(dxgemm.gemm(*given, out=out, inner=inner)) == exact).all()
        nearest = dxgemm.gemm(*given, out=out, inner=inner, epilogue=reductions.argmin(1))
        assert (home.fetch(nearest) == exact.argmin(1)).all()
        whole = home.send(np.zeros((m, m), "int32"))
        dxgemm.gemm_symmetric(pairs, out=whole, inner=inner)
        exact = join(a[:, None] + a[None], axis=-1, initial=start)
        assert (home.fetch(whole) == exact).all()
    with pytest.raises(errors.MissingOperandError, match="pass out"):
        dxgemm.gemm(*given, inner=inner)
    with pytest.raises(errors.UnsupportedProblemError, match="apply it in a second step"):
        dxgemm.gemm(*given, out=out, inner=inner, epilogue=epilogues.relu)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("is_turned", [False, True], ids=["row", "col"])
def test_complex_numbers(home, dtype, is_turned):
    """Conjugates on either side, complex factors, an edge of each index, and real epilogues."""
    slope = dxgemm.inner(lambda x, y: x - 2.0 * y.conjugate() + 1j)
    forms = {slope: lambda x, y: (x - 2 * y.conj() + 1j).sum(-1),
             dxgemm.inner(lambda x, y: abs(x - y)): lambda x, y: abs(x - y).sum(-1)}  # fmt: skip
    for size in (SMALL, (9, 3, 17), (1, 1, 1)):
        a, b, c = operands(size, dtype)
        given = [home.send(x.T.copy()).T if is_turned else home.send(x) for x in (a, b)]
        for (inner, form), names in product(forms.items(), ("", "a", "b")):
            around = np.full((size[0] + 2, size[1] + 3), 99, dtype)
            around[1:-1, 1:-2] = c
            sent = home.send(around)
            out = sent[1:-1, 1:-2]
            dxgemm.gemm(*given, out, 2j, -3.0, inner=inner, conjugate=names)
            x, y = (z.conj() if name in names else z for z, name in ((a, "a"), (b, "b")))
            around[1:-1, 1:-2] = 2j * expected(form, x, y) - 3 * c
            np.testing.assert_allclose(home.fetch(sent), around, 1e-5, 1e-4)
        nearest = epilogues.magnitude | reductions.argmin(1)
        found = home.fetch(dxgemm.gemm(*given, inner=slope, epilogue=nearest))
        assert (found == abs(expected(forms[slope], a, b)).argmin(1)).all()
    assert (computed(home, slope, a[:, :0], b[:0], c) == c).all()
    found = home.fetch(dxgemm.gemm(given[0], given[0].T, inner=slope))  # is no Hermitian one
    np.testing.assert_allclose(found, expected(forms[slope], a, a.T), 1e-5)
    for options, match in (
        ({"inner": inners.min_plus}, r"no order.*pass add=.sum"),
        (
            {"inner": slope, "implementation": "complex_tile"},
            "multiply and add|it computes complex64",
        ),
        ({"inner": slope, "implementation": "tuned"}, "it computes float32"),
    ):
        with pytest.raises(errors.UnsupportedProblemError, match=match):
            dxgemm.gemm(*given, **options)
    with pytest.raises(errors.UnsupportedProblemError, match="Hermitian"):
        dxgemm.gemm_symmetric(given[0], inner=slope)
    with pytest.raises(errors.EpilogueError, match="real"):
        computed(home, slope, a.real.copy(), b.real.copy())


def test_alpha_beta_and_c(home):
    a, b, c = operands()
    sent = [home.send(x) for x in (a, b, c)]
    found = home.fetch(dxgemm.gemm(*sent, 2.0, -3.0, inner=inners.l1))
    assert (found == 2 * expected("l1", a, b) - 3 * c).all()
    for name in ("min_plus", "chebyshev"):
        exact = JOINS[name](expected(name, a, b), c)
        for given in (c, np.asfortranarray(c)):
            assert (computed(home, name, a, b, given) == exact).all()
        options = {"out": home.send(np.zeros_like(c)), "epilogue": epilogues.scale(2.0)}
        assert (computed(home, name, a, b, c, **options) == 2 * exact).all()
    untouched = home.send(c)
    for alpha, beta in ((2.0, 0.0), (0.0, 0.0), (1.0, 2.0)):
        with pytest.raises(errors.ScalarError, match="inner min_plus does not sum"):
            dxgemm.gemm(sent[0], sent[1], untouched, alpha, beta, inner=inners.min_plus)
    assert home.fetch(untouched).tobytes() == c.tobytes()
    a, b, c = operands((9, 11, 6), "bfloat16")  # rounded once
    exact = np.minimum(expected("min_plus", a, b), c.astype(float))
    assert (computed(home, "min_plus", a, b, c) == exact.astype(c.dtype)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_batches_and_matmul(home, dtype):
    a, b, _ = operands((5, 7, 6), dtype, (3,))
    for left, right in ((a, b), (a[:1], b), (a, b[0]), (a[0], b)):
        for options in ({}, {"batch_invariant": True}):
            found = computed(home, "min_plus", left, right, **options)
            assert (found == expected("min_plus", left, right)).all()
    vector = home.send(b[0, :, 0].copy())
    found = home.fetch(dxgemm.matmul(home.send(a), vector, inner=inners.l1))
    assert (found == expected("l1", a, b[0, :, :1])[..., 0]).all()
    vector = home.send(a[0, 0].copy())
    found = home.fetch(dxgemm.matmul(vector, home.send(b[0].copy()), inner=slanted))
    assert (found == expected(slant, a[0, :1], b[0])[0]).all()


def test_plan_and_host_arrays():
    a, b, _ = operands((7, 5, 6))
    plan = dxgemm.plan(a, b, inner=inners.l1)
    for _ in range(2):
        assert (plan() == expected("l1", a, b)).all()
        a[:] = 1


def test_epilogues_and_masks(home):
    a, b, c = operands()
    (m, n), row, by = c.shape, ints(c.shape[1], seed=2), np.arange(c.shape[0])[:, None]

    @dxgemm.epilogue
    def shifted(value, row, col, by: Scalar):
        return value + by + row

    chain = bias(home.send(row)) | residual(home.send(np.ones_like(c))) | shifted(0.5)
    found = computed(home, "min_plus", a, b, epilogue=chain)
    assert (found == expected("min_plus", a, b) + row + 1.5 + by).all()
    mask = np.zeros((-(-m // 128), -(-n // 128)), bool)
    mask[0, 0] = True
    options = {"out": home.send(np.full_like(c, 9)), "mask": home.send(mask)}
    exact = np.full((m, n), 9.0)
    exact[:128, :128] = expected("l1", a, b)[:128, :128]
    assert (computed(home, "l1", a, b, **options) == exact).all()

    @dxgemm.epilogue(pairs=True)
    def larger_of_two(first, second, row, col):
        return first if first > second else second

    even = b[:, : n // 2 * 2].copy()
    found = computed(home, "l1", a, even, epilogue=larger_of_two)
    assert (found == expected("l1", a, even).reshape(m, -1, 2).max(-1)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_reductions_of_distances(home, dtype):
    a, b, _ = operands(dtype=dtype)
    sent, distances = (home.send(a), home.send(b)), expected("l1", a, b)
    order = np.argsort(distances, 1, kind="stable")  # of equal ones the first
    assert (computed(home, "l1", a, b, epilogue=reductions.argmin(1)) == order[:, 0]).all()
    smallest = dxgemm.gemm(*sent, inner=inners.l1, epilogue=reductions.smallest(3, 1))
    assert (home.fetch(smallest.values) == np.sort(distances, 1)[:, :3]).all()
    assert (home.fetch(smallest.indices) == order[:, :3]).all()
    columns = computed(home, slanted, a, b, epilogue=reductions.argmin(0))
    assert (columns == expected(slant, a, b).argmin(0)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_symmetric_results(home, dtype):
    n, k = SIZE[1] if ON_GPU or dtype == "float32" else 9, SIZE[2]
    a, c = ints((n, k), dtype), ints((n, n), dtype, 3)
    sent, turned = home.send(a), home.send(a.T.copy())
    found = home.fetch(dxgemm.gemm_symmetric(sent, inner=inners.l1))
    assert (found == expected("l1", a, a.T)).all()
    found = home.fetch(dxgemm.gemm_symmetric(turned, transpose=True, inner=inners.chebyshev))
    assert (found == expected("chebyshev", a, a.T)).all()
    if dtype != "float16":
        lower, options = home.send(c), {"triangle": "lower", "inner": inners.min_plus}
        dxgemm.gemm_symmetric(sent, lower, beta=1.0, **options)
        joined = np.minimum(expected("min_plus", a, a.T), c)
        assert (home.fetch(lower) == np.where(np.tri(n) > 0, joined, c)).all()
    with pytest.raises(errors.UnsupportedProblemError, match="symmetric=True"):
        dxgemm.gemm_symmetric(sent, inner=slanted)
    with pytest.raises(errors.UnsupportedProblemError, match="no transpose is added"):
        dxgemm.gemm_symmetric(sent, b=sent, inner=inners.l1)
    found = home.fetch(dxgemm.gemm(sent, sent.T, inner=slanted))  # is not taken for symmetric
    assert (found == expected(slant, a, a.T)).all()


def test_own_ways_of_adding(home):
    a, b, c = operands((9, 11, 6))

    @dxgemm.inner(add=lambda total, value: total * value, identity=1.0)
    def sums_multiplied(x, y):
        return x + y

    @dxgemm.inner(add="max")
    def farthest(total, x, y):
        distance = abs(x - y)
        return distance if distance > total else total

    roots = dxgemm.inner(lambda x, y: (x - y) * (x - y), finish=lambda total: math.sqrt(total))
    exact = expected(lambda x, y: (x + y).prod(-1), a, b)
    assert (computed(home, sums_multiplied, a, b) == exact).all()
    assert (computed(home, sums_multiplied, a, b, c) == c * exact).all()
    assert (computed(home, farthest, a, b) == expected("chebyshev", a, b)).all()
    found = computed(home, roots, a, b, epilogue=epilogues.scale(2.0))
    np.testing.assert_allclose(found, 2 * np.sqrt(expected("squared_euclidean", a, b)), 1e-6)
    assert sums_multiplied(2.0, 3.0, 4.0) == 14.0


def join_two(total, other):
    """The two largest of the two largest of two sets."""
    first, second = total
    third, fourth = other
    if first > third:
        return first, second if second > third else third
    return third, first if first > fourth else fourth


def sign_of_difference(total, x, y):
    """x times the sign of the element of c less y: a gradient of L1."""
    slope, point = total
    return slope + (x if point > y else -x if point < y else 0.0), point


def join_slopes(total, other):
    return total[0] + other[0], total[1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_totals_of_several_numbers(home, dtype):
    runner_up = dxgemm.inner(
        lambda x, y: (x + y, -math.inf), add=join_two, identity=(-math.inf, -math.inf),
        finish=lambda total: total[1],
    )  # fmt: skip
    a, b, c = operands(SMALL, dtype, (2,))
    exact = expected(lambda x, y: np.sort(x + y, axis=-1)[..., -2], a, b)
    assert (computed(home, runner_up, a, b, epilogue=epilogues.scale(2.0)) == 2 * exact).all()
    nearest = computed(home, runner_up, a, b, epilogue=reductions.argmin(1))
    assert (nearest == exact.argmin(-1)).all()
    slope = dxgemm.inner(sign_of_difference, add=join_slopes, identity=(0.0, None),
                         finish=lambda total: total[0])  # fmt: skip
    point = c.astype(float)[..., None]
    exact = expected(lambda x, y: (x * np.sign(point - y)).sum(-1), a, b)
    for order in ("row", "col"):
        out = Padded(home, c, order)
        dxgemm.gemm(home.send(a), home.send(b), out.array, beta=1.0, inner=slope)
        assert (out.fetch() == exact.astype(c.dtype)).all()
    with pytest.raises(errors.ScalarError, match="which begin with c"):
        computed(home, slope, a, b)
    with pytest.raises(errors.ScalarError, match="totals of 2 numbers, which no c joins"):
        computed(home, runner_up, a, b, c)
    assert pickle.loads(pickle.dumps(runner_up)) == runner_up
    short = dxgemm.inner(lambda total, x, y: (x, y, x), add=join_two, identity=(0, 0),
                         finish=lambda total: total[0])  # fmt: skip
    with pytest.raises(errors.EpilogueError, match="tuple of 2"):
        computed(home, short, a, b)


def test_logarithms_of_sums_are_stable(home):
    """Terms from 0 to 10**30 times the largest, whose exponentials overflow or vanish."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-500, 500, shape).astype(np.float32) for shape in ((9, 40), (40, 7)))
    a[0] = b[:, 0] = 900
    found, exact = computed(home, "logsumexp", a, b), expected("logsumexp", a, b)
    # The sums of x and y are rounded, and then 40 positive numbers are added.
    assert (abs(found - exact) <= 2.0**-24 * (2 * abs(exact) + 40)).all()


# --- What is refused ---


def a_total(total, x, y, z):
    return total


def plain(x, y):
    return x - y


def may_end(x, y):
    if x > y:
        return x


TABLE = [1.0, 2.0]
OPEN_TOTAL = {"add": plain, "identity": (0.0, None), "finish": lambda t: 0.0, "symmetric": True}


@pytest.mark.parametrize(
    ("function", "options", "kind", "match"),
    [
        (a_total, {}, errors.EpilogueError, "inner a_total: its parameters are total, x, y, z"),
        (lambda x, *y: x, {}, errors.EpilogueError, "inner <lambda>: its parameters are x"),
        (lambda x, y=1.0: x, {}, errors.EpilogueError, "function of .x, y."),
        (may_end, {}, errors.EpilogueError, "inner may_end: may_end can end without"),
        (lambda x, y: TABLE[0], {}, errors.EpilogueError, "use a number or a tuple"),
        (lambda x, y: (x, y), {}, errors.EpilogueError, "returns .* return one number"),
        (plain, {"add": lambda t, v: (t, v), "identity": 0}, errors.EpilogueError, "one number"),
        (math.fmod, {}, errors.EpilogueError, "decorate a plain Python function"),
        (plain, {"add": "mean"}, errors.SettingError, '"sum", "min", "max"'),
        (plain, {"add": 3}, errors.EpilogueError, "plain Python function"),
        (plain, {"add": lambda x: x, "identity": 0}, errors.EpilogueError, "total, value"),
        (plain, {"add": plain}, errors.SettingError, "identity is None; pass the number"),
        (plain, {"add": plain, "identity": "0"}, errors.SettingError, "identity is '0'"),
        (plain, {"add": plain, "identity": (0.0, 1.0)}, errors.SettingError, "pass finish="),
        (plain, OPEN_TOTAL, errors.SettingError, "begin with c"),
        (plain, {"add": plain, "identity": (0.0,)}, errors.SettingError, "a tuple of 2 to 4"),
        (plain, {"identity": 1.0}, errors.SettingError, "'sum' has its identity"),
        (plain, {"finish": plain}, errors.EpilogueError, "function of a total"),
        (plain, {"symmetric": 1}, errors.SettingError, "symmetric"),
    ],
)
def test_functions_that_are_none(function, options, kind, match):
    with pytest.raises(kind, match=match):
        dxgemm.inner(function, **options)


def test_refused_calls_leave_c(home):
    a, b, c = operands((9, 11, 6))
    target, whole = home.send(c), home.send(c.astype(np.int32))
    sent = home.send(a), home.send(b)
    integers = tuple(home.send(x.astype(np.int32)) for x in (a, b))
    l1, unsupported = inners.l1, errors.UnsupportedProblemError
    half = dxgemm.inner(lambda x, y: x, add=lambda total, value: total + value, identity=0.5)
    pair = dxgemm.inner(
        lambda x, y: (x, y), add=join_two, identity=(0, math.nan), finish=lambda total: total[0]
    )
    cases = [
        (sent, {"inner": "l1"}, errors.EpilogueError, "pass one of dxgemm.inners"),
        (sent, {"inner": abs}, errors.EpilogueError, "pass one of dxgemm.inners"),
        (sent, {"epilogue": l1}, errors.EpilogueError, "pass it as inner="),
        (sent, {"inner": l1, "precision": "tf32"}, unsupported, "leave"),
        (sent, {"inner": l1, "implementation": "coalesced"}, unsupported, "multiply and add"),
        ((sent[0], home.send(b.astype(float))), {"inner": l1}, errors.DtypeError, "differ"),
        (integers, {"inner": half}, unsupported, "its identity is .* integers"),
        (integers, {"inner": pair}, unsupported, "its identity is .* integers"),
    ]
    for given, options, kind, match in cases:
        with pytest.raises(kind, match=match):
            dxgemm.gemm(*given, whole if given is integers else target, **options)
    assert (home.fetch(whole) == c).all() and home.fetch(target).tobytes() == c.tobytes()
    with pytest.raises(errors.EpilogueError, match="pass it as inner="):
        epilogues.relu | inners.l1


# --- The choice, and the keys of kernels ---


def problem_with(inner, *sizes, dtype="float32"):
    return replace(contiguous_problem(dtype, *sizes), epilogue=Fusion((), (), inner=inner))


def test_kernels_that_take_inner_functions_are_chosen(configs_of_a_gpu):
    for dtype in (*DTYPES, "complex64", "complex128"):
        ranking = rank(problem_with(inners.l1, 4096, 4096, 128, dtype=dtype), H100)
        assert ranking.candidates[0].implementation.kernel.takes_inner
        others = {i.name for i in IMPLEMENTATIONS if not i.kernel.takes_inner}
        assert others <= ranking.rejected.keys()
        for parts in (2, 3, 4) if dtype in DTYPES else ():
            total = dxgemm.inner(lambda t, x, y: t, add=lambda t, v: t, identity=(0.0,) * parts,
                                 finish=lambda t: t[0])  # fmt: skip
            assert rank(problem_with(total, 999, 999, 99, dtype=dtype), H100).candidates
    ranking = rank(problem_with(inners.l1, 512, 512, 512), H100)
    assert "multiply and add" in ranking.rejected["skinny_fma"]
    chosen = rank(problem_with(inners.min_plus, 64, 64, 65536), H100).candidates[0]
    assert chosen.slices > 1 or chosen.config.cluster > 1
    batch = replace(problem_with(inners.l1, 32, 32, 32), batch=4096)
    assert rank(batch, H100).candidates[0].implementation.name == "small_batch"
    sizes, asked = (4096, 4096, 4096), ("tuned", "128x128x8 thread 8x8 stages 4")
    plain, l1, squared, canberra = (
        rank(problem, H100, asked).candidates[0].us
        for problem in (contiguous_problem("float32", *sizes),
                        *(problem_with(f, *sizes) for f in (inners.l1, inners.squared_euclidean,
                                                            inners.canberra)))
    )  # fmt: skip
    assert 1.8 * plain < l1 == squared < 2.2 * plain < canberra  # by the number of instructions


def test_old_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("dxgemm.call.resolve.device_facts", lambda ordinal: V100)
    with pytest.raises(errors.UnsupportedProblemError, match=r"compute capability 8\.0 or later"):
        dxgemm.gemm(ints((3, 4)), ints((4, 5)), inner=inners.l1)


def test_explain():
    a, b, _ = operands((9, 11, 6))
    told = dxgemm.explain(a, b, inner=inners.l1, epilogue=epilogues.relu)
    assert told.implementation in ("tuned", "small_batch")
    assert "inner l1 | relu" in str(told)
    assert told.work.flops == 2 * 9 * 11 * 6
    assert "multiply and add" in told.full()
    assert device_facts(0).name in str(told)


def test_keys_are_of_what_is_compiled():
    def make(scale):
        return dxgemm.inner(lambda x, y: abs(x - scale * y))

    def key_of(inner):
        return Fusion((), (), inner=inner).key

    first, again, other = make(1.0), make(1.0), make(2.0)
    assert first == again and key_of(first) == key_of(again) != key_of(other)
    both = [dxgemm.inner(lambda total, x, y: total + x * y, add=way) for way in ("sum", "max")]
    assert len({key_of(inner) for inner in both}) == 2
    custom = dxgemm.inner(lambda x, y: x, add=lambda t, v: t * v, identity=1.0,
                          finish=lambda t: -t)  # fmt: skip
    for inner in (custom, inners.canberra):
        restored = pickle.loads(pickle.dumps(inner))
        assert restored == inner and key_of(restored) == key_of(inner)


def helper(x):
    return abs(x)


def test_changed_code_is_compiled_and_a_changed_variable_refused(home, monkeypatch):
    a, b, _ = operands((5, 6, 4))
    own = dxgemm.inner(lambda x, y: helper(x - y) * SCALE)
    assert (computed(home, own, a, b) == 2 * expected("l1", a, b)).all()
    monkeypatch.setattr(helper, "__code__", (lambda x: x * x).__code__)
    assert (computed(home, own, a, b) == 2 * expected("squared_euclidean", a, b)).all()
    own = dxgemm.inner(lambda x, y: x * SCALE - y)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(errors.EpilogueError, match=r"SCALE was 2\.0"):
        computed(home, own, a, b)
