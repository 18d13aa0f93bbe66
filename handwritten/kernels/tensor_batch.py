"""Many small float64 matrices on tensor cores; `small_batch` is the same without them.

Idea: grown from `small_batch`, with the instruction of `tensor_core`. Float64 products are half as
many clocks on tensor cores, and their fragments a fifth of the reads from shared memory: from
16 x 16 on a block has time to do nothing but wait for memory. Tiles are copied whole, k included,
and multiplied in one go, or in `parts`: the first is multiplied while others are still on their
way. Threads take so few registers that all blocks of a thousand 32 x 32 run in one wave: a second
wave would wait for memory once more.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch. The instruction computes
out.T = b.T @ a.T: its left operand, 16 rows, is b and its right one, 8 columns, a. In shared memory
both lie as in global memory; a lane reads two neighbours along k, or of b two along n, at a time.
So the instruction's rows 0, 1, .. 15 are columns 0, 2, .. 14, 1, 3, .. 15 of out, and its k goes 0,
2, 4, 6, 1, 3, 5, 7. Lines in shared memory are padded: those along k to half or a quarter of all
banks, those along m and n by 16 bytes. So lanes that are served together read different banks.
Constraints: compute capability 8.0, whose tensor cores take float64. Larger matrices are
computed tile by tile. Edges are predicated: elements outside count as zero and are not written.
Source: PTX ISA, "mma.m16n8k8"; A. Abdelfattah et al., "Fast Batched Matrix Multiplication for Small
Sizes using Half-Precision Arithmetic on GPUs", IPDPS 2019, for small matrices on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.batch_tiles import (
    EPILOGUE_REGISTERS,
    FAR,
    SHARED_A,
    batch_notes,
    block_count,
    make_batch_kernel,
    make_line_copy,
    resident_blocks,
)
from dxgemm.handwritten.parts.fragment import mma_fragment
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, block_a_tile
from dxgemm.handwritten.parts.mma_operands import BANK_BYTES, MMA_COLS, MMA_K, MMA_ROWS
from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode
from dxgemm.handwritten.parts.tiles import make_store_result

ITEM_BYTES = 8
A_LINES, B_LINES = 1, 2  # rows of a, columns of b from one group of four lanes to the next


@dataclass(frozen=True)
class Config(BaseConfig):
    """Tile of a matrix tile_m x tile_n x tile_k; each warp's share of it.

    Attributes:
        matrices: tiles that a block computes, each by warps of its own.
        parts: equal parts of tile_k, each multiplied as soon as it has arrived.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    matrices: int = 1
    parts: int = 1

    least_threads = 32
    dynamic_smem = True
    address_registers = 24

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            yield "warp tiles must fill the tile"
        if self.warp_m % MMA_COLS or self.warp_n % MMA_ROWS:
            yield f"an instruction computes {MMA_COLS} x {MMA_ROWS}"
        if self.tile_k % (self.parts * MMA_K):
            yield f"parts of k go through instructions of {MMA_K}"

    @property
    def tile_threads(self) -> int:
        """Threads that share a tile."""
        return 32 * (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)

    @property
    def threads(self) -> int:
        return self.tile_threads * self.matrices

    @property
    def blocks_per_sm(self) -> int:
        """Tiles that an SM computes at a time."""
        return self.matrices * self.min_blocks("float64")

    def k_line_bytes(self, group_lines: int) -> int:
        """Bytes from one line along k to the next in shared memory.

        Args:
            group_lines: lines from one group of four lanes to the next.
        """
        size = self.tile_k * ITEM_BYTES
        return size + (BANK_BYTES // 2 // group_lines - size) % (BANK_BYTES // group_lines)

    def line_bytes(self, tile_outer: int) -> int:
        """Bytes from one line along m or n to the next in shared memory."""
        return tile_outer * ITEM_BYTES + VECTOR_BYTES

    def operand_bytes(self, tile_outer: int, group_lines: int) -> int:
        """Shared memory of an operand's tile, along k or along its other index: the larger."""
        along_k = tile_outer * self.k_line_bytes(group_lines)
        return max(along_k, self.tile_k * self.line_bytes(tile_outer))

    def tile_bytes(self, dtype: str) -> int:
        """Shared memory of one matrix."""
        return self.operand_bytes(self.tile_m, A_LINES) + self.operand_bytes(self.tile_n, B_LINES)

    def smem_bytes(self, dtype: str) -> int:
        return self.matrices * self.tile_bytes(dtype)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.warp_m * self.warp_n // 32 * ITEM_BYTES

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM (`__launch_bounds__`): as many as it has room for."""
        return self._resident_blocks(self.address_registers)

    def min_blocks_fused(self, dtype: str) -> int:
        """`min_blocks` for a thread that has registers of an epilogue too."""
        return self._resident_blocks(self.address_registers + EPILOGUE_REGISTERS)

    def _resident_blocks(self, registers: int) -> int:
        """Blocks that an SM holds, at so many registers a thread beside those of its sums."""
        fragments = (self.warp_m + self.warp_n) // 4  # of a lane, for one instruction each
        registers += 2 * (self.warp_m * self.warp_n // 32 + fragments)
        return resident_blocks(self.threads, registers, self.smem_bytes("float64"))

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        parts = f" parts {self.parts}" if self.parts > 1 else ""
        return f"{tile} warp {self.warp_m}x{self.warp_n} matrices {self.matrices}{parts}"


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Layouts of a and b (see `operand_mode`), then the words of `batch_notes`."""
    return operand_mode(problem, "a"), operand_mode(problem, "b"), *batch_notes(problem)


def make_compute_tile(
    config: Config, dtype: str, a_mode: str, b_mode: str, *notes: str, epilogue: Any = None
) -> Callable[..., Any]:
    """A device function: compute a tile of a matrix and write it, as that of `small_batch` does."""
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        global_address,
        load_shared,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.mma import mma_tile
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    scalar, item = np.dtype(dtype).type, ITEM_BYTES
    index = int64 if FAR in notes else int32
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    warp_m, warp_n, warps_n = config.warp_m, config.warp_n, config.tile_n // config.warp_n
    mmas_m, mmas_n = warp_m // MMA_COLS, warp_n // MMA_ROWS
    tile_threads, parts = config.tile_threads, config.parts
    part_k = tile_k // parts
    a_is_along_k, b_is_along_k = a_mode.startswith("row"), b_mode.startswith("col")
    a_line_bytes = config.k_line_bytes(A_LINES) if a_is_along_k else config.line_bytes(tile_m)
    b_line_bytes = config.k_line_bytes(B_LINES) if b_is_along_k else config.line_bytes(tile_n)
    a_row_bytes, a_k_bytes = (a_line_bytes, item) if a_is_along_k else (item, a_line_bytes)
    b_col_bytes, b_k_bytes = (b_line_bytes, item) if b_is_along_k else (item, b_line_bytes)
    a_bytes = config.operand_bytes(tile_m, A_LINES)
    a_copy, a_copy_predicated = make_line_copy(
        a_is_along_k, a_mode.endswith("16"), part_k, tile_m, item, a_line_bytes,
        tile_threads, dtype, is_cached=SHARED_A in notes,
    )  # fmt: skip
    b_copy, b_copy_predicated = make_line_copy(
        b_is_along_k, b_mode.endswith("16"), part_k, tile_n, item, b_line_bytes,
        tile_threads, dtype, is_cached=True,
    )  # fmt: skip
    # The operands have changed sides: out.T = b.T @ a.T.
    fragment = mma_fragment(mmas_n, mmas_m).transposed()
    store_result = make_store_result(fragment, dtype, epilogue, index)

    def compute_tile(
        thread, smem, exists, matrix, tile_row, tile_col, steps, alpha, beta, m, n, k,
        a, a_start, b, b_start,
        c, c_start, out, out_start,
        extra,
    ):  # fmt: skip
        # --- This tile, this thread's place ---
        warp: int32 = thread // 32
        group: int32 = thread % 32 // 4
        member: int32 = thread % 4
        warp_row: int32 = warp // warps_n * warp_m
        warp_col: int32 = warp % warps_n * warp_n
        rows: int32 = m - tile_row
        cols: int32 = n - tile_col
        left: int32 = k
        is_inside = rows >= tile_m and cols >= tile_n
        b_smem: int32 = smem + a_bytes
        a_bytes_m, a_bytes_k = index(a.row * item), index(a.col * item)
        b_bytes_n, b_bytes_k = index(b.col * item), index(b.row * item)
        a_source = (
            global_address(a.data) + a_start * item + int64(int32(tile_row)) * int64(a_bytes_m)
        )
        b_source = (
            global_address(b.data) + b_start * item + int64(int32(tile_col)) * int64(b_bytes_n)
        )

        # --- Main loop: all parts of a tile of k on their way at once ---
        acc = zeros(scalar, mmas_m * mmas_n * 4)
        for step in range(steps):
            for part in static_range(parts):
                a_to: int32 = smem + part * part_k * a_k_bytes
                b_to: int32 = b_smem + part * part_k * b_k_bytes
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

            a_address: int32 = smem + (warp_row + group) * a_row_bytes + 2 * member * a_k_bytes
            b_address: int32 = (
                b_smem + (warp_col + 2 * group) * b_col_bytes + 2 * member * b_k_bytes
            )
            for part in static_range(parts):
                wait_copies(parts - 1 - part)
                cuda.syncthreads()
                for kk in static_range(part * part_k, (part + 1) * part_k, MMA_K):
                    b_frag, a_frag = (), ()
                    for i in static_range(mmas_n):
                        first = load_shared(
                            scalar, 2, b_address, kk * b_k_bytes + i * MMA_ROWS * b_col_bytes
                        )
                        if b_is_along_k:  # two k of one column, then of the next
                            second = load_shared(
                                scalar, 2, b_address,
                                kk * b_k_bytes + (i * MMA_ROWS + 1) * b_col_bytes,
                            )  # fmt: skip
                            b_frag = b_frag + (first[0], second[0], first[1], second[1])
                        else:
                            second = load_shared(
                                scalar, 2, b_address,
                                (kk + 1) * b_k_bytes + i * MMA_ROWS * b_col_bytes,
                            )  # fmt: skip
                            b_frag = b_frag + first + second
                    for j in static_range(mmas_m):
                        if a_is_along_k:
                            a_frag = a_frag + load_shared(
                                scalar, 2, a_address, kk * a_k_bytes + j * MMA_COLS * a_row_bytes
                            )
                        else:
                            for odd in static_range(2):
                                a_frag = a_frag + load_shared(
                                    scalar, 1, a_address,
                                    (kk + odd) * a_k_bytes + j * MMA_COLS * a_row_bytes,
                                )  # fmt: skip
                    acc = mma_tile("float64", acc, b_frag, a_frag)
            left -= tile_k
            if step + 1 < steps:
                cuda.syncthreads()  # before the next tile overwrites this one

        # --- Epilogue ---
        if exists:
            store_result(
                acc, int32(tile_row + warp_row + 2 * member),
                int32(tile_col + warp_col + 2 * group), is_inside, m, n, alpha, beta,
                c, c_start, out, out_start, matrix, extra,
            )  # fmt: skip

    return cuda.jit(device=True, forceinline=True)(unroll(compute_tile))


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, *notes: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile."""
    compute_tile = make_compute_tile(config, dtype, a_mode, b_mode, *notes, epilogue=epilogue)
    return make_batch_kernel(config, dtype, compute_tile)


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(96, 96, 48, warp_m=48, warp_n=32, parts=3),
        Config(80, 80, 80, warp_m=40, warp_n=16, parts=5),
        Config(128, 64, 64, warp_m=64, warp_n=32, parts=4),
        Config(64, 64, 64, warp_m=32, warp_n=32, parts=4),
        Config(48, 48, 48, warp_m=24, warp_n=16, parts=3),
        Config(32, 32, 32, warp_m=16, warp_n=32, parts=2),
        Config(16, 16, 16, warp_m=8, warp_n=16),
    ),
    dtypes=("float64",),
    minimum_arch=80,
    variant=variant,
    block_count=block_count,
    tile_count=block_a_tile,
    takes_pairs=True,
    order_of_sums="mma",
)
