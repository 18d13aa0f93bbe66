"""`@epilogue`: decorator of a Python function of an element, its row and column, and operands."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, update_wrapper
from types import FunctionType
from typing import Any, overload
from weakref import WeakValueDictionary

import numpy as np

from dxgemm.epilogues.host import apply_on_host, check_returned
from dxgemm.epilogues.kinds import OUTPUT, Parameter, checked_number, epilogue_error, kind_of
from dxgemm.epilogues.literals import compiled_function, record
from dxgemm.epilogues.reads import (
    FunctionHolder,
    are_outdated,
    cell_value,
    check_unchanged,
    digest_of,
    names_parameter,
)
from dxgemm.epilogues.reduction import Reduction
from dxgemm.errors import DxgemmError, EpilogueError, ScalarError, named_in_errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.arguments import check_flag

LEADING = ("value", "row", "col")
PAIR_LEADING = ("first", "second", "row", "col")
KIND_NAMES = "Scalar, Integer, RowVector, ColumnVector or Matrix"


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
        self.name = function.__name__
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
        self.shape = _shape_of(self._stages, None)
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

        parts = self.recorded, self.parameters, self.outputs, self.takes_pairs, self.returns_real
        return _restored, (loads, dumps(parts))

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

    def current(self) -> Epilogue:
        """Epilogue of the function as its code is now: this one, unless that was replaced.

        Editors of running programs, such as IPython's %autoreload, replace code in place. A
        variable with another value, in contrast, is refused: it would compile a kernel per value.
        """
        if not are_outdated(self.sources):
            return self
        if self._successor is None or self._successor.current() is not self._successor:
            outputs = tuple(output.name for output in self.outputs)
            self._successor = _epilogue_of(
                self.function, outputs, self.takes_pairs, self.returns_real
            )
        return self._successor

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
        return names_parameter(self.recorded, leading.index(index))

    def make_function(
        self,
        literal: Callable[[float], Any],
        device: Callable[..., Any],
        elementary: Mapping[str, Any],
    ) -> Any:
        """Make the function for a kernel: see `dxgemm.epilogues.literals.compiled_function`.

        In the simulator the function raises an `EpilogueError` unless it returns its result, and a
        value for each output.
        """
        function = device(compiled_function(self.recorded, literal, device, elementary))
        return self._checked(function) if simulator_enabled() else function

    def _checked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*values: Any) -> Any:
            result = function(*values)
            check_returned(self.name, result, len(self.outputs))
            value = result[0] if self.outputs else result
            if self.returns_real and isinstance(value, complex | np.complexfloating):
                raise epilogue_error(self.name, f"returned {value!r}, which is not real.")
            return result

        return checked

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


def _restored(loads: Callable[[bytes], Any], parts: bytes) -> Epilogue:
    return Epilogue(*loads(parts))


class BoundEpilogue:
    """Chain of epilogues with their operands, applied from left to right, for `gemm(epilogue=)`.

    It never changes.

    Attributes:
        stages: the epilogues.
        values: the numbers and arrays that were passed, one for each of `operands`. A `shape` has
            no values, and its reduction has None for each array.
        reduction: the reduction that ends the chain; None to store the result.
        attached: of a shape, what others keep for as long as an equal epilogue lives, by name.
    """

    def __init__(
        self,
        stages: tuple[Epilogue, ...],
        values: tuple[Any, ...],
        reduction: Reduction | None = None,
        shape: BoundEpilogue | None = None,
    ) -> None:
        """Make a chain; if its `shape` is passed, the stages were checked when that was made."""
        self.stages = stages
        self.values = values
        self.reduction = reduction
        if shape is None:
            self.attached: dict[str, Any] = {}
            self._check_stages()
        else:
            self.shape = shape

    def _check_stages(self) -> None:
        self._check_pairs()
        if len(self.stages) < 2:
            return
        names = [output.name for stage in self.stages for output in stage.outputs]
        for name in names:
            if names.count(name) > 1:
                raise EpilogueError(
                    f"epilogue {self!r}: two stages have an output called {name}; outputs are "
                    "found by their names, so each needs its own."
                )

    def _check_pairs(self) -> None:
        pairing = [stage.name for stage in self.stages if stage.takes_pairs]
        if len(pairing) > 1:
            raise EpilogueError(
                f"epilogue {self!r}: {' and '.join(pairing)} take pairs of columns; one stage of a "
                "chain can."
            )
        if pairing and self.reduction is not None:
            raise EpilogueError(
                f"epilogue {self!r}: what {pairing[0]} makes of pairs of columns cannot be reduced "
                "by the same call; reduce its result."
            )

    def __repr__(self) -> str:
        names = [stage.name for stage in self.stages]
        return " | ".join([*names, str(self.reduction)] if self.reduction else names)

    def __or__(self, other: Any) -> BoundEpilogue:
        """Join two chains: the right one is applied to the result of the left one."""
        if not isinstance(other, (Epilogue, BoundEpilogue, Reduction)):  # `|` makes a new type
            return NotImplemented
        if self.reduction is not None:
            return self.reduction | other
        right = bound_epilogue(other)
        stages, values = self.stages + right.stages, self.values + right.values
        shape = joined_shape(self, right)
        return BoundEpilogue(stages, values, right.reduction, shape)

    @cached_property
    def shape(self) -> BoundEpilogue:
        """Chain without operands: one object for all chains that differ in their operands only.

        The keys of routes hold it, so that they keep no array alive.
        """
        if self.reduction is None and len(self.stages) == 1:
            return self.stages[0].shape
        return _shape_of(self.stages, self.reduction)

    @property
    def passed(self) -> tuple[Any, ...]:
        """`values`, then the arrays that were passed for the results of the reduction."""
        return self.values + self.reduction.out if self.reduction else self.values

    def with_values(self, values: Iterable[Any]) -> BoundEpilogue:
        """Return the chain with other numbers and arrays in place of its own."""
        return BoundEpilogue(self.stages, tuple(values), self.reduction, self.shape)

    def with_array(self, place: int, array: Any) -> BoundEpilogue:
        """Return the chain with another array in one place among `passed`."""
        passed = [*self.passed]
        passed[place] = array
        count, reduction = len(self.values), self.reduction
        if reduction is not None:
            reduction = replace(reduction, out=tuple(passed[count:]))
        return BoundEpilogue(self.stages, tuple(passed[:count]), reduction, self.shape)

    @cached_property
    def takes_pairs(self) -> bool:
        """True if a stage makes one value of two neighbouring columns."""
        return any(stage.takes_pairs for stage in self.stages)

    @cached_property
    def is_real(self) -> bool:
        """True if a stage makes real numbers of complex ones."""
        return any(stage.returns_real for stage in self.stages)

    @cached_property
    def is_masked(self) -> bool:
        """True if the last stage is a block mask."""
        return bool(self.operands) and self.operands[-1].kind == "mask"

    @property
    def has_functions(self) -> bool:
        """True if a stage is applied to elements."""
        return len(self.stages) > self.is_masked

    def columns(self, n: int) -> tuple[int, ...]:
        """Columns of the values that each of `operands` belongs to, if the product has n."""
        columns: list[int] = []
        for stage in self.stages:
            n = n // 2 if stage.takes_pairs else n
            columns += [n] * len(stage.operands)
        return tuple(columns)

    @cached_property
    def numbers(self) -> tuple[tuple[int, Parameter], ...]:
        """The numbers among `operands`, with their places."""
        return tuple((place, entry) for place, entry in enumerate(self.operands) if entry.is_number)

    @cached_property
    def operands(self) -> tuple[Parameter, ...]:
        """Operands of all stages: for each stage first its parameters, then its outputs."""
        return tuple(entry for stage in self.stages for entry in stage.operands)

    @cached_property
    def result_labels(self) -> dict[str, str]:
        """Label of the array of each result of the reduction, by the name of the result."""
        if self.reduction is None:
            return {}
        names, argument = self.reduction.results, f"reductions.{self.reduction.name}(out=)"
        if len(names) == 1:
            return {names[0]: argument}
        return {name: f"{argument}[{place}]" for place, name in enumerate(names)}

    @cached_property
    def labels(self) -> tuple[str | None, ...]:
        """Unique name of the array of each operand, then of each result; None for numbers."""
        labels: list[str | None] = []
        for place, entry in enumerate(self.operands):
            times = sum(other == entry for other in self.operands[:place])
            label = f"{entry.epilogue}.{entry.name}" + (f" ({times + 1})" if times else "")
            label = entry.name if entry.kind == "mask" else label
            labels.append(None if entry.is_number else label)
        return (*labels, *self.result_labels.values())

    @cached_property
    def array_places(self) -> tuple[int, ...]:
        """Indices of the arrays among `passed`."""
        count = len(self.operands) + len(self.reduction.out if self.reduction else ())
        return tuple(place for place in range(count) if self.labels[place] is not None)

    @property
    def array_labels(self) -> list[str]:
        """The labels of all arrays that were passed."""
        return [label for label in self.labels if label is not None][: len(self.array_places)]

    def is_output(self, label: str) -> bool:
        """True if the array with this label is written."""
        place = self.labels.index(label)
        return place >= len(self.operands) or self.operands[place].kind == "output"

    @named_in_errors("on_host")
    def on_host(self, values: Any, dtype: Any = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Apply the chain to NumPy arrays: see `dxgemm.epilogues.host.apply_on_host`.

        Args:
            values: (m, n) or (batch, m, n), in the dtype of sums: alpha * a @ b + beta * c.
            dtype: dtype of the result; None for that of values.

        Returns:
            The result, with n // 2 columns if a stage takes pairs, and a new array for each output
            by its name.

        Raises:
            EpilogueError: the chain ends in a reduction, which has an `on_host` of its own.
        """
        if self.reduction is not None:
            raise epilogue_error(
                self.reduction.name, "apply the chain without it, then its own on_host."
            )
        return apply_on_host(self.stages, self.values, values, dtype)


