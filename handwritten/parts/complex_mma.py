"""The tiles, the `multiply` and the `store` of `complex_tensor_core` in the frame `ring`.

An operand's tile is stored in lines along its contiguous dimension, with elements permuted by XOR
with the number of the line: copies and reads find their elements in different banks. For that, rows
of an instruction are 0, 4, 1, 5, 2, 6, 3, 7 of eight, and so are columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.complex_store import ThreadTile, make_store
from dxgemm.handwritten.parts.fragment import make_warp_corner
from dxgemm.handwritten.parts.mma_operands import BANK_BYTES
from dxgemm.handwritten.parts.ring import Load
from dxgemm.handwritten.parts.store import Store

ITEM_BYTES = 16  # of a complex element, and of the widest access
MMA_ROWS, MMA_COLS, MMA_K = 8, 8, 4  # of an instruction, in complex elements
PERMUTED = 8  # elements that fill all banks of shared memory


def smem_offset(line: Any, place: Any, line_bytes: int) -> Any:
    """Offset of an element in its tile, in bytes, by its line and its index in it."""
    return line * line_bytes + (place ^ line % PERMUTED) * ITEM_BYTES


class OperandTile(NamedTuple):
    """Device functions for the tiles of one operand. Its index other than k is called x.

    Attributes:
        is_async, first, place, start, load, put: as of a `LineTile`; nothing goes through
            registers.
        xor, add: by step along k, the number that an address is XORed with, and the one added.
        mma_bytes: from the fragment of an instruction to the next one along x.
    """

    is_async: bool
    first: Callable[..., Any]
    place: Callable[..., Any]
    start: Callable[..., Any]
    load: None
    put: None
    xor: tuple[int, ...]
    add: tuple[int, ...]
    mma_bytes: int


def make_operand_tile(is_along_k: bool, extent: int, tile_k: int, threads: int) -> OperandTile:
    """The functions for one operand, of whose tile lines run along k or along x."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import copy_async_part, device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    places, lines = (tile_k, extent) if is_along_k else (extent, tile_k)
    line_bytes = places * ITEM_BYTES
    pass_lines = threads // places
    passes = lines // pass_lines
    pass_offsets = [smem_offset(p * pass_lines, 0, line_bytes) for p in range(passes)]
    step_k = range(0, tile_k, MMA_K)
    step_offsets = [smem_offset(*((0, k) if is_along_k else (k, 0)), line_bytes) for k in step_k]
    # Offsets of a line and of an element in it are XORed in the 128 bytes of all banks, else added.
    pass_xor, pass_add, step_xor, step_add = (
        tuple(part(offset) for offset in offsets)
        for offsets in (pass_offsets, step_offsets)
        for part in (
            lambda offset: offset % BANK_BYTES,
            lambda offset: offset - offset % BANK_BYTES,
        )
    )

    def first(thread):
        in_line, line = int32(thread % places), int32(thread // places)
        if is_along_k:
            return line, in_line
        return in_line, line

    offset = device_function(smem_offset)

    def place(x, k):
        if is_along_k:
            return offset(x, k, line_bytes)
        return offset(k, x, line_bytes)

    def start(target, source, x_step, k_step, x_left, k_left):
        in_line_left, line_left = (k_left, x_left) if is_along_k else (x_left, k_left)
        line_step = x_step if is_along_k else k_step
        for p in static_range(passes):
            is_inside = in_line_left > 0 and line_left > p * pass_lines
            copy_async_part(
                ITEM_BYTES, int32(target ^ pass_xor[p]), pass_add[p],
                source + p * pass_lines * line_step, int32(ITEM_BYTES * is_inside),
            )  # fmt: skip

    mma_x = (MMA_ROWS, 0) if is_along_k else (0, MMA_ROWS)
    return OperandTile(
        True, device_function(unroll(first)), device_function(unroll(place)),
        device_function(unroll(start)), None, None, step_xor, step_add,
        smem_offset(*mma_x, line_bytes),
    )  # fmt: skip


def make_multiply(
    config: Any, tiles: tuple[OperandTile, OperandTile], load: Load, conjugates: str
) -> Callable[..., Any]:
    """Each step has the next fragments read between its products, across the border of stages too.

    Args:
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        cuda,
        device_function,
        load_shared,
        load_vectors,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.mma import mma_tile, negated
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    _, _, a_place, *_, a_xor, a_add, a_mma = tiles[0]
    _, _, b_place, *_, b_xor, b_add, b_mma = tiles[1]
    tile_k, steps = config.tile_k, config.tile_k // MMA_K
    mmas_m, mmas_n = config.warp_m // MMA_ROWS, config.warp_n // MMA_COLS
    real, row_sums, stages, stage_bytes = np.float64, 4 * mmas_n, config.stages, config.stage_bytes
    b_start, ring_bytes = config.tile_m * tile_k * ITEM_BYTES, stages * stage_bytes
    a_is_conjugate, b_is_conjugate = "a" in conjugates, "b" in conjugates
    corner, (start_a, start_b) = make_warp_corner(config), load.start

    def load_a(address):
        re, im = load_shared(real, 2, address, 0)
        minus_im = negated(im)
        if a_is_conjugate:
            im, minus_im = minus_im, im
        return (re, im, im, negated(re)) if b_is_conjugate else (re, im, minus_im, re)

    load_a = device_function(unroll(load_a))

    def multiply(smem, thread, filled, k_tiles):
        (a_span, b_span), (a_copies, b_copies), k_left = filled
        row, col = corner(thread)
        x: int32 = thread // 4 % 2 * 4 + thread // 8 % 4
        k: int32 = thread % 4
        a_base: int32 = smem + a_place(int32(row + x), k)
        b_base: int32 = smem + b_start + b_place(int32(col + x), k)
        write: int32 = ring_bytes - stage_bytes
        read: int32 = 0
        wait_copies(stages - 2)
        cuda.syncthreads()
        a_next = ()
        for i in static_range(mmas_m):
            a_next = a_next + load_a(int32(a_base + i * a_mma))
        b_next = load_vectors(real, 2, b_base, 0, b_mma, mmas_n)
        sums = zeros(real, mmas_m * row_sums)
        for _ in range(k_tiles):
            for step in static_range(steps):
                a_frag, b_frag = a_next, b_next
                a_next, added = (), ()
                if step == steps - 1:
                    read += stage_bytes
                    if read == ring_bytes:
                        read = 0
                for i in static_range(mmas_m):
                    added = added + mma_tile(
                        "float64", sums[i * row_sums : (i + 1) * row_sums],
                        a_frag[4 * i : 4 * i + 4], b_frag,
                    )  # fmt: skip
                    # Between the instructions that keep the tensor cores busy. Copies go into the
                    # stage that all had read before the last barrier.
                    if step == 0 and i == 0:
                        a_copies = start_a(a_span, a_copies, write, k_left)
                    if step == 0 and i == mmas_m // 2:
                        b_copies = start_b(b_span, b_copies, write, k_left)
                        k_left = int32(k_left - tile_k)
                        commit_copies()
                        write += stage_bytes
                        if write == ring_bytes:
                            write = 0
                    if i == 0:
                        if step == steps - 1:
                            wait_copies(stages - 2)
                            cuda.syncthreads()
                        a_from: int32 = (a_base ^ a_xor[(step + 1) % steps]) + read
                        b_from: int32 = (b_base ^ b_xor[(step + 1) % steps]) + read
                        b_next = load_vectors(
                            real, 2, b_from, b_add[(step + 1) % steps], b_mma, mmas_n
                        )
                    a_next = a_next + load_a(
                        int32(a_from + (a_add[(step + 1) % steps] + i * a_mma))
                    )
                sums = added
        return sums

    return device_function(unroll(multiply))


def make_result(config: Any, dtype: str, epilogue: Any) -> Store:
    """The sums of a lane, which are eight rows and four columns apart."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    mmas_m, mmas_n = config.warp_m // MMA_ROWS, config.warp_n // MMA_COLS
    mmas, warp_corner = mmas_m * mmas_n, make_warp_corner(config)

    def corner(thread):
        row, col = warp_corner(thread)
        x: int32 = thread // 4 % 2 * 4 + thread // 8 % 4
        return int32(row + x), int32(col + thread % 4)

    def in_rows(acc):
        """Real and imaginary part of each sum, row by row."""
        sums = ()
        for mma in static_range(mmas):
            re_0, re_1, im_0, im_1 = acc[4 * mma : 4 * mma + 4]
            sums = sums + (re_0, im_0, re_1, im_1)
        return sums

    return make_store(
        ThreadTile(mmas_m, 2 * mmas_n, row_group=8, col_group=4, row_width=1),
        device_function(unroll(corner)), dtype, epilogue, config.threads, config.smem_bytes(dtype),
        split_k=config.split_k, in_rows=device_function(unroll(in_rows)),
    )  # fmt: skip
