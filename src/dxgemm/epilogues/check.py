"""Checks of an epilogue's operands against the result of a call, before anything is launched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dxgemm.epilogues.block_mask import check_mask
from dxgemm.epilogues.kinds import Parameter, fits, fitting_shapes
from dxgemm.errors import (
    DeviceMismatchError,
    DtypeError,
    ScalarError,
    ShapeError,
)
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.problem.dtypes import COMPLEX_PARTS, scalar_dtype
from dxgemm.problem.layout import Layout, refuse_misaligned, refuse_unwritable

LARGEST_FLOAT32 = float(np.finfo("float32").max)

# By the type of sums. A float64 operand would widen float32 arithmetic without a word, a float32
# one would bring fewer digits into float64 results than they seem to have: neither is accepted.
READABLE = {
    "float32": ("float32", "float16", "bfloat16", "int32", "int8", *FLOAT8_KINDS),
    "float64": ("float64", "int32", "int8"),
    "int32": ("float32", "float16", "bfloat16", "int32", "int8"),
    "complex64": ("complex64", "float32", "float16", "bfloat16", "int32", "int8"),
    "complex128": ("complex128", "float64", "int32", "int8"),
}
WRITABLE = {
    "float32": ("float32", "float16", "bfloat16", "int8", *FLOAT8_KINDS),
    "float64": ("float64",),
    "int32": ("int32", "float32", "float16", "bfloat16", "int8"),
    "complex64": ("complex64", "float32"),
    "complex128": ("complex128", "float64"),
}


def check_operands(
    operands: Sequence[Parameter],
    layouts: Sequence[Layout | None],
    m: int,
    columns: Sequence[int],
    batch: int,
    device: int,
    dtype: str,
) -> None:
    """Check the arrays of an epilogue against a problem.

    Overlap with other arrays depends on addresses and is not checked here.

    Args:
        operands: parameters and outputs of the epilogue.
        layouts: a layout for each of `operands`; None for numbers.
        m, batch: sizes of the result as the caller sees it; batch is 1 for a two-dimensional one.
        columns: columns of the values that each of `operands` belongs to.
        device: CUDA ordinal of the call's operands; -1 if all are in host memory.
        dtype: dtype of a and b.

    Raises:
        ShapeError, DtypeError, DeviceMismatchError, LayoutError, ReadOnlyError, OverlapError: the
        first that applies; the message names the epilogue, the operand and the way out.
    """
    sums = dtype if dtype in COMPLEX_PARTS else scalar_dtype(dtype)
    arrays = []
    for operand, layout, n in zip(operands, layouts, columns, strict=True):
        if layout is None:
            continue
        if operand.kind == "mask":
            check_mask(layout, m, n, device)
            continue
        where = f"gemm: epilogue {operand.epilogue}: {operand.name}"
        arrays.append((operand, layout))
        if operand.kind == "blocks":  # `call.scales` has checked the rest
            if layout.shape[:-2] not in ((), (1,), (batch,)):
                raise ShapeError(
                    f"{where} is {layout.shape}, but there are {batch} results; pass scales for "
                    "each, or for all."
                )
            refuse_misaligned(where, layout)
            continue
        _check_dtype(where, operand, layout, dtype, sums)
        _check_shape(where, operand, layout, (m, n, batch))
        refuse_misaligned(where, layout)
        if operand.kind == "output":
            refuse_unwritable(where, layout)
    _check_devices(arrays, device)


def check_overflow(operand: Parameter, value: float, sums: str) -> None:
    """Check a number against the dtype of sums.

    Raises:
        ScalarError: the number overflows; the message names the epilogue and the operand.
    """
    is_small = -LARGEST_FLOAT32 <= value <= LARGEST_FLOAT32
    if is_small or operand.kind != "scalar" or not math.isfinite(value):
        return
    floating = "float64" if sums == "float64" else "float32"
    with np.errstate(over="ignore"):
        overflows = not np.isfinite(np.dtype(floating).type(value))
    if overflows:
        raise ScalarError(
            f"gemm: epilogue {operand.epilogue}: {operand.name} is {value}, which overflows "
            f"{floating}."
        )


def check_results(
    expected: Mapping[str, tuple[tuple[int, ...], str]], layouts: Mapping[str, Layout], device: int
) -> None:
    """Check the arrays that a reduction is to write.

    Args:
        expected: shape and dtype of each array, by its label.
        layouts: layouts of the arrays, by label.
        device: CUDA ordinal of the call's operands; -1 if all are in host memory.

    Raises:
        ShapeError, DtypeError, LayoutError, ReadOnlyError, OverlapError, DeviceMismatchError.
    """
    for label, (shape, dtype) in expected.items():
        layout = layouts[label]
        where = f"gemm: {label}"
        if layout.dtype != dtype:
            raise DtypeError(f"{where} has dtype {layout.dtype}; it must be {dtype}.")
        if layout.shape != shape:
            raise ShapeError(f"{where} is {layout.shape}; it must be {shape}.")
        refuse_misaligned(where, layout)
        refuse_unwritable(where, layout)
        if -1 < device != layout.device > -1:
            raise DeviceMismatchError(
                f"{where} is on GPU {layout.device}, but other operands of the call are on GPU "
                f"{device}; move them to one."
            )


def _check_dtype(where: str, operand: Parameter, layout: Layout, dtype: str, sums: str) -> None:
    allowed = (WRITABLE if operand.kind == "output" else READABLE)[sums]
    if layout.dtype not in allowed:
        listed = allowed[0] if len(allowed) == 1 else f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        role = "an output" if operand.kind == "output" else "an operand"
        raise DtypeError(
            f"{where} has dtype {layout.dtype}, but {dtype} products are summed in {sums}, so that "
            f"{role} can be {listed} in native byte order: convert {operand.name}, for example "
            f"{operand.name}.astype('{allowed[0]}')."
        )


def _check_shape(
    where: str, operand: Parameter, layout: Layout, sizes: tuple[int, int, int]
) -> None:
    if fits(operand, layout.shape, *sizes):
        return
    m, n, batch = sizes
    result = f"a {m} x {n} result" if batch == 1 else f"{batch} results of {m} x {n}"
    remark = "; what is written cannot be broadcast" if operand.kind == "output" else ""
    raise ShapeError(
        f"{where} is {layout.shape}, but {operand.meaning} for {result} has shape "
        f"{fitting_shapes(operand, *sizes)}{remark}."
    )


def _check_devices(arrays: list[tuple[Parameter, Layout]], device: int) -> None:
    # Host operands go wherever the others are.
    for operand, layout in arrays:
        if layout.device < 0:
            continue
        if device < 0:
            device = layout.device
        if layout.device != device:
            raise DeviceMismatchError(
                f"gemm: epilogue {operand.epilogue}: {operand.name} is on GPU {layout.device}, "
                f"but other operands of the call are on GPU {device}; move them to one."
            )
