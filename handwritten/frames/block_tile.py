"""A block's tile of a product for kernels of users: device functions made of parts of `ring`.

A kernel calls them with its arrays, and gets its threads' sums as arrays in registers. Each product
is there twice: with copies of 16 bytes, for operands in the layouts that the tile is made for, and
without, for any others; the strides and addresses decide at run time.
A tile of results may be kept in shared memory as the a of a second product: its tiles of a stage
follow one another after the ring, which then has stages of b alone.
Tiles by wgmma have TMA copy operands that are arguments of the kernel, if the launch gave these
tensor maps: their types say so, and the copies for others are not compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from dxgemm.handwritten.frames.ring import ALIGNMENT
from dxgemm.handwritten.parts.array_operand import (
    make_choice,
    make_operand,
    make_registers,
    put_registers,
    take_registers,
    tensor_map_of,
)
from dxgemm.handwritten.parts.block_parts import (
    TileParts,
    Ways,
    is_left,
    is_mma,
    make_line_parts,
    make_mma_parts,
    make_thread_parts,
)
from dxgemm.handwritten.parts.elementary import FUNCTIONS
from dxgemm.handwritten.parts.operands import HALVES, ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.place import Tile
from dxgemm.handwritten.parts.tile_order import make_tile_map
from dxgemm.handwritten.parts.tiles import smem_alignment
from dxgemm.handwritten.parts.unroll import device, static_range

ELEMENTARY = FUNCTIONS  # that users' kernels may call, by the names of `dxgemm.epilogues`
SWIZZLE_ROWS = 8  # of tiles that are computed together, so that they share data in L2


class BlockTile(NamedTuple):
    """Device functions of all threads of a block, as `dxgemm.device.tile` describes them."""

    origin_of: Callable[..., Any]
    origin: Callable[..., Any]
    accumulator: Callable[..., Any]
    apply: Callable[..., None]
    fetch: Callable[..., None]
    multiply: Callable[..., None]
    product: Callable[..., None]
    position: Callable[..., Any]
    store: Callable[..., None]
    keep: Callable[..., None] | None = None
    fetch_for_kept: Callable[..., None] | None = None
    multiply_kept: Callable[..., None] | None = None
    product_of_kept: Callable[..., None] | None = None


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
    smem_of, thread_of = block = _make_block()
    position = _make_position(parts, thread_of)
    a_allows, b_allows = (_make_allows(parts, dtype, layouts, number) for number in range(2))
    make_products = partial(_make_products, dtype=dtype, block=block)
    products = _make_operand_products(
        *make_products(parts.of_operands, orders=layouts, allows=(a_allows, b_allows))
    )
    store_tile, out_operand = parts.store, make_operand("out", out_dtype)
    count, sums = len(parts.fragment.rows), "float64" if dtype == "float64" else "float32"

    @device
    def apply(acc, function):
        for i in static_range(count):
            acc[i] = function(acc[i])

    @device
    def store(acc, out, row, col):
        store_tile(
            take_registers(count, acc), smem_of(), thread_of(), out_operand(out), row, col,
            out.shape[0], out.shape[1],
        )  # fmt: skip

    of_kept: list[Callable[..., None]] = []
    if kept:
        of_kept.append(_make_keep(config, dtype, parts, layouts, kept, smem_of, position))
        orders = layouts[1], layouts[1]  # b is in the place of both
        made = make_products(parts.of_kept, orders=orders, allows=(None, b_allows), names="bb")
        of_kept += _make_kept_products(*made, kept, count)
    origins = _make_origins(*extents(config, layouts))
    accumulator = make_registers(sums, count)
    functions = *origins, accumulator, apply, *products, position, store, *of_kept
    return BlockTile(*functions)


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


def _make_origins(tile_m: int, tile_n: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The device functions origin_of and origin."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import cuda

    locate, _ = make_tile_map(tile_m, tile_n, SWIZZLE_ROWS, "")

    @device
    def origin_of(index, m, n):
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        _, row, col = locate(int32(index), tiles_m, tiles_n)
        return row, col

    @device
    def origin(m, n):
        return origin_of(cuda.blockIdx.x, m, n)

    return origin_of, origin


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
    """A device function: True if an operand of rows x cols allows the fast copies of its layout.

    None if there are none.
    """
    if not parts.reads_vectors[number]:
        return None
    from dxgemm.handwritten.parts.intrinsics import global_address

    item_bytes, is_whole, along_row = ITEM_BYTES[dtype], parts.needs_whole, layouts[number] == "row"

    @device
    def allows(operand, rows, cols):
        unit, other = (operand.col, operand.row) if along_row else (operand.row, operand.col)
        place = global_address(operand.data) | other * item_bytes
        if is_whole:
            place |= (cols if along_row else rows) * item_bytes
        return unit == 1 and place % VECTOR_BYTES == 0

    return allows


def _make_products(
    ways: Ways,
    *,
    dtype: str,
    orders: tuple[str, str],
    allows: tuple[Any, ...],
    block: Any,
    names: str = "ab",
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Device functions (a, b, row, col, k): fetch, and multiply, which takes the sums first.

    Args:
        orders: layouts in which TMA copies a and b.
        allows: of a and of b, as `_make_allows` makes them; None of an a that is kept, in whose
            place there is b.
        block: the device functions of `_make_block`.
        names: names of the operands in errors.
    """  # fmt: skip
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import sync_block

    (smem_of, thread_of), (a_allows, b_allows) = block, allows
    a_operand, b_operand = (make_operand(name, dtype) for name in names)
    fast, plain, boxes = ways
    checks_a, checks_b = a_allows is not None, b_allows is not None
    has_fast = checks_a or checks_b

    @device
    def fetch(a, b, row, col, k):
        """Threads copy as they multiply."""

    @device
    def multiply(a, b, row, col, k):
        sync_block()  # others may still use the shared memory, or write what is kept
        left, right, k = a_operand(a), b_operand(b), int32(k)
        m, n, smem, thread, none = a.shape[0], b.shape[1], smem_of(), thread_of(), int32(0)
        tile = Tile(none, none, none, row, col, m, none, k)
        is_fast = has_fast
        if checks_a:
            is_fast = a_allows(left, m, k)
        if checks_b:
            is_fast = is_fast and b_allows(right, k, n)
        if has_fast:
            if is_fast:
                sums = fast(smem, thread, none, tile, left, right, m, n, k)
            else:
                sums = plain(smem, thread, none, tile, left, right, m, n, k)
        else:
            sums = plain(smem, thread, none, tile, left, right, m, n, k)
        return sums

    if boxes is not None:
        fetch_boxes, multiply_boxes = boxes

        @device
        def fetch_mapped(a, b, row, col, k):
            maps = tensor_map_of(a), tensor_map_of(b)
            fetch_boxes(smem_of(), thread_of(), maps, int32(row), int32(col), int32(k))

        @device
        def multiply_mapped(a, b, row, col, k):
            maps = tensor_map_of(a), tensor_map_of(b)
            return multiply_boxes(smem_of(), thread_of(), maps, int32(row), int32(col), int32(k))

        fetch = make_choice(orders, fetch_mapped, fetch)
        multiply = make_choice(orders, multiply_mapped, multiply)

    @device
    def put_sums(acc, a, b, row, col, k):
        put_registers(acc, multiply(a, b, row, col, k))

    return fetch, put_sums


