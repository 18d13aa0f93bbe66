"""The operators `linear` and `linear_keep` of torch, which fuse a bias and an activation."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import torch

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.torch.activations import ACTIVATIONS, find_activation
from dxgemm.torch.operands import as_matrix, check_operands, list_shapes
from dxgemm.torch.product_operators import gemm_operator


def _empty_linear(x: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
    """Check the operands of `linear` and allocate its result."""
    bias, activation, *_ = others
    if activation is not None:
        find_activation(activation)
    check_linear(x, weight, bias)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def check_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Raise unless the operands of `linear` fit each other."""
    check_operands("linear", x=x, weight=weight, bias=bias)
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        listed = list_shapes(x=x, weight=weight)
        raise errors.ShapeError(f"linear: {listed}; x must be (..., k) and weight (n, k).")
    n = weight.shape[0]
    if bias is not None and bias.shape != (n,):
        listed = list_shapes(x=x, weight=weight, bias=bias)
        raise errors.ShapeError(f"linear: {listed}; bias must be ({n},).")


def _compute_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    batch_invariant: bool,
    out: torch.Tensor,
    pre: torch.Tensor | None = None,
) -> None:
    """out = activation(pre), pre = x @ weight.T + bias; pre is stored if it is given."""
    stages: list[Any] = []
    if bias is not None:
        stages.append(epilogues.bias(bias))
    if pre is not None:
        stages.append(epilogues.keep(kept=as_matrix(pre)))
    if activation is not None:
        stages.append(ACTIVATIONS[activation].epilogue)
    epilogue = reduce(operator.or_, stages) if stages else None
    dxgemm.gemm(
        as_matrix(x),
        weight.T,
        out=as_matrix(out),
        epilogue=epilogue,
        batch_invariant=batch_invariant,
    )


@torch.library.custom_op("dxgemm::linear", mutates_args=())
def linear_operator(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    out = _empty_linear(x, weight, bias, activation)
    _compute_linear(x, weight, bias, activation, batch_invariant, out)
    return out


@torch.library.custom_op("dxgemm::linear_keep", mutates_args=())
def linear_keep_operator(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the result, and return the activation's input beside it."""
    out, pre = _empty_linear_keep(x, weight, bias, activation)
    _compute_linear(x, weight, bias, activation, batch_invariant, out, pre)
    return out, pre


@linear_keep_operator.register_fake
def _empty_linear_keep(*operands: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out = _empty_linear(*operands)
    return out, torch.empty_like(out)


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save the tensors that `_linear_backward` needs, for both operators."""
    x, weight, _, activation, ctx.batch_invariant = inputs
    out, pre = output if isinstance(output, tuple) else (output, None)
    kept = None
    if activation is not None:
        kept = out if ACTIVATIONS[activation].reads_output else pre
        if kept is None:
            raise errors.UnsupportedProblemError(
                f"dxgemm::linear does not keep what the derivative of {activation} needs; call "
                "dxgemm.torch.linear, or dxgemm::linear_keep."
            )
    needs_x, needs_weight, *_ = ctx.needs_input_grad
    ctx.activation = activation
    ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None, kept)
    ctx.set_materialize_grads(False)


def _linear_backward(
    ctx: Any, grad: torch.Tensor | None, grad_pre: torch.Tensor | None = None
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of x, weight and bias.

    `grad_pre`, the gradient of the activation's input, is passed for second derivatives only.
    """
    x, weight, kept = ctx.saved_tensors
    if grad is not None and ctx.activation is not None:
        grad = ACTIVATIONS[ctx.activation].backward(grad, kept)
    grads = [given for given in (grad, grad_pre) if given is not None]
    if not grads:
        return None, None, None, None, None
    grad = reduce(operator.add, grads)
    needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    rows = as_matrix(grad)
    grad_x = grad_weight = grad_bias = None
    if needs_x:
        grad_x = gemm_operator(rows, weight, None, 1.0, 0.0, ctx.batch_invariant)
        grad_x = grad_x.reshape(*grad.shape[:-1], weight.shape[1])
    if needs_weight:
        grad_weight = gemm_operator(rows.T, as_matrix(x), None, 1.0, 0.0, ctx.batch_invariant)
    if needs_bias:
        grad_bias = rows.sum(0)
    return grad_x, grad_weight, grad_bias, None, None


linear_operator.register_fake(_empty_linear)
linear_operator.register_autograd(_linear_backward, setup_context=_save_linear)
linear_keep_operator.register_autograd(_linear_backward, setup_context=_save_linear)
