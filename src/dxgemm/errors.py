"""Errors that dxgemm raises on purpose. Each is also the built-in error a caller would expect."""

from __future__ import annotations

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


class DxgemmError(Exception):
    """Base class of all errors raised by dxgemm."""


class ArrayTypeError(DxgemmError, TypeError):
    """An operand is not an array dxgemm can read (None, a list, a masked or sparse array, ...)."""


class DtypeError(DxgemmError, TypeError):
    """An operand's dtype or byte order is unsupported, or the operands' dtypes differ."""


class ScalarError(DxgemmError, TypeError):
    """alpha or beta is not a real number, or does not fit the operands' dtype."""


class StreamError(DxgemmError, TypeError):
    """`stream=` is neither a handle nor an object that carries one."""


class ShapeError(DxgemmError, ValueError):
    """The operands' shapes do not form a matrix product."""


class MissingOperandError(DxgemmError, ValueError):
    """beta != 0 needs a `c`, and there is none."""


class ReadOnlyError(DxgemmError, ValueError):
    """The array the result would be written to is read-only."""


class OverlapError(DxgemmError, ValueError):
    """The result shares memory with an operand or with itself, so no order of writes is right."""


class LayoutError(DxgemmError, ValueError):
    """A base pointer or a stride is not a multiple of the item size."""


class PrecisionError(DxgemmError, ValueError):
    """`precision=` is unknown, or means nothing for the operands' dtype."""


class EpilogueError(DxgemmError, ValueError):
    """A function cannot be an epilogue, or an epilogue's operands are missing or unknown."""


class SettingError(DxgemmError, ValueError):
    """An environment variable of dxgemm, or an option of a build, has an impossible value."""


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
