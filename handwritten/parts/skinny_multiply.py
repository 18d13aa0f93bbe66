"""Consumers of the ring of the frame `skinny`: a warpgroup multiplies by wgmma or multiply-adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.operands import BYTES
from dxgemm.handwritten.parts.skinny_layouts import SUMS_ROW, TILE, Config
from dxgemm.handwritten.parts.wgmma_mainloop import KINDS
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, STEPS, SWIZZLE_ROWS, make_after

ROWS = 4  # rows of the left factor per thread; also k per vector
ROW_GROUPS = TILE // ROWS
COLS = 8  # columns that are multiplied together


class Consumer(NamedTuple):
    """Device functions of the warpgroup, of 128 threads.

    Attributes:
        begin: () -> a thread's sums, all zero.
        consume: (sums, smem, full, empty, thread, stages left) -> sums after all these stages.
        put: (sums, smem, thread): write the sums to shared memory, [partial tile][column][row].
        arrivals: arrivals that free a stage.
    """

    begin: Callable[..., Any]
    consume: Callable[..., Any]
    put: Callable[..., None]
    arrivals: int


def make_wgmma_consumer(config: Config, dtype: str, x_across: bool, y_across: bool) -> Consumer:
    """Make the device functions of a warpgroup that multiplies by wgmma."""
    from numba import float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function, store_shared, zeros
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind, scalar = KINDS[dtype], int32 if dtype in BYTES else float32
    panels, stage_bytes, few = config.panels, config.stage_bytes, config.few
    sums_row = SUMS_ROW
    x_panel, y_panel = TILE * ROW_BYTES // 16, few * ROW_BYTES // 16  # units of descriptors
    x_step = (TILE * ROW_BYTES if x_across else ROW_BYTES) // STEPS // 16
    y_step = (few * ROW_BYTES if y_across else ROW_BYTES) // STEPS // 16
    y_row = 2 * few if y_across else ROW_BYTES
    x_low, x_high = hopper.descriptor_halves(TILE * ROW_BYTES, SWIZZLE_ROWS * ROW_BYTES)
    y_low, y_high = hopper.descriptor_halves(SWIZZLE_ROWS * y_row, SWIZZLE_ROWS * y_row, y_row)
    after = make_after(config.stages)

    def begin():
        return zeros(scalar, few // 2)

    def consume(sums, smem, full, empty, thread, left):
        stage: int32 = 0
        parity: int32 = 0
        previous: int32 = -1
        while left > 0:
            hopper.wait_barrier(int32(full + 8 * stage), parity)
            # In a cluster, the bits above those of an address hold the block's rank.
            place: int32 = (smem + stage * stage_bytes) // 16 & 0x3FFF
            x_desc: int32 = x_low + place
            y_desc: int32 = y_low + place + panels * x_panel
            hopper.begin_wgmma()
            for panel in static_range(panels):
                for step in static_range(STEPS):
                    x_at: int32 = x_desc + (panel * x_panel + step * x_step)
                    y_at: int32 = y_desc + (panel * y_panel + step * y_step)
                    sums = hopper.wgmma_of_two(
                        kind, x_high, y_high, sums, x_at, y_at, x_across, y_across
                    )
            hopper.commit_wgmma()
            hopper.wait_wgmma(1)  # the previous stage is done, this one is still running
            if previous >= 0 and thread == 0:
                hopper.arrive(int32(empty + 8 * previous))
            previous = stage
            left = int32(left - 1)
            stage, parity = after(stage, parity)
        return hopper.wait_wgmma_of(0, sums)

    def put(sums, smem, thread):
        row: int32 = thread // 32 * 16 + thread % 32 // 4
        at: int32 = smem + row * 4 + thread % 4 * 2 * sums_row
        for j in static_range(few // 8):
            for column in static_range(2):
                upper, lower = sums[4 * j + column], sums[4 * j + 2 + column]
                store_shared(at, (8 * j + column) * sums_row, (upper,))
                store_shared(at, (8 * j + column) * sums_row + 8 * 4, (lower,))

    begin, consume, put = (device_function(unroll(f)) for f in (begin, consume, put))
    return Consumer(begin, consume, put, arrivals=1)


def make_read_panel(
    first: int, count: int, spacing: int, is_across: bool, row_items: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make two device functions: (row group, k group) -> offset; (panel + offset) -> elements.

    Element kk * count + i of a thread is that of its row i, at k = kk. TMA's swizzle stores vector
    v of a row r of 128 bytes at slot v ^ r % 8; of shorter rows, of `row_items` elements, at slot
    v ^ r * row_items // 32 % (row_items / 4).

    Args:
        first, count: the rows of a thread, which are columns of the right factor.
        spacing: from a row to the next, K-major; MN-major, they are neighbours.
        is_across: True for an MN-major operand.
        row_items: elements of a row of shared memory, MN-major.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, load_shared
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    row_bytes = 4 * row_items
    turn = row_items // 8  # xor between the slots of a vector in rows that are four apart
    half_bytes = TILE // 2 * ROW_BYTES  # a panel of 32 rows of the operand, MN-major

    def place(row_group, k_group):
        if is_across:
            vector: int32 = row_group % 8 ^ k_group % 2 * turn
            return int32(row_group // 8 * half_bytes + k_group * 4 * row_bytes + vector * 16)
        vector = k_group ^ row_group % 8
        return int32(row_group * ROW_BYTES + vector * 16)

    def read(at):
        values, frag = (), ()
        if is_across:
            for kk in static_range(4):
                for part in static_range(count // 4):
                    vector = kk * turn // 4 ^ first // 4 + part
                    frag = frag + load_shared(float32, 4, int32(at ^ vector * 16), kk * row_bytes)
            return frag
        for i in static_range(count):
            slot = i * spacing % 8
            values = values + load_shared(
                float32, 4, int32(at ^ slot * 16), (first + i * spacing) * ROW_BYTES
            )
        for kk in static_range(4):
            for i in static_range(count):
                frag = frag + (values[4 * i + kk],)
        return frag

    return device_function(unroll(place)), device_function(unroll(read))


def make_fma_consumer(config: Config, dtype: str, x_across: bool, y_across: bool) -> Consumer:
    """Make the device functions of a warpgroup that multiplies by fused multiply-adds."""
    from numba import cuda, float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        outer_product,
        store_shared,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    few, panels, stage_bytes = config.few, config.panels, config.stage_bytes
    x_panel, y_panel = TILE * ROW_BYTES, few * ROW_BYTES
    sums_row, sums_bytes = SUMS_ROW, config.sums_bytes
    # Bytes from one row of a thread to its next row, and from one row group to the next.
    next_row, next_group = (4, 4 * ROWS) if x_across else (4 * ROW_GROUPS, 4)
    blocks = few // COLS
    place_x, read_x = make_read_panel(0, ROWS, ROW_GROUPS, x_across, TILE // 2)
    places_y, read_y = zip(
        *(make_read_panel(first, COLS, 1, y_across, few) for first in range(0, few, COLS)),
        strict=True,
    )
    place_y = places_y[0]
    after = make_after(config.stages)

    def begin():
        sums = ()
        for _ in static_range(blocks):
            sums = sums + (zeros(float32, 32),)
        return sums

    def consume(sums, smem, full, empty, thread, left):
        stage: int32 = 0
        parity: int32 = 0
        row_group: int32 = thread % 16
        k_group: int32 = thread // 16
        x_first: int32 = smem + place_x(row_group, k_group)
        y_first: int32 = smem + panels * x_panel + place_y(0, k_group)
        while left > 0:
            hopper.wait_barrier(int32(full + 8 * stage), parity)
            x_at: int32 = x_first + stage * stage_bytes
            y_at: int32 = y_first + stage * stage_bytes
            for _ in range(panels):
                x_frag, added = read_x(x_at), ()
                for block in static_range(blocks):
                    y_frag, acc = read_y[block](y_at), sums[block]
                    for kk in static_range(4):
                        x_now = x_frag[4 * kk : 4 * kk + 4]
                        acc = outer_product(acc, x_now, y_frag[8 * kk : 8 * kk + 8])
                    added = added + (acc,)
                sums = added
                x_at = int32(x_at + x_panel)
                y_at = int32(y_at + y_panel)
            cuda.syncwarp()
            if thread % 32 == 0:
                hopper.arrive(int32(empty + 8 * stage))
            left = int32(left - 1)
            stage, parity = after(stage, parity)
        return sums

    def put(sums, smem, thread):
        row_group: int32 = thread % 16
        at: int32 = smem + thread // 16 * sums_bytes + row_group * next_group
        for block in static_range(blocks):
            for i in static_range(4):
                for j in static_range(8):
                    value = sums[block][8 * i + j]
                    store_shared(at, (8 * block + j) * sums_row + i * next_row, (value,))

    begin, consume, put = (device_function(unroll(f)) for f in (begin, consume, put))
    return Consumer(begin, consume, put, arrivals=4)
