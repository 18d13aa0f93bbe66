"""Epilogues on NumPy arrays, element by element: the reference for the results of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Number
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from dxgemm.epilogues import elementary
from dxgemm.epilogues.kinds import Parameter, epilogue_error, fits, fitting_shapes
from dxgemm.epilogues.literals import compiled_function
from dxgemm.errors import ArrayTypeError, DtypeError, ShapeError, shown

# Results of functions where Python raises, if it is not a function of NumPy with the same name.
_IEEE: dict[str, Callable[..., Any]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "pow": np.power,
    "gamma": lambda x: math.nan if x <= -1.0 else math.copysign(math.inf, x),
    "ldexp": lambda x, exponent: math.copysign(math.inf, x),
    "lgamma": lambda x: math.inf,
    "log": lambda x, base=math.e: np.log(x) / np.log(base),
}  # fmt: skip


def apply_on_host(
    epilogues: Sequence[Any], operands: Sequence[Any], values: Any, dtype: Any = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Apply the functions of all epilogues to each element, from left to right.

    Elements, operands and literals are NumPy scalars, so that arithmetic has the width that it has
    in a kernel, and is infinity or NaN where Python raises.

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
        reals = int(place == len(epilogues) - 1 and result_dtype.kind != "c")
        reals += sum((outputs[o].dtype.kind != "c") << bit for bit, o in enumerate(written, 1))
        stages.append((host_function(epilogue, floating, reals, _ELEMENTARY), read, written))

    def apply(
        stages: Sequence[tuple[Any, ...]], values: tuple[Any, ...], index: tuple[int, ...]
    ) -> Any:
        for function, read, written in stages:
            value = function(*values, *index[1:], *(array[index] for array in read))
            if written:
                value, *stored = value
                for output, element in zip(written, stored, strict=True):
                    outputs[output][index] = _converted(element, outputs[output].dtype)
            values = (value,)
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
    except Exception as error:
        raise ArrayTypeError(f"on_host: {name} cannot be read by NumPy: {error}") from None
    if array.dtype.kind not in "iufc" and not _is_floating(array.dtype):
        raise DtypeError(f"on_host: {name} has dtype {array.dtype}; pass numbers.")
    return array


def _dtype(value: Any) -> np.dtype:
    try:
        return np.dtype(value)
    except Exception as error:
        raise DtypeError(f"on_host: dtype is {shown(value)}: {error}; pass one of NumPy.") from None


def _unbatched(array: np.ndarray, ndim: int) -> np.ndarray:
    return array.reshape(array.shape[-ndim:])


def host_function(
    epilogue: Any,
    literal: Callable[[float], Any],
    reals: int,
    functions: Mapping[str, Any],
) -> Callable[..., Any]:
    """Make the function of an epilogue for Python; it computes what a kernel does.

    Args:
        epilogue: an `Epilogue`.
        literal: type of Python's floats in the function.
        reals: a bit for the result and each output, 1 where no complex number is stored.
        functions: replacements of the functions of `dxgemm.epilogues.elementary`, by name.

    Returns:
        The function. It raises an `EpilogueError` unless it returns its result, and a value for
        each output, which can be stored.
    """
    function = compiled_function(
        epilogue.recorded, literal, lambda copy: copy, functions, _unraising
    )
    reals |= epilogue.returns_real

    wanted = epilogue.returned + len(epilogue.outputs)

    def checked(*values: Any) -> Any:
        result = function(*(np.int64(v) if isinstance(v, int) else v for v in values))
        parts = result if wanted > 1 and isinstance(result, tuple) else (result,)
        # Tuples of types, because `|` makes a new type.
        are_numbers = all(isinstance(part, (Number, np.bool_)) for part in parts)
        if not are_numbers or len(parts) != wanted:
            own = "one value" if epilogue.returned == 1 else f"a tuple of {epilogue.returned}"
            listed = ", then ".join([own, *(f"that of {o.name}" for o in epilogue.outputs)])
            returned = f"returned {shown(result)}; it must return {listed}."
            raise epilogue_error(epilogue.name, returned)
        for place, part in enumerate(parts):
            if reals >> place & 1 and isinstance(part, (complex, np.complexfloating)):
                raise epilogue_error(
                    epilogue.name,
                    f"returned {shown(part)}, which is not real; return its real part or "
                    "magnitude.",
                )
        return result

    return checked


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
    except Exception:
        return otherwise


def _is_floating(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _converted(element: Any, dtype: np.dtype) -> Any:
    if dtype == np.int8:  # rounded and clamped, NaN to 0
        element = np.clip(np.rint(np.nan_to_num(np.float32(element))), -128, 127)
    return np.asarray(element).astype(dtype)


def _unraising(value: Any) -> Any:
    """A function or type of Python's, as one whose results are NumPy's, infinity and NaN too."""
    is_builtin = isinstance(value, BuiltinFunctionType)
    if value is round or (is_builtin and value.__module__ in ("math", "cmath")):
        return partial(_computed, value)
    return _TYPES.get(value, value) if isinstance(value, type) else value


def _computed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; its result has the precision of its arguments, and replaces an error."""
    name, wide = function.__name__, np.float64 if function.__module__ != "cmath" else np.complex128
    try:
        result = function(*arguments)
    except (OverflowError, ValueError, ZeroDivisionError):
        otherwise: Any = _IEEE.get(name) or getattr(np, name, lambda *_: wide(math.nan))
        result = otherwise(*map(wide, arguments))
    kinds = [argument.dtype for argument in arguments if isinstance(argument, np.inexact)]
    kind = np.result_type(*kinds or [np.dtype("float64")])
    if isinstance(result, complex):
        return np.result_type(kind, np.complex64).type(result)
    if isinstance(result, float) or (type(result) is int and kinds):
        return kind.type(0).real.dtype.type(result)
    return result


class _Float(float):
    """`float` of a kernel, which keeps the type of one."""

    def __new__(cls, value: Any = 0.0) -> Any:
        return value if isinstance(value, np.floating) else np.float64(value)


class _Complex(complex):
    """`complex` of a kernel, as wide as its parts."""

    def __new__(cls, *parts: Any) -> Any:
        return np.result_type(np.complex64, *parts).type(complex(*parts))


_TYPES: dict[type, type] = {float: _Float, complex: _Complex, int: np.int64}
_ELEMENTARY = {
    name: partial(_computed, function)
    for name, function in vars(elementary).items()
    if isinstance(function, FunctionType)
}
