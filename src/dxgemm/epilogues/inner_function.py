"""`@inner`: decorator of a function that takes the place of the multiply-add in a product."""

from __future__ import annotations

import dis
import math
import numbers
from collections.abc import Callable
from functools import update_wrapper
from itertools import pairwise
from types import FunctionType
from typing import Any, overload

import numpy as np

from dxgemm.epilogues import elementary
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.epilogues.function import Epilogue, _by_key, check_plain
from dxgemm.epilogues.kinds import INNER, epilogue_error
from dxgemm.epilogues.reads import elementary_name
from dxgemm.errors import EpilogueError, SettingError, named_in_errors, shown
from dxgemm.problem.arguments import check_flag

OPERATIONS_OF_MATH = 8  # of a function such as exp, about
Total = float | tuple[float | None, ...]
MOST_PARTS = 4  # numbers per total, which a thread keeps in registers


def added(total: Any, value: Any) -> Any:
    """total + value"""
    return total + value


# Functions that add a value to a total, with the total of no values.
WAYS: dict[str, tuple[Any, float]] = {
    "sum": (added, 0.0),
    "min": (elementary.smaller, math.inf),
    "max": (elementary.larger, -math.inf),
}


class Inner(Epilogue):
    """Function (total, x, y) -> total, in the place of total + x * y: for `gemm(inner=)`.

    It is an epilogue that kernels call elsewhere: it is copied, compiled, pickled and found in the
    cache in the same way.

    Attributes:
        adding: epilogue of the function (total, value) -> total.
        way: "sum", "min" or "max"; "" for another function.
        start: total of no values; a tuple if totals have several numbers.
        begins_with_c: True if the last number of a total is an element of c at first.
        closing: epilogue of the function (total) -> number, where totals have several; else None.
        is_symmetric: True if x and y may be exchanged.
        chain: the epilogue that a call without another one has.
    """

    is_inner = True
    prefix = INNER
    uses_row = uses_col = False

    def __init__(
        self, step: FunctionType, adding: Epilogue, way: str, start: Total,
        finish: Epilogue | None, is_symmetric: bool, made_of: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        self.adding, self.way, self.start = adding, way, start
        self.is_symmetric, self._finish, self._made_of = is_symmetric, finish, made_of
        self.closing = finish if isinstance(start, tuple) else None
        self.begins_with_c = isinstance(start, tuple) and start[-1] is None
        self.returned = self.parts
        super().__init__(step, ())
        for other in (adding, *((finish,) if finish else ())):
            self.reads += other.reads
            self.sources += other.sources
        stages = (self,) if finish is None or self.closing else (self, finish)
        self.chain = BoundEpilogue(stages, ())
        self.key += f" {self.identity!r}"
        self._found_by_key = _by_key.setdefault(self.key, self)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Call the function (total, x, y), as in the body of another one."""
        return self.function(*arguments, **named)

    @property
    def identity(self) -> tuple[Any, ...]:
        own = super().identity, self.adding.digest, self.way, repr(self.start), self.is_symmetric
        return *own, self._finish.digest if self._finish else ""

    @property
    def _parts(self) -> tuple[Any, ...]:
        rest = self.way, self.start, self._finish, self.is_symmetric
        return self.recorded, self.adding, *rest

    @property
    def bound(self) -> BoundEpilogue:
        raise EpilogueError(f"{self.name} is no epilogue; pass it as inner=.")

    @property
    def parts(self) -> int:
        """Numbers per total."""
        return len(self.start) if isinstance(self.start, tuple) else 1

    @property
    def takes_factors(self) -> bool:
        """True if alpha and beta may be any numbers."""
        return self.way == "sum"

    @property
    def begins_whole(self) -> bool:
        """True if totals of no values are integers, or infinities, which stand for the largest."""
        parts = self.start if isinstance(self.start, tuple) else (self.start,)
        return all(part is None or math.isinf(part) or part % 1 == 0 for part in parts)

    @property
    def operations(self) -> int:
        """Instructions per pair of elements, about: magnitudes and signs cost none.

        A product that a function returns is added in the instruction that multiplies.
        Functions of `math` are told by their names, and count as `OPERATIONS_OF_MATH` each.
        """
        called = [cell.cell_contents for cell in self.recorded.__closure__ or ()]
        functions = [self.recorded, *(f for f in called if isinstance(f, FunctionType))]
        count = sum(elementary_name(function) is not None for function in functions)
        for function in functions:
            if elementary_name(function) is None:
                steps = list(dis.get_instructions(function))
                count += sum(step.opname in ("BINARY_OP", "COMPARE_OP") for step in steps)
                ends = [
                    step.argrepr for step, end in pairwise(steps) if end.opname == "RETURN_VALUE"
                ]
                count -= self.way == "sum" and function is not self.recorded and ends == ["*"]
                called_names = set(function.__code__.co_names) & vars(math).keys()
                count += OPERATIONS_OF_MATH * sum(callable(vars(math)[n]) for n in called_names)
        return max(2, count)

    def start_of(self, dtype: str) -> tuple[Any, ...]:
        """Total of no values in the dtype of totals; of integers, the nearest to infinity."""
        kind = np.dtype(dtype)
        given = self.start if isinstance(self.start, tuple) else (self.start,)
        start = tuple(part or 0.0 for part in given)
        if kind.kind == "i":
            limits = np.iinfo(kind)
            start = tuple(min(max(part, limits.min), limits.max) for part in start)
        return tuple(kind.type(part) for part in start)

    def _renewed(self) -> Inner:
        return _inner_of(*self._made_of)


@overload
def inner(function: Callable[..., Any], /) -> Inner: ...
@overload
def inner(
    function: Callable[..., Any], /, add: str | Callable[..., Any] = "sum", *,
    identity: Total | None = None, finish: Callable[..., Any] | None = None,
    symmetric: bool = False,
) -> Inner: ...  # fmt: skip
@overload
def inner(
    *, add: str | Callable[..., Any] = "sum", identity: Total | None = None,
    finish: Callable[..., Any] | None = None, symmetric: bool = False,
) -> Callable[[Callable[..., Any]], Inner]: ...  # fmt: skip
@named_in_errors("inner")
def inner(
    function: Any = None, /, add: Any = "sum", *,
    identity: Any = None, finish: Any = None, symmetric: Any = False,
) -> Any:  # fmt: skip
    """Make a product of a Python function: C[i, j] adds up function(A[i, p], B[p, j]) over p.

        l1 = dxgemm.inner(lambda x, y: abs(x - y))
        distances = dxgemm.gemm(a, b, inner=l1)

        @dxgemm.inner(add="min")
        def min_plus(x, y):
            return x + y

    `dxgemm.inners` has these and more. x and y are numbers of the dtype of sums: float16 and
    bfloat16 are widened to float32, integers of up to 32 bits to int32. What the function returns
    is converted to it before it is added. Complex numbers are summed, by "sum".

    Args:
        function: a Python function of (x, y), or of (total, x, y) if it adds too; what it may do
            and depend on is said at `dxgemm.epilogue`.
        add: how values are added: "sum"; "min" or "max", which NaN passes through; or a function
            of (total, value), which must be associative. It also adds totals, and c.
        identity: total of no values, such as 1.0 for a product; it goes with a function for `add`.
            A tuple makes totals of several numbers: functions then take and return such tuples. If
            its last number is None, that of C[i, j] is the element of c, and beta is 1.
        finish: function of a total, applied in the end, such as a square root. It makes one number
            of a total that has several.
        symmetric: True if function(x, y) is function(y, x) to the last bit: `gemm_symmetric` takes
            no other one.

    Raises:
        EpilogueError: a function has other parameters, or is none that a kernel can be compiled of.
        SettingError: `add` is unknown, or has no identity.
    """
    arguments = add, identity, finish, symmetric
    if function is None:
        return lambda function: _inner_of(function, *arguments)
    return _inner_of(function, *arguments)


@named_in_errors("inner")
def _inner_of(function: Any, add: Any, identity: Any, finish: Any, symmetric: Any) -> Inner:
    made_of = function, add, identity, finish, symmetric
    is_symmetric = check_flag("symmetric", symmetric)
    check_plain(function, INNER)
    count = _count(function, (2, 3), "(x, y), or (total, x, y)")
    if not isinstance(identity, tuple):
        _check_value(function)
    way, start = add if isinstance(add, str) else "", identity
    if isinstance(add, str):
        if add not in WAYS:
            raise SettingError(
                f'inner: add is {shown(add)}; pass "sum", "min", "max", or a function of '
                "(total, value) with its identity."
            )
        if identity is not None:
            raise SettingError(f"inner: {add!r} has its identity; leave identity out.")
        add, start = WAYS[add]
    else:
        check_plain(add, INNER)
        if _count(add, (2,), "(total, value)") and not isinstance(identity, tuple):
            _check_value(add)
        start = _start_of(identity, add)
        if isinstance(start, tuple) and finish is None:
            raise SettingError(
                f"inner: a total of {len(start)} numbers is no result; pass finish=, a function "
                "that makes one number of it."
            )
    is_tuple = isinstance(start, tuple)
    if isinstance(start, tuple) and start[-1] is None and is_symmetric:
        raise SettingError(
            "inner: symmetric=True does not go with totals that begin with c, which may be "
            "another one on either side of the diagonal."
        )
    adding = Epilogue(_adding_of(function, add), ())
    step = function if count == 3 else _step_of(function, add, is_tuple)
    finishing = None if finish is None else _finish_of(finish, is_tuple)
    return Inner(step, adding, way, start, finishing, is_symmetric, made_of)


def _start_of(identity: Any, add: FunctionType) -> Total:
    """The identity of a function that adds, as floats, but for integers that are none; or None."""
    parts = identity if isinstance(identity, tuple) else (identity,)
    known = parts[:-1] if len(parts) > 1 and parts[-1] is None else parts
    are_numbers = all(isinstance(x, numbers.Real) and not isinstance(x, bool) for x in known)
    if not are_numbers or (isinstance(identity, tuple) and not 2 <= len(parts) <= MOST_PARTS):
        raise SettingError(
            f"inner: identity is {shown(identity)}; pass the number that add={add.__name__} "
            f"leaves as it is, such as 1.0 for a product, or a tuple of 2 to {MOST_PARTS}."
        )
    if isinstance(identity, tuple):
        return tuple(None if part is None else _exact(part) for part in parts)
    return _exact(identity)


def _exact(number: Any) -> float:
    """The number as a float; an integer that no float has as Python's own."""
    is_whole = isinstance(number, numbers.Integral)
    return int(number) if is_whole and int(number) != float(number) else float(number)


def _adding_of(function: FunctionType, add: FunctionType) -> FunctionType:
    def adding(total, value):  # type: ignore[no-untyped-def]
        return add(total, value)

    return update_wrapper(adding, function)  # type: ignore[return-value]


def _step_of(function: FunctionType, add: FunctionType, is_tuple: bool) -> FunctionType:
    if is_tuple:

        def step(total, x, y):  # type: ignore[no-untyped-def]
            return add(total, function(x, y))

    else:

        def step(total, x, y):  # type: ignore[no-untyped-def]
            return add(total, elementary.like(function(x, y), total))

    return update_wrapper(step, function)  # type: ignore[return-value]


def _finish_of(function: Any, is_tuple: bool) -> Epilogue:
    check_plain(function, INNER)
    _count(function, (1,), "a total")
    if is_tuple:
        return Epilogue(function, ())
    _check_value(function)

    def finish(value, row, col):  # type: ignore[no-untyped-def]
        return function(value)

    return Epilogue(update_wrapper(finish, function), ())  # type: ignore[arg-type]


def _check_value(function: FunctionType) -> None:
    """Refuse a function that returns no number, as far as the host can tell."""
    try:
        with np.errstate(all="ignore"):
            value = function(*[np.float32(1.0)] * function.__code__.co_argcount)
    except Exception:  # of what only kernels compute
        return
    if not isinstance(value, numbers.Number | np.bool_ | None):  # None is found by its code
        raise epilogue_error(
            INNER + function.__name__, f"it returns {shown(value)}; return one number."
        )


def _count(function: FunctionType, counts: tuple[int, ...], wanted: str) -> int:
    """Number of parameters of a function, all of which are passed by position."""
    code = function.__code__
    has_more = code.co_kwonlyargcount or function.__defaults__ or code.co_flags & 0x0C  # *, **
    if has_more or code.co_argcount not in counts:
        listed = ", ".join(code.co_varnames[: code.co_argcount]) or "none"
        raise epilogue_error(
            INNER + function.__name__, f"its parameters are {listed}; it is a function of {wanted}."
        )
    return code.co_argcount
