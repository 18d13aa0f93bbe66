"""The elements of a tile that a thread holds in registers, as stores are told them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Runs(NamedTuple):
    """Neighbours in a row that a thread holds, stored together.

    Attributes:
        width: elements of a run.
        step: registers from one element of a run to the next.
        span: registers from the first element of a run to the end of its last one.
        firsts: the register of each run's first element.
        rows, cols: offsets of that element from the thread's first one.
    """

    width: int
    step: int
    span: int
    firsts: tuple[int, ...]
    rows: tuple[int, ...]
    cols: tuple[int, ...]


class Fragment(NamedTuple):
    """Row and column of the element in each register, from the thread's first element on."""

    rows: tuple[int, ...]
    cols: tuple[int, ...]

    def transposed(self) -> Fragment:
        """The same registers in the transposed tile."""
        return Fragment(self.cols, self.rows)

    def runs(self, most: int) -> Runs:
        """The longest runs, of equal lengths of `most` elements or a part of it."""
        places = list(zip(self.rows, self.cols, strict=True))
        found = {place: register for register, place in enumerate(places)}
        width = most
        while not all((row, col - col % width + i) in found for row, col in places
                      for i in range(width)):  # fmt: skip
            width //= 2
        firsts = tuple(found[place] for place in sorted(places) if place[1] % width == 0)
        row, col = places[0]
        step = found[row, col + width - 1] // (width - 1) if width > 1 else 1
        return Runs(
            width, step, width * step, firsts, tuple(self.rows[first] for first in firsts),
            tuple(self.cols[first] for first in firsts),
        )  # fmt: skip


def thread_fragment(rows: tuple[int, int, int], cols: tuple[int, int, int]) -> Fragment:
    """Registers row by row.

    Args:
        rows, cols: their number, how many are neighbours, and from these to the next ones.
    """
    row_places, col_places = (
        tuple(i // width * group + i % width for i in range(count))
        for count, width, group in (rows, cols)
    )
    places = [(row, col) for row in row_places for col in col_places]
    return Fragment(*zip(*places, strict=True))


def mma_fragment(left: int, right: int) -> Fragment:
    """The sums of left x right `mma_tile` of 16 x 8, of operands as `mma_operands` has them.

    A lane has two neighbouring rows of two neighbouring columns of each instruction.
    """
    mmas = [(i, j) for i in range(left) for j in range(right)]
    places = [(16 * i + row, 8 * j + col) for i, j in mmas for row in (0, 1) for col in (0, 1)]
    return Fragment(*zip(*places, strict=True))


def make_warp_corner(config: Any, rows_are_split: bool = False) -> Callable[..., Any]:
    """A device function: thread -> the first row and column of its warp's share of the tile.

    Args:
        config: has the extents of a warp's share, warp_m x warp_n, and those of the tile.
        rows_are_split: see `make_store_chunk`; warps have 16 whole rows then.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    warp_m, warp_n, warps_n = config.warp_m, config.warp_n, config.tile_n // config.warp_n
    # Warpgroups of `wgmma` that have several strips, or whole tiles, begin in the first ones.
    has_strips = getattr(config, "strips", 1) > 1 or getattr(config, "is_pingpong", False)
    strip_warps = config.piece_step // 16

    def corner(thread):
        warp: int32 = thread // 32
        if has_strips:
            return int32(warp % strip_warps * 16), int32(0)
        if rows_are_split:
            return int32(warp // 2 * 32 + warp % 2 * 8), int32(0)
        return int32(warp // warps_n * warp_m), int32(warp % warps_n * warp_n)

    return device_function(unroll(corner))


def make_lane_corner(config: Any, row_width: int, width: int) -> Callable[..., Any]:
    """A device function: thread -> the first row and column of its elements in the tile.

    Args:
        row_width, width: neighbouring rows, and neighbouring columns.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    warp_m, warp_n, warps_n = config.warp_m, config.warp_n, config.tile_n // config.warp_n

    def corner(thread):
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        # Lanes 0 to 7 read two rows of a and four columns of b: few addresses for each access.
        lane_row: int32 = lane >> 1 & 3
        lane_col: int32 = lane & 1 | lane >> 2 & 6
        row: int32 = warp // warps_n * warp_m + lane_row * row_width
        col: int32 = warp % warps_n * warp_n + lane_col * width
        return row, col

    return device_function(unroll(corner))
