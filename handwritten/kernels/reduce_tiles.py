"""Reduction of a matrix in memory: one partial result for each row or column of a tile.

The blocks of a fused kernel reduce the tile that they have computed (see `reduction`); this kernel
does so for a result that another kernel has stored. Neighbouring threads read neighbouring columns
and put them into shared memory, from which each thread reduces a part of a row or column of its
own. Memory bandwidth bounds its speed.
Layout: a (m, n), whose columns count as k, any strides, any batch. The parameters are those of a
GEMM; b, c and out are not used.
Constraints: none.
Source: M. Harris, "Optimizing Parallel Reduction in CUDA", for the sequential part per thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel


def widened_dtype(dtype: str) -> str:
    """Dtype that elements are reduced in: float32 for half precision, else their own."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


@dataclass(frozen=True)
class Config(BaseConfig):
    """The tile of a block, its threads, and how many of these an SM should hold."""

    tile_m: int
    tile_n: int
    threads: int
    resident_threads: int = 1024  # so that many reads are in flight

    def complaints(self) -> Iterator[str]:
        if self.threads % self.tile_n or self.tile_m * self.tile_n % self.threads:
            yield f"{self.threads} threads cannot read whole rows of the tile"

    def smem_bytes(self, dtype: str) -> int:
        return self.tile_m * self.row_items * np.dtype(widened_dtype(dtype)).itemsize

    @property
    def row_items(self) -> int:
        """Elements from one row in shared memory to the next: odd, so a column fills all banks."""
        return self.tile_n + 1

    def accumulator_bytes(self, dtype: str) -> int:
        return np.dtype(widened_dtype(dtype)).itemsize

    def min_blocks(self, dtype: str) -> int:
        return self.resident_threads // self.threads

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n} threads {self.threads}"


READ_WIDTH = 1  # elements of shared memory per read of a thread


def make_kernel(config: Config, dtype: str, epilogue: Any) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        dtype: dtype of the matrix.
        epilogue: a `Fusion` of a reduction alone.
    """
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.reduction import make_reduce_tile
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range
    from dxgemm.handwritten.parts.widening import WIDEN

    wide_dtype = widened_dtype(dtype)
    scalar = np.dtype(wide_dtype).type
    widen = WIDEN.get(dtype, scalar)
    tile_m, tile_n, threads = config.tile_m, config.tile_n, config.threads
    row_items, row_step = config.row_items, threads // tile_n
    reads = tile_m // row_step

    def read_element(smem, row, col):
        return (smem[row * row_items + col],)

    read = device_function(read_element)
    reduce_tile = make_reduce_tile(
        epilogue, tile_m, tile_n, threads, 1, wide_dtype, READ_WIDTH, read, read
    )

    @gemm_kernel
    def reduce_tiles_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = cuda.shared.array(tile_m * row_items, scalar)
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        block: int32 = cuda.blockIdx.x
        matrix = divide(block, int32(tiles_m * tiles_n))
        tile: int32 = block - matrix * tiles_m * tiles_n
        tile_index = divide(tile, tiles_n)
        tile_row, tile_col = int64(tile_index) * tile_m, int64(tile - tile_index * tiles_n) * tile_n
        thread: int32 = cuda.threadIdx.x & 1023
        smem_row: int32 = thread // tile_n
        smem_col: int32 = thread % tile_n
        row, col = tile_row + smem_row, tile_col + smem_col
        index = matrix * a.batch + row * a.row + col * a.col
        for step in static_range(reads):
            if row + step * row_step < m and col < n:
                value = widen(a.data[index + step * row_step * a.row])
                smem[(smem_row + step * row_step) * row_items + smem_col] = value
        cuda.syncthreads()
        reduce_tile(smem, thread, matrix, tile_row, tile_col, m, n, extra)

    return reduce_tiles_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    # The second one is for many sorted values: a thread has a whole line, and more registers.
    configs=(
        Config(tile_m=64, tile_n=64, threads=256),
        Config(tile_m=64, tile_n=64, threads=64, resident_threads=384),
    ),
    simulator_configs=(
        Config(tile_m=4, tile_n=4, threads=8),
        Config(tile_m=4, tile_n=4, threads=4),
    ),
)
