"""Contraction of two operands as one strided batched product.

Labels, one for each dimension, are of four kinds: of the batch, rows, columns, and inner ones.
Labels of a kind are merged into one dimension where the strides of all operands that have them
allow it. Where they do not, the operands that are cheapest to copy are copied. Only strides are
looked at here; `dxgemm.call.einsum` runs what is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

Steps = Mapping[str, int]  # bytes from one index of a label to the next
Sizes = Mapping[str, int]
Labels = tuple[str, ...]

# Columns, or rows, from which on an operand without contiguous rows or columns is copied: so many
# products read it as cache lines, of which they use one element.
MANY_READS = 32
# Rough speeds of a host and of a large GPU, in microseconds, to weigh copies against launches: what
# a product and a copy take on the host, and what a kernel adds to the time on the device; bytes of
# memory, and multiplications by the bytes of an element, in a microsecond.
PRODUCT_US, COPY_US, KERNEL_US = 20.0, 12.0, 3.0
BYTES_PER_US, PRODUCTS_PER_US, FEW_PRODUCTS_PER_US = 3e6, {1: 6e8, 2: 3e8}, 2.5e7


class Slots(NamedTuple):
    """Labels of the dimensions of a product, which is launched once for each index of `looped`."""

    looped: Labels
    batch: Labels
    rows: Labels
    inner: Labels
    cols: Labels


class Arrangement(NamedTuple):
    """A contraction as a product.

    Attributes:
        slots: labels of its dimensions.
        copied: names of the operands, of "a", "b" and "out", that a copy stands for.
        steps: strides of each, those of the copy where there is one.
    """

    slots: Slots
    copied: Labels
    steps: Mapping[str, Steps]


def arrange(
    operands: Mapping[str, Steps],
    item_sizes: Mapping[str, int],
    kept: Labels,
    sizes: Sizes,
    *,
    in_order: bool = False,
    is_complex: bool = False,
) -> Arrangement:
    """Find the quickest product that contracts two operands, by a rough estimate.

    The host runs ahead of the device, so that the slower one counts.

    Args:
        operands: strides by label of "a", of "b", and of "out" unless that is new memory; without
            labels of one element.
        item_sizes: bytes of an element of each.
        kept: labels of the result.
        sizes: sizes by label.
        in_order: True if the labels of each dimension must be in the order of `kept`.
        is_complex: True for complex dtypes, whose products take row-major operands best.
    """
    weight = {
        name: item_sizes[name] * prod(sizes[label] for label in steps)
        for name, steps in operands.items()
    }
    written = item_sizes["a"] * prod(sizes[label] for label in kept) if "out" not in operands else 0
    products = prod(sizes[label] for label in {*operands["a"], *operands["b"]})
    product_us = max(
        (sum(weight.values()) + written) / BYTES_PER_US,
        products / PRODUCTS_PER_US.get(item_sizes["a"], FEW_PRODUCTS_PER_US),
    )
    found = []
    for count in range(len(operands) + 1):
        for copied in combinations(operands, count):
            slots = _slots(operands, item_sizes, copied, kept, sizes, in_order)
            if slots is None:
                continue
            launches = prod(sizes[label] for label in slots.looped)
            copies = count + ("out" in copied)  # which is copied back
            host_us = launches * PRODUCT_US + copies * COPY_US
            moved = sum(2 * weight[name] * (1 + (name == "out")) for name in copied)
            device_us = product_us + moved / BYTES_PER_US + (launches + copies) * KERNEL_US
            found.append((max(host_us, device_us), device_us, copied, slots))
    # Copies of all can be arranged.
    *_, copied, slots = min(found, key=lambda choice: choice[:2])
    lead = slots.looped + slots.batch
    ends = {
        "a": (slots.rows, slots.inner),
        "b": (slots.inner, slots.cols),
        "out": (slots.rows, slots.cols),
    }
    steps = {**operands}
    for name in copied:
        # Row-major or column-major, so that the copy has the shortest steps where the operand has.
        orders = [
            [label for label in lead + first + last if label in operands[name]]
            for first, last in (ends[name], ends[name][::-1])
        ]
        last_steps = [[abs(operands[name][label]) for label in own[-1:]] for own in orders]
        own = orders[not is_complex and last_steps[1] < last_steps[0]]
        steps[name] = contiguous(own, sizes, item_sizes[name])
    return Arrangement(slots, copied, steps)


def contiguous(labels: Iterable[str], sizes: Sizes, item_size: int) -> dict[str, int]:
    """Strides of new memory with labels in this order."""
    steps = {}
    for label in reversed([*labels]):
        steps[label] = item_size
        item_size *= sizes[label]
    return dict(reversed(steps.items()))


def _slots(
    operands: Mapping[str, Steps],
    item_sizes: Mapping[str, int],
    copied: Labels,
    kept: Labels,
    sizes: Sizes,
    in_order: bool,
) -> Slots | None:
    """Dimensions of the product with some operands copied; None if it is none."""
    a, b = operands["a"], operands["b"]
    left = {name: steps for name, steps in operands.items() if name not in copied}

    def runs(labels: list[str], *readers: str) -> list[Labels]:
        steps = [left[name] for name in readers if name in left]
        is_fixed = in_order and "out" in readers
        return merge(labels if is_fixed else by_stride(labels, steps), steps, sizes)

    batch = runs([label for label in kept if label in a and label in b], "a", "b", "out")
    rows = runs([label for label in kept if label not in b], "a", "out")
    inner = runs([label for label in a if label not in kept], "a", "b")
    cols = runs([label for label in kept if label not in a], "b", "out")
    # Parts of rows and columns can be dimensions of the batch, too.
    lead = sorted(batch + rows[:-1] + cols[:-1], key=lambda run: prod(sizes[x] for x in run))
    if len(lead) > (1 if in_order else 2) or len(inner) > 1 or (in_order and lead != batch):
        return None
    looped, own_batch = [(), (), *lead][-2:]
    slots = Slots(looped, own_batch, *(own[-1] if own else () for own in (rows, inner, cols)))
    for name, own, other in (("a", slots.rows, slots.cols), ("b", slots.cols, slots.rows)):
        ends = [left[name][labels[-1]] for labels in (own, slots.inner) if labels and name in left]
        is_scattered = ends and not {0, item_sizes[name]} & {*ends}
        if is_scattered and prod(sizes[label] for label in other) >= MANY_READS:
            return None
    return slots


def by_stride(labels: Iterable[str], operands: Sequence[Steps]) -> Labels:
    """Labels from the longest stride to the shortest, in the first operand that tells."""
    return tuple(sorted(labels, key=lambda label: [-abs(steps[label]) for steps in operands]))


def merge(labels: Sequence[str], operands: Sequence[Steps], sizes: Sizes) -> list[Labels]:
    """Runs of labels that are one dimension in all operands."""
    runs: list[Labels] = []
    for label in labels:
        last = runs[-1][-1] if runs else None
        if last and all(steps[last] == steps[label] * sizes[label] for steps in operands):
            runs[-1] += (label,)
        else:
            runs.append((label,))
    return runs
