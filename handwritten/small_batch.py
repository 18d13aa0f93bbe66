"""Many small matrices: several of them a block, each with threads and shared memory of its own.

Idea: grown from `tuned`. A matrix of 4 x 4 to 64 x 64 fits one tile, k included: all of it is on
its way to shared memory at once, and there is no pipeline but the blocks that share a
multiprocessor. A block takes as many matrices as give it 128 threads.
What bounds m = n = k on an H200, where a multiprocessor gets 18 bytes a clock from memory and does
128 multiply-adds in float32 and 64 in float64, in clocks of one multiprocessor for one matrix:

    size                   4     8    16     32     48     64     96     128
    memory, float32       11    43   171    683   1536   2731   6144   10923
    arithmetic, float32    1     4    32    256    864   2048   6912   16384
    memory, float64       21    85   341   1365   3072   5461  12288   21845
    arithmetic, float64    1     8    64    512   1728   4096  13824   32768

Memory does up to 64, and every byte should cross it once, in whole sectors; beyond, `tuned` and the
tensor cores of `tensor_core` (half the clocks) take over. A few hundred matrices of any size take
what a launch takes.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch. In shared memory a lies as in
global memory, along k or along m; b as rows, transposed on the way if it is column-major.
Constraints: see `Config`; cp.async needs compute capability 8.0. Larger matrices are computed tile
by tile. Edges are predicated: elements outside count as zero and are not written.
Source: A. Abdelfattah et al., "Performance, Design, and Autotuning of Batched GEMM for GPUs", ISC
2016, for several problems a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.async_tiles import make_tile_copy
from dxgemm.handwritten.operands import VECTOR_BYTES, operand_mode
from dxgemm.handwritten.tiles import make_find_tile, make_store_result, min_blocks

MINIMUM_ARCH = 80
LANES_K = 8  # neighbours that copy along k what is transposed: their places are in other banks
UNROLLED_K = 16


@dataclass(frozen=True)
class Config:
    """Tile of a matrix tile_m x tile_n x tile_k; thread tile thread_m x thread_n.

    Attributes:
        matrices: tiles a block computes, each by threads of its own.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int
    matrices: int

    dynamic_smem = True

    def __post_init__(self) -> None:
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n:
            raise ValueError(f"{self}: thread tiles must fill the tile")
        if self.tile_m % 4 or self.thread_n % 4 or self.tile_k % min(self.tile_k, UNROLLED_K):
            raise ValueError(f"{self}: tiles are read in vectors of 4, k in steps of {UNROLLED_K}")
        if not 1 <= self.threads <= 1024:
            raise ValueError(f"{self}: a block has 1 to 1024 threads, not {self.threads}")

    @property
    def threads_m(self) -> int:
        return self.tile_m // self.thread_m

    @property
    def threads_n(self) -> int:
        return self.tile_n // self.thread_n

    @property
    def tile_threads(self) -> int:
        """Threads that share a tile."""
        return self.threads_m * self.threads_n

    @property
    def threads(self) -> int:
        return self.tile_threads * self.matrices

    def line_bytes(self, length: int, dtype: str) -> int:
        """From one line of an operand's tile in shared memory to the next.

        Lines of 16 or 32 bytes, read by as many threads as fill the banks, need no padding.
        """
        size = length * np.dtype(dtype).itemsize
        return size if size == VECTOR_BYTES else size + VECTOR_BYTES

    def operand_bytes(self, tile_outer: int, dtype: str) -> int:
        """Of one matrix's tile, whichever way it lies."""
        along_k = tile_outer * self.line_bytes(self.tile_k, dtype)
        along_outer = self.tile_k * self.line_bytes(tile_outer, dtype)
        return max(along_k, along_outer)

    def smem_bytes(self, dtype: str) -> int:
        return self.matrices * sum(
            self.operand_bytes(tile, dtype) for tile in (self.tile_m, self.tile_n)
        )

    def accumulator_bytes(self, dtype: str) -> int:
        return self.thread_m * self.thread_n * np.dtype(dtype).itemsize

    def min_blocks(self, dtype: str) -> int:
        """Blocks that a multiprocessor's registers shall suffice for: also for a vector a row."""
        vectors = self.thread_m * VECTOR_BYTES // np.dtype(dtype).itemsize
        return min_blocks(self.threads, self.thread_m * self.thread_n + vectors, dtype)

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile} thread {self.thread_m}x{self.thread_n} matrices {self.matrices}"


