"""The ring of stages in `wgmma` and the kernels grown from it.

Each stage has a barrier that completes when the stage is full, and one that completes when all
consumers have read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ROW_BYTES = 128  # a row in shared memory: span of the swizzle, and depth of a stage
SWIZZLE_ROWS = 8  # rows that the swizzle permutes together
WARPGROUP = 128
WARPGROUP_ROWS = 64  # rows of the result that wgmma computes
STEPS = 4  # wgmma takes a quarter of a stage at a time
ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1}  # by kind


def make_init_ring(stages: int, frees: int, fills: int = 1) -> Callable[..., Any]:
    """A device function: (full, empty) -> initialize the barriers of all stages, by one thread.

    Args:
        frees, fills: arrivals that free and that fill a stage.
    """
    from numba import cuda

    from dxgemm.handwritten.parts.hopper import init_barrier, publish_barriers
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def init_ring(full, empty):
        for slot in static_range(stages):
            init_barrier(full + 8 * slot, fills)
            init_barrier(empty + 8 * slot, frees)
        publish_barriers()

    return init_ring


def make_after(stages: int) -> Callable[..., Any]:
    """A device function: (stage, parity of its phase) -> the same of the next stage of the ring."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        """The next stage of the ring, and the parity of its phase."""
        stage = int32(stage + 1)
        if stage == stages:
            return int32(0), int32(parity ^ 1)
        return stage, parity

    return after


def make_corner() -> Callable[..., Any]:
    """A device function: coordinates at which TMA finds a box of an operand."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def corner(is_across, along, depth, matrix):
        """Coordinates of a box, innermost first."""
        if is_across:
            return int32(along), int32(depth), matrix
        return int32(depth), int32(along), matrix

    return corner


def make_fetch_operand(extent: int, tile_k: int, is_across: bool) -> Callable[..., Any]:
    """A device function: have TMA fill a part of a stage with a tile of one operand.

    Args:
        extent: rows of a tile of a, or columns of one of b.
        tile_k: k of a stage.
        is_across: True for an MN-major operand, which comes in panels.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.hopper import copy_box
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    panel_bytes = tile_k * ROW_BYTES
    boxes = extent // tile_k if is_across else 1
    corner = make_corner()

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def fetch_operand(smem, barrier, along, depth, tensor_map, matrix):
        for box in static_range(boxes):
            place = corner(is_across, along + box * tile_k, depth, matrix)
            copy_box(int32(smem + box * panel_bytes), tensor_map, barrier, place)

    return fetch_operand


def make_fetch(config: Any, tile_k: int, a_across: bool, b_across: bool) -> Callable[..., Any]:
    """A device function: have TMA fill a stage with a tile of a, then one of b.

    Args:
        config: a `WgmmaConfig`.
        tile_k: k of a stage.
        a_across, b_across: True for MN-major operands.
    """
    from numba import cuda, int32

    a_bytes = config.tile_m * ROW_BYTES
    fetch_a = make_fetch_operand(config.tile_m, tile_k, a_across)
    fetch_b = make_fetch_operand(config.tile_n, tile_k, b_across)

    @cuda.jit(device=True, forceinline=True)
    def fetch(stage_smem, barrier, row, col, depth, a_map, a_matrix, b_map, b_matrix):
        fetch_a(stage_smem, barrier, row, depth, a_map, a_matrix)
        fetch_b(int32(stage_smem + a_bytes), barrier, col, depth, b_map, b_matrix)

    return fetch


def make_produce(locate: Callable[..., Any], fill: Callable[..., Any]) -> Callable[..., Any]:
    """A device function of the producer: fill stages with a block's tiles, by `wgmma`'s fill."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.hopper import prefetch_tensor_map
    from dxgemm.handwritten.parts.intrinsics import divide
    from dxgemm.handwritten.parts.unroll import unroll

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def produce(
        smem, full, empty, block, blocks, tiles, tiles_m, tiles_n, first, end, period,
        a_map, a_stride_batch, b_map, b_stride_batch,
    ):  # fmt: skip
        """Fetch the k from `first` to `end`; an operand without a batch has `period` matrices."""
        prefetch_tensor_map(a_map)
        prefetch_tensor_map(b_map)
        stage: int32 = 0
        parity: int32 = 0
        index: int32 = block
        while index < tiles:
            matrix, row, col = locate(index, tiles_m, tiles_n)
            index += blocks
            repeated: int32 = matrix - divide(matrix, period) * period
            a_matrix = matrix if a_stride_batch != 0 else repeated
            b_matrix = matrix if b_stride_batch != 0 else repeated
            stage, parity = fill(
                smem, full, empty, stage, parity, row, col, first, end,
                a_map, a_matrix, b_map, b_matrix,
            )  # fmt: skip

    return produce
