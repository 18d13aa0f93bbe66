"""`@epilogue`: decorator of a Python function of an element, its row and column, and operands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, update_wrapper
from pickle import PicklingError
from types import FunctionType
from typing import Any, overload
from weakref import WeakValueDictionary

import numpy as np

from dxgemm.epilogues.chain import BoundEpilogue, shape_of
from dxgemm.epilogues.host import host_function
from dxgemm.epilogues.kinds import Parameter, checked_number, epilogue_error
from dxgemm.epilogues.literals import check_unchanged, compiled_function, record
from dxgemm.epilogues.reads import FunctionHolder, are_outdated, digest_of, reads_parameter
from dxgemm.epilogues.signature import LEADING, PAIR_LEADING, outputs_of, parameters_of
from dxgemm.errors import DxgemmError, EpilogueError, named_in_errors, shown
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.arguments import check_flag


class Epilogue(FunctionHolder):
    """Function that is fused into the kernel; a call with operands binds them to it.

    Two epilogues are equal if they can share a kernel. They are pickled by value, because a build
    in another process may not be able to import the function.

    Attributes:
        function: the function that was decorated.
        recorded: the copy of it that is compiled, with all that it depends on.
        parameters: its parameters after value, row and col; or after both values of a pair.
        outputs: the matrices that it writes besides the result.
        operands: `parameters`, then `outputs`.
        digest: sha256 of `recorded`, as hexadecimal text.
        key: text that stands for the epilogue: see `find_epilogue`.
        shape: `BoundEpilogue.shape` of a chain of this epilogue alone.
        takes_pairs: True if it makes one value of two neighbouring columns.
        returns_real: True if it makes a real number of a complex one.
    """

    is_inner = False  # True for an `Inner`, which takes the place of the multiply-add
    prefix = ""  # of its name
    returned = 1  # numbers that it returns beside its outputs

    def __init__(
        self,
        function: FunctionType,
        parameters: tuple[Parameter, ...],
        outputs: tuple[Parameter, ...] = (),
        takes_pairs: bool = False,
        returns_real: bool = False,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = self.prefix + function.__name__
        self.recorded, self.reads, self.sources = record(function, self.name)
        self.digest = digest_of(self.recorded, self.name)
        self.parameters, self.outputs = parameters, outputs
        self.operands = parameters + outputs
        self.takes_pairs, self.returns_real = takes_pairs, returns_real
        self._names = [entry.name for entry in self.operands]
        # Number of operands that need no check; -1 if there are numbers, outputs or variables.
        needs_checks = any(entry.is_number for entry in parameters) or outputs or self.reads
        self._array_count = -1 if needs_checks else len(parameters)
        self._arguments = len(PAIR_LEADING if takes_pairs else LEADING) + len(parameters)
        self._code = self.sources[0].code
        self._successor: Epilogue | None = None
        self._stages = (self,)
        self.shape = shape_of(self._stages, None)
        kinds = ", ".join(f"{entry.name}: {entry.kind}" for entry in self.operands)
        self.key = f"{self.name}({kinds}) {self.digest}" + (" real" if returns_real else "")
        # Kept, so that the key is known as long as one of equal epilogues is alive.
        self._found_by_key = _by_key.setdefault(self.key, self)

    def __repr__(self) -> str:
        return f"<epilogue {self.name}({', '.join(self._names)})>"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Epilogue) and self.identity == other.identity)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for equal epilogues; it keeps none alive."""
        counts = len(self.parameters), len(self.outputs)
        return self.digest, *counts, self.takes_pairs, self.returns_real

    def __reduce__(self) -> tuple[Any, ...]:
        from numba.cloudpickle import dumps, loads

        try:
            return _restored, (type(self), loads, dumps(self._parts))
        except PicklingError as error:
            raise epilogue_error(self.name, f"{error}; decorate the function again.") from None

    @property
    def _parts(self) -> tuple[Any, ...]:
        """Arguments that make an equal one in another process."""
        return self.recorded, self.parameters, self.outputs, self.takes_pairs, self.returns_real

    def __call__(self, /, *operands: Any, **named: Any) -> Any:
        """Bind operands; or call the function, if value, row and col come before them.

        Args:
            *operands: a number or array for each parameter. Or value (two for a pair), row, col and
                an operand for every parameter: then the function is called, as in the body of
                another epilogue.
            **named: parameters by their names, and an array to write for each output.

        Returns:
            A `BoundEpilogue`, or what the function returns.

        Raises:
            EpilogueError: an operand is missing, unknown, or passed twice, or a global or closure
                variable that the function reads has changed since it was decorated.
            ScalarError: a `Scalar` or `Integer` is bound to something else.
        """
        is_plain = len(operands) == self._array_count and not named
        if is_plain and self.function.__code__ is self._code:
            return BoundEpilogue(self._stages, operands, None, self.shape)
        if len(operands) == self._arguments and not named:
            return self.function(*operands)
        try:
            current = refreshed(self)
            if current is not self:
                return current(*operands, **named)
            return BoundEpilogue(self._stages, self._bind(operands, named), None, self.shape)
        except DxgemmError as error:
            error.name_call()
            raise

    def __or__(self, other: Any) -> BoundEpilogue:
        return self.bound | other

    @property
    def bound(self) -> BoundEpilogue:
        """Chain of this epilogue alone, without operands or with all at their defaults.

        Raises:
            EpilogueError: there are operands without a default, or outputs.
        """
        bound: BoundEpilogue = self()
        return bound

    def on_host(self, values: Any, dtype: Any = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Apply it, with all operands at their defaults: see `BoundEpilogue.on_host`."""
        return self.bound.on_host(values, dtype)

    def current(self) -> Epilogue:
        """Epilogue of the function as its code is now: this one, unless that was replaced.

        Editors of running programs, such as IPython's %autoreload, replace code in place. A
        variable with another value, in contrast, is refused: it would compile a kernel per value.
        """
        if not are_outdated(self.sources):
            return self
        if self._successor is None or self._successor.current() is not self._successor:
            self._successor = self._renewed()
        return self._successor

    def _renewed(self) -> Epilogue:
        """Epilogue of the function as its code is now, made anew."""
        outputs = tuple(output.name for output in self.outputs)
        return _epilogue_of(self.function, outputs, self.takes_pairs, self.returns_real)

    @property
    def is_own(self) -> bool:
        """True for an epilogue of dxgemm: there are a few of them, and any number of others."""
        return (self.function.__module__ or "").partition(".")[0] == "dxgemm"

    @cached_property
    def uses_row(self) -> bool:
        """True if the result may depend on the row itself, beside the operands' elements there."""
        return self._uses("row")

    @cached_property
    def uses_col(self) -> bool:
        """True if the result may depend on the column itself, like `uses_row`."""
        return self._uses("col")

    def _uses(self, index: str) -> bool:
        leading = PAIR_LEADING if self.takes_pairs else LEADING
        return reads_parameter(self.recorded, leading.index(index))

    def make_function(
        self,
        literal: Callable[[float], Any],
        device: Callable[..., Any],
        elementary: Mapping[str, Any],
        reals: int = 0,
    ) -> Any:
        """Make the function for a kernel: see `dxgemm.epilogues.literals.compiled_function`.

        In the simulator it is that of the host: see `dxgemm.epilogues.host.host_function`, which
        takes `reals`.
        """
        if simulator_enabled():
            return host_function(self, literal, reals, elementary)
        return device(compiled_function(self.recorded, literal, device, elementary))

    def _bind(self, operands: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Find a value for each of `operands`: passed or default; numbers become Python's own."""
        if len(operands) > len(self.parameters):
            raise epilogue_error(
                self.name,
                f"{len(operands)} operands were passed, but it has {len(self.parameters)}: "
                f"{_listed(self.parameters)}.",
            )
        given = dict(zip(self._names, operands))
        for name, value in named.items():
            if name not in self._names:
                raise epilogue_error(
                    self.name,
                    f"it has no operand {name}; its operands are {_listed(self.parameters)}, its "
                    f"outputs {_listed(self.outputs)}.",
                )
            if name in given:
                raise epilogue_error(self.name, f"{name} was passed by position and by name.")
            given[name] = value
        bound = []
        for entry in self.operands:
            if entry.name in given:
                value = given[entry.name]
            elif entry.default:
                (value,) = entry.default
            else:
                way_out = f"pass {entry.name}=array, which is written"
                raise epilogue_error(
                    self.name,
                    f"{entry.name} ({entry.meaning}) is missing; "
                    f"{way_out if entry.kind == 'output' else 'bind it'}.",
                )
            bound.append(checked_number(entry, value) if entry.is_number else value)
        return tuple(bound)


def _restored(kind: type[Epilogue], loads: Callable[[bytes], Any], parts: bytes) -> Epilogue:
    return kind(*loads(parts))


_by_key: WeakValueDictionary[str, Epilogue] = WeakValueDictionary()


def refreshed(stage: Epilogue) -> Epilogue:
    """Find the epilogue of the function as its code is now.

    Raises:
        EpilogueError: the code is the same, but a global or closure variable has another value now.
    """
    current = stage.current()
    if current is stage:
        check_unchanged(stage.reads, stage.name)
    return current


def find_epilogue(key: str) -> Epilogue:
    """Find the epilogue of a key: one with the same behaviour, and operands of the same names.

    Raises:
        EpilogueError: there is none any more.
    """
    found = _by_key.get(key)
    if found is None:
        raise EpilogueError(
            f"epilogue {key.partition('(')[0]}: all with this key were dropped; keep one for as "
            "long as it is used."
        )
    return found


@overload
def epilogue(function: Callable[..., Any], /) -> Epilogue: ...
@overload
def epilogue(
    *, outputs: tuple[str, ...] = (), pairs: bool = False, real: bool = False
) -> Callable[[Callable[..., Any]], Epilogue]: ...
def epilogue(
    function: Any = None, /, *, outputs: Any = (), pairs: bool = False, real: bool = False
) -> Any:
    """result = function(value, row, col, operands...), for each element, inside the kernel.

        @dxgemm.epilogue
        def scaled_tanh(value, row, col, scale: Scalar, shift: RowVector):
            return scale * math.tanh(value + shift)

        dxgemm.gemm(a, b, epilogue=scaled_tanh(0.5, vector) | relu)

    value is the element of alpha * a @ b + beta * c in the dtype of sums, a complex number if a and
    b are complex; row and col are its indices in its matrix. Operands are annotated with one of
    these types of `dxgemm.epilogues`:

        Scalar: a real number; it may have a default.
        Integer: an integer of 64 bits; it may have a default.
        RowVector: (n,) or (batch, n), of which the function gets element [col].
        ColumnVector: (m,) or (batch, m), of which it gets element [row].
        Matrix: (m, n) or (batch, m, n), of which it gets element [row, col].

    Args:
        function: a Python function that numba-cuda can compile. It may call plain functions and
            other epilogues (`relu(value, row, col)`), and read globals and closure variables that
            are numbers, strings or tuples of these. They must keep their values. It returns a
            value on every path. Code that is replaced in place (%autoreload) is read again.
        outputs: names of the matrices, (m, n) or (batch, m, n), that are written besides the
            result: the function then returns the result and a value for each. The arrays are
            bound by name.
        pairs: True for function(first, second, row, col, operands...), which makes element
            (row, col) of an (m, n / 2) result of the values in columns 2 * col and 2 * col + 1.
            Operands, outputs and the stages after it belong to that result.
        real: True if the function returns a real number whether value is complex or not, such as
            abs(value). The result of complex products is then float32 or float64.

    Raises:
        EpilogueError: function is no plain Python function, lacks value, row or col, or has an
            operand without such an annotation, can end without a value, or depends on something
            that could change while a compiled kernel stays the same.
    """
    if function is None:
        return lambda function: _epilogue_of(function, outputs, pairs, real)
    return _epilogue_of(function, outputs, pairs, real)


@named_in_errors("epilogue")
def _epilogue_of(function: Any, outputs: Any, pairs: Any, real: Any) -> Epilogue:
    """Make an `Epilogue` of a function."""
    takes_pairs, returns_real = check_flag("pairs", pairs), check_flag("real", real)
    check_plain(function)
    parameters = parameters_of(function, PAIR_LEADING if takes_pairs else LEADING)
    written = outputs_of(function.__name__, outputs, parameters)
    return Epilogue(function, parameters, written, takes_pairs, returns_real)


def check_plain(function: Any, prefix: str = "") -> None:
    """Refuse what is no plain Python function; `prefix` comes before its name in errors."""
    if not isinstance(function, FunctionType):
        try:
            name = str(function.__name__)
        except Exception:
            name = shown(function)
        raise epilogue_error(
            prefix + name, f"it is a {type(function).__name__}; decorate a plain Python function."
        )
    unsuitable = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if function.__code__.co_flags & unsuitable:
        raise epilogue_error(
            prefix + function.__name__, "it is a generator or async function; return the result."
        )


def _listed(parameters: tuple[Parameter, ...]) -> str:
    return ", ".join(parameter.name for parameter in parameters) or "none"
