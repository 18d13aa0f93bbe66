"""Layers whose products are of float8: operands with a scale per row, gradients of either dtype."""

from __future__ import annotations

from typing import Any

import torch

from dxgemm import errors
from dxgemm.call.quantise import quantise_rows_into
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.operands import FLOAT8_LARGEST, LEAST_LARGEST
from dxgemm.torch.linear_operators import check_linear
from dxgemm.torch.operands import as_matrix, check_dtype, check_tensor, named_in_errors
from dxgemm.torch.product_operators import gemm_operator
from dxgemm.torch.scaled_operators import FLOAT8, scaled_operator

GRADIENTS = (torch.bfloat16, torch.float8_e5m2)


@named_in_errors("quantise_rows")
def quantise_rows(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Float8 elements of x, each row divided by its scale; and the scales.

    Args:
        x: (..., k), float32, float16 or bfloat16.
        dtype: float8_e4m3fn or float8_e5m2.

    Returns:
        (..., k) of the dtype, and (..., 1) in float32, as `dxgemm.reductions.quantise_rows` makes
        them of a product. One kernel on the GPU. There is no gradient.

    Raises:
        ArrayTypeError, DtypeError, ShapeError: x is no tensor, or of another dtype, or a number; or
            dtype is none of float8.
    """
    check_tensor("x", x)
    check_dtype("x", x.dtype, (torch.float32, torch.float16, torch.bfloat16))
    check_dtype("dtype", dtype, FLOAT8)
    if x.ndim == 0:
        raise errors.ShapeError("x is a number; pass a tensor with rows.")
    values, scales = quantise_operator(as_matrix(x), dtype)
    return values.reshape(x.shape), scales.reshape(*x.shape[:-1], 1)


@torch.library.custom_op("dxgemm::quantise_rows", mutates_args=())
def quantise_operator(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    values, scales = _empty_quantised(x, dtype)
    if x.is_cuda or simulator_enabled():
        # Read down its columns, a matrix would be read a sector for each element.
        quantise_rows_into(x if x.stride(-1) == 1 else x.contiguous(), values, scales)
    else:
        most = FLOAT8_LARGEST[str(dtype).removeprefix("torch.")]
        largest = x.abs().amax(-1, keepdim=True) if x.numel() else torch.zeros_like(scales)
        largest = largest.float().clamp(min=LEAST_LARGEST)
        scales.copy_(largest / most)
        values.copy_((x.float() * (most / largest)).clamp(-most, most))
    return values, scales


@quantise_operator.register_fake
def _empty_quantised(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    scales = x.new_empty((x.shape[0], 1), dtype=torch.float32)
    return torch.empty(x.shape, dtype=dtype, device=x.device), scales


def _product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, dtypes: tuple[torch.dtype, ...]
) -> torch.Tensor:
    """a @ b.T + bias by float8: dtypes are those of a and b in it, and of the result."""
    a_dtype, b_dtype, out_dtype = dtypes
    left, scale_a = quantise_rows(a, a_dtype)
    right, scale_b = quantise_rows(b, b_dtype)
    return scaled_operator(
        "scaled_mm", left, right.mT, scale_a, scale_b.mT, None, bias, None, out_dtype, False
    )


class _Float8Linear(torch.autograd.Function):
    """The product and its gradients; operands are kept in their own dtype."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
        gradients: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.gradients = gradients
        eights = torch.float8_e4m3fn, torch.float8_e4m3fn
        return _product(x, weight, bias, (*eights, x.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = None
        if ctx.gradients == torch.bfloat16:
            narrow = grad.bfloat16()
            if needs_x:
                grad_x = gemm_operator(narrow, weight.bfloat16(), None, 1.0, 0.0).to(x.dtype)
            if needs_weight:
                grad_weight = gemm_operator(narrow.T, x.bfloat16(), None, 1.0, 0.0).to(x.dtype)
        else:
            dtypes = ctx.gradients, torch.float8_e4m3fn, x.dtype
            if needs_x:
                grad_x = _product(grad, weight.T, None, dtypes)
            if needs_weight:
                grad_weight = _product(grad.T, x.T, None, dtypes)
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


@named_in_errors("float8_linear")
def float8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gradients: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """x @ weight.T + bias, multiplied in float8_e4m3fn with a scale per row of x and of weight.

    Args:
        x: (..., k), float32, float16 or bfloat16.
        weight: (n, k), dtype of x, any strides.
        bias: (n,), dtype of x; None for none.
        gradients: arithmetic of the gradients of x and weight: bfloat16, of the operands as they
            are; or float8_e5m2 for the incoming gradient and float8_e4m3fn for the operand, each
            with a scale per row, or per column, of their product.

    Returns:
        A new tensor (..., n), contiguous, dtype of x.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the others.
        SettingError: gradients is neither dtype.
        DxgemmError: any error that `dxgemm.gemm` raises.

    Notes:
        Scales are found anew in each call, by `quantise_rows`. Differentiable once, in backward
        mode.
    """
    for name, operand in (("x", x), ("weight", weight)):
        check_tensor(name, operand)
    if bias is not None:
        check_tensor("bias", bias)
    check_dtype("gradients", gradients, GRADIENTS, errors.SettingError)
    check_linear(x, weight, bias)
    result: torch.Tensor = _Float8Linear.apply(as_matrix(x), weight, bias, gradients)
    return result.reshape(*x.shape[:-1], weight.shape[0])


class Float8Linear(torch.nn.Linear):
    """`torch.nn.Linear` by `float8_linear`: weights stay in their dtype, products are of float8.

    Args:
        in_features, out_features, bias, device, dtype: as `torch.nn.Linear` takes them.
        gradients: as `float8_linear` takes it.
    """

    @named_in_errors("Float8Linear")
    def __init__(
        self, *arguments: Any, gradients: torch.dtype = torch.bfloat16, **options: Any
    ) -> None:
        check_dtype("gradients", gradients, GRADIENTS, errors.SettingError)
        super().__init__(*arguments, **options)
        self.gradients = gradients

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return float8_linear(input, self.weight, self.bias, gradients=self.gradients)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, gradients={self.gradients}"
