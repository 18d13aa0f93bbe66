"""Block masks: a thread block whose tile is in a dead block of the result returns at once.

A mask has an element for each block of 64 x 64 or 128 x 128 elements of the result, 0 where the
block is dead: it is neither computed nor stored. Each tile is inside one block. The mask is the
last operand of the epilogue, an array like any other, so that kernels read it when they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_is_dead(
    epilogue: Any, is_transposed: bool = False
) -> tuple[Any, bool, Callable[..., bool] | None]:
    """Take the mask from an epilogue.

    Args:
        epilogue: None, or a `Fusion`.
        is_transposed: True if the kernel's rows are the columns of the result.

    Returns:
        The epilogue without the mask; True if there is one; and, if so, a device function: (row,
        column, extra) -> True if a tile that begins there is dead.
    """
    if epilogue is None or not epilogue.mask_block:
        return epilogue, False, None
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    place, shift = len(epilogue.operands) - 1, epilogue.mask_block.bit_length() - 1

    def is_dead(row, col, extra):
        mask, _, row_step, col_step = extra[place]
        if is_transposed:
            row, col = col, row
        return mask[(row >> shift) * row_step + (col >> shift) * col_step] == 0

    return epilogue.unmasked, True, device_function(unroll(is_dead))
