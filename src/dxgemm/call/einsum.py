"""`einsum` and `tensordot`: contractions by products of `gemm`.

A contraction is planned once from its labels and the operands' layouts, as a list of steps:
products of two operands, and copies where strides do not merge (`dxgemm.call.contraction_plan`).
Several operands are contracted in the order that `numpy.einsum_path` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import index
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from dxgemm.call.contraction_plan import (
    Assign,
    Contraction,
    Ones,
    Product,
    Subscripts,
    View,
    plan_steps,
    sizes_of,
)
from dxgemm.call.operand import Operand, inspected
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.errors import (
    DtypeError,
    MissingOperandError,
    ReadOnlyError,
    SettingError,
    ShapeError,
    UnsupportedProblemError,
    shown,
)
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, RESULT_DTYPES, result_dtypes
from dxgemm.problem.layout import Layout, refuse_overlap
from dxgemm.runtime.exports import finished

Shape = tuple[int, ...]
Axes = tuple[Shape, Shape]  # of a and b, none of them negative


class Call(NamedTuple):
    """Contraction of operands that are known.

    Attributes:
        contraction: its steps.
        operands: the operands, and the array that is written, if there is one.
        has_out: True if there is one.
    """

    contraction: Contraction
    operands: list[Operand]
    has_out: bool

    def run(self, gemm: Callable[..., Any], beta: Any, **last: Any) -> Any:
        """Run the steps by calls of `gemm`, the last of them with further options."""
        contraction, slots = self.contraction, [*self.operands]
        new: Any = None
        for step in contraction.steps:
            if isinstance(step, Assign):
                target = slots[step.target.slot].library
                target.assign(_viewed(slots, step.target), slots[step.slot].array)
                continue
            if isinstance(step, Product):
                new = _multiply(gemm, slots, step, beta, last if step.is_last else {})
                if step.out is not None:
                    continue
                if step.is_last and contraction.is_plain:
                    return finished(new)
            elif isinstance(step, Ones):
                new = _copied(slots[0], (step.size,), 1)
            else:
                source = _viewed(slots, step.source)
                new = _copied(slots[step.source.slot], step.source.shape, source)
            slots.append(inspected("a step", new, None))
        if self.has_out:
            return finished(self.operands[-1].array)
        shape, item_size = contraction.shape, ITEM_SIZES[slots[-1].layout.dtype]
        strides = tuple(stride * item_size for stride in contraction.strides)
        result = finished(_viewed(slots, View(len(slots) - 1, shape, strides)))
        return result if shape else result[()]


def _copied(like: Operand, shape: Shape, source: Any) -> Any:
    """Row-major copy of an array or a number, of the library and the dtype of an operand."""
    new = like.library.empty(shape, like.layout.dtype, like.array)
    like.library.assign(new, source)
    return new


def _multiply(
    gemm: Callable[..., Any], slots: list[Operand], step: Product, beta: Any, options: Any
) -> Any:
    """Launch a product; in turns if it has two dimensions before those of matrices."""
    views = [step.a, step.b] + ([] if step.out is None else [step.out])
    arrays = [_viewed(slots, view) for view in views]
    if len(step.a.shape) <= 3:
        return gemm(*arrays, beta=beta if step.out else 0.0, **options)
    operands = [inspected("a step", array, None) for array in arrays]
    if step.out is None:
        like, shape = operands[0], (*step.a.shape[:-1], step.b.shape[-1])
        new = like.library.empty(shape, result_dtypes(like.layout.dtype)[0], like.array)
        operands.append(inspected("a step", new, None))
        beta = 0.0
    for place in range(step.a.shape[0]):
        parts = []
        for operand in operands:
            shape, strides = operand.layout.shape[1:], operand.layout.strides[1:]
            parts.append(operand.library.view(operand.array, (place,), shape, strides))
        gemm(*parts, beta=beta, **options)
    return operands[-1].array


def transpose(a: Any, axes: Sequence[int]) -> Any:
    """View of an array with its dimensions in another order, as opt_einsum asks its backends for.

    Raises:
        UnsupportedProblemError: the array is of a library that has no views here.
    """
    operand = inspected("a", a, None)
    if operand.library.always_ordered:
        raise UnsupportedProblemError(
            f"transpose: a {type(a).__name__} has no views here; call its library's transpose."
        )
    layout = operand.layout
    shape, strides = (tuple(own[axis] for axis in axes) for own in (layout.shape, layout.strides))
    return operand.library.view(operand.array, (), shape, strides)


def _viewed(slots: Sequence[Operand], view: View) -> Any:
    """Array of a view; the slot's own where it is the same."""
    operand = slots[view.slot]
    if operand.layout.shape == view.shape and operand.layout.strides == view.strides:
        return operand.array
    return operand.library.view(operand.array, (), view.shape, view.strides)


