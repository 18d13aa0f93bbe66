"""The `store` of the frames `tma` and `ring`: the sums of a tile to global memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.chunk_store import CHUNK_COLS
from dxgemm.handwritten.parts.fragment import make_warp_corner
from dxgemm.handwritten.parts.operands import ITEM_BYTES, ROUNDED, VECTOR_BYTES
from dxgemm.handwritten.parts.reduce_fragments import make_reduce_fragments
from dxgemm.handwritten.parts.result import Piece, Result
from dxgemm.handwritten.parts.rounded_store import block_cols
from dxgemm.handwritten.parts.triangle import OTHER, stores
from dxgemm.handwritten.parts.unroll import Operand, device, static_range
from dxgemm.handwritten.parts.wgmma_store import make_allows_vectors, make_side

PIECE_ROWS = 16  # of a warp that are stored at a time


class Store(NamedTuple):
    """Device functions of the consumers.

    Attributes:
        begin: (result) -> `held`, a value that is the same for all tiles.
        store: (sums, smem, thread, tile, work, result, held): smem is the address of the shared
            memory for the stores of all warps.
    """

    begin: Callable[..., Any]
    store: Callable[..., None]


def make_again() -> Callable[..., Any]:
    """A device function: (piece, result, is mirrored) -> the same, for one of several stores.

    Each store computes its addresses again: kept live from tile to tile, they cost registers.
    """
    from dxgemm.handwritten.parts.intrinsics import opaque

    @device
    def again(piece, result, is_mirrored):
        matrix, top, left, end_row, end_col = piece
        alpha, beta, c, out, m, n, batch, extra = result
        c_row, c_col, out_row, out_col = c.row, c.col, out.row, out.col
        if is_mirrored:
            c_row, c_col, out_row, out_col = c.col, c.row, out.col, out.row
        c = Operand(c.data, opaque(c.batch), opaque(c_row), opaque(c_col))
        out = Operand(out.data, opaque(out.batch), opaque(out_row), opaque(out_col))
        return (
            Piece(opaque(matrix), opaque(top), opaque(left), opaque(end_row), opaque(end_col)),
            Result(alpha, beta, c, out, m, n, batch, extra),
        )

    return again


def make_store(
    config: Any,
    out_dtype: str,
    along_rows: bool = True,
    row_order: str = "",
    stored: str = "",
    epilogue: Any = None,
    acc_dtype: str = "float32",
    commutes: bool = True,
    prepare: Callable[..., Any] | None = None,
    skips_alpha: bool = False,
) -> Store:
    """The result, by `make_side`, 16 rows of a warp at a time, or its reduction along rows.

    Args:
        config: has a warp's share of the tile, warp_m x warp_n, and the shared memory of its store.
        along_rows, row_order, epilogue, acc_dtype: see `make_side`.
        stored: triangles of a symmetric result that are written, directly, as the mirror image, or
            both: see `triangle.stores`; "" for all of another result.
        commutes: False if elements on both sides of a tile's diagonal may differ in their bits.
        prepare: device function: (sums, lane, top, left, tile, result) -> the sums to store, of 16
            rows of the result from row `top` and column `left` on; None for the same.
        skips_alpha: True if the sums of a tile without k are 0 even if alpha is NaN.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import opaque, zeros

    warp_n, chunk_bytes = config.warp_n, config.chunk_bytes
    pieces, items = config.warp_m // PIECE_ROWS, warp_n * PIECE_ROWS // 32
    # Stores take whole chunks, or blocks: columns beyond the warp's count as beyond the result.
    missing = -warp_n % CHUNK_COLS
    is_cut = warp_n % (block_cols(out_dtype) if out_dtype in ROUNDED else CHUNK_COLS) != 0
    cuts_vectors = along_rows and warp_n * ITEM_BYTES[out_dtype] % VECTOR_BYTES != 0
    is_prepared, scalar = prepare is not None, {"float32": float32, "int32": int32}[acc_dtype]
    corner, piece_step = make_warp_corner(config, row_order), config.piece_step
    again = make_again()
    reduction = epilogue.reduction if epilogue is not None else None
    is_reduced, partials, count = reduction is not None, 0, 0
    allows_vectors = make_allows_vectors(ITEM_BYTES[out_dtype], along_rows)
    is_symmetric, reduce_fragments = stored != "", None
    sides: tuple[Any, ...] = ()
    are_mirrored: tuple[bool, ...] = ()
    if reduction is not None:
        partials, count = len(epilogue.stage_operands), reduction.count
        reduce_fragments = make_reduce_fragments(epilogue, warp_n)
    else:
        kinds = stores(stored if along_rows else OTHER[stored], epilogue, commutes)
        are_mirrored = tuple(is_mirrored for is_mirrored, _ in kinds)
        # A mirror image is the same tile of the transposed result.
        sides = tuple(
            make_side(
                warp_n + missing, out_dtype, along_rows is not is_mirrored, row_order,
                epilogue, acc_dtype, side, chunk_bytes,
            )
            for is_mirrored, side in kinds
        )  # fmt: skip

    @device
    def begin(result):
        """True if vectors can be stored; for a reduction, slots per row, from a buffer's size."""
        if is_reduced:
            held = int32(result.extra[partials][1] // (count * result.m * result.batch))
        else:
            held = allows_vectors(result.m, result.n, result.beta, result.c, result.out)
            if cuts_vectors:
                held = False
        return held

    @device
    def store(sums, smem, thread, tile, work, result, held):
        lane: int32 = thread % 32
        chunk_smem: int32 = smem + thread // 32 * chunk_bytes
        row, col = corner(thread)
        left: int32 = tile.col + col
        end_col = min(result.n, left + warp_n) if is_cut else result.n
        scaling = result
        if skips_alpha:
            alpha, beta, c, out, m, n, batch, extra = result
            alpha = alpha if tile.end_k > tile.first_k else float32(0)
            scaling = Result(alpha, beta, c, out, m, n, batch, extra)
        for number in static_range(pieces):
            top: int32 = tile.row + row + piece_step * number
            values = sums[items * number : items * (number + 1)]
            if is_prepared:
                values = prepare(values, lane, top, left, tile, result)
            if missing:
                values = values + zeros(scalar, missing // 2)
            if is_reduced:
                reduce_fragments(values, lane, held, tile.matrix, top, left, scaling)
            piece = Piece(tile.matrix, top, left, tile.end_row, end_col)
            for i in static_range(len(sides)):
                own = scaling
                if is_symmetric:  # the sums stay in their registers for both stores
                    lane, chunk_smem = opaque(lane), opaque(chunk_smem)
                    piece, own = again(piece, scaling, are_mirrored[i])
                sides[i](values, chunk_smem, lane, piece, held, own)

    return Store(begin, store)
