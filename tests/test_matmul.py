"""`matmul` takes the shapes that `numpy.matmul` takes, and computes them in few launches."""

import numpy as np
import pytest

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.call import matmul
from dxgemm.gpu.status import simulator_enabled

SHAPES = [
    ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((2, 5, 2, 3), (3,)), ((3,), (2, 5, 3, 2)),
    ((2, 3), (4, 5, 3, 2)), ((4, 1, 2, 3), (5, 3, 2)), ((2, 3, 4, 2, 3), (2, 3, 4, 3, 1)),
    ((2, 1, 4, 2, 3), (3, 1, 3, 1)), ((1, 1, 2, 3), (1, 1, 3, 2)), ((0,), (0,)),
    ((2, 2, 0), (2, 2, 0, 3)), ((0, 4, 2, 3), (4, 3, 2)), ((3, 0, 2, 3), (3, 0, 3, 2)),
    ((2, 0, 3), (4, 1, 3, 2)),
]  # fmt: skip


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return lambda shape, dtype="float32": rng.integers(-3, 4, shape).astype(dtype)


@pytest.fixture
def launches(monkeypatch):
    """Counts the calls of gemm that a product takes."""
    counted = []
    found = matmul._launches
    monkeypatch.setattr(matmul, "_launches", lambda *args: counted.extend(found(*args)) or counted)
    return counted


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_shapes(home, values, a_shape, b_shape, dtype):
    a, b = values(a_shape, dtype), values(b_shape, dtype)
    expected = np.matmul(a.astype("float64"), b.astype("float64"))
    result = dxgemm.matmul(home.send(a), home.send(b))
    assert result.dtype.name == {"int8": "int32"}.get(dtype, dtype)
    assert result.shape == expected.shape
    if simulator_enabled():
        assert type(result) is type(expected.astype(result.dtype)[()])
    np.testing.assert_array_equal(home.fetch(result), expected)
    out = home.send(np.full(expected.shape, 77, result.dtype.name))
    assert dxgemm.matmul(home.send(a), home.send(b), out=out) is out
    np.testing.assert_array_equal(home.fetch(out), expected)


VIEWS = {
    "batch transposed": lambda x: x.swapaxes(0, 1),
    "matrices transposed": lambda x: x.swapaxes(2, 3),
    "matrices along the batch": lambda x: x.transpose(2, 1, 0, 3),
    "every second": lambda x: x[::2, ::2, ::2, ::2],
    "backwards": lambda x: x[::-1, ::-1, ::-1, ::-1],
}


@pytest.mark.parametrize("out_view", VIEWS)
@pytest.mark.parametrize("b_view", VIEWS)
@pytest.mark.parametrize("a_view", VIEWS)
def test_views(home, values, a_view, b_view, out_view):
    """Each view is of four dimensions of 4, or of 2."""
    a, b = values((4, 4, 4, 4)), values((4, 4, 4, 4))
    views = [VIEWS[a_view], VIEWS[b_view]]
    every_second = [name == "every second" for name in (a_view, b_view, out_view)]
    if any(every_second):  # then the others have half the size, too
        views = [
            view if halved else lambda x, view=view: view(x[:2, :2, :2, :2])
            for view, halved in zip(views, every_second)
        ]
    given = [home.send(a), home.send(b)]
    parent = home.send(np.full((4, 4, 4, 4), 77, "float32"))
    out_of = VIEWS[out_view]
    out = out_of(parent if every_second[2] or not any(every_second) else parent[:2, :2, :2, :2])
    dxgemm.matmul(views[0](given[0]), views[1](given[1]), out=out)
    expected = np.matmul(views[0](a), views[1](b))
    np.testing.assert_array_equal(home.fetch(out.copy()), expected)
    touched = home.fetch(parent) != 77
    assert touched.sum() <= expected.size
    for sent, array in zip(given, (a, b)):
        np.testing.assert_array_equal(home.fetch(sent), array)


