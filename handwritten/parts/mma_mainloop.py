"""The `load` and the `multiply` of the frame `ring` over `mma_operands`, by `mma.sync` of float64.

Either operand of the product is the instruction's left one. What else the main loop does stands
between two instructions, as in the kernel `tensor_core`, where this order is explained: a burst of
it would leave the tensor cores idle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.mma_operands import (
    MMA_COLS,
    MMA_K,
    MMA_ROWS,
    OperandTile,
    make_operand_tile,
)
from dxgemm.handwritten.parts.unroll import device, static_range


class Span(NamedTuple):
    """The constants of a thread's copies of one operand; addresses and steps are in bytes.

    Fields: its first element in the first stage; steps in global memory to its next copy and to
    the next stage; x left, and the first element's k in a stage.
    """

    target: Any
    pass_step: Any
    stage_step: Any
    x_left: Any
    k: Any


class Side(NamedTuple):
    """One operand of the instruction.

    Attributes:
        tile: its `OperandTile`.
        begin: device function: (target of the tile, operand, first x, x count, k, thread) -> its
            `Span`, and the address that the thread copies from first.
        start, start_edge: device functions: (span, source, stage, k left) starts the copies to the
            stage at an offset; without predicates if it is in bounds.
    """

    tile: OperandTile
    begin: Callable[..., Any]
    start: Callable[..., None]
    start_edge: Callable[..., None]


def make_side(
    side: str, mode: str, extent: int, warp_extent: int, config: Any, dtype: str
) -> Side:  # fmt: skip
    """The copies of one operand, whose index other than k is its row: see `make_operand_tile`."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import global_address

    tile_k, item_bytes = config.tile_k, np.dtype(dtype).itemsize
    tile = make_operand_tile(side, mode, extent, warp_extent, tile_k, config.threads, dtype)
    first, place, start_copies, start_copies_edge, *_ = tile
    pass_step, along_k = tile.pass_step * item_bytes, tile.passes_along_k

    @device
    def begin(smem, operand, row, rows, k, thread):
        x, own_k = first(thread)
        source = global_address(operand.data) + item_bytes * (
            (row + x) * operand.row + own_k * operand.col
        )
        step = pass_step * (operand.col if along_k else operand.row)
        x_left: int32 = min(rows - row, extent) - x
        target: int32 = smem + place(x, own_k)
        return Span(target, step, tile_k * item_bytes * operand.col, x_left, own_k), source

    @device
    def start(span, source, stage):
        start_copies(int32(span.target + stage), source, span.pass_step)

    @device
    def start_edge(span, source, stage, depth):
        start_copies_edge(
            int32(span.target + stage), source, span.pass_step, span.x_left,
            int32(depth - span.k),
        )  # fmt: skip

    return Side(tile, begin, start, start_edge)


class Stages(NamedTuple):
    """The stages in shared memory, by bytes.

    Attributes:
        left, right: sides of the instruction.
        a_is_left: True if a is the left operand, else b is.
        copies_left, copies_right: False for an a that is kept.
        left_start, right_start: where the tiles of an operand begin.
        stage_bytes: of the operands that are copied.
        kept_bytes: of a tile of an a that is kept; 0 if it is not.
    """

    left: Side
    right: Side
    a_is_left: bool
    copies_left: bool
    copies_right: bool
    left_start: int
    right_start: int
    stage_bytes: int
    kept_bytes: int


def make_stages(
    config: Any, dtype: str, a_is_left: bool, modes: tuple[str, str], kept: int | None
) -> Stages:
    """Lay out the stages.

    Args:
        config: a config of `tensor_core`.
        modes: of copying the left and the right operand, see `mma_operands`.
        kept: offset in shared memory of the tiles of an a that is not copied; None if it is.
    """
    left = make_side("left", modes[0], config.tile_left, config.warp_left, config, dtype)
    right = make_side("right", modes[1], config.tile_right, config.warp_right, config, dtype)
    left_bytes, right_bytes = left.tile.tile_bytes, right.tile.tile_bytes
    if kept is None:
        places = True, True, 0, left_bytes, left_bytes + right_bytes, 0
    elif a_is_left:
        places = False, True, kept, 0, right_bytes, left_bytes
    else:
        places = True, False, 0, kept, left_bytes, right_bytes
    return Stages(left, right, a_is_left, *places)


def make_fill(config: Any, stages: Stages) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The load of the frame `ring`, and a device function that starts the copies to a stage.

    That takes (spans, sources, stage, stages left, True for predicates, k of the last one) and
    returns the sources of the next stage.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import commit_copies
    from dxgemm.handwritten.parts.unroll import Operand

    left_side, right_side, a_is_left, copies_left, copies_right, left_start, right_start, *_ = (
        stages
    )
    begin_left, start_left, start_left_edge = left_side[1:]
    begin_right, start_right, start_right_edge = right_side[1:]
    tile_left, tile_right, tile_k = config.tile_left, config.tile_right, config.tile_k
    ahead, stage_bytes = config.stages - 1, stages.stage_bytes

    @device
    def start(spans, sources, stage, left, is_edge, last_depth):
        """Start the copies of a stage; return the sources of the next one."""
        if not is_edge:
            if copies_left:
                start_left(spans[0], sources[0], stage)
            if copies_right:
                start_right(spans[1], sources[1], stage)
        elif left > 0:
            depth: int32 = last_depth if left == 1 else tile_k
            if copies_left:
                start_left_edge(spans[0], sources[0], stage, depth)
            if copies_right:
                start_right_edge(spans[1], sources[1], stage, depth)
        return sources[0] + spans[0].stage_step, sources[1] + spans[1].stage_step

    @device
    def fill(smem, thread, work, tile, a, b, m, n, k):
        columns = Operand(b.data, b.batch, b.col, b.row)
        if a_is_left:
            rows, row, left, cols, col, right = m, tile.row, a, n, tile.col, columns
        else:
            rows, row, left, cols, col, right = n, tile.col, columns, m, tile.row, a
        left_span, left_source = begin_left(int32(smem + left_start), left, row, rows, k, thread)
        right_span, right_source = begin_right(
            int32(smem + right_start), right, col, cols, k, thread
        )
        to_copy: int32 = (k + tile_k - 1) // tile_k
        last_depth: int32 = k - (to_copy - 1) * tile_k
        is_inside = row + tile_left <= rows and col + tile_right <= cols
        edges: int32 = (0 if last_depth == tile_k else 1) if is_inside else to_copy
        spans, sources = (left_span, right_span), (left_source, right_source)
        for stage in range(ahead):
            is_edge = to_copy <= edges
            at: int32 = stage * stage_bytes
            sources = start(spans, sources, at, to_copy, is_edge, last_depth)
            commit_copies()
            to_copy -= 1
        return spans, sources, to_copy, edges, last_depth

    return fill, start


