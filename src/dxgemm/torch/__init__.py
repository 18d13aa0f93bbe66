"""dxgemm as operators of PyTorch: differentiable, and opaque to `torch.compile`.

    import dxgemm.torch
    y = dxgemm.torch.linear(x, weight, bias, activation="gelu")    # one kernel
    c = dxgemm.torch.gemm(a, b, c, alpha=0.5)
    with dxgemm.torch.batch_invariant():
        y = model(x)                                               # torch's own products

The operators are `torch.ops.dxgemm.linear`, `linear_keep`, `gemm`, `gemm_epilogue`,
`apply_epilogue`, `inner`, `matmul`, `gemm_grouped`, `scaled_mm` and `scaled_grouped_mm`.
Each computes a new tensor and never returns one that shares memory with an operand.
"""

from __future__ import annotations

from dxgemm import errors

try:
    import torch  # noqa: F401
except ImportError as error:
    raise errors.MissingPackageError(
        f"dxgemm.torch needs torch ({error}); pip install 'dxgemm[torch]'."
    ) from error

from dxgemm.drop_in.torch_hooks import batch_invariant
from dxgemm.torch import functional
from dxgemm.torch.derivatives import derivative
from dxgemm.torch.float8_linear import Float8Linear, float8_linear, quantise_rows
from dxgemm.torch.functions import (
    Linear,
    gemm,
    gemm_grouped,
    linear,
    matmul,
    scaled_grouped_mm,
    scaled_mm,
)

__all__ = [
    "Float8Linear", "Linear", "batch_invariant", "derivative", "float8_linear", "functional",
    "gemm", "gemm_grouped", "linear", "matmul", "quantise_rows", "scaled_grouped_mm", "scaled_mm",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
