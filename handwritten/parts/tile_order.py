"""The order in which blocks take the tiles of a result, so that neighbours share operands in L2.

Source: CUTLASS, "Efficient GEMM in CUDA", for the threadblock swizzle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts import k_ranges, triangle


def make_share() -> Callable[..., Any]:
    """A device function: (tiles of k, part, parts) -> the first tile of a part, and its tiles."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.unroll import unroll

    def share(k_tiles, part, parts):
        most = divide(int32(k_tiles + parts - 1), int32(parts))
        first: int32 = min(int32(most * part), k_tiles)
        return first, min(most, int32(k_tiles - first))

    return device_function(unroll(share))


def make_tile_map(
    tile_m: int, tile_n: int, swizzle_rows: int, stored: str, ranges: str = ""
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions: the index of a tile, and the number of tiles.

    locate(index of a tile, tiles_m, tiles_n) returns its matrix, first row and first column;
    count(batch, tiles_m, tiles_n) the tiles of all matrices.

    Args:
        stored: triangles of a symmetric result that are written; "" for another result.
        ranges: see `k_ranges`.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide, opaque

    if ranges:
        return _make_map_of_ranges(tile_m, tile_n, swizzle_rows, ranges)
    if stored:
        locate_lower, count_lower = triangle.make_tile_map(tile_m, tile_n, swizzle_rows)

        def locate(index, tiles_m, tiles_n):
            # `opaque` keeps no intermediate value live from tile to tile, because the main loop
            # has no registers to spare.
            matrix, row, col = locate_lower(index, opaque(tiles_m), opaque(tiles_n))
            return matrix, int32(row * tile_m), int32(col * tile_n)

        def count(batch, tiles_m, tiles_n):
            return batch * count_lower(tiles_m, tiles_n)

    else:

        def locate(index, tiles_m, tiles_n):
            matrix = divide(index, int32(tiles_m * tiles_n))
            tile = int32(index - matrix * tiles_m * tiles_n)
            top = int32(divide(tile, int32(swizzle_rows * tiles_n)) * swizzle_rows)
            place = int32(tile - top * tiles_n)
            rows = int32(min(swizzle_rows, tiles_m - top))
            col = divide(place, rows)
            return matrix, int32((top + place - col * rows) * tile_m), int32(col * tile_n)

        def count(batch, tiles_m, tiles_n):
            return batch * tiles_m * tiles_n

    return device_function(locate), device_function(count)


def _make_map_of_ranges(
    tile_m: int, tile_n: int, swizzle_rows: int, ranges: str
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`make_tile_map` of triangular operands: the longest tiles of a matrix first."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.unroll import unroll

    is_by_columns, is_rising = k_ranges.is_by_columns(ranges), k_ranges.is_rising(ranges)
    tile = (tile_n, tile_m) if is_by_columns else (tile_m, tile_n)
    locate_plain, count = make_tile_map(*tile, swizzle_rows, "")

    def locate(index, tiles_m, tiles_n):
        if is_by_columns:
            tiles_m, tiles_n = tiles_n, tiles_m
        if is_rising:
            tiles: int32 = tiles_m * tiles_n
            matrix = divide(int32(index), tiles)
            last: int32 = matrix * tiles + (tiles - 1)
            index = last - int32(index - matrix * tiles)
        matrix, row, col = locate_plain(index, tiles_m, tiles_n)
        if is_by_columns:
            row, col = col, row
        return matrix, row, col

    return device_function(unroll(locate)), count
