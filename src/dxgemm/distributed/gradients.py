"""Gradients of sharded products: all-gather and reduce-scatter are each other's backward pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

import dxgemm
from dxgemm.distributed.calls import Call
from dxgemm.distributed.products import compute
from dxgemm.distributed.schedule import GATHER, PLAIN, SCATTER


def compute_with_gradients(group: Any, call: Call) -> torch.Tensor:
    """Compute a product, as a node of autograd's graph if a gradient is needed."""
    if not any(call.needs[:2]):
        return compute(group, call).out
    return _Sharded.apply(call.a, call.b, group, call)


class _Sharded(torch.autograd.Function):
    """Sharded product, whose gradients are those of the sum of all ranks' losses."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, group: Any, call: Call) -> torch.Tensor:
        needs_a, needs_b, _ = call.needs
        out, gathered, ctx.rows = compute(group, call, keeps_gathered=needs_b)
        left = gathered if call.operation == GATHER else a
        ctx.save_for_backward(left if needs_b else None, b if needs_a else None)
        ctx.operation, ctx.method, ctx.timeout_s = call.operation, call.method, call.timeout_s
        ctx.group = dist.group.WORLD if group is None else group
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        left, b = ctx.saved_tensors
        whole, grad_a, grad_b = grad, None, None
        reverse = SCATTER if ctx.operation == GATHER else GATHER
        if b is not None:
            call = Call(reverse, grad, b.mH, ctx.rows, method=ctx.method, timeout_s=ctx.timeout_s)
            grad_a, gathered, _ = compute(ctx.group, call, left is not None)
            whole = grad if gathered is None else gathered
        elif reverse == GATHER:
            none = grad.new_empty((grad.shape[1], 0))
            call = Call(GATHER, grad, none, ctx.rows, method=PLAIN, timeout_s=ctx.timeout_s)
            whole = compute(ctx.group, call, keeps_gathered=True).gathered
        if left is not None:
            grad_b = dxgemm.gemm(left.mH, whole)
        return grad_a, grad_b, None, None