def _make_operand_products(fetch_tile: Any, put_sums: Any) -> tuple[Callable[..., None], ...]:
    """The device functions fetch, multiply and product."""

    @device
    def fetch(a, b, row, col):
        fetch_tile(a, b, row, col, min(a.shape[1], b.shape[0]))

    @device
    def multiply(acc, a, b, row, col):
        put_sums(acc, a, b, row, col, min(a.shape[1], b.shape[0]))

    @device
    def product(acc, a, b, row, col):
        fetch(a, b, row, col)
        multiply(acc, a, b, row, col)

    return fetch, multiply, product


def _make_kept_products(
    fetch_tile: Any, put_sums: Any, kept: int, count: int
) -> tuple[Callable[..., None], ...]:
    """The device functions fetch_for_kept, multiply_kept and product_of_kept.

    More rows of b than columns are kept make a result of NaN, where the launch could not refuse
    them, as it does an argument of the kernel.
    """

    @device
    def fetch_for_kept(b, col):
        fetch_tile(b, b, 0, col, min(b.shape[0], kept))

    @device
    def multiply_kept(acc, b, col):
        put_sums(acc, b, b, 0, col, min(b.shape[0], kept))
        if b.shape[0] > kept:
            for i in static_range(count):
                acc[i] = math.nan

    @device
    def product_of_kept(acc, b, col):
        fetch_for_kept(b, col)
        multiply_kept(acc, b, col)

    return fetch_for_kept, multiply_kept, product_of_kept


def _make_keep(
    config: Any, dtype: str, parts: TileParts, layouts: tuple[str, str], kept: int, smem_of: Any,
    position: Any,
) -> Callable[..., None]:  # fmt: skip
    """The device function keep."""
    from numba import float32, float64, int32

    put, run, count = parts.put, parts.run, len(parts.fragment.rows)
    put_run, place, has_runs = parts.put_run, parts.place, parts.put_run is not None
    tile_k = config.tile_k
    start, (_, tile_n) = ring_bytes(config, dtype), extents(config, layouts)
    scalar = float64 if dtype == "float64" else float32
    room = -(-kept // config.tile_k) * config.tile_k

    @device
    def keep(acc, col, cols):
        smem: int32 = smem_of() + start
        sums = take_registers(count, acc)
        if col + tile_n <= cols and col + tile_n <= room and col % tile_k == 0:
            if has_runs:  # few addresses, so little code, which runs once
                r, c = position(0)
                first = place(smem, r, int32(col + c))
                for number in static_range(count // run):
                    put_run(first, number, sums[run * number : run * number + run])
            else:
                for i in static_range(0, count, run):
                    r, c = position(i)
                    put(smem, r, int32(col + c), sums[i : i + run])
        else:
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
                if k < room:
                    put(smem, r, k, values)

    return keep
