"""The operators `scaled_mm` and `scaled_grouped_mm` of torch: products of float8 with scales."""

from __future__ import annotations

from typing import Any

import torch

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.torch.operands import check_dtype, list_shapes

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
RESULTS = (torch.bfloat16, torch.float16, torch.float32, *FLOAT8)


def _check_float8(call: str, a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dtype not in FLOAT8 or b.dtype not in FLOAT8:
        raise errors.DtypeError(
            f"{call}: input is {a.dtype} and mat2 is {b.dtype}; both must be float8_e4m3fn or "
            "float8_e5m2."
        )


def _empty_scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Check the operands of `scaled_mm` and allocate its result."""
    _check_float8("scaled_mm", a, b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise errors.ShapeError(
            f"scaled_mm: {list_shapes(input=a, mat2=b)}; they must be (m, k) and (k, n)."
        )
    out_dtype = a.dtype if out_dtype is None else out_dtype
    check_dtype("scaled_mm: out_dtype", out_dtype, RESULTS)
    if scale_result is not None and out_dtype not in FLOAT8:
        raise errors.DtypeError(
            f"scaled_mm: scale_result is for results of float8, and out_dtype is {out_dtype}; "
            "leave it out."
        )
    return torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype, device=a.device)


@torch.library.custom_op("dxgemm::scaled_mm", mutates_args=())
def scaled_operator(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    out = _empty_scaled(a, b, scale_a, scale_b, bias, scale_result, out_dtype)
    options: dict[str, Any] = {"precision": "fast"} if use_fast_accum else {}
    if bias is not None:
        options["epilogue"] = epilogues.bias(bias)
    dxgemm.gemm(
        a, b, out=out, scale_a=scale_a, scale_b=scale_b, scale_out=scale_result, **options
    )  # fmt: skip
    return out


scaled_operator.register_fake(_empty_scaled)


def _empty_group(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Check the operands of `scaled_grouped_mm` and allocate its result."""
    _check_float8("scaled_grouped_mm", a, b)
    check_dtype("scaled_grouped_mm: out_dtype", out_dtype, RESULTS)
    dimensions = a.ndim, b.ndim
    known = ((3, 3),) if offsets is None else ((2, 3), (3, 2))
    if dimensions not in known or a.shape[-1] != b.shape[-2]:
        raise errors.ShapeError(
            f"scaled_grouped_mm: {list_shapes(input=a, mat2=b)}; with offs, they must be "
            "(total, k) and (groups, k, n), or (groups, m, k) and (k, total); without, "
            "(groups, m, k) and (groups, k, n)."
        )
    groups = a.shape[:1] if offsets is None else ()
    return torch.empty((*groups, a.shape[-2], b.shape[-1]), dtype=out_dtype, device=a.device)


@torch.library.custom_op("dxgemm::scaled_grouped_mm", mutates_args=())
def scaled_grouped_operator(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    out = _empty_group(a, b, scale_a, scale_b, offsets, bias, scale_result, out_dtype)
    # torch has scales of rows (groups, m) and (groups, n).
    if a.ndim == 3 and scale_a.shape == a.shape[:2]:
        scale_a = scale_a.unsqueeze(2)
    if b.ndim == 3 and scale_b.shape == (b.shape[0], b.shape[2]):
        scale_b = scale_b.unsqueeze(1)
    options: dict[str, Any] = {"scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_result}
    if bias is not None:
        options["epilogue"] = epilogues.bias(bias)
    if offsets is None:
        dxgemm.gemm(a, b, out=out, **options)
    else:
        dxgemm.gemm_grouped(a, b, out=out.zero_(), offsets=offsets, **options)
    return out


scaled_grouped_operator.register_fake(_empty_group)
