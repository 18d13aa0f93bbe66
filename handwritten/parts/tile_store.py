"""The store of a tile of the result: 16 bytes at a time from registers, or through shared memory.

If the tile is at an edge, strided, misaligned or shared by a cluster, the block puts it into shared
memory, row by row, and its threads write it from there, neighbours in neighbouring columns. If the
blocks of a thread-block cluster have each summed a part of k (cluster split-K), each of them adds
up and writes a share of the tile's rows, reading the other blocks' shared memory: there is no
workspace and no atomic, and the order of additions is always the same. For a reduction, the
finished elements go back to shared memory and are reduced from there.
Source: CUDA C++ Programming Guide, "Distributed Shared Memory".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.fragment import Fragment
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.triangle import Side, make_keeps, mirrored

ROW_PADDING_BYTES = 16  # keeps rows apart in the banks and aligned for 16-byte accesses


def row_bytes(tile_n: int, dtype: str) -> int:
    """Bytes from one row of the tile in shared memory to the next."""
    return tile_n * np.dtype(dtype).itemsize + ROW_PADDING_BYTES


def tile_bytes(tile_m: int, tile_n: int, dtype: str) -> int:
    """Shared memory that a tile takes, in bytes."""
    return tile_m * row_bytes(tile_n, dtype)


def make_allows_vectors(dtype: str, vector_bytes: int = VECTOR_BYTES) -> Callable[..., Any]:
    """A device function that is True if c and out allow accesses of so many bytes.

    Args:
        dtype: dtype of c and out.
    """
    from dxgemm.handwritten.parts.intrinsics import device_function, global_address
    from dxgemm.handwritten.parts.widening import stored_type

    item_bytes = np.dtype(stored_type(dtype)).itemsize

    def allows_vectors(origin, result):
        c, out = result.c, result.out
        # All addresses in one: a multiple of 16 if each of them is.
        places = global_address(out.data) | (origin.out | out.row) * item_bytes
        are_rows_contiguous = out.col == 1
        if result.beta != 0:
            places |= global_address(c.data) | (origin.c | c.row) * item_bytes
            are_rows_contiguous = are_rows_contiguous and c.col == 1
        return are_rows_contiguous and places % vector_bytes == 0

    return device_function(allows_vectors)


def make_store_from_smem(
    tile_m: int,
    tile_n: int,
    threads: int,
    split_k: int,
    dtype: str,
    out_dtype: str | None = None,
    epilogue: Any = None,
    side: Side | None = None,
) -> Callable[..., Any]:
    """A device function: write a tile from shared memory, 16 bytes at a time, or reduce it.

    It takes the byte address of the tile in shared memory, the block's rank in its cluster, the
    tile's first row and column, whether vectors of c and out can be accessed at once, the `Origin`
    of the matrix, and the `Result`.
    Before it is called every thread must have stored its part, times alpha, and passed a barrier,
    of the cluster if split_k > 1; no block of a cluster may exit before all have returned from it.

    Args:
        dtype: dtype of the tile.
        out_dtype: dtype of c and out; None for that of the tile. float32 after int32 is for an
            epilogue, and c is not added then.
        epilogue: None, or a `Fusion`.
        side: elements that are written; None for all. Without a reduction, and without pairs.
    """
    from numba import int32

    from dxgemm.handwritten.parts.addend import make_plus_c
    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_finish, make_read
    from dxgemm.handwritten.parts.inner import make_plus
    from dxgemm.handwritten.parts.intrinsics import (
        cluster_address,
        cuda,
        device_function,
        load_cluster,
        load_shared,
        store_shared,
        store_vector,
    )
    from dxgemm.handwritten.parts.reduction import make_reduce_tile
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    is_whole = side is None
    keeps, keeps_tile = make_keeps(side)
    scalar = np.dtype(dtype).type
    item_bytes = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_bytes
    smem_row_bytes = row_bytes(tile_n, dtype)
    rows, row_vectors = tile_m // split_k, tile_n // width
    if rows * split_k != tile_m:
        raise ValueError(f"{split_k} blocks cannot share {tile_m} rows evenly")
    vectors = rows * row_vectors
    out_dtype = out_dtype or dtype
    taken = columns_for_one(epilogue)
    read, finish = (
        make_read(epilogue, taken),
        make_finish(epilogue, dtype, out_dtype, taken, is_read=True),
    )
    finish_vector = make_finish(epilogue, dtype, out_dtype, width)
    # With an epilogue, where the tile is inside: a thread keeps to its columns and walks down rows,
    # several without a branch between them, so that their loads are in flight together.
    row_step = threads // row_vectors
    together = next((count for count in (4, 2, 1) if vectors % (threads * count) == 0), 0)
    keeps_columns = threads % row_vectors == 0 and together > 0
    groups = vectors // (threads * together) if epilogue is not None and keeps_columns else 0
    shapes, plus = ((max(together, 1), width), (1, width), (taken, 1)), make_plus(epilogue, dtype)
    sums_plainly = epilogue is None or epilogue.inner is None or epilogue.inner.takes_factors
    plus_vectors, plus_vector, plus_piece = (
        make_plus_c(dtype, out_dtype, *shape, plus) for shape in shapes
    )
    # Element by element, each of `taken` columns, a thread works on patches: `down` rows and
    # `across` elements, these as far apart as there are lanes in a row. So many are side by side.
    elements = tile_n // taken
    lanes = min(32, elements)
    across = next(count for count in (4, 2, 1) if elements % (count * lanes) == 0)
    down = 4 // across if rows % (4 // across) == 0 else 1
    patches = elements // across
    reduction = epilogue.reduction if epilogue is not None else None
    is_reduced = reduction is not None
    is_stored = reduction is None or reduction.is_stored
    is_finished_first = is_stored or split_k > 1 or bool(epilogue.stages)

    inlined = device_function

    def make_sum(count):
        """Device function that loads neighbours of the tile, added over the cluster in order."""

        def sum_neighbours(address):
            if split_k == 1:
                values = load_shared(scalar, count, address, 0)
            else:
                parts = ()
                for block in static_range(split_k):
                    there = cluster_address(address, int32(block))
                    parts = parts + load_cluster(scalar, count, there, 0)
                values = ()
                for element in static_range(count):
                    total = parts[element]
                    for block in static_range(1, split_k):
                        other = parts[block * count + element]
                        if sums_plainly:
                            total = scalar(total + other)
                        else:
                            total = plus((total,), scalar(1), (other,))[0]
                    values = values + (total,)
            return values

        return inlined(unroll(sum_neighbours))

    def put(address, values, out, out_index):
        if is_reduced:
            store_shared(address, 0, values)
        if is_stored:
            store_vector(out.data, out_index, values)

    def read_one(address, row, col, origin, result):
        values, c = sum_element(address), result.c
        if row < result.m and col < result.n and (is_whole or keeps(row, col)):
            at = origin.c + (row * c.row + col * c.col)
            values = plus_piece(values, result.beta, c, at, c.col)
        return values

    def finish_one(values, operands, address, row, col, origin, result):
        out = result.out
        if row < result.m and col < result.n and (is_whole or keeps(row, col)):
            (finished,) = finish(values, origin.matrix, row, col, operands)
            if is_reduced:
                store_shared(address, 0, (finished,))
            if is_stored:
                at = col // taken if taken > 1 else col
                out.data[origin.out + (row * out.row + at * out.col)] = finished

    sum_vector, sum_element = make_sum(width), make_sum(taken)
    put, read_one, finish_one = (inlined(unroll(f)) for f in (put, read_one, finish_one))

    def finish_tile(smem, rank, tile_row, tile_col, is_vector, origin, result):
        _, beta, c, out, m, n, _, extra = result
        matrix, c_start, out_start = origin
        first: int32 = cuda.threadIdx.x & 1023
        if not is_stored:
            is_vector = is_vector or beta == 0
        if not is_whole:
            is_vector = is_vector and keeps_tile(tile_row, tile_col, tile_m, tile_n, beta)
        if groups > 0 and is_vector and tile_row + tile_m <= m and tile_col + tile_n <= n:
            smem_row: int32 = rank * rows + first // row_vectors
            smem_vector: int32 = first % row_vectors
            address: int32 = smem + smem_row * smem_row_bytes + smem_vector * VECTOR_BYTES
            row, col = tile_row + smem_row, tile_col + smem_vector * width
            c_index = c_start + row * c.row + col
            out_index = out_start + row * out.row + col // taken
            c_step, out_step = row_step * c.row, row_step * out.row
            for _ in range(groups):
                # Everything is read, then computed, then written: a store would hold back the loads
                # that follow it.
                sums = ()
                for member in static_range(together):
                    place: int32 = address + member * row_step * smem_row_bytes
                    sums = sums + sum_vector(place)
                # One branch for all: without it, each of them would be looked at and skipped.
                sums = plus_vectors(sums, beta, c, c_index, c_step)
                results = ()
                for member in static_range(together):
                    values = sums[member * width : (member + 1) * width]
                    results = results + (
                        finish_vector(values, matrix, row + member * row_step, col, extra),
                    )
                for member in static_range(together):
                    target: int32 = address + member * row_step * smem_row_bytes
                    put(target, results[member], out, out_index + member * out_step)
                address += together * row_step * smem_row_bytes
                row += together * row_step
                c_index += together * c_step
                out_index += together * out_step
        elif is_vector and (n % width == 0 or tile_col + tile_n <= n):
            for vector in range(first, vectors, threads):
                smem_row = rank * rows + vector // row_vectors
                smem_vector = vector % row_vectors
                row, col = tile_row + smem_row, tile_col + smem_vector * width
                if row < m and col < n:
                    address = smem + smem_row * smem_row_bytes + smem_vector * VECTOR_BYTES
                    values = sum_vector(address)
                    values = plus_vector(values, beta, c, c_start + row * c.row + col, 0)
                    values = finish_vector(values, matrix, row, col, extra)
                    put(address, values, out, out_start + row * out.row + col // taken)
        else:
            # Neighbouring lanes take neighbouring elements, so misaligned accesses are coalesced
            # too. A thread's loads for all members of a patch are in flight together. Indices are
            # computed where they are used: hoisting reordered the main loop of `tuned`, 3 % slower.
            for patch in range(first, rows // down * patches, threads):
                smem_row = rank * rows + patch // patches * down
                element = patch % patches // lanes * across * lanes + patch % lanes
                row, col = tile_row + smem_row, tile_col + element * taken
                address = smem + smem_row * smem_row_bytes + element * taken * item_bytes
                sums, operands = (), ()
                for member in static_range(down * across):
                    below, right = member // across, member % across * lanes * taken
                    place = address + below * smem_row_bytes + right * item_bytes
                    sums = sums + (read_one(place, row + below, col + right, origin, result),)
                    # Outside of the result, those of its edge.
                    inside = min(row + below, m - 1), min(col + right, n - taken)
                    operands = operands + (read(matrix, inside[0], inside[1], extra),)
                for member in static_range(down * across):
                    below, right = member // across, member % across * lanes * taken
                    place = address + below * smem_row_bytes + right * item_bytes
                    finish_one(
                        sums[member], operands[member], place, row + below, col + right, origin,
                        result,
                    )  # fmt: skip

    finish_tile = inlined(unroll(finish_tile))
    if not is_reduced:
        return finish_tile

    def read_vector(address, row, col):
        place = int32(address + row * smem_row_bytes + col * item_bytes)
        return load_shared(scalar, width, place, 0)

    def read_element(address, row, col):
        return load_shared(scalar, 1, int32(address + row * smem_row_bytes + col * item_bytes), 0)

    reduce_tile = make_reduce_tile(
        epilogue, rows, tile_n, threads, split_k, dtype, width,
        inlined(read_vector), inlined(read_element),
    )  # fmt: skip

    def reduce_from_smem(smem, rank, tile_row, tile_col, is_vector, origin, result):
        if is_finished_first or result.beta != 0:
            finish_tile(smem, rank, tile_row, tile_col, is_vector, origin, result)
            cuda.syncthreads()
        thread, own = int32(cuda.threadIdx.x & 1023), int32(rank * rows)
        start = int32(smem + own * smem_row_bytes)
        reduce_tile(
            start, thread, origin.matrix, tile_row + own, tile_col, result.m, result.n, result.extra
        )

    return inlined(reduce_from_smem)


def make_store_tile(
    fragment: Fragment,
    tile: tuple[int, int],
    threads: int,
    dtype: str,
    epilogue: Any = None,
    split_k: int = 1,
    is_mirrored: bool = False,
    side: Side | None = None,
) -> Callable[..., Any]:
    """A device function: scale the accumulators of a block, finish them, and write them.

    All threads of the block, and of the cluster if split_k > 1, must call it together, when no copy
    is in flight to shared memory any more, and no thread needs its contents. `thread_row` and
    `thread_col` are a thread's first element in the block's tile.

    Args:
        fragment: elements of a thread, of a tile of so many rows and columns.
        threads: threads of a block.
        is_mirrored, side: see `triangle.stores`.
    """
    from numba import int32

    from dxgemm.handwritten.parts.inner import make_plus
    from dxgemm.handwritten.parts.intrinsics import (
        cluster_sync,
        cuda,
        device_function,
        load_vector,
        multiplied,
        scaled,
        store_shared,
        store_vector,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    scalar = np.dtype(dtype).type
    item_size = np.dtype(dtype).itemsize
    if is_mirrored:
        fragment, tile, side = fragment.transposed(), tile[::-1], mirrored(side)
    width, step, span, firsts, rows, cols = fragment.runs(VECTOR_BYTES // item_size)
    runs, (tile_m, tile_n) = len(firsts), tile
    is_whole = side is None
    is_even = width * item_size == VECTOR_BYTES
    _, keeps_tile = make_keeps(side)
    # An epilogue works on the tile in shared memory: written out for each element that a thread
    # keeps, it would be a hundred times as long.
    is_direct = split_k == 1 and not is_mirrored
    is_direct = is_direct and (epilogue is None or epilogue.is_stored_plainly)
    plus = make_plus(epilogue, dtype)
    allows_vectors, allows_runs = (
        make_allows_vectors(dtype, size) for size in (VECTOR_BYTES, width * item_size)
    )
    smem_row_bytes = row_bytes(tile_n, dtype)
    store_from_smem = make_store_from_smem(
        tile_m, tile_n, threads, split_k, dtype, epilogue=epilogue, side=side
    )

    def store_tile(acc, smem, rank, thread_row, thread_col, tile_row, tile_col, origin, result):
        alpha, beta, c, out, m, n, _, _ = result
        if is_mirrored:
            thread_row, thread_col = thread_col, thread_row
            tile_row, tile_col = tile_col, tile_row
        is_vector = allows_vectors(origin, result)
        fits = is_vector if is_even else allows_runs(origin, result)
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n
        if not is_whole:
            is_inside = is_inside and keeps_tile(tile_row, tile_col, tile_m, tile_n, beta)
        if is_direct and is_inside and fits:
            out_first = origin.out + (tile_row + thread_row) * out.row + tile_col + thread_col
            c_first = origin.c + (tile_row + thread_row) * c.row + tile_col + thread_col
            for i in static_range(runs):
                values = scaled(alpha, acc[firsts[i] : firsts[i] + span : step])
                if beta != 0:  # written out, which keeps the schedule of `tuned`
                    added = load_vector(scalar, width, c.data, c_first + rows[i] * c.row + cols[i])
                    values = plus(values, beta, added)
                store_vector(out.data, out_first + rows[i] * out.row + cols[i], values)
        else:
            cuda.syncthreads()  # the tile of the result overwrites those of a and b
            target: int32 = smem + thread_row * smem_row_bytes + thread_col * item_size
            for i in static_range(runs):
                # Scaled here, not after the sum over blocks: a vector of bare accumulators would
                # tie these to neighbouring registers, and slow down the mainloop.
                values = multiplied(alpha, acc[firsts[i] : firsts[i] + span : step])
                store_shared(target, rows[i] * smem_row_bytes + cols[i] * item_size, values)
            if split_k == 1:
                cuda.syncthreads()
            else:
                cluster_sync()
            store_from_smem(smem, rank, tile_row, tile_col, is_vector, origin, result)
            if split_k > 1:
                cluster_sync()  # until then, others read this block's shared memory

    return device_function(unroll(store_tile))
