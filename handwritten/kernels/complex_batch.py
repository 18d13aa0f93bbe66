"""Many small complex matrices, multiplied as they lie: pairs of real and imaginary parts.

Idea: grown from `small_batch`, whose tiles and copies it has, with complex elements: a matrix
crosses memory once, in one launch (`complex_product` says how a thread multiplies).
A matrix in complex64 has the bytes of one in float64, and four times the arithmetic of float32:
from 42 x 42 on, that takes longer than memory on an H200, and so it is in complex128.
Layout: a (m, k), b (k, n), c and out (m, n) of complex elements, any strides, any batch. alpha and
beta are the real and the imaginary part of the factor of the product, the extra arguments those of
the factor of c, which is not read if both are 0.
Constraints: see `Config`; cp.async needs compute capability 8.0. Complex elements begin at
multiples of their size. Larger matrices are computed tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from dxgemm.handwritten.kernels import small_batch
from dxgemm.handwritten.parts.batch_tiles import (
    FAR,
    SHARED_A,
    batch_notes,
    block_count,
    make_find_matrix,
    make_line_copy,
    resident_blocks,
)
from dxgemm.handwritten.parts.complex_product import COMPLEX_PARTS, make_add_products
from dxgemm.handwritten.parts.complex_store import ThreadTile, make_store_complex
from dxgemm.handwritten.parts.configs import REGISTERS_PER_SM
from dxgemm.handwritten.parts.kernel import Kernel, block_a_tile, never
from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode

QUARTERS, WARP = 4, 32
MOST_UNROLLED_K = 4  # a step has four times the instructions of a real one


@dataclass(frozen=True)
class Config(small_batch.Config):
    """Tile of a matrix, as that of `small_batch`, whose elements are complex."""

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n:
            yield "thread tiles must fill the tile"
        if self.tile_m % 2 or self.thread_n % 2 or self.tile_k % (2 * self.parts):
            yield "tiles, and parts of k, are read in vectors of 2"

    def _resident_blocks(self, dtype: str, registers: int) -> int:
        size = np.dtype(dtype).itemsize
        width = VECTOR_BYTES // size
        # Sums, a vector a row, a row of b and the same times i.
        elements = self.thread_m * (self.thread_n + width) + 2 * self.thread_n
        registers += elements * size // 4
        # Whole warps take registers, each of the quarter of an SM that it runs on.
        warps = QUARTERS * (REGISTERS_PER_SM // QUARTERS // (WARP * registers))
        by_warps = max(1, warps // -(-self.threads // WARP))
        return min(by_warps, resident_blocks(self.threads, registers, self.smem_bytes(dtype)))


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Names of the conjugated operands, layouts of a and b, then the words of `batch_notes`."""
    a_mode, b_mode = operand_mode(problem, "a"), operand_mode(problem, "b")
    b_mode = b_mode.replace("col16", "col")
    return problem.conjugates, a_mode, b_mode, *batch_notes(problem)


