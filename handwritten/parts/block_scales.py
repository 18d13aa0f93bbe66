"""Scales of blocks of a and b, by which sums over 128 of k are multiplied as they are promoted.

A scale belongs to 128 of k of one row of a, or of 128 rows; of b, of one column or of 128. Scales
are float32 in global memory, with any strides. They are read a stage ahead of their use, but for
those of single columns, which would take too many registers.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

BLOCK_K = 128
MOST_COLUMNS = 64  # of a tile whose columns have scales of their own: they are in registers


class BlockScales(NamedTuple):
    """Device functions that read the scales of a thread's sums, in the layout of `wgmma`.

    Attributes:
        begin: (tile, thread, result) -> indices of the scales of a thread's rows, and of the
            tile's columns.
        read: (extra, those indices, block of k) -> scales of the thread's upper and lower row, and
            of the tile's columns. Nothing is computed with them, which would wait for them.
        read_column: (extra, those indices, block of k, column) -> factor of a column of the result.
        by_column: True if columns have scales of their own; else `read` has that of all.
    """

    begin: Callable[..., Any]
    read: Callable[..., Any]
    read_column: Callable[..., Any]
    by_column: bool


def make_block_scales(epilogue: Any, is_exchanged: bool) -> tuple[Any, BlockScales | None]:
    """Take the block scales from an epilogue, for tiles whose width divides 128.

    Args:
        epilogue: None, or a `Fusion`.
        is_exchanged: True if the kernel computes the transposed product.

    Returns:
        The epilogue without them; and, if there are any, the device functions that read them.
    """
    if epilogue is None or not epilogue.block_scales:
        return epilogue, None
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    (a_place, a_block), (b_place, b_block) = _operands(epilogue, is_exchanged)
    by_column = b_block == 1

    def begin(tile, thread, result):
        _, a_batch, a_along, _ = result.extra[a_place]
        _, b_batch, b_along, _ = result.extra[b_place]
        upper: int32 = tile.row + thread // 32 * 16 + thread % 32 // 4
        lower: int32 = min(upper + 8, result.m - 1)
        upper = min(upper, result.m - 1)
        a_first = tile.matrix * a_batch
        b_first = tile.matrix * b_batch
        column = b_first if by_column else b_first + tile.col // b_block * b_along
        return (
            a_first + upper // a_block * a_along,
            a_first + lower // a_block * a_along,
            column,
        )

    def read(extra, first, block):
        upper, lower, column = first
        a_data, _, _, a_step = extra[a_place]
        b_data, _, _, b_step = extra[b_place]
        of_columns = float32(1)
        if not by_column:
            of_columns = b_data[column + block * b_step]
        return a_data[upper + block * a_step], a_data[lower + block * a_step], of_columns

    def read_column(extra, first, block, col):
        b_data, _, b_along, b_step = extra[b_place]
        return b_data[first[2] + block * b_step + col * b_along]

    begin, read, read_column = (device_function(unroll(f)) for f in (begin, read, read_column))
    return epilogue.unscaled, BlockScales(begin, read, read_column, by_column)


def make_element_scales(epilogue: Any) -> tuple[Any, tuple[Any, Any]]:
    """Take the block scales from an epilogue, for a kernel that scales elements of a and b.

    Returns:
        The epilogue without them; and for a and for b a device function: ((extra, matrix, first
        row or column, first k), row or column and k from these on) -> scale, or None.
    """
    if epilogue is None or not epilogue.block_scales:
        return epilogue, (None, None)
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    def make_scale_of(place: int, block: int) -> Callable[..., Any]:
        def scale_of(origin, outer, k):
            extra, matrix, first, first_k = origin
            data, batch_step, step, k_step = extra[place]
            along = (first + outer) // block
            return data[matrix * batch_step + along * step + (first_k + k) // BLOCK_K * k_step]

        return device_function(unroll(scale_of))

    of_a, of_b = _operands(epilogue, False)
    return epilogue.unscaled, (make_scale_of(*of_a), make_scale_of(*of_b))


def fits(epilogue: Any, tile_n: int, is_exchanged: bool) -> bool:
    """True if tiles of so many columns have one scale of a block, or few enough for registers."""
    if epilogue is None or not epilogue.block_scales:
        return True
    _, (_, b_block) = _operands(epilogue, is_exchanged)
    return tile_n <= (MOST_COLUMNS if b_block == 1 else BLOCK_K)


def _operands(epilogue: Any, is_exchanged: bool) -> list[tuple[int, int]]:
    """For the kernel's a and b, the index of its scales in the last parameter, and their block."""
    operands = enumerate(epilogue.operands)
    found = [(place, operand.block) for place, operand in operands if operand.kind == "blocks"]
    return found if epilogue.is_transposed is is_exchanged else found[::-1]
