"""Producers of the frame `skinny`: one thread by TMA, or warpgroups through registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES, CHUNKS
from dxgemm.handwritten.parts.operands import ITEM_BYTES
from dxgemm.handwritten.parts.skinny_layouts import TILE, Config
from dxgemm.handwritten.parts.wgmma_layouts import TENSOR_MAPS
from dxgemm.handwritten.parts.wgmma_ring import (
    ROW_BYTES,
    WARPGROUP,
    make_after,
    make_corner,
    make_fetch_operand,
)

WARPS = WARPGROUP // 32
LINE_LAYOUTS = {"k": "k", "mn": "x", "any": "any"}  # the names that line_tiles has for layouts


class Producer(NamedTuple):
    """Device function of the threads that follow the consumer warpgroup.

    Attributes:
        produce: (thread, smem, full, empty, a, b, k, tile) fills a tile's stages.
        arrivals: arrivals that fill a stage.
    """

    produce: Callable[..., None]
    arrivals: int


def make_tma_producer(
    config: Config, dtype: str, large: str, x_innermost: str, y_innermost: str
) -> Producer:
    """Make the producer in which one thread has TMA copy panel after panel."""
    from numba import int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    large_is_a = large == "a"
    x_across, y_across = x_innermost == "mn", y_innermost == "mn"
    x_map, y_map = TENSOR_MAPS if large_is_a else TENSOR_MAPS[::-1]
    panels, stage_bytes, tile_k = config.panels, config.stage_bytes, config.tile_k(dtype)
    panel_k = tile_k // panels
    x_panel_bytes, y_panel_bytes = TILE * ROW_BYTES, config.few * ROW_BYTES
    y_smem = panels * x_panel_bytes
    corner, after = make_corner(), make_after(config.stages)
    fetch_x = make_fetch_operand(TILE, panel_k, x_across)

    def produce(thread, smem, full, empty, a, b, k, tile):
        x_batch, y_batch = (a.batch, b.batch) if large_is_a else (b.batch, a.batch)
        if thread == 0:
            x_matrix: int32 = tile.matrix if x_batch != 0 else 0
            y_matrix: int32 = tile.matrix if y_batch != 0 else 0
            depth: int32 = tile.first_k
            left: int32 = tile.stages
            stage: int32 = 0
            parity: int32 = 0
            while left > 0:
                barrier: int32 = full + 8 * stage
                target: int32 = smem + stage * stage_bytes
                hopper.wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
                hopper.expect_bytes(barrier, stage_bytes)
                for panel in static_range(panels):
                    at: int32 = depth + panel * panel_k
                    x_at: int32 = target + panel * x_panel_bytes
                    y_at: int32 = target + (y_smem + panel * y_panel_bytes)
                    fetch_x(x_at, barrier, tile.x, at, hopper.tensor_map(x_map), x_matrix)
                    y_corner = corner(y_across, tile.y, at, y_matrix)
                    hopper.copy_box(y_at, hopper.tensor_map(y_map), barrier, y_corner)
                depth += tile_k
                left -= 1
                stage, parity = after(stage, parity)

    return Producer(device_function(unroll(produce)), arrivals=1)


def make_load_stage(tile: Any, panels: int, panel_k: int) -> Callable[..., Any]:
    """Make a device function that loads a thread's chunks of a stage, panel by panel."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    load, load_inside = tile.load, tile.load_inside
    knows_inside = load_inside is not None

    def load_stage(is_inside, source, step, k_step, left, k_left, begin, end):
        chunks = ()
        if knows_inside and is_inside and source - CHUNK_BYTES >= begin:
            for panel in static_range(panels):
                at = source + panel * panel_k * k_step
                chunks = chunks + (load_inside(at, step, k_step),)
        else:
            for panel in static_range(panels):
                at, inside = source + panel * panel_k * k_step, int32(k_left - panel * panel_k)
                chunks = chunks + (load(at, step, k_step, left, inside, begin, end),)
        return chunks

    return device_function(unroll(load_stage))


def make_extent(item_bytes: int) -> Callable[..., Any]:
    """Make a device function: the addresses of a matrix's first element, lowest byte and end."""
    from dxgemm.handwritten.parts.intrinsics import device_function, global_address

    def extent(operand, matrix, step, k_step, count, k):
        origin = global_address(operand.data) + matrix * operand.batch * item_bytes
        begin = origin + ((count - 1) * min(step, 0) + (k - 1) * min(k_step, 0))
        end = origin + ((count - 1) * max(step, 0) + (k - 1) * max(k_step, 0) + item_bytes)
        return origin, begin, end

    return device_function(extent)


