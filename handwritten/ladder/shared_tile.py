"""Tiles of a and b in shared memory: the threads of a block share what they read.

Idea: grown from `coalesced`. The threads of a block all read the same rows of a and columns of b.
They copy them to shared memory together, tile_k columns of a and tile_k rows of b at a time. One
barrier comes before the tile is read, and one before the next tile overwrites it. a is read tile_n
times less often from global memory and b tile_m times, by design and not by the luck of a cache.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; the copy runs along rows.
Constraints: the block tile is tile x tile, and tile_k is a multiple of tile, so that each thread
copies tile_k / tile elements of each operand. Edges are predicated: elements outside count as zero
and are not written.
Source: CUDA C++ Programming Guide, "Shared Memory".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel


@dataclass(frozen=True)
class Config(BaseConfig):
    """Block tile tile x tile, in steps of tile_k along k; one output element per thread."""

    tile: int
    tile_k: int

    def complaints(self) -> Iterator[str]:
        if self.tile_k % self.tile:
            yield f"tile_k must be a multiple of {self.tile}"

    @property
    def tile_m(self) -> int:
        return self.tile

    @property
    def tile_n(self) -> int:
        return self.tile

    @property
    def threads(self) -> int:
        return self.tile * self.tile

    def min_blocks(self, dtype: str) -> int:
        return 2048 // self.threads

    def smem_bytes(self, dtype: str) -> int:
        return 2 * self.tile * self.tile_k * np.dtype(dtype).itemsize

    def accumulator_bytes(self, dtype: str) -> int:
        return np.dtype(dtype).itemsize

    def __str__(self) -> str:
        return f"{self.tile}x{self.tile}x{self.tile_k}"


def make_kernel(config: Config, dtype: str, epilogue: Any = None) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate."""
    from numba import cuda

    from dxgemm.handwritten.parts.elements import make_put_element
    from dxgemm.handwritten.parts.intrinsics import below_2_31
    from dxgemm.handwritten.parts.tiles import smem_alignment
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    scalar = np.dtype(dtype).type
    begin, put = make_put_element(dtype, dtype, epilogue)
    tile_size, tile_k = config.tile, config.tile_k
    copies = tile_k // tile_size
    alignment = smem_alignment()  # lets the compiler combine reads of several elements

    @gemm_kernel
    def shared_tile_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        a_smem = cuda.shared.array((tile_size, tile_k), scalar, alignment)
        b_smem = cuda.shared.array((tile_k, tile_size), scalar, alignment)

        # --- This block's tile, this thread's element ---
        tiles_m = below_2_31((m + tile_size - 1) // tile_size)
        tiles_n = below_2_31((n + tile_size - 1) // tile_size)
        matrix, tile = divmod(below_2_31(cuda.blockIdx.x), below_2_31(tiles_m * tiles_n))
        # The mask proves to the compiler that no index is negative. Without it, each array access
        # would pay for Python's wraparound.
        thread = cuda.threadIdx.x & 1023
        thread_row, thread_col = thread // tile_size, thread % tile_size
        row = tile // tiles_n * tile_size + thread_row
        col = tile % tiles_n * tile_size + thread_col
        is_row, is_col = row < m, col < n

        # --- Main loop ---
        # The first elements this thread copies: those at its own row and column of either tile.
        a_index = matrix * a.batch + row * a.row + thread_col * a.col
        b_index = matrix * b.batch + thread_row * b.row + col * b.col
        acc = scalar(0)
        left = k
        while left > 0:
            # New: the threads together copy a tile of each operand, then read only the tiles.
            for copy in static_range(copies):
                a_value = b_value = scalar(0)
                if is_row and thread_col + copy * tile_size < left:
                    a_value = a.data[a_index + copy * tile_size * a.col]
                if is_col and thread_row + copy * tile_size < left:
                    b_value = b.data[b_index + copy * tile_size * b.row]
                a_smem[thread_row, thread_col + copy * tile_size] = a_value
                b_smem[thread_row + copy * tile_size, thread_col] = b_value
            a_index += tile_k * a.col
            b_index += tile_k * b.row
            cuda.syncthreads()
            for kk in static_range(tile_k):
                acc += a_smem[thread_row, kk] * b_smem[kk, thread_col]
            cuda.syncthreads()  # before the next tile overwrites this one
            left -= tile_k

        # --- Epilogue ---
        if is_row and is_col:
            # The epilogue of `coalesced`, as a function that later rungs share.
            put((acc,), begin(matrix, alpha, beta, c, out, extra), row, col)

    return shared_tile_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    # The tiles are twice as deep as wide, which halves the number of barriers, at which all warps
    # wait (9.1 against 8.4 TFLOP/s).
    configs=(Config(tile=32, tile_k=64), Config(tile=16, tile_k=32)),
    simulator_configs=(Config(tile=4, tile_k=8), Config(tile=2, tile_k=2)),
)
