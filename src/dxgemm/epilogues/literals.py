"""Copies of Python functions with other constants, for a compiler that reads globals as constants.

A Python float is weak in NumPy 2 (NEP 50): `0.5 * value` keeps the type of a float32 value. numba
types the literal 0.5 as float64 and computes in float64. A copy in which 0.5 is
`numpy.float32(0.5)` means to numba what the original means to NumPy. In the copy, comparisons take
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
    cell_value,
    elementary_name,
    global_names,
    python_function,
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
    function: FunctionType,
    constant: Callable[[Any], Any] = lambda value: value,
    device: Callable[[FunctionType], Any] = lambda copy: copy,
) -> FunctionType:
    """Copy a function; globals and closure of the copy are its own, with the values as of now.

    Args:
        function: a Python function.
        constant: applied to each constant, default, global and closure variable, except plain
            functions and epilogues.
        device: applied to the copy of every plain function or epilogue that is called, once each.

    Raises:
        EpilogueError: functions call each other in a circle.
    """
    return _Copies(constant, device, {}).copy(function)


class _Copies:
    def __init__(
        self,
        constant: Callable[[Any], Any],
        device: Callable[[FunctionType], Any],
        for_builtins: dict[str, Callable[..., Any]],
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
        scope = function.__globals__
        names = global_names(function.__code__) & scope.keys()
        stand_ins = global_names(function.__code__) & self._for_builtins.keys() - scope.keys()
        copy = FunctionType(
            self._code(function.__code__),
            {
                "__name__": scope.get("__name__"),
                "__builtins__": builtins,
                **{name: self._value(scope[name]) for name in sorted(names)},
                **{name: self._value(self._for_builtins[name]) for name in sorted(stand_ins)},
            },
            function.__name__,
            self._values(function.__defaults__),
            tuple(self._cell(cell) for cell in function.__closure__ or ()) or None,
        )
        if function.__kwdefaults__:
            defaults = function.__kwdefaults__
            copy.__kwdefaults__ = {name: self._value(value) for name, value in defaults.items()}
        copy.__qualname__ = function.__qualname__
        self._active.pop()
        return copy

    def _code(self, code: CodeType) -> CodeType:
        constants = (
            self._code(value) if isinstance(value, CodeType) else self._constant(value)
            for value in code.co_consts
        )
        return code.replace(co_consts=tuple(constants))

    def _value(self, value: Any) -> Any:
        function = python_function(value)
        if function is None:
            return self._constant(value)
        if function not in self._called:
            self._called[function] = self._device(self.copy(function))
        return self._called[function]

    def _values(self, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        return None if values is None else tuple(self._value(value) for value in values)

    def _cell(self, cell: CellType) -> CellType:
        value = cell_value(cell)
        return CellType() if value is ABSENT else CellType(self._value(value))


def _has_only_floats(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(
        type(value) is float or (type(value) is tuple and _has_only_floats(value))
        for value in values
    )
