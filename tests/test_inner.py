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


def nanlogsumexp(values):
    return np.logaddexp.reduce(values, axis=-1)


# The same by broadcasting, for x of shape (m, 1, k) and y of shape (1, n, k).
EXPECTED = {
    "l1": lambda x, y: np.abs(x - y).sum(-1),
    "chebyshev": lambda x, y: np.abs(x - y).max(-1),
    "squared_euclidean": lambda x, y: ((x - y) ** 2).sum(-1),
    "canberra": lambda x, y: np.nan_to_num(np.abs(x - y) / (np.abs(x) + np.abs(y))).sum(-1),
    "hamming": lambda x, y: (x != y).sum(-1),
    "min_plus": lambda x, y: (x + y).min(-1),
    "max_plus": lambda x, y: (x + y).max(-1),
    "max_min": lambda x, y: np.minimum(x, y).max(-1),
    "logsumexp": lambda x, y: nanlogsumexp(x + y),
}
ROUNDED = {"canberra": 1e-6, "logsumexp": 2e-6}  # relative errors in float32
IDENTITIES = {"chebyshev": -math.inf, "min_plus": math.inf, "max_plus": -math.inf,
              "max_min": -math.inf, "logsumexp": -math.inf}  # fmt: skip


def expected(name, a, b):
    with np.errstate(all="ignore"):
        x, y = a.astype(float)[..., :, None, :], np.swapaxes(b.astype(float), -1, -2)
        return EXPECTED[name](x, y[..., None, :, :])


