"""Tiles of pipelines: find the block's tile of the result, and write it from shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

USUAL_BAND_M = 8  # threadblock swizzle: rows of tiles per band, whose tiles share operands in L2


def make_find_tile(tile_m: int, tile_n: int, band_m: int) -> Callable[..., Any]:
    """Make a device function from block, m, n and batch to matrix, row and column of the tile.

    Rows and columns count tiles. The order is the threadblock swizzle: matrix follows matrix, band
    of band_m rows follows band, and within a band column follows column.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide

    def find_tile(block, m, n, batch):
        tiles_m = int32((m + tile_m - 1) // tile_m)
        tiles_n = int32((n + tile_n - 1) // tile_n)
        matrix, band = int32(0), int32(0)
        if batch > 1:
            matrix = divide(block, int32(tiles_m * tiles_n))
            block = int32(block - matrix * int32(tiles_m * tiles_n))
        if tiles_m > band_m:
            band = divide(block, int32(band_m * tiles_n))
            block = int32(block - band * int32(band_m * tiles_n))
        band_rows = min(int32(tiles_m - band * band_m), int32(band_m))
        col_tile = divide(block, band_rows)
        row_tile = int32(block - col_tile * band_rows + band * band_m)
        return matrix, row_tile, col_tile

    return device_function(find_tile)


def make_store_result(config: Any, sums: str, out_dtype: str, epilogue: Any) -> Callable[..., Any]:
    """Make a device function that writes a tile of sums, times alpha already, from shared memory.

    It takes the byte address of the tile in shared memory, the block's rank in its cluster, the
    matrix, the tile's first row and column, m, n, beta, c and out, and the epilogue arguments.
    See `tile_store.make_store_from_smem` for the barriers that must come before it.

    Args:
        config: config of the pipeline.
        sums: dtype of the tile.
        out_dtype: dtype of c and out.
        epilogue: epilogue as `dxgemm.handwritten.parts.epilogue` takes it.
    """
    from numba import cuda

    from dxgemm.cublasdx.narrow_store import make_narrow_store
    from dxgemm.handwritten.parts.result import Origin, Result
    from dxgemm.handwritten.parts.tile_store import make_allows_vectors, make_store_from_smem
    from dxgemm.handwritten.parts.unroll import Operand
    from dxgemm.handwritten.parts.widening import NARROW, stored_type, view_as

    if out_dtype in NARROW:
        return make_narrow_store(config, sums, out_dtype, epilogue)
    tile = config.tile_m, config.tile_n, config.threads, config.cluster
    store_from_smem = make_store_from_smem(*tile, sums, out_dtype, epilogue)
    element = stored_type(out_dtype)
    allows_vectors = make_allows_vectors(out_dtype)

    def store_result(smem, rank, matrix, tile_row, tile_col, m, n, beta, c, out, extra):
        c_start, out_start = matrix * c.batch, matrix * out.batch
        c = Operand(view_as(element, c.data), c.batch, c.row, c.col)
        out = Operand(view_as(element, out.data), out.batch, out.row, out.col)
        origin, result = Origin(matrix, c_start, out_start), Result(0, beta, c, out, m, n, 0, extra)
        is_vector = allows_vectors(origin, result)
        store_from_smem(smem, rank, tile_row, tile_col, is_vector, origin, result)

    return cuda.jit(device=True, forceinline=True)(store_result)