def einsum_call(
    subscripts: Any, operands: Sequence[Any], out: Any, epilogue: Any, beta: Any
) -> Call:
    """Check the arguments of `einsum` but alpha and the options of products, and plan the steps."""
    if not isinstance(subscripts, str):
        raise SettingError(f"einsum: subscripts are {shown(subscripts)}; pass a string.")
    if not operands:
        raise ShapeError("einsum: must provide at least an operand and a subscripts list to it.")
    return _call(subscripts, _inspected(operands, out), out, epilogue, beta)


def tensordot_call(a: Any, b: Any, axes: Any, out: Any, epilogue: Any, beta: Any) -> Call:
    """Check the arguments of `tensordot` but alpha and the options of products, and plan it."""
    given = _inspected((a, b), out)
    ndims = [len(operand.layout.shape) for operand in given]
    return _call(_checked_axes(axes, *ndims), given, out, epilogue, beta)


def _inspected(operands: Sequence[Any], out: Any) -> list[Operand]:
    first = operands[0]
    return [
        inspected(_name(place, len(operands)), array, None, out, first)
        for place, array in enumerate(operands)
    ]


def _name(place: int, count: int) -> str:
    return "ab"[place] if count == 2 else f"operand {place}"


def _call(labels: str | Axes, given: list[Operand], out: Any, epilogue: Any, beta: Any) -> Call:
    """Plan the contraction of operands by subscripts, or by the axes of two."""
    first = given[0]
    chain = None if epilogue is None else bound_epilogue(epilogue)
    if chain is not None and (chain.reduction is not None or chain.takes_pairs):
        raise UnsupportedProblemError(
            f"einsum: the epilogue {chain} changes the shape of the result; call gemm for it."
        )
    if out is None and beta:
        raise MissingOperandError("einsum: beta is not zero but there is no out to scale.")
    if out is None and any(operand.library.always_ordered for operand in given):
        # Exports have no views, so that the result is written in its own order.
        layouts = tuple(operand.layout for operand in given)
        shape = _contraction(labels, layouts, False, False, False).shape
        out = first.library.empty(shape, result_dtypes(first.layout.dtype)[0], first.array)
    if out is not None:
        given.append(inspected("out", out, None, out))
    may_swap = all(operand.library is first.library for operand in given)
    layouts = tuple(operand.layout for operand in given)
    has_out = out is not None
    return Call(_contraction(labels, layouts, has_out, chain is not None, may_swap), given, has_out)


@lru_cache(maxsize=4096)
def _contraction(
    labels: str | Axes, layouts: tuple[Layout, ...], has_out: bool, in_order: bool, may_swap: bool
) -> Contraction:
    """Check the operands' layouts against each other, and plan the steps.

    Args:
        labels: subscripts, or the axes of two operands.
        layouts: those of the operands, then that of the array that is written.
        has_out: True if there is one.
        in_order, may_swap: as `plan_steps` takes them.
    """
    operands = layouts[:-1] if has_out else layouts
    dtype = operands[0].dtype
    if dtype not in {*RESULT_DTYPES, *COMPLEX_PARTS} or len({x.dtype for x in operands}) > 1:
        names = (_name(place, len(operands)) for place in range(len(operands)))
        listed = ", ".join(f"{name} is {x.dtype}" for name, x in zip(names, operands))
        known = ", ".join((*RESULT_DTYPES, *COMPLEX_PARTS))
        raise DtypeError(f"einsum: {listed}; convert them to one dtype of {known}.")
    shapes = tuple(layout.shape for layout in operands)
    if isinstance(labels, str):
        subscripts = _parsed(labels.replace(" ", ""), shapes)
    else:
        subscripts = _of_axes(labels, *shapes)
    sizes = sizes_of(subscripts, operands)
    shape = tuple(sizes[label] for label in subscripts.result)
    if has_out:
        out = layouts[-1]
        if out.shape != shape:
            raise ShapeError(
                f"einsum: out is {out.shape}, but the result is {shape}; it must have that shape."
            )
        if out.read_only:
            raise ReadOnlyError("einsum: out is read-only, but the result is written to it.")
        refuse_overlap("einsum: out", out)
    contraction = plan_steps(subscripts, layouts, in_order, may_swap)
    if result_dtypes(dtype)[0] != dtype and len(contraction.products) > 1:
        raise DtypeError(
            f"einsum: sums of {dtype} are {result_dtypes(dtype)[0]}, which are not multiplied "
            f"again, but this takes {len(contraction.products)} products; convert the operands."
        )
    return contraction


