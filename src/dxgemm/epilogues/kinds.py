"""What an epilogue's parameters can be, and what a bound one hands to a kernel."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_origin

import numpy as np

from dxgemm.errors import EpilogueError, ScalarError


@dataclass(frozen=True)
class Kind:
    """One kind of operand: `name` is "scalar", "integer", "row", "column", "matrix" or "output".

    Attributes:
        limits: of a number; None for any.
    """

    name: str
    meaning: str
    limits: tuple[float, float] | None = None

    @property
    def is_number(self) -> bool:
        return self.name in ("scalar", "integer")


SCALAR = Kind("scalar", "a scalar")
PROBABILITY = Kind("scalar", "a probability", (0.0, 1.0))
INTEGER = Kind("integer", "an integer")
ROW = Kind("row", "a row vector")
COLUMN = Kind("column", "a column vector")
MATRIX = Kind("matrix", "a matrix")
OUTPUT = Kind("output", "an output")
KINDS = {kind.name: kind for kind in (SCALAR, INTEGER, ROW, COLUMN, MATRIX, OUTPUT)}

Scalar = Annotated[float, SCALAR]  # a real number, one for all elements, in the type of sums
Probability = Annotated[float, PROBABILITY]  # a `Scalar` from 0 to 1
Integer = Annotated[int, INTEGER]  # a number of int64, one for all elements
RowVector = Annotated[float, ROW]  # (n,) or (batch, n): element [col]
ColumnVector = Annotated[float, COLUMN]  # (m,) or (batch, m): element [row]
Matrix = Annotated[float, MATRIX]  # (m, n) or (batch, m, n): element [row, col]


@dataclass(frozen=True)
class Parameter:
    """An operand of an epilogue before it is bound.

    Attributes:
        name: as the function or the decorator's `outputs` has it.
        kind: what may be bound to it.
        default: a one-tuple with the number that stands in if none is passed; empty for none.
    """

    name: str
    kind: Kind
    default: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class BoundOperand:
    """An operand with what was passed for it.

    Attributes:
        epilogue: name of the epilogue it belongs to.
        name: of the parameter or output.
        kind: "scalar", "integer", "row", "column", "matrix" or "output".
        value: the number or array as it was passed.
    """

    epilogue: str
    name: str
    kind: str
    value: Any


def kind_of(annotation: Any) -> Kind | None:
    """The kind an evaluated annotation stands for; None if it stands for none."""
    if get_origin(annotation) is Annotated:
        for entry in annotation.__metadata__:
            if isinstance(entry, Kind):
                return entry
    return None


def check_number(epilogue: str, name: str, kind: Kind, value: Any) -> None:
    """Refuse what cannot be a `Scalar` or an `Integer`.

    Raises:
        ScalarError: value is no real number on the host, is bool, overflows float64, or, for an
            `Integer`, is no integer of int64; or it is beyond the kind's limits, or NaN.
    """
    if type(value) is float and kind is SCALAR:
        return
    wanted: Callable[[Any], bool] = _is_integer if kind is INTEGER else _is_real
    if not wanted(value):
        needed = "an integer of 64 bits" if kind is INTEGER else "a real number"
        raise ScalarError(
            f"epilogue {epilogue}: {name} is {value!r} ({type(value).__name__}); {kind.meaning} "
            f"must be {needed}, held by Python or NumPy on the host."
        )
    if kind.limits is not None:
        least, most = kind.limits
        if not least <= value <= most:
            raise ScalarError(
                f"epilogue {epilogue}: {name} is {value!r}; {kind.meaning} is from {least:g} to "
                f"{most:g}."
            )


def fits(kind: Kind, shape: tuple[int, ...], m: int, n: int, batch: int) -> bool:
    """Whether an array of a shape can be bound to a kind for `batch` results of (m, n).

    Arrays that are read may lack the batch, or have one of 1, and are then the same for all. An
    output may lack it only where there is one result.
    """
    one = {ROW: (n,), COLUMN: (m,)}.get(kind, (m, n))
    if kind is OUTPUT:
        return shape == (batch, *one) or (batch == 1 and shape == one)
    return shape in (one, (1, *one), (batch, *one))


def fitting_shapes(kind: Kind, m: int, n: int, batch: int) -> str:
    """The shapes to name where one does not fit."""
    one = {ROW: (n,), COLUMN: (m,)}.get(kind, (m, n))
    if batch == 1:
        return str(one)
    return str((batch, *one)) if kind is OUTPUT else f"{one} or {(batch, *one)}"


def _is_real(value: Any) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool | np.bool_):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_integer(value: Any) -> bool:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool | np.bool_):
        return False
    return -(2**63) <= int(value) < 2**63


def epilogue_error(epilogue: str, what: str) -> EpilogueError:
    """An error that names the epilogue."""
    return EpilogueError(f"epilogue {epilogue}: {what}")
