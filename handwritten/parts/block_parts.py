"""Parts of tiles for the frame `block_tile`: one set for each way of multiplying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts import (
    line_boxes,
    line_mainloop,
    line_wgmma,
    mma_mainloop,
    ring,
    store,
    thread_mainloop,
)
from dxgemm.handwritten.parts.configs import LANES_M, LANES_N
from dxgemm.handwritten.parts.fragment import (
    Fragment,
    make_lane_corner,
    make_warp_corner,
    mma_fragment,
    thread_fragment,
)
from dxgemm.handwritten.parts.line_tiles import LINE_BYTES
from dxgemm.handwritten.parts.mma_operands import MMA_COLS, MMA_ROWS, make_operand_tile
from dxgemm.handwritten.parts.operands import ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.place import Tile
from dxgemm.handwritten.parts.result import Origin, Result
from dxgemm.handwritten.parts.tile_store import make_store_tile
from dxgemm.handwritten.parts.unroll import device


class Ways(NamedTuple):
    """Products of a tile by the ways in which their operands are copied.

    Attributes:
        fast, plain: device functions of the frame, with copies of 16 bytes, if the tile has such,
            and with those for any strides.
        boxes: those of arguments that TMA copies, or None.
    """

    fast: Callable[..., Any]
    plain: Callable[..., Any]
    boxes: line_boxes.Boxes | None = None


class TileParts(NamedTuple):
    """Parts of a tile that depend on how it multiplies.

    Attributes:
        reads_vectors: for a and b: True if the fast copies are of 16 bytes.
        needs_whole: True if these cannot end within 16 bytes.
        of_operands, of_kept: products of a and b, and of an a that is kept with b.
        corner: device function: (thread) -> row and column of its first element in the tile.
        fragment: its elements from there on.
        put: device function: (address of the kept tiles, r, k, values of `run` columns from k on).
        put_run: device function: (address of those of a thread's first ones, number of the run,
            values), where the tile begins at a stage of the kept ones; None where `put` does.
        place: device function: (address of the kept tiles, r, k) -> that of an element.
        run: neighbours in a row that consecutive registers are.
        store: device function: (sums, smem, thread, out operand, row, col, m, n).
    """

    reads_vectors: tuple[bool, bool]
    needs_whole: bool
    of_operands: Ways
    of_kept: Ways
    corner: Callable[..., Any]
    fragment: Fragment
    put: Callable[..., None]
    run: int
    store: Callable[..., None]
    put_run: Callable[..., None] | None = None
    place: Callable[..., Any] | None = None


def is_mma(config: Any) -> bool:
    """True for a config of `tensor_core`."""
    return hasattr(config, "tile_left")


def is_left(layouts: tuple[str, str]) -> bool:
    """True if a is the left operand of `mma.sync` of float64: see `mma_operands`."""
    return layouts == ("col", "col")


def make_sums(
    tile_k: int, fill: Callable[..., Any], multiply: Callable[..., Any]
) -> Callable[..., Any]:
    """The frame `ring` up to the sums: (smem, thread, work, tile, a, b, m, n, k) -> sums.

    It leaves the shared memory of the stages to the threads, none of which reads it any more.

    Args:
        tile_k, fill, multiply: see `ring.make_ring_kernel`.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import sync_block, wait_copies
    from dxgemm.handwritten.parts.unroll import device

    @device
    def ring_sums(smem, thread, work, tile, a, b, m, n, k):
        copies = fill(smem, thread, work, tile, a, b, m, n, k)
        k_tiles: int32 = (tile.end_k - tile.first_k + tile_k - 1) // tile_k
        sums = multiply(smem, thread, copies, k_tiles)
        wait_copies(0)
        sync_block()
        return sums

    return ring_sums


def make_store_sums(
    corner: Callable[..., Any], fragment: Fragment, tile: tuple[int, int], config: Any, dtype: str
) -> Callable[..., None]:
    """Make `TileParts.store` of the kernels whose threads store tiles of float32 or float64."""
    from numba import int32

    scalar = np.dtype(dtype).type
    store_tile = make_store_tile(fragment, tile, config.threads, dtype)

    @device
    def store_sums(sums, smem, thread, out, row, col, m, n):
        thread_row, thread_col = corner(thread)
        result = Result(scalar(1), scalar(0), out, out, m, n, 1, ())
        store_tile(sums, smem, int32(0), thread_row, thread_col, row, col, Origin(0, 0, 0), result)

    return store_sums


