"""The operator `inner` of torch: products by an inner function, and the gradients of two of them.

An operator takes no objects: the function is passed as the key by which it is found.

Both gradients are products too. That of L1 sums gradients of the result times the sign of a
difference, for which an element of c begins each total. That of min-plus belongs to the places
where the smallest sums were found, which the backward pass finds by a product whose totals count.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import dxgemm
from dxgemm import errors, inners
from dxgemm.epilogues import Inner
from dxgemm.epilogues.function import find_epilogue
from dxgemm.torch.derivatives import keep_for_graphs
from dxgemm.torch.product_operators import empty_product

MOST_PLACES = 2**24  # that a float32 counts
DIFFERENTIABLE = inners.l1.key, inners.min_plus.key


def _join(total, other):  # type: ignore[no-untyped-def]
    return total[0] + other[0], total[1]


def _sum_of(total):  # type: ignore[no-untyped-def]
    return total[0]


@dxgemm.inner(add=_join, identity=(0.0, None), finish=_sum_of)
def _slope_of_a(total, grad, y):  # type: ignore[no-untyped-def]
    """Sum of grad times the sign of x - y, where x is the element of c."""
    slope, x = total
    rise = grad if x > y else 0.0
    fall = grad if x < y else 0.0
    return slope + (rise - fall), x


@dxgemm.inner(add=_join, identity=(0.0, None), finish=_sum_of)
def _slope_of_b(total, x, grad):  # type: ignore[no-untyped-def]
    """Sum of grad times the sign of y - x, where y is the element of c."""
    slope, y = total
    rise = grad if y > x else 0.0
    fall = grad if y < x else 0.0
    return slope + (rise - fall), y


def _first(total, other):  # type: ignore[no-untyped-def]
    return (other[0], total[2] + other[1], total[2] + other[2]) if other[0] < total[0] else (
        total[0], total[1], total[2] + other[2])  # fmt: skip


def _place_of(total):  # type: ignore[no-untyped-def]
    return total[1]


@dxgemm.inner(add=_first, identity=(math.inf, 0.0, 0.0), finish=_place_of)
def _where_smallest(total, x, y):  # type: ignore[no-untyped-def]
    """Index along k of the first smallest x + y; of the last NaN, if there is one."""
    smallest, where, place = total
    value = x + y
    is_smaller = value < smallest or value != value
    smallest = value if is_smaller else smallest
    where = place if is_smaller else where
    return smallest, where, place + 1.0


def compute_inner(a: torch.Tensor, b: torch.Tensor, inner: Any) -> torch.Tensor:
    """Product by an inner function, a new tensor.

    Raises:
        EpilogueError: inner is no inner function.
        UnsupportedProblemError: a gradient is needed, and the function has none.
    """
    if not isinstance(inner, Inner):
        raise errors.EpilogueError(
            f"gemm: inner is {errors.shown(inner)}; pass one of dxgemm.inners, or a function "
            "decorated with @dxgemm.inner."
        )
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        _check_differentiable(inner.key, inner.name, a)
    if torch.compiler.is_compiling():
        keep_for_graphs(inner.key)
    return inner_operator(a, b, None, inner.key)


def _check_differentiable(key: str, name: str, a: torch.Tensor) -> None:
    if key not in DIFFERENTIABLE or a.is_complex():
        raise errors.UnsupportedProblemError(
            f"gemm: {name} has no gradient of {a.dtype}, as l1 and min_plus of real numbers have; "
            "detach the operands, or call it under torch.no_grad()."
        )


@torch.library.custom_op("dxgemm::inner", mutates_args=())
def inner_operator(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, key: str, is_wide: bool = False
) -> torch.Tensor:
    """Compute it; c begins its totals. With is_wide, results of half precision are float32."""
    out = _empty_inner(a, b, c, key, is_wide)
    inner = find_epilogue(key)
    dxgemm.gemm(a, b, c, beta=0.0 if c is None else 1.0, out=out, inner=inner)
    return out


@inner_operator.register_fake
def _empty_inner(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, key: str, is_wide: bool = False
) -> torch.Tensor:
    out = empty_product(a, b, c)
    is_half = out.dtype in (torch.float16, torch.bfloat16)
    return out.to(torch.float32) if is_wide and is_half else out


def _save_inner(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, c, key, _ = inputs
    if any(x is not None and x.requires_grad for x in (a, b, c)):
        _check_differentiable(key, find_epilogue(key).name, a)
    ctx.key = key
    ctx.save_for_backward(a, b)


def _inner_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    gradients = _l1_gradients if ctx.key == inners.l1.key else _min_plus_gradients
    grads = gradients(a, b, grad, *ctx.needs_input_grad[:2])
    return *(x if x is None else x.sum_to_size(y.shape) for x, y in zip(grads, (a, b))), *[None] * 3


def _l1_gradients(
    a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor, needs_a: bool, needs_b: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    lead = grad.shape[:-2]
    grad_a = grad_b = None
    if needs_a:
        point = a.expand(*lead, *a.shape[-2:])
        grad_a = inner_operator(grad, b.mT, point, _slope_of_a.key)
    if needs_b:
        point = b.expand(*lead, *b.shape[-2:])
        grad_b = inner_operator(a.mT, grad, point, _slope_of_b.key)
    return grad_a, grad_b


def _min_plus_gradients(
    a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor, needs_a: bool, needs_b: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    (m, n), k, lead = grad.shape[-2:], a.shape[-1], grad.shape[:-2]
    if k > MOST_PLACES and a.dtype != torch.float64:
        raise errors.UnsupportedProblemError(
            f"gemm: min_plus has gradients up to k = {MOST_PLACES}, not {k}, unless in float64."
        )
    grad_a, grad_b = (
        grad.new_zeros(*lead, *shape) if needed else None
        for needed, shape in ((needs_a, (m, k)), (needs_b, (k, n)))
    )
    if k > 0:
        where = inner_operator(a, b, None, _where_smallest.key, is_wide=True).long()
        for target, dim in ((grad_a, -1), (grad_b, -2)):
            if target is not None:
                target.scatter_add_(dim, where, grad)
    return grad_a, grad_b


inner_operator.register_autograd(_inner_backward, setup_context=_save_inner)
