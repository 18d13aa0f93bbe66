"""`dxgemm.jax.gemm`, its gradient, and what it checks when it is traced."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dxgemm.call.factors import kernel_factors, real_number
from dxgemm.errors import ArrayTypeError, DtypeError, ShapeError, named_in_errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.jax.call_frame import Array
from dxgemm.jax.handler import TARGET, Options, register, route_of
from dxgemm.problem.arguments import check_flag
from dxgemm.problem.define import check_precision
from dxgemm.problem.dtypes import COMPLEX_PARTS, product_dtype, result_dtypes
from dxgemm.runtime.arrays import HOST
from dxgemm.runtime.exports import refuse_deleted


@named_in_errors("dxgemm.jax.gemm")
def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    precision: str | None = None,
    batch_invariant: bool = False,
) -> jax.Array:
    """alpha * A @ B + beta * C as a new array, inside `jax.jit` and outside.

    Args:
        a: (m, k) or (batch, m, k), float32, float64, float16, bfloat16 or int8.
        b: (k, n) or (batch, k, n), dtype of a. A matrix serves all of a batch.
        c: (m, n) or (batch, m, n), dtype of the result; None for none. It is only read, and with
            beta 1, the default, added as it is; `dxgemm.gemm` writes its c, so beta is 0 there.
        alpha, beta: Python numbers, part of what is compiled. beta is ignored if there is no c.
        transpose_a, transpose_b: True for an a of (k, m) or a b of (n, k): A or B is its transpose,
            which is read in place. XLA copies a transpose that it is asked for.
        precision, batch_invariant: as `dxgemm.gemm` takes them.

    Returns:
        (m, n) or (batch, m, n), dtype of a; int32 for int8.

    Raises:
        ArrayTypeError: an operand is no array of JAX or NumPy, or was deleted.
        DtypeError: an operand is complex.
        ShapeError: shapes do not fit together.
        DxgemmError: any error of `dxgemm.gemm`, when the function is traced.

    Notes:
        Differentiable in reverse mode, any number of times, by products of dxgemm in the same
        precision. `jax.vmap` makes batches; what is not mapped is not copied. The kernel is chosen
        and built when the function is traced, for the first GPU.
    """
    operands = {"a": a, "b": b, **({} if c is None else {"c": c})}
    arrays = {name: _array(name, operand) for name, operand in operands.items()}
    if precision is not None:
        check_precision(precision, str(arrays["a"].dtype))
    options = Options(
        real_number("alpha", alpha), 0.0 if c is None else real_number("beta", beta),
        check_flag("transpose_a", transpose_a), check_flag("transpose_b", transpose_b), precision,
        check_flag("batch_invariant", batch_invariant),
    )  # fmt: skip
    is_batch = any(array.ndim == 3 for array in arrays.values())
    if is_batch:  # a matrix for all has a batch of 1
        arrays = {n: x if x.ndim == 3 else x[None] for n, x in arrays.items()}
    result: jax.Array = _product(options, tuple(arrays.values()))
    return result


def _array(name: str, operand: Any) -> Any:
    refuse_deleted(name, operand)
    try:
        array = jnp.asarray(operand)
    except Exception as error:
        raise ArrayTypeError(f"gemm: {name} is no array: {error}") from None
    if str(array.dtype) in COMPLEX_PARTS:
        raise DtypeError(f"gemm: {name} is {array.dtype}; complex arrays are for dxgemm.gemm.")
    if array.ndim not in (2, 3):
        raise ShapeError(f"gemm: {name} is {array.shape}; pass a matrix or a batch of matrices.")
    return array


def _result(arrays: dict[str, Any], options: Options) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the result; operands have as many dimensions, or a batch of 1."""
    a, b = arrays["a"], arrays["b"]
    m = a.shape[-1 if options.transpose_a else -2]
    n = b.shape[-2 if options.transpose_b else -1]
    batches = {array.shape[0] for array in arrays.values()} - {1} if a.ndim == 3 else set()
    if len(batches) > 1:
        shapes = ", ".join(f"{name} is {array.shape}" for name, array in arrays.items())
        raise ShapeError(f"gemm: batches differ: {shapes}.")
    batch = ((*batches, 1)[0],) if a.ndim == 3 else ()
    dtype = product_dtype(str(a.dtype), str(b.dtype)) or str(a.dtype)
    return (*batch, m, n), result_dtypes(dtype)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(options: Options, operands: tuple[Any, ...]) -> Any:
    """The product of operands that have as many dimensions, as XLA's call of dxgemm."""
    register()
    arrays = dict(zip("abc", operands))
    shape, dtype = _result(arrays, options)
    described = {n: Array(0, tuple(x.shape), str(x.dtype)) for n, x in arrays.items()}
    described["out"] = Array(0, shape, dtype)
    route = route_of(described, options, HOST if simulator_enabled() else 0)
    kernel_factors(route, options.alpha, options.beta)  # refuses what does not fit, as the route
    result = jax.ShapeDtypeStruct(shape, dtype)
    call = jax.ffi.ffi_call(TARGET, result, vmap_method="expand_dims")
    return call(*operands, options=options.text)


def _forward(options: Options, operands: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    return _product(options, operands), operands


def _backward(options: Options, operands: tuple[Any, ...], grad: Any) -> tuple[tuple[Any, ...]]:
    """Gradients of the operands: with A and B as they are multiplied, G B.T, A.T G and beta G."""
    a, b, *addend = operands
    a_turned, b_turned = options.transpose_a, options.transpose_b
    plain = options._replace(beta=0.0, transpose_a=False, transpose_b=False)
    if a_turned:
        grad_a = _product(plain._replace(transpose_a=b_turned, transpose_b=True), (b, grad))
    else:
        grad_a = _product(plain._replace(transpose_b=not b_turned), (grad, b))
    rows, grad_rows = a, grad
    if a.ndim == 3 and len(b) == 1 < len(a) and not (a_turned or b_turned):
        # One product of all rows adds up what the matrices give.
        # The number of rows, as -1 cannot be found of no columns.
        rows, grad_rows = (x.reshape(1, len(x) * x.shape[1], x.shape[2]) for x in (a, grad))
    if b_turned:
        grad_b = _product(plain._replace(transpose_a=True, transpose_b=a_turned), (grad_rows, rows))
    else:
        grad_b = _product(plain._replace(transpose_a=not a_turned), (rows, grad_rows))
    grads = [grad_a, grad_b, *(jnp.asarray(options.beta, grad.dtype) * grad for _ in addend)]
    return (tuple(_summed(each, own) for each, own in zip(grads, operands, strict=True)),)


def _summed(grad: Any, operand: Any) -> Any:
    """The gradient of an operand; of one that serves all of a batch, the sum over the batch."""
    return grad if grad.shape == operand.shape else grad.sum(0, keepdims=True, dtype=grad.dtype)


_product.defvjp(_forward, _backward)