def test_launches(home, values, launches):
    """Contiguous batches take one launch; the dimension that lies unevenly is looped over."""
    a, b = values((2, 3, 5, 2, 4)), values((2, 3, 5, 4, 2))
    for a_view, b_view, count in (
        (a, b, 1),
        (a, b[0, 0, 0], 1),
        (a, b[:1, :1, :1], 1),
        (a, b[:, :, :1], 5),  # six matrices a launch
        (a[:, :2], b[:, :2], 2),
        (a[:, :, :4], b[:, :, :4], 4),
        (a[0, 0, 0], b, 1),
        (a[0, 0], b, 5),
        (a[0, :, :1], b, 6),
        (a[:0], b[:0], 1),
    ):
        launches.clear()
        sent = home.send(a_view), home.send(b_view)
        if simulator_enabled():
            sent = a_view, b_view  # sent arrays are contiguous
        result = dxgemm.matmul(*sent)
        np.testing.assert_array_equal(home.fetch(result), np.matmul(a_view, b_view))
        if simulator_enabled():
            assert len(launches) == count, (a_view.shape, b_view.shape)


FUZZED, LONGEST = (40, 4) if simulator_enabled() else (300, 40)
FUSED = 0.6 if simulator_enabled() else 0.1  # most of them in kernels of their own


def shapes_of(rng):
    """Shapes of a and b, of which either may be a vector, with batches that broadcast."""
    m, n, k = rng.integers(1, LONGEST + 1, 3)
    batch = rng.integers(1, 4, rng.integers(0, 4))

    def part(*sizes):
        """Sizes after some of the batch's last dimensions, of which some are 1."""
        kept = batch[rng.integers(0, len(batch) + 1) :]
        kept = np.where(rng.random(len(kept)) < 0.3, 1, kept)
        return tuple(map(int, (*kept, *sizes)))

    vector = rng.random(2) < 0.2
    return ((int(k),) if vector[0] else part(m, k)), ((int(k),) if vector[1] else part(k, n))


def array_of(rng, home, shape):
    """Small integers, and a copy of them with dimensions in any order, some of them reversed."""
    values = rng.integers(-3, 4, shape).astype("float32")
    order = rng.permutation(len(shape)) if rng.random() < 0.5 else np.arange(len(shape))
    turned = tuple(slice(None, None, int(rng.choice([1, 1, -1]))) for _ in shape)
    sent = home.send(np.array(values[(*turned, ...)].transpose(order), order="C"))
    return values, sent.transpose(np.argsort(order))[(*turned, ...)]


def shortened(rng, shape, own):
    """A shape whose dimensions before the last `own` broadcast to those of `shape`."""
    lead, last = shape[: len(shape) - own], shape[len(shape) - own :]
    lead = [int(size * rng.integers(0, 2)) or 1 if size else 0 for size in lead]
    return (*lead[rng.integers(0, len(lead) + 1) :], *last)


@pytest.mark.parametrize("seed", range(FUZZED))
def test_random_products_and_epilogues(home, seed):
    rng = np.random.default_rng(seed)
    (a, given_a), (b, given_b) = (array_of(rng, home, shape) for shape in shapes_of(rng))
    alpha = float(rng.choice([1.0, -2.0, 0.5]))
    expected = alpha * np.matmul(a, b)
    rows, cols = (1 if x.ndim == 1 else x.shape[axis] for x, axis in ((a, -2), (b, -1)))
    missing = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    whole = np.expand_dims(expected, missing)  # (..., rows, cols)
    chain = None
    if rng.random() < FUSED:
        batch = whole.shape[:-2]
        vector, given_vector = array_of(rng, home, shortened(rng, (*batch, cols), 1))
        column, given_column = array_of(rng, home, shortened(rng, (*batch, rows), 1))
        own = expected.ndim - len(batch)
        matrix, given_matrix = array_of(rng, home, shortened(rng, expected.shape, own))
        whole = whole + vector[..., None, :]
        kept, whole = whole, whole + column[..., :, None]
        expected = whole.squeeze(missing) + matrix
        output = home.send(np.full(expected.shape, np.nan, "float32"))
        chain = epilogues.bias(given_vector) | epilogues.keep(kept=output)
        chain |= epilogues.bias_column(given_column) | epilogues.residual(given_matrix)
    _, out = array_of(rng, home, expected.shape)
    result = dxgemm.matmul(
        given_a, given_b, out=out if seed % 2 else None, alpha=alpha, epilogue=chain
    )
    assert result.shape == expected.shape
    np.testing.assert_array_equal(home.fetch(result), expected)
    if chain is not None:
        np.testing.assert_array_equal(home.fetch(output), kept.squeeze(missing))
    for given, array in ((given_a, a), (given_b, b)):
        np.testing.assert_array_equal(home.fetch(given), array)


