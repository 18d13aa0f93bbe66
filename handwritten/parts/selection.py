"""The first items in sorted order: a block keeps them, and sorts a queue of those that may follow.

Source: K. E. Batcher, "Sorting networks and their applications", 1968: bitonic sort and merge.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.reduction import NO_PLACE, order, worst_value


def make_selection(
    reduction: Any, dtype: str, kept: int, queue: int, threads: int
) -> SimpleNamespace:
    """Make the device functions of a selection; items are values and their places.

    Args:
        reduction: "smallest" or "largest".
        dtype: dtype of the values.
        kept, queue: items that are kept, and that are queued behind them: powers of two.
        threads: threads of the block.

    Returns:
        `precedes(value, other)`; `worst()`, the value that precedes no other; and
        `keep_first(values, places, held, thread)`, which sorts the queue, in which `held` items
        are, and keeps the first of them and of those kept before, in sorted order.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, sync_block
    from dxgemm.handwritten.parts.unroll import device

    last = np.dtype(dtype).type(worst_value(reduction, dtype))
    precedes, worst = device_function(order(reduction)), device_function(lambda: last)

    @device
    def is_before(values, places, i, j):
        v, w = values[i], values[j]
        return precedes(v, w) or (not precedes(w, v) and places[i] < places[j])

    @device
    def order_pairs(values, places, start, size, stride, count, thread):
        """One step of a bitonic sort of `count` items, in sequences of `size` that alternate."""
        for pair in range(thread, count // 2, threads):
            i: int32 = 2 * pair - (pair & (stride - 1))
            first, second = start + i, start + i + stride
            if is_before(values, places, second, first) == ((i & size) == 0):
                value, place = values[first], places[first]
                values[first], places[first] = values[second], places[second]
                values[second], places[second] = value, place
        sync_block()

    @device
    def keep_first(values, places, held, thread):
        for i in range(kept + held + thread, kept + queue, threads):
            values[i], places[i] = worst(), int32(NO_PLACE)
        sync_block()
        size = int32(2)
        while size <= queue:
            stride: int32 = size // 2
            while stride > 0:
                order_pairs(values, places, kept, size, stride, queue, thread)
                stride = stride // 2
            size = size * 2
        # The better one of each pair from both ends: these are the first ones, not sorted yet.
        for i in range(thread, min(kept, queue), threads):
            opposite = kept - 1 - i
            if is_before(values, places, kept + i, opposite):
                values[opposite], places[opposite] = values[kept + i], places[kept + i]
        sync_block()
        stride = int32(kept // 2)
        while stride > 0:
            order_pairs(values, places, 0, 2 * kept, stride, kept, thread)
            stride = stride // 2

    return SimpleNamespace(precedes=precedes, worst=worst, keep_first=keep_first)
