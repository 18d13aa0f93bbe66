"""`einsum` and `tensordot`: contractions by products of `gemm`.

A contraction is planned once from its labels and the operands' layouts, as a list of steps:
products of two operands, and copies where strides do not merge (`dxgemm.call.contraction`). A label
that one operand alone has, and the result has not, is summed first, by a product with a broadcast
one. Several operands are contracted in the order that `numpy.einsum_path` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from operator import index
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from dxgemm.call.contraction import Steps, arrange, by_stride, contiguous, merge
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

Labels = tuple[str, ...]


class View(NamedTuple):
    """View of the array in a slot; strides are in bytes."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Copy(NamedTuple):
    """Step that copies a view to a new array, which takes the next slot."""

    source: View
    text: str

    def __str__(self) -> str:
        return f"copy     {self.text}: {prod(self.source.shape)} elements"


class Assign(NamedTuple):
    """Step that copies the array in a slot to a view of the array that is written."""

    target: View
    slot: int

    def __str__(self) -> str:
        return f"copy     to out: {prod(self.target.shape)} elements"


class One(NamedTuple):
    """Step that takes the next slot for a single one, which is broadcast to sum by products."""

    def __str__(self) -> str:
        return "one      for sums"


class Product(NamedTuple):
    """Step that multiplies two matrices or batches.

    Attributes:
        a, b: the operands.
        out: where the result is written; None to allocate it, in the next slot.
        text: labels of the operands and of the result.
    """

    a: View
    b: View
    out: View | None
    text: str

    def __str__(self) -> str:
        *lead, m, k = self.a.shape
        sizes = " x ".join(map(str, (m, self.b.shape[-1], k)))
        launches = f", {lead[0]} launches" if len(lead) > 1 else ""
        return f"product  {self.text}: {f'{lead[-1]} of ' if lead else ''}{sizes}{launches}"