_by_key: WeakValueDictionary[str, Epilogue] = WeakValueDictionary()
_shapes: WeakValueDictionary[Any, BoundEpilogue] = WeakValueDictionary()
# Shapes of chains, by the shapes of their parts.
_joined: WeakValueDictionary[Any, BoundEpilogue] = WeakValueDictionary()


def _shape_of(stages: tuple[Epilogue, ...], reduction: Reduction | None) -> BoundEpilogue:
    """Find or make the `BoundEpilogue` of these stages and this reduction, without operands."""
    has_results = reduction is not None and bool(reduction.out)
    if reduction is not None and has_results:
        reduction = replace(reduction, out=(None,) * len(reduction.out))
    # Epilogues may be equal with parameters of other names and kinds. The key holds no epilogue,
    # which would keep the shape, and with it this entry.
    key = tuple((stage.identity, stage.operands) for stage in stages), reduction, has_results
    shape = _shapes.get(key)
    if shape is None:
        shape = _shapes.setdefault(key, BoundEpilogue(stages, (), reduction))
    return shape


def joined_shape(left: BoundEpilogue, right: BoundEpilogue) -> BoundEpilogue | None:
    """Find or make the shape of two chains that are joined."""
    key = left.shape, right.shape
    shape = _joined.get(key)
    if shape is None:
        shape = BoundEpilogue(left.stages + right.stages, (), right.reduction).shape
        _joined[key] = shape
    return shape


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