def make_thread_parts(
    config: Any, dtype: str, out_dtype: str, layouts: tuple[str, str], kept_at: int
) -> TileParts:
    """Products by multiply-adds: see `thread_mainloop`."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import outer_product, store_shared

    item_bytes = ITEM_BYTES[dtype]
    width, tile_k = VECTOR_BYTES // item_bytes, config.tile_k
    a_row_bytes = config.a_row_bytes(dtype)
    row_width = width if config.thread_m % width == 0 else width // 2
    fragment = thread_fragment(
        (config.thread_m, row_width, LANES_M * row_width),
        (config.thread_n, width, LANES_N * width),
    )  # fmt: skip
    corner = make_lane_corner(config, row_width, width)
    least = width * config.threads
    a_vectors = layouts[0] == "col" and config.tile_m * tile_k >= least
    b_vectors = layouts[1] == "row" and config.tile_n * tile_k >= least
    a_mode = "k" if layouts[0] == "row" else "outer"
    b_mode = "k" if layouts[1] == "col" else "outer"

    def sums_of(a_mode: str, b_mode: str, kept: int | None = None) -> Callable[..., Any]:
        load = thread_mainloop.make_load(config, dtype, a_mode, b_mode)
        multiply = thread_mainloop.make_multiply(
            config, dtype, row_width, load, outer_product, 1, kept
        )
        return make_sums(tile_k, load.fill, multiply)

    @device
    def put(smem, r, k, values):
        store_shared(int32(smem + k * a_row_bytes + r * item_bytes), 0, values)

    tile = config.tile_m, config.tile_n
    a_fast, b_fast = a_mode + "16" * a_vectors, b_mode + "16" * b_vectors
    kept = thread_mainloop.KEPT
    return TileParts(
        (a_vectors, b_vectors), False, Ways(sums_of(a_fast, b_fast), sums_of(a_mode, b_mode)),
        Ways(sums_of(kept, b_fast, kept_at), sums_of(kept, b_mode, kept_at)),
        corner, fragment, put, 1, make_store_sums(corner, fragment, tile, config, dtype),
    )  # fmt: skip


def make_line_parts(
    config: Any, dtype: str, out_dtype: str, layouts: tuple[str, str], kept_at: int
) -> TileParts:
    """Products of half precision by `mma.sync` or `wgmma`: see `line_mainloop`, `line_wgmma`."""
    from numba import float32, int32

    from dxgemm.handwritten.parts.addend import KINDS
    from dxgemm.handwritten.parts.hopper import pack_pair
    from dxgemm.handwritten.parts.intrinsics import store_shared

    kind, tile_k = KINDS[dtype], line_mainloop.stage_k(dtype)
    blocks = [(i, j) for i in range(config.warp_m // 16) for j in range(config.warp_n // 8)]
    fragment = Fragment(*zip(
        *((16 * i + row, 8 * j + col) for i, j in blocks for row in (0, 8) for col in (0, 1)),
        strict=True,
    ))  # fmt: skip
    warp_corner, tile_bytes = make_warp_corner(config), config.tile_m * LINE_BYTES

    @device
    def corner(thread):
        row, col = warp_corner(thread)
        lane: int32 = thread % 32
        return int32(row + lane // 4), int32(col + lane % 4 * 2)

    a_layout = "k16" if layouts[0] == "row" else "x16"
    b_layout = "k16" if layouts[1] == "col" else "x16"

    is_wgmma = isinstance(config, line_wgmma.WarpgroupConfig)
    boxes, kept_boxes, chunks_at = None, None, 0
    if is_wgmma:
        boxes = line_boxes.make_boxes(config, dtype, (a_layout, b_layout))
        kept_boxes = line_boxes.make_boxes(config, dtype, ("k16", b_layout), kept_at)
        chunks_at = config.chunks_at

    def sums_of(a_layout: str, b_layout: str, kept: int | None = None) -> Callable[..., Any]:
        lines = line_mainloop.make_line_tiles(config, dtype, a_layout, b_layout)
        copied = lines if kept is None else (None, lines[1])
        load = ring.make_load(config, tile_k, ITEM_BYTES[dtype], copied)
        if is_wgmma:
            layouts = a_layout, b_layout
            multiply = line_wgmma.make_multiply(config, dtype, layouts, load, kept)
        else:
            multiply = line_mainloop.make_multiply(config, dtype, lines, load, kept_a=kept)
        return make_sums(tile_k, load.fill, multiply)

    place = line_mainloop.make_line_tiles(config, dtype, "k16", b_layout)[0].place

    # Rows of a fragment are eights apart, and so are columns: a permuted chunk changes by XOR.
    runs = list(zip(fragment.rows[::2], fragment.cols[::2], strict=True))
    chunk_of = tuple(col % tile_k * ITEM_BYTES[dtype] for _, col in runs)
    line_of = tuple(row * LINE_BYTES + col // tile_k * tile_bytes for row, col in runs)

    @device
    def kept_place(smem, r, k):
        return int32(smem + k // tile_k * tile_bytes + place(r, int32(k % tile_k)))

    @device
    def put(smem, r, k, values):
        store_shared(kept_place(smem, r, k), 0, (pack_pair(kind, values[0], values[1]),))

    @device
    def put_run(first, number, values):
        at: int32 = first ^ chunk_of[number]
        store_shared(at, line_of[number], (pack_pair(kind, values[0], values[1]),))

    begin_store, store_tile = store.make_store(config, out_dtype)

    @device
    def store_sums(sums, smem, thread, out, row, col, m, n):
        none = int32(0)
        result = Result(float32(1), float32(0), out, out, m, n, 1, ())
        tile = Tile(none, none, none, int32(row), int32(col), m, none, none)
        chunks: int32 = smem + chunks_at
        store_tile(sums, chunks, thread, tile, none, result, begin_store(result))

    return TileParts(
        (True, True), True, Ways(sums_of(a_layout, b_layout), sums_of("each", "each"), boxes),
        Ways(sums_of("k16", b_layout, kept_at), sums_of("k16", "each", kept_at), kept_boxes),
        corner, fragment, put, 2, store_sums, put_run, kept_place,
    )  # fmt: skip


def make_mma_parts(
    config: Any, dtype: str, out_dtype: str, layouts: tuple[str, str], kept_at: int
) -> TileParts:
    """Products of float64 by `mma.sync`: see `mma_mainloop`."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import store_shared

    a_is_left = is_left(layouts)
    warp_left, warp_right, tile_k = config.warp_left, config.warp_right, config.tile_k
    tile = (config.tile_left, config.tile_right)[:: 1 if a_is_left else -1]
    warps_right = config.tile_right // warp_right
    tile_bytes = tile[0] * tile_k * ITEM_BYTES[dtype]
    fragment = mma_fragment(warp_left // MMA_ROWS, warp_right // MMA_COLS)
    fragment = fragment if a_is_left else fragment.transposed()

    @device
    def corner(thread):
        warp, group, member = int32(thread // 32), int32(thread % 32 // 4), int32(thread % 4)
        left: int32 = warp // warps_right * warp_left + group * 2
        right: int32 = warp % warps_right * warp_right + member * 2
        if a_is_left:
            row, col = left, right
        else:
            row, col = right, left
        return row, col

    # Layouts in which an operand is stored as its tiles are.
    fits = [layout == ("col" if a_is_left else "row") for layout in layouts]
    fast, plain = (["across" if not fit else mode for fit in fits] for mode in ("vector", "along"))

    def sums_of(modes: list[str], kept: int | None = None) -> Callable[..., Any]:
        left, right = modes if a_is_left else modes[::-1]
        sides = left, right
        stages = mma_mainloop.make_stages(config, dtype, a_is_left, sides, kept)
        fill, start = mma_mainloop.make_fill(config, stages)
        multiply = mma_mainloop.make_multiply(config, dtype, stages, start)
        return make_sums(tile_k, fill, multiply)

    side, extent = ("left", config.tile_left) if a_is_left else ("right", config.tile_right)
    warp_extent = warp_left if a_is_left else warp_right
    place = make_operand_tile(
        side, "along", extent, warp_extent, tile_k, config.threads, dtype
    ).place  # fmt: skip

    @device
    def put(smem, r, k, values):
        at: int32 = smem + k // tile_k * tile_bytes + place(r, int32(k % tile_k))
        store_shared(at, 0, values)

    return TileParts(
        (fits[0], fits[1]), True, Ways(sums_of(fast), sums_of(plain)),
        Ways(sums_of(fast, kept_at), sums_of(plain, kept_at)), corner, fragment, put, 1,
        make_store_sums(corner, fragment, tile, config, dtype),
    )  # fmt: skip
