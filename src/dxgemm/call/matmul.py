"""`matmul`: products of the shapes that `numpy.matmul` takes, by calls of `gemm`.

A vector becomes a matrix of one row or one column. Neighbouring dimensions of the batch that
have a common stride in all operands are merged. The largest is the batch of a launch, the others
are looped over.
Arrays of an epilogue are cut up in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dxgemm.call.epilogue import refuse_missing_out
from dxgemm.call.operand import Operand, inspected
from dxgemm.epilogues.chain import BoundEpilogue, bound_epilogue
from dxgemm.errors import (
    DtypeError,
    OverlapError,
    ShapeError,
    UnsupportedProblemError,
)
from dxgemm.problem.arguments import check_triangular
from dxgemm.problem.dtypes import (
    COMPLEX_PARTS,
    FLOAT8_RESULTS,
    INTEGER_RESULTS,
    RESULT_DTYPES,
    product_dtype,
    result_dtypes,
)
from dxgemm.problem.layout import refuse_misaligned, refuse_overlap
from dxgemm.problem.overlap import find_overlap
from dxgemm.runtime.exports import finished
from dxgemm.runtime.streams import stream_handle


class _Matrices(NamedTuple):
    """Operand as a batch of matrices, or an array of an epilogue as a batch of vectors or matrices.

    Attributes:
        operand: the operand.
        batch: sizes of its own dimensions of the batch.
        sizes: rows and columns of a matrix, or the length of a vector.
        steps: bytes from one matrix to the next in each dimension of the whole batch; 0 where the
            operand is broadcast.
        strides: bytes from one index of each of `sizes` to the next.
        is_written: True if the call writes it.
    """

    operand: Operand
    batch: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    strides: tuple[int, ...]
    is_written: bool = False

    def view(self, index: tuple[int, ...], count: tuple[int, ...], step: tuple[int, ...]) -> Any:
        """View `count` matrices, `step` bytes apart, from an index of the whole batch on."""
        own = index[len(index) - len(self.batch) :]
        first = tuple(place if size > 1 else 0 for place, size in zip(own, self.batch))
        if 0 in self.batch:
            first = ()  # there is no first matrix
        shape, strides = count + self.sizes, step + self.strides
        return self.operand.library.view(self.operand.array, first, shape, strides)


def multiply(gemm: Callable[..., Any], a: Any, b: Any, out: Any, epilogue: Any, stream: Any) -> Any:
    """Multiply by calls of `gemm`, which takes matrices and batches of matrices."""
    where = None if stream is None else stream_handle(stream), out, a
    left, right = inspected("a", a, *where), inspected("b", b, *where)
    shapes = left.layout.shape, right.layout.shape
    if all(len(shape) in (2, 3) for shape in shapes):
        return gemm(left.array, right.array, out=out, epilogue=epilogue)
    chain = None if epilogue is None else bound_epilogue(epilogue)
    if chain is not None and chain.reduction is not None:
        raise UnsupportedProblemError(
            f"matmul: {chain.reduction} reduces a matrix or a batch of one dimension, but a is "
            f"{shapes[0]} and b is {shapes[1]}; pass views of two or three dimensions."
        )
    shape, batch = _result_shape(*shapes, chain is not None and chain.takes_pairs)
    result = out
    if out is None:
        if chain is not None:
            refuse_missing_out(chain, left.layout.dtype)
        given = product_dtype(left.layout.dtype, right.layout.dtype) or left.layout.dtype
        if given not in {*RESULT_DTYPES, *FLOAT8_RESULTS, *INTEGER_RESULTS, *COMPLEX_PARTS}:
            raise DtypeError(f"matmul: <a> has dtype {given}, which is not supported; convert it.")
        result = left.library.empty(shape, result_dtypes(given)[0], left.array)
    target = inspected("out", result, *where)
    if target.layout.shape != shape:
        raise ShapeError(
            f"matmul: out is {target.layout.shape}, but the result is {shape} for a {shapes[0]} "
            f"and b {shapes[1]}."
        )
    has_rows, has_cols = (len(shape) > 1 for shape in shapes)
    operands = [
        _matrices(left, (has_rows, True), len(batch)),
        _matrices(right, (True, has_cols), len(batch)),
        _matrices(target, (has_rows, has_cols), len(batch), is_written=True),
    ]
    if chain is not None:
        operands += _epilogue_arrays(chain, (has_rows, has_cols), batch, where)
    launches = list(_launches(operands, batch))
    if len(launches) > 1:
        _check_once(operands)
    for a_part, b_part, out_part, *arrays in launches:
        if chain is not None:
            own = dict(zip(chain.shape.array_places, arrays, strict=True))
            epilogue = chain.with_values(own.get(i, value) for i, value in enumerate(chain.values))
        gemm(a_part, b_part, out=out_part, epilogue=epilogue)
    result = finished(target.array)
    return result[()] if out is None and not shape else result


def refuse_vectors(triangular: Any, a: Any, b: Any) -> None:
    """Refuse a vector for which a triangle is named.

    Raises:
        ShapeError: it is one.
    """
    for name, triangle, operand in zip("ab", check_triangular(triangular), (a, b), strict=True):
        if triangle is not None and len(getattr(operand, "shape", "22")) < 2:
            raise ShapeError(
                f"matmul: {name} is a vector, {tuple(operand.shape)}, which has no triangle; pass "
                "a matrix, or None for it in triangular."
            )


def _result_shape(
    a: tuple[int, ...], b: tuple[int, ...], takes_pairs: bool
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
    if takes_pairs:
        cols = tuple(n // 2 for n in cols)
    return (*batch, *a[-2:-1], *cols), batch


def _matrices(
    operand: Operand, has: tuple[bool, ...], ndim: int, *, is_written: bool = False
) -> _Matrices:
    """Operand whose last dimensions are those of a matrix, or of a vector, that it has."""
    layout = operand.layout
    own = len(layout.shape) - sum(has)
    batch, steps = layout.shape[:own], layout.strides[:own]
    inner = iter(zip(layout.shape[own:], layout.strides[own:]))
    pairs = [next(inner) if given else (1, 0) for given in has]
    kept = (step if size > 1 else 0 for step, size in zip(steps, batch))
    return _Matrices(
        operand,
        batch,
        tuple(size for size, _ in pairs),
        (0,) * (ndim - own) + tuple(kept),
        tuple(stride for _, stride in pairs),
        is_written,
    )


def _epilogue_arrays(
    chain: BoundEpilogue, has: tuple[bool, bool], batch: tuple[int, ...], anchors: Any
) -> Iterator[_Matrices]:
    """Arrays of an epilogue; matrices lack the dimensions that the result lacks."""
    for place in chain.shape.array_places:
        parameter = chain.operands[place]
        where = f"epilogue {parameter.epilogue}: {parameter.name}"
        operand = inspected(where, chain.values[place], *anchors)
        given = (True,) if parameter.kind in ("row", "column") else has
        own = len(operand.layout.shape) - sum(given)
        leading = operand.layout.shape[: max(own, 0)]
        is_output = parameter.kind == "output"
        pairs = zip(reversed(leading), reversed(batch))
        fits = own <= len(batch) and all(size in (1, whole) for size, whole in pairs)
        if own < 0 or not (leading == batch if is_output else fits):
            remark = "" if is_output else ", or 1 to be broadcast"
            raise ShapeError(
                f"matmul: {where} is {operand.layout.shape}, but the result has the batch {batch}; "
                f"dimensions before {'the last' if sum(given) == 1 else 'the last two'} must be "
                f"equal{remark}."
            )
        yield _matrices(operand, given, len(batch), is_written=is_output)


def _launches(operands: Sequence[_Matrices], batch: tuple[int, ...]) -> Iterator[list[Any]]:
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


def _check_once(operands: Sequence[_Matrices]) -> None:
    """Check what single calls of gemm would find only when others have written."""
    for operand, *_ in operands:
        refuse_misaligned(f"matmul: {operand.name}", operand.layout)
    for operand, *_, is_written in operands:
        if is_written:
            refuse_overlap(f"matmul: {operand.name}", operand.layout)
    found = find_overlap([(x.operand.pointer, x.operand.layout, x.is_written) for x in operands])
    if found is not None:
        first, second = sorted(found, key=lambda place: not operands[place].is_written)
        raise OverlapError(
            f"matmul: {operands[first].operand.name} shares memory with "
            f"{operands[second].operand.name}; pass an array of its own."
        )
