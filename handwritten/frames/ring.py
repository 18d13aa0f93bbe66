"""The frame of kernels whose threads all copy to a ring of stages, and all multiply out of it.

A kernel is this text and four parts, device functions:

    place      which tile of the result a block computes, and which k of the operands
    load       the copies to the stages, by `cp.async` or through registers
    multiply   the sums of the tile, out of the stages, while it has the next ones copied
    store      what becomes of them

Source: A. Kerr et al., "CUTLASS: Fast Linear Algebra in CUDA C++", NVIDIA 2017, for the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.place import Place
from dxgemm.handwritten.parts.result import Result
from dxgemm.handwritten.parts.store import Store
from dxgemm.handwritten.parts.tiles import smem_alignment

ALIGNMENT = 1024  # of shared memory: addresses in a stage are XORed


def make_ring_kernel(
    tile_k: int,
    place: Place,
    fill: Callable[..., Any],
    multiply: Callable[..., Any],
    store: Store,
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    Args:
        tile_k: k of a stage.
        fill: the load's device function: (smem, thread, work, tile, a, b, m, n, k) -> the thread's
            next copies, once all stages but one are in flight.
        multiply: device function: (smem, thread, next copies, stages of the tile) -> sums.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import shared_address, wait_copies
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    begin_work, find, *_ = place
    begin_store, store_tile = store
    alignment = smem_alignment() and ALIGNMENT

    @gemm_kernel
    def ring_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile ---
        smem: int32 = shared_address(cuda.shared.array(0, int32, alignment))
        thread: int32 = cuda.threadIdx.x & 1023
        work = begin_work(a, b, m, n, k, batch, extra)
        if work.tiles == 0:
            return
        tile = find(work, int32(cuda.blockIdx.x))
        if tile.row >= tile.end_row:
            return

        # --- Prologue and main loop ---
        copies = fill(smem, thread, work, tile, a, b, m, n, k)
        k_tiles: int32 = (tile.end_k - tile.first_k + tile_k - 1) // tile_k
        sums = multiply(smem, thread, copies, k_tiles)

        # --- Epilogue: the store may use the shared memory of the stages ---
        wait_copies(0)
        cuda.syncthreads()
        result = Result(alpha, beta, c, out, m, n, batch, extra)
        store_tile(sums, smem, thread, tile, work, result, begin_store(result))

    return ring_kernel
