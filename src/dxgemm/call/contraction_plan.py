"""Steps of a contraction: products, and the copies that they need.

Operands, copies and products have slots, in this order. A label that one operand alone has, and the
result has not, is summed first, by a product with a vector of ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from dxgemm.call.contraction import Labels, Steps, arrange, by_stride, contiguous, merge
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, result_dtypes
from dxgemm.problem.layout import Layout


class View(NamedTuple):
    """View of the array in a slot; strides are in bytes."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Copy(NamedTuple):
    """Step that copies a view to a new array, which takes the next slot."""

    source: View
    dtype: str
    text: str

    def __str__(self) -> str:
        return f"copy     {self.text}: {prod(self.source.shape)} elements"


class Assign(NamedTuple):
    """Step that copies the array in a slot to a view of the array that is written."""

    target: View
    slot: int

    def __str__(self) -> str:
        return f"copy     to out: {prod(self.target.shape)} elements"


class Ones(NamedTuple):
    """Step that makes a vector of ones, which takes the next slot, to sum by a product with it."""

    size: int
    dtype: str

    def __str__(self) -> str:
        return f"ones     for sums: {self.size} elements"


class Product(NamedTuple):
    """Step that multiplies two matrices or batches.

    Attributes:
        a, b: the operands.
        out: where the result is written; None to allocate it, in the next slot.
        dtype: dtype of a new result.
        text: labels of the operands and of the result.
        is_last: True for the product that makes the result.
    """

    a: View
    b: View
    out: View | None
    dtype: str
    text: str
    is_last: bool

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the product, as a matrix or a batch."""
        return (*self.a.shape[:-1], self.b.shape[-1])

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
        is_plain: True if the last product makes a new array with the result in row-major order.
    """

    title: str
    steps: tuple[Copy | Assign | Ones | Product, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_plain: bool

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


def sizes_of(subscripts: Subscripts, layouts: Iterable[Layout]) -> dict[str, int]:
    """Sizes of all labels; dimensions of one element are broadcast."""
    sizes: dict[str, int] = {}
    for labels, layout in zip(subscripts.operands, layouts):
        for label, size in zip(labels, layout.shape):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    return sizes


def plan_steps(
    subscripts: Subscripts, layouts: tuple[Layout, ...], in_order: bool, may_swap: bool
) -> Contraction:
    """Steps of a contraction; a layout after those of the operands is that of the result.

    Args:
        subscripts: labels and path.
        layouts: layouts of the operands.
        in_order: True if an epilogue sees the last product, see `arrange`.
        may_swap: True if the operands of a product may change places.
    """
    sizes = sizes_of(subscripts, layouts)
    count = len(subscripts.operands)
    labels_of_all = (*subscripts.operands, subscripts.result)  # the last for the array written
    terms = [_term(*pair, sizes) for pair in zip(labels_of_all, layouts)]
    target = count if len(layouts) > count else None
    planner = _Planner(sizes, layouts[0].dtype, terms, target, layouts[-1].dtype)
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
            elif in_order and count > 2:
                # An epilogue's rows come first in the result, whichever order the path found.
                apart = (x for x in result if (x in terms[left]) != (x in terms[other]))
                if next(apart, None) in terms[other]:
                    pair = pair[::-1]
            left = planner.contract(
                pair, kept, is_last=is_last, in_order=in_order, may_swap=may_swap
            )
        places.append(left)
    whole, is_plain = contiguous(subscripts.result, sizes, 1), False
    shape = tuple(sizes[label] for label in subscripts.result)
    if target is None:
        item_size = ITEM_SIZES[result_dtypes(layouts[0].dtype)[0]]
        steps = {label: step // item_size for label, step in terms[left].items()}
        is_plain = all(whole[label] == step for label, step in steps.items())
        if not is_plain:
            whole = {label: steps.get(label, 0) for label in whole}
    names = ",".join("".join(labels) for labels in subscripts.operands)
    return Contraction(
        f"einsum {names}->{''.join(subscripts.result)} {layouts[0].dtype}",
        tuple(planner.steps),
        shape,
        tuple(whole[label] for label in subscripts.result),
        is_plain,
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
        target, target_dtype: slot of the array that is written, and its dtype.
        steps: the steps so far.
        ones: slots of ones.
    """

    sizes: Mapping[str, int]
    dtype: str
    terms: list[dict[str, int]]
    target: int | None
    target_dtype: str
    steps: list[Copy | Assign | Ones | Product] = field(default_factory=list)
    ones: set[int] = field(default_factory=set)

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
            a, b = self._sum(slots[0], runs), self._ones(last)
        if not is_last:
            return self._multiply(a, b, kept)
        if self.target is None and not in_order and may_swap:
            # So that the result's last dimension is that of the columns; but of complex operands,
            # b may be copied, in twice its size.
            size_a, size_b = (prod(self.sizes[x] for x in self.terms[slot]) for slot in (a, b))
            is_swapped = bool(kept) and kept[-1] not in self.terms[b]
            if self.dtype in COMPLEX_PARTS and size_a != size_b:
                is_swapped = size_a < size_b
            if is_swapped:
                a, b = b, a
        return self._multiply(a, b, kept, is_last=True, in_order=in_order)

    def _runs(self, slot: int, kept: Iterable[str]) -> list[Labels]:
        """Labels that are summed, in runs that are one dimension."""
        term = self.terms[slot]
        summed = by_stride([label for label in term if label not in {*kept}], [term])
        return merge(summed, [term], self.sizes)

    def _sum(self, slot: int, runs: Iterable[Labels]) -> int:
        """Sum over each run of labels."""
        for run in runs:
            kept = [label for label in self.terms[slot] if label not in run]
            slot = self._multiply(slot, self._ones(run), kept)
        return slot

    def _ones(self, labels: Labels) -> int:
        """Slot of ones along labels."""
        size = prod(self.sizes[label] for label in labels)
        slot = self._add(
            Ones(size, self.dtype), contiguous(labels, self.sizes, ITEM_SIZES[self.dtype])
        )
        self.ones.add(slot)
        return slot

    def _add(self, step: Copy | Ones | Product, term: Steps) -> int:
        """Add a step; returns the slot that it takes."""
        self.steps.append(step)
        self.terms.append({**term})
        return len(self.terms) - 1

    def _multiply(
        self, a: int, b: int, kept: Sequence[str], *,
        is_last: bool = False, in_order: bool = False,
    ) -> int:  # fmt: skip
        """Add the product of two slots, and the copies that it needs; returns its slot."""
        target = self.target if is_last else None
        terms, sizes = self.terms, self.sizes
        item_size, dtype = ITEM_SIZES[self.dtype], result_dtypes(self.dtype)[0]
        operands, item_sizes = {"a": terms[a], "b": terms[b]}, {"a": item_size, "b": item_size}
        if target is not None:
            operands["out"] = terms[target]
            item_sizes["out"] = ITEM_SIZES.get(self.target_dtype, 1)  # others are refused later
        found = arrange(
            operands, item_sizes, tuple(kept), sizes, in_order=in_order,
            is_complex=self.dtype in COMPLEX_PARTS,
        )  # fmt: skip
        text = f"{self._named(a)},{self._named(b)}->{''.join(kept)}"
        looped, batch, rows, inner, cols = found.slots
        lead, steps = (looped, batch), found.steps
        a = self._copied(a, steps["a"], "a" in found.copied)
        b = self._copied(b, steps["b"], "b" in found.copied)
        view_a = self._view(a, steps["a"], *lead, rows, inner)
        view_b = self._view(b, steps["b"], *lead, inner, cols)
        if target is None:
            new = contiguous(looped + batch + rows + cols, sizes, ITEM_SIZES[dtype])
            return self._add(Product(view_a, view_b, None, dtype, text, is_last), new)
        written = self._copied(target, steps["out"], "out" in found.copied)
        view = self._view(written, steps["out"], *lead, rows, cols)
        self.steps.append(Product(view_a, view_b, view, dtype, text, is_last))
        if written != target:
            labels = [*steps["out"]]
            shape = tuple(sizes[label] for label in labels)
            strides = tuple(terms[target][label] for label in labels)
            self.steps.append(Assign(View(target, shape, strides), written))
        return target

    def _named(self, slot: int) -> str:
        """Labels of an array; those of ones are not their own."""
        return "1" if slot in self.ones else "".join(self.terms[slot])

    def _copied(self, slot: int, steps: Steps, is_copied: bool) -> int:
        """Slot of a copy with these strides, whose labels are in the order of memory."""
        if not is_copied:
            return slot
        term = self.terms[slot]
        shape = tuple(self.sizes[label] for label in steps)
        source = View(slot, shape, tuple(term[label] for label in steps))
        dtype = self.target_dtype if slot == self.target else self.dtype
        return self._add(Copy(source, dtype, f"{self._named(slot)} to {''.join(steps)}"), steps)

    def _view(self, slot: int, steps: Steps, *slots: Labels) -> View:
        """View of a slot as matrices, after a looped dimension and a batch if there are any."""
        dimensions = [labels for labels in slots[:-2] if labels] + [*slots[-2:]]
        shape = tuple(prod(self.sizes[label] for label in labels) for labels in dimensions)
        strides = tuple(steps.get(labels[-1], 0) if labels else 0 for labels in dimensions)
        return View(slot, shape, strides)
