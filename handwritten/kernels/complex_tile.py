"""Complex matrices as they lie, by thread tiles of complex sums and a pipeline of copies.

Idea: grown from `tuned`, whose pipeline it has, with the arithmetic of `complex_batch`. An element
of a or b that a thread has read takes part in twice as many multiply-adds as a real one, so 8 x 8
complex sums need half the reads of shared memory that 16 x 8 real ones do. Small results are split
along k over the blocks of a thread-block cluster, of which each adds and stores some rows of every
thread's tile. Split-K with a workspace serves a longer k (`complex_sum`).
Layout: a (m, k), b (k, n), c and out (m, n) of complex elements, any strides, any batch; compiled
for the layouts of a and b (see `async_tiles`), and for conjugates. alpha and beta are the real and
the imaginary part of the factor of the product, the extra arguments those of the factor of c, which
is not read if both are 0.
Constraints: see `Config`. Edges are predicated. split_k needs the clusters of compute capability
9.0, cp.async 8.0. Complex elements begin at multiples of their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.kernels import tuned
from dxgemm.handwritten.parts.async_tiles import copy_modes, make_tile_copy
from dxgemm.handwritten.parts.complex_product import COMPLEX_PARTS, make_add_products
from dxgemm.handwritten.parts.complex_store import ThreadTile, make_add_blocks, make_store_complex
from dxgemm.handwritten.parts.configs import (
    LANES_M,
    LANES_N,
    MOST_REGISTERS,
    REGISTER_BYTES,
    REGISTERS_PER_SM,
)
from dxgemm.handwritten.parts.kernel import Kernel, never
from dxgemm.handwritten.parts.operands import VECTOR_BYTES

OTHER_REGISTERS = 16  # of a thread, besides sums and fragments
BANKS_BYTES = 256  # of a warp's access of 8 bytes a lane, twice all banks


@dataclass(frozen=True)
class Config(tuned.Config):
    """A config of `tuned`, whose elements are complex."""

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.thread_m % self.split_k:
            yield "blocks of a cluster share out the rows of a thread"

    def a_row_bytes(self, dtype: str) -> int:
        """Bytes from one k of a's tile in shared memory to the next.

        Neighbours that copy along k write to different banks.
        """
        return self.tile_m * np.dtype(dtype).itemsize + max(BANKS_BYTES // self.tile_k, 16)

    def b_row_bytes(self, dtype: str) -> int:
        return self.tile_n * np.dtype(dtype).itemsize + max(BANKS_BYTES // self.tile_k, 16)

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, or of the sums that blocks of a cluster exchange."""
        sums = self.threads * self.accumulator_bytes(dtype) if self.split_k > 1 else 0
        return max(self.stages * self.stage_bytes(dtype), sums)

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM: as many as sums and two sets of fragments allow.

        Clusters are for results of few tiles.
        """
        if self.split_k > 1:
            return 1
        fragments = 2 * (self.thread_m + self.thread_n) * np.dtype(dtype).itemsize
        registers = (self.accumulator_bytes(dtype) + fragments) // REGISTER_BYTES + OTHER_REGISTERS
        return max(1, REGISTERS_PER_SM // (min(registers, MOST_REGISTERS) * self.threads))


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Names of the conjugated operands, modes of copying a and b; "sliced" if k is."""
    slicing = ("sliced",) if problem.slices > 1 else ()
    return problem.conjugates, *copy_modes(config, problem), *slicing


