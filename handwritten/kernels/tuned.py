"""The best of the ladder's techniques, with the tile sizes that measured fastest.

Idea: grown from `ping_pong`. A thread keeps up to 16 x 8 elements, so that six 16-byte reads of
shared memory feed 128 multiply-adds; blocks run over the result in groups of tile rows, whose
operands stay in L2; small results are split along k over the blocks of a thread-block cluster, so
that every SM has work; split-K with a workspace serves smaller ones yet (`add_slices`). Of a
symmetric result, half the tiles are computed (`triangle`). A function of the caller may take the
place of the multiply-add (`inner`), of int32 too.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; compiled for the layouts of a
and b (see `async_tiles`).
Constraints: see `Config`. Tiles need not be powers of two: rows are read 8 bytes at a time where 16
do not divide a thread's, and threads may be left without a share of the copying. Edges are
predicated: tiles inside the operands pay one branch for it. split_k needs the clusters of compute
capability 9.0, cp.async 8.0.
Source: NVIDIA's CUTLASS, "Efficient GEMM in CUDA", for the hierarchy of tiles and the pipelines;
S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance", for the ladder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts import triangle
from dxgemm.handwritten.parts.async_tiles import copy_modes, make_tile_copy
from dxgemm.handwritten.parts.configs import LANES_M, LANES_N, RingConfig
from dxgemm.handwritten.parts.fragment import thread_fragment
from dxgemm.handwritten.parts.k_ranges import make_k_range
from dxgemm.handwritten.parts.kernel import Kernel, Reductions
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.result import Origin, Result
from dxgemm.handwritten.parts.tile_store import make_store_tile

SWIZZLE_ROWS = 8  # tile rows that are computed together, so that they share data in L2
RANGE_ROWS = 2  # the same of triangular operands, whose longest tiles come first


@dataclass(frozen=True)
class Config(RingConfig):
    """A `RingConfig` whose tile of the result several blocks may share.

    Attributes:
        split_k: blocks of a cluster that share the k of a tile of the result (cluster split-K).
    """

    split_k: int = 1

    swizzle_rows = SWIZZLE_ROWS

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.split_k not in (1, 2, 4, 8):
            yield f"a cluster has 1, 2, 4 or 8 blocks, not {self.split_k}"

    @property
    def cluster(self) -> int:
        return self.split_k

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM: 512 threads where registers allow it, else 256."""
        fragments = 2 * (self.thread_m + self.thread_n) * np.dtype(dtype).itemsize
        threads = 512 if self.accumulator_bytes(dtype) + fragments <= 384 else 256
        return max(threads // self.threads, 1)

    def __str__(self) -> str:
        return super().__str__() + (f" split {self.split_k}" if self.split_k > 1 else "")


def supports(problem: Any) -> str | None:
    """Support products of floats, and inner functions of integers."""
    if problem.dtype == "int32" and problem.inner is None:
        return "it computes inner functions of int32, and no products"
    return None


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Modes of copying a and b (see `async_tiles`); "sliced" if k is; triangle; k_ranges.

    The latter three are left out where they are empty.
    """
    modes = copy_modes(config, problem)
    if problem.k_ranges:
        return *modes, "", "", problem.k_ranges
    slicing = "" if problem.slices == 1 else "sliced"
    if problem.triangle:
        return *modes, slicing, problem.triangle
    return (*modes, slicing) if slicing else modes


def make_kernel(
    config: Config,
    dtype: str,
    a_mode: str,
    b_mode: str,
    slicing: str = "",
    stored: str = "",
    ranges: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    If k is sliced, the grid has a y for each slice, and out holds one batch of sums per slice.
    `stored` names the triangles of a symmetric result that are written; it is "" for any other.
    `ranges` names the triangles of a and b, see `k_ranges`.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.block_mask import make_is_dead
    from dxgemm.handwritten.parts.epilogue import make_prefetch
    from dxgemm.handwritten.parts.inner import make_begin_with_c, make_combine
    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        divide,
        global_address,
        load_vectors,
        opaque,
        shared_address,
        wait_copies,
    )
    from dxgemm.handwritten.parts.tile_order import make_tile_map
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    is_sliced = slicing == "sliced"
    scalar = np.dtype(dtype).type
    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size  # elements of a 16-byte access
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    tile_k_bytes = tile_k * item_size
    thread_m, thread_n = config.thread_m, config.thread_n
    stages, split_k = config.stages, config.split_k
    warps_n = tile_n // config.warp_n
    warp_m, warp_n = config.warp_m, config.warp_n
    a_row_bytes, b_row_bytes = config.a_row_bytes(dtype), config.b_row_bytes(dtype)
    a_bytes = tile_k * a_row_bytes
    stage_bytes = config.stage_bytes(dtype)
    ring_bytes = stages * stage_bytes
    # A thread's rows come in vectors, one from each of thread_m / row_width row groups.
    row_width = width if thread_m % width == 0 else width // 2
    row_vectors, col_vectors = thread_m // row_width, thread_n // width
    row_group, col_group = LANES_M * row_width, LANES_N * width
    a_step, b_step = row_group * item_size, col_group * item_size  # from vector to vector
    a_begin, a_copy, a_copy_predicated = make_tile_copy(
        a_mode, tile_m, tile_k, a_row_bytes, config.threads, dtype
    )
    b_begin, b_copy, b_copy_predicated = make_tile_copy(
        b_mode, tile_n, tile_k, b_row_bytes, config.threads, dtype
    )
    locate, _ = triangle.make_tile_map(tile_m, tile_n, SWIZZLE_ROWS)
    locate_in_turn, _ = make_tile_map(tile_m, tile_n, RANGE_ROWS, "", ranges)
    k_range = make_k_range(ranges, tile_m, tile_n, tile_k)
    epilogue, is_masked, is_dead = make_is_dead(epilogue)
    is_inner, begin, outer, _, _, close = make_combine(epilogue, dtype)
    has_parts = close is not None
    fragment = thread_fragment((thread_m, row_width, row_group), (thread_n, width, col_group))
    shared_rows = tile_m // split_k
    prefetch = make_prefetch(epilogue, shared_rows, tile_n, config.threads)
    is_prefetching = prefetch is not None
    begin_with_c = make_begin_with_c(fragment, epilogue, dtype) if has_parts else None
    store_tiles = tuple(
        make_store_tile(fragment, (tile_m, tile_n), config.threads, dtype, epilogue, split_k, *how)
        for how in triangle.stores(stored, epilogue)
    )

    @gemm_kernel
    def tuned_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = shared_address(cuda.shared.array(0, int32))

        # --- This block's tile, its share of k, this thread's place ---
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        block: int32 = cuda.blockIdx.x
        rank: int32 = block % split_k
        block = block // split_k
        if stored:
            matrix, row, col = locate(block, tiles_m, tiles_n)
            tile_row = int64(row) * tile_m
            tile_col = int64(col) * tile_n
        elif ranges:
            matrix, tile_row, tile_col = locate_in_turn(block, tiles_m, tiles_n)
            tile_row, tile_col = int64(tile_row), int64(tile_col)
        else:
            matrix = divide(block, tiles_m * tiles_n)
            tile: int32 = block - matrix * tiles_m * tiles_n
            group = divide(tile, SWIZZLE_ROWS * tiles_n)
            rows_left: int32 = tiles_m - group * SWIZZLE_ROWS
            swizzle_rows = min(rows_left, int32(SWIZZLE_ROWS))
            place: int32 = tile - group * SWIZZLE_ROWS * tiles_n
            col = divide(place, swizzle_rows)
            tile_row = int64(group * SWIZZLE_ROWS + place - col * swizzle_rows) * tile_m
            tile_col = int64(col) * tile_n
        if is_masked and is_dead(tile_row, tile_col, extra):
            return
        k_tiles: int32 = (k + tile_k - 1) // tile_k
        if is_sliced:
            part: int32 = cuda.blockIdx.y
            parts: int32 = cuda.gridDim.y
            share = divide(k_tiles + parts - 1, parts)
            first: int32 = share * part
            first = min(first, k_tiles)
            end: int32 = first + share
            end = min(end, k_tiles)
            out_start = (part * batch + matrix) * out.batch
        elif ranges:
            begin_k, end_k = k_range(int32(tile_row), int32(tile_col), k_tiles)
            span: int32 = end_k - begin_k
            first = begin_k + span * rank // split_k
            end = begin_k + span * (rank + 1) // split_k
            out_start = matrix * out.batch
        else:
            first = k_tiles * rank // split_k
            end = k_tiles * (rank + 1) // split_k
            out_start = matrix * out.batch
        first_k = int64(first) * tile_k
        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        # Lanes 0 to 7 read two rows of a and four columns of b: few addresses for each access.
        lane_row: int32 = lane >> 1 & 3
        lane_col: int32 = lane & 1 | lane >> 2 & 6
        thread_row: int32 = warp // warps_n * warp_m + lane_row * row_width
        thread_col: int32 = warp % warps_n * warp_n + lane_col * width

        b_smem: int32 = smem + a_bytes
        a_copying, a_source = a_begin(
            thread,
            smem,
            global_address(a.data)
            + (matrix * a.batch + tile_row * a.row + first_k * a.col) * item_size,
            m - tile_row,
            a.row * item_size,
            a.col * item_size,
        )
        b_copying, b_source = b_begin(
            thread,
            b_smem,
            global_address(b.data)
            + (matrix * b.batch + tile_col * b.col + first_k * b.row) * item_size,
            n - tile_col,
            b.col * item_size,
            b.row * item_size,
        )
        a_tile_step, b_tile_step = a.col * tile_k_bytes, b.row * tile_k_bytes
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n
        # Tiles still to copy, and how many of them, at the end, need predicates.
        to_copy: int32 = end - first
        last_depth: int32 = min(k - int64(end - 1) * tile_k, tile_k)
        predicated: int32 = (0 if last_depth == tile_k else 1) if is_inside else to_copy

        def copy_exact():
            a_copy(a_copying, write_stage, a_source)
            b_copy(b_copying, write_stage, b_source)

        def copy_edge():
            depth: int32 = last_depth if to_copy == 1 else tile_k
            a_copy_predicated(a_copying, write_stage, a_source, depth)
            b_copy_predicated(b_copying, write_stage, b_source, depth)

        def advance():
            nonlocal a_source, b_source, to_copy, write_stage
            commit_copies()
            a_source += a_tile_step
            b_source += b_tile_step
            to_copy -= 1
            write_stage += stage_bytes

        # --- Prologue: all stages but one are in flight ---
        write_stage: int32 = 0
        for _ in range(stages - 1):
            if to_copy > predicated:
                copy_exact()
            elif to_copy > 0:
                copy_edge()
            advance()
        if is_prefetching:
            prefetch(matrix, tile_row + rank * shared_rows, tile_col, m, n, extra)
        wait_copies(stages - 2)
        cuda.syncthreads()

        # --- Main loop ---
        # The fragments of the next k are read while this one's are multiplied, across the border
        # of tiles too.
        acc = begin(scalar, thread_m * thread_n)
        if has_parts:
            acc = begin_with_c(
                acc, tile_row + thread_row, tile_col + thread_col, matrix * c.batch, c,
                scalar(beta), m, n,
            )  # fmt: skip
        a_address: int32 = smem + thread_row * item_size
        b_address: int32 = smem + a_bytes + thread_col * item_size
        read_stage: int32 = 0
        a_frag = load_vectors(scalar, row_width, a_address, 0, a_step, row_vectors)
        b_frag = load_vectors(scalar, width, b_address, 0, b_step, col_vectors)
        # Twice: while whole tiles are copied, in one straight line of code, and for the rest.
        exact: int32 = max(to_copy - predicated, 0)
        for phase in static_range(2):
            turns: int32 = exact if phase == 0 else end - first - exact
            for turn in range(turns):
                if is_inner and phase == 1:
                    left: int32 = last_depth if turn == turns - 1 else tile_k
                for kk in static_range(tile_k):
                    if kk == tile_k - 1:
                        read_stage += stage_bytes
                        if read_stage == ring_bytes:
                            read_stage = 0
                        wait_copies(stages - 2)
                        cuda.syncthreads()
                    if kk == 0 or kk == tile_k - 1:
                        a_row: int32 = a_address + read_stage
                        b_row: int32 = b_address + read_stage
                    # The k after the last is the next tile's first.
                    a_offset = (kk + 1) % tile_k * a_row_bytes
                    b_offset = (kk + 1) % tile_k * b_row_bytes
                    a_next = load_vectors(scalar, row_width, a_row, a_offset, a_step, row_vectors)
                    b_next = load_vectors(scalar, width, b_row, b_offset, b_step, col_vectors)
                    if kk == 0:  # every thread has left the stage that this overwrites
                        if phase == 0:
                            copy_exact()
                        elif to_copy > 0:
                            copy_edge()
                        advance()
                        if write_stage == ring_bytes:
                            write_stage = 0
                    if is_inner and phase == 1:
                        if kk < left:  # an inner function would count the zeros beyond k
                            acc = outer(acc, a_frag, b_frag)
                    else:
                        acc = outer(acc, a_frag, b_frag)
                    a_frag, b_frag = a_next, b_next

        # --- Epilogue ---
        if has_parts:
            acc = close(acc)
            beta = 0
        wait_copies(0)
        if stored and is_sliced:  # recomputed: live across the main loop, they would cost registers
            block = opaque(int32(cuda.blockIdx.x)) // split_k
            matrix, row, col = locate(block, tiles_m, tiles_n)
            tile_row, tile_col = int64(row) * tile_m, int64(col) * tile_n
        for i in static_range(len(store_tiles)):
            store_tiles[i](
                acc, smem, rank, thread_row, thread_col, tile_row, tile_col,
                Origin(matrix, matrix * c.batch, out_start),
                Result(scalar(alpha), scalar(beta), c, out, m, n, batch, extra),
            )  # fmt: skip

    return tuned_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(128, 256, 8, 16, 8, stages=4),
        Config(160, 192, 8, 10, 12, stages=4),  # for sizes like 4000 = 25 x 160
        Config(128, 128, 8, 8, 8, stages=4),
        Config(128, 64, 8, 8, 8, stages=4),
        Config(128, 128, 8, 8, 8, stages=4, split_k=2),
        Config(64, 64, 8, 8, 4, stages=4),
        Config(64, 64, 8, 8, 4, stages=4, split_k=2),
        Config(64, 64, 8, 8, 4, stages=4, split_k=4),
        Config(32, 64, 8, 4, 4, stages=4, split_k=4),
        Config(32, 64, 16, 4, 4, stages=6),  # more bytes in flight, for 512^3
        # For results of few rows or columns.
        Config(64, 128, 8, 16, 8, stages=4),
        Config(48, 128, 8, 12, 8, stages=4),
        Config(40, 128, 8, 10, 8, stages=4),
        Config(64, 32, 16, 4, 4, stages=6),
        Config(128, 32, 16, 8, 4, stages=4),
        Config(32, 128, 16, 8, 4, stages=4),
        Config(16, 128, 16, 4, 4, stages=4),
    ),
    simulator_configs=(Config(8, 32, 4, 2, 4, stages=2),),
    dtypes=("float32", "float64", "int32"),
    minimum_arch=80,
    supports=supports,
    variant=variant,
    takes_inner=True,
    takes_triangles=True,
    takes_masks=True,
    takes_k_ranges=True,
    reductions=Reductions.ALL,
    takes_pairs=True,
    slices_k=True,
    order_of_sums="fma",
)
