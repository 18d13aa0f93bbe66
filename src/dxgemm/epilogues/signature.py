"""Signature of an epilogue: its operands, from annotations, and the names of its outputs."""

from __future__ import annotations

import inspect
import keyword
from dataclasses import replace
from types import FunctionType
from typing import Any

from dxgemm.epilogues.kinds import OUTPUT, Parameter, checked_number, epilogue_error, kind_of
from dxgemm.epilogues.reads import cell_value
from dxgemm.errors import EpilogueError, ScalarError, shown

LEADING = ("value", "row", "col")
PAIR_LEADING = ("first", "second", "row", "col")
KIND_NAMES = "Scalar, Integer, RowVector, ColumnVector or Matrix"


def parameters_of(function: FunctionType, first: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Parameters after the `first` ones, which every function of its kind has."""
    name = function.__name__
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except NameError as error:  # annotations that are evaluated only now
        raise epilogue_error(name, f"its annotations cannot be read: {error}.") from None
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise epilogue_error(name, f"{parameter} takes any number; name each operand.")
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise epilogue_error(
                name, f"{parameter.name} is keyword-only; kernels pass operands by position."
            )
    leading, operands = parameters[: len(first)], parameters[len(first) :]
    if len(leading) < len(first):
        listed = ", ".join(parameter.name for parameter in parameters) or "none"
        count, names = ("three", "value") if first is LEADING else ("four", "first, second")
        raise epilogue_error(
            name, f"its parameters are {listed}; the first {count} are {names}, row and col."
        )
    for parameter in leading:
        if parameter.default is not parameter.empty:
            raise epilogue_error(name, f"{parameter.name} has a default, but is always passed.")
    return tuple(_parameter(function, parameter) for parameter in operands)


def _parameter(function: FunctionType, parameter: inspect.Parameter) -> Parameter:
    epilogue, name = function.__name__, parameter.name
    kind = kind_of(_evaluated(function, parameter))
    if kind is None:
        annotation = "no annotation"
        if parameter.annotation is not parameter.empty:
            annotation = f"the annotation {shown(parameter.annotation)}"
        raise epilogue_error(
            epilogue, f"{name} has {annotation}; annotate it as {KIND_NAMES} of dxgemm.epilogues."
        )
    entry = replace(kind, epilogue=epilogue, name=name)
    if parameter.default is parameter.empty:
        return entry
    if not kind.is_number:
        raise epilogue_error(epilogue, f"{name} is {kind.meaning}, which cannot have a default.")
    try:
        checked_number(entry, parameter.default)
    except ScalarError as error:
        raise EpilogueError(str(error)) from None
    return replace(entry, default=(parameter.default,))


def _evaluated(function: FunctionType, parameter: inspect.Parameter) -> Any:
    """Evaluate the annotation of a parameter, which may be text (PEP 563)."""
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell_value(cell) for name, cell in cells}
    try:
        return eval(annotation, function.__globals__, closure)
    except Exception as error:
        raise epilogue_error(
            function.__name__,
            f"the annotation {annotation!r} of {parameter.name} cannot be read: {error}; import "
            f"{KIND_NAMES} from dxgemm.epilogues at the top of the module.",
        ) from None


def outputs_of(
    epilogue: str, outputs: Any, parameters: tuple[Parameter, ...]
) -> tuple[Parameter, ...]:
    names: list[Any] = [*outputs] if isinstance(outputs, list | tuple) else [None]
    taken = {parameter.name for parameter in parameters}
    are_names = all(
        isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
        for name in names
    )
    if not are_names:
        raise epilogue_error(
            epilogue, f'outputs is {shown(outputs)}; pass names, such as ("before",).'
        )
    if len(set(names)) < len(names) or taken & set(names):
        raise epilogue_error(
            epilogue, f"outputs is {shown(outputs)}; names of operands and outputs must all differ."
        )
    return tuple(replace(OUTPUT, epilogue=epilogue, name=name) for name in names)
