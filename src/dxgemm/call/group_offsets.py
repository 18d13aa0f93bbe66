"""Calls of `gemm_grouped` with offsets: problems in one array, of sizes that the device knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dxgemm.call.epilogue import (
    CallEpilogue,
    OperandStrides,
    check_numbers,
    fuse,
    inspect_epilogue,
    kernel_operands,
)
from dxgemm.call.factors import real_number
from dxgemm.call.group import Group, define, in_turn
from dxgemm.call.operand import Operand, inspected
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.epilogues.check import check_operands
from dxgemm.errors import (
    DeviceMismatchError,
    DtypeError,
    LayoutError,
    MissingOperandError,
    OverlapError,
    ShapeError,
    UnsupportedProblemError,
)
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.lower.group_offsets import OFFSET_DTYPES, OffsetGroup, bind_group
from dxgemm.lower.grouped import needs_later
from dxgemm.lower.indexed_rows import IndexedRows
from dxgemm.problem.kernel_arguments import Call
from dxgemm.problem.layout import (
    ALIGNMENTS,
    Layout,
    contiguous_strides,
    refuse_overlap,
    used_strides,
)
from dxgemm.problem.overlap import find_overlap
from dxgemm.problem.problem import Problem, exchanged
from dxgemm.runtime.arrays import HOST, host_view
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.capture import launching_on
from dxgemm.runtime.exports import indexable
from dxgemm.runtime.streams import stream_handle

# The dimension that is shared out, by the dimensions of a and b; then its axis in each operand.
SHARED = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}
AXES = {
    "m": {"a": 0, "c": 0, "out": 0},
    "n": {"b": 1, "c": 1, "out": 1},
    "k": {"a": 1, "b": 0},
}
# Kinds of an epilogue's arrays that may have an element, a row or a matrix for each group.
OF_GROUPS = {
    "m": ("row", "blocks"),
    "n": ("column", "blocks"),
    "k": ("row", "column", "matrix", "output"),
}
EXCHANGED = {"m": "n", "n": "m", "k": "k"}


class GroupByOffsets(Group):
    """Call with offsets. `result` is the array that is written."""

    def __init__(
        self,
        a: Any,
        b: Any,
        c: Any,
        alpha: Any,
        beta: Any,
        out: Any,
        stream: Any,
        offsets: Any,
        rows: Any = None,
        out_rows: Any = None,
        epilogue: Any = None,
    ) -> None:
        """Check all arguments of the call, before anything is launched or written."""
        self._stream = None if stream is None else stream_handle(stream)
        given = {"a": a, "b": b, "c": c, "out": out}
        given |= {"offsets": offsets, "rows": rows, "out_rows": out_rows}
        where = self._stream, out, c, a
        self._epilogue = None if epilogue is None else _elementwise(epilogue, *where)
        arrays = self._epilogue.arrays if self._epilogue else {}
        operands = {
            n: inspected(n, x, *where) for n, x in given.items() if n in "ab" or x is not None
        }
        fused = {name: inspected(name, x, *where) for name, x in arrays.items()}
        self._offsets = operands.pop("offsets")
        self._rows, self._out_rows = operands.pop("rows", None), operands.pop("out_rows", None)
        self._factors = real_number("alpha", alpha), real_number("beta", beta)
        shape = self._epilogue.shape if self._epilogue else None
        takes_pairs = shape is not None and shape.takes_pairs
        self._shared, self._count = _check_shapes(
            operands, self._offsets, self._rows, self._out_rows, takes_pairs
        )
        layouts = {name: _of_problem(x, self._shared) for name, x in operands.items()}
        if self._rows:
            size = self._rows.layout.shape[0], layouts["a"].shape[1]
            layouts["a"] = layouts["a"]._replace(shape=size)
        if self._out_rows:
            layouts["out"] = _in_workspace(layouts["out"], layouts["a"].shape[0])
        problem, result_shape = define(layouts, *self._factors, shape)
        shared = EXCHANGED[self._shared] if problem.is_transposed else self._shared
        if shared == "n" and problem.dtype in FLOAT8:  # its kernel shares out rows
            problem = exchanged(problem)
        if self._epilogue:
            self._check_epilogue(layouts, fused, problem.dtype)
            numbers = self._epilogue.shape.numbers
            check_numbers(numbers, self._epilogue.values, problem.scalar_dtype)
        if not {"c", "out"} & operands.keys():
            groups = (self._count,) if self._shared == "k" else ()
            like = operands["a"]
            shape_of_all = *groups, *result_shape
            new = like.library.empty(shape_of_all, problem.out_dtype, like.array)
            operands["out"] = inspected("out", new, *where)
        self._operands = operands
        self._anchor = operands.get("out") or operands["c"]
        self.result = self._anchor.array
        indices = [x for x in (self._out_rows, self._rows, self._offsets) if x]
        everything = [*operands.values(), *indices, *fused.values()]
        self._order(everything)
        self._ordinal = _check_devices(everything)
        outputs = [x for name, x in fused.items() if shape and shape.is_output(name)]
        for target in (self._anchor, *outputs):
            _check_overlaps(target, everything, problem.reads_c)
        # C = 0 * A @ B + 1 * C in place keeps every bit.
        keeps_all = problem.k == 0 and self._factors[1] == 1 and "out" not in operands
        keeps_all = keeps_all and not self._epilogue
        self._indices = tuple(number for x in indices for number in (x.pointer, x.layout.shape[0]))
        self._is_empty = problem.is_empty or self._count == 0 or keeps_all
        self._is_one_by_one = simulator_enabled() or self._ordinal == HOST
        if not self._is_one_by_one and needs_later(self._ordinal):
            raise UnsupportedProblemError(
                "gemm_grouped: offsets need a GPU of compute capability 8.0 or later; pass lists "
                "of arrays."
            )
        self._problem = _with_steps(problem, operands, self._anchor.name)
        self._strides: OperandStrides = ()
        if shape:
            of_fused = {name: operand.layout for name, operand in fused.items()}
            self._problem, self._strides = fuse(self._problem, shape, of_fused)

    def run(self) -> None:
        if self._is_empty or self._is_one_by_one:
            self.bind()()
            return
        launch = self._launch()
        call = self._call()
        self._queue(lambda stream: launch(call, stream))

    def bind(self) -> Callable[[], None]:
        if self._is_empty:
            return in_turn([])
        if self._is_one_by_one:
            return lambda: in_turn(self._one_by_one())()  # by the offsets of that time
        launch = self._launch().fixed(self._call())
        return lambda: self._queue(launch)

    def _launch(self) -> Launch:
        shared = EXCHANGED[self._shared] if self._problem.is_transposed else self._shared
        rows = _indexed(self._operands["a"].layout, self._rows)
        out_rows = _indexed(self._anchor.layout, self._out_rows)
        dtype = self._offsets.layout.dtype
        group = OffsetGroup(self._problem, shared, self._count, dtype, rows, out_rows)
        with launching_on(self._current_stream()):
            return bind_group(group, self._ordinal)

    def _call(self) -> Call:
        """Arguments of the launch: see `lower_group`."""
        first, second = ("b", "a") if self._problem.is_transposed else ("a", "b")
        added = self._operands.get("c", self._anchor)
        operands = self._operands[first], self._operands[second], added, self._anchor
        after = self._indices
        if self._epilogue:
            after += kernel_operands(self._epilogue.values, self._strides)
        return *(operand.pointer for operand in operands), *self._factors, *after

    def _one_by_one(self) -> list[Callable[[], None]]:
        """Calls of `gemm`, with the offsets as they are now; for operands in host memory."""
        axes, start = AXES[self._shared], 0
        calls: list[Callable[[], None]] = []
        total = self._operands["a" if "a" in axes else "b"]
        size = total.layout.shape[axes[total.name]]
        if self._rows:
            a_rows = np.clip(host_view(self._rows.array), 0, size - 1)
            size = len(a_rows)
        operands = {name: indexable(x.array) for name, x in self._operands.items()}
        if self._out_rows:
            shape = size, self._anchor.layout.shape[1]
            dtype = self._problem.out_dtype
            new = self._anchor.library.empty(shape, dtype, self._anchor.array)
            operands["out"] = indexable(new)
        for index, end in enumerate(np.clip(host_view(self._offsets.array), 0, size).tolist()):
            part = slice(start, max(start, end))
            arrays = {
                name: x[((slice(None),) * axes[name] + (part,)) if name in axes else index]
                for name, x in operands.items()
            }
            if self._rows:
                arrays["a"] = operands["a"][a_rows[part]]
            epilogue = self._epilogue_of(index, part) if self._epilogue else None
            calls.append(self._call_of(arrays, *self._factors, epilogue))
            start = end
        if self._out_rows:
            rows = host_view(self._out_rows.array)[:start]
            out = host_view(self._anchor.array)
            calls.append(partial(_scatter, host_view(operands["out"]), rows, out))
        return calls

    def _check_epilogue(
        self, layouts: dict[str, Layout], fused: dict[str, Operand], dtype: str
    ) -> None:
        """Check the epilogue's arrays: those of groups, and those of the whole result."""
        assert self._epilogue is not None
        shape, m, n = self._epilogue.shape, layouts["a"].shape[-2], layouts["b"].shape[-1]
        device = layouts["a"].device
        entries = zip(shape.operands, shape.labels, shape.columns(n))
        for operand, label, columns in entries:
            count = self._count if operand.kind in OF_GROUPS[self._shared] else 1
            layout = fused[label].layout if label else None
            check_operands([operand], [layout], m, [columns], count, device, dtype)

    def _epilogue_of(self, index: int, part: slice) -> BoundEpilogue:
        """The epilogue with what its arrays hold for one group."""
        assert self._epilogue is not None
        bound = self._epilogue.bound

        def of_group(name: str, kind: str, array: Any) -> Any:
            if kind == "blocks" and name[-1] in AXES[self._shared]:
                return array[(slice(None),) * AXES[self._shared][name[-1]] + (part,)]
            own = 1 if kind in ("row", "column") else 2  # dimensions of it without groups
            if array.ndim > own:
                array = array[min(index, len(array) - 1)]
            axis = {"m": 0, "n": own - 1}.get(self._shared)
            if (
                axis is None
                or kind == "blocks"
                or kind == {"m": "row", "n": "column"}[self._shared]
            ):
                return array
            is_whole = array.shape[axis] != 1 or kind == "output"
            return array[(slice(None),) * axis + (part,)] if is_whole else array

        values = [
            value if operand.is_number else of_group(operand.name, operand.kind, indexable(value))
            for operand, value in zip(bound.operands, bound.values, strict=True)
        ]
        return bound.with_values(values)


