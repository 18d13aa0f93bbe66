"""The `store` of the frame `tma`: it writes the sums of a tile to global memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.chunk_store import CHUNK_COLS
from dxgemm.handwritten.parts.reduce_fragments import make_reduce_fragments
from dxgemm.handwritten.parts.rounded_store import BLOCK_COLS
from dxgemm.handwritten.parts.wgmma_mainloop import make_first_row
from dxgemm.handwritten.parts.wgmma_ring import WARPGROUP_ROWS
from dxgemm.handwritten.parts.wgmma_store import make_store_tile


class Result(NamedTuple):
    """Parameters of the kernel that stores read."""

    alpha: Any
    beta: Any
    c: Any
    out: Any
    m: Any
    n: Any
    batch: Any
    extra: Any


class Store(NamedTuple):
    """Device functions of the consumers.

    Attributes:
        begin: (result) -> `held`, a value that is the same for all tiles.
        store: (sums, smem, thread, tile, work, result, held): smem is the address of the shared
            memory for the stores of all warps.
    """

    begin: Callable[..., Any]
    store: Callable[..., None]


def make_store(
    config: Any,
    out_dtype: str,
    along_rows: bool = True,
    rows_are_split: bool = False,
    stored: str = "",
    epilogue: Any = None,
    acc_dtype: str = "float32",
    commutes: bool = True,
    prepare: Callable[..., Any] | None = None,
    skips_alpha: bool = False,
) -> Store:
    """Make the store of the result, by `make_store_tile`, or of its reduction along rows.

    Args:
        prepare: device function: (sums, thread, tile, work, result) -> the sums to store; None to
            store the sums unchanged.
        skips_alpha: True if the sums of a tile without k are 0 even if alpha is NaN.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, zeros
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    tile_n, chunk_bytes, strips = config.tile_n, config.chunk_bytes, config.strips
    # Stores take whole chunks, or blocks: columns beyond the tile count as beyond the result.
    missing, items, is_cut = -tile_n % CHUNK_COLS, tile_n // 2, tile_n % BLOCK_COLS != 0
    is_prepared, scalar = prepare is not None, {"float32": float32, "int32": int32}[acc_dtype]
    first_row = make_first_row(rows_are_split, config.is_pingpong)
    reduction = epilogue.reduction if epilogue is not None else None
    is_reduced, partials, count = reduction is not None, 0, 0
    allows_vectors = store_rows = reduce_fragments = None
    if reduction is not None:
        partials, count = len(epilogue.stage_operands), reduction.count
        reduce_fragments = make_reduce_fragments(epilogue, tile_n)
    else:
        allows_vectors, store_rows = make_store_tile(
            tile_n + missing, out_dtype, along_rows, rows_are_split, epilogue, acc_dtype, stored,
            commutes, chunk_bytes,
        )  # fmt: skip

    def begin(result):
        """True if vectors can be stored; for a reduction, slots per row, from a buffer's size."""
        if is_reduced:
            held = int32(result.extra[partials][1] // (count * result.m * result.batch))
        else:
            held = allows_vectors(result.m, result.n, result.beta, result.c, result.out)
        return held

    def store(sums, smem, thread, tile, work, result, held):
        lane: int32 = thread % 32
        chunk_smem: int32 = smem + thread // 32 * chunk_bytes
        end_col = result.n
        if is_cut:
            end_col = min(end_col, tile.col + tile_n)
        if is_prepared:
            sums = prepare(sums, thread, tile, work, result)
        alpha = result.alpha
        if skips_alpha:
            alpha = alpha if tile.end_k > tile.first_k else float32(0)
        for strip in static_range(strips):
            top: int32 = tile.row + first_row(thread) + strip * WARPGROUP_ROWS
            rows = sums[strip * items : strip * items + items]
            if missing:
                rows = rows + zeros(scalar, missing // 2)
            if is_reduced:
                reduce_fragments(
                    rows, lane, tile.matrix, held, top, tile.col, result.m, result.n, alpha,
                    result.beta, result.c, tile.matrix * result.c.batch, result.extra,
                )  # fmt: skip
            else:
                store_rows(
                    rows, chunk_smem, lane, tile.matrix, top, tile.col, tile.end_row, end_col,
                    held, alpha, result.beta, result.c, result.out, result.extra,
                )  # fmt: skip

    return Store(device_function(unroll(begin)), device_function(unroll(store)))
