"""The ring of stages of the frame `tma`, and what TMA fetches for it: the `load` of that frame.

Each stage has a barrier that completes when the stage is full, and one that completes when all
consumers have read it. A stage is the tiles of all parts of a, then those of b, each ROW_BYTES deep
along k. A K-major operand is rows of ROW_BYTES, one for each row of a or column of b. An MN-major
operand comes in panels: rows of ROW_BYTES along m or n, one for each k. TMA permutes the 16-byte
pieces of every eight rows (the 128-byte swizzle), as wgmma expects them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

ROW_BYTES = 128  # a row in shared memory: span of the swizzle, and depth of a stage
SWIZZLE_ROWS = 8  # rows that the swizzle permutes together
WARPGROUP = 128
WARPGROUP_ROWS = 64  # rows of the result that wgmma computes
STEPS = 4  # wgmma takes a quarter of a stage at a time
ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1}  # by kind


def make_init_ring(
    stages: int, frees: int, fills: int = 1, has_turns: bool = False
) -> Callable[..., Any]:
    """A device function: (full, empty) -> initialize the barriers of all stages, by one thread.

    Args:
        frees, fills: arrivals that free and that fill a stage.
        has_turns: True for two more barriers behind them, by which warpgroups take turns.
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


def make_skip(stages: int) -> Callable[..., Any]:
    """A device function: (stage, parity, count) -> the stage `count` after one, and its parity."""
    from numba import cuda, int32

    @cuda.jit(device=True, forceinline=True)
    def skip(stage, parity, count):
        reached = int32(stage + count)
        rounds = int32(reached // stages)
        return int32(reached - rounds * stages), int32((parity ^ rounds) & 1)

    return skip


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


def make_fetch_operand(
    extent: int, tile_k: int, is_across: bool, is_shared: bool = False
) -> Callable[..., Any]:
    """A device function: have TMA fill a part of a stage with a tile of one operand.

    Args:
        extent: rows of a tile of a, or columns of one of b.
        tile_k: k of a stage.
        is_across: True for an MN-major operand, which comes in panels.
        is_shared: True if two blocks read the same tile: each fetches half of its rows for both,
            which are k of a panel.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.hopper import copy_box, multicast_box
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    panel_bytes = tile_k * ROW_BYTES
    boxes = -(-extent // tile_k) if is_across else 1
    rows = (tile_k if is_across else extent) // (2 if is_shared else 1)
    corner = make_corner()

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
            place = corner(is_across, along + box * tile_k, depth, matrix)
            target: int32 = smem + box * panel_bytes
            if is_shared:
                multicast_box(target, tensor_map, barrier, place, 3)
            else:
                copy_box(target, tensor_map, barrier, place)

    return fetch_operand


class Load(NamedTuple):
    """Device functions of the producer.

    Attributes:
        begin: () -> the tensor maps of a and b.
        select: (work, tile, maps) -> those of a tile; maps are those of the tile before.
        fetch: (stage_smem, barrier, tile, depth, maps): have TMA fill a stage from k = depth on.
        stage_bytes: bytes that arrive for it.
    """

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
) -> Load:
    """Boxes of a and b by the kernel's tensor maps, or by those of a tile's group.

    Args:
        config: a `WgmmaConfig`.
        tile_k: k of a stage.
        a_across, b_across: True for MN-major operands.
        names: parameters of the tensor maps; None for those in a table, see `group_table`.
        parts: matrices whose sum is a matrix of a or b, one after the other.
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
    # Panels are whole, the last one too.
    b_bytes = (-(-config.tile_n // tile_k) * tile_k if b_across else config.tile_n) * ROW_BYTES
    fetch_a = make_fetch_operand(config.tile_m, tile_k, a_across)
    fetch_b = make_fetch_operand(config.tile_n, tile_k, b_across, config.is_paired)

    def begin():
        if by_table:
            maps = 0, 0, int32(-1)  # and the group that they are of
        else:
            maps = tensor_map(a_name), tensor_map(b_name)
            prefetch_tensor_map(maps[0])
            prefetch_tensor_map(maps[1])
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
            a_smem: int32 = stage_smem + part * a_bytes
            b_smem: int32 = stage_smem + parts * a_bytes + part * b_bytes
            a_matrix: int32 = tile.a_matrix * parts + part
            b_matrix: int32 = tile.b_matrix * parts + part
            fetch_a(a_smem, barrier, tile.row, depth, maps[0], a_matrix)
            fetch_b(b_smem, barrier, tile.col, depth, maps[1], b_matrix)

    begin, select, fetch = (device_function(unroll(f)) for f in (begin, select, fetch))
    return Load(begin, select, fetch, parts * (a_bytes + b_bytes))
