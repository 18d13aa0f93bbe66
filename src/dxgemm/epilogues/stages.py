"""What kernels and routes know of a bound epilogue: its functions, and which operands they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import FunctionType
from typing import Any

from dxgemm.epilogues.kinds import KINDS, OUTPUT, BoundOperand, epilogue_error
from dxgemm.epilogues.literals import compiled_function
from dxgemm.epilogues.reduction import Reduction
from dxgemm.gpu.status import simulator_enabled


@dataclass(frozen=True)
class StageFunction:
    """The function of one stage; equal to another one if a kernel may use either.

    Attributes:
        function: (value, row, col, operands...) to the result, or to a tuple of the result and a
            value per output. A copy with the globals and closure variables as they were recorded,
            so that what is compiled later is what the digest says.
        operand_count: parameters after value, row and col.
        output_count: outputs.
        digest: sha256 of everything the function depends on, as hexadecimal text.
    """

    function: FunctionType = field(compare=False)
    operand_count: int
    output_count: int
    digest: str

    @property
    def name(self) -> str:
        """Of the function."""
        return self.function.__name__

    def __reduce__(self) -> tuple[Any, ...]:
        """By value: a build in another process may not be able to import the function."""
        from numba.cloudpickle import dumps, loads

        parts = dumps((self.function, self.operand_count, self.output_count, self.digest))
        return _restored, (loads, parts)

    def make_function(
        self,
        literal: Callable[[float], Any],
        device: Callable[..., Any],
        elementary: Mapping[str, Any],
    ) -> Any:
        """The function for a kernel: see `dxgemm.epilogues.literals.compiled_function`.

        It does not compile, or is an EpilogueError in the simulator, if it returns more or fewer
        values than there are outputs.
        """
        function = device(compiled_function(self.function, literal, device, elementary))
        if simulator_enabled():
            return self._checked(function)
        return device(self._unpacked(function)) if self.output_count else function

    def _checked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*values: Any) -> Any:
            result = function(*values)
            check_returned(self.name, result, self.output_count)
            return result

        return checked

    def _unpacked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """numba refuses to unpack another number of values."""
        parameters = ", ".join(f"parameter_{i}" for i in range(3 + self.operand_count))
        values = ", ".join(f"value_{i}" for i in range(1 + self.output_count))
        source = f"def unpacked({parameters}):\n    {values} = function({parameters})\n"
        defined: dict[str, Any] = {"function": function}
        exec(f"{source}    return {values}", defined)
        unpacked: Callable[..., Any] = defined["unpacked"]
        return unpacked


def check_returned(name: str, value: Any, output_count: int, outputs: str = "") -> None:
    """Refuse what a function returned unless it is a result with a value for each output.

    Args:
        outputs: their names.

    Raises:
        EpilogueError: it is something else.
    """
    count = len(value) if isinstance(value, tuple) else 0
    if count != (1 + output_count if output_count else 0):
        wanted = "one value"
        if output_count:
            listed = f": {outputs}" if outputs else ""
            wanted = f"its result and a value for each of {output_count} outputs{listed}"
        raise epilogue_error(name, f"returned {value!r}; it must return {wanted}.")


def _restored(loads: Callable[[bytes], Any], parts: bytes) -> StageFunction:
    return StageFunction(*loads(parts))


@dataclass(frozen=True)
class EpilogueShape:
    """What of a bound epilogue does not change from call to call.

    Attributes:
        functions: one per stage.
        names: of each operand, its epilogue, its own name and its kind.
        reduction: the end of the chain, without arrays.
        has_results: whether arrays for what it gives were passed.
    """

    functions: tuple[StageFunction, ...]
    names: tuple[tuple[str, str, str], ...]
    reduction: Reduction | None = None
    has_results: bool = False

    def __str__(self) -> str:
        names = [stage.name for stage in self.functions]
        return " | ".join([*names, str(self.reduction)] if self.reduction else names)

    @cached_property
    def result_labels(self) -> dict[str, str]:
        """By the name of each result of the reduction, that of its array."""
        if self.reduction is None:
            return {}
        return {name: f"reduction {self.reduction.name}: {name}" for name in self.reduction.results}

    @cached_property
    def array_labels(self) -> tuple[str, ...]:
        """Of all arrays that were passed: of the stages, then for the results."""
        stages = tuple(label for label in self.labels if label)
        return stages + tuple(self.result_labels.values() if self.has_results else ())

    @cached_property
    def operands(self) -> tuple[BoundOperand, ...]:
        """The operands without what was passed for them."""
        return tuple(BoundOperand(*names, value=0) for names in self.names)

    @cached_property
    def labels(self) -> tuple[str | None, ...]:
        """A name for each array, different from all others of a call; None for numbers."""
        labels: list[str | None] = []
        for epilogue, name, kind in self.names:
            label = f"{epilogue}.{name}"
            times = sum(other == (epilogue, name, kind) for other in self.names[: len(labels)])
            if KINDS[kind].is_number:
                labels.append(None)
            else:
                labels.append(f"{label} ({times + 1})" if times else label)
        return tuple(labels)

    def is_output(self, label: str) -> bool:
        """Whether an array is written."""
        if label in self.result_labels.values():
            return True
        return self.names[self.labels.index(label)][2] == OUTPUT.name
