"""`matmul` takes the shapes that `numpy.matmul` takes, and computes them in few launches."""

from __future__ import annotations

import numpy as np
import pytest

import dxgemm
from dxgemm import errors
from dxgemm.call import matmul
from dxgemm.gpu.status import simulator_enabled

SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((2, 5, 2, 3), (3,)),
    ((3,), (2, 5, 3, 2)),
    ((2, 3), (4, 5, 3, 2)),
    ((4, 1, 2, 3), (5, 3, 2)),
    ((2, 3, 4, 2, 3), (2, 3, 4, 3, 1)),
    ((2, 1, 4, 2, 3), (3, 1, 3, 1)),
    ((1, 1, 2, 3), (1, 1, 3, 2)),
    ((0,), (0,)),
    ((2, 2, 0), (2, 2, 0, 3)),
    ((0, 4, 2, 3), (4, 3, 2)),
    ((3, 0, 2, 3), (3, 0, 3, 2)),
    ((2, 0, 3), (4, 1, 3, 2)),
]


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


def test_arguments_of_gemm(home, values):
    a, b = home.send(values((2, 2, 3, 8))), home.send(values((2, 2, 8, 4)))
    expected = np.matmul(home.fetch(a), home.fetch(b))
    np.testing.assert_array_equal(home.fetch(dxgemm.matmul(a, b, batch_invariant=True)), expected)
    with pytest.raises(errors.PrecisionError, match="bogus"):
        dxgemm.matmul(a, b, precision="bogus")


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
    with pytest.raises(errors.ArrayTypeError, match="a is a list"):
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
def test_arrays_that_cannot_be_viewed(cupy):
    from numba import cuda

    vector = cuda.to_device(np.ones(3, "float32"))
    with pytest.raises(errors.ArrayTypeError, match="cannot be viewed as matrices"):
        dxgemm.matmul(vector, vector, out=cupy.empty((), "float32"))
    matrix = cuda.to_device(np.ones((3, 3), "float32"))
    assert (dxgemm.matmul(matrix, matrix).copy_to_host() == 3).all()
