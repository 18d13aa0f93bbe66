"""Producers of the frame `skinny`: one thread by TMA, or warpgroups through registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES, CHUNKS
from dxgemm.handwritten.parts.operands import ITEM_BYTES
from dxgemm.handwritten.parts.place import Tile
from dxgemm.handwritten.parts.skinny_layouts import TILE, Config
from dxgemm.handwritten.parts.wgmma_layouts import TENSOR_MAPS
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, WARPGROUP, make_after, make_load

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


class Boxes(NamedTuple):
    """Rows of x and columns of y in a stage, as `wgmma_ring.make_load` takes a config."""

    tile_m: int
    tile_n: int
    pair: tuple[int, int] = (1, 1)


def make_tma_producer(
    config: Config, dtype: str, large: str, x_innermost: str, y_innermost: str
) -> Producer:
    """Make the producer in which one thread has TMA copy panel after panel."""
    from numba import int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    large_is_a = large == "a"
    stage_bytes, tile_k, after = config.stage_bytes, config.tile_k(dtype), make_after(config.stages)
    boxes = Boxes(TILE, config.few)
    expect, begin, _, fetch, _ = make_load(
        boxes, tile_k // config.panels, x_innermost == "mn", y_innermost == "mn",
        TENSOR_MAPS if large_is_a else TENSOR_MAPS[::-1], panels=config.panels,
    )  # fmt: skip

    def produce(thread, smem, full, empty, a, b, k, tile):
        x_batch, y_batch = (a.batch, b.batch) if large_is_a else (b.batch, a.batch)
        if thread == 0 and k > 0:  # without k there are no tensor maps
            x_matrix: int32 = tile.matrix if x_batch != 0 else 0
            y_matrix: int32 = tile.matrix if y_batch != 0 else 0
            fetched = Tile(tile.matrix, x_matrix, y_matrix, tile.x, tile.y, 0, 0, 0)
            expect()
            maps = begin()
            depth: int32 = tile.first_k
            left: int32 = tile.stages
            stage: int32 = 0
            parity: int32 = 0
            while left > 0:
                barrier: int32 = full + 8 * stage
                hopper.wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
                hopper.expect_bytes(barrier, stage_bytes)
                fetch(int32(smem + stage * stage_bytes), barrier, fetched, depth, maps)
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

    def load_stage(is_inside, span, source, k_left):
        _, step, k_step, _, _, left, first_k, begin, end = span
        chunks = ()
        if knows_inside and is_inside and source - CHUNK_BYTES >= begin:
            for panel in static_range(panels):
                at = source + panel * panel_k * k_step
                chunks = chunks + (load_inside(at, step, k_step),)
        else:
            for panel in static_range(panels):
                at, inside = source + panel * panel_k * k_step, int32(k_left - panel * panel_k)
                inside = int32(inside - first_k)
                chunks = chunks + (load(at, step, k_step, left, inside, begin, end),)
        return chunks

    return device_function(unroll(load_stage))


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
    from dxgemm.handwritten.parts.ring import make_span
    from dxgemm.handwritten.parts.unroll import Operand, static_range, unroll

    large_is_a, item_bytes = large == "a", ITEM_BYTES[dtype]
    few, panels, stages = config.few, config.panels, config.stages
    stage_bytes, tile_k = config.stage_bytes, config.tile_k(dtype)
    x_panel, y_panel = TILE * ROW_BYTES, few * ROW_BYTES
    y_threads, y_ahead = min(WARPGROUP, few * CHUNKS), max(few - WARPGROUP // CHUNKS, 0)
    step, warpgroups = config.warpgroups * tile_k, config.warpgroups
    # If a stage and one chunk beyond it are inside the operand, so are the vectors that cover its
    # chunks.
    x_whole, k_whole = TILE + CHUNK_BYTES // item_bytes, tile_k + CHUNK_BYTES // item_bytes
    tiles = tuple(
        make_line_tile(LINE_LAYOUTS[innermost], "left", extent, 16, threads, item_bytes)
        for innermost, extent, threads in (
            (x_innermost, TILE, WARPGROUP), (y_innermost, few, y_threads),
        )
    )  # fmt: skip
    load_x, load_y = (make_load_stage(tile, panels, tile_k // panels) for tile in tiles)
    find_x, find_y = (
        make_span(tile, extent, step, item_bytes) for tile, extent in zip(tiles, (TILE, few))
    )
    put_x, put_y = (tile.put for tile in tiles)

    def produce(thread, smem, full, empty, a, b, k, tile):
        matrix, x, x_count = tile.matrix, tile.x, tile.x_count
        warpgroup: int32 = thread // WARPGROUP
        thread = int32(thread % WARPGROUP)
        depth: int32 = tile.first_k + warpgroup * tile_k
        columns = Operand(b.data, b.batch, b.col, b.row)
        left_factor, right_factor = (a, columns) if large_is_a else (columns, a)
        x_span, x_source = find_x(smem, thread, left_factor, matrix, x, x_count, k, depth)
        y_smem: int32 = smem + panels * x_panel
        y_span, y_source = find_y(
            y_smem, thread, right_factor, matrix, tile.y, tile.y_count, k, depth
        )
        k_left: int32 = k - depth
        stage: int32 = warpgroup
        parity: int32 = 0
        left: int32 = tile.stages - warpgroup
        while left > 0:
            is_whole = k_left >= k_whole
            x_chunks = load_x(is_whole and x_count - x >= x_whole, x_span, x_source, k_left)
            y_chunks = load_y(is_whole and y_span.x_left > y_ahead, y_span, y_source, k_left)
            hopper.wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
            ring: int32 = stage * stage_bytes
            for panel in static_range(panels):
                put_x(int32(x_span.target + ring + panel * x_panel), x_chunks[panel])
            if thread < y_threads:
                for panel in static_range(panels):
                    put_y(int32(y_span.target + ring + panel * y_panel), y_chunks[panel])
            hopper.publish_shared()
            cuda.syncwarp()
            if thread % 32 == 0:
                hopper.arrive(int32(full + 8 * stage))
            x_source += x_span.tile_step
            y_source += y_span.tile_step
            k_left = int32(k_left - step)
            left -= warpgroups
            stage = int32(stage + warpgroups)
            if stage >= stages:
                stage = int32(stage - stages)
                parity = int32(parity ^ 1)

    return Producer(device_function(unroll(produce)), arrivals=WARPS)
