"""The frame of kernels for many small matrices: a tile is copied whole, k included, and multiplied.

A kernel is this text and four parts, device functions:

    place      the tile of a thread, and the problem that it belongs to
    load       the tile of an operand to shared memory, in parts of k
    multiply   a part of k into the sums of a thread
    store      what becomes of them

All copies of a tile are in flight at once, and there is no pipeline but the blocks that
share an SM. A block takes several tiles if they are small, each with threads and shared memory of
its own. Larger matrices are computed tile by tile, and go through k by `tile_k`.
Source: A. Abdelfattah et al., "Performance, Design, and Autotuning of Batched GEMM for GPUs", ISC
2016, for several problems per block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.batch_load import Load
from dxgemm.handwritten.parts.batch_multiply import Multiply
from dxgemm.handwritten.parts.batch_place import Matrix, Product, make_sync
from dxgemm.handwritten.parts.batch_store import Store
from dxgemm.handwritten.parts.result import Origin, Result
from dxgemm.handwritten.parts.tiles import smem_alignment


def make_resident_kernel(
    config: Any,
    dtype: str,
    place: Callable[..., Any],
    a_load: Load,
    b_load: Load,
    multiply: Multiply,
    store: Store,
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        config: a `BatchConfig` with `parts`, and `a_bytes(dtype)` of shared memory for a's tile.
        place: device function: (given, block, thread, extra) -> `Tile` and `Product`; given is a
            `Product` of the kernel's parameters.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import commit_copies, shared_address, wait_copies
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    begin_a, start_a, advance_a, start_whole_a, finish_a = a_load
    begin_b, start_b, advance_b, start_whole_b, finish_b = b_load
    splits = start_whole_a is not None and start_whole_b is not None
    a_finishes, b_finishes = finish_a is not None, finish_b is not None
    begin, add, locate = multiply
    store_tile, is_shared, takes_smem = store
    tile_m, tile_n, tile_k, parts = config.tile_m, config.tile_n, config.tile_k, config.parts
    part_k, tile_bytes, a_bytes = tile_k // parts, config.tile_bytes(dtype), config.a_bytes(dtype)
    sync, alignment = make_sync(config), smem_alignment()

    @gemm_kernel
    def resident_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This thread's tile ---
        block: int32 = cuda.blockIdx.x
        thread: int32 = cuda.threadIdx.x & 1023
        given = Product(a, b, c, out, alpha, beta, m, n, k, batch)
        tile, own = place(given, block, thread, extra)
        a_smem: int32 = shared_address(cuda.shared.array(0, int32, alignment=alignment))
        a_smem += tile.member * tile_bytes
        b_smem: int32 = a_smem + a_bytes
        rows: int32 = own.m - tile.row
        cols: int32 = own.n - tile.col
        left: int32 = own.k
        is_inside = rows >= tile_m and cols >= tile_n
        b_columns = Matrix(own.b.data, own.b.start, own.b.batch, own.b.col, own.b.row)
        a_copies, a_source = begin_a(a_smem, tile, tile.row, own.a, own.m, own.k, batch)
        b_copies, b_source = begin_b(b_smem, tile, tile.col, b_columns, own.n, own.k, batch)

        # --- Main loop: the copies of all parts of k are in flight at once ---
        sums, where = begin(a_smem, b_smem, tile.thread)
        for step in range(tile.steps):
            for part in static_range(parts):
                if part > 0:
                    a_source = advance_a(a_copies, a_source)
                    b_source = advance_b(b_copies, b_source)
                if splits and is_inside and left >= tile_k:
                    start_whole_a(a_copies, a_source, part)
                    start_whole_b(b_copies, b_source, part)
                else:
                    part_left: int32 = left - part * part_k
                    start_a(a_copies, a_source, part, rows, part_left)
                    start_b(b_copies, b_source, part, cols, part_left)
                commit_copies()
            for part in static_range(parts):
                wait_copies(parts - 1 - part)
                if a_finishes or b_finishes:
                    cuda.syncwarp()
                if a_finishes:
                    finish_a(a_copies, a_source, rows, left)
                if b_finishes:
                    finish_b(b_copies, b_source, cols, left)
                sync()
                sums = add(sums, where, part, left)
            a_source = advance_a(a_copies, a_source)
            b_source = advance_b(b_copies, b_source)
            left -= tile_k
            if takes_smem or step + 1 < tile.steps:
                sync()  # before the next tile, or the result, overwrites this one

        # --- Epilogue ---
        # No element is stored of a tile beyond the last one.
        stored: int32 = own.m if tile.exists else 0
        result = Result(own.alpha, own.beta, own.c, own.out, stored, own.n, batch, extra)
        if is_shared:
            store_tile(sums, a_smem, tile.thread, tile, own, result, is_inside)
        else:
            first_row, first_col = locate(tile.thread)
            row: int32 = tile.row + first_row
            col: int32 = tile.col + first_col
            origin = Origin(tile.matrix, own.c.start, own.out.start)
            store_tile(sums, row, col, is_inside and tile.exists, origin, result)

    return resident_kernel
