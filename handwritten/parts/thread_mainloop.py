"""The `load` and the `multiply` of the frame `ring` for thread tiles, by elements of any layout.

Of a stage, a row of a's tile and one of b's are multiplied at a time; see `async_tiles`. Stages
that are inside the operands are copied without predicates. They come first: the main loop is there
twice, once for them, in one straight line of code, and once for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.async_tiles import make_tile_copy
from dxgemm.handwritten.parts.configs import LANES_M, LANES_N
from dxgemm.handwritten.parts.fragment import make_lane_corner
from dxgemm.handwritten.parts.operands import VECTOR_BYTES

KEPT = "kept"  # mode of an a whose tiles are in shared memory already, all k of it


class Held(NamedTuple):
    """The constants of all copies of a thread.

    Fields: the states of a and b (see `TileCopy`); bytes from a tile of them to the next; how many
    stages, at the end, need predicates; k of the last stage.
    """

    a: Any
    b: Any
    a_step: Any
    b_step: Any
    edges: Any
    last_depth: Any


class Load(NamedTuple):
    """Device functions of all threads, which copy stage after stage.

    A thread's next copies are the addresses in a and b that it copies from, and the stages left.

    Attributes:
        fill: (smem, thread, work, tile, a, b, m, n, k) -> what is `Held`, and the next copies, once
            all stages but one are in flight.
        start: (held, copies, stage) -> the next copies, once these to the stage at an offset have
            started; that stage is inside the operands.
        start_edge: the same for any stage, also beyond the last.
    """

    fill: Callable[..., Any]
    start: Callable[..., Any]
    start_edge: Callable[..., Any]


def make_load(config: Any, dtype: str, a_mode: str, b_mode: str) -> Load:
    """Copies of elements or of 16 bytes, by the modes of `async_tiles`; no copies of a `KEPT` a."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import commit_copies, device_function, global_address
    from dxgemm.handwritten.parts.unroll import unroll

    item_size, threads, stages = np.dtype(dtype).itemsize, config.threads, config.stages
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    a_row_bytes, b_row_bytes = config.a_row_bytes(dtype), config.b_row_bytes(dtype)
    is_kept, tile_k_bytes = a_mode == KEPT, tile_k * item_size
    a_bytes = 0 if is_kept else tile_k * a_row_bytes
    stage_bytes = a_bytes + tile_k * b_row_bytes
    a_begin, a_copy, a_copy_edge = (None,) * 3 if is_kept else make_tile_copy(
        a_mode, tile_m, tile_k, a_row_bytes, threads, dtype
    )  # fmt: skip
    b_begin, b_copy, b_copy_edge = make_tile_copy(
        b_mode, tile_n, tile_k, b_row_bytes, threads, dtype
    )

    def after(held, copies):
        commit_copies()
        return copies[0] + held.a_step, copies[1] + held.b_step, int32(copies[2] - 1)

    after = device_function(after)

    def start(held, copies, stage):
        if not is_kept:
            a_copy(held.a, stage, copies[0])
        b_copy(held.b, stage, copies[1])
        return after(held, copies)

    def start_edge(held, copies, stage):
        a_source, b_source, left = copies
        if left > 0:
            depth: int32 = held.last_depth if left == 1 else tile_k
            if not is_kept:
                a_copy_edge(held.a, stage, a_source, depth)
            b_copy_edge(held.b, stage, b_source, depth)
        return after(held, copies)

    start, start_edge = device_function(unroll(start)), device_function(unroll(start_edge))

    def fill(smem, thread, work, tile, a, b, m, n, k):
        b_smem: int32 = smem + a_bytes
        if is_kept:
            a_held, a_source = (), int64(0)
        else:
            a_held, a_source = a_begin(
                thread, smem,
                global_address(a.data) + item_size
                * (int64(tile.a_matrix) * a.batch + tile.row * a.row + tile.first_k * a.col),
                m - tile.row, a.row * item_size, a.col * item_size,
            )  # fmt: skip
        b_held, b_source = b_begin(
            thread, b_smem,
            global_address(b.data) + item_size
            * (int64(tile.b_matrix) * b.batch + tile.col * b.col + tile.first_k * b.row),
            n - tile.col, b.col * item_size, b.row * item_size,
        )  # fmt: skip
        left: int32 = (tile.end_k - tile.first_k + tile_k - 1) // tile_k
        last_depth: int32 = tile.end_k - tile.first_k - (left - 1) * tile_k
        is_inside = tile.row + tile_m <= m and tile.col + tile_n <= n
        edges: int32 = (0 if last_depth == tile_k else 1) if is_inside else left
        held = Held(a_held, b_held, a.col * tile_k_bytes, b.row * tile_k_bytes, edges, last_depth)
        copies = a_source, b_source, left
        for stage in range(stages - 1):
            if copies[2] > edges:
                copies = start(held, copies, int32(stage * stage_bytes))
            else:
                copies = start_edge(held, copies, int32(stage * stage_bytes))
        return held, copies

    return Load(device_function(unroll(fill)), start, start_edge)


