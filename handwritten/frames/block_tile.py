"""A block's tile of a product for kernels of users: device functions made of parts of `ring`.

A kernel calls them with its arrays, and gets its threads' sums as arrays in registers. Each product
is there twice: with copies of 16 bytes, for operands in the layouts that the tile is made for, and
without, for any others; the strides and addresses decide at run time.
A tile of results may be kept in shared memory as the a of a second product: its tiles of a stage
follow one another after the ring, which then has stages of b alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.frames.ring import ALIGNMENT
from dxgemm.handwritten.parts.array_operand import (
    make_operand,
    make_registers,
    put_registers,
    take_registers,
)
from dxgemm.handwritten.parts.block_parts import (
    TileParts,
    is_left,
    is_mma,
    make_line_parts,
    make_mma_parts,
    make_thread_parts,
)
from dxgemm.handwritten.parts.operands import HALVES, ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.place import Tile
from dxgemm.handwritten.parts.tile_order import make_tile_map
from dxgemm.handwritten.parts.tiles import smem_alignment
from dxgemm.handwritten.parts.unroll import device, static_range

SWIZZLE_ROWS = 8  # of tiles that are computed together, so that they share data in L2


class BlockTile(NamedTuple):
    """Device functions of all threads of a block; r and c are a row and a column of the tile.

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


def extents(config: Any, layouts: tuple[str, str]) -> tuple[int, int]:
    """Rows and columns of a block's tile."""
    if is_mma(config) and is_left(layouts):
        return config.tile_left, config.tile_right
    return config.tile_m, config.tile_n


def ring_bytes(config: Any, dtype: str) -> int:
    """Shared memory of products and stores, in bytes: kept tiles begin after it."""
    size: int = config.smem_bytes(dtype)
    return -(-size // ALIGNMENT) * ALIGNMENT


def kept_bytes(config: Any, dtype: str, layouts: tuple[str, str], kept: int) -> int:
    """Shared memory of so many kept columns, in whole stages, in bytes."""
    tile_m, _ = extents(config, layouts)
    stage_bytes = tile_m * config.tile_k * ITEM_BYTES[dtype]
    if not (dtype in HALVES or is_mma(config)):
        stage_bytes = config.tile_k * config.a_row_bytes(dtype)
    return -(-kept // config.tile_k) * stage_bytes


def make_block_tile(
    config: Any, dtype: str, out_dtype: str, layouts: tuple[str, str], kept: int
) -> BlockTile:
    """Make the device functions of a config of `tuned`, `tensor_core` or `tensor_tile`.

    Args:
        layouts: of a and b, "row" or "col": the one that is fast.
        kept: columns of the tiles that can be kept; 0 for none.
    """
    make_parts = make_thread_parts
    if dtype in HALVES or is_mma(config):
        make_parts = make_line_parts if dtype in HALVES else make_mma_parts
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


def _make_position(parts: TileParts, thread_of: Callable[..., Any]) -> Callable[..., Any]:
    from numba import int32

    corner, (rows, cols) = parts.corner, parts.fragment
    bits = len(rows).bit_length() - 1
    # All extents are powers of two: an offset is the sum of those of its index's bits.
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


def _make_allows(parts: TileParts, dtype: str, layouts: tuple[str, str], number: int) -> Any:
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
    parts: TileParts, dtype: str, layouts: tuple[str, str], smem_of: Any, thread_of: Any
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
    config: Any, dtype: str, parts: TileParts, layouts: tuple[str, str], kept: int, block: Any
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
    room = -(-kept // config.tile_k) * config.tile_k

    @device
    def keep(acc, col, cols):
        smem: int32 = smem_of() + start
        sums = take_registers(count, acc)
        for i in static_range(0, count, run):
            r, c = position(i)
            k: int32 = col + c
            # Columns beyond the last are k of the next product, to which they must not add.
            values = ()
            for j in static_range(run):
                value = sums[i + j]
                if k + j >= cols:
                    value = scalar(0)
                values = values + (value,)
            if k < room:
                put(smem, r, k, values)

    @device
    def product_of_kept(acc, b, col):
        sync_block()  # others may still use the shared memory, or write the kept tile
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
