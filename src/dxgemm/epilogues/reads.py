"""Dependencies of a function besides its arguments: found, checked for change, and hashed.

A compiled kernel holds the values that globals and closure variables had when it was compiled. So
each must be of a type that does not change in place. Its value is part of the kernel's identity,
and is recorded, to be compared when the epilogue is used.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import MAGIC_NUMBER
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from dxgemm.epilogues import elementary
from dxgemm.epilogues.kinds import epilogue_error

# Packages whose contents are known by their names: Python's own arithmetic, and the compiler's.
NAMED_PACKAGES = frozenset(
    {"builtins", "cmath", "math", "numba", "numba_cuda", "numpy", "operator"}
)
# So are the functions for which kernels have their own.
NAMED_MODULE = elementary.__name__
# Other flags say where a function was defined, not what it does.
MEANINGFUL_FLAGS = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
SIMPLE_TYPES = (type(None), bool, int, float, complex, str, bytes)


class _Absent:
    def __repr__(self) -> str:
        return "undefined"


ABSENT = _Absent()


class FunctionHolder:
    """A callable that stands for the Python function it holds."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function


@dataclass(frozen=True, eq=False)
class Read:
    """A global or closure variable that a function reads, with the value it had when recorded."""

    name: str
    place: dict[str, Any] | CellType
    value: Any

    def current(self) -> Any:
        if isinstance(self.place, CellType):
            return cell_value(self.place)
        return self.place.get(self.name, ABSENT)


def examine(function: FunctionType, epilogue: str) -> tuple[str, tuple[Read, ...]]:
    """Compute the digest of a function, and collect the variables that it reads.

    Equal digests mean equal behaviour in every process of one version of Python: the digest covers
    bytecode, constants, defaults, and the values of the globals and closure variables read.

    Args:
        function: a Python function.
        epilogue: the name to use in errors.

    Returns:
        The digest, sha256 as hexadecimal text, and the globals and closure variables that the
        function and the functions it calls read.

    Raises:
        EpilogueError: a value could change while a compiled kernel stays the same, or is not
            defined yet, or functions call each other in a circle.
    """
    examination = _Examination(epilogue)
    described = (MAGIC_NUMBER, examination.describe_function(function))
    return sha256(repr(described).encode()).hexdigest(), tuple(examination.reads)


def check_unchanged(reads: tuple[Read, ...], epilogue: str) -> None:
    """Compare the variables that a function reads with their recorded values.

    Raises:
        EpilogueError: a global or closure variable has another value now.
    """
    for read in reads:
        current = read.current()
        if current is not read.value and not _alike(current, read.value):
            raise epilogue_error(
                epilogue,
                f"{_place_name(read.place)} {read.name} was {read.value!r} when @dxgemm.epilogue "
                f"read it and is {current!r} now; kernels are compiled for the value it had: "
                "decorate the function again, or pass it as an operand.",
            )


