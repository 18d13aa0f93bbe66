"""Symmetric results: the tiles that meet the lower triangle, and the elements stored of each.

C = A A^T has equal elements on both sides of its diagonal. A kernel computes the tiles that meet
the lower triangle, where row >= column. It stores each of them directly, as its mirror image, or
both. In a tile that the diagonal crosses, the elements above it are computed and not stored.

Tile rows are grouped, so that the operands of a group stay in L2. A group begins with the tile
columns that all of its rows have, column by column; the rest of its longer rows follows. The height
of a group is the width of a whole number of tile columns. So each group has a constant number of
tiles more than the one before it, whatever the tiles' shape.
Source: CUTLASS's rank-k updates, for tiles of one triangle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

TRIANGLES = ("both", "lower", "upper")
OTHER = {"": "", "both": "both", "lower": "upper", "upper": "lower"}  # for the transposed result


class Side(NamedTuple):
    """Elements on one side of a diagonal: those with order * (row - column) >= least.

    Attributes:
        repeats: True if the elements on the other side may be stored too, unless c is read:
            another store writes the same bits there.
    """

    order: int
    least: int
    repeats: bool = False


def stores(
    triangle: str, epilogue: Any = None, commutes: bool = True
) -> tuple[tuple[bool, Side | None], ...]:
    """Stores of a tile: True for its mirror image, and the `Side` that the store writes.

    A side of None means all elements, as without a triangle. A tile that the diagonal crosses has
    equal elements on both sides of it, so that each of its two stores may write the whole tile,
    which is faster. An element is stored only once with c, with an epilogue that may read the
    element it replaces, and if the kernel does not commute: see `Kernel.commutes`.
    """
    repeats = epilogue is None and commutes
    written: dict[str, tuple[tuple[bool, Side | None], ...]] = {
        "both": ((False, Side(1, 0, repeats)), (True, Side(1, 1, repeats))),
        "lower": ((False, Side(1, 0)),),
        "upper": ((True, Side(1, 0)),),
    }
    return written.get(triangle, ((False, None),))


def mirrored(side: Side | None) -> Side | None:
    """Side with the same elements, in coordinates of the mirror image."""
    return side and side._replace(order=-side.order)


def make_keeps(side: Side | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make two predicates: True if an element is to be stored, and if a whole tile may be stored.

    The first takes (row, column), the second the tile's first row and column, its extents and beta.
    With None everything is stored.
    """
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    order, least, repeats = side or (0, 0, False)

    def keeps(row, col):
        return order * (row - col) >= least

    def keeps_tile(row, col, rows, cols, beta):
        if repeats and beta == 0:
            return True
        if order > 0:
            return row - (col + cols - 1) >= least
        return col - (row + rows - 1) >= least

    return device_function(unroll(keeps)), device_function(unroll(keeps_tile))


def group_rows(tile_m: int, tile_n: int, swizzle_rows: int) -> int:
    """Tile rows per group: at least swizzle_rows, and as high as whole tile columns are wide."""
    step = tile_n // gcd(tile_m, tile_n)
    return -(-swizzle_rows // step) * step


@lru_cache(maxsize=4096)
def tile_count(n: int, tile_m: int, tile_n: int) -> int:
    """Tiles of an n x n matrix that meet its lower triangle."""
    return sum((min(end, n) - 1) // tile_n + 1 for end in range(tile_m, n + tile_m, tile_m))


def make_tile_map(
    tile_m: int, tile_n: int, swizzle_rows: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make two device functions, locate and count.

    locate(index, tiles_m, tiles_n) returns the matrix, the tile row and the tile column of a tile;
    index is its index among the tiles of all matrices. count(tiles_m, tiles_n) returns the number
    of tiles per matrix. tiles_m and tiles_n are those of the whole matrix.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.unroll import unroll

    rows = group_rows(tile_m, tile_n, swizzle_rows)
    step = rows * tile_m // tile_n  # additional tile columns per group
    more = rows * step
    first = sum(((line + 1) * tile_m - 1) // tile_n + 1 for line in range(rows))

    def columns(row, tiles_n):
        """Number of tiles in a tile row."""
        end: int32 = (row + 1) * tile_m - 1
        length: int32 = divide(end, int32(tile_n)) + 1
        return min(length, tiles_n)

    columns = device_function(unroll(columns))

    def count(tiles_m, tiles_n):
        group = divide(int32(tiles_m - 1), int32(rows))
        total: int32 = group * first + group * (group - 1) // 2 * more
        for row in range(int32(group * rows), tiles_m):
            total += columns(int32(row), tiles_n)
        return total

    count = device_function(unroll(count))

    def locate(index, tiles_m, tiles_n):
        tiles: int32 = count(tiles_m, tiles_n)
        matrix = divide(index, tiles)
        place: int32 = index - matrix * tiles
        group: int32 = 0
        size: int32 = first
        while place >= size:
            place -= size
            size += more
            group += 1
        row: int32 = group * rows
        height: int32 = min(rows, tiles_m - row)
        common = columns(row, tiles_n)  # tile columns that all rows of the group have
        if place < common * height:
            col = divide(place, height)
            return matrix, int32(row + place - col * height), col
        place -= common * height
        length: int32 = columns(row, tiles_n) - common
        while place >= length:
            place -= length
            row += 1
            length = columns(row, tiles_n) - common
        return matrix, row, int32(common + place)

    return device_function(unroll(locate)), count
