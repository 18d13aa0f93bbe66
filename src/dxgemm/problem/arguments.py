"""Types of the arguments of `gemm` that are no arrays; checks of flags, sizes and names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, Literal, ParamSpec, SupportsComplex, SupportsFloat, TypeVar, get_args

import numpy as np

from dxgemm.errors import DxgemmError, PrecisionError, SettingError, ShapeError, shown
from dxgemm.problem.dtypes import MOST_MODULUS, Modulus

Number = complex | SupportsFloat | SupportsComplex  # NumPy's scalars among them
Kernel = str | tuple[str, Any] | tuple[str, Any, int]  # a name, its config, split-K slices
Conjugate = Literal["", "a", "b", "ab"]
Triangle = Literal["both", "lower", "upper"]
Triangular = Literal["lower", "upper", "unit lower", "unit upper"]  # of an operand
Precision = Literal[
    "tf32", "fast", "3m",
    "emulated", "emulated2", "emulated3", "emulated4", "emulated5", "emulated6",
    "emulated7", "emulated8", "emulated9", "emulated10", "emulated11", "emulated12", "emulated13",
    "emulated14", "emulated15", "emulated16", "emulated17", "emulated18", "emulated19",
    "emulated20",
]  # fmt: skip

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_arguments_of(
    function: Callable[_P, object],
) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Give a function the signature of another one, for its callers and for type checkers."""
    signature = inspect.signature(function)
    by_name = {name for name, entry in signature.parameters.items() if entry.kind == KEYWORD_ONLY}
    counts = range(2, len(signature.parameters) - len(by_name) + 1)

    def decorate(own: Callable[..., _R]) -> Callable[_P, _R]:
        @wraps(own)
        def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
            if len(arguments) not in counts or options.keys() - by_name:  # `bind` takes long
                try:
                    signature.bind(*arguments, **options)
                except TypeError as error:
                    raise TypeError(f"{own.__name__}(): {error}") from None
            return own(*arguments, **options)

        returned = inspect.signature(own).return_annotation
        call.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return call

    return decorate


def check_flag(name: str, value: Any) -> bool:
    """Return an option that is True or False, NumPy's among them."""
    if not isinstance(value, bool | np.bool_):
        raise SettingError(f"gemm: {name} is {shown(value)}; pass True or False.")
    return bool(value)


def with_modulus(modulus: Any, precision: Any) -> Any:
    """Return the precision, or the modulus, which goes with none."""
    if modulus is None:
        return precision
    is_integer = isinstance(modulus, int | np.integer) and not isinstance(modulus, bool)
    if not is_integer or not 2 <= modulus <= MOST_MODULUS:
        raise SettingError(
            f"gemm: modulus is {shown(modulus)}; pass an integer from 2 to {MOST_MODULUS}, or None."
        )
    if precision is not None:
        raise PrecisionError(
            f"gemm: precision is {shown(precision)}, but a product modulo {modulus} is exact; "
            "leave out precision= or modulus=."
        )
    return Modulus(int(modulus))


def check_size(name: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return a size as Python's own int."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or not least <= value <= most:
        raise ShapeError(f"gemm: {name} is {shown(value)}; pass an integer from {least} to {most}.")
    return int(value)


def check_name(name: str, value: Any, known: Collection[str], error: type[DxgemmError]) -> str:
    """Return an option that is one of the names that are known."""
    if not isinstance(value, str) or value not in known:
        raise error(f"gemm: {name} is {shown(value)}; pass {' or '.join(map(repr, known))}.")
    return value


def check_list(name: str, value: Any, error: type[DxgemmError]) -> tuple[Any, ...]:
    """Return an option that is a list or a tuple."""
    if not isinstance(value, list | tuple):
        raise error(f"gemm: {name} is {shown(value)}; pass a list or a tuple.")
    return tuple(value)


def check_triangular(value: Any) -> tuple[Triangular | None, Triangular | None]:
    """Return the triangles of a and of b."""
    known = get_args(Triangular)
    is_pair = isinstance(value, tuple) and len(value) == 2
    if not is_pair or not all(x is None or (isinstance(x, str) and x in known) for x in value):
        raise SettingError(
            f"gemm: triangular is {shown(value)}; pass the triangles of a and b, such as "
            f"('lower', None), of {', '.join(map(repr, known))} and None."
        )
    return value