def _elementwise(epilogue: Any, stream: int | None, *anchors: Any) -> CallEpilogue:
    """The epilogue of a call; it stores the result."""
    values, _, bound = inspect_epilogue(epilogue, stream, *anchors)
    call_epilogue = CallEpilogue(bound, values)
    if call_epilogue.shape.reduction is not None:
        raise UnsupportedProblemError(
            f"{call_epilogue.shape!r} ends in a reduction, which groups do not have; store the "
            "result, and reduce that."
        )
    return call_epilogue


def _check_shapes(
    operands: dict[str, Operand],
    offsets: Operand,
    rows: Operand | None,
    out_rows: Operand | None,
    takes_pairs: bool,
) -> tuple[str, int]:
    """Dimension that is shared out, and the number of problems."""
    shapes = {name: operand.layout.shape for name, operand in operands.items()}
    a, b = shapes["a"], shapes["b"]
    shared = SHARED.get((len(a), len(b)))
    if shared is None:
        raise ShapeError(
            f"a is {a}, b is {b}; with offsets, pass (total, k) and (groups, k, n), "
            "(groups, m, k) and (k, total), or (m, total) and (total, n)."
        )
    if a[-1] != b[-2]:
        raise ShapeError(
            f"inner dimensions differ: a is {a}, b is {b}; a.shape[{len(a) - 1}] must equal "
            f"b.shape[{len(b) - 2}]."
        )
    _check_indices(offsets)
    count = offsets.layout.shape[0]
    for indices in (rows, out_rows):
        if indices is not None:
            _check_indices(indices)
            if shared != "m":
                raise ShapeError(
                    f"a is {a}, b is {b}; with {indices.name}, pass (any, k) and (groups, k, n)."
                )
    if rows is not None:
        if a[0] == 0 < rows.layout.shape[0]:
            raise ShapeError(f"a is {a}; there are no rows for {rows.layout.shape[0]} indices.")
        a = rows.layout.shape[0], a[1]
    batched = {"m": b, "n": a}.get(shared)
    if batched is not None and batched[0] != count:
        name = "b" if batched is b else "a"
        raise ShapeError(f"{name} is {batched}, but offsets has {count} elements, one per group.")
    if takes_pairs and shared == "n":
        raise UnsupportedProblemError(
            "the epilogue takes pairs of columns, which groups of columns may tear apart; exchange "
            "a and b."
        )
    columns = b[-1] // 2 if takes_pairs else b[-1]
    result = (count, a[-2], columns) if shared == "k" else (a[-2], columns)
    if out_rows is not None:
        _check_out_rows(shapes, out_rows.layout.shape[0], result)
    for name in ("c",) if out_rows else ("c", "out"):
        if name in shapes and shapes[name] != result:
            raise ShapeError(f"{name} is {shapes[name]}, but the result is {result}.")
    return shared, count


