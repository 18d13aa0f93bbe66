"""Epilogues on NumPy arrays, element by element: what a kernel's result is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from dxgemm.epilogues.kinds import (
    COLUMN,
    KINDS,
    ROW,
    BoundOperand,
    fits,
    fitting_shapes,
)
from dxgemm.epilogues.literals import copied_function
from dxgemm.epilogues.reads import dispatched_function, elementary_name
from dxgemm.epilogues.stages import StageFunction, check_returned
from dxgemm.errors import ShapeError

# Where NumPy's name of a function of `math` is another.
_NUMPY_NAMES = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh",
    "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh", "pow": "power",
}  # fmt: skip


def apply_on_host(
    functions: Sequence[StageFunction],
    operands: Sequence[BoundOperand],
    values: Any,
    dtype: Any = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Apply the functions of all stages to each element, from left to right.

    Elements and operands are NumPy scalars, so that arithmetic has the width NEP 50 gives it, and
    functions of `math` keep the type of their arguments and return infinity or NaN where Python
    raises, as they do on a GPU.

    Args:
        functions, operands: the flat view of a bound epilogue.
        values: (m, n) or (batch, m, n), in the type of sums.
        dtype: of the result; None for that of values.

    Returns:
        The result, and a new array for each output by its name, in the dtype of the array bound to
        it where NumPy knows that dtype and otherwise in that of the result.

    Raises:
        ShapeError: values are no matrices, or an operand does not fit them.
        EpilogueError: a function does not return its result, with a value for each output.
    """
    values = np.asarray(values)
    if values.ndim not in (2, 3):
        raise ShapeError(
            f"on_host: values have shape {values.shape}; pass (m, n) or (batch, m, n)."
        )
    batched = values if values.ndim == 3 else values[np.newaxis]
    floating = values.dtype.type if _is_floating(values.dtype) else np.float32
    result = np.empty(batched.shape, values.dtype if dtype is None else dtype)
    outputs = {
        operand.name: np.empty(batched.shape, _output_dtype(operand.value, result.dtype))
        for operand in operands
        if operand.kind == "output"
    }
    stages = _stages(functions, operands, batched.shape, floating)
    with np.errstate(all="ignore"):
        for index in np.ndindex(batched.shape):
            value = batched[index]
            for name, function, read, written in stages:
                value = function(value, *index[1:], *(array[index] for array in read))
                check_returned(name, value, len(written), ", ".join(written))
                if written:
                    value, *stored = value
                    for output, element in zip(written, stored, strict=True):
                        outputs[output][index] = _converted(element, outputs[output].dtype)
                if type(value) is float:
                    value = floating(value)
            result[index] = _converted(value, result.dtype)
    return result.reshape(values.shape), {
        name: array.reshape(values.shape) for name, array in outputs.items()
    }


Stage = tuple[str, FunctionType, list[np.ndarray], list[str]]


def _stages(
    functions: Sequence[StageFunction],
    operands: Sequence[BoundOperand],
    shape: tuple[int, ...],
    floating: Any,
) -> list[Stage]:
    """For each stage the epilogue's name, its function, its operands' elements by index, and the
    names of its outputs."""
    remaining = list(operands)
    stages: list[Stage] = []
    for stage in functions:
        read = [remaining.pop(0) for _ in range(stage.operand_count)]
        written = [remaining.pop(0) for _ in range(stage.output_count)]
        arrays = [_elements(operand, shape, floating) for operand in read]
        names = [operand.name for operand in written]
        stages.append((stage.name, _host_function(stage.function), arrays, names))
    return stages


def _elements(operand: BoundOperand, shape: tuple[int, ...], floating: Any) -> np.ndarray:
    """An operand as a view of shape (batch, m, n)."""
    kind = KINDS[operand.kind]
    if kind.is_number:
        number = np.int64(operand.value) if kind.name == "integer" else floating(operand.value)
        return np.broadcast_to(number, shape)
    array = np.asarray(operand.value)
    batch, m, n = shape
    if not fits(kind, array.shape, m, n, batch):
        raise ShapeError(
            f"on_host: epilogue {operand.epilogue}: {operand.name} is {array.shape}, but "
            f"{kind.meaning} for a {m} x {n} result has shape {fitting_shapes(kind, m, n, batch)}."
        )
    if _is_floating(array.dtype):
        array = array.astype(floating)
    if kind is ROW:
        array = array[..., np.newaxis, :]
    elif kind is COLUMN:
        array = array[..., np.newaxis]
    return np.broadcast_to(array, shape)


def _output_dtype(array: Any, otherwise: np.dtype) -> np.dtype:
    try:
        return np.dtype(array.dtype)
    except (AttributeError, TypeError):
        return otherwise


def _is_floating(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _converted(element: Any, dtype: np.dtype) -> Any:
    return np.asarray(element).astype(dtype)


def _host_function(function: FunctionType) -> FunctionType:
    """A copy that calls the functions of `math` as they are on a GPU."""
    return copied_function(function, _host_value)


def _host_value(value: Any) -> Any:
    if value is math:
        return _gpu_math()
    if isinstance(value, BuiltinFunctionType) and value.__module__ == "math":
        return getattr(_gpu_math(), value.__name__)
    if name := elementary_name(value):
        return _gpu_function(name, value)
    dispatched = dispatched_function(value)
    return value if dispatched is None else _host_function(dispatched)


@cache
def _gpu_math() -> ModuleType:
    module = ModuleType("math")
    for name, value in vars(math).items():
        setattr(module, name, _gpu_function(name, value) if callable(value) else value)
    return module


def _gpu_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `math` that keeps the type of NumPy's floats and never raises for a value."""
    numpy_function = getattr(np, _NUMPY_NAMES.get(name, name), None)

    def gpu_function(*arguments: Any) -> Any:
        try:
            result = function(*arguments)
        except OverflowError:
            result = math.inf if numpy_function is None else numpy_function(*_wide(arguments))
        except ValueError:
            result = math.nan if numpy_function is None else numpy_function(*_wide(arguments))
        types = [type(argument) for argument in arguments if isinstance(argument, np.generic)]
        kept = [kind for kind in types if _is_floating(np.dtype(kind))]
        return np.result_type(*kept).type(result) if kept and isinstance(result, float) else result

    return gpu_function


def _wide(arguments: tuple[Any, ...]) -> list[Any]:
    return [np.float64(a) if _is_floating(np.asarray(a).dtype) else a for a in arguments]
