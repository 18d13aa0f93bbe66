"""Copies of Python functions, for a compiler that reads globals as constants.

`record` makes the copy that an epilogue's digest is computed from and that every compiler gets, so
that no variable or code that is replaced in between can make them differ.

A Python float is weak in NumPy 2 (NEP 50): `0.5 * value` keeps the type of a float32 value. numba
types the literal 0.5 as float64 and computes in float64. A copy in which 0.5 is
`numpy.float32(0.5)` means to numba what the original means to NumPy. There, comparisons take
the place of `max` and `min`, because the GPU's instructions for these drop NaN.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

from dxgemm.epilogues.kinds import epilogue_error
from dxgemm.epilogues.reads import (
    ABSENT,
    FunctionHolder,
    Read,
    Source,
    elementary_name,
    global_names,
    python_function,
    refused_option,
    source_of,
)

NO_FUNCTIONS: Mapping[str, Any] = {}


def compiled_function(
    function: FunctionType,
    literal: Callable[[float], Any],
    device: Callable[[FunctionType], Any],
    elementary: Mapping[str, Any] = NO_FUNCTIONS,
) -> FunctionType:
    """Copy a function for the compiler, with a type for each of its Python floats.

    Args:
        function: a Python function.
        literal: applied to every Python float among constants, defaults, globals and closure
            variables, also in tuples of floats alone; `numpy.float32`, for example. Complex numbers
            get parts of that type. Integers, NumPy's numbers, and values read through modules
            (`math.pi`) stay as they are.
        device: applied to the copy of every plain function or epilogue that is called.
        elementary: replacements of the functions of `dxgemm.epilogues.elementary`, by name.

    Raises:
        EpilogueError: functions call each other in a circle.
    """

    def constant(value: Any) -> Any:
        if name := elementary_name(value):
            return elementary.get(name, value)
        if type(value) is float:
            return literal(value)
        if type(value) is complex:
            return np.result_type(literal(0.0), np.complex64).type(value)
        if type(value) is tuple and _has_only_floats(value):
            return tuple(constant(entry) for entry in value)
        return value

    return _Copies(constant, device, {"max": _maximum, "min": _minimum}).copy(function)


def _maximum(first: Any, *others: Any) -> Any:
    """Largest value as Python's `max` finds it: by comparisons, from left to right."""
    largest = first
    for other in others:
        largest = other if other > largest else largest
    return largest


def _minimum(first: Any, *others: Any) -> Any:
    """Smallest value as Python's `min` finds it."""
    smallest = first
    for other in others:
        smallest = other if other < smallest else smallest
    return smallest


def copied_function(
    function: FunctionType, constant: Callable[[Any], Any] = lambda value: value
) -> FunctionType:
    """Copy a function; globals and closure of the copy are its own, with the values as of now.

    Args:
        function: a Python function.
        constant: applied to each constant, default, global and closure variable, except functions
            that are copied too.

    Raises:
        EpilogueError: functions call each other in a circle.
    """
    return _Copies(constant, lambda copy: copy, {}).copy(function)


def record(
    function: FunctionType, epilogue: str
) -> tuple[FunctionType, tuple[Read, ...], tuple[Source, ...]]:
    """Copy a function and all that it reads and calls, as they are now.

    Args:
        function: a Python function.
        epilogue: the name to use in errors.

    Returns:
        The copy, which shares nothing that can be rebound or replaced, the variables that were
        read, and the functions that were copied.

    Raises:
        EpilogueError: functions call each other in a circle, or one is more than its Python code.
    """
    copies = _Recording(epilogue)
    copy = copies.copy(function)
    return copy, tuple(copies.reads), tuple(copies.sources)


