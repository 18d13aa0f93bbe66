"""The ring of stages of the frame `tma`, and the copies by TMA into it: the `load` of that frame.

Each stage has a barrier that completes when the stage is full, and one that completes when all
consumers have read it. A stage holds the tiles of all parts of a, then those of b, each ROW_BYTES
deep along k. A K-major operand is stored in rows of ROW_BYTES, one per row of a or column of b. An
MN-major operand is stored in panels: rows of ROW_BYTES along m or n, one per k. TMA permutes the
16-byte pieces of every eight rows (the 128-byte swizzle), as wgmma expects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

ROW_BYTES = 128  # bytes of a row in shared memory: span of the swizzle, and depth of a stage
SWIZZLE_ROWS = 8  # rows that the swizzle permutes together
WARPGROUP = 128
WARPGROUP_ROWS = 64  # rows of the result that wgmma computes
STEPS = 4  # steps per stage: one wgmma multiplies a quarter of it
# By kind of wgmma; one of two names is that of operands of different types.
ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
INTEGERS = ("s8", "u8", "s8.u8", "u8.s8")
ITEM_BYTES |= dict.fromkeys((*INTEGERS, "e4m3", "e5m2", "e4m3.e5m2", "e5m2.e4m3"), 1)


def make_init_ring(
    stages: int, frees: int, fills: int = 1, has_turns: bool = False
) -> Callable[..., Any]:
    """Make a device function (full, empty): one thread initialises the barriers of all stages.

    Args:
        frees, fills: arrivals that free and that fill a stage.
        has_turns: True for two more barriers after these, by which warpgroups take turns.
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
        if has_turns:
            init_barrier(empty + 8 * stages, 1)
            init_barrier(empty + 8 * stages + 8, 1)
        publish_barriers()

    return init_ring


def make_after(stages: int) -> Callable[..., Any]:
    """Make a device function: (stage, parity of its phase) -> the same for the next stage."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        """Next stage of the ring, and the parity of its phase."""
        stage = int32(stage + 1)
        if stage == stages:
            return int32(0), int32(parity ^ 1)
        return stage, parity

    return after


def make_skip(stages: int) -> Callable[..., Any]:
    """Make a device function: (stage, parity, count) -> the stage `count` later, and its parity."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def skip(stage, parity, count):
        reached = int32(stage + count)
        rounds = int32(reached // stages)
        return int32(reached - rounds * stages), int32((parity ^ rounds) & 1)

    return skip


def make_fetch_operand(
    extent: int, tile_k: int, is_across: bool, is_shared: bool = False
) -> Callable[..., Any]:
    """Make a device function that has TMA copy a tile of one operand into a part of a stage.

    Args:
        extent: rows of a tile of a, or columns of a tile of b.
        tile_k: k per stage.
        is_across: True for an MN-major operand, which is stored in panels.
        is_shared: True if two blocks read the same tile: each fetches half of its rows (of the k
            of each panel) for both.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.hopper import copy_box, multicast_box
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    panel_bytes = tile_k * ROW_BYTES
    boxes = -(-extent // tile_k) if is_across else 1
    rows = (tile_k if is_across else extent) // (2 if is_shared else 1)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def fetch_operand(smem, barrier, along, depth, tensor_map, matrix):
        if is_shared:
            first: int32 = cuda.blockIdx.x % 2 * rows
            smem = smem + first * ROW_BYTES
            if is_across:
                depth = depth + first
            else:
                along = along + first
        for box in static_range(boxes):
            place = int32(depth), int32(along), matrix  # the innermost first
            if is_across:
                place = int32(along + box * tile_k), int32(depth), matrix
            target: int32 = smem + box * panel_bytes
            if is_shared:
                multicast_box(target, tensor_map, barrier, place, 3)
            else:
                copy_box(target, tensor_map, barrier, place)

    return fetch_operand


class Load(NamedTuple):
    """Device functions of the producer.

    Attributes:
        expect: (): prefetch the tensor maps.
        begin: () -> the tensor maps of a and b.
        select: (work, tile, maps) -> the tensor maps of a tile; `maps` are the previous tile's.
        fetch: (stage_smem, barrier, tile, depth, maps): have TMA fill a stage from k = depth on.
        stage_bytes: bytes that arrive per stage.
    """

    expect: Callable[..., None]
    begin: Callable[..., Any]
    select: Callable[..., Any]
    fetch: Callable[..., None]
    stage_bytes: int


def make_load(
    config: Any,
    tile_k: int,
    a_across: bool,
    b_across: bool,
    names: tuple[str, ...] | None,
    parts: int = 1,
    panels: int = 1,
) -> Load:
    """Make the load of boxes of a and b, by the kernel's tensor maps or those of a tile's group.

    Args:
        config: a `WgmmaConfig`, or another with these numbers.
        tile_k: k per panel.
        a_across, b_across: True for MN-major operands.
        names: parameters of the tensor maps; None for maps in a table, see `group_table`.
        parts: number of consecutive matrices whose sum is a matrix of a or b.
        panels: tiles of a and of b in a stage, one after the other along k.
    """
    from numba import int32

    from dxgemm.handwritten.parts.group_table import ITEM_BYTES, MAP_BYTES, ROW_ITEMS
    from dxgemm.handwritten.parts.hopper import (
        acquire_tensor_map,
        prefetch_tensor_map,
        tensor_map,
    )
    from dxgemm.handwritten.parts.intrinsics import device_function, global_address
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    by_table, (a_name, b_name) = names is None, names or ("", "")
    a_bytes = config.tile_m * ROW_BYTES
    # All boxes are as wide, the last one too.
    width = min(tile_k, config.tile_n) if b_across else 1
    b_bytes = -(-config.tile_n // width) * width * ROW_BYTES
    b_start = parts * panels * a_bytes
    pair_m, pair_n = config.pair
    fetch_a = make_fetch_operand(config.tile_m, tile_k, a_across, pair_n > 1)
    fetch_b = make_fetch_operand(config.tile_n, tile_k, b_across, pair_m > 1)

    def expect():
        """Prefetch the tensor maps; those of a table are read by each tile."""
        if not by_table:
            prefetch_tensor_map(tensor_map(a_name))
            prefetch_tensor_map(tensor_map(b_name))

    def begin():
        if by_table:
            maps = 0, 0, int32(-1)  # the last item is the group of the maps
        else:
            maps = tensor_map(a_name), tensor_map(b_name)
        return maps

    def select(work, tile, maps):
        if by_table:
            a_map = global_address(work.table) + tile.matrix * ROW_ITEMS * ITEM_BYTES
            b_map = a_map + MAP_BYTES
            if tile.matrix != maps[2]:
                acquire_tensor_map(a_map)
                acquire_tensor_map(b_map)
            maps = a_map, b_map, tile.matrix
        return maps

    def fetch(stage_smem, barrier, tile, depth, maps):
        for part in static_range(parts):
            a_matrix: int32 = tile.a_matrix * parts + part
            b_matrix: int32 = tile.b_matrix * parts + part
            for panel in static_range(panels):
                a_smem: int32 = stage_smem + (part * panels + panel) * a_bytes
                b_smem: int32 = b_start + stage_smem + (part * panels + panel) * b_bytes
                at: int32 = depth + panel * tile_k
                fetch_a(a_smem, barrier, tile.row, at, maps[0], a_matrix)
                fetch_b(b_smem, barrier, tile.col, at, maps[1], b_matrix)

    functions = expect, begin, select, fetch
    expect, begin, select, fetch = (device_function(unroll(f)) for f in functions)
    return Load(expect, begin, select, fetch, parts * panels * (a_bytes + b_bytes))
