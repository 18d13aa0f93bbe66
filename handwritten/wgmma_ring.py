"""What kernels with a ring of stages share, from `wgmma` on: the order of tiles, and the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_locate(tile_m: int, tile_n: int, band_m: int) -> Callable[..., Any]:
    """A device function: index of a tile, tiles along m and n, to its matrix and first element."""
    from numba import cuda, int32

    from dxgemm.handwritten.intrinsics import divide

    @cuda.jit(device=True, forceinline=True)
    def locate(index, tiles_m, tiles_n):
        """Matrix, first row and first column of a tile: bands of band_m tiles, column by column."""
        matrix = divide(index, int32(tiles_m * tiles_n))
        tile = int32(index - matrix * tiles_m * tiles_n)
        top = int32(divide(tile, int32(band_m * tiles_n)) * band_m)
        place = int32(tile - top * tiles_n)
        rows = int32(min(band_m, tiles_m - top))
        col = divide(place, rows)
        return matrix, int32((top + place - col * rows) * tile_m), int32(col * tile_n)

    return locate


def make_after(stages: int) -> Callable[..., Any]:
    """A device function: from a stage of the ring, and the parity of its phase, to the next."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        """The next stage of the ring, and the parity of its phase."""
        stage = int32(stage + 1)
        if stage == stages:
            return int32(0), int32(parity ^ 1)
        return stage, parity

    return after


def make_corner() -> Callable[..., Any]:
    """A device function: where the copy engine finds a box of an operand."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def corner(is_across, along, depth, matrix):
        """Coordinates of a box, innermost first."""
        if is_across:
            return int32(along), int32(depth), matrix
        return int32(depth), int32(along), matrix

    return corner
