"""`matmul`: products of the shapes that `numpy.matmul` takes, by calls of `gemm`.

A vector becomes a matrix of one row or one column. Neighbouring dimensions of the batch that lie
evenly in all operands are merged. The largest is the batch of a launch, the others are looped over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dxgemm.call.operand import Operand, inspected
from dxgemm.errors import OverlapError, ShapeError
from dxgemm.problem.dtypes import RESULT_DTYPES
from dxgemm.problem.layout import refuse_overlap, share_elements


class _Matrices(NamedTuple):
    """Operand as a batch of matrices.

    Attributes:
        operand: the operand.
        batch: sizes of its own dimensions of the batch.
        sizes: rows and columns of a matrix.
        steps: bytes from one matrix to the next in each dimension of the whole batch; 0 where the
            operand is broadcast.
        strides: bytes from one row and one column to the next.
    """

    operand: Operand
    batch: tuple[int, ...]
    sizes: tuple[int, int]
    steps: tuple[int, ...]
    strides: tuple[int, int]

    def view(self, index: tuple[int, ...], count: tuple[int, ...], step: tuple[int, ...]) -> Any:
        """View `count` matrices, `step` bytes apart, from an index of the whole batch on."""
        own = index[len(index) - len(self.batch) :]
        first = tuple(place if size > 1 else 0 for place, size in zip(own, self.batch))
        if 0 in self.batch:
            first = ()  # there is no first matrix
        shape, strides = count + self.sizes, step + self.strides
        return self.operand.library.view(self.operand.array, first, shape, strides)


def multiply(gemm: Callable[..., Any], a: Any, b: Any, out: Any) -> Any:
    """Multiply by calls of gemm(a, b, out=out), which takes matrices and batches of matrices."""
    left, right = inspected("a", a), inspected("b", b)
    shapes = left.layout.shape, right.layout.shape
    if all(len(shape) in (2, 3) for shape in shapes):
        return gemm(a, b, out=out)
    shape, batch = _result_shape(*shapes)
    result = out
    if out is None:  # gemm refuses the dtypes that are not listed
        dtype = RESULT_DTYPES.get(left.layout.dtype, ("float32",))[0]
        result = left.library.empty(shape, dtype, a)
    target = inspected("out", result)
    if target.layout.shape != shape:
        raise ShapeError(
            f"matmul: out is {target.layout.shape}, but the result is {shape} for a {shapes[0]} "
            f"and b {shapes[1]}."
        )
    has_rows, has_cols = (len(shape) > 1 for shape in shapes)
    operands = (
        _matrices(left, (has_rows, True), len(batch)),
        _matrices(right, (True, has_cols), len(batch)),
        _matrices(target, (has_rows, has_cols), len(batch)),
    )
    launches = list(_launches(operands, batch))
    if out is not None and len(launches) > 1:
        _check_overlap(target, (left, right))
    for a_part, b_part, out_part in launches:
        gemm(a_part, b_part, out=out_part)
    return result[()] if out is None and not shape else result


def _result_shape(
    a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of the result, and of the batch that it begins with."""
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise ShapeError(f"matmul: {name} is a number, of shape (); multiply by it with *.")
    if a[-1] != b[-2:][0]:  # the last but one of b, or the only one
        raise ShapeError(
            f"matmul: inner dimensions differ: a is {a}, b is {b}; a.shape[{len(a) - 1}] must "
            f"equal b.shape[{max(len(b) - 2, 0)}]."
        )
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ShapeError(
            f"matmul: batches differ: a is {a}, b is {b}; but for the last two, dimensions must "
            "be equal, or 1 to be broadcast."
        ) from None
    cols = b[-1:] if len(b) > 1 else ()
    return (*batch, *a[-2:-1], *cols), batch


def _matrices(operand: Operand, has: tuple[bool, bool], ndim: int) -> _Matrices:
    """Operand whose last dimensions are rows and columns, those of both that it has."""
    layout = operand.layout
    own = len(layout.shape) - sum(has)
    batch, steps = layout.shape[:own], layout.strides[:own]
    sizes, strides = iter(layout.shape[own:]), iter(layout.strides[own:])
    rows, cols = (next(sizes) if given else 1 for given in has)
    row, col = (next(strides) if given else 0 for given in has)
    kept = (step if size > 1 else 0 for step, size in zip(steps, batch))
    return _Matrices(operand, batch, (rows, cols), (0,) * (ndim - own) + tuple(kept), (row, col))


def _launches(operands: tuple[_Matrices, ...], batch: tuple[int, ...]) -> Iterator[list[Any]]:
    """Views of the operands for each call of gemm."""
    merged: list[list[int]] = []
    for dimension, size in enumerate(batch):
        if size == 1:
            continue
        last = merged[-1][-1] if merged else None
        if last is not None and all(x.steps[last] == x.steps[dimension] * size for x in operands):
            merged[-1].append(dimension)
        else:
            merged.append([dimension])
    # Of an empty batch, the empty dimension goes to gemm once: it checks the operands.
    counts = [math.prod(batch[dimension] for dimension in group) for group in merged]
    count = max(counts, key=lambda count: (count == 0, count), default=1)
    launched = merged[counts.index(count)] if merged else []
    looped = [range(1 if d in launched or count == 0 else n) for d, n in enumerate(batch)]
    for index in product(*looped):
        yield [
            x.view(index, (count,), (x.steps[launched[-1]],)) if launched else x.view(index, (), ())
            for x in operands
        ]


def _check_overlap(target: Operand, operands: tuple[Operand, ...]) -> None:
    """Check once what each call of gemm would find only when others have written."""
    refuse_overlap("matmul: out", target.layout)
    for operand in operands:
        places = target.pointer, target.layout, operand.pointer, operand.layout
        if operand.layout.device == target.layout.device and share_elements(*places):
            raise OverlapError(
                f"matmul: out shares memory with {operand.name}; pass an array of its own."
            )
