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


def make_below() -> Callable[..., Tile]:
    """Make a device function: tile -> the tile below the result, of which nothing is stored."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function

    def below(tile):
        matrix, a_matrix, b_matrix, _, col, end_row, first_k, end_k = tile
        return Tile(matrix, a_matrix, b_matrix, int32(end_row), col, end_row, first_k, end_k)

    return device_function(below)


def make_noted_tile() -> Callable[..., Tile]:
    """Make a device function: (shared address, work) -> the tile that a producer noted."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, load_shared

    def noted_tile(at, work):
        matrix, row, col, end_row = load_shared(int32, 4, at, 0)
        return Tile(matrix, 0, 0, row, col, end_row, work.first_k, work.end_k)

    return device_function(noted_tile)


class Work(NamedTuple):
    """The tiles of a block.

    Fields: number of tiles, and of a matrix those along m and n; the end of the rows; the block's
    first k and its end; matrices of an operand without a batch; strides between the matrices of a
    and of b; matrices of the result before those of the block's slice of k; its rank in a cluster
    that shares out k; the table of a group, and its rows.
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
    rank: Any
    table: Any
    table_rows: Any


class Place(NamedTuple):
    """Device functions that find a block's tiles.

    Attributes:
        begin: (a, b, m, n, k, batch, extra) -> `Work`.
        find: (work, index) -> `Tile`.
        leaves_notes: True if `find` is slow: only the producer calls it, and leaves notes for the
            consumers, which read them after the main loop. All tiles then have the whole k.
        descends: True if stages begin with the last k of a tile, see `k_ranges`.
    """

    begin: Callable[..., Work]
    find: Callable[..., Tile]
    leaves_notes: bool
    descends: bool


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
    is_even: bool = False,
    ranges: str = "",
) -> Place:
    """Tiles of a batch, of a group, or of a slice of k.

    Args:
        stored: triangles of a symmetric result that are written; "" for another result.
        is_sliced: True if the grid has a y for each slice of k.
        is_dead: see `block_mask`; None without a mask.
        flag: index in the last parameter of a flag; if that is not 0, nothing is computed.
        counter: index there of the number of products of each matrix; None for one product. The
            matrices of an operand are those of all products, one after the other.
        shared: "m" or "k" if the problems of a group share out rows or k, "each" if they share
            nothing; they are in the table in global memory (group_table.py) whose index in the last
            parameter is `table`. m is the number of problems for "each", and a block has a tile.
        is_even: True if the numbers of stages that blocks of a cluster have differ by 1 at most;
            else all but the last ones have equally many.
        ranges: see `k_ranges`; "" for slices of k.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import cuda, device_function
    from dxgemm.handwritten.parts.k_ranges import descends
    from dxgemm.handwritten.parts.tile_order import make_share, make_tile_map
    from dxgemm.handwritten.parts.unroll import unroll

    split_k, (pair_m, pair_n) = config.split_k, config.pair
    tile_m, tile_n = config.tile_m * pair_m, config.tile_n * pair_n
    shares_k = (is_sliced or split_k > 1) and not ranges  # else `find` does that for each tile
    is_masked, has_flag, is_counted = is_dead is not None, flag is not None, counter is not None
    locate, count_tiles = make_tile_map(tile_m, tile_n, config.swizzle_rows, stored, ranges)
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
        if shared == "each":
            tiles, rows = int32(batch), int32(m)
        block: int32 = cuda.blockIdx.x
        rank: int32 = block % split_k
        if shares_k:
            k_tiles: int32 = (k + tile_k - 1) // tile_k
            part, parts = rank, int32(split_k)
            if is_sliced:
                part, parts = int32(cuda.blockIdx.y), int32(cuda.gridDim.y)
                first_matrix = part * batch
            if is_even and not is_sliced:
                first: int32 = k_tiles * rank // split_k
                count: int32 = k_tiles * (rank + 1) // split_k - first
            else:
                first, count = share(k_tiles, part, parts)
            first_k = first * tile_k
            end_k = min(k, int32((first + count) * tile_k))
        if is_masked:  # there is one block per tile then, see `Kernel.grid`
            _, row, col = locate(int32(block // split_k), tiles_m, tiles_n)
            if is_dead(row, col, extra):
                tiles = 0
        if has_flag and extra[flag][0][0] != 0:
            tiles = 0
        return Work(
            tiles, tiles_m, tiles_n, m, first_k, end_k, period, a.batch, b.batch, first_matrix,
            rank, numbers, rows,
        )  # fmt: skip

    find = _make_find_in_range(config, tile_k, locate, ranges) if ranges else None
    find = find or _make_find(config, locate, shared)
    return Place(device_function(unroll(begin)), find, shared == "m", descends(ranges))


def _make_find(config: Any, locate: Callable[..., Any], shared: str) -> Callable[..., Tile]:
    """The device function find of `make_place`."""
    from numba import int32

    from dxgemm.handwritten.parts.group_table import (
        FIELDS,
        FIRST,
        ROW_ITEMS,
        SIZE,
        make_find_problem,
    )
    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.unroll import unroll

    tile_m, tile_n, split_k = config.tile_m, config.tile_n, config.split_k
    first_field, find_problem = FIELDS.index("first"), make_find_problem()
    beside = _make_beside(config)

    def find(work, index):
        matrix, row, col = locate(int32(index // split_k), work.tiles_m, work.tiles_n)
        row, col = beside(row, col)
        repeated: int32 = matrix - divide(matrix, work.period) * work.period
        a_matrix: int32 = matrix if work.a_batch != 0 else repeated
        b_matrix: int32 = matrix if work.b_batch != 0 else repeated
        return Tile(
            int32(matrix + work.first_matrix), a_matrix, b_matrix, row, col, work.end_row,
            work.first_k, work.end_k,
        )  # fmt: skip

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

    def find_each(work, index):
        """The operands of a problem begin where the second matrix of a batch does."""
        problem, number, fields = find_problem(work.table, work.table_rows, index)
        m, n, k = work.table[fields], work.table[fields + 1], work.table[fields + 2]
        # Tiles beyond the last belong to a problem of no rows, where none begins inside.
        tiles_m: int32 = max((m + tile_m - 1) // tile_m, 1)
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        _, row, col = locate(int32(number), tiles_m, tiles_n)
        return Tile(int32(problem), int32(1), int32(1), row, col, m, int32(0), int32(k))

    find = {"": find, "m": find_in_rows, "k": find_in_k, "each": find_each}[shared]
    return device_function(unroll(find))


def _make_beside(config: Any) -> Callable[..., tuple[Any, Any]]:
    """The device function (row, col) -> first row and column of this block's tile in its pair."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import cuda, device_function
    from dxgemm.handwritten.parts.unroll import unroll

    (pair_m, pair_n), tile_m, tile_n = config.pair, config.tile_m, config.tile_n

    def beside(row, col):
        if pair_m > 1:
            row = int32(row + cuda.blockIdx.x % pair_m * tile_m)
        if pair_n > 1:
            col = int32(col + cuda.blockIdx.x % pair_n * tile_n)
        return row, col

    return device_function(unroll(beside))


def _make_find_in_range(
    config: Any, tile_k: int, locate: Callable[..., Any], ranges: str
) -> Callable[..., Tile]:
    """The device function find of `make_place` for triangular operands.

    Blocks of a cluster share the k of a tile. A pair of blocks has the range of both tiles.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.k_ranges import make_k_range, make_to_and_fro
    from dxgemm.handwritten.parts.unroll import unroll

    split_k, (pair_m, pair_n) = config.split_k, config.pair
    k_range = make_k_range(ranges, config.tile_m * pair_m, config.tile_n * pair_n, tile_k)
    to_and_fro, beside = make_to_and_fro(config.cluster), _make_beside(config)

    def find(work, index):
        number = to_and_fro(int32(index // split_k), work.tiles)
        matrix, row, col = locate(number, work.tiles_m, work.tiles_n)
        first, end = k_range(row, col, int32((work.end_k + tile_k - 1) // tile_k))
        if split_k > 1:
            rank: int32 = work.rank
            stages: int32 = end - first
            end = int32(first + stages * (rank + 1) // split_k)
            first = int32(first + stages * rank // split_k)
        row, col = beside(row, col)
        a_matrix: int32 = matrix if work.a_batch != 0 else 0
        b_matrix: int32 = matrix if work.b_batch != 0 else 0
        return Tile(
            matrix, a_matrix, b_matrix, row, col, work.end_row, int32(first * tile_k),
            min(work.end_k, int32(end * tile_k)),
        )  # fmt: skip

    return device_function(unroll(find))


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
