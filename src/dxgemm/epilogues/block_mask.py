"""Block mask of a result: the last stage of its epilogue, by which kernels skip dead blocks."""

from __future__ import annotations

from typing import Any

from dxgemm.epilogues.chain import BoundEpilogue, bound_epilogue
from dxgemm.epilogues.function import epilogue
from dxgemm.epilogues.kinds import BlockMask
from dxgemm.errors import DeviceMismatchError, DtypeError, LayoutError, ShapeError
from dxgemm.problem.layout import Layout, row_major, used_strides

BLOCKS = (128, 64)  # rows and columns of a block: the first that makes a mask's shape fit
DTYPES = ("bool", "uint8")


@epilogue
def block_mask(value, row, col, mask: BlockMask):  # type: ignore[no-untyped-def]
    """The value itself: kernels ask the mask for whole tiles, and not for elements."""
    return value


def masked(chain: Any, mask: Any) -> BoundEpilogue:
    """The epilogue of a call with a mask.

    Args:
        chain: `epilogue=` of the call, without a reduction; None for none.
        mask: `mask=` of the call.
    """
    last: BoundEpilogue = block_mask(mask)
    return last if chain is None else bound_epilogue(chain) | last


def find_block(shape: tuple[int, ...], m: int, n: int) -> int | None:
    """Rows and columns of a block, by the shape of the mask of an m x n result; None if unfit."""
    return next((block for block in BLOCKS if shape == _mask_shape(block, m, n)), None)


def check_mask(layout: Layout, m: int, n: int, device: int) -> None:
    """Check the mask of m x n results whose operands are on a device.

    Raises:
        ShapeError, DtypeError, LayoutError, DeviceMismatchError: the first that applies.
    """
    if find_block(layout.shape, m, n) is None:
        fitting = " or ".join(f"{_mask_shape(b, m, n)} (blocks of {b} x {b})" for b in BLOCKS)
        raise ShapeError(
            f"gemm: mask is {layout.shape}, but the result is {m} x {n}; a mask of it is {fitting}."
        )
    if layout.dtype not in DTYPES:
        raise DtypeError(
            f"gemm: mask has dtype {layout.dtype}; it must be bool or uint8: convert it, for "
            "example mask.astype('bool')."
        )
    if used_strides(layout.shape, layout.strides) != row_major(1, *layout.shape):
        raise LayoutError(
            f"gemm: mask has shape {layout.shape} and strides {layout.strides} bytes, and is not "
            "C-contiguous; pass a contiguous copy."
        )
    if layout.device != device:
        places = ("host memory" if d < 0 else f"GPU {d}" for d in (layout.device, device))
        raise DeviceMismatchError(
            "gemm: mask is in {}, but a and b are in {}; move it there.".format(*places)
        )


def _mask_shape(block: int, m: int, n: int) -> tuple[int, int]:
    return -(-m // block), -(-n // block)
