"""Dependencies of a function besides its arguments: what it may depend on, and their digest.

A compiled kernel holds the values that globals and closure variables had when the function was
copied for it (`dxgemm.epilogues.literals.record`). So each must be of a type that does not change
in place, and its value is part of the kernel's identity. The digest is that of the copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.util import MAGIC_NUMBER
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from dxgemm.epilogues import elementary
from dxgemm.epilogues.bytecode import GLOBALS, calls_taking, ends_of, names_read, nested
from dxgemm.epilogues.kinds import INNER, KERNEL, epilogue_error

# Packages whose contents are known by their names: Python's own arithmetic, and the compiler's.
NAMED_PACKAGES = frozenset(
    {"_operator", "builtins", "cmath", "math", "numba", "numba_cuda", "numpy", "operator"}
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
    """A callable that stands for the copy of a Python function that it holds.

    Attributes:
        recorded: the copy, which compilers get.
        reads: the variables that it was made from.
        sources: the functions that it was made from.
    """

    recorded: Any  # a function; its type would make it a method
    reads: tuple[Read, ...]
    sources: tuple[Source, ...]

    def current(self) -> FunctionHolder:
        """Holder of the function as its code is now."""
        return self


class Read:
    """A variable that is copied, with its value now."""

    __slots__ = ("current", "name", "value")

    def __init__(self, name: str, current: Callable[[], Any]) -> None:
        self.name, self.current, self.value = name, current, current()


class FrozenModule(ModuleType):
    """Copy of a module: the attributes that a function may read, with their values as of then."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        super().__init__(attributes["__name__"])
        vars(self).update(attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenModule, (vars(self),)


class KeyedModule(ModuleType):
    """A module to numba, whose attributes are made when they are read.

    Attributes:
        key: text that stands for all that a function may read of it.
    """

    key: str

    def anew(self) -> KeyedModule:
        """Another one of the same key, with functions that no compiler has seen."""
        raise NotImplementedError


class Source(NamedTuple):
    """A function that is copied, with its code and defaults."""

    function: FunctionType
    code: CodeType
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None


def source_of(function: FunctionType) -> Source:
    """Read the code and the defaults of a function."""
    return Source(function, function.__code__, function.__defaults__, function.__kwdefaults__)


def are_outdated(sources: tuple[Source, ...]) -> bool:
    """True if code or defaults were replaced in place, as IPython's %autoreload does."""
    for function, code, defaults, keyword_defaults in sources:
        if (
            function.__code__ is not code
            or function.__defaults__ is not defaults
            or function.__kwdefaults__ is not keyword_defaults
        ):
            return True
    return False


def digest_of(function: FunctionType, epilogue: str) -> str:
    """Compute the digest of a copy: sha256 as hexadecimal text.

    Equal digests mean equal behaviour in every process of one version of Python: the digest covers
    bytecode, constants, defaults, and the values of the globals and closure variables read.

    Args:
        function: a copy by `record`, whose globals and closure nobody else has.
        epilogue: the name to use in errors.

    Raises:
        EpilogueError: a value could change while a compiled kernel stays the same, or is not
            defined yet; or the function can end without a value.
    """
    described = MAGIC_NUMBER, Description(epilogue).function(function, is_called=False)
    return sha256(repr(described).encode()).hexdigest()


def reads_parameter(function: FunctionType, place: int) -> bool:
    """True if a copy by `record` may read a parameter, or a function to which it is passed may."""
    code = function.__code__
    calls = calls_taking(code, code.co_varnames[place]) if place < code.co_argcount else None
    if calls is None:
        return True
    closure = zip(code.co_freevars, map(cell_value, function.__closure__ or ()))
    variables = function.__globals__ | dict(closure)
    called = [(python_function(variables.get(name)), argument) for name, argument in calls]
    return any(other is None or reads_parameter(other, argument) for other, argument in called)


def cell_value(cell: CellType) -> Any:
    """Value of a closure variable; `ABSENT` if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def python_function(value: Any) -> FunctionType | None:
    """The function behind a plain function, an epilogue or a dispatcher of numba; else None.

    Functions known by their names, such as those of `cuda.libdevice`, are not plain: the compiler
    knows them.
    """
    if isinstance(value, FunctionHolder):
        function: FunctionType = value.recorded
        return function
    if isinstance(value, FunctionType):
        return None if _qualified_name(value) else value
    if not _is_of_numba(value) or _qualified_name(value):
        return None
    called = getattr(value, "py_func", None)
    return called if isinstance(called, FunctionType) else None


def refused_option(dispatcher: Any) -> str | None:
    """Option of `cuda.jit` with which a function is more than its Python code; None without."""
    options = getattr(dispatcher, "targetoptions", None)
    if options is None:  # of the simulator
        options = {"device": dispatcher._device, "fastmath": dispatcher._fastmath}
    if not options.get("device", True):
        return "device=False"
    if not getattr(dispatcher, "_can_compile", True):  # the simulator does not tell
        return "a signature"
    return next((f"{name}=" for name in ("fastmath", "link") if options.get(name)), None)


def elementary_name(value: Any) -> str | None:
    """The name of a function of `dxgemm.epilogues.elementary`; None for anything else."""
    is_one = isinstance(value, FunctionType) and value.__module__ == NAMED_MODULE
    return value.__name__ if is_one else None


class Description:
    """One walk through a copied function and all it calls."""

    def __init__(self, epilogue: str) -> None:
        self.epilogue = epilogue

    def function(self, function: FunctionType, is_called: bool = True) -> object:
        """Describe what a function does, as nested tuples of text and numbers."""
        code, scope = function.__code__, function.__globals__
        self._check_code(code, is_called)
        keyword_defaults = sorted((function.__kwdefaults__ or {}).items())
        return (
            _describe_code(code),
            self.value(f"the defaults of {function.__qualname__}", function.__defaults__),
            tuple((name, self.value(f"the default {name}", v)) for name, v in keyword_defaults),
            tuple(
                (name, self.value(f"global {name}", scope.get(name, ABSENT)))
                for name in sorted(names_read(code, GLOBALS))
            ),
            tuple(
                self.value(f"closure variable {name}", cell_value(cell))
                for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            ),
        )

    def value(self, name: str, value: Any) -> object:
        """Describe a value, which must be of a type that does not change in place."""
        if value is ABSENT:
            raise epilogue_error(self.epilogue, f"{name} has no value yet; define it above.")
        if type(value) in SIMPLE_TYPES:
            return type(value).__name__, repr(value)
        if type(value) is tuple:
            return "tuple", tuple(self.value(f"{name}[{i}]", v) for i, v in enumerate(value))
        is_scalar = isinstance(value, np.generic) and not isinstance(value, np.void | np.object_)
        if is_scalar and np.dtype(type(value)).type is type(value):  # no subclass
            return type(value).__name__, value.dtype.str, value.tobytes()
        if isinstance(value, np.dtype):
            return "dtype", repr(value)
        if isinstance(value, KeyedModule):
            return "keyed", value.key
        if isinstance(value, FrozenModule):
            named = ((a, f"{value.__name__}.{a}", v) for a, v in sorted(vars(value).items()))
            return "module", tuple((a, self.value(path, v)) for a, path, v in named)
        if qualified_name := _qualified_name(value):
            return "named", qualified_name
        function = python_function(value)
        if function is not None:
            return "function", self.function(function)
        if _is_of_numba(value) and ".types" in type(value).__module__:
            return "numba type", repr(value)
        what = f"{value!r} ({type(value).__name__})"
        way_out = "pass it as an operand instead"
        if self.epilogue.startswith(INNER):  # which has no operands
            way_out = "use a number or a tuple"
        elif self.epilogue.startswith(KERNEL):
            way_out = "pass it as an argument instead"
        if isinstance(value, ModuleType):
            what = f"the module {value.__name__}"
            way_out = f"import the names you use: from {value.__name__} import ..."
        raise epilogue_error(
            self.epilogue,
            f"{name} is {what}, which could change under a compiled kernel; {way_out}.",
        )

    def _check_code(self, code: CodeType, is_called: bool) -> None:
        """Refuse code that may end without a value, or does what no kernel can.

        A function that is called may return nothing at all, if nothing is made of that.
        """
        for part in nested(code):
            ends, unfit = ends_of(part)
            name = part.co_qualname
            if unfit:
                raise epilogue_error(self.epilogue, f"{name} {unfit}, which a kernel cannot.")
            if "none" in ends and ("value" in ends or not (is_called or part is not code)):
                raise epilogue_error(
                    self.epilogue,
                    f"{name} can end without returning a value; return one on every path.",
                )


def _describe_code(code: CodeType) -> object:
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_varnames[: code.co_argcount + code.co_kwonlyargcount],  # calls may name them
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


def _qualified_name(value: Any) -> str | None:
    """Import path of a value of `NAMED_PACKAGES` or `NAMED_MODULE`; None for all others."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    scope = getattr(getattr(value, "py_func", value), "__globals__", None)
    if scope is not None:  # `functools.wraps` copies __module__
        module = scope.get("__name__")
    if not isinstance(module, str) or not is_named(module):
        return None
    if not isinstance(name, str) or getattr(sys.modules.get(module), name, None) is not value:
        return None
    return f"{module}.{name}"


def is_named(module: str) -> bool:
    return module == NAMED_MODULE or module.partition(".")[0] in NAMED_PACKAGES


def _is_of_numba(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("numba", "numba_cuda")