def _check_out_rows(
    shapes: dict[str, tuple[int, ...]], count: int, result: tuple[int, ...]
) -> None:
    """Refuse indices of rows that do not fit the result, or the array it goes to."""
    if "out" not in shapes:
        raise MissingOperandError("out_rows= goes with out=, the array whose rows are written.")
    if count != result[0]:
        raise ShapeError(f"out_rows has {count} elements, but the result has {result[0]} rows.")
    out = shapes["out"]
    if len(out) != 2 or out[1] != result[1]:
        raise ShapeError(f"out is {out}; with out_rows, it must be (any, {result[1]}).")


def _check_indices(operand: Operand) -> None:
    """Refuse offsets, or indices of rows, that the kernels do not take."""
    name, layout = operand.name, operand.layout
    if layout.dtype not in OFFSET_DTYPES:
        raise DtypeError(f"{name} has dtype {layout.dtype}; it must be int32 or int64.")
    if len(layout.shape) != 1:
        raise ShapeError(f"{name} is {layout.shape}; it must have one dimension.")
    if layout.shape[0] > 1 and layout.strides[0] != layout.item_size:
        raise LayoutError(f"{name} must be contiguous; copy it first.")


def _indexed(matrix: Layout, rows: Operand | None) -> IndexedRows | None:
    """Description of a matrix whose rows are read or written in the order of indices, if any."""
    if rows is None:
        return None
    strides = used_strides(matrix.shape, matrix.steps)
    return IndexedRows(rows.layout.dtype, matrix.shape[0], strides)


