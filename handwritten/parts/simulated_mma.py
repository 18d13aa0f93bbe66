"""`mma_tile` of float64 for numba's simulator: the lanes of a warp exchange their elements.

Every thread of the block must call it together, as a barrier.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

WARP, MEMBERS = 32, 4  # lanes of a warp, and of a group of a fragment's rows or columns
_held: dict[int, Any] = {}  # operands by thread of the block that is running


def negated(value: Any) -> Any:
    return -value


@cuda.jit(device=True)
def mma_tile(kind, acc, left, right):
    cols, thread = len(right) // 2, int(cuda.threadIdx.x)
    _held[thread] = left, right
    cuda.syncthreads()
    lanes = [_held[thread // WARP * WARP + lane] for lane in range(WARP)]
    cuda.syncthreads()  # before the next call replaces what others read
    group, member = divmod(thread % WARP, MEMBERS)
    sums = list(acc)
    for place in range(len(acc)):
        (i, j), (lower, odd) = divmod(place // 4, cols), divmod(place % 4, 2)
        for k in range(8):
            half, lane = divmod(k, MEMBERS)
            row = lanes[group * MEMBERS + lane][0]
            column = lanes[(2 * member + odd) * MEMBERS + lane][1]
            sums[place] += row[4 * i + 2 * half + lower] * column[2 * j + half]
    return tuple(sums)
