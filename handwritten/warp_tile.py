"""A tile for each warp, between the block's and the thread's.

Idea: grown from `conflict_free`. The threads of a warp no longer lie side by side in two rows of
the block tile but form a small matrix of LANES_M x LANES_N: what the warp reads together is then
nearly square, a warp_m x warp_n tile, and it reads fewer elements of shared memory for as many
multiplications. With 16 x 8 elements a thread, six vectors feed 128 of them.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; compiled for the way a and b
lie in memory.
Constraints: see `Config`. Operands that are not contiguous or not aligned to 16 bytes, and tiles at
an edge, are read element by element.
Source: NVIDIA's CUTLASS, "Efficient GEMM in CUDA", for the hierarchy of tiles; S. Boehm, "How to
Optimize a CUDA Matmul Kernel", kernel 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.tiles import (
    make_find_tile,
    make_load_fragment,
    make_store_result,
    make_tile_copy,
    min_blocks,
    operand_modes,
    padded_layout,
    smem_alignment,
)

LANES_M, LANES_N = 4, 8  # how a warp's 32 threads share its tile


@dataclass(frozen=True)
class Config(BaseConfig):
    """Block tile tile_m x tile_n x tile_k; thread tile thread_m x thread_n.

    The warp tile follows from the thread tile and the lanes.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int

    def __post_init__(self) -> None:
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            raise ValueError(f"{self}: warp tiles {self.warp_m}x{self.warp_n} must fill the tile")
        if self.thread_m % 4 or self.thread_n % 4 or self.tile_k % 4:
            raise ValueError(f"{self}: thread tiles and tile_k must be multiples of 4 for vectors")
        if not 1 <= self.threads <= 1024:
            raise ValueError(f"{self}: a block has 1 to 1024 threads, not {self.threads}")
        for tile in (self.tile_m, self.tile_n):
            if tile * self.tile_k % (4 * self.threads):
                raise ValueError(f"{self}: vectors of 4 must be shared evenly by {self.threads}")

    @property
    def warp_m(self) -> int:
        return LANES_M * self.thread_m

    @property
    def warp_n(self) -> int:
        return LANES_N * self.thread_n

    @property
    def threads(self) -> int:
        return 32 * (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)

    def min_blocks(self, dtype: str) -> int:
        addresses = 16  # more than without warps
        return min_blocks(self.threads, self.thread_m * self.thread_n + addresses, dtype)

    def smem_bytes(self, dtype: str) -> int:
        rows = (padded_layout(tile, dtype).row for tile in (self.tile_m, self.tile_n))
        return self.tile_k * sum(rows) * np.dtype(dtype).itemsize

    def accumulator_bytes(self, dtype: str) -> int:
        return self.thread_m * self.thread_n * np.dtype(dtype).itemsize

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile} warp {self.warp_m}x{self.warp_n} thread {self.thread_m}x{self.thread_n}"


def variant(config: Config, problem: Any) -> tuple[str, str]:
    """How a and b lie in memory."""
    return operand_modes(problem)


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate."""
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import outer_product, zeros
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    scalar = np.dtype(dtype).type
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    thread_m, thread_n, threads = config.thread_m, config.thread_n, config.threads
    warp_m, warp_n = config.warp_m, config.warp_n
    warps_n = tile_n // warp_n
    width = VECTOR_BYTES // np.dtype(dtype).itemsize
    a_layout, b_layout = padded_layout(tile_m, dtype), padded_layout(tile_n, dtype)
    a_size, b_size, alignment = tile_k * a_layout.row, tile_k * b_layout.row, smem_alignment()
    row_group, col_group = LANES_M * width, LANES_N * width  # between a thread's vectors
    find_tile = make_find_tile(tile_m, tile_n)
    a_place, a_load, a_store = make_tile_copy(
        a_mode, True, tile_m, tile_k, a_layout, threads, dtype
    )
    b_place, b_load, b_store = make_tile_copy(
        b_mode, False, tile_n, tile_k, b_layout, threads, dtype
    )
    load_a_frag = make_load_fragment(thread_m, row_group, a_layout, dtype)
    load_b_frag = make_load_fragment(thread_n, col_group, b_layout, dtype)
    store_result = make_store_result(thread_m, thread_n, row_group, col_group, dtype, epilogue)

    @gemm_kernel
    def warp_tile_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        a_smem = cuda.shared.array(a_size, scalar, alignment)
        b_smem = cuda.shared.array(b_size, scalar, alignment)

        # Where am I: the block's tile of the result, and this thread's first element in it.
        matrix, tile_row, tile_col = find_tile(cuda.blockIdx.x, m, n)
        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        # Any eight lanes that are served together read two places of a and four of b: with 1 and 8,
        # shared memory would be busy for longer.
        lane_row: int32 = lane >> 1 & 3
        lane_col: int32 = lane & 1 | lane >> 2 & 6
        thread_row: int32 = warp // warps_n * warp_m + lane_row * width
        thread_col: int32 = warp % warps_n * warp_n + lane_col * width
        is_inside = tile_row + tile_m <= m and tile_col + tile_n <= n

        # The first element of each tile that this thread copies, and what is inside from there on.
        a_row, a_k = a_place(thread)
        b_col, b_k = b_place(thread)
        a_index = matrix * a.batch + (tile_row + a_row) * a.row + a_k * a.col
        b_index = matrix * b.batch + (tile_col + b_col) * b.col + b_k * b.row
        rows: int32 = min(m - tile_row, tile_m) - a_row
        cols: int32 = min(n - tile_col, tile_n) - b_col

        acc = zeros(scalar, thread_m * thread_n)
        left = k
        while left > 0:
            is_full, depth = is_inside and left >= tile_k, int32(min(left, tile_k))
            a_values = a_load(a.data, a_index, a.row, a.col, is_full, rows, int32(depth - a_k))
            b_values = b_load(b.data, b_index, b.col, b.row, is_full, cols, int32(depth - b_k))
            a_store(a_smem, 0, a_row, a_k, a_values)
            b_store(b_smem, 0, b_col, b_k, b_values)
            a_index += tile_k * a.col
            b_index += tile_k * b.row
            cuda.syncthreads()
            for kk in static_range(tile_k):
                a_frag = load_a_frag(a_smem, 0, thread_row, kk)
                b_frag = load_b_frag(b_smem, 0, thread_col, kk)
                acc = outer_product(acc, a_frag, b_frag)
            cuda.syncthreads()  # before the next tile overwrites this one
            left -= tile_k

        store_result(
            acc, tile_row + thread_row, tile_col + thread_col, is_inside, m, n, alpha, beta,
            c.data, matrix * c.batch, c.row, c.col,
            out.data, matrix * out.batch, out.row, out.col, matrix, extra,
        )  # fmt: skip

    return warp_tile_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=128, tile_k=8, thread_m=16, thread_n=8),
        Config(tile_m=128, tile_n=64, tile_k=8, thread_m=8, thread_n=8),
        Config(tile_m=64, tile_n=64, tile_k=8, thread_m=8, thread_n=4),
    ),
    simulator_configs=(Config(tile_m=16, tile_n=32, tile_k=8, thread_m=4, thread_n=4),),
    variant=variant,
)