def make_kernel(
    config: Config, dtype: str, conjugates: str, a_mode: str, b_mode: str, slicing: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        config, dtype: config, and dtype of the complex elements.
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
        a_mode, b_mode: see `async_tiles`.
        slicing: "sliced" if the grid has a y for each slice of k, and out holds one batch of sums a
            slice; otherwise "".
        epilogue: a `Fusion` that ends with two numbers; None for slices, whose sums are stored as
            they are.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        divide,
        global_address,
        load_vectors,
        shared_address,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    is_sliced = slicing == "sliced"
    is_fused = epilogue is not None and bool(epilogue.stages)
    real = np.dtype(COMPLEX_PARTS[dtype]).type
    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size  # elements of a 16-byte access
    vector = 2 * width  # their parts
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
    row_vectors, col_vectors = thread_m // width, thread_n // width
    row_group, col_group = LANES_M * width, LANES_N * width
    a_step, b_step = row_group * item_size, col_group * item_size  # from vector to vector
    a_begin, a_copy, a_copy_predicated = make_tile_copy(
        a_mode, tile_m, tile_k, a_row_bytes, config.threads, dtype
    )
    b_begin, b_copy, b_copy_predicated = make_tile_copy(
        b_mode, tile_n, tile_k, b_row_bytes, config.threads, dtype
    )
    rank_m = thread_m // split_k  # rows of a thread that a block of a cluster stores
    add_products = make_add_products(thread_m, thread_n, conjugates)
    count = 2 * thread_m * thread_n  # real numbers
    add_blocks = make_add_blocks(real, count, config.threads, split_k) if split_k > 1 else None
    store_complex = make_store_complex(
        ThreadTile(rank_m, thread_n, row_group, col_group, min(width, rank_m)), dtype, int64,
        epilogue, config.threads, config.smem_bytes(dtype),
    )  # fmt: skip

    @gemm_kernel
    def complex_tile_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = shared_address(cuda.shared.array(0, int32))

        # --- This block's tile, its share of k, this thread's place ---
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        block: int32 = cuda.blockIdx.x
        rank: int32 = block % split_k
        block = block // split_k
        matrix = divide(block, tiles_m * tiles_n)
        tile: int32 = block - matrix * tiles_m * tiles_n
        group = divide(tile, tuned.SWIZZLE_ROWS * tiles_n)
        rows_left: int32 = tiles_m - group * tuned.SWIZZLE_ROWS
        swizzle_rows = min(rows_left, int32(tuned.SWIZZLE_ROWS))
        place: int32 = tile - group * tuned.SWIZZLE_ROWS * tiles_n
        col = divide(place, swizzle_rows)
        tile_row = int64(group * tuned.SWIZZLE_ROWS + place - col * swizzle_rows) * tile_m
        tile_col = int64(col) * tile_n
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
        thread_row: int32 = warp // warps_n * warp_m + lane_row * width
        thread_col: int32 = warp % warps_n * warp_n + lane_col * width

        b_smem: int32 = smem + a_bytes
        a_copying, a_source = a_begin(
            thread, smem,
            global_address(a.data)
            + (matrix * a.batch + tile_row * a.row + first_k * a.col) * item_size,
            m - tile_row, a.row * item_size, a.col * item_size,
        )  # fmt: skip
        b_copying, b_source = b_begin(
            thread, b_smem,
            global_address(b.data)
            + (matrix * b.batch + tile_col * b.col + first_k * b.row) * item_size,
            n - tile_col, b.col * item_size, b.row * item_size,
        )  # fmt: skip
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

        # --- Prologue: all stages but one are on their way ---
        write_stage: int32 = 0
        for _ in range(stages - 1):
            if to_copy > predicated:
                copy_exact()
            elif to_copy > 0:
                copy_edge()
            advance()
        wait_copies(stages - 2)
        cuda.syncthreads()

        # --- Main loop ---
        # The fragments of the next k are read while this one's are multiplied, across the border
        # of tiles too.
        acc = zeros(real, 2 * thread_m * thread_n)
        a_address: int32 = smem + thread_row * item_size
        b_address: int32 = smem + a_bytes + thread_col * item_size
        read_stage: int32 = 0
        a_frag = load_vectors(real, vector, a_address, 0, a_step, row_vectors)
        b_frag = load_vectors(real, vector, b_address, 0, b_step, col_vectors)
        # Twice: while whole tiles are copied, in one straight line of code, and for the rest.
        exact: int32 = max(to_copy - predicated, 0)
        for phase in static_range(2):
            turns: int32 = exact if phase == 0 else end - first - exact
            for _ in range(turns):
                for kk in static_range(tile_k):
                    if kk == tile_k - 1:
                        read_stage += stage_bytes
                        if read_stage == ring_bytes:
                            read_stage = 0
                        wait_copies(stages - 2)
                        cuda.syncthreads()
                    a_row: int32 = a_address + read_stage
                    b_row: int32 = b_address + read_stage
                    # The k after the last is the next tile's first.
                    a_offset = (kk + 1) % tile_k * a_row_bytes
                    b_offset = (kk + 1) % tile_k * b_row_bytes
                    a_next = load_vectors(real, vector, a_row, a_offset, a_step, row_vectors)
                    b_next = load_vectors(real, vector, b_row, b_offset, b_step, col_vectors)
                    if kk == 0:  # every thread has left the stage that this overwrites
                        if phase == 0:
                            copy_exact()
                        elif to_copy > 0:
                            copy_edge()
                        advance()
                        if write_stage == ring_bytes:
                            write_stage = 0
                    acc = add_products(acc, a_frag, b_frag)
                    a_frag, b_frag = a_next, b_next

        # --- Epilogue ---
        wait_copies(0)
        if is_fused:
            cuda.syncthreads()  # the tiles of a and b have been read
        first_row: int32 = tile_row + thread_row
        first_col: int32 = tile_col + thread_col
        if split_k > 1:
            acc = add_blocks(acc, smem, thread, rank)
            first_row += rank * rank_m // width * row_group + rank * rank_m % width
        store_complex(
            acc, smem, thread, matrix, first_row, first_col, m, n, alpha, beta,
            c, matrix * c.batch, out, out_start, extra,
        )  # fmt: skip

    return complex_tile_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(128, 128, 8, 8, 8, stages=4),
        Config(64, 64, 8, 8, 4, stages=4),
        Config(64, 64, 8, 8, 4, stages=4, split_k=2),
        Config(32, 64, 8, 4, 4, stages=6),
        Config(32, 64, 8, 4, 4, stages=6, split_k=2),
        Config(32, 32, 8, 4, 4, stages=6, split_k=2),
        Config(32, 32, 8, 4, 4, stages=6, split_k=4),
    ),
    simulator_configs=(Config(16, 32, 4, 4, 4, stages=3),),
    dtypes=("complex64",),
    minimum_arch=80,
    variant=variant,
    commutes=never,
    slices_k=True,
    order_of_sums="complex fma",
)