def global_names(code: CodeType) -> frozenset[str]:
    """Names of all globals that a function's code reads, nested functions included."""
    return frozenset(
        instruction.argval
        for part in _nested(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )


def names_parameter(function: FunctionType, place: int) -> bool:
    """True if a function's code names one of its parameters, without which it cannot read it."""
    code = function.__code__
    name = code.co_varnames[place]
    named = (instruction.argval for instruction in dis.get_instructions(code))
    # Instructions of two variables name both.
    return any(name in value if isinstance(value, tuple) else name == value for value in named)


def cell_value(cell: CellType) -> Any:
    """Value of a closure variable; `ABSENT` if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def python_function(value: Any) -> FunctionType | None:
    """The function behind a plain function or an epilogue; None for anything else.

    Functions known by their names, such as those of `cuda.libdevice`, are not plain: the compiler
    knows them.
    """
    if isinstance(value, FunctionHolder):
        return value.function
    return value if isinstance(value, FunctionType) and not _qualified_name(value) else None


def elementary_name(value: Any) -> str | None:
    """The name of a function of `dxgemm.epilogues.elementary`; None for anything else."""
    is_one = isinstance(value, FunctionType) and value.__module__ == NAMED_MODULE
    return value.__name__ if is_one else None


def dispatched_function(value: Any) -> FunctionType | None:
    """Python function of a numba dispatcher, as made by `cuda.jit`; None for anything else."""
    if type(value).__module__.partition(".")[0] not in ("numba", "numba_cuda"):
        return None
    function = getattr(value, "py_func", None)
    return function if isinstance(function, FunctionType) else None


class _Examination:
    """One walk through a function and all it calls."""

    def __init__(self, epilogue: str) -> None:
        self.epilogue = epilogue
        self.reads: list[Read] = []
        self._active: list[FunctionType] = []

    def describe_function(self, function: FunctionType) -> object:
        """Describe what a function does, as nested tuples of text and numbers."""
        if function in self._active:
            raise epilogue_error(
                self.epilogue,
                f"{function.__qualname__} calls itself, directly or through others; recursion "
                "cannot be compiled.",
            )
        self._active.append(function)
        code, scope = function.__code__, function.__globals__
        keyword_defaults = sorted((function.__kwdefaults__ or {}).items())
        described = (
            _describe_code(code),
            self.describe(f"the defaults of {function.__qualname__}", function.__defaults__),
            tuple(
                (name, self.describe(f"the default {name}", value))
                for name, value in keyword_defaults
            ),
            tuple(
                (name, self._describe_global(name, scope)) for name in sorted(global_names(code))
            ),
            tuple(
                self._describe_read(Read(name, cell, cell_value(cell)))
                for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            ),
        )
        self._active.pop()
        return described

    def describe(self, name: str, value: Any) -> object:
        """Describe a value, which must be of a type that does not change in place."""
        if type(value) in SIMPLE_TYPES:
            return type(value).__name__, repr(value)
        if type(value) is tuple:
            return "tuple", tuple(self.describe(f"{name}[{i}]", v) for i, v in enumerate(value))
        if isinstance(value, np.generic) and not isinstance(value, np.void | np.object_):
            return type(value).__name__, repr(value)
        if isinstance(value, np.dtype):
            return "dtype", repr(value)
        if isinstance(value, ModuleType):
            return self._describe_module(name, value)
        if qualified_name := _qualified_name(value):
            return "named", qualified_name
        function = python_function(value) or dispatched_function(value)
        if function is not None:
            return "function", self.describe_function(function)
        if _is_numba_type(value):
            return "numba type", repr(value)
        raise epilogue_error(
            self.epilogue,
            f"{name} is {value!r} ({type(value).__name__}), which could change under a compiled "
            "kernel; pass it as an operand instead.",
        )

    def _describe_module(self, name: str, module: ModuleType) -> object:
        if module.__name__.partition(".")[0] not in NAMED_PACKAGES:
            raise epilogue_error(
                self.epilogue,
                f"{name} is the module {module.__name__}, whose contents could change under a "
                "compiled kernel; import the names you use: from "
                f"{module.__name__} import ..., or pass values as operands.",
            )
        return "module", module.__name__

    def _describe_global(self, name: str, scope: dict[str, Any]) -> object:
        if name not in scope and hasattr(builtins, name):
            self.reads.append(Read(name, scope, ABSENT))
            return "builtin"
        return self._describe_read(Read(name, scope, scope.get(name, ABSENT)))

    def _describe_read(self, read: Read) -> object:
        name = f"{_place_name(read.place)} {read.name}"
        if read.value is ABSENT:
            raise epilogue_error(self.epilogue, f"{name} has no value yet; define it above.")
        self.reads.append(read)
        return self.describe(name, read.value)


def _describe_code(code: CodeType) -> object:
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_nlocals,
        code.co_flags & MEANINGFUL_FLAGS,
        code.co_code,
        code.co_exceptiontable,
        code.co_names,
        len(code.co_cellvars),
        len(code.co_freevars),
        tuple(_describe_constant(constant) for constant in code.co_consts),
    )


def _describe_constant(constant: Any) -> object:
    if isinstance(constant, CodeType):
        return _describe_code(constant)
    if isinstance(constant, tuple):
        return tuple(_describe_constant(entry) for entry in constant)
    if isinstance(constant, frozenset):  # iterates in another order in each process
        return sorted(repr(_describe_constant(entry)) for entry in constant)
    return type(constant).__name__, repr(constant)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _qualified_name(value: Any) -> str | None:
    """Import path of a value of `NAMED_PACKAGES` or `NAMED_MODULE`; None for all others."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not (
        module == NAMED_MODULE or module.partition(".")[0] in NAMED_PACKAGES
    ):
        return None
    if not isinstance(name, str) or getattr(sys.modules.get(module), name, None) is not value:
        return None
    return f"{module}.{name}"


def _is_numba_type(value: Any) -> bool:
    module = type(value).__module__
    return module.partition(".")[0] in ("numba", "numba_cuda") and ".types" in module


def _alike(value: Any, other: Any) -> bool:
    """True if two values mean the same to a kernel."""
    if value is ABSENT or other is ABSENT:
        return False
    descriptions = _Examination(""), _Examination("")
    try:
        return descriptions[0].describe("", value) == descriptions[1].describe("", other)
    except ValueError:
        return False


def _place_name(place: dict[str, Any] | CellType) -> str:
    return "closure variable" if isinstance(place, CellType) else "global"