def make_multiply(
    config: Any, dtype: str, row_width: int, load: Load, add: Callable[..., Any], parts: int,
    kept: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """The fragments of the next k are read while this one's are multiplied, across stages too.

    Args:
        row_width: neighbouring rows of a thread, which it reads at once.
        add: device function: (sums, a fragment, b fragment) -> sums.
        parts: registers of an element: 2 if it is complex.
        kept: offset in shared memory of the tiles of a `KEPT` a; None for an a that is copied.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import (
        cuda,
        device_function,
        load_vectors,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    item_size, stages, tile_k = np.dtype(dtype).itemsize, config.stages, config.tile_k
    real, width = np.zeros(0, dtype).real.dtype.type, VECTOR_BYTES // item_size
    a_row_bytes, b_row_bytes = config.a_row_bytes(dtype), config.b_row_bytes(dtype)
    is_kept, a_bytes = kept is not None, tile_k * a_row_bytes
    b_start = 0 if is_kept else a_bytes
    stage_bytes = b_start + tile_k * b_row_bytes
    ring_bytes = stages * stage_bytes
    row_vectors, col_vectors = config.thread_m // row_width, config.thread_n // width
    a_step, b_step = LANES_M * row_width * item_size, LANES_N * width * item_size
    a_width, b_width = row_width * parts, width * parts
    count, corner = (
        config.thread_m * config.thread_n * parts,
        make_lane_corner(config, row_width, width),
    )
    start, start_edge = load.start, load.start_edge

    def multiply(smem, thread, filled, k_tiles):
        row, col = corner(thread)
        a_address: int32 = smem + (kept or 0) + row * item_size
        b_address: int32 = smem + b_start + col * item_size
        write_stage: int32 = ring_bytes - stage_bytes
        read_stage: int32 = 0
        if is_kept:
            a_stage: int32 = 0
            a_end: int32 = k_tiles * a_bytes
        wait_copies(stages - 2)
        cuda.syncthreads()
        sums = zeros(real, count)
        a_frag = load_vectors(real, a_width, a_address, 0, a_step, row_vectors)
        b_frag = load_vectors(real, b_width, b_address, 0, b_step, col_vectors)
        held, copies = filled
        exact: int32 = max(copies[2] - held.edges, 0)
        for phase in static_range(2):
            turns: int32 = exact if phase == 0 else k_tiles - exact
            for _ in range(turns):
                for kk in static_range(tile_k):
                    if kk == tile_k - 1:
                        read_stage += stage_bytes
                        if read_stage == ring_bytes:
                            read_stage = 0
                        if is_kept:  # all of its tiles follow one another
                            a_stage += a_bytes
                            if a_stage == a_end:
                                a_stage = 0
                        wait_copies(stages - 2)
                        cuda.syncthreads()
                    if kk == 0 or kk == tile_k - 1:
                        a_row: int32 = a_address + (a_stage if is_kept else read_stage)
                        b_row: int32 = b_address + read_stage
                    # The k after the last is the next stage's first.
                    a_offset = (kk + 1) % tile_k * a_row_bytes
                    b_offset = (kk + 1) % tile_k * b_row_bytes
                    a_next = load_vectors(real, a_width, a_row, a_offset, a_step, row_vectors)
                    b_next = load_vectors(real, b_width, b_row, b_offset, b_step, col_vectors)
                    if kk == 0:  # every thread has left the stage that this overwrites
                        if phase == 0:
                            copies = start(held, copies, write_stage)
                        else:
                            copies = start_edge(held, copies, write_stage)
                        write_stage += stage_bytes
                        if write_stage == ring_bytes:
                            write_stage = 0
                    sums = add(sums, a_frag, b_frag)
                    a_frag, b_frag = a_next, b_next
        return sums

    return device_function(unroll(multiply))
