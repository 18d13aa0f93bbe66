"""The `multiply` of the frame `resident`: a part of k into sums, out of shared memory."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.batch_lines import CHUNK_ITEMS, Lines
from dxgemm.handwritten.parts.batch_load import TileBytes
from dxgemm.handwritten.parts.line_tiles import make_lane_place
from dxgemm.handwritten.parts.mma_operands import MMA_COLS, MMA_K, MMA_ROWS
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.unroll import device, static_range

MMA = 16  # half precision is multiplied for 16 rows, 16 columns and 16 k at a time


class Multiply(NamedTuple):
    """Device functions for a thread's sums.

    Attributes:
        begin: (a_smem, b_smem, thread) -> sums of nothing, and where the thread reads a and b.
        add: (sums, where, part, k_left) -> sums plus the product of a part of k.
        locate: (thread) -> row and column in the tile of the first element of the thread, or of its
            warp.
    """

    begin: Callable[..., Any]
    add: Callable[..., Any]
    locate: Callable[..., Any]


def make_fma_multiply(
    config: Any, scalar: Any, numbers: int, places: tuple[TileBytes, TileBytes],
    rows: tuple[int, int, int], most_unrolled: int, combine: Any,
) -> Multiply:  # fmt: skip
    """Thread tiles by multiply-adds or an inner function, of one or two numbers per element.

    Args:
        config: a config of `small_batch`.
        scalar: type of the numbers.
        places: the tiles of a and b in shared memory; lines of b's are rows.
        rows: the thread's, as `thread_fragment` takes them: one access reads its neighbours.
        most_unrolled: the most k that the loop over k is unrolled for.
        combine: a `Combine` of elements, which are two numbers each if they are complex.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import load_vectors

    is_inner, begin_sums, add_products = combine[:3]
    item_size = np.dtype(scalar).itemsize * numbers
    width = VECTOR_BYTES // item_size  # elements of a 16-byte access
    vector = width * numbers
    thread_m, thread_n = config.thread_m, config.thread_n
    threads_m, threads_n = config.threads_m, config.threads_n
    (a_row_bytes, a_k_bytes), (_, b_line_bytes) = places
    a_is_along_k = a_k_bytes == item_size
    part_k = config.tile_k // config.parts
    unrolled_k = gcd(part_k, most_unrolled)
    _, row_width, row_group = rows
    row_groups, row_group_bytes = thread_m // row_width, row_group * a_row_bytes
    col_groups, col_group_bytes = thread_n // width, threads_n * VECTOR_BYTES
    # From the number of an element that was read to that of the next row, and of the next k.
    next_row, next_k = (vector, numbers) if a_is_along_k else (numbers, numbers * thread_m)
    # Eight lanes that are served together read four addresses of a and two of b: with 1 and 8,
    # shared memory would be busy for longer.
    in_eights = threads_m % 4 == 0 and threads_n % 2 == 0

    @device
    def locate(thread):
        if in_eights:
            group: int32 = thread // 8
            lane: int32 = thread % 8
            row: int32 = (group // (threads_n // 2) * 4 + lane // 2) * row_width
            col: int32 = (group % (threads_n // 2) * 2 + lane % 2) * width
        else:
            row = thread // threads_n * row_width
            col = thread % threads_n * width
        return row, col

    @device
    def begin(a_smem, b_smem, thread):
        row, col = locate(thread)
        a_from: int32 = a_smem + row * a_row_bytes
        b_from: int32 = b_smem + col * item_size
        return begin_sums(scalar, thread_m * thread_n * numbers), (a_from, b_from)

    @device
    def add(sums, where, part, k_left):
        a_from: int32 = where[0] + part * part_k * a_k_bytes
        b_from: int32 = where[1] + part * part_k * b_line_bytes
        left: int32 = k_left - part * part_k
        for _ in range(part_k // unrolled_k):
            for first_k in static_range(0, unrolled_k, width):
                if a_is_along_k:
                    column = load_vectors(
                        scalar, vector, a_from, first_k * a_k_bytes, row_group_bytes, row_groups
                    )
                else:
                    column = ()
                    for kk in static_range(first_k, first_k + width):
                        column = column + load_vectors(
                            scalar, numbers * row_width, a_from, kk * a_k_bytes, row_group_bytes,
                            row_groups,
                        )  # fmt: skip
                for kk in static_range(width):
                    a_frag = ()
                    for i in static_range(thread_m):
                        a_frag = (
                            a_frag
                            + column[
                                i * next_row + kk * next_k : i * next_row + kk * next_k + numbers
                            ]
                        )
                    b_frag = load_vectors(
                        scalar, vector, b_from, (first_k + kk) * b_line_bytes, col_group_bytes,
                        col_groups,
                    )  # fmt: skip
                    # Elements beyond k are zero, and an inner function would count them.
                    if not is_inner or first_k + kk < left:
                        sums = add_products(sums, a_frag, b_frag)
            left -= unrolled_k
            a_from += unrolled_k * a_k_bytes
            b_from += unrolled_k * b_line_bytes
        return sums

    return Multiply(begin, add, locate)


def make_locate_warp(config: Any) -> Callable[..., Any]:
    """A device function: (thread) -> row and column of the first element of its warp's tile."""
    from numba import int32

    warp_m, warp_n, warps_n = config.warp_m, config.warp_n, config.tile_n // config.warp_n

    @device
    def locate(thread):
        row: int32 = thread // 32 // warps_n * warp_m
        col: int32 = thread // 32 % warps_n * warp_n
        return row, col

    return locate


def make_float64_multiply(config: Any, a_place: TileBytes, b_place: TileBytes) -> Multiply:
    """Warp tiles of float64 on tensor cores.

    The operands have changed sides: out.T = b.T @ a.T. A lane reads two neighbours along k, or of b
    two along n, at a time.
    """
    from numba import float64, int32

    from dxgemm.handwritten.parts.intrinsics import load_shared, load_vectors, zeros
    from dxgemm.handwritten.parts.mma import mma_tile

    mmas_m, mmas_n = config.warp_m // MMA_COLS, config.warp_n // MMA_ROWS
    locate_warp, part_k = make_locate_warp(config), config.tile_k // config.parts
    a_row_bytes, a_k_bytes = a_place
    b_col_bytes, b_k_bytes = b_place
    a_is_along_k, b_is_along_k = a_k_bytes < a_row_bytes, b_k_bytes < b_col_bytes
    b_line_bytes = max(b_place)
    a_mma_bytes, b_mma_bytes = MMA_COLS * a_row_bytes, MMA_ROWS * b_col_bytes

    @device
    def locate(thread):
        row, col = locate_warp(thread)
        return int32(row + 2 * (thread % 4)), int32(col + 2 * (thread % 32 // 4))

    @device
    def begin(a_smem, b_smem, thread):
        return zeros(float64, mmas_m * mmas_n * 4), (a_smem, b_smem, thread)

    @device
    def add(sums, where, part, k_left):
        a_smem, b_smem, thread = where
        row, col = locate_warp(thread)
        group: int32 = thread % 32 // 4
        member: int32 = thread % 4
        a_from: int32 = a_smem + (row + group) * a_row_bytes + 2 * member * a_k_bytes
        b_from: int32 = b_smem + (col + 2 * group) * b_col_bytes + 2 * member * b_k_bytes
        a_from += part * part_k * a_k_bytes
        b_from += part * part_k * b_k_bytes
        for kk in static_range(0, part_k, MMA_K):
            b_frag, a_frag = (), ()
            for i in static_range(mmas_n):
                first = load_shared(float64, 2, b_from, kk * b_k_bytes + i * b_mma_bytes)
                second = load_shared(
                    float64, 2, b_from, kk * b_k_bytes + i * b_mma_bytes + b_line_bytes
                )
                if b_is_along_k:  # two k of one column, then of the next
                    first, second = (first[0], second[0]), (first[1], second[1])
                b_frag = b_frag + first + second
            for j in static_range(mmas_m):
                if a_is_along_k:
                    a_frag = a_frag + load_shared(
                        float64, 2, a_from, kk * a_k_bytes + j * a_mma_bytes
                    )
                else:
                    a_frag = a_frag + load_vectors(
                        float64, 1, a_from, kk * a_k_bytes + j * a_mma_bytes, a_k_bytes, 2
                    )
            sums = mma_tile("float64", sums, b_frag, a_frag)
        return sums

    return Multiply(begin, add, locate)


def make_half_multiply(config: Any, dtype: str, a_lines: Lines, b_lines: Lines) -> Multiply:
    """Warp tiles of half precision on tensor cores, read by `ldmatrix`."""
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import zeros
    from dxgemm.handwritten.parts.line_intrinsics import load_matrices
    from dxgemm.handwritten.parts.mma import mma_tile

    tile_k, locate = config.tile_k, make_locate_warp(config)
    reads_a, reads_b = config.warp_m // MMA, config.warp_n // MMA
    a_is_across, b_is_across = not a_lines.is_along_k, not b_lines.is_along_k
    a_lane = make_lane_place(True, a_is_across, CHUNK_ITEMS)
    b_lane = make_lane_place(False, b_is_across, CHUNK_ITEMS)
    a_x_bytes, a_k_bytes = a_lines.place
    b_x_bytes, b_k_bytes = b_lines.place

    @device
    def begin(a_smem, b_smem, thread):
        row, col = locate(thread)
        a_x, a_k = a_lane(int32(thread % 32))
        b_x, b_k = b_lane(int32(thread % 32))
        a_from: int32 = a_smem + (row + a_x) * a_x_bytes + a_k * a_k_bytes
        b_from: int32 = b_smem + (col + b_x) * b_x_bytes + b_k * b_k_bytes
        return zeros(float32, reads_a * reads_b * 8), (a_from, b_from)

    @device
    def add(sums, where, part, k_left):
        a_from: int32 = where[0]
        b_from: int32 = where[1]
        for _ in range(int32((min(k_left, tile_k) + MMA - 1) // MMA)):
            a_frag, b_frag = (), ()
            for i in static_range(reads_a):
                a_frag = a_frag + load_matrices(a_is_across, a_from, i * MMA * a_x_bytes)
            for j in static_range(reads_b):
                b_frag = b_frag + load_matrices(b_is_across, b_from, j * MMA * b_x_bytes)
            sums = mma_tile(dtype, sums, a_frag, b_frag)
            a_from += MMA * a_k_bytes
            b_from += MMA * b_k_bytes
        return sums

    return Multiply(begin, add, locate)
