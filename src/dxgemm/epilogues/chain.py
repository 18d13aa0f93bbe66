"""Chain of epilogues with their operands, and its shape, which all with other operands share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dxgemm.epilogues.host import apply_on_host
from dxgemm.epilogues.kinds import Parameter, epilogue_error
from dxgemm.epilogues.reads import FunctionHolder
from dxgemm.epilogues.reduction import Reduction
from dxgemm.errors import EpilogueError, named_in_errors, shown


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
        stages: tuple[Any, ...],
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
        # A tuple, because `|` makes a new type.
        if not isinstance(other, (FunctionHolder, BoundEpilogue, Reduction)):
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
        return shape_of(self.stages, self.reduction)

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

    @cached_property
    def inner(self) -> Any:
        """The first stage if it takes the place of the multiply-add, an `Inner`; else None."""
        return self.stages[0] if self.stages and self.stages[0].is_inner else None

    @property
    def has_functions(self) -> bool:
        """True if a stage is applied to elements."""
        return len(self.stages) > self.is_masked + (self.inner is not None)

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


_shapes: WeakValueDictionary[Any, BoundEpilogue] = WeakValueDictionary()
# Shapes of chains, by the shapes of their parts.
_joined: WeakValueDictionary[Any, BoundEpilogue] = WeakValueDictionary()


def shape_of(stages: tuple[Any, ...], reduction: Reduction | None) -> BoundEpilogue:
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


def bound_epilogue(value: Any) -> BoundEpilogue:
    """Convert an `epilogue` argument to a `BoundEpilogue`.

    Raises:
        EpilogueError: value is no epilogue, or an epilogue whose operands are missing.
    """
    try:
        bound = getattr(value, "bound", value)  # that of an epilogue
    except EpilogueError:
        raise
    except Exception:  # of an object with attributes of its own
        bound = None
    if isinstance(bound, Reduction):
        return BoundEpilogue((), (), bound)
    if isinstance(bound, BoundEpilogue):
        return bound
    raise EpilogueError(
        f"epilogue is {shown(value)} ({type(value).__name__}); pass an epilogue of "
        "dxgemm.epilogues, or a function decorated with @dxgemm.epilogue, called with its operands."
    )