def test_pairs_of_columns(home, values):
    a, b = values((2, 2, 3, 4)), values((2, 2, 4, 6))
    swapped = b.swapaxes(0, 1)
    for left, right in ((a, b), (a, swapped), (a[0, 0, 0], b)):
        product = np.matmul(left, right).astype("float64")
        expected = product[..., ::2] / (1 + np.exp(-product[..., ::2])) * product[..., 1::2]
        result = dxgemm.matmul(home.send(left), home.send(right), epilogue=epilogues.swiglu)
        np.testing.assert_allclose(home.fetch(result), expected, rtol=1e-5, atol=1e-5)


def test_epilogues_that_do_not_fit_are_refused_before_anything_is_written(home, values):
    a, b = home.send(values((2, 3, 2, 4))), home.send(values((2, 3, 4, 4)))
    a, b = a.swapaxes(0, 1), b.swapaxes(0, 1)[:, ::-1]
    parent = home.send(np.full((3, 2, 2, 4), 77, "float32"))
    for chain, error, words in (
        (epilogues.bias(a[:, 0, 0, :]), errors.ShapeError, r"bias: vector is \(3, 4\), but .*2\)"),
        (epilogues.bias(a[0, 0, 0, :3]), errors.ShapeError, "a row vector"),
        (epilogues.bias(a[0, 0, 0, :1].reshape(())), errors.ShapeError, r"vector is \(\)"),
        (epilogues.residual(parent), errors.OverlapError, "out shares memory with epilogue resid"),
        (epilogues.keep(kept=parent), errors.OverlapError, "keep: kept shares memory with out"),
        (epilogues.keep(kept=a[:1]), errors.ShapeError, "must be equal[.]"),
        (reductions.sum(axis=1), errors.UnsupportedProblemError, "views of two or three"),
    ):
        with pytest.raises(error, match=words):
            dxgemm.matmul(a, b, out=parent, epilogue=chain)
        assert (home.fetch(parent) == 77).all()
    small = [home.send(values(shape, "int8")) for shape in ((3,), (3, 4))]
    with pytest.raises(errors.MissingOperandError, match="pass out"):
        dxgemm.matmul(*small, epilogue=epilogues.relu)
    out = home.send(np.zeros(4, "float16"))
    dxgemm.matmul(*small, epilogue=epilogues.relu, out=out)
    expected = np.maximum(np.matmul(*map(home.fetch, small), dtype="int32"), 0)
    np.testing.assert_array_equal(home.fetch(out), expected)


@pytest.mark.skipif(not simulator_enabled(), reason="CuPy has no such strides")
def test_strides_between_elements_are_refused_before_anything_is_written():
    """Only the last of the launches would begin between two elements."""
    records = np.zeros(2, np.dtype([("matrices", "f4", (3, 2, 2)), ("rest", "i2")]))
    out = np.full((2, 3, 2, 2), 77, "float32")
    with pytest.raises(errors.LayoutError, match=r"matmul: a has strides \(50, 16, 8, 4\)"):
        dxgemm.matmul(records["matrices"], np.ones((2, 2), "float32"), out=out)
    assert (out == 77).all()


