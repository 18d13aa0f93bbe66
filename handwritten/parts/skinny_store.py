"""The store of a skinny tile, whose sums lie in shared memory: of a cluster, to global memory.

In shared memory a tile is [y][x]. Elements, of four bytes, are few: each is stored by itself. Each
block of a cluster adds up a share of them. All blocks write their sums for a share to the shared
memory of its block, to places of their own, which is read once after a barrier, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_store(
    x_tile: int,
    few: int,
    threads: int,
    split_k: int,
    large_is_a: bool,
    tile_row: int,
    acc_dtype: str,
    out_dtype: str,
    epilogue: Any = None,
) -> Callable[..., None]:
    """A device function: add up the tiles of a cluster, finish the elements and store them.

    It takes the address of this block's tile in shared memory and that of a buffer as large for the
    sums of others. Blocks of a cluster arrive at its barrier before, so as to have begun.

    Args:
        x_tile, few: x and y of a tile.
        threads: threads of a block, all of which call it together.
        split_k: blocks of a cluster.
        large_is_a: True if x are rows of the result, y columns; else the other way.
        tile_row: bytes from one y of the tile in shared memory to the next.
        acc_dtype: dtype of sums, alpha and beta: "float32" or "int32".
        out_dtype: dtype of c and out.
        epilogue: None, or a `Fusion`.
    """
    from numba import cuda, float32, int32

    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_finish
    from dxgemm.handwritten.parts.intrinsics import (
        cluster_address,
        cluster_arrive,
        cluster_wait,
        device_function,
        load_shared,
        low_word,
        plus_scaled,
        scaled,
        store_cluster,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll
    from dxgemm.handwritten.parts.widening import HALVES, NARROW, WIDEN, stored_type, view_as

    scalar = {"float32": float32, "int32": int32}[acc_dtype]
    rounded = low_word if acc_dtype == "int32" else float32  # sums of int8 wrap around
    stored = stored_type(out_dtype)
    widen_c = WIDEN[out_dtype] if out_dtype in HALVES else scalar
    narrow = NARROW.get(out_dtype, stored)
    result = "float32" if out_dtype in NARROW else out_dtype
    adds_c = result == acc_dtype and out_dtype != "int8"
    # Columns of the product for one of the result: neighbours along x, or along y.
    taken = columns_for_one(epilogue)
    x_taken, y_taken = (1, taken) if large_is_a else (taken, 1)
    pieces_x, pieces_y = x_tile // x_taken, few // y_taken
    share, piece_bytes = pieces_x * pieces_y // split_k, 4 * taken
    finish = make_finish(epilogue, acc_dtype, result, taken, rounds=out_dtype in HALVES)

    def locate(number, is_along_x):
        """y and x of a piece, pieces being numbered as they lie in the result."""
        if is_along_x:
            y: int32 = number // pieces_x * y_taken
            x: int32 = number % pieces_x * x_taken
        else:
            y = number % pieces_y * y_taken
            x = number // pieces_y * x_taken
        return y, x

    locate = device_function(unroll(locate))

    def read_piece(tile, y, x):
        sums = ()
        for piece in static_range(taken):
            across = piece * tile_row if large_is_a else piece * 4
            sums = sums + load_shared(scalar, 1, int32(tile + y * tile_row + 4 * x + across), 0)
        return sums

    read_piece = device_function(unroll(read_piece))

    def hand_out(tile, buffer, rank, thread, y_left, is_along_x):
        """Write this block's sums to the blocks that add them up."""
        cluster_wait()
        for number in range(thread, pieces_x * pieces_y, threads):
            y, x = locate(int32(number), is_along_x)
            if y < y_left:
                owner: int32 = number // share
                place: int32 = buffer + (rank * share + number % share) * piece_bytes
                store_cluster(cluster_address(place, owner), 0, read_piece(tile, y, x))
        cluster_arrive()
        cluster_wait()

    hand_out = device_function(unroll(hand_out))

    def add_up(buffer, place):
        """A piece, summed over the cluster in the order of its blocks."""
        sums = load_shared(scalar, taken, int32(buffer + place * piece_bytes), 0)
        for block in static_range(1, split_k):
            others = load_shared(
                scalar, taken, int32(buffer + (block * share + place) * piece_bytes), 0
            )
            totals = ()
            for piece in static_range(taken):
                totals = totals + (rounded(sums[piece] + others[piece]),)
            sums = totals
        return sums

    add_up = device_function(unroll(add_up))

    def store_tile(
        tile, buffer, rank, thread, matrix, x_first, y_first, x_count, y_count, alpha,
        beta, c, out, extra,
    ):  # fmt: skip
        cuda.syncthreads()
        c_typed, out_typed = view_as(stored, c.data), view_as(stored, out.data)
        if large_is_a:
            is_along_x = abs(out.row) <= abs(out.col)
        else:
            is_along_x = abs(out.col) <= abs(out.row)
        if split_k > 1:
            hand_out(tile, buffer, rank, thread, int32(y_count - y_first), is_along_x)
        for place in range(thread, share, threads):
            y, x = locate(int32(rank * share + place), is_along_x)
            if x_first + x < x_count and y_first + y < y_count:
                if large_is_a:
                    row: int32 = x_first + x
                    col: int32 = y_first + y
                else:
                    row = y_first + y
                    col = x_first + x
                if split_k > 1:
                    sums = add_up(buffer, int32(place))
                else:
                    sums = read_piece(tile, y, x)
                values = ()
                for piece in static_range(taken):
                    value = scaled(alpha, sums[piece])
                    if adds_c and beta != 0:
                        index = matrix * c.batch + row * c.row + (col + piece) * c.col
                        value = plus_scaled(value, beta, widen_c(c_typed[index]))
                    values = values + (value,)
                index = matrix * out.batch + row * out.row + col // taken * out.col
                out_typed[index] = narrow(finish(values, matrix, row, col, extra)[0])

    return device_function(unroll(store_tile))