class _Copies:
    """One walk through a function and all it calls."""

    def __init__(
        self,
        constant: Callable[[Any], Any],
        device: Callable[[FunctionType], Any],
        for_builtins: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._constant = constant
        self._device = device
        self._for_builtins = for_builtins
        self._called: dict[FunctionType, Any] = {}
        self._active: list[FunctionType] = []

    def copy(self, function: FunctionType) -> FunctionType:
        if function in self._active:
            raise epilogue_error(
                self._active[0].__name__,
                f"{function.__qualname__} calls itself, directly or through others; recursion "
                "cannot be compiled.",
            )
        self._active.append(function)
        source = source_of(function)
        self.note_source(source)
        scope: dict[str, Any] = {
            "__name__": function.__globals__.get("__name__"),
            "__builtins__": builtins,
        }
        for name in sorted(global_names(source.code)):
            value = self._global(name, function)
            if value is not ABSENT:
                scope[name] = self._value(value)
        copy = FunctionType(
            self._code(source.code),
            scope,
            function.__name__,
            source.defaults and tuple(map(self._value, source.defaults)),
            tuple(map(self._cell, source.code.co_freevars, function.__closure__ or ())) or None,
        )
        if defaults := source.keyword_defaults:
            copy.__kwdefaults__ = {
                name: self._value(self.noted(Read(name, defaults))) for name in list(defaults)
            }
        copy.__qualname__ = function.__qualname__
        self._active.pop()
        return copy

    def note_source(self, source: Source) -> None:
        """Take note of a function that is copied."""

    def noted(self, read: Read) -> Any:
        """Value of a variable, of which note is taken."""
        return read.value

    def _global(self, name: str, function: FunctionType) -> Any:
        """Value of a global; `ABSENT` if it has none, or is a builtin of Python's own."""
        scope = function.__globals__
        inherited: dict[str, Any] = getattr(function, "__builtins__")  # noqa: B009  # for mypy
        value = self.noted(Read(name, scope))
        if value is not ABSENT:
            return value
        if name in self._for_builtins:
            return self._for_builtins[name]
        read = Read(name, inherited)
        if read.value is getattr(builtins, name, ABSENT) and _is_builtin(read.value):
            return ABSENT
        return self.noted(read)

    def _code(self, code: CodeType) -> CodeType:
        constants = (
            self._code(value) if isinstance(value, CodeType) else self._constant(value)
            for value in code.co_consts
        )
        return code.replace(co_consts=tuple(constants))

    def _value(self, value: Any) -> Any:
        if type(value) is tuple and not _has_only_floats(value):
            return tuple(map(self._value, value))
        function = self.function_of(value)
        if function is None:
            return self._constant(value)
        if function not in self._called:
            self._called[function] = self._device(self.copy(function))
        return self._called[function]

    def function_of(self, value: Any) -> FunctionType | None:
        """The function to copy for a value; None for a constant."""
        return python_function(value)

    def _cell(self, name: str, cell: CellType) -> CellType:
        value = self.noted(Read(name, cell))
        return CellType() if value is ABSENT else CellType(self._value(value))


class _Recording(_Copies):
    """Copies that are exact, and take note of what they were made from."""

    def __init__(self, epilogue: str) -> None:
        super().__init__(lambda value: value, lambda copy: copy, {})
        self._epilogue = epilogue
        self.reads: list[Read] = []
        self.sources: list[Source] = []

    def note_source(self, source: Source) -> None:
        self.sources.append(source)

    def noted(self, read: Read) -> Any:
        self.reads.append(read)
        return read.value

    def function_of(self, value: Any) -> FunctionType | None:
        if isinstance(value, FunctionHolder):
            # Its copy is shared. Changes of what that was made from are changes of this one too.
            holder = value.current()
            self.reads += holder.reads
            self.sources += holder.sources
            return python_function(holder)
        function = python_function(value)
        if function is None or function is value:
            return function
        if option := refused_option(value):
            raise epilogue_error(
                self._epilogue,
                f"{function.__qualname__} is made by cuda.jit with {option}, which a kernel would "
                "leave out; make it a plain function, or one of cuda.jit(device=True).",
            )
        return function


def _is_builtin(value: Any) -> bool:
    """True for a function or class of Python's own."""
    return callable(value) and getattr(value, "__module__", None) == builtins.__name__


def _has_only_floats(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(
        type(value) is float or (type(value) is tuple and _has_only_floats(value))
        for value in values
    )
