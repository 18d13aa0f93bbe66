"""The epilogues that are measured, each with the same by operations on whole arrays.

`on_arrays` is what results are compared with, and what `cupy.fuse` makes one kernel of; `in_torch`
is what a user of torch would write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dxgemm import epilogues as e
from dxgemm.epilogues.philox import philox_4x32
from dxgemm.gpu.status import simulator_enabled

if simulator_enabled():
    from scipy.special import erf

    xp: Any = np
else:
    import cupy as xp
    from cupyx.scipy.special import erf

SEED = 1234567890123
WORD_BITS = 32
DROPPED_BELOW = 2**31  # of 2**32 numbers: a probability of 0.5


@dataclass(frozen=True)
class Chain:
    """An epilogue, and the same functions by other means.

    Attributes:
        operands: its arrays in order: "vector" (n,), "column" (m,), "matrix" and "kept" (m, n).
        bind: arrays -> epilogue.
        on_arrays: (sums, arrays), a column as (m, 1) -> result.
        is_exact: True if it rounds nothing when sums and arrays are small integers times a unit.
        is_fast: True if it may be as far off as other libraries' functions.
        in_torch: `on_arrays` for tensors; None if it is not compared with separate kernels.
        in_cuda: C++ expression of floats with these names and `value`, for bfloat16, which
            `cupy.fuse` cannot take; None for chains that bfloat16 is not measured with.
        cublaslt_gelu: `use_gelu` of torch._addmm_activation, which calls cuBLASLt's own epilogue;
            None where cuBLASLt has none.
    """

    operands: tuple[str, ...]
    bind: Callable[..., Any]
    on_arrays: Callable[..., Any]
    is_exact: bool = True
    is_fast: bool = False
    in_torch: Callable[..., Any] | None = None
    in_cuda: str | None = None
    cublaslt_gelu: bool | None = None


def gelu(value: Any) -> Any:
    return 0.5 * value * (1.0 + erf(0.5**0.5 * value))


def gelu_tanh(value: Any) -> Any:
    inner = (2.0 / np.pi) ** 0.5 * value * (1.0 + 0.044715 * value * value)
    return 0.5 * value * (1.0 + xp.tanh(inner))


def sigmoid(value: Any) -> Any:
    return 1.0 / (1.0 + xp.exp(-value))


def drop_half(value: Any) -> Any:
    return xp.where(dropped(value.shape), 0.0, 2.0 * value)


@cache
def dropped(shape: tuple[int, int]) -> Any:
    """Mask of kept elements, by NumPy, whose integers philox_4x32 computes with."""
    rows, cols = (np.arange(size, dtype="uint64") for size in shape)
    zero, low, high = map(np.uint64, (0, SEED % 2**WORD_BITS, SEED >> WORD_BITS))
    word = philox_4x32(rows[:, None], cols, zero, zero, low, high)[0]
    return xp.asarray(word < DROPPED_BELOW)


def torch_gelu(value: Any, approximate: str = "none") -> Any:
    from torch.nn.functional import gelu

    return gelu(value, approximate=approximate)


# By the text of the epilogue. Those with several steps, and `dequantise`, are compared with cuBLAS
# and separate kernels; the others, the whole catalogue, with the same kernel without an epilogue.
# The squared magnitude is that of complex numbers.
CHAINS = {
    "bias | gelu | residual": Chain(
        ("vector", "matrix"),
        lambda vector, matrix: e.bias(vector) | e.gelu | e.residual(matrix),
        lambda value, vector, matrix: gelu(value + vector) + matrix,
        is_exact=False,
        in_torch=lambda value, vector, matrix: torch_gelu(value + vector) + matrix,
        in_cuda="0.5f * (value + vector) * (1.0f + erff(0.70710678f * (value + vector))) + matrix",
    ),
    "bias | relu": Chain(
        ("vector",),
        lambda vector: e.bias(vector) | e.relu,
        lambda value, vector: xp.maximum(value + vector, 0.0),
        in_torch=lambda value, vector: (value + vector).relu(),
        in_cuda="fmaxf(value + vector, 0.0f)",
        cublaslt_gelu=False,
    ),
    "bias | gelu_tanh": Chain(
        ("vector",),
        lambda vector: e.bias(vector) | e.gelu_tanh,
        lambda value, vector: gelu_tanh(value + vector),
        is_exact=False,
        in_torch=lambda value, vector: torch_gelu(value + vector, "tanh"),
        in_cuda=(
            "0.5f * (value + vector) * (1.0f + tanhf(0.79788456f * (value + vector) "
            "* (1.0f + 0.044715f * (value + vector) * (value + vector))))"
        ),
        cublaslt_gelu=True,
    ),
    "bias | fast_gelu_tanh": Chain(
        ("vector",),
        lambda vector: e.bias(vector) | e.fast_gelu_tanh,
        lambda value, vector: gelu_tanh(value + vector),
        is_exact=False,
        is_fast=True,
        cublaslt_gelu=True,
    ),
    "bias | squared_magnitude": Chain(
        ("vector",),
        lambda vector: e.bias(vector) | e.squared_magnitude,
        lambda value, vector: xp.real(value + vector) ** 2 + xp.imag(value + vector) ** 2,
    ),
    "dequantise": Chain(
        ("column", "vector"),
        lambda column, vector: e.dequantise(column, vector),
        lambda value, column, vector: value * column * vector,
        is_exact=False,
        in_torch=lambda value, column, vector: value * column * vector,
    ),
    "bias": Chain(("vector",), e.bias, lambda value, vector: value + vector),
    "bias_column": Chain(("column",), e.bias_column, lambda value, column: value + column),
    "relu": Chain((), lambda: e.relu.bound, lambda value: xp.maximum(value, 0.0)),
    "leaky_relu": Chain(
        (),
        lambda: e.leaky_relu(0.125),
        lambda value: xp.where(value > 0.0, value, 0.125 * value),
    ),
    "gelu": Chain((), lambda: e.gelu.bound, gelu, is_exact=False),
    "gelu_tanh": Chain((), lambda: e.gelu_tanh.bound, gelu_tanh, is_exact=False),
    "sigmoid": Chain((), lambda: e.sigmoid.bound, sigmoid, is_exact=False),
    "silu": Chain((), lambda: e.silu.bound, lambda v: v * sigmoid(v), is_exact=False),
    "tanh": Chain((), lambda: e.tanh.bound, lambda value: xp.tanh(value), is_exact=False),
    "clamp": Chain((), lambda: e.clamp(-1.0, 1.0), lambda value: xp.clip(value, -1.0, 1.0)),
    "residual": Chain(("matrix",), e.residual, lambda value, matrix: value + matrix),
    "scale": Chain((), lambda: e.scale(0.5), lambda value: 0.5 * value),
    "scale_rows": Chain(("column",), e.scale_rows, lambda value, column: value * column),
    "scale_columns": Chain(("vector",), e.scale_columns, lambda value, vector: value * vector),
    "keep": Chain(("kept",), lambda kept: e.keep(kept=kept), lambda value, kept: value),
    "dropout": Chain((), lambda: e.dropout(0.5, SEED), drop_half),
}
CATALOGUE = [text for text in CHAINS if " | " not in text and text != "dequantise"]