def _scatter(result: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Copy the first rows of a result in host memory to those of `out` that there are."""
    found = np.flatnonzero((rows >= 0) & (rows < len(out)))
    out[rows[found]] = result[found]


def _in_workspace(out: Layout, rows: int) -> Layout:
    """Layout of a result that a kernel copies to rows of `out` later."""
    shape = rows, out.shape[1]
    return out._replace(shape=shape, strides=contiguous_strides(shape, out.item_size))


def _of_problem(operand: Operand, shared: str) -> Layout:
    """Layout of one problem's matrix; of all problems' in the dimension that is shared out.

    Its alignment is that of every problem, wherever it begins.
    """
    layout, axis = operand.layout, AXES[shared].get(operand.name, 0)
    step = layout.strides[axis]
    return layout._replace(
        shape=layout.shape[-2:],
        strides=layout.strides[-2:],
        alignment=min(layout.alignment, ALIGNMENTS[step & 15]),
    )


def _with_steps(problem: Problem, operands: dict[str, Operand], target: str) -> Problem:
    """Problem with the steps from one group to the next as batch strides."""
    layouts = {name: operand.layout for name, operand in operands.items()}
    steps = {name: x.steps[0] if len(x.shape) == 3 else 0 for name, x in layouts.items()}
    steps |= {"out": steps[target], "c": steps.get("c", steps[target])}
    if problem.is_transposed:
        steps["a"], steps["b"] = steps["b"], steps["a"]
    strides = {
        name: getattr(problem, name)._replace(batch=steps[name]) for name in ("a", "b", "c", "out")
    }
    return replace(problem, **strides)


def _check_devices(operands: list[Operand]) -> int:
    """The one device of all operands."""
    devices = {operand.name: operand.layout.device for operand in operands}
    if len(set(devices.values())) > 1:
        listed = ", ".join(
            f"{name} in host memory" if device == HOST else f"{name} on GPU {device}"
            for name, device in devices.items()
        )
        raise DeviceMismatchError(
            f"gemm_grouped: {listed}; with offsets, all arrays must be in one place."
        )
    return next(iter(devices.values()))


def _check_overlaps(target: Operand, operands: list[Operand], reads_c: bool) -> None:
    """Refuse a result that overlaps itself, or another array of the call."""
    refuse_overlap(f"gemm_grouped: {target.name}", target.layout)

    def is_apart(operand: Operand) -> bool:
        """True unless the operand is not read, or read element for element: in place after all."""
        is_same = (operand.pointer, operand.layout) == (target.pointer, target.layout)
        return operand.name != "c" or (reads_c and not is_same)

    used = [target, *(x for x in operands if x.name != target.name and is_apart(x))]
    found = find_overlap([(x.pointer, x.layout, x is target) for x in used])
    if found is not None:
        raise OverlapError(
            f"gemm_grouped: {target.name} shares memory with {used[max(found)].name}, which is "
            f"read while {target.name} is written; pass a copy of one of them."
        )
