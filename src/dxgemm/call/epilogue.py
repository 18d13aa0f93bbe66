"""An epilogue in a call: its arrays among the operands, its operands among a kernel's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dxgemm.epilogues.check import check_numbers
from dxgemm.epilogues.function import bound_epilogue
from dxgemm.epilogues.reduction import INDICES, Reduction
from dxgemm.epilogues.stages import EpilogueShape
from dxgemm.errors import UnsupportedProblemError
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.fusion import FusedOperand, FusedReduction, Fusion
from dxgemm.problem.layout import ALIGNMENTS, MAX_ALIGNMENT, Layout, Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.arrays import Library, libraries, library_of


class FusedLaunch:
    """A launch with the operands of its epilogue."""

    def __init__(self, launch: Any, extra: tuple[Any, ...]) -> None:
        self._launch = launch
        self._extra = extra

    def __call__(
        self, a: int, b: int, c: int, out: int, alpha: float, beta: float, stream: int
    ) -> None:
        self._launch(a, b, c, out, alpha, beta, stream, self._extra)

    def fixed(
        self, a: int, b: int, c: int, out: int, alpha: float, beta: float
    ) -> Callable[[int], None]:
        fixed: Callable[[int], None] = self._launch.fixed(a, b, c, out, alpha, beta, self._extra)
        return fixed


def fuse(
    problem: Problem, shape: EpilogueShape, layouts: Mapping[str, Layout]
) -> tuple[Problem, tuple[Strides | None, ...]]:
    """The problem with an epilogue.

    Args:
        problem: without it.
        shape: what epilogue.
        layouts: of its arrays, by their labels, as they fit the result.

    Returns:
        The problem, and for each operand its strides in elements as the kernel walks over it; None
        for numbers.
    """
    if problem.scalar_dtype == "int32" and problem.reads_c and problem.out_dtype != "int32":
        raise UnsupportedProblemError(
            f"gemm: a result of {problem.out_dtype} is not added to int32 sums; leave beta at 0."
        )
    number_dtype = "float64" if problem.scalar_dtype == "float64" else "float32"
    operands: list[FusedOperand] = []
    strides: list[Strides | None] = []
    for operand, label in zip(shape.operands, shape.labels, strict=True):
        if label is None:
            dtype = "int64" if operand.kind == "integer" else number_dtype
            operands.append(FusedOperand("number", dtype))
            strides.append(None)
            continue
        layout = layouts[label]
        steps = _steps(operand.kind, layout)
        if problem.is_transposed:
            steps = steps.transposed()
        kind = "output" if operand.kind == "output" else "array"
        access = _access(kind, layout, steps)
        operands.append(FusedOperand(kind, layout.dtype, access, steps.row != 0))
        strides.append(steps)
    fusion = Fusion(shape.functions, tuple(operands), problem.is_transposed)
    if shape.reduction is None:
        return replace(problem, epilogue=fusion), tuple(strides)
    reduction = _fused_reduction(shape.reduction, problem, "out" in layouts)
    fusion = replace(fusion, operands=(*operands, *reduction.buffers), reduction=reduction)
    problem = replace(problem, epilogue=fusion, must_fuse=shape.reduction.fused)
    return problem, tuple(strides)


def _fused_reduction(reduction: Reduction, problem: Problem, is_stored: bool) -> FusedReduction:
    axis = reduction.axis
    if axis is not None and problem.is_transposed:
        axis = 1 - axis
    values = reduction.partial_dtype(problem.out_dtype)
    indices = ("int64",) if INDICES in reduction.results else ()
    return FusedReduction(
        reduction.kind,
        axis,
        (values, *indices),
        reduction.count,
        reduction.nan_first,
        reduction.of_magnitudes,
        is_stored,
    )


def _steps(kind: str, layout: Layout) -> Strides:
    """An array's strides in elements, 0 where it is the same for all."""
    item_size = ITEM_SIZES[layout.dtype]
    steps = [
        stride // item_size if size > 1 else 0
        for size, stride in zip(layout.shape, layout.strides, strict=True)
    ]
    own = 1 if kind in ("row", "column") else 2  # dimensions of it without a batch
    batch = steps.pop(0) if len(steps) > own else 0
    if kind == "row":
        return Strides(batch, 0, steps[0])
    if kind == "column":
        return Strides(batch, steps[0], 0)
    return Strides(batch, *steps)


def _access(kind: str, layout: Layout, steps: Strides) -> str:
    """As `FusedOperand.access`."""
    if steps.col == 0 and kind == "array":
        return "same"
    item_size = ITEM_SIZES[layout.dtype]
    if item_size == 1:
        return "element"  # there are no vectors of bytes
    is_aligned = (steps.batch | steps.row) * item_size % MAX_ALIGNMENT == 0
    if steps.col == 1 and is_aligned and layout.alignment == MAX_ALIGNMENT:
        return "vector"
    return "element"


class CallEpilogue:
    """The epilogue of one call.

    Attributes:
        key: what of it a route depends on.
        arrays, pointers: of its array operands, by their labels.
    """

    def __init__(self, epilogue: Any) -> None:
        bound = bound_epilogue(epilogue)
        self._operands = bound.operands
        self._shape = bound.shape
        self.arrays: dict[str, Any] = {}
        self.pointers: dict[str, int] = {}
        self._numbers: list[float] = []
        keys: list[Any] = []
        for operand, label in zip(bound.operands, self._shape.labels, strict=True):
            if label is None:
                convert = int if operand.kind == "integer" else float
                self._numbers.append(convert(operand.value))
                continue
            self._add_array(label, operand.value, keys)
        results = bound.reduction.out if bound.reduction else ()
        for label, array in zip(self._shape.result_labels.values(), results, strict=False):
            self._add_array(label, array, keys)
        self.key = (self._shape, *keys)

    def _add_array(self, label: str, array: Any, keys: list[Any]) -> None:
        library = libraries.get(type(array)) or library_of(label, array)
        pointer, layout_key = library.inspect(array)
        self.arrays[label], self.pointers[label] = array, pointer
        keys.append((library, layout_key, ALIGNMENTS[pointer & 15]))

    def results(self, expected: Mapping[str, tuple[Any, str]], library: Library, like: Any) -> Any:
        """What the caller gets of a reduction: the arrays that were passed, or new ones.

        Args:
            expected: shape and dtype by label.
            library, like: of new arrays.
        """
        assert self._shape.reduction is not None
        for label, (shape, dtype) in expected.items():
            if label not in self.arrays:
                self.arrays[label] = library.empty(shape, dtype, like)
                self.pointers[label], _ = library.inspect(self.arrays[label])
        by_name = {name: self.arrays[label] for name, label in self._shape.result_labels.items()}
        return self._shape.reduction.packed(by_name)

    def check(self, problem: Problem) -> None:
        """What depends on numbers: see `check_numbers`."""
        check_numbers(self._operands, problem.scalar_dtype)

    def arguments(
        self, strides: tuple[Strides | None, ...], pointers: Mapping[str, int]
    ) -> tuple[Any, ...]:
        """What the kernel takes.

        Args:
            strides: of each operand, as `fuse` gives them.
            pointers: by label, where the kernel runs.
        """
        numbers = iter(self._numbers)
        arguments: list[Any] = []
        for label, steps in zip(self._shape.labels, strides, strict=True):
            if label is None or steps is None:
                arguments.append(next(numbers))
            else:
                arguments += [pointers[label], *steps]
        arguments += [pointers[label] for label in self._shape.result_labels.values()]
        return tuple(arguments)

    def is_output(self, label: str) -> bool:
        """Whether an array is written."""
        return self._shape.is_output(label)
