"""The operator of `scaled_mm` and `scaled_grouped_mm`: products of float8 with scales."""

from __future__ import annotations

from typing import Any

import torch

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.torch.operands import check_dtype, list_shapes

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
RESULTS = (torch.bfloat16, torch.float16, torch.float32, *FLOAT8)
# By call, the numbers of dimensions of a and b without and with offsets, and their shapes.
SHAPES = {
    "scaled_mm": (((2, 2),), (), "they must be (m, k) and (k, n)"),
    "scaled_grouped_mm": (
        ((3, 3),), ((2, 3), (3, 2)),
        "with offs, they must be (total, k) and (groups, k, n), or (groups, m, k) and (k, total); "
        "without, (groups, m, k) and (groups, k, n)",
    ),
}  # fmt: skip
SCHEMA = (
    "(str call, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? offsets, Tensor? bias, "
    "Tensor? scale_result, ScalarType? out_dtype, bool is_fast) -> Tensor"
)


def _empty_scaled(call: str, a: torch.Tensor, b: torch.Tensor, *options: Any) -> torch.Tensor:
    """Check the operands and allocate the result."""
    _, _, offsets, _, scale_result, out_dtype, _ = options
    if a.dtype not in FLOAT8 or b.dtype not in FLOAT8:
        raise errors.DtypeError(
            f"{call}: input is {a.dtype} and mat2 is {b.dtype}; both must be float8_e4m3fn or "
            "float8_e5m2."
        )
    plain, grouped, shapes = SHAPES[call]
    known = plain if offsets is None else grouped
    if (a.ndim, b.ndim) not in known or a.shape[-1] != b.shape[-2]:
        raise errors.ShapeError(f"{call}: {list_shapes(input=a, mat2=b)}; {shapes}.")
    out_dtype = a.dtype if out_dtype is None else out_dtype
    check_dtype(f"{call}: out_dtype", out_dtype, RESULTS)
    if scale_result is not None and out_dtype not in FLOAT8:
        raise errors.DtypeError(
            f"{call}: scale_result is for results of float8, and out_dtype is {out_dtype}; "
            "leave it out."
        )
    batch = a.shape[:-2] if offsets is None else ()
    return torch.empty((*batch, a.shape[-2], b.shape[-1]), dtype=out_dtype, device=a.device)


@torch.library.custom_op("dxgemm::scaled_mm", mutates_args=(), schema=SCHEMA)
def scaled_operator(call: str, a: torch.Tensor, b: torch.Tensor, *options: Any) -> torch.Tensor:
    out = _empty_scaled(call, a, b, *options)
    scale_a, scale_b, offsets, bias, scale_out, _, is_fast = options
    # torch has scales of rows (groups, m) and (groups, n).
    if a.ndim == 3 and scale_a.shape == a.shape[:2]:
        scale_a = scale_a.unsqueeze(2)
    if b.ndim == 3 and scale_b.shape == (b.shape[0], b.shape[2]):
        scale_b = scale_b.unsqueeze(1)
    keywords: dict[str, Any] = {"scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out}
    if bias is not None:
        keywords["epilogue"] = epilogues.bias(bias)
    if offsets is not None:
        dxgemm.gemm_grouped(a, b, out=out.zero_(), offsets=offsets, **keywords)
    else:
        dxgemm.gemm(a, b, out=out, precision="fast" if is_fast else None, **keywords)
    return out


scaled_operator.register_fake(_empty_scaled)