def make_kernel(
    config: Config, dtype: str, conjugates: str, a_mode: str, b_mode: str, *notes: str,
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        config, dtype: config, and dtype of the complex elements.
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
        a_mode, b_mode, notes: see `variant`.
        epilogue: a `Fusion` that ends with two numbers.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        global_address,
        load_shared,
        load_vectors,
        shared_address,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    real = np.dtype(COMPLEX_PARTS[dtype]).type
    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size  # elements of a 16-byte access
    vector = 2 * width  # their parts
    index = int64 if FAR in notes else int32
    is_fused = bool(epilogue.stages)
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    thread_m, thread_n = config.thread_m, config.thread_n
    threads_m, threads_n = config.threads_m, config.threads_n
    a_is_along_k = a_mode.startswith("row")
    parts, part_k = config.parts, tile_k // config.parts
    tile_bytes, a_bytes = config.tile_bytes(dtype), config.operand_bytes(tile_m, dtype)
    a_line_bytes = config.line_bytes(tile_k if a_is_along_k else tile_m, dtype)
    b_line_bytes = config.line_bytes(tile_n, dtype)
    a_row_bytes, a_k_bytes = (
        (a_line_bytes, item_size) if a_is_along_k else (item_size, a_line_bytes)
    )
    row_width = 1 if a_is_along_k else config.rows_together(dtype)
    row_group, col_group = threads_m * row_width, threads_n * width
    unrolled_k = gcd(part_k, MOST_UNROLLED_K)
    in_eights = threads_m % 4 == 0 and threads_n % 2 == 0  # as in `small_batch`
    find_matrix = make_find_matrix(config)
    a_copy, a_copy_predicated = make_line_copy(
        a_is_along_k, a_mode.endswith("16"), part_k, tile_m, item_size, a_line_bytes,
        config.tile_threads, dtype, is_cached=SHARED_A in notes,
    )  # fmt: skip
    if b_mode == "col":  # transposed on the way
        b_copy, b_copy_predicated = make_line_copy(
            True, False, part_k, tile_n, b_line_bytes, item_size, config.tile_threads, dtype,
            small_batch.LANES_K,
        )  # fmt: skip
    else:
        b_copy, b_copy_predicated = make_line_copy(
            False, b_mode.endswith("16"), part_k, tile_n, item_size, b_line_bytes,
            config.tile_threads, dtype, is_cached=True,
        )  # fmt: skip
    add_products = make_add_products(thread_m, thread_n, conjugates)
    store_complex = make_store_complex(
        ThreadTile(thread_m, thread_n, row_group, col_group, row_width), dtype, index, epilogue,
        config.threads, config.smem_bytes(dtype),
    )  # fmt: skip

    @gemm_kernel
    def complex_batch_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This tile, this thread's place ---
        m, n, k = int32(m), int32(n), int32(k)
        thread, member, exists, matrix, tile_row, tile_col = find_matrix(
            int32(cuda.blockIdx.x), int32(cuda.threadIdx.x & 1023), m, n, int32(batch)
        )
        if in_eights:
            group: int32 = thread // 8
            lane: int32 = thread % 8
            row: int32 = (group // (threads_n // 2) * 4 + lane // 2) * row_width
            col: int32 = (group % (threads_n // 2) * 2 + lane % 2) * width
        else:
            row = thread // threads_n * row_width
            col = thread % threads_n * width
        rows: int32 = m - tile_row
        cols: int32 = n - tile_col
        left: int32 = k
        is_inside = rows >= tile_m and cols >= tile_n
        smem: int32 = shared_address(cuda.shared.array(0, int32))
        a_smem: int32 = smem + member * tile_bytes
        b_smem: int32 = a_smem + a_bytes
        a_address: int32 = a_smem + row * a_row_bytes
        b_address: int32 = b_smem + col * item_size
        a_bytes_m, a_bytes_k = index(a.row * item_size), index(a.col * item_size)
        b_bytes_n, b_bytes_k = index(b.col * item_size), index(b.row * item_size)
        place = int64(matrix)
        a_source = (
            global_address(a.data) + place * a.batch * item_size
            + int64(int32(tile_row)) * int64(a_bytes_m)
        )  # fmt: skip
        b_source = (
            global_address(b.data) + place * b.batch * item_size
            + int64(int32(tile_col)) * int64(b_bytes_n)
        )  # fmt: skip

        # --- Main loop: all parts of a tile of k on their way at once ---
        acc = zeros(real, 2 * thread_m * thread_n)
        steps: int32 = (k + tile_k - 1) // tile_k
        for step in range(steps):
            for part in static_range(parts):
                a_to: int32 = a_smem + part * part_k * a_k_bytes
                b_to: int32 = b_smem + part * part_k * b_line_bytes
                if is_inside and left >= tile_k:
                    a_copy(thread, a_to, a_source, a_bytes_k, a_bytes_m)
                    b_copy(thread, b_to, b_source, b_bytes_k, b_bytes_n)
                else:
                    depth: int32 = left - part * part_k
                    a_copy_predicated(thread, a_to, a_source, a_bytes_k, a_bytes_m, depth, rows)
                    b_copy_predicated(thread, b_to, b_source, b_bytes_k, b_bytes_n, depth, cols)
                commit_copies()
                a_source += int64(int32(part_k)) * int64(a_bytes_k)
                b_source += int64(int32(part_k)) * int64(b_bytes_k)

            a_step, b_step = a_address, b_address
            for part in static_range(parts):
                wait_copies(parts - 1 - part)
                cuda.syncthreads()
                for _ in range(part_k // unrolled_k):
                    for first_k in static_range(0, unrolled_k, width):
                        a_parts = ()
                        if a_is_along_k:
                            for i in static_range(thread_m):
                                a_parts = a_parts + load_shared(
                                    real, vector, a_step,
                                    i * row_group * a_row_bytes + first_k * a_k_bytes,
                                )  # fmt: skip
                        else:
                            for kk in static_range(first_k, first_k + width):
                                for i in static_range(thread_m // row_width):
                                    a_parts = a_parts + load_shared(
                                        real, 2 * row_width, a_step,
                                        i * row_group * a_row_bytes + kk * a_k_bytes,
                                    )  # fmt: skip
                        for kk in static_range(width):
                            a_frag = ()
                            for i in static_range(thread_m):
                                at = i * width + kk if a_is_along_k else kk * thread_m + i
                                a_frag = a_frag + (a_parts[2 * at], a_parts[2 * at + 1])
                            b_frag = load_vectors(
                                real, vector, b_step, (first_k + kk) * b_line_bytes,
                                col_group * item_size, thread_n // width,
                            )  # fmt: skip
                            acc = add_products(acc, a_frag, b_frag)
                    a_step = int32(a_step + unrolled_k * a_k_bytes)
                    b_step = int32(b_step + unrolled_k * b_line_bytes)
            left -= tile_k
            if step + 1 < steps:
                cuda.syncthreads()  # before the next tile overwrites this one

        # --- Epilogue ---
        if is_fused:
            cuda.syncthreads()  # the tiles of a and b have been read
        if exists:
            store_complex(
                acc, smem, int32(cuda.threadIdx.x & 1023), matrix, int32(tile_row + row),
                int32(tile_col + col), m, n, alpha, beta,
                c, place * c.batch, out, place * out.batch, extra,
            )  # fmt: skip

    return complex_batch_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    # The tiles of `small_batch`. Half of k at a time lets an SM hold two large ones in complex128,
    # of which the largest thread tiles leave no registers.
    configs=(
        Config(80, 80, 40, thread_m=10, thread_n=4),
        Config(80, 80, 40, thread_m=8, thread_n=4),
        Config(72, 72, 36, thread_m=6, thread_n=4),
        Config(64, 64, 32, thread_m=8, thread_n=4, parts=2),
        Config(56, 56, 28, thread_m=7, thread_n=4),
        Config(48, 48, 48, thread_m=3, thread_n=4, parts=3),
        Config(40, 40, 40, thread_m=4, thread_n=4, parts=2),
        Config(32, 32, 16, thread_m=4, thread_n=4),
        Config(24, 24, 24, thread_m=3, thread_n=4, matrices=2),
        Config(20, 20, 20, thread_m=5, thread_n=4, matrices=4),
        Config(16, 16, 16, thread_m=2, thread_n=4, matrices=2),
        Config(12, 12, 12, thread_m=3, thread_n=4, matrices=8),
        Config(8, 8, 8, thread_m=1, thread_n=4, matrices=4),
        Config(4, 4, 4, thread_m=1, thread_n=2, matrices=16),
    ),
    simulator_configs=(
        Config(8, 8, 8, thread_m=2, thread_n=4, parts=2),
        Config(4, 4, 4, thread_m=1, thread_n=4, matrices=2),
    ),
    dtypes=tuple(COMPLEX_PARTS),
    minimum_arch=80,
    variant=variant,
    block_count=block_count,
    tile_count=block_a_tile,
    commutes=never,
    order_of_sums="complex fma",
)
