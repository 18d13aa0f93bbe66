"""The `place` of a frame: the tiles of the result that a block computes, and their range of k.

Tiles are numbered consecutively over all matrices of the result, by a threadblock swizzle, and a
block takes them at a fixed stride. This file has everything that decides which tiles there are:
batches, slices of k, triangles, block masks, the tables of groups, and several products per matrix
(one per modulus).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Tile(NamedTuple):
    """A tile of the result.

    Fields: the index of its matrix in the result, in a and in b; its first row and column; the end
    of the rows that are stored; the first k of its sums, and the end of k.
    """

    matrix: Any
    a_matrix: Any
    b_matrix: Any
    row: Any
    col: Any
    end_row: Any
    first_k: Any
    end_k: Any


class Work(NamedTuple):
    """The tiles of a block.

    Fields: the number of tiles, and of tiles along m and n per matrix; the end of the rows; the
    block's first k and the end of k; the number of matrices of an operand without a batch; the
    strides between the matrices of a and of b; the number of matrices of the result before those
    of the block's slice of k; the table of a group, and its number of rows.
    """

    tiles: Any
    tiles_m: Any
    tiles_n: Any
    end_row: Any
    first_k: Any
    end_k: Any
    period: Any
    a_batch: Any
    b_batch: Any
    first_matrix: Any
    table: Any
    table_rows: Any


class Place(NamedTuple):
    """Device functions that find a block's tiles.

    Attributes:
        begin: (a, b, m, n, k, batch, extra) -> `Work`.
        find: (work, index) -> `Tile`.
        leaves_notes: True if `find` is slow: only the producer calls it, and leaves notes for the
            consumers, which read them after the main loop. All tiles then have the whole k.
    """

    begin: Callable[..., Work]
    find: Callable[..., Tile]
    leaves_notes: bool


def make_place(
    config: Any,
    tile_k: int,
    stored: str = "",
    is_sliced: bool = False,
    is_dead: Callable[..., bool] | None = None,
    flag: int | None = None,
    counter: int | None = None,
    shared: str = "",
    table: int = 0,
) -> Place:
    """Make the `Place` for a batch, a group, or a slice of k.

    Args:
        stored: triangles of a symmetric result that are written; "" for another result.
        is_sliced: True if the y dimension of the grid numbers slices of k.
        is_dead: see `block_mask`; None without a mask.
        flag: index in the last parameter of a flag; if the flag is not 0, nothing is computed.
        counter: index in the last parameter of the number of products per matrix; None for one
            product. The matrices of an operand are those of all products, one after the other.
        shared: "m" or "k" if rows or k are divided among the problems of a group, by the table in
            global memory (group_table.py) whose index in the last parameter is `table`.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.tile_order import make_share, make_tile_map
    from dxgemm.handwritten.parts.unroll import unroll

    cluster, rank_rows = config.cluster, config.tile_m
    tile_m, tile_n = config.tile_m * cluster, config.tile_n
    is_masked, has_flag, is_counted = is_dead is not None, flag is not None, counter is not None
    locate, count_tiles = make_tile_map(tile_m, tile_n, config.swizzle_rows, stored)
    share = make_share()

    def begin(a, b, m, n, k, batch, extra):
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        period: int32 = 1
        if is_counted:
            period = extra[counter]
        tiles: int32 = count_tiles(batch * period, tiles_m, tiles_n)
        first_k: int32 = 0
        end_k: int32 = k
        first_matrix: int32 = 0
        numbers, rows = 0, 0
        if shared:
            numbers, rows = extra[table][0], int32(batch + 1)
        if shared == "m":
            tiles = numbers[batch]
        if is_sliced:
            k_tiles: int32 = (k + tile_k - 1) // tile_k
            first, count = share(k_tiles)
            first_k = first * tile_k
            end_k = min(k, int32((first + count) * tile_k))
            first_matrix = cuda.blockIdx.y * batch
        if is_masked:  # there is one block per tile then, see `Kernel.grid`
            _, row, col = locate(int32(cuda.blockIdx.x), tiles_m, tiles_n)
            if is_dead(row, col, extra):
                tiles = 0
        if has_flag and extra[flag][0][0] != 0:
            tiles = 0
        return Work(
            tiles, tiles_m, tiles_n, m, first_k, end_k, period, a.batch, b.batch, first_matrix,
            numbers, rows,
        )  # fmt: skip

    def find(work, index):
        matrix, row, col = locate(index, work.tiles_m, work.tiles_n)
        if cluster > 1:
            row = row + cuda.blockIdx.x % cluster * rank_rows
        repeated: int32 = matrix - divide(matrix, work.period) * work.period
        a_matrix: int32 = matrix if work.a_batch != 0 else repeated
        b_matrix: int32 = matrix if work.b_batch != 0 else repeated
        return Tile(
            int32(matrix + work.first_matrix), a_matrix, b_matrix, row, col, work.end_row,
            work.first_k, work.end_k,
        )  # fmt: skip

    if shared:
        find = make_find_in_group(tile_m, locate)[shared]
    begin, find = device_function(unroll(begin)), device_function(unroll(find))
    return Place(begin, find, leaves_notes=shared == "m")