def make_lines_producer(
    config: Any, dtype: str, large: str, x_innermost: str, y_innermost: str
) -> Producer:
    """Make the producer whose warpgroups copy stages in turn, through registers.

    Args:
        config: a `Config` of `skinny_shifted`.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.line_tiles import make_line_tile
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    large_is_a, item_bytes = large == "a", ITEM_BYTES[dtype]
    few, panels, stages = config.few, config.panels, config.stages
    stage_bytes, tile_k = config.stage_bytes, config.tile_k(dtype)
    panel_k = tile_k // panels
    x_panel, y_panel = TILE * ROW_BYTES, few * ROW_BYTES
    y_threads, y_ahead = min(WARPGROUP, few * CHUNKS), max(few - WARPGROUP // CHUNKS, 0)
    step, warpgroups = config.warpgroups * tile_k, config.warpgroups
    # If a stage and one chunk beyond it are inside the operand, so are the vectors that cover its
    # chunks.
    x_whole, k_whole = TILE + CHUNK_BYTES // item_bytes, tile_k + CHUNK_BYTES // item_bytes
    x_tile = make_line_tile(LINE_LAYOUTS[x_innermost], "left", TILE, 16, WARPGROUP, item_bytes)
    y_tile = make_line_tile(LINE_LAYOUTS[y_innermost], "left", few, 16, y_threads, item_bytes)
    x_first, x_place, put_x = x_tile.first, x_tile.place, x_tile.put
    y_first, y_place, put_y = y_tile.first, y_tile.place, y_tile.put

    load_x, load_y = (make_load_stage(tile, panels, panel_k) for tile in (x_tile, y_tile))
    extent = make_extent(item_bytes)

    def produce(thread, smem, full, empty, a, b, k, tile):
        matrix, x, y, x_count, y_count = tile.matrix, tile.x, tile.y, tile.x_count, tile.y_count
        warpgroup: int32 = thread // WARPGROUP
        thread = int32(thread % WARPGROUP)
        depth: int32 = tile.first_k + warpgroup * tile_k
        left_factor, right_factor = (a, b) if large_is_a else (b, a)
        x_step, x_k_step = (a.row, a.col) if large_is_a else (b.col, b.row)
        y_step, y_k_step = (b.col, b.row) if large_is_a else (a.row, a.col)
        x_step, x_k_step = x_step * item_bytes, x_k_step * item_bytes
        y_step, y_k_step = y_step * item_bytes, y_k_step * item_bytes
        x_origin, x_begin, x_end = extent(left_factor, matrix, x_step, x_k_step, x_count, k)
        y_origin, y_begin, y_end = extent(right_factor, matrix, y_step, y_k_step, y_count, k)
        own_x, own_x_k = x_first(thread)
        own_y, own_y_k = y_first(thread)
        x_left: int32 = min(x_count - x, TILE) - own_x
        y_left: int32 = min(y_count - y, few) - own_y
        x_source = x_origin + ((x + own_x) * x_step + (depth + own_x_k) * x_k_step)
        y_source = y_origin + ((y + own_y) * y_step + (depth + own_y_k) * y_k_step)
        x_target: int32 = smem + x_place(own_x, own_x_k)
        y_target: int32 = smem + panels * x_panel + y_place(own_y, own_y_k)
        k_left: int32 = k - depth
        stage: int32 = warpgroup
        parity: int32 = 0
        left: int32 = tile.stages - warpgroup
        while left > 0:
            is_whole = k_left >= k_whole
            x_chunks = load_x(
                is_whole and x_count - x >= x_whole, x_source, x_step, x_k_step, x_left,
                int32(k_left - own_x_k), x_begin, x_end,
            )  # fmt: skip
            y_chunks = load_y(
                is_whole and y_left > y_ahead, y_source, y_step, y_k_step, y_left,
                int32(k_left - own_y_k), y_begin, y_end,
            )  # fmt: skip
            hopper.wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
            ring: int32 = stage * stage_bytes
            for panel in static_range(panels):
                put_x(int32(x_target + ring + panel * x_panel), x_chunks[panel])
            if thread < y_threads:
                for panel in static_range(panels):
                    put_y(int32(y_target + ring + panel * y_panel), y_chunks[panel])
            hopper.publish_shared()
            cuda.syncwarp()
            if thread % 32 == 0:
                hopper.arrive(int32(full + 8 * stage))
            x_source += step * x_k_step
            y_source += step * y_k_step
            k_left = int32(k_left - step)
            left -= warpgroups
            stage = int32(stage + warpgroups)
            if stage >= stages:
                stage = int32(stage - stages)
                parity = int32(parity ^ 1)

    return Producer(device_function(unroll(produce)), arrivals=WARPS)
