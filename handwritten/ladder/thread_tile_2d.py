"""A two-dimensional tile of output elements per thread.

Idea: grown from `thread_tile_1d`. Each thread keeps a thread_m x thread_n tile of the result in
registers, so that thread_m + thread_n reads of shared memory feed thread_m * thread_n
multiplications.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch. The copy now runs along
whichever index of a and b has the smaller stride, so that both layouts coalesce.
Constraints: threads_m * threads_n threads must copy whole rows or columns of both tiles; see
`Config`. Edges are predicated: elements outside count as zero and are not written.
Source: V. Volkov and J. Demmel, "Benchmarking GPUs to tune dense linear algebra", SC 2008.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import ThreadTileConfig
from dxgemm.handwritten.parts.kernel import Kernel


@dataclass(frozen=True)
class Config(ThreadTileConfig):
    """A `ThreadTileConfig` whose threads copy whole rows or columns of both tiles."""

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        tiles = {"tile_m": self.tile_m, "tile_n": self.tile_n, "tile_k": self.tile_k}
        for name, size in tiles.items():
            if self.threads % size:
                yield f"{self.threads} threads must be a multiple of {name}"
            if name != "tile_k" and size * self.tile_k % self.threads:
                yield f"{name} * tile_k must be a multiple of {self.threads}"

    def padding(self, dtype: str) -> int:
        """Elements of padding per row of shared memory.

        A warp that copies a row-major `a` (or a column-major `b`) writes tile_k rows of the shared
        tile at once. The padding shifts each row by its share of the 128 bytes of banks, so that
        the rows do not conflict.
        """
        return max(1, 128 // (self.tile_k * np.dtype(dtype).itemsize))

    def smem_bytes(self, dtype: str) -> int:
        padding = 2 * self.tile_k * self.padding(dtype) * np.dtype(dtype).itemsize
        return super().smem_bytes(dtype) + padding


def make_kernel(config: Config, dtype: str, epilogue: Any = None) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.elements import make_put_element
    from dxgemm.handwritten.parts.intrinsics import below_2_31
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    scalar = np.dtype(dtype).type
    begin, put = make_put_element(dtype, dtype, epilogue)
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    thread_m, thread_n = config.thread_m, config.thread_n
    threads_m, threads_n, threads = tile_m // thread_m, tile_n // thread_n, config.threads
    a_smem_row = tile_m + config.padding(dtype)
    b_smem_row = tile_n + config.padding(dtype)
    a_copies, b_copies = tile_m * tile_k // threads, tile_n * tile_k // threads

    @gemm_kernel
    def thread_tile_2d_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        a_smem = cuda.shared.array((tile_k, a_smem_row), scalar)
        b_smem = cuda.shared.array((tile_k, b_smem_row), scalar)
        a_frag = cuda.local.array(thread_m, scalar)
        b_frag = cuda.local.array(thread_n, scalar)
        acc = cuda.local.array((thread_m, thread_n), scalar)

        # --- This block's tile, this thread's first element ---
        tiles_m = below_2_31((m + tile_m - 1) // tile_m)
        tiles_n = below_2_31((n + tile_n - 1) // tile_n)
        matrix, tile = divmod(below_2_31(cuda.blockIdx.x), below_2_31(tiles_m * tiles_n))
        tile_row, tile_col = tile // tiles_n * tile_m, tile % tiles_n * tile_n
        thread = cuda.threadIdx.x & 1023
        thread_row, thread_col = thread // threads_n, thread % threads_n

        # The first element of each tile that this thread copies, and the step to its next one.
        # Indices within a tile have 32 bits: in 64 bits, comparing them costs twice the registers.
        if abs(a.col) <= abs(a.row):
            a_row: int32 = thread // tile_k
            a_col: int32 = thread % tile_k
            a_row_step: int32 = threads // tile_k
            a_col_step: int32 = 0
        else:
            a_row = thread % tile_m
            a_col = thread // tile_m
            a_row_step = 0
            a_col_step = threads // tile_m
        if abs(b.col) <= abs(b.row):
            b_row: int32 = thread // tile_n
            b_col: int32 = thread % tile_n
            b_row_step: int32 = threads // tile_n
            b_col_step: int32 = 0
        else:
            b_row = thread % tile_k
            b_col = thread // tile_k
            b_row_step = 0
            b_col_step = threads // tile_k
        a_index = matrix * a.batch + (tile_row + a_row) * a.row + a_col * a.col
        b_index = matrix * b.batch + (tile_col + b_col) * b.col + b_row * b.row
        a_index_step = a_row_step * a.row + a_col_step * a.col
        b_index_step = b_row_step * b.row + b_col_step * b.col
        rows: int32 = min(m - tile_row, tile_m)
        cols: int32 = min(n - tile_col, tile_n)

        for i in range(thread_m):
            for j in range(thread_n):
                acc[i, j] = scalar(0)

        # --- Main loop ---
        left = k
        while left > 0:
            depth: int32 = min(left, tile_k)
            row: int32 = a_row
            col: int32 = a_col
            index = a_index
            for _ in range(a_copies):
                value = scalar(0)
                if row < rows and col < depth:
                    value = a.data[index]
                a_smem[col, row] = value
                row += a_row_step
                col += a_col_step
                index += a_index_step
            row, col, index = b_row, b_col, b_index
            for _ in range(b_copies):
                value = scalar(0)
                if row < depth and col < cols:
                    value = b.data[index]
                b_smem[row, col] = value
                row += b_row_step
                col += b_col_step
                index += b_index_step
            a_index += tile_k * a.col
            b_index += tile_k * b.row
            cuda.syncthreads()

            # New: thread_m + thread_n reads feed thread_m * thread_n multiplications.
            # Thread tiles are interleaved: a warp reads consecutive columns of b_smem, without
            # bank conflicts, and one or two elements of a_smem, which are broadcast.
            for kk in static_range(tile_k):
                for i in range(thread_m):
                    a_frag[i] = a_smem[kk, thread_row + i * threads_m]
                for j in range(thread_n):
                    b_frag[j] = b_smem[kk, thread_col + j * threads_n]
                for i in range(thread_m):
                    for j in range(thread_n):
                        acc[i, j] += a_frag[i] * b_frag[j]
            cuda.syncthreads()  # before the next tile overwrites this one
            left -= tile_k

        # --- Epilogue ---
        at = begin(matrix, alpha, beta, c, out, extra)
        for i in static_range(thread_m):
            out_row = tile_row + thread_row + i * threads_m
            for j in static_range(thread_n):
                out_col = tile_col + thread_col + j * threads_n
                if out_row < m and out_col < n:
                    put((acc[i, j],), at, out_row, out_col)

    return thread_tile_2d_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=128, tile_k=8, thread_m=8, thread_n=8),
        Config(tile_m=64, tile_n=64, tile_k=16, thread_m=8, thread_n=4),
        Config(tile_m=64, tile_n=32, tile_k=16, thread_m=4, thread_n=4),
        Config(tile_m=32, tile_n=32, tile_k=16, thread_m=2, thread_n=2),
    ),
    simulator_configs=(
        Config(tile_m=4, tile_n=4, tile_k=2, thread_m=2, thread_n=2),
        Config(tile_m=2, tile_n=4, tile_k=4, thread_m=1, thread_n=2),
    ),
)