@dataclass(frozen=True)
class Contraction:
    """Steps of a contraction, as `explain_einsum` returns them; its text has a line for each.

    Attributes:
        title: labels and dtype.
        steps: copies and products, in order.
        shape: shape of the result.
        strides: elements of the last product from one index of the result to the next.
    """

    title: str
    steps: tuple[Copy | Assign | One | Product, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def products(self) -> tuple[Product, ...]:
        """Products among the steps."""
        return tuple(step for step in self.steps if isinstance(step, Product))

    @property
    def copied(self) -> int:
        """Elements that are copied before they are multiplied, or after."""
        views = [step.source for step in self.steps if isinstance(step, Copy)]
        views += [step.target for step in self.steps if isinstance(step, Assign)]
        return sum(prod(view.shape) for view in views)

    def __str__(self) -> str:
        return "\n  ".join([self.title, *map(str, self.steps)])


class Subscripts(NamedTuple):
    """Labels of the operands and of the result, and the places that each contraction takes."""

    operands: tuple[Labels, ...]
    result: Labels
    path: tuple[tuple[int, ...], ...]


class Call(NamedTuple):
    """Contraction of operands that are known.

    Attributes:
        contraction: its steps.
        operands: the operands, and the array that is written, if there is one.
        has_out: True if there is one.
    """

    contraction: Contraction
    operands: tuple[Operand, ...]
    has_out: bool

    def run(self, gemm: Callable[..., Any], beta: Any, **last: Any) -> Any:
        """Run the steps by calls of `gemm`, the last of them with further options."""
        slots = [*self.operands]
        first, last_product = slots[0], self.contraction.products[-1]
        for step in self.contraction.steps:
            if isinstance(step, Assign):
                slots[step.target.slot].library.assign(
                    _viewed(slots, step.target), slots[step.slot].array
                )
                continue
            if isinstance(step, Product):
                options = last if step is last_product else {}
                new = _multiply(gemm, slots, step, beta, options)
                if step.out is not None:
                    continue
            else:
                like = first if isinstance(step, One) else slots[step.source.slot]
                shape = (1,) if isinstance(step, One) else step.source.shape
                new = like.library.empty(shape, like.layout.dtype, like.array)
                source = 1 if isinstance(step, One) else _viewed(slots, step.source)
                like.library.assign(new, source)
            slots.append(inspected("a step", new, None))
        if self.has_out:
            return finished(slots[len(self.operands) - 1].array)
        shape, item_size = self.contraction.shape, ITEM_SIZES[slots[-1].layout.dtype]
        strides = tuple(stride * item_size for stride in self.contraction.strides)
        result = finished(_viewed(slots, View(len(slots) - 1, shape, strides)))
        return result if shape else result[()]


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
    given = _inspected(operands, out)
    shapes = tuple(operand.layout.shape for operand in given)
    return _call(_parsed(subscripts.replace(" ", ""), shapes), given, out, epilogue, beta)


def tensordot_call(a: Any, b: Any, axes: Any, out: Any, epilogue: Any, beta: Any) -> Call:
    """Check the arguments of `tensordot` but alpha and the options of products, and plan it."""
    given = _inspected((a, b), out)
    shape_a, shape_b = (operand.layout.shape for operand in given)
    axes_a, axes_b = _axes(axes, len(shape_a), len(shape_b))
    pairs = dict(zip(axes_b, axes_a))
    fits = len(axes_a) == len(axes_b) and len({*axes_a}) == len(axes_a) == len(pairs)
    if not fits or any(shape_a[i] != shape_b[j] for j, i in pairs.items()):
        raise ShapeError(
            f"tensordot: shape-mismatch for sum: a is {shape_a} and b is {shape_b}, but axes are "
            f"{axes_a} and {axes_b}."
        )
    names = [_letter(place) for place in range(len(shape_a) + len(shape_b))]
    labels_a, own = tuple(names[: len(shape_a)]), names[len(shape_a) :]
    labels_b = tuple(labels_a[pairs[j]] if j in pairs else own[j] for j in range(len(shape_b)))
    kept = tuple(
        label for label in (*labels_a, *labels_b) if (label in labels_a) != (label in labels_b)
    )
    return _call(Subscripts((labels_a, labels_b), kept, ((0, 1),)), given, out, epilogue, beta)


def _inspected(operands: Sequence[Any], out: Any) -> list[Operand]:
    names = ("a", "b") if len(operands) == 2 else map("operand {}".format, range(len(operands)))
    return [inspected(name, array, None, out, operands[0]) for name, array in zip(names, operands)]


def _axes(axes: Any, *ndims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
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


def _letter(place: int) -> str:
    """Label that stands at a place among all; letters first."""
    return ascii_letters[place] if place < len(ascii_letters) else chr(0x100 + place)


@lru_cache(maxsize=4096)
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


def _call(subscripts: Subscripts, given: list[Operand], out: Any, epilogue: Any, beta: Any) -> Call:
    """Check the operands against each other, and plan the steps of their contraction."""
    layouts = tuple(operand.layout for operand in given)
    dtypes = [layout.dtype for layout in layouts]
    dtype = dtypes[0]
    if dtype not in {*RESULT_DTYPES, *COMPLEX_PARTS} or len({*dtypes}) > 1:
        listed = ", ".join(f"{operand.name} is {operand.layout.dtype}" for operand in given)
        known = ", ".join((*RESULT_DTYPES, *COMPLEX_PARTS))
        raise DtypeError(f"einsum: {listed}; convert them to one dtype of {known}.")
    chain = None if epilogue is None else bound_epilogue(epilogue)
    if chain is not None and (chain.reduction is not None or chain.takes_pairs):
        raise UnsupportedProblemError(
            f"einsum: the epilogue {chain} changes the shape of the result; call gemm for it."
        )
    sizes = _sizes(subscripts, layouts)
    shape = tuple(sizes[label] for label in subscripts.result)
    first = given[0]
    if out is None:
        if beta:
            raise MissingOperandError("einsum: beta is not zero but there is no out to scale.")
        if any(operand.library.always_ordered for operand in given):
            # Exports have no views, so that the result is written in its own order.
            out = first.library.empty(shape, result_dtypes(dtype)[0], first.array)
    if out is not None:
        target = inspected("out", out, None, out)
        if target.layout.shape != shape:
            raise ShapeError(
                f"einsum: out is {target.layout.shape}, but the result is {shape}; it must have "
                "that shape."
            )
        if target.layout.read_only:
            raise ReadOnlyError("einsum: out is read-only, but the result is written to it.")
        refuse_overlap("einsum: out", target.layout)
        given, layouts = [*given, target], (*layouts, target.layout)
    one_library = len({operand.library for operand in given}) == 1
    contraction = _planned(subscripts, layouts, chain is not None, one_library)
    if result_dtypes(dtype)[0] != dtype and len(contraction.products) > 1:
        raise DtypeError(
            f"einsum: sums of {dtype} are {result_dtypes(dtype)[0]}, which are not multiplied "
            f"again, but this takes {len(contraction.products)} products; convert the operands."
        )
    return Call(contraction, tuple(given), out is not None)


def _sizes(subscripts: Subscripts, layouts: Iterable[Layout]) -> dict[str, int]:
    """Sizes of all labels; dimensions of one element are broadcast."""
    sizes: dict[str, int] = {}
    for labels, layout in zip(subscripts.operands, layouts):
        for label, size in zip(labels, layout.shape):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    return sizes


@lru_cache(maxsize=4096)
def _planned(
    subscripts: Subscripts, layouts: tuple[Layout, ...], in_order: bool, may_swap: bool
) -> Contraction:
    """Steps of a contraction; a layout after those of the operands is that of the result.

    Args:
        subscripts: labels and path.
        layouts: layouts of the operands.
        in_order: True if an epilogue sees the last product, see `arrange`.
        may_swap: True if the operands of a product may change places.
    """
    sizes = _sizes(subscripts, layouts)
    count = len(subscripts.operands)
    labels_of_all = (*subscripts.operands, subscripts.result)  # the last for the array written
    terms = [_term(*pair, sizes) for pair in zip(labels_of_all, layouts)]
    target = count if len(layouts) > count else None
    target_size = ITEM_SIZES[layouts[-1].dtype]
    planner = _Planner(sizes, layouts[0].dtype, terms, target, target_size)
    result = [label for label in subscripts.result if sizes[label] != 1]
    places = [*range(count)]
    for chosen in subscripts.path:
        slots = [places[place] for place in chosen]
        places = [slot for slot in places if slot not in slots]
        left, *others = slots
        for number, other in enumerate(others or [left]):
            pair = (left, other) if others else (left,)
            is_last = not places and number >= len(others) - 1
            kept = result
            if not is_last:
                later = {
                    label for slot in (*places, *others[number + 1 :]) for label in terms[slot]
                }
                own = dict.fromkeys(label for slot in pair for label in terms[slot])
                kept = [label for label in own if label in later or label in result]
            left = planner.contract(
                pair, kept, is_last=is_last, in_order=in_order, may_swap=may_swap
            )
        places.append(left)
    whole = contiguous(subscripts.result, sizes, 1)
    if target is None:
        item_size = ITEM_SIZES[result_dtypes(layouts[0].dtype)[0]]
        steps = {label: step // item_size for label, step in terms[left].items()}
        if any(whole[label] != step for label, step in steps.items()):
            whole = {label: steps.get(label, 0) for label in whole}
    names = ",".join("".join(labels) for labels in subscripts.operands)
    return Contraction(
        f"einsum {names}->{''.join(subscripts.result)} {layouts[0].dtype}",
        tuple(planner.steps),
        tuple(sizes[label] for label in subscripts.result),
        tuple(whole[label] for label in subscripts.result),
    )


def _term(labels: Labels, layout: Layout, sizes: Mapping[str, int]) -> dict[str, int]:
    """Strides of an operand by label; a label that is repeated runs along the diagonal."""
    steps: dict[str, int] = {}
    for label, step in zip(labels, layout.strides):
        if sizes[label] != 1:
            steps[label] = steps.get(label, 0) + step
    return steps


@dataclass
class _Planner:
    """Steps of a contraction, as they are found.

    Attributes:
        sizes: sizes by label.
        dtype: dtype of the operands.
        terms: strides of the array in each slot by label.
        target, target_size: slot of the array that is written, and bytes of its elements.
        steps: the steps so far.
        one: slot of the one for sums.
    """

    sizes: Mapping[str, int]
    dtype: str
    terms: list[dict[str, int]]
    target: int | None
    target_size: int
    steps: list[Copy | Assign | One | Product] = field(default_factory=list)
    one: int | None = None

    def contract(
        self, slots: Sequence[int], kept: Sequence[str], *,
        is_last: bool, in_order: bool, may_swap: bool,
    ) -> int:  # fmt: skip
        """Contract one or two operands to the labels that are kept; returns the slot."""
        if len(slots) == 2:
            shared = self.terms[slots[0]].keys() & self.terms[slots[1]].keys()
            a, b = (self._sum(slot, self._runs(slot, shared.union(kept))) for slot in slots)
        else:
            *runs, last = self._runs(slots[0], kept) or [()]
            a, b = self._sum(slots[0], runs), self._one_along(last)
        if not is_last:
            return self._multiply(a, b, kept)
        is_swapped = self.target is None and not in_order and may_swap
        if is_swapped and kept and kept[-1] not in self.terms[b]:
            a, b = b, a  # so that the result's last dimension is that of the columns
        return self._multiply(a, b, kept, self.target, in_order)

    def _runs(self, slot: int, kept: Iterable[str]) -> list[Labels]:
        """Labels that are summed, in runs that are one dimension."""
        term = self.terms[slot]
        summed = by_stride([label for label in term if label not in {*kept}], [term])
        return merge(summed, [term], self.sizes)

    def _sum(self, slot: int, runs: Iterable[Labels]) -> int:
        """Sum over each run of labels."""
        for run in runs:
            kept = [label for label in self.terms[slot] if label not in run]
            slot = self._multiply(slot, self._one_along(run), kept)
        return slot

    def _one_along(self, labels: Labels) -> int:
        """Slot of the one, which is broadcast along labels."""
        if self.one is None:
            self.one = self._add(One(), {})
        self.terms[self.one] = dict.fromkeys(labels, 0)
        return self.one

    def _add(self, step: Copy | One | Product, term: Steps) -> int:
        """Add a step; returns the slot that it takes."""
        self.steps.append(step)
        self.terms.append({**term})
        return len(self.terms) - 1

    def _multiply(
        self, a: int, b: int, kept: Sequence[str], target: int | None = None, in_order: bool = False
    ) -> int:
        """Add the product of two slots, and the copies that it needs."""
        terms, sizes = self.terms, self.sizes
        item_size, result_size = ITEM_SIZES[self.dtype], ITEM_SIZES[result_dtypes(self.dtype)[0]]
        operands, item_sizes = {"a": terms[a], "b": terms[b]}, {"a": item_size, "b": item_size}
        if target is not None:
            operands["out"], item_sizes["out"] = terms[target], self.target_size
        found = arrange(operands, item_sizes, tuple(kept), sizes, in_order=in_order)
        text = f"{self._named(a)},{self._named(b)}->{''.join(kept)}"
        looped, batch, rows, inner, cols = found.slots
        lead, steps = (looped, batch), found.steps
        a = self._copied(a, steps["a"], "a" in found.copied)
        b = self._copied(b, steps["b"], "b" in found.copied)
        view_a = self._view(a, steps["a"], *lead, rows, inner)
        view_b = self._view(b, steps["b"], *lead, inner, cols)
        if target is None:
            new = contiguous(looped + batch + rows + cols, sizes, result_size)
            return self._add(Product(view_a, view_b, None, text), new)
        written = self._copied(target, steps["out"], "out" in found.copied)
        view = self._view(written, steps["out"], *lead, rows, cols)
        self.steps.append(Product(view_a, view_b, view, text))
        if written != target:
            labels = [*steps["out"]]
            shape = tuple(sizes[label] for label in labels)
            strides = tuple(terms[target][label] for label in labels)
            self.steps.append(Assign(View(target, shape, strides), written))
        return target

    def _named(self, slot: int) -> str:
        """Labels of an array; those of the one are not its own."""
        return "1" if slot == self.one else "".join(self.terms[slot])

    def _copied(self, slot: int, steps: Steps, is_copied: bool) -> int:
        """Slot of a copy with these strides, whose labels are in the order of memory."""
        if not is_copied:
            return slot
        term = self.terms[slot]
        shape = tuple(self.sizes[label] for label in steps)
        source = View(slot, shape, tuple(term[label] for label in steps))
        return self._add(Copy(source, f"{self._named(slot)} to {''.join(steps)}"), steps)

    def _view(self, slot: int, steps: Steps, *slots: Labels) -> View:
        """View of a slot as matrices, after a looped dimension and a batch if there are any."""
        dimensions = [labels for labels in slots[:-2] if labels] + [*slots[-2:]]
        shape = tuple(prod(self.sizes[label] for label in labels) for labels in dimensions)
        strides = tuple(steps.get(labels[-1], 0) if labels else 0 for labels in dimensions)
        return View(slot, shape, strides)
