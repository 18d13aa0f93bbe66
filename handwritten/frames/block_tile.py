"""A block's tile of a product for kernels of users: device functions made of parts of `ring`.

A kernel calls them with its arrays, and gets its threads' sums as arrays in registers. Each product
is there twice: with copies of 16 bytes, for operands in the layouts that the tile is made for, and
without, for any others; the strides and addresses decide at run time.
A tile of results may be kept in shared memory as the a of a second product: its tiles of a stage
follow one another behind the ring, which then has stages of b alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.frames.ring import ALIGNMENT
from dxgemm.handwritten.parts import line_mainloop, line_wgmma, ring, store, thread_mainloop
from dxgemm.handwritten.parts.array_operand import (
    make_operand,
    make_registers,
    put_registers,
    take_registers,
)
from dxgemm.handwritten.parts.configs import (
    LANES_M,
    LANES_N,
    SMEM_BYTES_PER_BLOCK,
    LineConfig,
)
from dxgemm.handwritten.parts.fragment import (
    Fragment,
    make_lane_corner,
    make_warp_corner,
    mma_fragment,
    thread_fragment,
)
from dxgemm.handwritten.parts.line_tiles import LINE_BYTES
from dxgemm.handwritten.parts.line_wgmma import LEAST_STAGES
from dxgemm.handwritten.parts.mma_mainloop import make_load_and_multiply
from dxgemm.handwritten.parts.mma_operands import MMA_COLS, MMA_ROWS, make_operand_tile
from dxgemm.handwritten.parts.operands import HALVES, ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.place import Tile
from dxgemm.handwritten.parts.result import Origin, Result
from dxgemm.handwritten.parts.tile_order import make_tile_map
from dxgemm.handwritten.parts.tile_store import make_store_tile
from dxgemm.handwritten.parts.tiles import smem_alignment
from dxgemm.handwritten.parts.unroll import device, static_range
from dxgemm.handwritten.parts.wgmma_ring import WARPGROUP_ROWS


@dataclass(frozen=True)
class WarpgroupConfig(LineConfig):
    """Block tile tile_m x tile_n by `wgmma`: 64 rows per warpgroup, 16 per warp."""

    tile_m: int
    tile_n: int
    stages: int

    warp_m = 16

    @property
    def warp_n(self) -> int:  # type: ignore[override]
        return self.tile_n

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.tile_m % WARPGROUP_ROWS or self.stages < LEAST_STAGES:
            yield f"tiles have multiples of {WARPGROUP_ROWS} rows, rings {LEAST_STAGES} stages"

    def accumulator_bytes(self, dtype: str) -> int:
        return self.tile_n * 2

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM: as many as the stages and 128 registers allow."""
        return max(1, min(2 * 256 // self.threads, SMEM_BYTES_PER_BLOCK // self.smem_bytes(dtype)))

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n} wgmma stages {self.stages}"


WARPGROUP_CONFIGS = (
    WarpgroupConfig(128, 128, stages=3),
    WarpgroupConfig(64, 128, stages=3),
    WarpgroupConfig(128, 256, stages=4),
    WarpgroupConfig(64, 64, stages=4),
)
SWIZZLE_ROWS = 8  # of tiles that are computed together, so that they share what is in L2


class BlockTile(NamedTuple):
    """Device functions of all threads of a block; r and c are a place in the tile.

    Attributes:
        origin: (m, n) -> row and column of the block's tile in a result of m x n.
        accumulator: () -> a thread's array of sums.
        product: (acc, a, b, row, col): the sums of a[row:, :] @ b[:, col:].
        product_of_kept: (acc, b, col): those of the kept tiles with b[:, col:].
        position: (i) -> r and c of element i of a thread's sums.
        keep: (acc, col, cols): keep the sums as columns col and on of a matrix of so many columns.
        store: (acc, out, row, col).
    """

    origin: Callable[..., Any]
    accumulator: Callable[..., Any]
    product: Callable[..., None]
    product_of_kept: Callable[..., None] | None
    position: Callable[..., Any]
    keep: Callable[..., None] | None
    store: Callable[..., None]


class _Parts(NamedTuple):
    """What differs by the way of multiplying.

    Attributes:
        reads_vectors: for a and b: True if the fast copies are of 16 bytes.
        needs_whole: True if these cannot end within 16 bytes.
        fast, plain: device functions of the frame, with the fast copies and with those for any
            strides.
        kept_fast, kept_plain: the same with an a that is kept.
        corner: device function: (thread) -> row and column of its first element in the tile.
        fragment: its elements from there on.
        put: device function: (address of the kept tiles, r, k, values of `run` columns from k on).
        run: neighbours in a row that consecutive registers are.
        store: device function: (sums, smem, thread, out operand, row, col, m, n).
    """

    reads_vectors: tuple[bool, bool]
    needs_whole: bool
    fast: Callable[..., Any]
    plain: Callable[..., Any]
    kept_fast: Callable[..., Any]
    kept_plain: Callable[..., Any]
    corner: Callable[..., Any]
    fragment: Fragment
    put: Callable[..., None]
    run: int
    store: Callable[..., None]


def is_mma(config: Any) -> bool:
    """True for a config of `tensor_core`."""
    return hasattr(config, "tile_left")


def is_left(layouts: tuple[str, str]) -> bool:
    """True if a is the left operand of `mma.sync` of float64: see `mma_operands`."""
    return layouts == ("col", "col")


def extents(config: Any, layouts: tuple[str, str]) -> tuple[int, int]:
    """Rows and columns of a block's tile."""
    if is_mma(config) and is_left(layouts):
        return config.tile_left, config.tile_right
    return config.tile_m, config.tile_n


def ring_bytes(config: Any, dtype: str) -> int:
    """Shared memory of products and stores, in bytes: kept tiles begin behind it."""
    size: int = config.smem_bytes(dtype)
    return -(-size // ALIGNMENT) * ALIGNMENT


def kept_bytes(config: Any, dtype: str, layouts: tuple[str, str], kept: int) -> int:
    """Shared memory of so many kept columns, in bytes."""
    tile_m, _ = extents(config, layouts)
    if dtype in HALVES:
        depth, stage_bytes = line_mainloop.stage_k(dtype), tile_m * LINE_BYTES
    elif is_mma(config):
        depth, stage_bytes = config.tile_k, tile_m * config.tile_k * ITEM_BYTES[dtype]
    else:
        depth, stage_bytes = config.tile_k, config.tile_k * config.a_row_bytes(dtype)
    return -(-kept // depth) * stage_bytes


def make_block_tile(
    config: Any, dtype: str, out_dtype: str, layouts: tuple[str, str], kept: int
) -> BlockTile:
    """Make the device functions of a config of `tuned`, `tensor_core` or `tensor_tile`.

    Args:
        layouts: of a and b, "row" or "col": the one that is fast.
        kept: columns of the tiles that can be kept; 0 for none.
    """
    make_parts = _make_thread_parts
    if dtype in HALVES or is_mma(config):
        make_parts = _make_line_parts if dtype in HALVES else _make_mma_parts
    parts = make_parts(config, dtype, out_dtype, layouts, ring_bytes(config, dtype))
    smem_of, thread_of = _make_block()
    position = _make_position(parts, thread_of)
    product = _make_product(parts, dtype, layouts, smem_of, thread_of)
    store_tile, out_operand = parts.store, make_operand("out", out_dtype)
    count, sums = len(parts.fragment.rows), "float64" if dtype == "float64" else "float32"

    @device
    def store(acc, out, row, col):
        store_tile(
            take_registers(count, acc), smem_of(), thread_of(), out_operand(out), row, col,
            out.shape[0], out.shape[1],
        )  # fmt: skip

    keep, product_of_kept = None, None
    if kept:
        block = smem_of, thread_of, position
        keep, product_of_kept = _make_kept(config, dtype, parts, layouts, kept, block)
    locate = _make_locate(*extents(config, layouts))
    accumulator = make_registers(sums, count)
    return BlockTile(locate, accumulator, product, product_of_kept, position, keep, store)


def _make_sums(
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


def _make_block() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions: address of the block's shared memory; index of the thread."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import cuda, shared_address

    alignment = smem_alignment() and ALIGNMENT

    @device
    def smem_of():
        return int32(shared_address(cuda.shared.array(0, int32, alignment)))

    @device
    def thread_of():
        return int32(cuda.threadIdx.x & 1023)

    return smem_of, thread_of


def _make_locate(tile_m: int, tile_n: int) -> Callable[..., Any]:
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import cuda

    locate, _ = make_tile_map(tile_m, tile_n, SWIZZLE_ROWS, "")

    @device
    def origin(m, n):
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        _, row, col = locate(int32(cuda.blockIdx.x), tiles_m, tiles_n)
        return row, col

    return origin


def _make_position(parts: _Parts, thread_of: Callable[..., Any]) -> Callable[..., Any]:
    from numba import int32

    corner, (rows, cols) = parts.corner, parts.fragment
    bits = len(rows).bit_length() - 1
    # All extents are powers of two: a place is the sum of those of its index's bits.
    row_steps = tuple(rows[1 << bit] for bit in range(bits))
    col_steps = tuple(cols[1 << bit] for bit in range(bits))

    @device
    def position(i):
        row, col = corner(thread_of())
        for bit in static_range(bits):
            row = int32(row + (i >> bit & 1) * row_steps[bit])
            col = int32(col + (i >> bit & 1) * col_steps[bit])
        return row, col

    return position


def _make_allows(parts: _Parts, dtype: str, layouts: tuple[str, str], number: int) -> Any:
    """A device function: True if an operand of rows x cols allows the fast copies of its layout."""
    from dxgemm.handwritten.parts.intrinsics import global_address

    item_bytes, is_whole, along_row = ITEM_BYTES[dtype], parts.needs_whole, layouts[number] == "row"
    has_vectors = parts.reads_vectors[number]

    @device
    def allows(operand, rows, cols):
        unit, other = (operand.col, operand.row) if along_row else (operand.row, operand.col)
        place = global_address(operand.data) | other * item_bytes
        if is_whole:
            place |= (cols if along_row else rows) * item_bytes
        return not has_vectors or (unit == 1 and place % VECTOR_BYTES == 0)

    return allows


def _make_product(
    parts: _Parts, dtype: str, layouts: tuple[str, str], smem_of: Any, thread_of: Any
) -> Callable[..., None]:
    """The device function product."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import sync_block

    a_operand, b_operand = make_operand("a", dtype), make_operand("b", dtype)
    fast, plain, is_single = parts.fast, parts.plain, not any(parts.reads_vectors)
    a_allows, b_allows = (_make_allows(parts, dtype, layouts, number) for number in range(2))

    @device
    def product(acc, a, b, row, col):
        sync_block()  # others may still use the shared memory
        left, right, k = a_operand(a), b_operand(b), int32(a.shape[1])
        m, n, smem, thread = a.shape[0], b.shape[1], smem_of(), thread_of()
        none = int32(0)
        tile = Tile(none, none, none, row, col, m, none, k)
        if is_single:
            sums = plain(smem, thread, none, tile, left, right, m, n, k)
        else:
            is_fast = a_allows(left, m, k) and b_allows(right, k, n)
            if is_fast:
                sums = fast(smem, thread, none, tile, left, right, m, n, k)
            else:
                sums = plain(smem, thread, none, tile, left, right, m, n, k)
        put_registers(acc, sums)

    return product


def _make_kept(
    config: Any, dtype: str, parts: _Parts, layouts: tuple[str, str], kept: int, block: Any
) -> tuple[Callable[..., None], Callable[..., None]]:
    """The device functions keep and product_of_kept."""
    from numba import float32, float64, int32

    from dxgemm.handwritten.parts.intrinsics import sync_block

    smem_of, thread_of, position = block
    b_operand, is_single = make_operand("b", dtype), not parts.reads_vectors[1]
    b_allows = _make_allows(parts, dtype, layouts, 1)
    fast, plain, put, run = parts.kept_fast, parts.kept_plain, parts.put, parts.run
    count, start = len(parts.fragment.rows), ring_bytes(config, dtype)
    tile_m, _ = extents(config, layouts)
    scalar = float64 if dtype == "float64" else float32

    @device
    def keep(acc, col, cols):
        smem: int32 = smem_of() + start
        sums = take_registers(count, acc)
        for i in static_range(0, count, run):
            r, c = position(i)
            k: int32 = col + c
            # Columns behind the last are k of the next product, to which they must not add.
            values = ()
            for j in static_range(run):
                value = sums[i + j]
                if k + j >= cols:
                    value = scalar(0)
                values = values + (value,)
            if k < kept:
                put(smem, r, k, values)

    @device
    def product_of_kept(acc, b, col):
        sync_block()  # others may still use the shared memory, or write what is kept
        right, k, none = b_operand(b), int32(b.shape[0]), int32(0)
        smem, thread, m, n = smem_of(), thread_of(), int32(tile_m), b.shape[1]
        tile = Tile(none, none, none, none, col, m, none, k)
        if is_single:
            sums = plain(smem, thread, none, tile, right, right, m, n, k)
        else:
            if b_allows(right, k, n):
                sums = fast(smem, thread, none, tile, right, right, m, n, k)
            else:
                sums = plain(smem, thread, none, tile, right, right, m, n, k)
        put_registers(acc, sums)

    return keep, product_of_kept


def _make_thread_parts(
    config: Any, dtype: str, out_dtype: str, layouts: tuple[str, str], kept_at: int
) -> _Parts:
    """Products by multiply-adds: see `thread_mainloop`."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import outer_product, store_shared

    item_bytes, scalar = ITEM_BYTES[dtype], np.dtype(dtype).type
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
        return _make_sums(tile_k, load.fill, multiply)

    @device
    def put(smem, r, k, values):
        store_shared(int32(smem + k * a_row_bytes + r * item_bytes), 0, values)

    store_tile = make_store_tile(fragment, (config.tile_m, config.tile_n), config.threads, dtype)

    @device
    def store_sums(sums, smem, thread, out, row, col, m, n):
        thread_row, thread_col = corner(thread)
        result = Result(scalar(1), scalar(0), out, out, m, n, 1, ())
        store_tile(sums, smem, int32(0), thread_row, thread_col, row, col, Origin(0, 0, 0), result)

    a_fast, b_fast = a_mode + "16" * a_vectors, b_mode + "16" * b_vectors
    kept = thread_mainloop.KEPT
    return _Parts(
        (a_vectors, b_vectors), False, sums_of(a_fast, b_fast), sums_of(a_mode, b_mode),
        sums_of(kept, b_fast, kept_at), sums_of(kept, b_mode, kept_at),
        corner, fragment, put, 1, store_sums,
    )  # fmt: skip


def _make_line_parts(
    config: Any, dtype: str, out_dtype: str, layouts: tuple[str, str], kept_at: int
) -> _Parts:
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

    def sums_of(a_layout: str, b_layout: str, kept: int | None = None) -> Callable[..., Any]:
        lines = line_mainloop.make_line_tiles(config, dtype, a_layout, b_layout)
        copied = lines if kept is None else (None, lines[1])
        load = ring.make_load(config, tile_k, ITEM_BYTES[dtype], copied)
        if isinstance(config, WarpgroupConfig):
            layouts = a_layout, b_layout
            multiply = line_wgmma.make_multiply(config, dtype, layouts, load, kept)
        else:
            multiply = line_mainloop.make_multiply(config, dtype, lines, load, kept_a=kept)
        return _make_sums(tile_k, load.fill, multiply)

    place = line_mainloop.make_line_tiles(config, dtype, "k16", b_layout)[0].place

    @device
    def put(smem, r, k, values):
        at: int32 = smem + k // tile_k * tile_bytes + place(r, int32(k % tile_k))
        store_shared(at, 0, (pack_pair(kind, values[0], values[1]),))

    begin_store, store_tile = store.make_store(config, out_dtype)

    @device
    def store_sums(sums, smem, thread, out, row, col, m, n):
        none = int32(0)
        result = Result(float32(1), float32(0), out, out, m, n, 1, ())
        tile = Tile(none, none, none, int32(row), int32(col), m, none, none)
        store_tile(sums, smem, thread, tile, none, result, begin_store(result))

    return _Parts(
        (True, True), True, sums_of(a_layout, b_layout), sums_of("each", "each"),
        sums_of("k16", b_layout, kept_at), sums_of("k16", "each", kept_at),
        corner, fragment, put, 2, store_sums,
    )  # fmt: skip


def _make_mma_parts(
    config: Any, dtype: str, out_dtype: str, layouts: tuple[str, str], kept_at: int
) -> _Parts:
    """Products of float64 by `mma.sync`: see `mma_mainloop`."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import store_shared

    a_is_left, scalar = is_left(layouts), np.dtype(dtype).type
    warp_left, warp_right, tile_k = config.warp_left, config.warp_right, config.tile_k
    warps_right, tile = config.tile_right // warp_right, extents(config, layouts)
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

    # Layouts in which an operand lies in memory as its tiles do.
    fits = [layout == ("col" if a_is_left else "row") for layout in layouts]
    fast, plain = (["across" if not fit else mode for fit in fits] for mode in ("vector", "along"))

    def sums_of(modes: list[str], kept: int | None = None) -> Callable[..., Any]:
        left, right = modes if a_is_left else modes[::-1]
        sides = left, right
        return _make_sums(tile_k, *make_load_and_multiply(config, dtype, a_is_left, sides, kept))

    side, extent = ("left", config.tile_left) if a_is_left else ("right", config.tile_right)
    warp_extent = warp_left if a_is_left else warp_right
    place = make_operand_tile(
        side, "along", extent, warp_extent, tile_k, config.threads, dtype
    ).place  # fmt: skip

    @device
    def put(smem, r, k, values):
        at: int32 = smem + k // tile_k * tile_bytes + place(r, int32(k % tile_k))
        store_shared(at, 0, values)

    store_tile = make_store_tile(fragment, tile, config.threads, dtype)

    @device
    def store_sums(sums, smem, thread, out, row, col, m, n):
        thread_row, thread_col = corner(thread)
        result = Result(scalar(1), scalar(0), out, out, m, n, 1, ())
        store_tile(sums, smem, int32(0), thread_row, thread_col, row, col, Origin(0, 0, 0), result)

    return _Parts(
        (fits[0], fits[1]), True, sums_of(fast), sums_of(plain), sums_of(fast, kept_at),
        sums_of(plain, kept_at), corner, fragment, put, 1, store_sums,
    )  # fmt: skip
