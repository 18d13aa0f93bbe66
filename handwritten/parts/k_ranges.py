"""Triangular operands: each tile of the result reads the part of k that is not 0.

`Problem.k_ranges` names the triangles of a and b, such as "lower full", in the orientation of the
kernel; "" if both are full. Rows of a lower a end at the diagonal, those of an upper a begin there;
columns of a lower b begin there, those of an upper b end there. A tile begins and ends at whole
stages. So it reads some elements beyond the diagonal, which must be 0 in memory: no further from it
along k than `band` tells.

Tiles are numbered by decreasing length, so that the last ones are short. Blocks that take several
tiles go through them to and fro: the block with the longest tile of one turn has the shortest of
the next.
Source: R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969, for longest tiles first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FULL, LOWER, UPPER = "full", "lower", "upper"
UNIT = "unit_"  # prefix of a triangle whose diagonal counts as ones
EXCHANGED = {FULL: FULL, LOWER: UPPER, UPPER: LOWER}  # for the transposed operand
EXCHANGED |= {UNIT + name: UNIT + other for name, other in EXCHANGED.items()}
MOST_STAGE = 128  # k of a stage


def exchanged(ranges: str) -> str:
    """Ranges of the transposed product, b.T @ a.T."""
    return " ".join(EXCHANGED[triangle] for triangle in reversed(ranges.split()))


def is_by_columns(ranges: str) -> bool:
    """True if tiles of the same columns have the same length: b alone is triangular."""
    return ranges.startswith(FULL)


def is_rising(ranges: str) -> bool:
    """True if tiles get longer with their row, or with their column."""
    a, b = ranges.split()
    return (b == UPPER) if a == FULL else (a == LOWER)


def descends(ranges: str) -> bool:
    """True if all tiles end at the end of k, and go from there to the diagonal.

    Tiles that are computed at the same time so read the same k of the full operand, and a diagonal
    comes last, when its elements are put right while products are running.
    """
    return ranges in ("upper full", "full lower", "upper lower")


def make_from_end(tile_k: int) -> Callable[..., Any]:
    """Make a device function: (tile, first k of a stage) -> that of the stage in its place."""
    from numba import int32

    from dxgemm.handwritten.parts.unroll import device

    @device
    def from_end(tile, depth):
        stages: int32 = (tile.end_k - tile.first_k - 1) // tile_k
        return int32(2 * tile.first_k + stages * tile_k - depth)

    return from_end


def band(config: Any) -> int:
    """Elements beyond the diagonal that the tiles of a config may read."""
    return max(config.tile_m, config.tile_n) * config.cluster + MOST_STAGE


def make_k_range(ranges: str, tile_m: int, tile_n: int, tile_k: int) -> Callable[..., Any]:
    """Make a device function: (row, col, stages of k) -> the first stage of a tile, and its end.

    row and col are those of the tile's first element; tiles of no k end where they begin.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    assert tile_k <= MOST_STAGE
    a, b = ranges.split() if ranges else (FULL, FULL)
    a_ends, a_begins, b_ends, b_begins = a == LOWER, a == UPPER, b == UPPER, b == LOWER

    def k_range(row, col, k_tiles):
        first: int32 = 0
        end: int32 = k_tiles
        if a_ends:
            end = min(end, int32((row + (tile_m + tile_k - 1)) // tile_k))
        if b_ends:
            end = min(end, int32((col + (tile_n + tile_k - 1)) // tile_k))
        if a_begins:
            first = int32(row // tile_k)
        if b_begins:
            first = max(first, int32(col // tile_k))
        return min(first, end), end

    return device_function(unroll(k_range))


def make_to_and_fro(cluster: int) -> Callable[..., Any]:
    """Make a device function: (index, tiles) -> index, with every other turn of blocks reversed.

    The last turn, in which some blocks have no tile, is not: its first and longest tile is taken by
    the block with the shortest one of the turn before.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import cuda, device_function, divide
    from dxgemm.handwritten.parts.unroll import unroll

    def to_and_fro(index, tiles):
        blocks: int32 = cuda.gridDim.x // cluster
        turn: int32 = divide(int32(index), blocks)
        left: int32 = divide(int32(tiles - 1), blocks) - turn
        return int32((2 * turn + 1) * blocks - 1 - index) if left % 2 == 1 else int32(index)

    return device_function(unroll(to_and_fro))