def make_multiply(
    config: Any, dtype: str, stages: Stages, start: Callable[..., Any]
) -> Callable[..., Any]:
    """The multiply of the frame `ring`; `start` is that of `make_fill`."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import commit_copies, cuda, wait_copies, zeros
    from dxgemm.handwritten.parts.mma import mma_tile

    left, right, _, copies_left, copies_right, left_start, right_start, stage_bytes, kept_bytes = (
        stages
    )
    start_left, start_right = left.start, right.start
    left_place, (load_left, left_xor, left_add) = left.tile.place, left.tile[4:7]
    right_place, (load_right, right_xor, right_add) = right.tile.place, right.tile[4:7]
    scalar, pending = np.dtype(dtype).type, config.stages - 2
    ring_bytes, steps = config.stages * stage_bytes, config.tile_k // MMA_K
    warp_left, warp_right = config.warp_left, config.warp_right
    warps_right = config.tile_right // warp_right
    left_mmas, right_mmas = warp_left // MMA_ROWS, warp_right // MMA_COLS

    @device
    def multiply(smem, thread, filled, k_tiles):
        spans, sources, to_copy, edges, last_depth = filled
        warp, group, member = int32(thread // 32), int32(thread % 32 // 4), int32(thread % 4)
        row: int32 = warp // warps_right * warp_left + group * 2
        col: int32 = warp % warps_right * warp_right + group
        left_base: int32 = smem + left_start + left_place(row, member * 2)
        right_base: int32 = smem + right_start + right_place(col, member * 2)
        write: int32 = ring_bytes - stage_bytes
        read: int32 = 0
        kept_read: int32 = 0
        kept_end: int32 = k_tiles * kept_bytes
        wait_copies(pending)
        cuda.syncthreads()
        left_next, right_next = (), ()
        for i in static_range(left_mmas):
            left_next = left_next + load_left(int32(left_base ^ left_xor[0][i]), left_add[0][i])
        for j in static_range(right_mmas):
            right_next = right_next + load_right(
                int32(right_base ^ right_xor[0][j]), right_add[0][j]
            )
        acc = zeros(scalar, left_mmas * right_mmas * 4)
        exact: int32 = max(to_copy - edges, 0)
        for phase in static_range(2):
            for _ in range(exact if phase == 0 else int32(k_tiles - exact)):
                for step in static_range(steps):
                    left_frag, right_frag = left_next, right_next
                    left_next, right_next, sums = (), (), ()
                    if step == steps - 1:
                        read += stage_bytes
                        if read == ring_bytes:
                            read = 0
                        if kept_bytes:
                            kept_read += kept_bytes
                            if kept_read == kept_end:
                                kept_read = 0
                    for i in static_range(left_mmas):
                        sums = sums + mma_tile(
                            dtype, acc[i * right_mmas * 4 : (i + 1) * right_mmas * 4],
                            left_frag[4 * i : 4 * i + 4], right_frag,
                        )  # fmt: skip
                        # Between the instructions that keep the tensor cores busy:
                        if step == 0 and phase == 0:
                            if i == 0 and copies_left:
                                start_left(spans[0], sources[0], write)
                            if i == left_mmas // 2 and copies_right:
                                start_right(spans[1], sources[1], write)
                        if step == steps - 1 and i == 0:
                            wait_copies(pending)
                            cuda.syncthreads()
                        if i == 0:
                            for j in static_range(right_mmas):
                                right_next = right_next + load_right(
                                    int32(right_base ^ right_xor[(step + 1) % steps][j]),
                                    int32((read if copies_right else kept_read)
                                          + right_add[(step + 1) % steps][j]),
                                )  # fmt: skip
                        left_next = left_next + load_left(
                            int32(left_base ^ left_xor[(step + 1) % steps][i]),
                            int32((read if copies_left else kept_read)
                                  + left_add[(step + 1) % steps][i]),
                        )  # fmt: skip
                    acc = sums
                    if step == 0:  # into the stage that all had read before the last barrier
                        if phase == 0:
                            sources = (
                                sources[0] + spans[0].stage_step, sources[1] + spans[1].stage_step
                            )  # fmt: skip
                        else:
                            sources = start(spans, sources, write, to_copy, True, last_depth)
                        to_copy = int32(to_copy - 1)
                        commit_copies()
                        write += stage_bytes
                        if write == ring_bytes:
                            write = 0
        return acc

    return multiply
