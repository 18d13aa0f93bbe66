"""The store of a skinny tile: from the shared memory of all blocks of a cluster to global memory.

In shared memory a tile is [y][x]. Its elements are few, and each is stored by itself. Each block of
a cluster adds up a share of them. All blocks write their sums for a share to separate slots in the
shared memory of its owner, which reads them once, after a barrier, in the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.skinny_layouts import SUMS_ROW, TILE

TOGETHER = 4  # elements of a thread whose operands are read before any is stored
ITEM_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8}  # of sums


def make_store(
    config: Any, large_is_a: bool, acc_dtype: str, out_dtype: str, epilogue: Any = None
) -> Callable[..., None]:
    """Make a device function: add up the tiles of a cluster, finish the elements and store them.

    It takes the address of this block's tile in shared memory, that of a buffer of the same size
    for the sums of other blocks, the thread, the `SkinnyTile`, and the kernel's last parameters.
    The blocks of a cluster must have arrived at the cluster barrier before, as a sign that they
    are running.

    Args:
        config: a `SkinnyConfig`.
        large_is_a: True if the rows of the result are rows of the larger operand; else its columns.
        acc_dtype: dtype of sums: a key of `ITEM_BYTES`.
        out_dtype: dtype of c and out.
        epilogue: None, or a `Fusion`.
    """
    import numba
    from numba import cuda, int32

    from dxgemm.handwritten.parts.elements import make_put_elements
    from dxgemm.handwritten.parts.epilogue import columns_for_one
    from dxgemm.handwritten.parts.intrinsics import (
        cluster_address,
        cluster_arrive,
        cluster_wait,
        device_function,
        load_shared,
        low_word,
        store_cluster,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    item, x_tile, few = ITEM_BYTES[acc_dtype], TILE, config.few
    tile_row = SUMS_ROW * item // 4
    threads, split_k = config.threads, config.split_k
    scalar = getattr(numba, acc_dtype)
    rounded = low_word if acc_dtype == "int32" else scalar  # sums of integers wrap around
    # Columns of the product per column of the result: neighbours along x, or along y.
    taken = columns_for_one(epilogue)
    x_taken, y_taken = (1, taken) if large_is_a else (taken, 1)
    pieces_x, pieces_y = x_tile // x_taken, few // y_taken
    share, piece_bytes = pieces_x * pieces_y // split_k, item * taken
    together = TOGETHER if epilogue is not None and epilogue.operands else 1
    begin, put = make_put_elements(together, acc_dtype, out_dtype, epilogue)

    def locate(number, is_along_x):
        """y and x of a piece; pieces are numbered along the contiguous direction of the result."""
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
            across = piece * tile_row if large_is_a else piece * item
            sums = sums + load_shared(scalar, 1, int32(tile + y * tile_row + item * x + across), 0)
        return sums

    read_piece = device_function(unroll(read_piece))

    def hand_out(tile, buffer, rank, thread, y_left, is_along_x):
        """Write this block's sums to the shared memory of the blocks that add them up."""
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
        """Sum of a piece over the cluster, in the order of its blocks."""
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

    def store_tile(smem, buffer, thread, tile, alpha, beta, c, out, extra):
        cuda.syncthreads()
        rank, matrix = tile.rank, tile.matrix
        x_first, y_first, x_count, y_count = tile.x, tile.y, tile.x_count, tile.y_count
        if large_is_a:
            is_along_x = abs(out.row) <= abs(out.col)
        else:
            is_along_x = abs(out.col) <= abs(out.row)
        if split_k > 1:
            hand_out(smem, buffer, rank, thread, int32(y_count - y_first), is_along_x)
        at = begin(matrix, rounded(alpha), rounded(beta), c, out, extra)
        for first in range(thread, share, threads * together):
            sums, places = (), ()
            for number in static_range(together):
                place: int32 = first + number * threads
                if number > 0:
                    place = min(place, int32(share - 1))
                y, x = locate(int32(rank * share + place), is_along_x)
                is_stored = x_first + x < x_count and y_first + y < y_count
                if number > 0:
                    is_stored = is_stored and first + number * threads < share
                x_at: int32 = x_first + x
                y_at: int32 = y_first + y
                if together > 1:
                    x_at, y_at = (
                        min(x_at, int32(x_count - x_taken)),
                        min(y_at, int32(y_count - y_taken)),
                    )
                if together > 1 or is_stored:
                    row, col = (x_at, y_at) if large_is_a else (y_at, x_at)
                    own = add_up(buffer, place) if split_k > 1 else read_piece(smem, y, x)
                    sums, places = sums + (own,), places + ((row, col, is_stored),)
                    if number == together - 1:
                        put(sums, at, places)

    return device_function(unroll(store_tile))


def make_add_partial_tiles(config: Any, acc_dtype: str = "float32") -> Callable[..., None]:
    """Make a device function that adds up a block's partial tiles, in order, into the first one.

    Args:
        config: a `SkinnyConfig`.
        acc_dtype: as `make_store` takes it.
    """
    import numba
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        load_shared,
        low_word,
        store_shared,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    item, scalar = ITEM_BYTES[acc_dtype], getattr(numba, acc_dtype)
    rounded = low_word if acc_dtype == "int32" else scalar
    parts, sums_bytes = config.partial_tiles, config.sums_bytes * item // 4
    tile_row = SUMS_ROW * item // 4
    elements, threads = config.few * TILE, config.threads

    def add_partial_tiles(smem, thread):
        for element in range(thread, elements, threads):
            place: int32 = smem + element // TILE * tile_row + element % TILE * item
            total = load_shared(scalar, 1, place, 0)[0]
            for part in static_range(1, parts):
                total = rounded(total + load_shared(scalar, 1, place, part * sums_bytes)[0])
            store_shared(place, 0, (total,))

    return device_function(unroll(add_partial_tiles))
