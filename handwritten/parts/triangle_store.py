"""The store of a tile of a symmetric result: as it lies, as its mirror image, or both.

A mirror image is the same tile in the transposed result. So each is a `make_store_tile` of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.chunk_store import STORE_BYTES
from dxgemm.handwritten.parts.triangle import OTHER, Side, stores
from dxgemm.handwritten.parts.wgmma_store import make_store_tile


def make_store_triangle(
    tile_n: int,
    out_dtype: str,
    along_rows: bool,
    rows_are_split: bool,
    triangle: str,
    epilogue: Any = None,
    commutes: bool = True,
    chunk_bytes: int = STORE_BYTES,
    acc_dtype: str = "float32",
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`make_store_tile` for a tile of a symmetric result, stored as `triangle.stores` says.

    Args:
        along_rows: False if the result is the transposed product.
        triangle: triangles of the result that are written; "" for all of another result.
        commutes: False if elements on both sides of a tile's diagonal may differ in their bits.
        chunk_bytes: of shared memory for each warp.
        acc_dtype: dtype of the sums: "float32" or "int32".
    """

    def make_tile(along_rows: bool, side: Side | None = None) -> Any:
        return make_store_tile(
            tile_n, out_dtype, along_rows, rows_are_split, epilogue, acc_dtype, side, chunk_bytes
        )  # fmt: skip

    if not triangle:
        return make_tile(along_rows)
    kinds = stores(triangle if along_rows else OTHER[triangle], epilogue, commutes)
    from numba import cuda

    from dxgemm.handwritten.parts.intrinsics import opaque
    from dxgemm.handwritten.parts.unroll import Operand, static_range, unroll

    made = tuple(make_tile(along_rows is not is_mirrored, side) for is_mirrored, side in kinds)
    are_mirrored = tuple(is_mirrored for is_mirrored, _ in kinds)
    store_tiles = tuple(store_tile for _, store_tile in made)
    allows_vectors, _ = make_tile(along_rows)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_tile(
        acc, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta, c, out, extra
    ):
        # The sums stay in their registers for two stores. What these need beside them is computed
        # there, not kept from tile to tile.
        for i in static_range(len(store_tiles)):
            lane, chunk_smem, matrix = opaque(lane), opaque(chunk_smem), opaque(matrix)
            top, col, n = opaque(top), opaque(col), opaque(n)
            c_row, c_col, out_row, out_col = c.row, c.col, out.row, out.col
            if are_mirrored[i]:
                c_row, c_col, out_row, out_col = c.col, c.row, out.col, out.row
            store_tiles[i](
                acc, chunk_smem, lane, matrix, top, col, n, n, has_vectors, alpha, beta,
                Operand(c.data, opaque(c.batch), opaque(c_row), opaque(c_col)),
                Operand(out.data, opaque(out.batch), opaque(out_row), opaque(out_col)), extra,
            )  # fmt: skip

    return allows_vectors, store_tile
