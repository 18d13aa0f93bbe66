"""`einsum` and `tensordot`: contractions by products of `gemm`.

A contraction is planned once from its labels and the operands' layouts, as a list of steps:
products of two operands, and copies where strides do not merge (`dxgemm.call.contraction_plan`).
Several operands are contracted in the order that `numpy.einsum_path` finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from dxgemm.call.contraction_plan import (
    Assign,
    Contraction,
    Copy,
    Product,
    Subscripts,
    View,
    plan_steps,
    sizes_of,
)
from dxgemm.call.factors import number
from dxgemm.call.operand import inspected
from dxgemm.call.prepare import prepare, run
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.errors import (
    DtypeError,
    MissingOperandError,
    SettingError,
    ShapeError,
    UnsupportedProblemError,
    marked,
    named_in_errors,
    shown,
)
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, RESULT_DTYPES, result_dtypes
from dxgemm.problem.layout import Layout, contiguous_strides, refuse_unwritable
from dxgemm.runtime.arrays import HOST, Library, Unusable, libraries
from dxgemm.runtime.exports import finished, launch_stream, taken

Shape = tuple[int, ...]
Axes = tuple[Shape, Shape]  # of a and b, none of them negative


# Array of a step, its library, and its address and key there. A plain tuple: making a record with
# names takes longer than all checks of a call that is known.
Slot = tuple[Any, Library, int, Any]


class Plan(NamedTuple):
    """Contraction of all operands with the same keys.

    Attributes:
        contraction: its steps.
        takes_views: True if products take views of the operands: of exports, which are ordered one
            by one, and of arrays that are copied to the GPU. Of others the keys of views will do.
        keys: those of each product's operands, by its place among the steps, once it has run.
    """

    contraction: Contraction
    takes_views: bool
    keys: dict[int, tuple[Any, ...]]


plans: dict[Any, Plan] = {}
_MOST_PLANS = 4096


class Call(NamedTuple):
    """Contraction of operands that are known.

    Attributes:
        plan: its plan.
        slots: the operands, and the array that is written, if there is one.
        has_out: True if there is one.
    """

    plan: Plan
    slots: list[Slot]
    has_out: bool

    def run(self, alpha: Any, beta: Any, epilogue: Any, settings: tuple[Any, ...]) -> Any:
        """Run the steps, all products with an implementation, a precision and so on."""
        plan, slots, has_out = self
        contraction, slots = plan.contraction, [*slots]
        shape = contraction.shape
        last = alpha, beta if has_out else 0.0, epilogue
        for place, step in enumerate(contraction.steps):
            if isinstance(step, Product):
                factors = last if step.is_last else (1.0, 0.0, None)
                is_whole = step.is_last and contraction.is_plain and not plan.takes_views
                new_shape = shape if is_whole else step.result_shape
                multiply = _multiply if len(step.a.shape) <= 3 else _multiply_in_turn
                new = multiply(plan, place, step, slots, new_shape, factors, settings)
                if step.out is not None:
                    continue
                if step.is_last:
                    break
            elif isinstance(step, Assign):
                library = slots[step.target.slot][1]
                library.assign(_viewed(slots, step.target), slots[step.slot][0])
                continue
            elif isinstance(step, Copy):
                source, library, *_ = slots[step.source.slot]
                new = library.empty(step.source.shape, step.dtype, source)
                library.assign(new, _viewed(slots, step.source))
            else:
                like, library, *_ = slots[0]
                new = library.empty((step.size,), step.dtype, like)
                library.assign(new, 1)
            slots.append(_slot("a step", new))
        if has_out:
            return finished(slots[len(self.slots) - 1][0])
        if not is_whole:
            item_size = ITEM_SIZES[contraction.products[-1].dtype]
            strides = tuple([stride * item_size for stride in contraction.strides])
            new = slots[0][1].view(new, (), shape, strides)
        return new if shape else new[()]


def _multiply(
    plan: Plan, place: int, step: Product, slots: list[Slot], shape: Shape, factors: Any,
    settings: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Launch a product, the one at a place among the steps, or a part of it; returns its result.

    Args:
        shape: shape of the result if that is new.
        factors: alpha, beta and epilogue.
    """
    a, library, a_pointer, _ = slots[step.a.slot]
    b, _, b_pointer, _ = slots[step.b.slot]
    c, c_pointer, anchor = None, 0, a
    if step.out is not None:
        c, library, c_pointer, _ = slots[step.out.slot]
        anchor = c
    keys = plan.keys.get(place)
    if keys is None:
        own: list[Any] = []
        for view in (step.a, step.b) if step.out is None else (step.a, step.b, step.out):
            _, each, _, key = slots[view.slot]
            own += each, each.view_key(key, view.shape, view.strides)
        keys = plan.keys[place] = (*own, *(None,) * (8 - len(own)))
    if plan.takes_views:
        a, b = _viewed(slots, step.a), _viewed(slots, step.b)
        anchor = a
        if step.out is not None:
            anchor = c = _viewed(slots, step.out)
    alpha, beta, epilogue = factors
    found = a, b, c, None, a_pointer, b_pointer, c_pointer, 0, keys, anchor, library
    options = epilogue, None, *settings, None, "", None, None
    return run(prepare(a, b, c, alpha, beta, None, options, found=found, shape=shape))