def test_arguments_of_gemm(home, values):
    a, b = home.send(values((2, 2, 3, 8))), home.send(values((2, 2, 8, 4)))
    expected = np.matmul(home.fetch(a), home.fetch(b))
    np.testing.assert_array_equal(home.fetch(dxgemm.matmul(a, b, batch_invariant=True)), expected)
    np.testing.assert_array_equal(home.fetch(dxgemm.matmul(a, b, implementation="naive")), expected)
    with pytest.raises(errors.PrecisionError, match="bogus"):
        dxgemm.matmul(a, b, precision="bogus")
    with pytest.raises(errors.UnknownImplementationError, match="bogus"):
        dxgemm.matmul(a, b, implementation="bogus")


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "words"),
    [
        ((), (3,), "a is a number"),
        ((3,), (), "b is a number"),
        ((3,), (4,), r"a is \(3,\), b is \(4,\); a.shape\[0\] must equal b.shape\[0\]"),
        ((2, 3), (4,), r"a.shape\[1\] must equal b.shape\[0\]"),
        ((5, 2, 2, 3), (4, 2), r"a.shape\[3\] must equal b.shape\[0\]"),
        ((5, 2, 2, 3), (4, 3, 2), "batches differ"),
        ((2, 3), (4, 5), "inner dimensions differ"),
    ],
)
def test_bad_shapes(home, values, a_shape, b_shape, words):
    with pytest.raises(errors.ShapeError, match=words):
        dxgemm.matmul(home.send(values(a_shape)), home.send(values(b_shape)))


def test_bad_results_are_refused_before_anything_is_written(home, values):
    a, b = home.send(values((2, 3, 2, 4))), home.send(values((2, 3, 4, 4)))
    parent = home.send(np.full(200, 77, "float32"))
    strided = parent[:96].reshape(2, 3, 4, 4)
    for operands, out, error, words in (
        (
            (a, b),
            parent[:47],
            errors.ShapeError,
            r"out is \(47,\), but the result is \(2, 3, 2, 4\)",
        ),
        ((a, b), a.astype("float64"), errors.DtypeError, "dtypes differ"),
        ((a.swapaxes(0, 1), b.swapaxes(0, 1)[::-1]), None, None, ""),
        ((strided[:, :, :2], b), strided[:, :, 2:], None, ""),  # between the rows of a
        ((strided[:, :, :2], b), strided[:, :, 1:3], errors.OverlapError, "shares memory with a"),
    ):
        if error is None:
            dxgemm.matmul(*operands, out=out)
            parent[:] = 77
            continue
        with pytest.raises(error, match=words):
            dxgemm.matmul(*operands, out=out)
        assert (home.fetch(parent) == 77).all()
    with pytest.raises(errors.ArrayTypeError, match=r"a is \[1.0\], not an array"):
        dxgemm.matmul([1.0], home.send(values((1,))))


@pytest.mark.gpu
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_torch(values, a_shape, b_shape):
    torch = pytest.importorskip("torch")
    a, b = (torch.from_numpy(values(shape)).cuda() for shape in (a_shape, b_shape))
    result = dxgemm.matmul(a, b)
    expected = torch.matmul(a, b)
    assert result.shape == expected.shape and result.dtype is expected.dtype
    assert torch.equal(result, expected)


@pytest.mark.gpu
def test_arrays_of_numba(cupy):
    from numba import cuda

    vector, out = cuda.to_device(np.ones(3, "float32")), cupy.empty((), "float32")
    assert dxgemm.matmul(vector, vector, out=out) is out and out == 3
    matrix = cuda.to_device(np.ones((3, 3), "float32"))
    assert (dxgemm.matmul(matrix, matrix).copy_to_host() == 3).all()


def test_vectors_of_a_foreign_byte_order_are_refused(home):
    foreign = np.ones(4, ">f4")
    with pytest.raises(errors.DtypeError, match=r"^matmul: a has dtype float32 in foreign"):
        dxgemm.matmul(foreign, np.ones((4, 3), np.float32))
