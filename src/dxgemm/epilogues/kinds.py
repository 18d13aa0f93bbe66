"""An epilogue's parameters: their kinds, and what may be bound to each."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from typing import Annotated, Any, get_origin

import numpy as np

from dxgemm.errors import EpilogueError, ScalarError, shown

INNER = "inner "  # begins the name of a function that takes the place of the multiply-add
KERNEL = "kernel "  # begins the name of a kernel of the caller's, with tiles of `dxgemm.device`


@dataclass(frozen=True)
class Parameter:
    """Operand or output of an epilogue. An annotation such as `Scalar` holds one without names.

    Attributes:
        kind: "scalar", "integer", "row", "column", "matrix", "output", "mask" or "blocks".
        meaning: the kind in words.
        limits: least and largest value of a number; None for any.
        epilogue: name of the epilogue's function; empty in an annotation.
        name: name of the function's parameter, or of the output; empty in an annotation.
        default: a one-tuple with the number that stands in if none is passed; empty for none.
    """

    kind: str
    meaning: str
    limits: tuple[float, float] | None = None
    epilogue: str = ""
    name: str = ""
    default: tuple[Any, ...] = field(default=(), compare=False)

    @property
    def is_number(self) -> bool:
        return self.kind in ("scalar", "integer")


# Numbers, one for all elements: a real one in the type of sums, or one from 0 to 1; and an int64.
Scalar = Annotated[float, Parameter("scalar", "a scalar")]
Probability = Annotated[float, Parameter("scalar", "a probability", (0.0, 1.0))]
Integer = Annotated[int, Parameter("integer", "an integer")]
# Arrays (n,), (m,) and (m, n), or batches of them: elements [col], [row] and [row, col].
RowVector = Annotated[float, Parameter("row", "a row vector")]
ColumnVector = Annotated[float, Parameter("column", "a column vector")]
Matrix = Annotated[float, Parameter("matrix", "a matrix")]
# Arrays with an element for each block of the result, or of an operand.
BlockMask = Annotated[bool, Parameter("mask", "a block mask")]
BlockScales = Annotated[float, Parameter("blocks", "block scales")]
OUTPUT = Parameter("output", "an output")


def kind_of(annotation: Any) -> Parameter | None:
    """Find the kind of operand that an evaluated annotation names; None if it names no kind."""
    if get_origin(annotation) is Annotated:
        for entry in annotation.__metadata__:
            if isinstance(entry, Parameter):
                return entry
    return None


def checked_number(parameter: Parameter, value: Any) -> float:
    """Convert the value of a `Scalar` or an `Integer` to Python's own float or int.

    Raises:
        ScalarError: value is no real number on the host, is bool, overflows float64, or, for an
            `Integer`, is no integer of int64; or it is beyond the limits, or NaN.
    """
    if type(value) is float and parameter.kind == "scalar" and parameter.limits is None:
        return value
    is_integer = parameter.kind == "integer"
    if not (_is_integer(value) if is_integer else _is_real(value)):
        needed = "an integer of 64 bits" if is_integer else "a real number"
        raise ScalarError(
            f"epilogue {parameter.epilogue}: {parameter.name} is {shown(value)} "
            f"({type(value).__name__}); {parameter.meaning} must be {needed}, held by Python or "
            "NumPy on the host."
        )
    if parameter.limits is not None:
        least, most = parameter.limits
        if not least <= value <= most:
            raise ScalarError(
                f"epilogue {parameter.epilogue}: {parameter.name} is {shown(value)}; "
                f"{parameter.meaning} is from {least:g} to {most:g}."
            )
    return int(value) if is_integer else float(value)


def fits(parameter: Parameter, shape: tuple[int, ...], m: int, n: int, batch: int) -> bool:
    """True if an array of this shape can be bound to a parameter, for `batch` results of (m, n).

    Arrays that are read may lack the batch, or have one of 1, and are then the same for all. An
    output may lack it only where there is one result.
    """
    one = {"row": (n,), "column": (m,)}.get(parameter.kind, (m, n))
    if parameter.kind == "output":
        return shape == (batch, *one) or (batch == 1 and shape == one)
    return shape in (one, (1, *one), (batch, *one))


def fitting_shapes(parameter: Parameter, m: int, n: int, batch: int) -> str:
    """List the shapes that fit a parameter, for an error message."""
    one = {"row": (n,), "column": (m,)}.get(parameter.kind, (m, n))
    if batch == 1:
        return str(one)
    whole = str((batch, *one))
    return whole if parameter.kind == "output" else f"{one} or {whole}"


def _is_real(value: Any) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool | np.bool_):
        return False
    try:
        float(value)
    except Exception:  # beyond float64, or of a class of the caller's own
        return False
    return True


def _is_integer(value: Any) -> bool:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool | np.bool_):
        return False
    return -(2**63) <= int(value) < 2**63


def epilogue_error(epilogue: str, what: str) -> EpilogueError:
    """Make an error whose message names the epilogue, the "inner ..." function or the kernel."""
    kind = "" if epilogue.startswith((INNER, KERNEL)) else "epilogue "
    return EpilogueError(f"{kind}{epilogue}: {what}")