def ints(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(numpy_dtype(dtype))


@dxgemm.inner
def slanted(x, y):
    """No symmetric one: it tells a from b."""
    return x - SCALE * y


def slant(a, b):
    return (a[:, None, :] - 2 * b.T[None]).sum(-1)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions(home, name, dtype):
    if dtype in INTEGERS and name in ROUNDED:
        pytest.skip("it divides, or takes logarithms")
    m, n, k = SMALL
    a, b = ints((m, k), dtype), ints((k, n), dtype, 1)
    found = home.fetch(dxgemm.gemm(home.send(a), home.send(b), inner=getattr(inners, name)))
    exact = expected(name, a, b)
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
    for m, n, k in SIZES:
        a, b = ints((m, k)), ints((k, n), seed=1)
        padded = [Padded(home, x) for x in (a, b, np.full((m, n), np.nan, np.float32))]
        dxgemm.gemm(*(x.array for x in padded), inner=getattr(inners, name))
        assert (padded[2].fetch() == expected(name, a, b)).all()


LAYOUTS = [*product(("row", "col", "row+1"), ("row", "col"), ("row", "col"))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS if ON_GPU else LAYOUTS[::3] + LAYOUTS[1::6])
def test_layouts_tell_a_from_b(home, dtype, layout):
    m, n, k = SMALL
    *orders, out_order = layout
    a, b = ints((m, k), dtype), ints((k, n), dtype, 1)
    exact = slant(a.astype(float), b.astype(float))
    out = Padded(home, np.zeros((m, n), a.dtype), out_order)
    given = [Padded(home, x, order) for x, order in zip((a, b), orders)]
    dxgemm.gemm(*(x.array for x in given), out=out.array, inner=slanted)
    assert (out.fetch() == exact.astype(a.dtype)).all()


CONFIGS = [
    (name, config)
    for name in ("tuned", "small_batch")
    for config in find_implementation(name).kernel.configs
]


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "config"), CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_config(home, kernel, config, dtype):
    if not config.takes(dtype):
        pytest.skip("its accumulators do not fit")
    a, b = ints((2, 200, 43), dtype), ints((2, 43, 280), dtype, 1)
    for name in ("l1", "min_plus") if dtype == "float32" else ("l1",):
        options = {"inner": getattr(inners, name), "implementation": (kernel, config)}
        found = home.fetch(dxgemm.gemm(home.send(a), home.send(b), **options))
        assert (found == expected(name, a, b)).all()


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
        a, b, c = ints((2, 9, k)), ints((2, k, 7), seed=1), ints((2, 9, 7), seed=2)
        given = [Padded(home, x, order) for x, order in zip((a, b), orders)]
        for name, join in (("l1", np.add), ("min_plus", np.minimum)):
            out = Padded(home, c)
            options = {"inner": getattr(inners, name), "implementation": "small_batch"}
            dxgemm.gemm(*(x.array for x in given), out.array, beta=1.0, **options)
            assert (out.fetch() == join(expected(name, a, b), c)).all()
        found = home.fetch(dxgemm.gemm(*(x.array for x in given), inner=slanted,
                                       implementation="small_batch"))  # fmt: skip
        assert (found == (a[:, :, None] - 2 * b.swapaxes(1, 2)[:, None]).sum(-1)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_of_k_are_added_as_the_function_adds(home, dtype):
    """Split-K with a workspace; of `most` slices, the last one is empty."""
    m, n, k, most = (70, 130, 300, 9) if ON_GPU else (9, 33, 17, 4)
    a, b, c = ints((m, k), dtype), ints((k, n), dtype, 1), ints((m, n), dtype, 2)
    config = find_implementation("tuned").configs()[-1 if not ON_GPU else 2]
    for name, join, slices in (("min_plus", np.minimum, 2), ("chebyshev", np.maximum, most),
                               ("l1", np.add, 3)):  # fmt: skip
        out = home.send(c)
        dxgemm.gemm(
            home.send(a), home.send(b), out, beta=1.0, inner=getattr(inners, name),
            implementation=("tuned", config, slices), epilogue=epilogues.scale(2.0),
        )  # fmt: skip
        assert (home.fetch(out) == 2 * join(expected(name, a, b), c)).all()
    asked, whole = ("tuned", config, 2), home.send(b.T.copy())
    found = dxgemm.gemm_symmetric(whole, inner=inners.chebyshev, implementation=asked)
    assert (home.fetch(found) == expected("chebyshev", b.T, b)).all()
    with pytest.raises(errors.UnsupportedProblemError, match="cannot cut this k"):
        dxgemm.gemm(home.send(a), home.send(b), inner=inners.logsumexp, implementation=asked)


@pytest.mark.parametrize("name", ["l1", "chebyshev", "min_plus", "max_min", "logsumexp"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_special_values(home, name, dtype):
    values = np.array([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan], numpy_dtype(dtype))
    one = np.ones_like(values)
    # Every two values meet, and then 1 and 1, in both orders of k.
    a, b = np.stack([values, one], 1), np.stack([values, one])
    for left, right in ((a, b), (a[:, ::-1].copy(), b[::-1].copy())):
        found = home.fetch(
            dxgemm.gemm(home.send(left), home.send(right), inner=getattr(inners, name))
        )
        exact = expected(name, left, right).astype(found.dtype)
        np.testing.assert_allclose(found.astype(float), exact.astype(float), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", EXPECTED)
def test_no_k_gives_the_identity(home, name):
    a, b = home.send(np.ones((3, 0), np.float32)), home.send(np.ones((0, 5), np.float32))
    inner, start = getattr(inners, name), IDENTITIES.get(name, 0.0)
    assert (home.fetch(dxgemm.gemm(a, b, inner=inner)) == np.full((3, 5), start)).all()
    if inner.parts == 1:
        c = home.send(np.full((3, 5), 7, np.float32))
        assert (home.fetch(dxgemm.gemm(a, b, c, beta=1.0, inner=inner)) == 7).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(home, dtype):
    """Extremes of a dtype, whose sums wrap around in 32 or 64 bits as NumPy's do."""
    wide = "int64" if dtype == "int64" else "int32"
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    a, b = (
        rng.choice([limits.min, limits.max, 0, 1, 7], shape).astype(dtype)
        for shape in ((9, 5), (5, 33))
    )
    sent, c = (home.send(a), home.send(b)), ints((9, 33), wide, 2)
    x, y = a.astype(wide)[:, None], b.T.astype(wide)[None]
    with np.errstate(over="ignore"):
        for name, exact in (
            ("min_plus", np.minimum((x + y).min(-1), c)),
            ("max_min", np.maximum(np.minimum(x, y).max(-1), c)),
            ("squared_euclidean", ((x - y) * (x - y)).sum(-1, dtype=wide) + c),
        ):
            found = home.send(c)
            dxgemm.gemm(*sent, found, beta=1.0, inner=getattr(inners, name))
            assert (home.fetch(found) == exact).all(), name
        for own, exact in (
            (lambda x, y: max(x, y), np.maximum(x, y).max(-1)),
            (lambda x, y: abs(x - y), np.abs(x - y).max(-1)),
        ):
            found = dxgemm.gemm(*sent, inner=dxgemm.inner(own, add="max"))
            assert (home.fetch(found) == exact).all()
        if wide == "int32":
            nearest = dxgemm.gemm(*sent, inner=inners.max_plus, epilogue=reductions.argmin(1))
            assert (home.fetch(nearest) == (x + y).max(-1).argmin(1)).all()
    empty = home.send(np.ones((3, 0), dtype)), home.send(np.ones((0, 5), dtype))
    found = home.fetch(dxgemm.gemm(*empty, inner=inners.min_plus))
    assert found.dtype == wide and (found == np.iinfo(wide).max).all()


def test_alpha_beta_and_c(home):
    m, n, k = SIZE
    a, b, c = ints((m, k)), ints((k, n), seed=1), ints((m, n), seed=2)
    sent = [home.send(x) for x in (a, b, c)]
    found = home.fetch(dxgemm.gemm(*sent, 2.0, -3.0, inner=inners.l1))
    assert (found == 2 * expected("l1", a, b) - 3 * c).all()
    for name, join in (("min_plus", np.minimum), ("chebyshev", np.maximum)):
        exact = join(expected(name, a, b), c)
        for given in (c, np.asfortranarray(c)):
            in_place = home.send(given)
            dxgemm.gemm(sent[0], sent[1], in_place, beta=1.0, inner=getattr(inners, name))
            assert (home.fetch(in_place) == exact).all()
        out = home.send(np.zeros_like(c))
        dxgemm.gemm(
            sent[0], sent[1], home.send(c), beta=1.0, out=out, inner=getattr(inners, name),
            epilogue=epilogues.scale(2.0),
        )  # fmt: skip
        assert (home.fetch(out) == 2 * exact).all()
    untouched = home.send(c)
    for alpha, beta in ((2.0, 0.0), (0.0, 0.0), (1.0, 2.0)):
        with pytest.raises(errors.ScalarError, match="inner min_plus does not sum"):
            dxgemm.gemm(sent[0], sent[1], untouched, alpha, beta, inner=inners.min_plus)
    assert home.fetch(untouched).tobytes() == c.tobytes()


def test_half_precision_joins_c_and_is_rounded_once(home):
    a, b, c = ints((9, 6), "bfloat16"), ints((6, 11), "bfloat16", 1), ints((9, 11), "bfloat16", 2)
    in_place = home.send(c)
    dxgemm.gemm(home.send(a), home.send(b), in_place, beta=1.0, inner=inners.min_plus)
    exact = np.minimum(expected("min_plus", a, b), c.astype(float))
    assert (home.fetch(in_place) == exact.astype(c.dtype)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_batches_and_matmul(home, dtype):
    a, b = ints((3, 5, 6), dtype), ints((3, 6, 7), dtype, 1)
    for left, right in ((a, b), (a[:1], b), (a, b[0]), (a[0], b)):
        sent = home.send(left), home.send(right)
        found = home.fetch(dxgemm.gemm(*sent, inner=inners.min_plus))
        assert (found == expected("min_plus", left, right)).all()
    sent = home.send(a), home.send(b[0])
    found = home.fetch(dxgemm.gemm(*sent, inner=inners.min_plus, batch_invariant=True))
    assert (found == expected("min_plus", a, b[0])).all()
    vector = home.send(b[0, :, 0].copy())
    found = home.fetch(dxgemm.matmul(home.send(a), vector, inner=inners.l1))
    assert (found == expected("l1", a, b[0, :, :1])[..., 0]).all()
    vector = home.send(a[0, 0].copy())
    found = home.fetch(dxgemm.matmul(vector, home.send(b[0].copy()), inner=slanted))
    assert (found == slant(a[0, :1].astype(float), b[0].astype(float))[0]).all()


def test_plan_and_host_arrays():
    a, b = ints((7, 6)), ints((6, 5), seed=1)
    plan = dxgemm.plan(a, b, inner=inners.l1)
    assert (plan() == expected("l1", a, b)).all()
    a[:] = 1
    assert (plan() == expected("l1", a, b)).all()


def test_epilogues_and_masks(home):
    m, n, k = SIZE
    a, b, row = ints((m, k)), ints((k, n), seed=1), ints(n, seed=2)
    sent = home.send(a), home.send(b)
    chain = bias(home.send(row)) | residual(home.send(np.ones((m, n), np.float32)))
    found = home.fetch(dxgemm.gemm(*sent, inner=inners.min_plus, epilogue=chain))
    assert (found == expected("min_plus", a, b) + row + 1).all()
    mask = np.zeros((-(-m // 128), -(-n // 128)), bool)
    mask[0, 0] = True
    out = home.send(np.full((m, n), 9, np.float32))
    dxgemm.gemm(*sent, out=out, inner=inners.l1, mask=home.send(mask))
    exact = np.full((m, n), 9.0)
    exact[:128, :128] = expected("l1", a, b)[:128, :128]
    assert (home.fetch(out) == exact).all()

    @dxgemm.epilogue(pairs=True)
    def larger_of_two(first, second, row, col):
        return first if first > second else second

    found = home.fetch(dxgemm.gemm(sent[0], home.send(b[:, : n // 2 * 2].copy()), inner=inners.l1,
                                   epilogue=larger_of_two))  # fmt: skip
    exact = expected("l1", a, b)[:, : n // 2 * 2].reshape(m, -1, 2).max(-1)
    assert (found == exact).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_reductions_of_distances(home, dtype):
    m, n, k = SIZE
    a, b = ints((m, k), dtype), ints((k, n), dtype, 1)
    sent, distances = (home.send(a), home.send(b)), expected("l1", a, b)
    found = home.fetch(dxgemm.gemm(*sent, inner=inners.l1, epilogue=reductions.argmin(1)))
    assert (found == distances.argmin(1)).all()  # of equal ones the first
    smallest = dxgemm.gemm(*sent, inner=inners.l1, epilogue=reductions.smallest(3, 1))
    assert (home.fetch(smallest.values) == np.sort(distances, 1)[:, :3]).all()
    order = np.argsort(distances, 1, kind="stable")[:, :3]
    assert (home.fetch(smallest.indices) == order).all()
    columns = home.fetch(dxgemm.gemm(*sent, inner=slanted, epilogue=reductions.argmin(0)))
    assert (columns == slant(a.astype(float), b.astype(float)).argmin(0)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_symmetric_results(home, dtype):
    n, k = SIZE[1] if ON_GPU or dtype == "float32" else 9, SIZE[2]
    a = ints((n, k), dtype)
    found = home.fetch(dxgemm.gemm_symmetric(home.send(a), inner=inners.l1))
    assert (found == expected("l1", a, a.T)).all()
    turned = home.send(a.T.copy())
    found = home.fetch(dxgemm.gemm_symmetric(turned, transpose=True, inner=inners.chebyshev))
    assert (found == expected("chebyshev", a, a.T)).all()
    if dtype != "float16":
        c = ints((n, n), dtype, 3)
        lower = home.send(c)
        dxgemm.gemm_symmetric(
            home.send(a), lower, beta=1.0, triangle="lower", inner=inners.min_plus
        )
        joined = np.minimum(expected("min_plus", a, a.T), c)
        assert (home.fetch(lower) == np.where(np.tri(n) > 0, joined, c)).all()
    with pytest.raises(errors.UnsupportedProblemError, match="symmetric=True"):
        dxgemm.gemm_symmetric(home.send(a), inner=slanted)
    with pytest.raises(errors.UnsupportedProblemError, match="no transpose is added"):
        dxgemm.gemm_symmetric(home.send(a), b=home.send(a), inner=inners.l1)
    sent = home.send(a)
    found = home.fetch(dxgemm.gemm(sent, sent.T, inner=slanted))  # is not taken for symmetric
    assert (found == slant(a.astype(float), a.T.astype(float))).all()


def test_own_ways_of_adding(home):
    a, b = ints((9, 6)), ints((6, 11), seed=1)
    sent = home.send(a), home.send(b)

    @dxgemm.inner(add=lambda total, value: total * value, identity=1.0)
    def sums_multiplied(x, y):
        return x + y

    @dxgemm.inner(add="max")
    def farthest(total, x, y):
        distance = abs(x - y)
        return distance if distance > total else total

    roots = dxgemm.inner(lambda x, y: (x - y) * (x - y), finish=lambda total: math.sqrt(total))
    exact = (a[:, None] + b.T[None]).prod(-1)
    assert (home.fetch(dxgemm.gemm(*sent, inner=sums_multiplied)) == exact).all()
    c = home.send(np.full((9, 11), 3, np.float32))
    dxgemm.gemm(*sent, c, beta=1.0, inner=sums_multiplied)
    assert (home.fetch(c) == 3 * exact).all()
    assert (home.fetch(dxgemm.gemm(*sent, inner=farthest)) == expected("chebyshev", a, b)).all()
    found = home.fetch(dxgemm.gemm(*sent, inner=roots, epilogue=epilogues.scale(2.0)))
    exact = 2 * np.sqrt(expected("squared_euclidean", a, b))
    np.testing.assert_allclose(found, exact, 1e-6)
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
    m, n, k = SMALL
    a, b = ints((2, m, k), dtype), ints((2, k, n), dtype, 1)
    sent = home.send(a), home.send(b)
    sums = a.astype(float)[:, :, None] + b.astype(float).swapaxes(1, 2)[:, None]
    exact = np.sort(sums, axis=-1)[..., -2]
    found = dxgemm.gemm(*sent, inner=runner_up, epilogue=epilogues.scale(2.0))
    assert (home.fetch(found) == 2 * exact).all()
    nearest = home.fetch(dxgemm.gemm(*sent, inner=runner_up, epilogue=reductions.argmin(1)))
    assert (nearest == exact.argmin(-1)).all()
    slope = dxgemm.inner(sign_of_difference, add=join_slopes, identity=(0.0, None),
                         finish=lambda total: total[0])  # fmt: skip
    c = ints((2, m, n), dtype, 2)
    signs = np.sign(c.astype(float)[..., None] - b.astype(float).swapaxes(1, 2)[:, None])
    exact = (a.astype(float)[:, :, None] * signs).sum(-1)
    for order in ("row", "col"):
        out = Padded(home, c, order)
        dxgemm.gemm(*sent, out.array, beta=1.0, inner=slope)
        assert (out.fetch() == exact.astype(c.dtype)).all()
    with pytest.raises(errors.ScalarError, match="which begin with c"):
        dxgemm.gemm(*sent, inner=slope)
    with pytest.raises(errors.ScalarError, match="totals of 2 numbers, which no c joins"):
        dxgemm.gemm(*sent, home.send(np.zeros((2, m, n), a.dtype)), beta=1.0, inner=runner_up)
    assert pickle.loads(pickle.dumps(runner_up)) == runner_up
    short = dxgemm.inner(lambda total, x, y: (x, y, x), add=join_two, identity=(0, 0),
                         finish=lambda total: total[0])  # fmt: skip
    with pytest.raises(errors.EpilogueError, match="tuple of 2"):
        dxgemm.gemm(*sent, inner=short)


def test_logarithms_of_sums_are_stable(home):
    """Terms from 0 to 10**30 times the largest, whose exponentials overflow or vanish."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-500, 500, shape).astype(np.float32) for shape in ((9, 40), (40, 7)))
    a[0] = b[:, 0] = 900
    found = home.fetch(dxgemm.gemm(home.send(a), home.send(b), inner=inners.logsumexp))
    exact = nanlogsumexp(a.astype(float)[:, None] + b.T.astype(float)[None])
    # The sums of x and y are rounded, and then 40 positive numbers are added.
    assert (abs(found - exact) <= 2.0**-24 * (2 * abs(exact) + 40)).all()


def test_shortest_paths_by_squares(home):
    nodes = 20
    rng = np.random.default_rng(0)
    edges = np.where(rng.random((nodes, nodes)) < 0.15, rng.integers(1, 9, (nodes, nodes)), np.inf)
    np.fill_diagonal(edges, 0)
    exact = edges.copy()
    for middle in range(nodes):  # Floyd and Warshall
        exact = np.minimum(exact, exact[:, [middle]] + exact[[middle]])
    paths = home.send(edges.astype(np.float32))
    for _ in range(5):
        paths = dxgemm.gemm(paths, paths, inner=inners.min_plus)
    assert (home.fetch(paths) == exact).all()


# --- What is refused ---


def a_total(total, x, y, z):
    return total


def plain(x, y):
    return x - y


def returns_pair(x, y):
    return x, y


def may_end(x, y):
    if x > y:
        return x


TABLE = [1.0, 2.0]


@pytest.mark.parametrize(
    ("function", "options", "kind", "match"),
    [
        (a_total, {}, errors.EpilogueError, "inner a_total: its parameters are total, x, y, z"),
        (lambda x, *y: x, {}, errors.EpilogueError, "inner <lambda>: its parameters are x"),
        (lambda x, y=1.0: x, {}, errors.EpilogueError, "function of .x, y."),
        (may_end, {}, errors.EpilogueError, "inner may_end: may_end can end without"),
        (lambda x, y: TABLE[0], {}, errors.EpilogueError, "use a number or a tuple"),
        (returns_pair, {}, errors.EpilogueError, "returns .* return one real number"),
        (lambda x, y: x * 1j, {}, errors.EpilogueError, "return one real number"),
        (plain, {"add": lambda t, v: (t, v), "identity": 0}, errors.EpilogueError, "one real"),
        (math.fmod, {}, errors.EpilogueError, "decorate a plain Python function"),
        (plain, {"add": "mean"}, errors.SettingError, '"sum", "min", "max"'),
        (plain, {"add": 3}, errors.EpilogueError, "plain Python function"),
        (plain, {"add": lambda x: x, "identity": 0}, errors.EpilogueError, "total, value"),
        (plain, {"add": plain}, errors.SettingError, "identity is None; pass the number"),
        (plain, {"add": plain, "identity": "0"}, errors.SettingError, "identity is '0'"),
        (plain, {"add": plain, "identity": (0.0, 1.0)}, errors.SettingError, "pass finish="),
        (
            plain,
            {"add": plain, "identity": (0.0, None), "finish": lambda t: 0.0, "symmetric": True},
            errors.SettingError,
            "begin with c",
        ),
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
    a, b, c = ints((9, 6)), ints((6, 11), seed=1), ints((9, 11), seed=2)
    target = home.send(c)
    sent = home.send(a), home.send(b)
    wide = tuple(home.send(x.astype(np.complex64)) for x in (a, b))
    cases = [
        (sent, {"inner": "l1"}, errors.EpilogueError, "pass one of dxgemm.inners"),
        (sent, {"inner": abs}, errors.EpilogueError, "pass one of dxgemm.inners"),
        (sent, {"epilogue": inners.l1}, errors.EpilogueError, "pass it as inner="),
        (sent, {"inner": inners.l1, "precision": "tf32"}, errors.UnsupportedProblemError, "leave"),
        (sent, {"inner": inners.l1, "implementation": "coalesced"},
         errors.UnsupportedProblemError, "multiply and add"),
        ((sent[0], home.send(b.astype(float))), {"inner": inners.l1}, errors.DtypeError, "differ"),
    ]  # fmt: skip
    for operands, options, kind, match in cases:
        with pytest.raises(kind, match=match):
            dxgemm.gemm(*operands, target, **options)
    whole = [home.send(x.astype(np.int32)) for x in (a, b, c)]
    own = dxgemm.inner(lambda x, y: x, add=lambda total, value: total + value, identity=0.5)
    pair = dxgemm.inner(
        lambda x, y: (x, y), add=join_two, identity=(0, math.nan), finish=lambda total: total[0]
    )
    for inner in (own, pair):
        with pytest.raises(errors.UnsupportedProblemError, match=r"its identity is .* integers"):
            dxgemm.gemm(*whole, inner=inner)
    assert (home.fetch(whole[2]) == c).all()
    with pytest.raises(errors.UnsupportedProblemError, match="not complex64"):
        dxgemm.gemm(*wide, inner=inners.l1)
    with pytest.raises(errors.EpilogueError, match="pass it as inner="):
        epilogues.relu | inners.l1
    assert home.fetch(target).tobytes() == c.tobytes()


# --- The choice, and the keys of kernels ---


def problem_with(inner, *sizes, dtype="float32"):
    return replace(contiguous_problem(dtype, *sizes), epilogue=Fusion((), (), inner=inner))


def test_kernels_that_take_inner_functions_are_chosen(configs_of_a_gpu):
    for dtype in DTYPES:
        ranking = rank(problem_with(inners.l1, 4096, 4096, 128, dtype=dtype), H100)
        chosen = ranking.candidates[0]
        assert chosen.implementation.kernel.takes_inner
        others = {i.name for i in IMPLEMENTATIONS if not i.kernel.takes_inner}
        assert others <= ranking.rejected.keys()
        for parts in (2, 3, 4):
            total = dxgemm.inner(lambda t, x, y: t, add=lambda t, v: t, identity=(0.0,) * parts,
                                 finish=lambda t: t[0])  # fmt: skip
            assert rank(problem_with(total, 999, 999, 99, dtype=dtype), H100).candidates
    ranking = rank(problem_with(inners.l1, 512, 512, 512), H100)
    assert "multiply and add" in ranking.rejected["skinny_fma"]
    chosen = rank(problem_with(inners.min_plus, 64, 64, 65536), H100).candidates[0]
    assert chosen.slices > 1 or chosen.config.cluster > 1
    batch = replace(problem_with(inners.l1, 32, 32, 32), batch=4096)
    assert rank(batch, H100).candidates[0].implementation.name == "small_batch"


def test_predicted_time_follows_the_number_of_instructions(configs_of_a_gpu):
    sizes = 4096, 4096, 4096
    (plain, l1, canberra) = (
        rank(problem, H100, ("tuned", "128x128x8 thread 8x8 stages 4")).candidates[0].us
        for problem in (contiguous_problem("float32", *sizes),
                        *(problem_with(f, *sizes) for f in (inners.l1, inners.canberra)))
    )  # fmt: skip
    assert 1.8 * plain < l1 < 2.2 * plain < canberra


def test_old_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("dxgemm.call.resolve.device_facts", lambda ordinal: V100)
    with pytest.raises(errors.UnsupportedProblemError, match=r"compute capability 8\.0 or later"):
        dxgemm.gemm(ints((3, 4)), ints((4, 5)), inner=inners.l1)


def test_explain():
    a, b = ints((9, 6)), ints((6, 11), seed=1)
    told = dxgemm.explain(a, b, inner=inners.l1, epilogue=epilogues.relu)
    assert told.implementation in ("tuned", "small_batch")
    assert "inner l1 | relu" in str(told)
    assert told.work.flops == 2 * 9 * 11 * 6
    assert "multiply and add" in told.full()
    assert device_facts(0).name in str(told)


def key_of(inner):
    return Fusion((), (), inner=inner).key


def test_keys_are_of_what_is_compiled():
    def make(scale):
        return dxgemm.inner(lambda x, y: abs(x - scale * y))

    first, again, other = make(1.0), make(1.0), make(2.0)
    assert first == again and key_of(first) == key_of(again) != key_of(other)
    both = [dxgemm.inner(lambda total, x, y: total + x * y, add=way) for way in ("sum", "max")]
    assert len({key_of(inner) for inner in both}) == 2
    restored = pickle.loads(pickle.dumps(inners.canberra))
    assert restored == inners.canberra and key_of(restored) == key_of(inners.canberra)
    custom = dxgemm.inner(lambda x, y: x, add=lambda t, v: t * v, identity=1.0,
                          finish=lambda t: -t)  # fmt: skip
    assert pickle.loads(pickle.dumps(custom)) == custom


def helper(x):
    return abs(x)


def test_changed_code_is_compiled_and_a_changed_variable_refused(home, monkeypatch):
    a, b = ints((5, 4)), ints((4, 6), seed=1)
    sent = home.send(a), home.send(b)
    own = dxgemm.inner(lambda x, y: helper(x - y) * SCALE)
    assert (home.fetch(dxgemm.gemm(*sent, inner=own)) == 2 * expected("l1", a, b)).all()
    before = helper.__code__
    helper.__code__ = (lambda x: x * x).__code__
    try:
        found = home.fetch(dxgemm.gemm(*sent, inner=own))
    finally:
        helper.__code__ = before
    assert (found == 2 * expected("squared_euclidean", a, b)).all()
    own = dxgemm.inner(lambda x, y: x * SCALE - y)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(errors.EpilogueError, match=r"SCALE was 2\.0"):
        dxgemm.gemm(*sent, inner=own)


def test_operands_of_epilogues_follow_the_function(home):
    @dxgemm.epilogue
    def shifted(value, row, col, by: Scalar):
        return value + by + row

    a, b = ints((9, 6)), ints((6, 11), seed=1)
    found = home.fetch(
        dxgemm.gemm(home.send(a), home.send(b), inner=inners.l1, epilogue=shifted(0.5))
    )
    assert (found == expected("l1", a, b) + 0.5 + np.arange(9)[:, None]).all()
