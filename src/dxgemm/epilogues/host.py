"""Epilogues on NumPy arrays, element by element: the reference for the results of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from dxgemm.epilogues.kinds import Parameter, epilogue_error, fits, fitting_shapes
from dxgemm.epilogues.literals import copied_function
from dxgemm.epilogues.reads import elementary_name
from dxgemm.errors import ArrayTypeError, DtypeError, ShapeError

# Where NumPy's name of a function of `math` is another.
_NUMPY_NAMES = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh",
    "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh", "pow": "power",
}  # fmt: skip


def apply_on_host(
    epilogues: Sequence[Any], operands: Sequence[Any], values: Any, dtype: Any = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Apply the functions of all epilogues to each element, from left to right.

    Elements and operands are NumPy scalars, so that arithmetic has the width NEP 50 gives it, and
    functions of `math` keep the type of their arguments and return infinity or NaN where Python
    raises, as they do on a GPU.

    Args:
        epilogues: the stages of a chain, each an `Epilogue`.
        operands: values bound to the stages: for each stage first its parameters, then its outputs.
        values: (m, n) or (batch, m, n), in the dtype of sums.
        dtype: dtype of the result; None for that of values, or of their parts if it is real.

    Returns:
        The result, and a new array for each output by its name, in the dtype of the array bound to
        it where NumPy knows that dtype and otherwise in that of the result.

    Raises:
        ShapeError: values are no matrices, or an operand does not fit them.
        EpilogueError: a function returns anything but its result and a value for each output.
    """
    values = host_values(values)
    batched = values if values.ndim == 3 else values[np.newaxis]
    kind = values.real.dtype if values.dtype.kind == "c" else values.dtype
    floating = kind.type if _is_floating(kind) else np.float32
    is_real = any(epilogue.returns_real for epilogue in epilogues)
    result_dtype = _dtype((kind if is_real else values.dtype) if dtype is None else dtype)
    outputs: dict[str, np.ndarray] = {}
    wide = np.result_type(floating, np.complex64).type
    stages, remaining, shape, before = [], iter(operands), batched.shape, 0
    for place, epilogue in enumerate(epilogues):
        if epilogue.takes_pairs:
            if shape[-1] % 2:
                raise ShapeError(
                    f"on_host: values have shape {values.shape}, but {epilogue.name} takes pairs "
                    "of columns; pass an even number."
                )
            shape, before = (*shape[:-1], shape[-1] // 2), place
        read = [_elements(p, next(remaining), shape, floating) for p in epilogue.parameters]
        written = [output.name for output in epilogue.outputs]
        for name in written:
            outputs[name] = np.empty(shape, _output_dtype(next(remaining), result_dtype))
        stages.append((epilogue.name, _host_function(epilogue.recorded), read, written))

    def apply(
        stages: Sequence[tuple[Any, ...]], values: tuple[Any, ...], index: tuple[int, ...]
    ) -> Any:
        for name, function, read, written in stages:
            value = function(*values, *index[1:], *(array[index] for array in read))
            check_returned(name, value, len(written), ", ".join(written))
            if written:
                value, *stored = value
                for output, element in zip(written, stored, strict=True):
                    outputs[output][index] = _converted(element, outputs[output].dtype)
            value = floating(value) if type(value) is float else value
            values = (wide(value) if type(value) is complex else value,)
        return values[0]

    result = np.empty(shape, result_dtype)
    width = 2 if shape != batched.shape else 1
    with np.errstate(all="ignore"):
        for index in np.ndindex(shape):
            first = index[-1] * width
            places = [(*index[:-1], col) for col in range(first, first + width)]
            pair = tuple(apply(stages[:before], (batched[place],), place) for place in places)
            result[index] = _converted(apply(stages[before:], pair, index), result.dtype)
    return _unbatched(result, values.ndim), {
        name: _unbatched(array, values.ndim) for name, array in outputs.items()
    }


def host_values(values: Any) -> np.ndarray:
    """Values that functions of the host take as matrices, as a NumPy array."""
    array = _numbers("values", values)
    if array.ndim not in (2, 3):
        raise ShapeError(f"on_host: values have shape {array.shape}; pass (m, n) or (batch, m, n).")
    return array


def _numbers(name: str, value: Any) -> np.ndarray:
    """Array of numbers."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArrayTypeError(f"on_host: {name} cannot be read by NumPy: {error}") from None
    if array.dtype.kind not in "iufc" and not _is_floating(array.dtype):
        raise DtypeError(f"on_host: {name} has dtype {array.dtype}; pass numbers.")
    return array


def _dtype(value: Any) -> np.dtype:
    try:
        return np.dtype(value)
    except (TypeError, ValueError) as error:
        raise DtypeError(f"on_host: dtype is {value!r}: {error}; pass one of NumPy.") from None


def _unbatched(array: np.ndarray, ndim: int) -> np.ndarray:
    return array.reshape(array.shape[-ndim:])


def check_returned(name: str, value: Any, output_count: int, outputs: str = "") -> None:
    """Check that a function returned its result, and with it a value for each output.

    Args:
        name: name of the function.
        value: the value that it returned.
        output_count: number of outputs.
        outputs: names of the outputs, for the message.

    Raises:
        EpilogueError: the function returned something else.
    """
    count = len(value) if isinstance(value, tuple) else 0
    has_none = value is None or (count > 0 and any(one is None for one in value))
    if has_none or count != (1 + output_count if output_count else 0):
        wanted = "one value"
        if output_count:
            listed = f": {outputs}" if outputs else ""
            wanted = f"its result and a value for each of {output_count} outputs{listed}"
        raise epilogue_error(name, f"returned {value!r}; it must return {wanted}.")


def _elements(
    parameter: Parameter, value: Any, shape: tuple[int, ...], floating: Any
) -> np.ndarray:
    """Value of a parameter, broadcast to `shape`: (batch, m, n)."""
    if parameter.is_number:
        number = np.int64(value) if parameter.kind == "integer" else floating(value)
        return np.broadcast_to(number, shape)
    array = _numbers(f"epilogue {parameter.epilogue}: {parameter.name}", value)
    batch, m, n = shape
    if not fits(parameter, array.shape, m, n, batch):
        raise ShapeError(
            f"on_host: epilogue {parameter.epilogue}: {parameter.name} is {array.shape}, but "
            f"{parameter.meaning} for a {m} x {n} result has shape "
            f"{fitting_shapes(parameter, m, n, batch)}."
        )
    if _is_floating(array.dtype):
        array = array.astype(floating)
    elif array.dtype.kind == "c":
        array = array.astype(np.result_type(floating, np.complex64))
    if parameter.kind == "row":
        array = array[..., np.newaxis, :]
    elif parameter.kind == "column":
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
    if dtype == np.int8:  # rounded and clamped, NaN to 0
        element = np.clip(np.rint(np.nan_to_num(np.float32(element))), -128, 127)
    return np.asarray(element).astype(dtype)


def _host_function(function: FunctionType) -> FunctionType:
    """Copy a function; in the copy, functions of `math` behave as on a GPU."""
    return copied_function(function, _host_value)


def _host_value(value: Any) -> Any:
    if isinstance(value, BuiltinFunctionType) and value.__module__ == "math":
        return _gpu_function(value.__name__, value)
    if name := elementary_name(value):
        return _gpu_function(name, value)
    return value


def _gpu_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of `math` so that it keeps NumPy's float types and raises for no value."""
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
