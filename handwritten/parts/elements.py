"""The elements of a matrix, counted row by row, by threads that have one each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.groups import make_find_block
from dxgemm.handwritten.parts.unroll import device, static_range

MOST_ELEMENTS = 2**31 - 2**12  # that are counted in 32 bits, with those of the last block


def make_find_element(block_elements: int) -> Callable[..., Any]:
    """A device function: (block, thread, m, n) -> matrix, row and column of the thread's element.

    A matrix may have more elements than 32 bits count. Then long division finds the row in which a
    block begins: a division of 64 bits is a subroutine, which takes registers.

    Args:
        block_elements: elements of a block, a power of two.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import divide

    bits = block_elements.bit_length() - 1
    assert block_elements == 1 << bits
    find_block = make_find_block(block_elements)

    @device
    def find_element(block, thread, m, n):
        matrix, block, _ = find_block(block, m * n)
        if m * n < MOST_ELEMENTS:
            element: int32 = block * block_elements + thread
            above = divide(element, int32(n))
            return matrix, int64(above), element - int64(above) * n
        # block * 2**i is row * n + col after i steps.
        rows = divide(int32(block), n)
        row, col = int64(rows), int64(block) - int64(rows) * n
        for _ in static_range(bits):
            row, col = row * 2, col * 2
            if col >= n:
                row, col = row + 1, col - n
        place: int32 = col + thread
        below = divide(place, n)
        return matrix, row + below, place - int64(below) * n

    return find_element
