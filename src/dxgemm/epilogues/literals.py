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
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from dxgemm.epilogues.bytecode import ATTRIBUTES, GLOBALS, names_read
from dxgemm.epilogues.kinds import epilogue_error
from dxgemm.epilogues.reads import (
    ABSENT,
    Description,
    FrozenModule,
    FunctionHolder,
    Read,
    Source,
    cell_value,
    elementary_name,
    is_named,
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
    other: Callable[[Any], Any] = lambda value: value,
) -> FunctionType:
    """Copy a function for the compiler, with a type for each of its Python floats.

    Args:
        function: a Python function.
        literal: applied to every Python float among constants, defaults, variables and attributes
            of modules, also in tuples of floats alone; `numpy.float32`, for example. Complex
            numbers get parts of that type. Integers and NumPy's numbers stay as they are.
        device: applied to the copy of every plain function or epilogue that is called.
        elementary: replacements of the functions of `dxgemm.epilogues.elementary` by name, and of
            `abs`.
        other: applied to everything else that is no function to be copied.

    Raises:
        EpilogueError: functions call each other in a circle.
    """

    @cache
    def extreme(value: Any) -> Any:
        chosen: Any = _maximum if value is max else _minimum
        return device(chosen)

    def constant(value: Any) -> Any:
        if value is max or value is min:
            return extreme(value)
        if isinstance(value, FrozenModule):
            return _known_module(value)
        if name := elementary_name(value):
            return elementary.get(name, value)
        if value is abs:
            return elementary.get("abs", value)
        if type(value) is float:
            return literal(value)
        if type(value) is complex:
            return np.result_type(literal(0.0), np.complex64).type(value)
        if type(value) is tuple and _has_only_floats(value):
            return tuple(constant(entry) for entry in value)
        return other(value)

    return _Copies(constant, device).copy(function)


def _known_module(copy: FrozenModule) -> ModuleType:
    """`numba.cuda` itself for an equal copy: numba knows its functions by their module."""
    module = sys.modules.get(copy.__name__, copy)
    is_equal = all(vars(module).get(name) is vars(copy).get(name) for name in copy.__all__)
    return module if copy.__name__ == "numba.cuda" and is_equal else copy


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


def check_unchanged(reads: tuple[Read, ...], epilogue: str) -> None:
    """Compare the variables that a function reads with their recorded values.

    Raises:
        EpilogueError: a variable has another value now.
    """
    for read in reads:
        current = read.current()
        if current is not read.value and not _are_alike(current, read.value):
            raise epilogue_error(
                epilogue,
                f"{read.name} was {read.value!r} when the function was decorated and is "
                f"{current!r} now; kernels are compiled for the value it had: decorate the "
                "function again, or pass it as an operand.",
            )


def _are_alike(*values: Any) -> bool:
    """True if two values mean the same to a kernel."""
    try:
        first, second = (Description("").value("", _Recording("").value(one)) for one in values)
    except (ValueError, RecursionError):
        return False
    return first == second


class _Copies:
    """One walk through a function and all it calls.

    Attributes:
        reads: the variables that were copied.
        sources: the functions that were copied.
    """

    def __init__(
        self, constant: Callable[[Any], Any], device: Callable[[FunctionType], Any]
    ) -> None:
        self._constant = constant
        self._device = device
        self._called: dict[FunctionType, Any] = {}
        self._active: list[FunctionType] = []
        self.reads: list[Read] = []
        self.sources: list[Source] = []

    def copy(self, function: FunctionType) -> FunctionType:
        if function in self._active:
            raise epilogue_error(
                self._active[0].__name__,
                f"{function.__qualname__} calls itself, directly or through others; recursion "
                "cannot be compiled.",
            )
        self._active.append(function)
        source = source_of(function)
        self.sources.append(source)
        scope: dict[str, Any] = {
            "__name__": function.__globals__.get("__name__"),
            "__builtins__": builtins,
        }
        for name in sorted(names_read(source.code, GLOBALS)):
            value = self._global(name, function)
            if value is not ABSENT:
                scope[name] = self.value(value)
        copy = FunctionType(
            self._code(source.code),
            scope,
            function.__name__,
            source.defaults and tuple(map(self.value, source.defaults)),
            tuple(map(self._cell, source.code.co_freevars, function.__closure__ or ())) or None,
        )
        if defaults := source.keyword_defaults:
            copy.__kwdefaults__ = {
                name: self.value(self._read(f"default {name}", partial(defaults.get, name, ABSENT)))
                for name in list(defaults)
            }
        copy.__qualname__ = function.__qualname__
        self._active.pop()
        return copy

    def _read(self, name: str, current: Callable[[], Any]) -> Any:
        """Value of a variable, of which note is taken."""
        self.reads.append(Read(name, current))
        return self.reads[-1].value

    def _global(self, name: str, function: FunctionType) -> Any:
        """Value of a global or a builtin; `ABSENT` if it has none."""
        inherited: dict[str, Any] = getattr(function, "__builtins__")  # noqa: B009  # for mypy
        value = ABSENT
        for scope in (function.__globals__, inherited):
            if value is ABSENT:
                value = self._read(f"global {name}", partial(scope.get, name, ABSENT))
        return value

    def _code(self, code: CodeType) -> CodeType:
        constants = (
            self._code(value) if isinstance(value, CodeType) else self._constant(value)
            for value in code.co_consts
        )
        return code.replace(co_consts=tuple(constants))

    def value(self, value: Any) -> Any:
        if type(value) is tuple and not _has_only_floats(value):
            return tuple(map(self.value, value))
        # Modules that are compared are no function's.
        if isinstance(value, ModuleType) and is_named(value.__name__) and self._active:
            return self._module(value, names_read(self._active[-1].__code__, ATTRIBUTES))
        function = self.function_of(value)
        if function is None:
            return self._constant(value)
        if function not in self._called:
            self._called[function] = self._device(self.copy(function))
        return self._called[function]

    def _module(self, module: ModuleType, names: frozenset[str]) -> ModuleType:
        """Copy the attributes of a module that have these names."""
        copied: dict[str, Any] = {"__name__": module.__name__, "__all__": tuple(sorted(names))}
        for name in copied["__all__"]:
            current = partial(vars(module).get, name, ABSENT)
            value = self._read(f"{module.__name__}.{name}", current)
            if isinstance(value, ModuleType):
                copied[name] = self._module(value, names - {name})
            elif value is not ABSENT:
                copied[name] = self.value(value)
        return self._constant(FrozenModule(copied))

    def function_of(self, value: Any) -> FunctionType | None:
        """The function to copy for a value; None for a constant."""
        return python_function(value)

    def _cell(self, name: str, cell: CellType) -> CellType:
        value = self._read(f"closure variable {name}", partial(cell_value, cell))
        return CellType() if value is ABSENT else CellType(self.value(value))


class _Recording(_Copies):
    """Copies that are exact."""

    def __init__(self, epilogue: str) -> None:
        super().__init__(lambda value: value, lambda copy: copy)
        self._epilogue = epilogue

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


def _has_only_floats(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(
        type(value) is float or (type(value) is tuple and _has_only_floats(value))
        for value in values
    )
