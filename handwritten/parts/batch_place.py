"""The `place` of the frame `resident`: a tile, and the problem that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.unroll import device

WARP = 32


class Matrix(NamedTuple):
    """An operand's matrix: the pointer to the first one, its start, and strides, in elements."""

    data: Any
    start: Any
    batch: Any
    row: Any
    col: Any


class Product(NamedTuple):
    """A product: its matrices, or the operands with all matrices of a batch."""

    a: Any
    b: Any
    c: Any
    out: Any
    alpha: Any
    beta: Any
    m: Any
    n: Any
    k: Any
    batch: Any


class Tile(NamedTuple):
    """The tile of a thread.

    Attributes:
        thread: number of the thread among those of the tile.
        member: number of the tile in the block.
        exists: False beyond the last tile, where nothing may be written; reads are those of
            the last one.
        matrix: number of the matrix, as an epilogue is told it.
        row, col: first row and column.
        steps: tiles of k to go through, as many for all tiles of the block.
    """

    thread: Any
    member: Any
    exists: Any
    matrix: Any
    row: Any
    col: Any
    steps: Any


def make_find_matrix(config: Any) -> Callable[..., Any]:
    """A device function: (block, thread, m, n, k, batch) -> a `Tile`, of equal matrices."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import divide

    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    tile_threads, matrices = config.tile_threads, config.matrices

    @device
    def find_matrix(block, thread, m, n, k, batch):
        found, member = block, int32(0)
        if matrices > 1:
            member, thread = int32(thread // tile_threads), int32(thread % tile_threads)
            found = int32(found * matrices + member)
        row, col = int32(0), int32(0)
        if m > tile_m or n > tile_n:  # tiny matrices would spend their time on divisions
            tiles_m: int32 = (m + tile_m - 1) // tile_m
            tiles_n: int32 = (n + tile_n - 1) // tile_n
            line = divide(found, tiles_n)
            col = int32((found - line * tiles_n) * tile_n)
            found = divide(line, tiles_m)
            row = int32((line - found * tiles_m) * tile_m)
        exists = True
        if matrices > 1:
            exists = found < batch
            found = min(found, batch - 1)
        steps = int32((k + tile_k - 1) // tile_k)
        return Tile(thread, member, exists, int64(found), row, col, steps)

    return find_matrix


def make_batch_place(config: Any) -> Callable[..., Any]:
    """A device function: (given, block, thread, extra) -> a thread's `Tile`, its `Product`."""
    from numba import int32

    find_matrix = make_find_matrix(config)

    @device
    def matrix_of(operand, matrix):
        start = matrix * operand.batch
        return Matrix(operand.data, start, operand.batch, operand.row, operand.col)

    @device
    def place(given, block, thread, extra):
        a, b, c, out, alpha, beta, m, n, k, batch = given
        m, n, k = int32(m), int32(n), int32(k)
        tile = find_matrix(block, thread, m, n, k, int32(batch))
        own = tile.matrix
        a, b, c, out = matrix_of(a, own), matrix_of(b, own), matrix_of(c, own), matrix_of(out, own)
        return tile, Product(a, b, c, out, alpha, beta, m, n, k, batch)

    return place


def make_sync(config: Any) -> Callable[[], None]:
    """A device function: wait for all threads of the tile; those of others take as many steps."""
    from dxgemm.handwritten.parts.intrinsics import cuda

    is_warp = config.has_warps_apart and config.tile_threads == WARP

    @device
    def sync():
        if is_warp:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    return sync
