"""Few rows or columns in half precision and int8 at any address, such as those of odd width.

Idea: `skinny_wgmma`, whose ring threads fill where TMA cannot: its rows begin at multiples of 16
bytes. Warpgroups take turns. Each has a stage in its registers, on its way from memory, while the
others write theirs to shared memory, shifted (line_tiles.py), in the order of TMA's swizzle.
Layout: a (m, k), b (k, n), any batch; the larger operand row- or column-major, int8 with
neighbouring k; the other one, c and out (m, n) with any strides.
Constraints: compute capability 9.0.
Source: PTX ISA, "Async Proxy", for the fence between a thread's writes and wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from dxgemm.handwritten.kernels.skinny_wgmma import make_consumer
from dxgemm.handwritten.parts import skinny_frame
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES, CHUNKS, layout
from dxgemm.handwritten.parts.skinny_frame import (
    TILE,
    Producer,
    block_count,
    large_operand,
    make_skinny_kernel,
    result_tile,
)
from dxgemm.handwritten.parts.tensor_map import ITEM_BYTES
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, WARPGROUP

WARPS = WARPGROUP // 32
LINE_LAYOUTS = {"k": "k", "mn": "x", "any": "any"}  # as line_tiles calls them


@dataclass(frozen=True)
class Config(skinny_frame.Config):
    """A `skinny_frame.Config` whose ring so many warpgroups fill."""

    warpgroups: int = 2

    @property
    def producers(self) -> int:
        return self.warpgroups * WARPGROUP


def innermost(problem: Any, name: str) -> str:
    """Layout of an operand: "k" or "mn", along which its elements are neighbours, or "any"."""
    kind = layout(problem, name)
    if kind.startswith("k"):
        return "k"
    is_large = name == large_operand(problem)
    return "mn" if kind.startswith("x") and is_large and problem.dtype != "int8" else "any"


def supports(problem: Any) -> str | None:
    """Reason why the larger operand cannot be read in lines; None if it can."""
    name = large_operand(problem)
    if innermost(problem, name) == "any" and problem.k > 0:
        where = "k" if problem.dtype == "int8" else "its rows or columns"
        return f"{name}, the larger operand, is not contiguous along {where}"
    return None


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """The left factor, the layouts of a and b, the dtype of the result if it is another."""
    innermosts = innermost(problem, "a"), innermost(problem, "b")
    if problem.k == 0:  # nothing is read
        innermosts = "k", "k"
    is_other = problem.out_dtype != problem.dtype
    return large_operand(problem), *innermosts, *([problem.out_dtype] if is_other else [])


def make_producer(
    config: Config, dtype: str, large: str, x_innermost: str, y_innermost: str
) -> Producer:
    """The producer whose warpgroups copy stages in turn, through registers."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import device_function, global_address
    from dxgemm.handwritten.parts.line_tiles import make_line_tile
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    large_is_a, item_bytes = large == "a", ITEM_BYTES[dtype]
    few, panels, stages = config.few, config.panels, config.stages
    stage_bytes, tile_k = config.stage_bytes, config.tile_k(dtype)
    panel_k = tile_k // panels
    x_panel, y_panel = TILE * ROW_BYTES, few * ROW_BYTES
    y_threads, y_ahead = min(WARPGROUP, few * CHUNKS), max(few - WARPGROUP // CHUNKS, 0)
    step, warpgroups = config.warpgroups * tile_k, config.warpgroups
    # Where a stage and so much behind it lie inside, so do the vectors around its chunks.
    x_whole, k_whole = TILE + CHUNK_BYTES // item_bytes, tile_k + CHUNK_BYTES // item_bytes
    x_tile = make_line_tile(LINE_LAYOUTS[x_innermost], "left", TILE, 16, WARPGROUP, item_bytes)
    y_tile = make_line_tile(LINE_LAYOUTS[y_innermost], "left", few, 16, y_threads, item_bytes)
    x_first, x_place, put_x = x_tile.first, x_tile.place, x_tile.put
    y_first, y_place, put_y = y_tile.first, y_tile.place, y_tile.put

    def make_load(tile):
        """Device function that loads a thread's chunks of a stage, panel by panel."""
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

    load_x, load_y = make_load(x_tile), make_load(y_tile)

    def extent(operand, matrix, step, k_step, count, k):
        """Addresses between which a matrix lies, and that of its first element."""
        origin = global_address(operand.data) + matrix * operand.batch * item_bytes
        begin = origin + ((count - 1) * min(step, 0) + (k - 1) * min(k_step, 0))
        end = origin + ((count - 1) * max(step, 0) + (k - 1) * max(k_step, 0) + item_bytes)
        return origin, begin, end

    extent = device_function(extent)

    def produce(
        thread, smem, full, empty, a, b, matrix, x, y, x_count, y_count, k, depth, left
    ):  # fmt: skip
        warpgroup: int32 = thread // WARPGROUP
        thread = int32(thread % WARPGROUP)
        depth = int32(depth + warpgroup * tile_k)
        if large_is_a:
            x_step, x_k_step = a.row * item_bytes, a.col * item_bytes
            y_step, y_k_step = b.col * item_bytes, b.row * item_bytes
            x_origin, x_begin, x_end = extent(a, matrix, x_step, x_k_step, x_count, k)
            y_origin, y_begin, y_end = extent(b, matrix, y_step, y_k_step, y_count, k)
        else:
            x_step, x_k_step = b.col * item_bytes, b.row * item_bytes
            y_step, y_k_step = a.row * item_bytes, a.col * item_bytes
            x_origin, x_begin, x_end = extent(b, matrix, x_step, x_k_step, x_count, k)
            y_origin, y_begin, y_end = extent(a, matrix, y_step, y_k_step, y_count, k)
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
        left = int32(left - warpgroup)
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
            left = int32(left - warpgroups)
            stage = int32(stage + warpgroups)
            if stage >= stages:
                stage = int32(stage - stages)
                parity = int32(parity ^ 1)

    return Producer(device_function(unroll(produce)), arrivals=WARPS)


KERNEL = Kernel(
    make_kernel=partial(make_skinny_kernel, make_consumer, make_producer),
    configs=(
        Config(64, panels=1, stages=9, warpgroups=2),
        Config(64, panels=1, stages=9, warpgroups=2, split_k=2),
        Config(64, panels=1, stages=9, warpgroups=2, split_k=8),
        Config(32, panels=1, stages=9, warpgroups=3),
        Config(32, panels=1, stages=9, warpgroups=3, split_k=2),
        Config(32, panels=1, stages=9, warpgroups=3, split_k=8),
        Config(8, panels=1, stages=8, warpgroups=4),
        Config(8, panels=1, stages=8, warpgroups=4, split_k=2),
        Config(8, panels=1, stages=8, warpgroups=4, split_k=4),
        Config(8, panels=1, stages=8, warpgroups=4, split_k=8),
    ),
    dtypes=("float16", "bfloat16", "int8"),
    only_arch=90,
    supports=supports,
    variant=variant,
    block_count=block_count,
    result_tile=result_tile,
    smaller_first=True,
    order_of_sums="wgmma",
    takes_pairs=True,
    quantises=True,
)