def bound_epilogue(value: Any) -> BoundEpilogue:
    """Convert an `epilogue` argument to a `BoundEpilogue`.

    Raises:
        EpilogueError: value is no epilogue, or an epilogue whose operands are missing.
    """
    if isinstance(value, BoundEpilogue):
        return value
    if isinstance(value, Epilogue):
        return value.bound
    if isinstance(value, Reduction):
        return BoundEpilogue((), (), value)
    raise EpilogueError(
        f"epilogue is {value!r} ({type(value).__name__}); pass an epilogue of dxgemm.epilogues, or "
        "a function decorated with @dxgemm.epilogue, called with its operands."
    )


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
    if not isinstance(function, FunctionType):
        name = getattr(function, "__name__", None) or repr(function)
        raise epilogue_error(
            name, f"it is a {type(function).__name__}; decorate a plain Python function."
        )
    unsuitable = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if function.__code__.co_flags & unsuitable:
        raise epilogue_error(
            function.__name__, "it is a generator or async function; return the result."
        )
    parameters = _parameters(function, PAIR_LEADING if takes_pairs else LEADING)
    written = _outputs(function.__name__, outputs, parameters)
    return Epilogue(function, parameters, written, takes_pairs, returns_real)


def _parameters(function: FunctionType, first: tuple[str, ...]) -> tuple[Parameter, ...]:
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
            annotation = f"the annotation {parameter.annotation!r}"
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


def _outputs(
    epilogue: str, outputs: Any, parameters: tuple[Parameter, ...]
) -> tuple[Parameter, ...]:
    names: list[Any] = [*outputs] if isinstance(outputs, list | tuple) else [None]
    taken = {parameter.name for parameter in parameters}
    are_names = all(
        isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
        for name in names
    )
    if not are_names:
        raise epilogue_error(epilogue, f'outputs is {outputs!r}; pass names, such as ("before",).')
    if len(set(names)) < len(names) or taken & set(names):
        raise epilogue_error(
            epilogue, f"outputs is {outputs!r}; names of operands and outputs must all differ."
        )
    return tuple(replace(OUTPUT, epilogue=epilogue, name=name) for name in names)


def _listed(parameters: tuple[Parameter, ...]) -> str:
    return ", ".join(parameter.name for parameter in parameters) or "none"
