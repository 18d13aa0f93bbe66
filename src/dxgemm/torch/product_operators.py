"""The operators `gemm`, `matmul` and `gemm_grouped` of torch: fake results and gradients."""

from __future__ import annotations

from typing import Any

import torch

import dxgemm
from dxgemm import errors
from dxgemm.torch.operands import as_matrix, check_operands, list_shapes


def empty_product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, *_: Any
) -> torch.Tensor:
    """Check the operands of `gemm` and allocate its result."""
    check_operands("gemm", takes_complex=True, a=a, b=b, c=c)
    if not {a.ndim, b.ndim} <= {2, 3} or a.shape[-1] != b.shape[-2]:
        raise errors.ShapeError(
            f"gemm: {list_shapes(a=a, b=b)}; they must be (m, k) and (k, n), or batches of them."
        )
    shape = (*_batch("gemm", a, b), a.shape[-2], b.shape[-1])
    if c is not None and not _broadcasts_to(c.shape, shape):
        raise errors.ShapeError(
            f"gemm: {list_shapes(a=a, b=b, c=c)}; c must broadcast to {tuple(shape)}."
        )
    return a.new_empty(shape)


def _batch(call: str, a: torch.Tensor, b: torch.Tensor) -> torch.Size:
    """Dimensions before the last two, broadcast against each other."""
    try:
        return torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise errors.ShapeError(
            f"{call}: {list_shapes(a=a, b=b)}; but for the last two, dimensions must be equal, or "
            "1 to be broadcast."
        ) from None


def _broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, other) for size, other in pairs)


@torch.library.custom_op("dxgemm::gemm", mutates_args=())
def gemm_operator(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    batch_invariant: bool = False,
    a_triangle: str = "",
    b_triangle: str = "",
) -> torch.Tensor:
    out = empty_product(a, b, c)
    if c is None:
        beta = 0.0
    else:
        c = c.resolve_conj().expand(out.shape)
    triangular: Any = (a_triangle or None, b_triangle or None)
    if triangular == (None, None):
        triangular = None
    options = {"batch_invariant": batch_invariant, "triangular": triangular}
    dxgemm.gemm(a, b, c, alpha, beta, out=out, **options)
    return out


def _save_gemm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *product, a_triangle, b_triangle = inputs
    save_product(ctx, *product)
    ctx.triangles = a_triangle, b_triangle


