"""Few rows or columns in half precision and int8 at the speed of memory: TMA feeds wgmma.

Idea: grown from `wgmma`. The larger operand is the left factor, 64 of whose rows a wgmma takes, and
the few rows are its columns: 8 of them cost as much as they are (skinny_frame.py). A k of several
hundred bytes is one group of wgmmas.
Layout: a (m, k), b (k, n), any batch, row- or column-major; c and out (m, n), any strides. int8
must be K-major.
Constraints: as `wgmma`.
Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", for swizzles of each width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from dxgemm.handwritten.parts import wgmma_layouts
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.skinny_frame import (
    SUMS_ROW,
    TILE,
    Config,
    Consumer,
    block_count,
    make_skinny_kernel,
    make_tma_producer,
    result_tile,
    tensor_maps,
    variant,
)
from dxgemm.handwritten.parts.tensor_map import operand_of
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, STEPS, SWIZZLE_ROWS, make_after

KINDS = {"float16": "f16", "bfloat16": "bf16", "int8": "s8"}


def supports(problem: Any) -> str | None:
    """Reason why wgmma or TMA cannot take a problem; None if they can."""
    reason = wgmma_layouts.supports(problem)
    if reason is None and problem.dtype == "int8" and problem.k > 0:
        lying_across = [name for name in "ab" if operand_of(problem, name).innermost == "mn"]
        if lying_across:
            return f"int8 wgmma needs {' and '.join(lying_across)} contiguous along k"
    return reason


def make_consumer(config: Config, dtype: str, x_across: bool, y_across: bool) -> Consumer:
    """The device functions of the warpgroup."""
    from numba import float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function, store_shared, zeros
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind, scalar = KINDS[dtype], int32 if dtype == "int8" else float32
    panels, stage_bytes, few = config.panels, config.stage_bytes, config.few
    sums_row = SUMS_ROW
    x_panel, y_panel = TILE * ROW_BYTES // 16, few * ROW_BYTES // 16  # descriptors count so
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
            # In a cluster, the bits above those of an address count blocks.
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
            hopper.wait_wgmma(1)  # the stage before is done, this one goes on
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


KERNEL = Kernel(
    make_kernel=partial(make_skinny_kernel, make_consumer, make_tma_producer),
    # Two blocks share an SM, except with the first config of each width.
    configs=(
        Config(64, panels=2, stages=5),
        Config(64, panels=2, stages=3),
        Config(64, panels=2, stages=3, split_k=8),
        Config(32, panels=4, stages=4),
        Config(32, panels=2, stages=4),
        Config(32, panels=2, stages=4, split_k=8),
        Config(16, panels=4, stages=5),
        Config(16, panels=2, stages=5),
        Config(16, panels=2, stages=5, split_k=4),
        Config(16, panels=2, stages=5, split_k=8),
        Config(8, panels=4, stages=6),
        Config(8, panels=4, stages=3),
        Config(8, panels=4, stages=3, split_k=4),
        Config(8, panels=4, stages=3, split_k=8),
    ),
    dtypes=("float16", "bfloat16", "int8"),
    only_arch=90,
    supports=supports,
    variant=variant,
    block_count=block_count,
    result_tile=result_tile,
    smaller_first=True,
    tensor_maps=tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    order_of_sums="wgmma",
    copies_operands=True,
    takes_pairs=True,
    quantises=True,
)
