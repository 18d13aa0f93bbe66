"""Products of scaled lines, scaled back: part of the emulated float32 products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