def _save_factors(ctx: Any, a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Save a and b, each if the gradient of the other one is needed, and other tensors."""
    needs_a, needs_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None, *others)


def save_product(
    ctx: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    batch_invariant: bool,
    *others: torch.Tensor | None,
) -> None:
    """Save what `product_gradients` needs; other tensors are saved after a and b."""
    ctx.alpha, ctx.beta, ctx.batch_invariant = alpha, beta, batch_invariant
    ctx.shapes = a.shape, b.shape, None if c is None else c.shape
    ctx.triangles = "", ""
    ctx.is_b_transposed = b.stride(-1) != 1
    _save_factors(ctx, a, b, *others)


def _gemm_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return *product_gradients(ctx, grad), None, None, None, None, None


def product_gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of a, b and c, summed where they were broadcast."""
    a, b, *_ = ctx.saved_tensors
    a_shape, b_shape, c_shape = ctx.shapes
    needs_a, needs_b, needs_c, *_ = ctx.needs_input_grad
    grad_a = grad_b = grad_c = None
    a_triangle, b_triangle = ctx.triangles
    how = None, ctx.alpha, 0.0, ctx.batch_invariant
    if needs_a:
        grad_a = gemm_operator(grad, b.mH, *how, "", _flipped(b_triangle))
        grad_a = _within(a_triangle, grad_a.sum_to_size(a_shape))
    if needs_b:
        # In the layout of b, so that a weight that was passed as weight.T needs no copy.
        if ctx.is_b_transposed:
            grad_b = gemm_operator(grad.mT, a.conj(), *how, "", a_triangle).mT
        else:
            grad_b = gemm_operator(a.mH, grad, *how, _flipped(a_triangle), "")
        grad_b = _within(b_triangle, grad_b.sum_to_size(b_shape))
    if needs_c:
        grad_c = ctx.beta * grad.sum_to_size(c_shape)
    return grad_a, grad_b, grad_c


_FLIPPED = {"lower": "upper", "upper": "lower"}


def _flipped(triangle: str) -> str:
    """Triangle of the transposed operand."""
    kind, _, side = triangle.rpartition(" ")
    return f"{kind} {_FLIPPED.get(side, side)}".strip()


def _within(triangle: str, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of a triangular operand: 0 for what is not used of it."""
    if not triangle:
        return grad
    distance = 1 if triangle.startswith("unit") else 0
    return grad.tril(-distance) if triangle.endswith("lower") else grad.triu(distance)


gemm_operator.register_fake(empty_product)
gemm_operator.register_autograd(_gemm_backward, setup_context=_save_gemm)


def _empty_matmul(a: torch.Tensor, b: torch.Tensor, *_: Any) -> torch.Tensor:
    """Check the operands of `matmul` and allocate its result."""
    check_operands("matmul", takes_complex=True, a=a, b=b)
    if not (a.ndim and b.ndim) or a.shape[-1] != b.shape[-2:][0]:
        raise errors.ShapeError(
            f"matmul: {list_shapes(a=a, b=b)}; they must be (..., m, k) or (k,), and (..., k, n) "
            "or (k,)."
        )
    cols = b.shape[-1:] if b.ndim > 1 else ()
    return a.new_empty((*_batch("matmul", a, b), *a.shape[-2:-1], *cols))


@torch.library.custom_op("dxgemm::matmul", mutates_args=())
def matmul_operator(
    a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0, batch_invariant: bool = False
) -> torch.Tensor:
    out = result = _empty_matmul(a, b)
    if a.ndim > 2 and b.ndim < 3 and a.is_contiguous():
        # One product of all rows reads b once, where one of each matrix would read it again.
        a = as_matrix(a)
        result = out.view(len(a), *b.shape[1:])
    dxgemm.matmul(a, b, out=result, alpha=alpha, batch_invariant=batch_invariant)
    return out


def _save_matmul(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, ctx.alpha, ctx.batch_invariant = inputs
    ctx.shapes = a.shape, b.shape
    _save_factors(ctx, a, b)


def _matmul_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of a and b, summed where they were broadcast; vectors are matrices meanwhile."""
    a, b = ctx.saved_tensors
    a_shape, b_shape = ctx.shapes
    needs_a, needs_b, *_ = ctx.needs_input_grad
    if len(b_shape) == 1:
        grad, b = grad.unsqueeze(-1), None if b is None else b.unsqueeze(-1)
    if len(a_shape) == 1:
        grad, a = grad.unsqueeze(-2), None if a is None else a.unsqueeze(-2)
    grad_a = grad_b = None
    if needs_a:
        grad_a = matmul_operator(grad, b.mH, ctx.alpha, ctx.batch_invariant)
        grad_a = grad_a.sum_to_size(a_shape if len(a_shape) > 1 else (1, *a_shape))
        grad_a = grad_a.reshape(a_shape)
    if needs_b:
        if len(b_shape) < 3:  # the product itself sums over the batch
            a, grad = as_matrix(a), as_matrix(grad)
        grad_b = matmul_operator(a.mH, grad, ctx.alpha, ctx.batch_invariant)
        grad_b = grad_b.sum_to_size(b_shape if len(b_shape) > 1 else (*b_shape, 1))
        grad_b = grad_b.reshape(b_shape)
    return grad_a, grad_b, None, None


matmul_operator.register_fake(_empty_matmul)
matmul_operator.register_autograd(_matmul_backward, setup_context=_save_matmul)


def _empty_group(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Check the operands of `gemm_grouped` and allocate its result."""
    check_operands("gemm_grouped", a=a, b=b)
    dimensions = a.ndim, b.ndim
    if dimensions not in ((2, 3), (3, 2), (2, 2)) or a.shape[-1] != b.shape[-2]:
        raise errors.ShapeError(
            f"gemm_grouped: {list_shapes(a=a, b=b)}; they must be (total, k) and (groups, k, n), "
            "(groups, m, k) and (k, total), or (m, total) and (total, n)."
        )
    if offsets.device != a.device:  # one without memory would choose torch's fake of the operator
        raise errors.DeviceMismatchError(
            f"gemm_grouped: offsets are on {offsets.device}, a is on {a.device}; move them there."
        )
    groups = offsets.shape[:1] if dimensions == (2, 2) else ()
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]))


@torch.library.custom_op("dxgemm::gemm_grouped", mutates_args=())
def grouped_operator(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = _empty_group(a, b, offsets).zero_()
    dxgemm.gemm_grouped(a, b, out=out, offsets=offsets)
    return out


def _save_group(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _save_factors(ctx, *inputs)


def _group_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of a and b: what was shared out by the offsets is so again."""
    a, b, offsets = ctx.saved_tensors
    needs_a, needs_b, *_ = ctx.needs_input_grad
    grad_a = grouped_operator(grad, b.mT, offsets) if needs_a else None
    grad_b = grouped_operator(a.mT, grad, offsets) if needs_b else None
    return grad_a, grad_b, None


grouped_operator.register_fake(_empty_group)
grouped_operator.register_autograd(_group_backward, setup_context=_save_group)

# torch would copy lazy conjugates before these operators see them; kernels read them in place.
_library = torch.library.Library("dxgemm", "FRAGMENT")
for _name in ("gemm", "matmul"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Conjugate")
