"""`dxgemm.jax`: products inside jit, their gradients, and batches by vmap."""

import os
from itertools import product

import numpy as np
import pytest

from dxgemm import errors
from dxgemm.gpu.status import simulator_enabled

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests share the GPU
if simulator_enabled():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax", reason="needs jax")
if not simulator_enabled() and jax.default_backend() != "gpu":
    pytest.skip("jax was installed without its GPU plugin", allow_module_level=True)
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402

import dxgemm.jax  # noqa: E402
from dxgemm.jax import handler  # noqa: E402
from dxgemm.jax.call_frame import Array  # noqa: E402

M, N, K = (5, 6, 4) if simulator_enabled() else (130, 72, 48)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8")
TRANSPOSES = tuple(product((False, True), repeat=2))
BATCHES = ((), (3,)), ((3,), ()), ((3,), (3,))


def integers(shape, dtype="float32", seed=0):
    values = np.random.default_rng([seed, *shape]).integers(-2, 3, shape)
    return jnp.asarray(values).astype(dtype)


def operands(dtype="float32", a_batch=(), b_batch=(), transpose_a=False, transpose_b=False):
    a = integers((*a_batch, K, M) if transpose_a else (*a_batch, M, K), dtype, 1)
    b = integers((*b_batch, N, K) if transpose_b else (*b_batch, K, N), dtype, 2)
    return a, b


def turned(x, is_turned):
    return jnp.swapaxes(x, -1, -2) if is_turned else x


def exact(a, b, transpose_a=False, transpose_b=False):
    x, y = (np.asarray(v).astype(float) for v in (turned(a, transpose_a), turned(b, transpose_b)))
    return x @ y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batches", [((), ()), *BATCHES], ids=str)
@pytest.mark.parametrize("turns", TRANSPOSES, ids=str)
def test_products_in_jit(dtype, batches, turns):
    a, b = operands(dtype, *batches, *turns)
    multiply = jax.jit(dxgemm.jax.gemm, static_argnames=("transpose_a", "transpose_b"))
    found = multiply(a, b, transpose_a=turns[0], transpose_b=turns[1])
    assert found.dtype == ("int32" if dtype == "int8" else dtype)
    np.testing.assert_array_equal(np.asarray(found).astype(float), exact(a, b, *turns))


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_alpha_beta_and_c_that_is_only_read(batch):
    a, b = operands("float32", batch)
    c = integers((*batch, M, N))
    before = np.array(c)
    found = jax.jit(lambda a, b, c: dxgemm.jax.gemm(a, b, c, -2.0, 0.5))(a, b, c)
    np.testing.assert_array_equal(found, -2.0 * exact(a, b) + 0.5 * before)
    np.testing.assert_array_equal(c, before)
    np.testing.assert_array_equal(dxgemm.jax.gemm(a, b, c * jnp.nan, beta=0.0), exact(a, b))
    np.testing.assert_array_equal(dxgemm.jax.gemm(a, b, c), exact(a, b) + before)


def test_operands_of_numpy_and_without_jit():
    a, b = (np.asarray(x) for x in operands())
    np.testing.assert_array_equal(dxgemm.jax.gemm(a, b), exact(a, b))


@pytest.mark.parametrize("m, n, k", [(0, N, K), (M, 0, K), (M, N, 0)])
def test_empty_sizes(m, n, k):
    a, b, c = integers((m, k)), integers((k, n)), integers((m, n))
    found = jax.jit(lambda a, b, c: dxgemm.jax.gemm(a, b, c, beta=2.0))(a, b, c)
    np.testing.assert_array_equal(found, np.asarray(a) @ np.asarray(b) + 2 * np.asarray(c))


@pytest.mark.parametrize("batches", [((), ()), *BATCHES], ids=str)
@pytest.mark.parametrize("turns", TRANSPOSES, ids=str)
def test_gradients(batches, turns):
    a, b = operands("float64", *batches, *turns)
    c = integers((*max(batches), M, N), "float64", 3)
    weights = integers(c.shape, "float64", 4)

    def own(a, b, c):
        options = {"transpose_a": turns[0], "transpose_b": turns[1]}
        return (weights * dxgemm.jax.gemm(a, b, c, 3.0, -2.0, **options)).sum()

    def expected(a, b, c):
        return (weights * (3.0 * turned(a, turns[0]) @ turned(b, turns[1]) - 2.0 * c)).sum()

    found = jax.jit(jax.grad(own, (0, 1, 2)))(a, b, c)
    for one, other in zip(found, jax.grad(expected, (0, 1, 2))(a, b, c), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("m, n, k", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_gradients_of_empty_products(m, n, k):
    a, b = np.ones((2, m, k), "float32"), np.ones((k, n), "float32")
    found = jax.grad(lambda a, b: dxgemm.jax.gemm(a, b).sum(), (0, 1))(a, b)
    np.testing.assert_array_equal(found[0], np.full(a.shape, n, "float32"))
    np.testing.assert_array_equal(found[1], np.full(b.shape, 2 * m, "float32"))


def test_second_derivatives():
    a, b = operands("float64")

    def second(multiply):
        def cubed(a):
            return (multiply(a, b) ** 3).sum()

        return jax.jacrev(lambda a: jax.grad(cubed)(a)[0])(a)

    np.testing.assert_array_equal(second(dxgemm.jax.gemm), second(jnp.matmul))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 0)], ids=str)
