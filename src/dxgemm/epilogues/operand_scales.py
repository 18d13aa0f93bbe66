"""Scales of a, b and out as stages of an epilogue, whose parameters have the names of the call's.

Those of rows and columns come first, that of out last. Those of blocks are no function of an
element: kernels apply them to the sums over 128 of k.
"""

from __future__ import annotations

from dxgemm.epilogues.function import epilogue
from dxgemm.epilogues.kinds import BlockScales, ColumnVector, RowVector


@epilogue
def scale_of_a(value, row, col, scale_a: ColumnVector):  # type: ignore[no-untyped-def]
    """scale_a[row] * value."""
    return scale_a * value


@epilogue
def scale_of_b(value, row, col, scale_b: RowVector):  # type: ignore[no-untyped-def]
    """scale_b[col] * value."""
    return scale_b * value


@epilogue
def scale_of_both(value, row, col, scale_a: ColumnVector, scale_b: RowVector):  # type: ignore[no-untyped-def]
    """value * (scale_a[row] * scale_b[col]): the same bits on both sides of a diagonal."""
    return value * (scale_a * scale_b)


@epilogue
def scale_of_out(value, row, col, scale_out: RowVector):  # type: ignore[no-untyped-def]
    """scale_out * value."""
    return scale_out * value


@epilogue
def block_scales(value, row, col, scale_a: BlockScales, scale_b: BlockScales):  # type: ignore[no-untyped-def]
    """The value itself: kernels scale the sums over 128 of k, and not elements."""
    return value
