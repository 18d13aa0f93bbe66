"""Products of scaled lines, scaled back: part of the emulated float32 products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.emulation import PADDING


def make_scale_back(cols: int) -> Callable[..., Any]:
    """Make the device function scale_back, for 16 rows and so many columns of a warp's sums.

    scale_back(frag, upper, lower, factors, at) returns the sums, as `mma.sync` and `wgmma` leave
    them, times the factors of a lane's two rows and of its columns, which begin at `at`.
    """
    from numba import cuda, float32

    from dxgemm.handwritten.parts.intrinsics import load_vector
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def scale_back(frag, upper, lower, factors, at):
        scaled = ()
        for j in static_range(cols // 8):
            x, y = load_vector(float32, 2, factors, at + 8 * j)
            scaled = scaled + (
                frag[4 * j] * upper * x,
                frag[4 * j + 1] * upper * y,
                frag[4 * j + 2] * lower * x,
                frag[4 * j + 3] * lower * y,
            )
        return scaled

    return scale_back


def make_scale_tile(tile_n: int, row_factors: int) -> Callable[..., Any]:
    """A device function that scales a tile back, for `store.make_store`.

    Args:
        tile_n: columns of the tile.
        row_factors: index in the last parameter of the factors of rows; those of columns follow.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    col_factors, scale_back = row_factors + 1, make_scale_back(tile_n)

    def scale_tile(sums, thread, tile, work, result):
        lane: int32 = thread % 32
        a_factors, b_factors = result.extra[row_factors][0], result.extra[col_factors][0]
        at = tile.a_matrix * ((result.m + PADDING - 1) // PADDING * PADDING)
        at += tile.row + thread // 32 * 16 + lane // 4
        upper, lower = a_factors[at], a_factors[at + 8]
        at = tile.b_matrix * ((result.n + PADDING - 1) // PADDING * PADDING)
        at += tile.col + lane % 4 * 2
        return scale_back(sums, upper, lower, b_factors, at)

    return device_function(unroll(scale_tile))
