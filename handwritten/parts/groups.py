"""Groups of threads in a block: their slots, and what their members have, merged.

Source: M. Harris, "Optimizing Parallel Reduction in CUDA": halves added to halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.unroll import device, static_range


def make_find_block(lines: int) -> Callable[..., Any]:
    """A device function: (block, count) -> matrix, number of the block in it, blocks of a matrix.

    A block has so many lines, or elements, of the `count` of each matrix.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import divide

    @device
    def find_block(block, count):
        blocks: int32 = (count + lines - 1) // lines
        matrix = divide(block, blocks)
        return matrix, block - matrix * blocks, blocks

    return find_block


def make_find_piece(rows: int, cols: int) -> Callable[..., Any]:
    """A device function: (block, m, n) -> matrix, first row and column of a block's rows x cols."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import divide

    @device
    def find_piece(block, m, n):
        tiles_m: int32 = (m + rows - 1) // rows
        tiles_n: int32 = (n + cols - 1) // cols
        strip = divide(block, tiles_n)
        matrix = divide(strip, tiles_m)
        return (
            matrix,
            int32((strip - matrix * tiles_m) * rows),
            int32((block - strip * tiles_n) * cols),
        )

    return find_piece


def make_merge_members(
    config: Any,
    apart: int,
    counts: tuple[int, ...],
    merge: Callable[..., Any],
    merge_stored: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A device function: (smem, place, member, values) -> values of a group, in its member 0.

    All threads of the block call it together, none of which needs the contents of shared memory.

    Args:
        config: a `GroupsConfig`.
        apart: slots from a member of a group to the next.
        counts: values of a thread in each of the arrays of smem, which have so many per slot.
        merge: device function of the values of two members.
        merge_stored: the same of values and of two arrays, a start and a step: see `make_reducer`.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import sync_block

    threads, group_threads = config.threads, config.threads_per_group
    in_memory = merge_stored is not None
    starts = tuple(sum(counts[:array]) for array in range(len(counts)))

    @device
    def merge_members(smem, place, member, values):
        half: int32 = group_threads // 2
        while half > 0:
            for array in static_range(len(counts)):
                for i in static_range(counts[array]):
                    smem[array][i * threads + place] = values[starts[array] + i]
            sync_block()
            if member < half:
                if in_memory:
                    values = merge_stored(values, smem[0], smem[1], place + half * apart, threads)
                else:
                    others = ()
                    for array in static_range(len(counts)):
                        for i in static_range(counts[array]):
                            others = others + (smem[array][i * threads + place + half * apart],)
                    values = merge(values, others)
            sync_block()
            half = half // 2
        return values

    return merge_members


def make_each(count: int, operation: Callable[..., Any]) -> Callable[..., Any]:
    """A device function: (values, others) -> the operation of each of `count` pairs of int32."""
    from numba import int32

    @device
    def each(values, others):
        results = ()
        for i in static_range(count):
            results = results + (int32(operation(values[i], others[i])),)
        return results

    return each
