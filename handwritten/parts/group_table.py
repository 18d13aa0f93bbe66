"""The table of a group in global memory, and how a block finds its problem there.

Tiles are numbered through all problems. The table holds the first tile of each problem, in their
order, then FIELDS numbers for each. Starts and strides count elements; an operand starts so many
elements after the pointer of its name. `first` is a problem's first index in the dimension that
offsets share out; in a list it is 0.
"""

from __future__ import annotations

from typing import Any

# Numbers of a problem, in the order of its row in the table.
FIELDS = (
    "m", "n", "k", "a_start", "a_stride_m", "a_stride_k", "b_start", "b_stride_k", "b_stride_n",
    "c_start", "c_stride_m", "c_stride_n", "out_start", "out_stride_m", "out_stride_n",
    "first",
)  # fmt: skip

# Of groups that share out k: bytes of a tensor map and of a number; index of the first k and of the
# size in a row, after the maps of a and b; numbers of a row, so that its maps are aligned.
MAP_BYTES, ITEM_BYTES = 128, 8
FIRST = 2 * MAP_BYTES // ITEM_BYTES
SIZE = FIRST + 1
ROW_ITEMS = 3 * MAP_BYTES // ITEM_BYTES


def make_find_part() -> Any:
    """A device function: (offsets, problem, total) -> first index of a problem's part, its size.

    Offsets are the last index of each part plus one. Wrong ones count as the nearest right ones.
    """
    from numba import int64

    from dxgemm.handwritten.parts.intrinsics import device_function

    def find_part(offsets, problem, total):
        first = int64(0)
        if problem > 0:
            first = min(max(int64(offsets[problem - 1]), int64(0)), int64(total))
        return first, max(min(int64(offsets[problem]), int64(total)) - first, int64(0))

    return device_function(find_part)


def make_find_problem() -> Any:
    """A device function: (table, problems, tile) -> problem, index of the tile in it, its row.

    The row is the index of the problem's first number in the table.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    fields = len(FIELDS)

    def find_problem(table, problems, tile):
        # The last problem whose first tile is not after this one.
        problem: int32 = 0
        last: int32 = problems - 1
        while problem < last:
            middle: int32 = (problem + last + 1) >> 1
            if table[middle] <= tile:
                problem = middle
            else:
                last = middle - 1
        place: int32 = tile - table[problem]
        return problem, place, problems + problem * fields

    return device_function(unroll(find_problem))
