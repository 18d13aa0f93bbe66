"""Elements beside the diagonal of a triangular operand become zeros before they are multiplied.

A kernel that reads copies has them cleaned in global memory (`clean_triangle`). Kernels by wgmma
clear the few stages that the diagonal crosses in shared memory, while the products of the stage
before are running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts import k_ranges
from dxgemm.handwritten.parts.k_ranges import FULL, LOWER, UNIT
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, SWIZZLE_ROWS, WARPGROUP

# Bits of 1 in elements shorter than a word.
ONES = {"float16": 0x3C00, "bfloat16": 0x3F80, "float8_e4m3fn": 0x38, "float8_e5m2": 0x3C}
FLOAT32_ONE = 0x3F800000
WORD_BITS = 32
WORDS, PAIR_BYTES = 2, 8  # that a thread reads at a time: registers are rare beside the sums
PAIRS = ROW_BYTES // PAIR_BYTES  # of a line
FIRST_BARRIER = 8  # named barriers from here on are free


def make_mask(packed: int, is_lower: bool, is_strict: bool) -> Callable[..., Any]:
    """Make a device function that puts zeros beside the diagonal, into words of `packed` elements.

    It takes a word, and the columns from the diagonal to the word's first element. The diagonal is
    kept, but for `is_strict`.
    """
    from numba import int32

    from dxgemm.handwritten.parts.unroll import device

    bits = WORD_BITS // packed
    beside = 1 if is_strict else 0  # columns from the diagonal to the first element that is kept

    @device
    def mask(word, distance):
        if is_lower:  # so many elements are kept, the first ones
            count: int32 = min(max(1 - beside - distance, 0), packed)
            word = word if count == packed else int32(word & ((1 << count * bits) - 1))
        else:  # so many are not
            count = min(max(beside - distance, 0), packed)
            word = int32(0) if count == packed else int32(word & (-1 << count * bits))
        return word

    return mask


def make_put_one(packed: int, one: int) -> Callable[..., Any]:
    """Make a device function like `make_mask`'s that puts a one on the diagonal, of these bits."""
    from numba import int32

    from dxgemm.handwritten.parts.unroll import device

    bits = WORD_BITS // packed

    @device
    def put_one(word, distance):
        if distance <= 0 and distance > -packed:
            word = int32(word | one << -distance * bits)
        return word

    return put_one


def make_clear(
    config: Any, dtype: str, tile_k: int, across: tuple[bool, bool], triangles: str
) -> Callable[..., None] | None:
    """Make a device function that clears a stage, which the warpgroups that read it call.

    It takes the address of the stage, its index among those of the tile, the tile and the thread.

    Args:
        config: a `WgmmaConfig`.
        dtype: dtype of the operands.
        tile_k: k per stage.
        across: for a and b, True if it is MN-major.
        triangles: triangles of a and b, see `Problem.clears`; for "" the result is None.
    """
    if not triangles:
        return None
    from numba import int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.unroll import device

    one = (ONES | {"float32": FLOAT32_ONE})[dtype]
    a_triangle, b_triangle = triangles.split()
    descends, from_end = (
        k_ranges.descends(triangles.replace(UNIT, "")),
        k_ranges.make_from_end(tile_k),
    )
    clears_a, clears_b = a_triangle != FULL, b_triangle != FULL
    a_across, b_across = across
    readers = WARPGROUP * (1 if config.is_pingpong else config.consumers)
    a_bytes = config.tile_m * ROW_BYTES
    # Lines of a K-major a are those of the matrix; those of a K-major b are its columns.
    a_is_lower = (a_triangle.removeprefix(UNIT) == LOWER) != a_across
    b_is_lower = (b_triangle.removeprefix(UNIT) == LOWER) == b_across
    clear_a, clear_b = (
        _make_clear_operand(extent, tile_k, readers, is_across, is_lower, one)
        for extent, is_across, is_lower, one in (
            (config.tile_m, a_across, a_is_lower, one * a_triangle.startswith(UNIT)),
            (config.tile_n, b_across, b_is_lower, one * b_triangle.startswith(UNIT)),
        )
    )

    @device
    def clear(smem, index, tile, thread):
        depth: int32 = tile.first_k + index * tile_k
        if descends:
            depth = from_end(tile, depth)
        member: int32 = thread % readers
        is_changed = False
        if clears_a:
            is_changed = clear_a(smem, tile.row, depth, tile.end_k, member)
        if clears_b:
            is_changed = clear_b(smem + a_bytes, tile.col, depth, tile.end_k, member) or is_changed
        if is_changed:
            hopper.publish_shared()
            hopper.sync_threads(FIRST_BARRIER + thread // readers, readers)

    return clear


def _make_clear_operand(
    extent: int, tile_k: int, threads: int, is_across: bool, is_lower: bool, one: int
) -> Callable[..., bool]:
    """Make a device function that clears a tile of one operand; it returns whether it had to.

    A tile consists of squares: tile_k lines of as many elements. Those on one side of the diagonal
    are kept, and those on the other side overwritten; only the others are read.

    Args:
        extent: rows of a tile of a, or columns of a tile of b.
        tile_k: k per stage, and elements per line.
        threads: number of threads that do it, which read whole runs of SWIZZLE_ROWS lines.
        is_across: True for an MN-major operand, in panels of lines along m or n.
        is_lower: True if the first elements of a line are kept, up to the diagonal.
        one: bits of the ones of a unit diagonal; 0 to keep the diagonal.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import load_shared, store_shared
    from dxgemm.handwritten.parts.unroll import device, static_range

    is_unit, packed = one != 0, tile_k // PAIRS // WORDS
    strict, items, lines = 1 if is_unit else 0, packed * WORDS, threads // PAIRS
    squares, square_bytes = -(-extent // tile_k), tile_k * ROW_BYTES
    mask, put_one = make_mask(packed, is_lower, is_unit), make_put_one(packed, one)

    @device
    def clear_operand(smem, along, depth, end_k, thread):
        is_changed = False
        line: int32 = thread // PAIRS
        offset: int32 = (thread ^ line % SWIZZLE_ROWS * 2) * PAIR_BYTES  # swizzled two by two
        for square in range(squares):
            at: int32 = along + square * tile_k
            first_line: int32 = depth if is_across else at
            first: int32 = at if is_across else depth
            ahead: int32 = first - first_line  # columns from the diagonal to the first element
            count: int32 = tile_k if is_across else min(tile_k, extent - square * tile_k)
            start: int32 = smem + square * square_bytes
            if is_lower:
                is_kept = ahead + tile_k <= 1 - strict
                is_beside = ahead >= count
            else:
                is_kept = ahead - count >= strict - 1
                is_beside = ahead + tile_k <= 0
            if is_kept:
                continue
            is_changed = True
            distance: int32 = ahead + thread % PAIRS * items - line
            for step in static_range(-(-tile_k // lines)):
                if line + step * lines < count:
                    address: int32 = start + offset + step * lines * ROW_BYTES
                    low, high = int32(0), int32(0)
                    if not is_beside:
                        low, high = load_shared(int32, WORDS, address, 0)
                        low = mask(low, int32(distance - step * lines))
                        high = mask(high, int32(distance - step * lines + packed))
                        if is_unit and first_line + line + step * lines < end_k:
                            low = put_one(low, int32(distance - step * lines))
                            high = put_one(high, int32(distance - step * lines + packed))
                    store_shared(address, 0, (low, high))
        return is_changed

    return clear_operand
