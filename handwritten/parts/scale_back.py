"""Products of scaled lines, scaled back: part of the emulated float32 products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.emulation import PADDING


def make_scale_back(cols: int, row_factors: int) -> Callable[..., Any]:
    """A device function that scales 16 rows of a warp's sums back, for `store.make_store`.

    Args:
        cols: columns of the sums.
        row_factors: index in the last parameter of the factors of rows; those of columns follow.
    """
    from numba import float32

    from dxgemm.handwritten.parts.intrinsics import device_function, load_vector
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    def scale_back(sums, lane, top, left, tile, result):
        a_factors, b_factors = result.extra[row_factors][0], result.extra[row_factors + 1][0]
        at = tile.a_matrix * ((result.m + PADDING - 1) // PADDING * PADDING) + top + lane // 4
        upper, lower = a_factors[at], a_factors[at + 8]
        at = tile.b_matrix * ((result.n + PADDING - 1) // PADDING * PADDING) + left + lane % 4 * 2
        scaled = ()
        for j in static_range(cols // 8):
            x, y = load_vector(float32, 2, b_factors, at + 8 * j)
            scaled = scaled + (
                sums[4 * j] * upper * x,
                sums[4 * j + 1] * upper * y,
                sums[4 * j + 2] * lower * x,
                sums[4 * j + 3] * lower * y,
            )
        return scaled

    return device_function(unroll(scale_back))
