"""The frame of Hopper's kernels: one thread has TMA fill a ring, warpgroups multiply out of it.

A kernel is this text and four parts, device functions:

    place      which tiles a block computes, and which k of the operands
    load       the boxes that TMA fetches for a stage, in the producer
    multiply   the sums of a tile, out of the stages, in the consumers
    store      what becomes of them

While a block stores a tile, it fetches the next one. Each stage has a barrier for "full" and one
for "empty". Warpgroups either share each tile, or take turns (pingpong): while one stores its tile,
the other multiplies. During the first main loop, the second one stores a tile of no rows: a store
is tens of kilobytes of instructions, for which the first result then need not wait. Two more
barriers keep their main loops in order, since the parity of a stage tells only neighbouring phases
apart. Each block of a pair fetches half of a or b for both, into stages that the consumers of both
have freed. The kernel is launched before the earlier one of the stream has ended, and waits for it.
Source: NVIDIA, "Hopper Tuning Guide"; CUDA C++ Programming Guide, "Programmatic Dependent Launch";
CUTLASS's `KernelTmaWarpSpecializedCooperative` and `KernelTmaWarpSpecializedPingpong`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.configs import NOTE_BYTES
from dxgemm.handwritten.parts.k_ranges import make_from_end
from dxgemm.handwritten.parts.place import Place, Tile, make_below, make_noted_tile
from dxgemm.handwritten.parts.result import Result
from dxgemm.handwritten.parts.store import Store
from dxgemm.handwritten.parts.wgmma_ring import (
    WARPGROUP,
    Load,
    make_after,
    make_init_ring,
    make_skip,
)


def make_tma_kernel(
    config: Any,
    tile_k: int,
    place: Place,
    load: Load,
    multiply: Callable[..., Any],
    store: Store,
    is_exchanged: bool = False,
    takes_tile: bool = False,
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    Args:
        config: a `WgmmaConfig`.
        tile_k: k of a stage.
        multiply: device function of the consumers, such as `wgmma_mainloop.make_multiply` makes;
            it gets the tile and the `Result` too, for scales of sums on the way.
        is_exchanged: True if the transposed result is computed: then a and b are the left and the
            right factor of that, m its rows.
        takes_tile: True if `multiply` uses the tile. Where `place` leaves notes, consumers then
            read them when the first stage arrives; else after the main loop, with an empty tile.
    """
    from numba import cuda, int32, uint8

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import (
        shared_address,
        store_shared,
        wait_earlier_kernel,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    begin_work, find, leaves_notes, descends = place
    reads_first = leaves_notes and takes_tile
    expect, begin_load, select, fetch, arriving = load
    begin_store, store_tile = store
    stages, stage_bytes, consumers = config.stages, config.stage_bytes, config.consumers
    is_pingpong, cluster = config.is_pingpong, config.cluster
    producer_registers, consumer_registers = config.shared_registers
    chunks_smem = stages * stage_bytes
    notes_smem = chunks_smem + consumers * 4 * config.chunk_bytes
    full_smem = notes_smem + config.notes * NOTE_BYTES
    empty_smem = full_smem + 8 * stages
    readers = cluster * (1 if is_pingpong else consumers)  # warpgroups that free a stage
    init_ring = make_init_ring(stages, readers, has_turns=is_pingpong)
    noted_tile = make_noted_tile()
    below, from_end = make_below(), make_from_end(tile_k)
    after, after_note, skip = make_after(stages), make_after(config.notes), make_skip(stages)

    @gemm_kernel
    def tma_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        if is_exchanged:
            m, n = n, m
            a.batch, b.batch = b.batch, a.batch
            c.row, c.col = c.col, c.row
            out.row, out.col = out.col, out.row

        # --- The ring, this block's tiles ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + full_smem
        empty: int32 = smem + empty_smem
        thread: int32 = cuda.threadIdx.x & 1023
        if thread == 0:
            init_ring(full, empty)
        if thread == consumers * WARPGROUP and k > 0:
            expect()
        wait_earlier_kernel()
        work = begin_work(a, b, m, n, k, batch, extra)
        if cluster > 1:
            hopper.meet_cluster()
        else:
            cuda.syncthreads()
        index: int32 = cuda.blockIdx.x // cluster
        blocks: int32 = cuda.gridDim.x // cluster
        stage: int32 = 0
        parity: int32 = 0
        note: int32 = 0
        lap: int32 = 0

        if thread >= consumers * WARPGROUP:
            # --- Producer: one thread ---
            if producer_registers:
                hopper.limit_registers("dec", producer_registers)
            if thread == consumers * WARPGROUP and k > 0:
                maps = begin_load()
                while index < work.tiles:
                    tile = find(work, index)
                    index += blocks
                    if leaves_notes:
                        at: int32 = smem + notes_smem + note * NOTE_BYTES
                        store_shared(at, 0, (tile.matrix, tile.row, tile.col, tile.end_row))
                        note, lap = after_note(note, lap)
                    maps = select(work, tile, maps)
                    depth: int32 = tile.first_k
                    while depth < tile.end_k:
                        barrier: int32 = full + 8 * stage
                        target: int32 = smem + stage * stage_bytes
                        hopper.wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
                        hopper.expect_bytes(barrier, arriving)
                        at_k: int32 = from_end(tile, depth) if descends else depth
                        fetch(target, barrier, tile, at_k, maps)
                        depth += tile_k
                        stage, parity = after(stage, parity)
                if cluster > 1:  # until then, the partner arrives at this block's barriers
                    for _ in range(stages):
                        hopper.wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
                        stage, parity = after(stage, parity)
        else:
            # --- Consumers: warpgroups with some rows of every tile, or all of every other one ---
            if consumer_registers:
                hopper.limit_registers("inc", consumer_registers)
            result = Result(alpha, beta, c, out, m, n, batch, extra)
            held = begin_store(result)
            group: int32 = thread // WARPGROUP
            turn: int32 = empty + 8 * stages + 8 * group
            turn_parity: int32 = 1 - group  # the first warpgroup begins without waiting
            others: int32 = group  # tiles of the other warpgroup until the next own one
            is_ready = False
            while index < work.tiles:
                if reads_first:
                    hopper.wait_barrier(int32(full + 8 * stage), int32(parity))
                    tile = noted_tile(int32(smem + notes_smem + note * NOTE_BYTES), work)
                    note, lap = after_note(note, lap)
                elif leaves_notes:
                    tile = Tile(0, 0, 0, 0, 0, 0, work.first_k, work.end_k)
                else:
                    tile = find(work, index)
                index += blocks
                k_tiles: int32 = (tile.end_k - tile.first_k + tile_k - 1) // tile_k
                if is_pingpong:
                    if others != 0:
                        others = 0
                        stage, parity = skip(stage, parity, k_tiles)
                        note, lap = after_note(note, lap)
                        if leaves_notes or is_ready:
                            continue
                        # Store a tile below the result, so that the code of the store arrives.
                        tile = below(tile)
                        k_tiles = -1
                    else:
                        others = 1
                        hopper.wait_barrier(turn, turn_parity)
                        hopper.sync_warpgroup(1 + group)  # no thread may miss a phase
                        turn_parity ^= 1
                    is_ready = True
                # --- Main loop: all k of the tile ---
                sums, stage, parity = multiply(
                    smem, full, empty, thread, k_tiles, stage, parity, tile, result
                )
                # --- Epilogue: the producer is already fetching the next tile ---
                if leaves_notes and not reads_first:
                    at = smem + notes_smem + note * NOTE_BYTES
                    note, lap = after_note(note, lap)
                    tile = noted_tile(int32(at), work)
                store_tile(sums, int32(smem + chunks_smem), thread, tile, work, result, held)

    return tma_kernel
