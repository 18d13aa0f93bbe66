"""What `decompose` and `residues` leave besides the parts of their lines: factors, and a status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.emulation import PADDING, STATUS_ITEMS
from dxgemm.handwritten.parts.unroll import device, static_range


def make_factors(threads: int) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The device functions find_factors and pad_factors.

    find_factors(matrix, count) returns the index of a matrix's first factor, of which each has
    `count`. pad_factors(factors, first, thread, count) fills up with 0 behind them, which is read
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


def make_put_status(config: Any, slots: int) -> Callable[..., None]:
    """A device function: (smem, lax_smem, status, block, thread): the status of a block's lines.

    In smem, `slots` numbers of a group, config.threads apart, count the weak elements of lines.
    """
    from numba import int32

    groups, threads = config.groups, config.threads

    @device
    def put_status(smem, lax_smem, status, block, thread):
        if thread == 0:
            weakest = int32(0)
            for group in range(groups):
                for i in static_range(slots):
                    weakest = max(weakest, smem[i * threads + group])
            status[block * STATUS_ITEMS] = weakest
            status[block * STATUS_ITEMS + 1] = lax_smem[0]

    return put_status
