"""What kernels with a ring of stages share, from `wgmma` on: the order of tiles, and the ring.

Each stage has a barrier that completes when it is full, and one when all consumers have read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_locate(tile_m: int, tile_n: int, swizzle_rows: int) -> Callable[..., Any]:
    """A device function: index of a tile, tiles along m and n, to its matrix and first element."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import divide

    @cuda.jit(device=True, forceinline=True)
    def locate(index, tiles_m, tiles_n):
        """Matrix, first row and first column of a tile, by a threadblock swizzle of its index."""
        matrix = divide(index, int32(tiles_m * tiles_n))
        tile = int32(index - matrix * tiles_m * tiles_n)
        top = int32(divide(tile, int32(swizzle_rows * tiles_n)) * swizzle_rows)
        place = int32(tile - top * tiles_n)
        rows = int32(min(swizzle_rows, tiles_m - top))
        col = divide(place, rows)
        return matrix, int32((top + place - col * rows) * tile_m), int32(col * tile_n)

    return locate


def make_after(stages: int) -> Callable[..., Any]:
    """A device function: from a stage of the ring, and the parity of its phase, to the next."""
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
    """A device function: where TMA finds a box of an operand."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def corner(is_across, along, depth, matrix):
        """Coordinates of a box, innermost first."""
        if is_across:
            return int32(along), int32(depth), matrix
        return int32(depth), int32(along), matrix

    return corner


def make_ring(
    config: Any, tile_k: int, locate: Callable[..., Any], fetch: Callable[..., Any]
) -> tuple[Callable[..., Any], ...]:
    """The device functions init_ring and produce, each for one thread.

    Args:
        config: of a kernel; its stages, stage_bytes and consumers.
        tile_k: k of a stage.
        locate, fetch: device functions, of `make_locate` and of the kernel's main loop.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.hopper import (
        expect_bytes,
        init_barrier,
        prefetch_tensor_map,
        publish_barriers,
        wait_barrier,
    )  # fmt: skip
    from dxgemm.handwritten.parts.intrinsics import divide
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    stages, stage_bytes, consumers = config.stages, config.stage_bytes, config.consumers
    after = make_after(stages)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def init_ring(full, empty):
        """A stage is filled by one thread, and read by one thread of each consumer."""
        for slot in static_range(stages):
            init_barrier(int32(full + 8 * slot), int32(1))
            init_barrier(int32(empty + 8 * slot), int32(consumers))
        publish_barriers()

    @cuda.jit(device=True, forceinline=True)
    def produce(
        smem, full, empty, block, blocks, tiles, tiles_m, tiles_n, k, period,
        a_map, a_stride_batch, b_map, b_stride_batch,
    ):  # fmt: skip
        """Have TMA fill stages that are empty, with all k of the block's tiles.

        An operand without a batch has `period` matrices, over and over.
        """
        prefetch_tensor_map(a_map)
        prefetch_tensor_map(b_map)
        stage, parity = int32(0), int32(0)
        index = block
        while index < tiles:
            matrix, row, col = locate(index, tiles_m, tiles_n)
            index = int32(index + blocks)
            repeated = int32(matrix - divide(matrix, period) * period)
            a_matrix = matrix if a_stride_batch != 0 else repeated
            b_matrix = matrix if b_stride_batch != 0 else repeated
            depth = int32(0)
            while depth < k:
                barrier = int32(full + 8 * stage)
                wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
                expect_bytes(barrier, int32(stage_bytes))
                fetch(
                    int32(smem + stage * stage_bytes), barrier, row, col, depth,
                    a_map, a_matrix, b_map, b_matrix,
                )  # fmt: skip
                depth = int32(depth + tile_k)
                stage, parity = after(stage, parity)

    return init_ring, produce