@pytest.mark.parametrize("is_batch", [False, True])
def test_vmap(axes, is_batch):
    batch = (2,) if is_batch else ()
    a, b = operands("float32", batch, ())
    a, b = (x if axis is None else jnp.stack([x, 2 * x, -x], axis) for x, axis in zip((a, b), axes))
    found = jax.jit(jax.vmap(dxgemm.jax.gemm, axes))(a, b)
    np.testing.assert_array_equal(found, jax.vmap(jnp.matmul, axes)(a, b))


def test_vmap_of_vmap_whose_operands_share_nothing():
    a, b = integers((3, M, K), seed=1), integers((2, K, N), seed=2)
    c = integers((3, M, N), seed=3)

    def all_pairs(multiply):
        inner = jax.vmap(multiply, (None, 0, None))
        return jax.vmap(inner, (0, None, 0))(a, b, c)

    found = all_pairs(lambda a, b, c: dxgemm.jax.gemm(a, b, c, beta=1.0))
    np.testing.assert_array_equal(found, all_pairs(lambda a, b, c: a @ b + c))


def test_vmap_of_a_gradient():
    a, b = integers((3, M, K), "float64", 1), integers((K, N), "float64", 2)

    def of(multiply):
        return jax.vmap(jax.grad(lambda b, a: (multiply(a, b) ** 2).sum()), (None, 0))(b, a)

    np.testing.assert_array_equal(of(dxgemm.jax.gemm), of(jnp.matmul))


def test_rows_of_a_batch_invariant_product_have_the_same_bits():
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.standard_normal((M, K)).astype("float32"))
    b = jnp.asarray(rng.standard_normal((K, N)).astype("float32"))
    whole = np.asarray(dxgemm.jax.gemm(a, b, batch_invariant=True))
    for row in range(M):
        one = np.asarray(dxgemm.jax.gemm(a[row : row + 1], b, batch_invariant=True))
        assert one.tobytes() == whole[row].tobytes()


@pytest.mark.parametrize(
    "error, a, b, c, options",
    [
        (errors.ShapeError, (M, K), (K + 1, N), None, {}),
        (errors.ShapeError, (K,), (K, N), None, {}),
        (errors.ShapeError, (2, M, K), (3, K, N), None, {}),
        (errors.ShapeError, (M, K), (K, N), (M, N + 1), {"beta": 1.0}),
        (errors.DtypeError, (M, K), (K, N, "float64"), None, {}),
        (errors.DtypeError, (M, K, "int16"), (K, N, "int8"), None, {}),
        (errors.DtypeError, (M, K, "complex64"), (K, N, "complex64"), None, {}),
        (errors.DtypeError, (M, K), (K, N), (M, N, "complex128"), {"beta": 1.0}),
        (errors.DtypeError, (M, K), (K, N), (M, N, "float64"), {"beta": 1.0}),
        (errors.ScalarError, (M, K), (K, N), None, {"alpha": 1j}),
        (errors.ScalarError, (M, K), (K, N), None, {"alpha": 1e300}),
        (errors.ScalarError, (M, K, "int8"), (K, N, "int8"), None, {"alpha": 0.5}),
        (errors.PrecisionError, (M, K), (K, N), None, {"precision": "exact"}),
    ],
    ids=str,
)
def test_bad_input_is_refused_when_it_is_traced(error, a, b, c, options):
    def array(given):
        *shape, last = given
        return integers(shape, last) if isinstance(last, str) else integers(given)

    arrays = [None if given is None else array(given) for given in (a, b, c)]
    with pytest.raises(error):
        jax.eval_shape(lambda: dxgemm.jax.gemm(*arrays, **options))


def test_what_is_no_array_is_refused():
    deleted = integers((M, K)) + 0
    deleted.delete()
    for operand in (object(), deleted):
        with pytest.raises(errors.ArrayTypeError, match=r"^dxgemm\.jax\.gemm: a is"):
            dxgemm.jax.gemm(operand, integers((K, N)))


def test_an_error_in_the_handler_reaches_the_caller(monkeypatch):
    def fail(*arguments):
        raise errors.LaunchError("no such luck")

    a, b = operands()
    monkeypatch.setattr(handler, "multiply", fail)
    with pytest.raises(Exception, match="LaunchError: no such luck"):
        dxgemm.jax.gemm(a, b).block_until_ready()
    monkeypatch.undo()
    np.testing.assert_array_equal(dxgemm.jax.gemm(a, b), exact(a, b))


@pytest.mark.parametrize(
    "shapes, count",
    [
        (((M, K), (K, N), (M, N)), 1),
        (((3, M, K), (1, K, N), (3, M, N)), 1),
        (((2, 3, M, K), (1, 1, K, N), (2, 3, M, N)), 1),
        (((2, 1, M, K), (1, 3, K, N), (2, 3, M, N)), 2),
        (((2, 1, 3, M, K), (1, 4, 1, K, N), (2, 4, 3, M, N)), 8),
    ],
    ids=str,
)
def test_arrays_are_cut_into_batches(shapes, count):
    a, b, out = (Array(4096 * (i + 1), shape, "float32") for i, shape in enumerate(shapes))
    found = handler.parts({"a": a, "b": b, "out": out})
    assert len(found) == count
    assert all(
        len(array.shape) == min(len(out.shape), 3) for part in found for array in part.values()
    )
    starts = [part["out"].pointer - out.pointer for part in found]
    assert starts == [i * 4 * np.prod(out.shape) // count for i in range(count)]
