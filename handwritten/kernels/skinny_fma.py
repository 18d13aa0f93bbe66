"""Few rows or columns in float32 at the speed of memory: TMA feeds multiply-adds.

Idea: grown from `skinny_wgmma`, whose frame it shares (skinny_frame.py). A thread multiplies four
rows of the larger operand by all of the few columns, for every eighth four of k: eight vectors of
one operand and four of the other feed 128 multiply-adds or more. So a block leaves eight partial
tiles, which it adds up.
Layout: a (m, k), b (k, n), any batch, row- or column-major; c and out (m, n), any strides.
Constraints: compute capability 9.0; bases and strides at multiples of 16 bytes, as TMA wants.
Source: PTX ISA, "Tensor Swizzling Modes", for the places of vectors in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dxgemm.handwritten.parts import skinny_frame, wgmma_layouts
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.skinny_frame import (
    SUMS_ROW,
    TILE,
    Consumer,
    block_count,
    make_skinny_kernel,
    make_tma_producer,
    result_tile,
    tensor_maps,
    variant,
)
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, make_after

ROWS = 4  # of the left factor, a thread's; and k of a vector
ROW_GROUPS = TILE // ROWS
COLS = 8  # that are multiplied together


@dataclass(frozen=True)
class Config(skinny_frame.Config):
    """A `skinny_frame.Config` whose threads share out k eight ways."""

    partial_tiles = 8


def make_read_x(x_across: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two device functions: (row group, k group) -> place; (panel + place) -> a thread's elements.

    Element kk * ROWS + i is that of the thread's row i, at k = kk. K-major rows are ROW_GROUPS
    apart, others neighbours. In TMA's swizzle vector v of row r of 128 bytes lies at v ^ r % 8.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, load_shared
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    step = ROW_GROUPS * ROW_BYTES
    half_bytes = TILE // 2 * ROW_BYTES  # 32 rows of the operand, side by side

    def place(row_group, k_group):
        if x_across:
            vector: int32 = row_group % 8 ^ k_group % 2 * 4
            return int32(row_group // 8 * half_bytes + k_group * 4 * ROW_BYTES + vector * 16)
        vector = k_group ^ row_group % 8
        return int32(row_group * ROW_BYTES + vector * 16)

    def read(at):
        values, frag = (), ()
        if x_across:
            for kk in static_range(4):
                frag = frag + load_shared(float32, 4, int32(at ^ kk * 16), kk * 128)
            return frag
        for i in static_range(4):
            values = values + load_shared(float32, 4, at, i * step)
        for kk in static_range(4):
            for i in static_range(4):
                frag = frag + (values[4 * i + kk],)
        return frag

    return device_function(unroll(place)), device_function(unroll(read))


def make_read_y(few: int, y_across: bool) -> tuple[Callable[..., Any], ...]:
    """Two device functions, like those of `make_read_x`; and one for each COLS columns to read.

    Element kk * COLS + j is that of column j, at k = kk. MN-major rows are of few elements: in the
    swizzle of as many bytes vector v of row r lies at v ^ r * few // 32 % (few / 4).
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, load_shared
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    row_bytes = 4 * few
    turn = few // 8  # by which four rows turn the vectors

    def place(k_group):
        if y_across:
            return int32(k_group * 4 * row_bytes + k_group % 2 * turn * 16)
        return int32(k_group * 16)

    def make_read(first: int) -> Callable[..., Any]:
        """Read columns first to first + COLS - 1."""

        def read(at):
            values, frag = (), ()
            if y_across:
                for kk in static_range(4):
                    for half in static_range(2):
                        vector = kk * turn // 4 ^ first // 4 + half
                        frag = frag + load_shared(
                            float32, 4, int32(at ^ vector * 16), kk * row_bytes
                        )
                return frag
            for j in static_range(8):
                values = values + load_shared(float32, 4, int32(at ^ j * 16), (first + j) * 128)
            for kk in static_range(4):
                for j in static_range(8):
                    frag = frag + (values[4 * j + kk],)
            return frag

        return device_function(unroll(read))

    reads = tuple(make_read(first) for first in range(0, few, COLS))
    return device_function(unroll(place)), *reads


def make_consumer(config: Config, dtype: str, x_across: bool, y_across: bool) -> Consumer:
    """The device functions of the warpgroup."""
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
    # Bytes from a thread's row to its next, and from a row group's first row to the next one's.
    next_row, next_group = (4, 4 * ROWS) if x_across else (4 * ROW_GROUPS, 4)
    blocks = few // COLS
    place_x, read_x = make_read_x(x_across)
    place_y, *reads = make_read_y(few, y_across)
    read_y = tuple(reads)
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
        y_first: int32 = smem + panels * x_panel + place_y(k_group)
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


KERNEL = Kernel(
    make_kernel=partial(make_skinny_kernel, make_consumer, make_tma_producer),
    configs=(
        Config(16, panels=4, stages=2),
        Config(16, panels=4, stages=2, split_k=4),
        Config(8, panels=4, stages=3),
        Config(8, panels=4, stages=3, split_k=2),
        Config(8, panels=4, stages=3, split_k=8),
    ),
    dtypes=("float32",),
    only_arch=90,
    supports=wgmma_layouts.supports_tma,
    variant=variant,
    block_count=block_count,
    result_tile=result_tile,
    smaller_first=True,
    tensor_maps=tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    takes_pairs=True,
)
