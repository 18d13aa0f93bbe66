"""Errors that dxgemm raises on purpose. Each is also the built-in error a caller would expect."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "ArrayTypeError",
    "BuildError",
    "DeviceMismatchError",
    "DtypeError",
    "DxgemmError",
    "EpilogueError",
    "GpuUnavailableError",
    "LaunchError",
    "LayoutError",
    "MissingOperandError",
    "MissingPackageError",
    "OverlapError",
    "PrecisionError",
    "RankError",
    "ReadOnlyError",
    "ScalarError",
    "SettingError",
    "ShapeError",
    "StreamError",
    "UnknownGpuError",
    "UnknownImplementationError",
    "UnsupportedProblemError",
    "WrongResultError",
]


def __dir__() -> list[str]:
    return __all__


_P = ParamSpec("_P")
_R = TypeVar("_R")
LONGEST_TEXT = 100  # characters of a value in a message
_CALL = re.compile(r"[\w.]+: ")  # at the beginning of a message
_OPERANDS = ("a", "b", "c", "out", "alpha", "beta")
_MARKED = re.compile(f"<({'|'.join(_OPERANDS)})>")


class DxgemmError(Exception):
    """Base class of all errors raised by dxgemm.

    A check does not know which public function was called. Its message begins with "gemm: ", and
    has names of operands as <a>, <b>, <c>, <out>, <alpha> and <beta>. The function that was called
    puts its own name and its own operands in their place: see `name_call`.
    """

    _call = ""
    _operands: Mapping[str, str] = {}

    def name_call(self, call: str = "", /, **operands: str) -> None:
        """Name the public function that was called, and its operands, in the message.

        The outermost function has the last word. Frames inside of it are dropped from the traceback
        if an argument is wrong: the message says what is, and the caller can mend it.
        """
        self._call = call or self._call
        self._operands = {**self._operands, **operands}
        if isinstance(self, TypeError | ValueError):
            self.__traceback__ = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __str__(self) -> str:
        text = super().__str__()
        if self._call and f"{self._call}: " not in text:
            own = _CALL.match(text)
            text = f"{self._call}: {text[own.end() :] if own else text}"
        return _MARKED.sub(lambda found: self._operands.get(found[1], found[1]), text)


def marked(name: str) -> str:
    """Mark the name of an operand of `gemm` in a message; other names stay as they are."""
    return f"<{name}>" if name in _OPERANDS else name


def shown(value: Any) -> str:
    """Text of a value in a message: the value may be any object, and its repr long, or an error."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."


def named_in_errors(call: str, **operands: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a public function so that its errors name it, and its operands.

    `gemm` and what is as quick catch their errors themselves: this costs a call.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def named(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except DxgemmError as error:
                error.name_call(call, **operands)
                raise

        return named

    return decorate


class ArrayTypeError(DxgemmError, TypeError):
    """An operand is not an array dxgemm can read (None, a list, a masked or sparse array, ...)."""


class DtypeError(DxgemmError, TypeError):
    """An operand's dtype or byte order is unsupported, or the operands' dtypes differ."""


class ScalarError(DxgemmError, TypeError):
    """alpha or beta is not a real number, or does not fit the operands' dtype."""


class StreamError(DxgemmError, TypeError):
    """`stream=` is neither a handle nor an object that carries one."""


class ShapeError(DxgemmError, ValueError):
    """The operands' shapes do not form a matrix product, or a size is none."""


class MissingOperandError(DxgemmError, ValueError):
    """beta != 0 needs a `c`, and there is none."""


class ReadOnlyError(DxgemmError, ValueError):
    """The array the result would be written to is read-only."""


class OverlapError(DxgemmError, ValueError):
    """The result shares memory with an operand or with itself, so no order of writes is right."""


class LayoutError(DxgemmError, ValueError):
    """A base pointer or a stride is not a multiple of the item size, or a layout is unknown."""


class PrecisionError(DxgemmError, ValueError):
    """`precision=` is unknown, or means nothing for the operands' dtype."""


class EpilogueError(DxgemmError, ValueError):
    """A function cannot be an epilogue, or an epilogue's operands are missing or unknown."""


class SettingError(DxgemmError, ValueError):
    """An environment variable of dxgemm, or an option of a call, has an impossible value."""


class DeviceMismatchError(DxgemmError, ValueError):
    """The operands live on different devices."""


class UnknownGpuError(DxgemmError, ValueError):
    """`gpu=` names no card whose facts are known."""


class UnknownImplementationError(DxgemmError, ValueError):
    """`implementation=` names nothing that is registered."""


class UnsupportedProblemError(DxgemmError, ValueError):
    """The named implementation cannot compute this problem; the message says why."""


class GpuUnavailableError(DxgemmError, RuntimeError):
    """There is no usable GPU: no driver, no device, or a driver that is too old."""


class MissingPackageError(DxgemmError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""


class BuildError(DxgemmError, RuntimeError):
    """A kernel could not be compiled, or its cubin was rejected after inspection."""


class LaunchError(DxgemmError, RuntimeError):
    """The CUDA driver refused a launch, or a captured stream cannot take the call."""


class RankError(DxgemmError, RuntimeError):
    """A call failed on a rank of a process group, or a rank did not come, or there is no group."""


class WrongResultError(DxgemmError, ArithmeticError):
    """The result of a kernel was wrong when it was checked, before it was timed."""