CONFIGS = (
    Config(64, 64, 64, thread_m=8, thread_n=8, matrices=1),
    Config(64, 64, 64, thread_m=8, thread_n=4, matrices=1),
    Config(48, 48, 48, thread_m=4, thread_n=4, matrices=1),
    Config(32, 32, 32, thread_m=4, thread_n=4, matrices=2),
    Config(16, 16, 16, thread_m=2, thread_n=4, matrices=4),
    Config(8, 8, 8, thread_m=2, thread_n=4, matrices=16),
    Config(4, 4, 4, thread_m=1, thread_n=4, matrices=32),
)
SIMULATOR_CONFIGS: tuple[Config, ...] = ()  # the simulator has no cp.async

LAUNCH_US = 2.5  # no pipeline to fill


def supports(problem: Any) -> str | None:
    """None: every problem."""
    return None


def variant(config: Config, problem: Any) -> tuple[str, str]:
    """How a and b lie in memory."""
    return operand_mode(problem, "a"), operand_mode(problem, "b").replace("col16", "col")


def tile_count(config: Config, problem: Any) -> int:
    """Tiles of the result: row by row, matrix after matrix."""
    return problem.batch * -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one for as many tiles as it computes."""
    return -(-tile_count(config, problem) // config.matrices)


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile."""
    from numba import cuda, int32

    from dxgemm.handwritten.intrinsics import (
        commit_copies,
        global_address,
        load_shared,
        outer_product,
        shared_address,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.unroll import static_range, unroll_static_loops

    scalar = np.dtype(dtype).type
    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size  # elements of a 16-byte access
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    thread_m, thread_n = config.thread_m, config.thread_n
    threads_m, threads_n = config.threads_m, config.threads_n
    tile_threads, matrices = config.tile_threads, config.matrices
    a_is_along_k = a_mode.startswith("row")
    a_line = tile_k if a_is_along_k else tile_m
    a_line_bytes, b_line_bytes = config.line_bytes(a_line, dtype), config.line_bytes(tile_n, dtype)
    a_bytes = config.operand_bytes(tile_m, dtype)
    member_bytes = a_bytes + config.operand_bytes(tile_n, dtype)
    # A thread's rows: neighbours where a lies along m, to be read together.
    row_width = 1 if a_is_along_k else min(width, thread_m)
    row_group, col_group = threads_m * row_width, threads_n * width
    unrolled_k = min(tile_k, UNROLLED_K)
    find_tile = make_find_tile(tile_m, tile_n)
    # What lies along k is copied as if k were its outer index, and the other way round.
    a_way = "outer16" if a_mode.endswith("16") else "outer"
    a_begin, a_copy, a_copy_guarded = make_tile_copy(
        a_way, a_line, tile_m if a_is_along_k else tile_k, a_line_bytes, tile_threads, dtype
    )
    b_way = {"row16": "outer16", "row": "outer", "col": "k"}[b_mode]
    b_begin, b_copy, b_copy_guarded = make_tile_copy(
        b_way, tile_n, tile_k, b_line_bytes, tile_threads, dtype,
        LANES_K if b_way == "k" else tile_threads,
    )  # fmt: skip
    store_result = make_store_result(
        thread_m, thread_n, row_group, col_group, dtype, epilogue, row_width
    )

    def small_batch_kernel(
        a_gmem, b_gmem, c_gmem, out_gmem, alpha, beta, m, n, k, batch,
        a_stride_batch, a_stride_m, a_stride_k, b_stride_batch, b_stride_k, b_stride_n,
        c_stride_batch, c_stride_m, c_stride_n, out_stride_batch, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        # Where am I: a tile of one of the block's matrices, and this thread's first element in it.
        thread = int32(cuda.threadIdx.x & 1023)
        member, thread = int32(thread // tile_threads), int32(thread % tile_threads)
        found, tile_row, tile_col = find_tile(cuda.blockIdx.x * matrices + member, m, n)
        matrix = min(found, batch - 1)  # behind the last one there is nothing to read
        row_lane, col_lane = int32(thread // threads_n), int32(thread % threads_n)
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n
        rows, cols = m - tile_row, n - tile_col

        smem = int32(shared_address(cuda.shared.array(0, scalar)) + member * member_bytes)
        b_smem = int32(smem + a_bytes)
        a_row_bytes = a_line_bytes if a_is_along_k else item_size
        a_address = int32(smem + row_lane * row_width * a_row_bytes)
        b_address = int32(b_smem + col_lane * VECTOR_BYTES)
        a_source = global_address(a_gmem) + item_size * (
            matrix * a_stride_batch + tile_row * a_stride_m
        )
        b_source = global_address(b_gmem) + item_size * (
            matrix * b_stride_batch + tile_col * b_stride_n
        )

        acc = zeros(scalar, thread_m * thread_n)
        left = k
        while left > 0:
            depth = min(left, tile_k)
            if a_is_along_k:
                a_copying, a_first = a_begin(
                    thread, smem, a_source, depth, a_stride_k * item_size, a_stride_m * item_size
                )
                a_lines = int32(min(rows, tile_m))
            else:
                a_copying, a_first = a_begin(
                    thread, smem, a_source, rows, a_stride_m * item_size, a_stride_k * item_size
                )
                a_lines = int32(depth)
            b_copying, b_first = b_begin(
                thread, b_smem, b_source, cols, b_stride_n * item_size, b_stride_k * item_size
            )
            if is_inside and left >= tile_k:
                a_copy(a_copying, int32(0), a_first)
                b_copy(b_copying, int32(0), b_first)
            else:
                a_copy_guarded(a_copying, int32(0), a_first, a_lines)
                b_copy_guarded(b_copying, int32(0), b_first, int32(depth))
            commit_copies()
            a_source += a_stride_k * (tile_k * item_size)
            b_source += b_stride_k * (tile_k * item_size)
            wait_copies(0)
            cuda.syncthreads()

            a_step, b_step = a_address, b_address
            for _ in range(tile_k // unrolled_k):
                for first_k in static_range(0, unrolled_k, width):
                    a_frags = ()
                    if a_is_along_k:
                        for i in static_range(thread_m):
                            a_frags = a_frags + load_shared(
                                scalar, width, a_step,
                                i * threads_m * a_line_bytes + first_k * item_size,
                            )  # fmt: skip
                    else:
                        for kk in static_range(width):
                            for i in static_range(0, thread_m, row_width):
                                a_frags = a_frags + load_shared(
                                    scalar, row_width, a_step,
                                    (first_k + kk) * a_line_bytes + i * threads_m * item_size,
                                )  # fmt: skip
                    for kk in static_range(width):
                        a_frag, b_frag = (), ()
                        for i in static_range(thread_m):
                            place = i * width + kk if a_is_along_k else kk * thread_m + i
                            a_frag = a_frag + (a_frags[place],)
                        for j in static_range(0, thread_n, width):
                            b_frag = b_frag + load_shared(
                                scalar, width, b_step,
                                (first_k + kk) * b_line_bytes + j * threads_n * item_size,
                            )  # fmt: skip
                        acc = outer_product(acc, a_frag, b_frag)
                a_step = int32(a_step + unrolled_k * (item_size if a_is_along_k else a_line_bytes))
                b_step = int32(b_step + unrolled_k * b_line_bytes)
            left -= tile_k
            if left > 0:
                cuda.syncthreads()  # before the next tile overwrites this one

        if found < batch:
            store_result(
                acc, tile_row + row_lane * row_width, tile_col + col_lane * width, is_inside,
                m, n, alpha, beta, c_gmem, matrix * c_stride_batch, c_stride_m, c_stride_n,
                out_gmem, matrix * out_stride_batch, out_stride_m, out_stride_n, matrix, extra,
            )  # fmt: skip

    return unroll_static_loops(small_batch_kernel)