def _multiply_in_turn(
    plan: Plan, place: int, step: Product, slots: list[Slot], shape: Shape, factors: Any,
    settings: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Launch a product for each index of the dimension before its batch; returns its result."""
    out = step.out
    if out is None:
        like, library, *_ = slots[step.a.slot]
        strides = contiguous_strides(step.result_shape, ITEM_SIZES[step.dtype])
        out = View(len(slots), step.result_shape, strides)
        slots = [*slots, _slot("a step", library.empty(shape, step.dtype, like))]
    views = step.a, step.b, out
    own = [View(i, view.shape[1:], view.strides[1:]) for i, view in enumerate(views)]
    part = step._replace(a=own[0], b=own[1], out=own[2])
    for turn in range(step.a.shape[0]):
        parts = []
        for (slot, *whole), (_, *inner) in zip(views, own):
            array, library, pointer, key = slots[slot]
            if plan.takes_views:
                array = library.view(library.view(array, (), *whole), (turn,), *inner)
                key = library.view_key(key, *inner)
            parts.append((array, library, pointer + turn * whole[1][0], key))
        _multiply(plan, place, part, parts, shape, factors, settings)
    return slots[out.slot][0]


@named_in_errors("transpose")
def transpose(a: Any, axes: Sequence[int]) -> Any:
    """View of an array with its dimensions in another order, as opt_einsum asks its backends for.

    Raises:
        ShapeError: axes is no permutation of the array's dimensions.
        UnsupportedProblemError: the array is of a library that has no views here.
    """
    operand = inspected("a", a, None)
    if operand.library.always_ordered:
        raise UnsupportedProblemError(
            f"transpose: a {type(a).__name__} has no views here; call its library's transpose."
        )
    layout = operand.layout
    places = range(len(layout.shape))
    try:
        order = [places[axis] for axis in axes]
    except Exception:  # of no list of integers, or of one beyond the dimensions
        order = []
    if sorted(order) != [*places]:
        raise ShapeError(
            f"transpose: axes are {shown(axes)}, but a is {layout.shape}; pass each of its "
            "dimensions once."
        )
    shape, strides = (tuple(own[axis] for axis in order) for own in (layout.shape, layout.strides))
    return operand.library.view(operand.array, (), shape, strides)


def _viewed(slots: Sequence[Slot], view: View) -> Any:
    """Array of a view; the slot's own where it is the same."""
    array, library, _, key = slots[view.slot]
    if key == library.view_key(key, view.shape, view.strides):
        return array
    return library.view(array, (), view.shape, view.strides)


def _slot(name: str, array: Any, *anchors: Any) -> Slot:
    """Inspect an array, and verify it if it is doubtful; `launch_stream` tells of `anchors`."""
    library = libraries.get(type(array))
    if library is None:
        array, library = taken(marked(name), array, launch_stream(None, *anchors))
    pointer, key = library.inspect(array)
    if type(key) is Unusable:
        library.check(marked(name), array, key)
    if library.doubts(key):
        library.verify(marked(name), array)
    return array, library, pointer, key


def einsum_call(
    subscripts: Any, operands: Sequence[Any], out: Any, epilogue: Any, beta: Any
) -> Call:
    """Check the arguments of `einsum` but alpha and the options of products, and plan the steps."""
    if not isinstance(subscripts, str):
        raise SettingError(f"einsum: subscripts are {shown(subscripts)}; pass a string.")
    if not operands:
        raise ShapeError("einsum: must provide at least an operand and a subscripts list to it.")
    return _call(subscripts, _slots(operands, out), out, epilogue, beta)


def tensordot_call(a: Any, b: Any, axes: Any, out: Any, epilogue: Any, beta: Any) -> Call:
    """Check the arguments of `tensordot` but alpha and the options of products, and plan it."""
    slots = _slots((a, b), out)
    shapes = [key[0] for *_, key in slots]
    return _call(_checked_axes(axes, *map(len, shapes)), slots, out, epilogue, beta)


def _slots(operands: Sequence[Any], out: Any) -> list[Slot]:
    names = _names(len(operands))
    return [_slot(name, array, out, operands[0]) for name, array in zip(names, operands)]


def _call(labels: str | Axes, slots: list[Slot], out: Any, epilogue: Any, beta: Any) -> Call:
    """Plan the contraction of operands by subscripts, or by the axes of two."""
    if epilogue is not None:
        chain = bound_epilogue(epilogue)
        if chain.reduction is not None or chain.takes_pairs:
            raise UnsupportedProblemError(
                f"einsum: the epilogue {chain} changes the shape of the result; call gemm for it."
            )
    has_out = out is not None
    if has_out:
        slots.append(_slot("out", out, out))
    elif number("beta", beta):
        raise MissingOperandError("einsum: beta is not zero but there is no out to scale.")
    key = labels, has_out, epilogue is None, *[part for slot in slots for part in slot[1::2]]
    plan = plans.get(key)
    if plan is not None:
        return Call(plan, slots, has_out)
    names = [*_names(len(slots) - has_out), "out"]
    for name, (array, library, _, own) in zip(names, slots):
        library.check(marked(name), array, own)
    layouts = tuple(library.layout(own) for _, library, _, own in slots)
    array, first, *_ = slots[0]
    if not has_out and any(library.always_ordered for _, library, *_ in slots):
        # Exports have no views, so that the result is written in its own order.
        shape = _contraction(labels, layouts, False, False, False).shape
        new = first.empty(shape, result_dtypes(layouts[0].dtype)[0], array)
        return _call(labels, slots, new, epilogue, beta)
    may_swap = all(library is first for _, library, *_ in slots)
    contraction = _contraction(labels, layouts, has_out, epilogue is not None, may_swap)
    takes_views = any(
        library.always_ordered or (layout.device == HOST and not simulator_enabled())
        for (_, library, *_), layout in zip(slots, layouts)
    )
    if len(plans) >= _MOST_PLANS:
        plans.clear()
    plan = plans[key] = Plan(contraction, takes_views, {})
    return Call(plan, slots, has_out)


def _names(count: int) -> Sequence[str]:
    return "ab" if count == 2 else [f"operand {place}" for place in range(count)]


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
        listed = ", ".join(f"{n} is {x.dtype}" for n, x in zip(_names(len(operands)), operands))
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
        refuse_unwritable("einsum: out", out)
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
    except Exception:  # whatever axes that are none raise
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
    except (TypeError, ValueError, IndexError) as error:  # IndexError: of no subscripts at all
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
