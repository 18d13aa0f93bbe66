"""Many small matrices: several of them a block, each with threads and shared memory of its own.

Idea: grown from `tuned`. A matrix of 4 x 4 to 80 x 80 fits one tile, k included: all of it is on
its way to shared memory at once, and there is no pipeline but the blocks that share an SM. A block
takes several tiny matrices, to have 64 threads or more.
Lower bounds for m = n = k on an H200, in clocks of one SM for one matrix. In a clock, an SM gets 18
bytes from memory and does 128 multiply-adds in float32 or 64 in float64:

    size                   4     8    16     32     48     64     96     128
    memory, float32       11    43   171    683   1536   2731   6144   10923
    arithmetic, float32    1     4    32    256    864   2048   6912   16384
    memory, float64       21    85   341   1365   3072   5461  12288   21845
    arithmetic, float64    1     8    64    512   1728   4096  13824   32768

Memory is the bound up to size 64, so every byte should cross it once, in whole sectors. Shared
memory, which serves eight threads a clock with 16 bytes each, comes close: at 48 in float64, 96
threads read ten times for two k, in 2880 clocks. There the tensor cores of `tensor_batch` take
over. The time of a small batch is that of a launch, and of a block until its copies are under way.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch. In shared memory a lies as in
global memory, along k or along m; b as rows, transposed on the way if it is column-major.
Constraints: see `Config`; cp.async needs compute capability 8.0. Larger matrices are computed tile
by tile. Edges are predicated: elements outside count as zero and are not written.
Source: A. Abdelfattah et al., "Performance, Design, and Autotuning of Batched GEMM for GPUs", ISC
2016, for several problems a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
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
from dxgemm.handwritten.parts.fragment import thread_fragment
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, block_a_tile
from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode
from dxgemm.handwritten.parts.tiles import make_store_result

LANES_K = 8  # neighbours that copy along k what is transposed: their places are in other banks
MOST_UNROLLED_K = 16


@dataclass(frozen=True)
class Config(BaseConfig):
    """Tile of a matrix tile_m x tile_n x tile_k; thread tile thread_m x thread_n.

    Attributes:
        matrices: tiles that a block computes, each by threads of its own.
        parts: equal parts of tile_k, each multiplied as soon as it has arrived. The name of a
            config leaves them out: no two configs differ in nothing else.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int
    matrices: int = 1
    parts: int = 1

    dynamic_smem = True
    address_registers = 32

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n:
            yield "thread tiles must fill the tile"
        if self.tile_m % 4 or self.thread_n % 4 or self.tile_k % (4 * self.parts):
            yield "tiles, and parts of k, are read in vectors of 4"

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

    @property
    def blocks_per_sm(self) -> int:
        """Tiles that an SM computes at a time, in float32."""
        return self.matrices * self.min_blocks("float32")

    def rows_together(self, dtype: str) -> int:
        """Neighbouring rows of a thread, which one access reads if a is MN-major."""
        return gcd(VECTOR_BYTES // np.dtype(dtype).itemsize, self.thread_m)

    def line_bytes(self, length: int, dtype: str) -> int:
        """Bytes from one line of an operand's tile in shared memory to the next.

        Lines of 16 bytes spread over the banks by themselves, longer ones are padded to do so.
        """
        size = length * np.dtype(dtype).itemsize
        return size if size == VECTOR_BYTES else size + VECTOR_BYTES

    def operand_bytes(self, tile_outer: int, dtype: str) -> int:
        """Shared memory of an operand's tile, along k or along its other index: the larger."""
        along_k = tile_outer * self.line_bytes(self.tile_k, dtype)
        along_outer = self.tile_k * self.line_bytes(tile_outer, dtype)
        return max(along_k, along_outer)

    def tile_bytes(self, dtype: str) -> int:
        """Shared memory of one matrix.

        If the same eight lanes read two matrices, these begin half of all banks apart.
        """
        padding = 64 if self.tile_threads < 8 else 0
        operands = (self.operand_bytes(tile, dtype) for tile in (self.tile_m, self.tile_n))
        return sum(operands) + padding

    def smem_bytes(self, dtype: str) -> int:
        return self.matrices * self.tile_bytes(dtype)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.thread_m * self.thread_n * np.dtype(dtype).itemsize

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM (`__launch_bounds__`): as many as it has room for.

        A thread needs room for its elements, a vector a row, 16 other operands, and addresses. Most
        time is spent waiting for memory, which takes many blocks to fill.
        """
        return self._resident_blocks(dtype, self.address_registers)

    def min_blocks_fused(self, dtype: str) -> int:
        """`min_blocks` for a thread that has registers of an epilogue too."""
        return self._resident_blocks(dtype, self.address_registers + EPILOGUE_REGISTERS)

    def _resident_blocks(self, dtype: str, registers: int) -> int:
        """Blocks that an SM holds, at so many registers a thread beside those of its elements."""
        size = np.dtype(dtype).itemsize
        elements = self.thread_m * (self.thread_n + VECTOR_BYTES // size) + 16
        registers += elements * size // 4
        return resident_blocks(self.threads, registers, self.smem_bytes(dtype))

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile} thread {self.thread_m}x{self.thread_n} matrices {self.matrices}"


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Layouts of a and b (see `operand_mode`), then the words of `batch_notes`."""
    a_mode, b_mode = operand_mode(problem, "a"), operand_mode(problem, "b")
    return a_mode, b_mode.replace("col16", "col"), *batch_notes(problem)


def make_compute_tile(
    config: Config, dtype: str, a_mode: str, b_mode: str, *notes: str, epilogue: Any = None
) -> Callable[..., Any]:
    """A device function: compute a tile of a matrix and write it.

    All threads of the block must call it together, with the same `steps`: tiles of k to go through,
    of which there may be more than the matrix has. `thread` counts the threads of the tile, `smem`
    is the address of its shared memory, and a_start to out_start are where its matrices begin, in
    elements. Nothing is written unless `exists`; the operands are read all the same.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        global_address,
        load_shared,
        outer_product,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    scalar = np.dtype(dtype).type
    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size  # elements of a 16-byte access
    index = int64 if FAR in notes else int32
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    thread_m, thread_n = config.thread_m, config.thread_n
    threads_m, threads_n = config.threads_m, config.threads_n
    tile_threads = config.tile_threads
    a_is_along_k = a_mode.startswith("row")
    parts, part_k = config.parts, tile_k // config.parts
    a_line_bytes = config.line_bytes(tile_k if a_is_along_k else tile_m, dtype)
    b_line_bytes = config.line_bytes(tile_n, dtype)
    a_bytes = config.operand_bytes(tile_m, dtype)
    a_row_bytes, a_k_bytes = (
        (a_line_bytes, item_size) if a_is_along_k else (item_size, a_line_bytes)
    )
    row_width = 1 if a_is_along_k else config.rows_together(dtype)
    row_group, col_group = threads_m * row_width, threads_n * width
    unrolled_k = gcd(part_k, MOST_UNROLLED_K)
    # Eight lanes that are served together read four places of a and two of b: with 1 and 8, shared
    # memory would be busy for longer.
    in_eights = threads_m % 4 == 0 and threads_n % 2 == 0
    a_copy, a_copy_predicated = make_line_copy(
        a_is_along_k, a_mode.endswith("16"), part_k, tile_m, item_size, a_line_bytes,
        tile_threads, dtype, is_cached=SHARED_A in notes,
    )  # fmt: skip
    if b_mode == "col":  # transposed on the way
        b_copy, b_copy_predicated = make_line_copy(
            True, False, part_k, tile_n, b_line_bytes, item_size, tile_threads, dtype, LANES_K
        )
    else:
        b_copy, b_copy_predicated = make_line_copy(
            False, b_mode.endswith("16"), part_k, tile_n, item_size, b_line_bytes,
            tile_threads, dtype, is_cached=True,
        )  # fmt: skip
    fragment = thread_fragment((thread_m, row_width, row_group), (thread_n, width, col_group))
    store_result = make_store_result(fragment, dtype, epilogue, index)

    def compute_tile(
        thread, smem, exists, matrix, tile_row, tile_col, steps, alpha, beta, m, n, k,
        a, a_start, b, b_start,
        c, c_start, out, out_start,
        extra,
    ):  # fmt: skip
        # --- This tile, this thread's place ---
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
        b_smem: int32 = smem + a_bytes
        a_address: int32 = smem + row * a_row_bytes
        b_address: int32 = b_smem + col * item_size
        a_bytes_m, a_bytes_k = index(a.row * item_size), index(a.col * item_size)
        b_bytes_n, b_bytes_k = index(b.col * item_size), index(b.row * item_size)
        a_source = (
            global_address(a.data) + a_start * item_size
            + int64(int32(tile_row)) * int64(a_bytes_m)
        )  # fmt: skip
        b_source = (
            global_address(b.data) + b_start * item_size
            + int64(int32(tile_col)) * int64(b_bytes_n)
        )  # fmt: skip

        # --- Main loop: all parts of a tile of k on their way at once ---
        acc = zeros(scalar, thread_m * thread_n)
        for step in range(steps):
            if is_inside and left >= tile_k:
                for part in static_range(parts):
                    a_to: int32 = smem + part * part_k * a_k_bytes
                    b_to: int32 = b_smem + part * part_k * b_line_bytes
                    a_copy(thread, a_to, a_source, a_bytes_k, a_bytes_m)
                    b_copy(thread, b_to, b_source, b_bytes_k, b_bytes_n)
                    commit_copies()
                    a_source += int64(int32(part_k)) * int64(a_bytes_k)
                    b_source += int64(int32(part_k)) * int64(b_bytes_k)
            else:
                for part in static_range(parts):
                    a_to = smem + part * part_k * a_k_bytes
                    b_to = b_smem + part * part_k * b_line_bytes
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
                        a_frags = ()
                        if a_is_along_k:
                            for i in static_range(thread_m):
                                a_frags = a_frags + load_shared(
                                    scalar, width, a_step,
                                    i * row_group * a_row_bytes + first_k * a_k_bytes,
                                )  # fmt: skip
                        else:
                            for kk in static_range(first_k, first_k + width):
                                for i in static_range(thread_m // row_width):
                                    a_frags = a_frags + load_shared(
                                        scalar, row_width, a_step,
                                        i * row_group * a_row_bytes + kk * a_k_bytes,
                                    )  # fmt: skip
                        for kk in static_range(width):
                            a_frag, b_frag = (), ()
                            for i in static_range(thread_m):
                                place = i * width + kk if a_is_along_k else kk * thread_m + i
                                a_frag = a_frag + (a_frags[place],)
                            for j in static_range(thread_n // width):
                                b_frag = b_frag + load_shared(
                                    scalar, width, b_step,
                                    (first_k + kk) * b_line_bytes + j * col_group * item_size,
                                )  # fmt: skip
                            acc = outer_product(acc, a_frag, b_frag)
                    a_step = int32(a_step + unrolled_k * a_k_bytes)
                    b_step = int32(b_step + unrolled_k * b_line_bytes)
            left -= tile_k
            if step + 1 < steps:
                cuda.syncthreads()  # before the next tile overwrites this one

        # --- Epilogue ---
        if exists:
            store_result(
                acc, int32(tile_row + row), int32(tile_col + col), is_inside, m, n, alpha, beta,
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
    # Tiles of many sizes: on the H200 float32 of 80 x 80 takes 1.7 times as long in tiles of 16, of
    # 40 x 40 1.4 times in tiles of 20. The second ones of a size have more warps, for few matrices.
    # Parts of 16 to 40 k save up to a tenth; below 40 what they cost is what they save.
    configs=(
        Config(80, 80, 80, thread_m=10, thread_n=4, parts=2),
        Config(72, 72, 72, thread_m=9, thread_n=4, parts=3),
        Config(64, 64, 64, thread_m=8, thread_n=4, parts=2),
        Config(56, 56, 56, thread_m=7, thread_n=4, parts=2),
        Config(48, 48, 48, thread_m=6, thread_n=4, parts=3),
        Config(48, 48, 48, thread_m=3, thread_n=4, parts=3),
        Config(40, 40, 40, thread_m=5, thread_n=4, parts=2),
        Config(32, 32, 32, thread_m=4, thread_n=4),
        Config(32, 32, 32, thread_m=2, thread_n=4),
        Config(24, 24, 24, thread_m=3, thread_n=4, matrices=2),
        Config(20, 20, 20, thread_m=5, thread_n=4, matrices=4),
        Config(16, 16, 16, thread_m=2, thread_n=4, matrices=2),
        Config(16, 16, 16, thread_m=1, thread_n=4),
        Config(12, 12, 12, thread_m=3, thread_n=4, matrices=8),
        Config(8, 8, 8, thread_m=2, thread_n=4, matrices=8),
        Config(4, 4, 4, thread_m=1, thread_n=4, matrices=16),
    ),
    minimum_arch=80,
    variant=variant,
    block_count=block_count,
    tile_count=block_a_tile,
    takes_pairs=True,
    order_of_sums="fma",
)
