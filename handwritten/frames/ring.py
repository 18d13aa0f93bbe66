"""The frame of kernels whose threads all copy to a ring of stages, and all multiply out of it.

A kernel is this text and four parts, device functions:

    place      which tile of the result a block computes, and which k of the operands
    load       the copies of a stage, by `cp.async` or through registers
    multiply   what a step of a stage adds to the sums, which are in registers
    store      what becomes of them

A stage is multiplied in steps. Each step reads the fragments of the next one, across the border of
stages too, so that the arithmetic never waits for shared memory.
Source: A. Kerr et al., "CUTLASS: Fast Linear Algebra in CUDA C++", NVIDIA 2017, for the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.place import Place
from dxgemm.handwritten.parts.ring import Load, Multiply
from dxgemm.handwritten.parts.store import Result, Store
from dxgemm.handwritten.parts.tiles import smem_alignment

ALIGNMENT = 1024  # addresses in a stage are XORed


def make_ring_kernel(
    config: Any, tile_k: int, stage_bytes: int, place: Place, load: Load, multiply: Multiply,
    store: Store,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile.

    Args:
        config: has the number of `stages`.
        tile_k, stage_bytes: k of a stage, and its shared memory.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import commit_copies, shared_address, wait_copies
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    begin_work, find, _ = place
    begin_load, copy = load
    begin_sums, read, add = multiply
    begin_store, store_tile = store
    stages, steps, copy_steps = config.stages, len(read), len(copy)
    ring_bytes = stages * stage_bytes
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
        k_tiles: int32 = (tile.end_k - tile.first_k + tile_k - 1) // tile_k

        # --- Prologue: all stages but one are on their way ---
        copies = begin_load(smem, thread, work, tile, a, b, m, n, k)
        write: int32 = 0  # the stage that is copied to, the one that is read, and the next to read
        now: int32 = 0
        then: int32 = 0

        def start_stage():
            nonlocal copies, write
            copies = copy[0](copies, write, then)
            commit_copies()
            write += stage_bytes
            if write == ring_bytes:
                write = 0

        for _ in range(stages - 1):
            start_stage()
        for step in static_range(1, copy_steps):
            copies = copy[step](copies, write, then)
        wait_copies(stages - 2)
        cuda.syncthreads()
        source, sums = begin_sums(smem, thread)
        next_fragments = read[0](source, now)

        # --- Main loop: each step reads the fragments of the next one ---
        for _ in range(k_tiles):
            then += stage_bytes
            if then == ring_bytes:
                then = 0
            for step in static_range(steps):
                fragments = next_fragments
                if step == 0:  # every thread has left the stage that this overwrites
                    start_stage()
                elif step < copy_steps:
                    copies = copy[step](copies, write, then)
                if step == steps - 1:
                    wait_copies(stages - 2)
                    cuda.syncthreads()
                    now = then
                next_fragments = read[(step + 1) % steps](source, now)
                sums = add[step](sums, fragments)

        # --- Epilogue: the store may use the shared memory of the stages ---
        wait_copies(0)
        cuda.syncthreads()
        result = Result(alpha, beta, c, out, m, n, batch, extra)
        store_tile(sums, smem, thread, tile, work, result, begin_store(result))

    return ring_kernel
