"""Elements of lines, factors and a status: the parts that `decompose` and `residues` share."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.emulation import PADDING, STATUS_ITEMS, UNFIT, WIDTH
from dxgemm.handwritten.parts.groups import make_each, make_merge_members
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.unroll import device, static_range


def make_take(dtype: str, is_vector: bool) -> Callable[..., Any]:
    """A device function: (pointer, index, step, count) -> WIDTH elements, zeros beyond `count`.

    They are `step` apart; is_vector is True if 16 bytes can be read at a time.
    """
    from dxgemm.handwritten.parts.intrinsics import load_vector

    scalar = np.dtype(dtype).type
    together = VECTOR_BYTES // np.dtype(dtype).itemsize

    @device
    def take(pointer, index, step, count):
        values = ()
        if is_vector and count >= WIDTH:
            for i in static_range(0, WIDTH, together):
                values = values + load_vector(scalar, together, pointer, index + i)
            return values
        elements = ()
        for i in static_range(WIDTH):
            elements = elements + (pointer[index + i * step] if i < count else scalar(0),)
        return elements

    return take


def make_factors(threads: int) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The device functions find_factors and pad_factors.

    find_factors(matrix, count) returns the index of a matrix's first factor, of which each has
    `count`. pad_factors(factors, first, thread, count) fills up with 0 after them, which is read
    with the last ones.
    """
    from numba import int64

    @device
    def padded(count):
        return (count + PADDING - 1) // PADDING * PADDING

    @device
    def find_factors(matrix, count):
        return int64(matrix) * padded(count)

    @device
    def pad_factors(factors, first, thread, count):
        for i in range(count + thread, padded(count), threads):
            factors[first + i] = 0

    return find_factors, pad_factors


def make_largest(config: Any, slots: int) -> Callable[..., Any]:
    """A device function: (smem, place, member, group, own, values) -> the largest of group `own`.

    Each thread brings `slots` numbers for its group, and is member of it, at place
    member * groups + group. All threads of the block call it together.
    """
    from dxgemm.handwritten.parts.intrinsics import sync_block

    groups, threads = config.groups, config.threads
    merge = make_merge_members(config, groups, (slots,), make_each(slots, max))

    @device
    def largest(smem, place, member, group, own, values):
        values = merge((smem,), place, member, values)
        if member == 0:
            for i in static_range(slots):
                smem[i * threads + group] = values[i]
        sync_block()
        found = ()
        for i in static_range(slots):
            found = found + (smem[i * threads + own],)
        sync_block()
        return found

    return largest


def make_put_status(config: Any, slots: int) -> Callable[..., None]:
    """A device function: (smem, lax_smem, status, block, place, member, group, weak, fits, is_lax).

    It adds up the weak elements of each line and puts the status of a block's lines: `fits` is 0 of
    a line that has none, 2 of one that cannot be split, otherwise 1.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import sync_block

    groups, threads = config.groups, config.threads
    merge = make_merge_members(config, groups, (slots,), make_each(slots, operator.add))

    @device
    def put_status(smem, lax_smem, status, block, place, member, group, weak, fits, is_lax):
        if is_lax:
            lax_smem[0] = 1
        weak = merge((smem,), place, member, weak)
        if member == 0:
            for i in static_range(slots):
                number = weak[i] if fits[i] == 1 else int32(UNFIT)
                smem[i * threads + group] = number if fits[i] != 0 else int32(0)
        sync_block()
        if place == 0:
            weakest = int32(0)
            for index in range(groups):
                for i in static_range(slots):
                    weakest = max(weakest, smem[i * threads + index])
            status[block * STATUS_ITEMS] = weakest
            status[block * STATUS_ITEMS + 1] = lax_smem[0]

    return put_status