def make_find_in_group(tile_m: int, locate: Callable[..., Any]) -> dict[str, Callable[..., Tile]]:
    """Make `Place.find`, uncompiled, for groups that divide rows ("m") or k ("k")."""
    from numba import int32

    from dxgemm.handwritten.parts.group_table import (
        FIELDS,
        FIRST,
        ROW_ITEMS,
        SIZE,
        make_find_problem,
    )

    first_field, find_problem = FIELDS.index("first"), make_find_problem()

    def find_in_rows(work, index):
        problem, number, fields = find_problem(work.table, work.table_rows, index)
        size: int32 = work.table[fields]
        first: int32 = work.table[fields + first_field]
        tiles_m: int32 = (size + tile_m - 1) // tile_m
        _, row, col = locate(int32(number), tiles_m, work.tiles_n)
        matrix: int32 = problem
        b_matrix: int32 = problem if work.b_batch != 0 else 0
        end: int32 = first + size
        return Tile(
            matrix, int32(0), b_matrix, int32(row + first), col, end, work.first_k, work.end_k
        )

    def find_in_k(work, index):
        matrix, row, col = locate(index, work.tiles_m, work.tiles_n)
        first: int32 = work.table[matrix * ROW_ITEMS + FIRST]
        end: int32 = first + work.table[matrix * ROW_ITEMS + SIZE]
        return Tile(matrix, int32(0), int32(0), row, col, work.end_row, first, end)

    return {"m": find_in_rows, "k": find_in_k}


class SkinnyTile(NamedTuple):
    """A tile of few rows or columns; the blocks of a cluster divide its k.

    Fields: the block's rank in its cluster; the index of its matrix; the first row of the larger
    operand and the first of the few columns; the number of both in the matrix; the first k of the
    block's share, and its number of stages.
    """

    rank: Any
    matrix: Any
    x: Any
    y: Any
    x_count: Any
    y_count: Any
    first_k: Any
    stages: Any


def make_skinny_place(config: Any, tile_k: int, large_is_a: bool) -> Callable[..., SkinnyTile]:
    """Make a device function: (m, n, k) -> the tile of a block.

    Args:
        config: a `SkinnyConfig`.
        tile_k: k per stage.
        large_is_a: True if the larger operand is a.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.unroll import unroll

    x_tile, few, split_k = config.tile_n, config.few, config.split_k

    def find(m, n, k):
        if large_is_a:
            x_count: int32 = m
            y_count: int32 = n
        else:
            x_count = n
            y_count = m
        tiles_x: int32 = (x_count + x_tile - 1) // x_tile
        tiles_y: int32 = (y_count + few - 1) // few
        block: int32 = cuda.blockIdx.x
        rank: int32 = block % split_k
        block = block // split_k
        matrix = divide(block, tiles_x * tiles_y)
        tile: int32 = block - matrix * tiles_x * tiles_y
        row_of_tiles = divide(tile, tiles_x)
        y: int32 = row_of_tiles * few
        x: int32 = (tile - row_of_tiles * tiles_x) * x_tile
        k_tiles: int32 = (k + tile_k - 1) // tile_k
        first: int32 = k_tiles * rank // split_k
        stages: int32 = k_tiles * (rank + 1) // split_k - first
        first_k: int32 = first * tile_k
        return SkinnyTile(rank, matrix, x, y, x_count, y_count, first_k, stages)

    return device_function(unroll(find))
