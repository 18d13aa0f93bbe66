"""The order in which blocks take the tiles of a result, so that neighbours share operands in L2.

Source: CUTLASS, "Efficient GEMM in CUDA", for the threadblock swizzle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts import k_ranges, triangle

GROUPS = 8  # groups of tiles along the shorter side of a result of two triangular operands


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
    if k_ranges.FULL not in ranges.split():
        return _make_map_of_two(tile_m, tile_n, ranges), count

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


def _make_map_of_two(tile_m: int, tile_n: int, ranges: str) -> Callable[..., Any]:
    """The function locate of `make_tile_map` of two triangular operands.

    Tiles are grouped, so that neighbours share operands in L2. The range of k of a group (i, j) is
    the longer, the greater min(i, j) is for a lower a and an upper b, and the greater i - j is for
    two lower ones: groups are taken in lines of equal length, shells and diagonals. For the other
    two pairs of triangles the result is turned upside down.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.unroll import unroll

    a, b = ranges.split()
    is_turned, has_shells = a == k_ranges.UPPER, a != b

    def in_shells(place: int32, tiles_m, tiles_n, group_m, group_n):
        """Tile of a place; a shell is the rest of some tile columns, then that of tile rows."""
        shells = min(divide(int32(tiles_m - 1), group_m), divide(int32(tiles_n - 1), group_n))
        row: int32 = (shells + 1) * group_m
        col: int32 = (shells + 1) * group_n
        size: int32 = 0
        while place >= size:
            place -= size
            row -= group_m
            col -= group_n
            rows: int32 = min(group_m, tiles_m - row)
            cols: int32 = min(group_n, tiles_n - col)
            below: int32 = (tiles_m - row) * cols
            size = below + rows * (tiles_n - col - cols)
        if place < below:
            down = divide(place, cols)
            return int32(row + down), int32(col + place - down * cols)
        place -= below
        right = divide(place, rows)
        return int32(row + place - right * rows), int32(col + cols + right)

    def in_diagonals(place: int32, tiles_m, tiles_n, group_m, group_n):
        """Tile of a place; only the last group of a diagonal may have fewer rows or columns."""
        last_i = divide(int32(tiles_m - 1), group_m)
        last_j = divide(int32(tiles_n - 1), group_n)
        i: int32 = last_i + 1
        j: int32 = 0
        size: int32 = 0
        while place >= size:
            place -= size
            if i > 0:
                i -= 1
            else:
                j += 1
            steps: int32 = min(last_i - i, last_j - j)
            rows: int32 = min(group_m, tiles_m - (i + steps) * group_m)
            size = steps * (group_m * group_n)
            size += rows * min(group_n, tiles_n - (j + steps) * group_n)
        step = divide(place, int32(group_m * group_n))
        place -= step * group_m * group_n
        row: int32 = (i + step) * group_m
        col: int32 = (j + step) * group_n
        rows = min(group_m, tiles_m - row)
        right = divide(place, rows)
        return int32(row + place - right * rows), int32(col + right)

    find = device_function(unroll(in_shells if has_shells else in_diagonals))

    def locate(index, tiles_m, tiles_n):
        matrix = divide(int32(index), int32(tiles_m * tiles_n))
        place = int32(index - matrix * tiles_m * tiles_n)
        extent = divide(min(int32(tiles_m * tile_m), int32(tiles_n * tile_n)), int32(GROUPS))
        group_m = max(divide(extent, int32(tile_m)), int32(1))
        group_n = max(divide(extent, int32(tile_n)), int32(1))
        row, col = find(place, tiles_m, tiles_n, group_m, group_n)
        if is_turned:
            row, col = int32(tiles_m - 1 - row), int32(tiles_n - 1 - col)
        return matrix, int32(row * tile_m), int32(col * tile_n)

    return device_function(unroll(locate))