def _checked_axes(axes: Any, *ndims: int) -> Axes:
    """Axes of a and of b that are contracted, none of them negative."""
    try:
        if not hasattr(axes, "__iter__"):
            count = index(axes)
            if not 0 <= count <= min(ndims):
                raise IndexError
            return tuple(range(ndims[0] - count, ndims[0])), tuple(range(count))
        both = [own if hasattr(own, "__iter__") else (own,) for own in axes]
        left, right = (tuple(map(index, own)) for own in both)
        if any(not -ndim <= axis < ndim for own, ndim in zip((left, right), ndims) for axis in own):
            raise IndexError
    except (TypeError, ValueError, IndexError):
        raise ShapeError(
            f"tensordot: axes are {shown(axes)}, but a has {ndims[0]} dimensions and b has "
            f"{ndims[1]}; pass a number of axes, or a pair of lists of axes that there are."
        ) from None
    return tuple(axis % ndims[0] for axis in left), tuple(axis % ndims[1] for axis in right)


def _of_axes(axes: Axes, a: Shape, b: Shape) -> Subscripts:
    """Labels of two operands by the axes that they share."""
    pairs = dict(zip(axes[1], axes[0]))
    fits = len(axes[0]) == len(axes[1]) and len({*axes[0]}) == len(axes[0]) == len(pairs)
    if not fits or any(a[i] != b[j] for j, i in pairs.items()):
        raise ShapeError(
            f"tensordot: shape-mismatch for sum: a is {a} and b is {b}, but axes are {axes[0]} and "
            f"{axes[1]}."
        )
    labels_a = tuple(map(_letter, range(len(a))))
    labels_b = tuple(
        labels_a[pairs[j]] if j in pairs else _letter(len(a) + j) for j in range(len(b))
    )
    shared = {*labels_a} & {*labels_b}
    kept = tuple(label for label in labels_a + labels_b if label not in shared)
    return Subscripts((labels_a, labels_b), kept, ((0, 1),))


def _letter(place: int) -> str:
    """Label that stands at a place among all; letters first."""
    return ascii_letters[place] if place < len(ascii_letters) else chr(0x100 + place)


def _parsed(text: str, shapes: tuple[tuple[int, ...], ...]) -> Subscripts:
    """Labels by subscripts that NumPy has checked, and its path; both with its messages."""
    stand_ins = [np.broadcast_to(np.float32(0), shape) for shape in shapes]
    try:
        path, _ = np.einsum_path(text, *stand_ins, optimize="greedy")
    except (TypeError, ValueError) as error:
        raise ShapeError(f"einsum: {error}") from None
    inputs, arrow, output = text.partition("->")
    unused = [letter for letter in ascii_letters if letter not in text]
    most = 0
    operands = []
    for term, shape in zip(inputs.split(","), shapes):
        before, dots, after = term.partition("...")
        count = len(shape) - len(before) - len(after) if dots else 0
        most = max(most, count)
        # Ellipses are aligned at their last dimensions.
        operands.append((*before, *reversed(unused[:count]), *after))
    whole = tuple(reversed(unused[:most]))
    if not arrow:
        every = [label for term in operands for label in term]
        result = (*whole, *sorted({x for x in every if every.count(x) == 1} - {*whole}))
    elif "..." in output:
        before, _, after = output.partition("...")
        result = (*before, *whole, *after)
    elif most:
        raise ShapeError(
            "einsum: output has more dimensions than subscripts given in einstein sum, but no "
            "'...' ellipsis provided to broadcast the extra dimensions."
        )
    else:
        result = tuple(output)
    for place, (labels, shape) in enumerate(zip(operands, shapes)):
        for label, size in zip(labels, shape):
            first = shape[labels.index(label)]
            if size != first:
                raise ShapeError(
                    f"einsum: dimensions in operand {place} for collapsing index '{label}' don't "
                    f"match ({first} != {size})"
                )
    return Subscripts(tuple(operands), result, tuple(path[1:]))
