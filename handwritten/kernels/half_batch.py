"""Many small matrices in half precision on tensor cores, at any address.

Idea: grown from `tensor_batch`, with the instruction of `tensor_tile`. Up to 64 x 64 memory is the
bound by far, so what counts is that all of a block's bytes are on their way at once, whole lines of
any length, and that results leave in whole lines, too. A tile is copied whole, k included
(batch_lines.py), multiplied, and stored through the shared memory that held it (batch_store.py).
Tiny matrices have a warp each.
Layout: a (m, k) and b (k, n), rows or columns of neighbours, with any stride; c and out (m, n), any
strides, in the dtype of a and b or in float32; any batch.
Constraints: compute capability 8.0. Larger matrices are computed tile by tile. Edges are
predicated: elements outside count as zero and are not written.
Source: PTX ISA, "mma.m16n8k16", "ldmatrix"; A. Abdelfattah et al., "Fast Batched Matrix
Multiplication for Small Sizes using Half-Precision Arithmetic on GPUs", IPDPS 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts import batch_store
from dxgemm.handwritten.parts.batch_lines import LONGEST_LINE, MODES, line_bytes, line_mode
from dxgemm.handwritten.parts.batch_tiles import EPILOGUE_REGISTERS, block_count, resident_blocks
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, block_a_tile
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES

ITEM_BYTES, MMA = 2, 16  # the instruction is read for 16 rows, 16 columns and 16 k at a time
MOST_TILE = 160


@dataclass(frozen=True)
class Config(BaseConfig):
    """Tile of a matrix tile_m x tile_n x tile_k; each warp's share of it.

    Attributes:
        matrices: tiles that a block computes, each by warps of its own.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    matrices: int = 1

    least_threads = 32
    dynamic_smem = True
    address_registers = 40

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            yield "warp tiles must fill the tile"
        if self.warp_m % MMA or self.warp_n % MMA or self.tile_k % MMA:
            yield f"an instruction computes {MMA} x {MMA} x {MMA}"
        if max(self.tile_m, self.tile_n, self.tile_k) > MOST_TILE:
            yield f"an element's line is found in tiles of up to {MOST_TILE} x {MOST_TILE}"
        if self.tile_threads * 4 < max(self.tile_m, self.tile_n, self.tile_k) * ITEM_BYTES:
            yield "a thread copies 4 bytes of a line, or more"

    @property
    def tile_threads(self) -> int:
        """Threads that share a tile."""
        return 32 * (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)

    @property
    def threads(self) -> int:
        return self.tile_threads * self.matrices

    def operand_bytes(self, tile_outer: int) -> int:
        """Shared memory of an operand's tile, along k or along its other index: the larger."""
        return max(tile_outer * line_bytes(self.tile_k), self.tile_k * line_bytes(tile_outer))

    def tile_bytes(self, dtype: str) -> int:
        """Shared memory of one matrix."""
        operands = self.operand_bytes(self.tile_m) + self.operand_bytes(self.tile_n)
        return max(operands, batch_store.tile_bytes(self.tile_m, self.tile_n))

    def smem_bytes(self, dtype: str) -> int:
        return self.matrices * self.tile_bytes(dtype)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.warp_m * self.warp_n // 32 * 4

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM (`__launch_bounds__`): as many as it has room for."""
        return self._resident_blocks(self.address_registers)

    def min_blocks_fused(self, dtype: str) -> int:
        """`min_blocks` for a thread that has registers of an epilogue too."""
        return self._resident_blocks(self.address_registers + EPILOGUE_REGISTERS)

    def _resident_blocks(self, registers: int) -> int:
        """Blocks that an SM holds, at so many registers a thread beside those of its sums."""
        fragments = (self.warp_m + self.warp_n) // 4
        registers += self.warp_m * self.warp_n // 32 + fragments
        return resident_blocks(self.threads, registers, self.smem_bytes(""))

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile} warp {self.warp_m}x{self.warp_n} matrices {self.matrices}"


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Modes of a and b (see `batch_lines`), and the dtype of the result."""
    a_mode, b_mode = line_mode(problem, "a"), line_mode(problem, "b")
    # Without k nothing is read.
    modes = (mode if mode in MODES else MODES[0] for mode in (a_mode, b_mode))
    return *modes, problem.out_dtype


def supports(problem: Any) -> str | None:
    """Reason why a problem's operands are not read line by line; None if they are."""
    if problem.is_empty or problem.k == 0:
        return None
    modes = {name: line_mode(problem, name) for name in "ab"}
    apart = [name for name in "ab" if modes[name] not in MODES]
    if apart:
        return f"neither rows nor columns of {' and '.join(apart)} are contiguous"
    a_step = problem.a.row if modes["a"].startswith("k") else problem.a.col
    b_step = problem.b.col if modes["b"].startswith("k") else problem.b.row
    if max(abs(a_step), abs(b_step)) > LONGEST_LINE:
        return f"rows or columns are more than {LONGEST_LINE} elements apart"
    return None


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, out_dtype: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config and variant, as a Python function to compile."""
    from numba import cuda, float32, int32, int64

    from dxgemm.handwritten.parts.batch_lines import make_find_ends, make_line_load
    from dxgemm.handwritten.parts.batch_tiles import make_find_matrix
    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        device_function,
        global_address,
        shared_address,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.line_intrinsics import load_matrices
    from dxgemm.handwritten.parts.mma import mma_tile
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range, unroll

    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    warp_m, warp_n, warps_n = config.warp_m, config.warp_n, config.tile_n // config.warp_n
    threads = config.tile_threads
    tile_bytes, a_bytes = config.tile_bytes(dtype), config.operand_bytes(tile_m)
    reads_a, reads_b = warp_m // MMA, warp_n // MMA
    sums = reads_a * reads_b * 8
    left = make_line_load(a_mode, "left", tile_m, tile_k, threads, False)
    right = make_line_load(b_mode, "right", tile_n, tile_k, threads, True)
    (a_place, a_extents, start_a, align_a, start_a_inside, patch_a, a_lane, a_is_transposed,
     a_x_bytes, a_k_bytes) = left  # fmt: skip
    (b_place, b_extents, start_b, align_b, start_b_inside, patch_b, b_lane, b_is_transposed,
     b_x_bytes, b_k_bytes) = right  # fmt: skip
    a_is_aligned, b_is_aligned = a_mode[1:] != "", b_mode[1:] != ""
    a_is_along_k, b_is_along_k = a_mode.startswith("k"), b_mode.startswith("k")
    is_warp = threads == 32
    a_line_bytes, b_line_bytes = max(a_x_bytes, a_k_bytes), max(b_x_bytes, b_k_bytes)
    find_matrix, find_ends = make_find_matrix(config), make_find_ends()

    def sync():
        """Wait for all threads of the tile; those of other tiles of a block take equal steps."""
        if is_warp:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    sync = device_function(unroll(sync))
    store_tile = batch_store.make_store_tile(config, out_dtype, epilogue, sync)

    @gemm_kernel
    def half_batch_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This tile, this thread's place ---
        m, n, k = int32(m), int32(n), int32(k)
        thread, member, exists, found, tile_row, tile_col = find_matrix(
            int32(cuda.blockIdx.x), int32(cuda.threadIdx.x & 1023), m, n, int32(batch)
        )
        matrix = int64(found)
        smem: int32 = shared_address(cuda.shared.array(0, float32, alignment=128))
        smem += member * tile_bytes
        b_smem: int32 = smem + a_bytes
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        warp_row: int32 = warp // warps_n * warp_m
        warp_col: int32 = warp % warps_n * warp_n
        a_line, a_item = a_place(thread)
        b_line, b_item = b_place(thread)
        a_target: int32 = smem + a_line * a_line_bytes + a_item * ITEM_BYTES
        b_target: int32 = b_smem + b_line * b_line_bytes + b_item * ITEM_BYTES

        # Bytes from a line to the next, the thread's first element, and the lines there are.
        if a_is_along_k:
            a_step, a_row, a_col, a_lines, a_items = a.row, tile_row + a_line, a_item, m, k
        else:
            a_step, a_row, a_col, a_lines, a_items = a.col, a_line, tile_row + a_item, k, m
        if b_is_along_k:
            b_step, b_row, b_col, b_lines, b_items = b.col, tile_col + b_line, b_item, n, k
        else:
            b_step, b_row, b_col, b_lines, b_items = b.row, b_line, tile_col + b_item, k, n
        a_step, b_step = int32(a_step * ITEM_BYTES), int32(b_step * ITEM_BYTES)
        a_length, b_length = a_items * ITEM_BYTES, b_items * ITEM_BYTES
        a_batch, b_batch = a.batch * ITEM_BYTES, b.batch * ITEM_BYTES
        a_begin, b_begin = global_address(a.data), global_address(b.data)
        a_source = a_begin + matrix * a_batch
        b_source = b_begin + matrix * b_batch
        a_source += int64(int32(a_row)) * int64(a_step) + int32(a_col) * ITEM_BYTES
        b_source += int64(int32(b_row)) * int64(b_step) + int32(b_col) * ITEM_BYTES
        # Around a matrix between others all vectors lie inside the operand.
        is_between = found > 0 and found < batch - 1
        a_is_inside = is_between and abs(a_batch) >= 2 * CHUNK_BYTES
        b_is_inside = is_between and abs(b_batch) >= 2 * CHUNK_BYTES

        a_lane_x, a_lane_k = a_lane(lane)
        b_lane_x, b_lane_k = b_lane(lane)
        a_from: int32 = smem + (warp_row + a_lane_x) * a_x_bytes + a_lane_k * a_k_bytes
        b_from: int32 = b_smem + (warp_col + b_lane_x) * b_x_bytes + b_lane_k * b_k_bytes
        k_left: int32 = k

        # --- Main loop: a whole tile of k on its way at once ---
        acc = zeros(float32, sums)
        for _ in range(int32((k + tile_k - 1) // tile_k)):
            a_rest, a_left, a_needed = a_extents(a_line, a_item, int32(m - tile_row), k_left)
            b_rest, b_left, b_needed = b_extents(b_line, b_item, int32(n - tile_col), k_left)
            if a_is_aligned or a_is_inside:
                start_a(a_target, a_source, a_step, a_item, a_rest, a_left, a_needed)
            else:
                begin, end = find_ends(a_begin, batch, a_batch, a_lines, a_step, a_length)
                start_a_inside(
                    a_target, a_source, a_step, a_item, a_rest, a_left, a_needed, begin, end
                )
            if b_is_aligned or b_is_inside:
                start_b(b_target, b_source, b_step, b_item, b_rest, b_left, b_needed)
            else:
                begin, end = find_ends(b_begin, batch, b_batch, b_lines, b_step, b_length)
                start_b_inside(
                    b_target, b_source, b_step, b_item, b_rest, b_left, b_needed, begin, end
                )
            commit_copies()
            wait_copies(0)
            if not a_is_aligned or not b_is_aligned:
                cuda.syncwarp()
            if not a_is_aligned:
                align_a(a_target, a_source, a_step, a_item, a_rest, a_left, a_needed)
                if not a_is_inside:
                    begin, end = find_ends(a_begin, batch, a_batch, a_lines, a_step, a_length)
                    patch_a(
                        a_target, a_source, a_step, a_item, a_rest, a_left, a_needed, begin, end
                    )
            if not b_is_aligned:
                align_b(b_target, b_source, b_step, b_item, b_rest, b_left, b_needed)
                if not b_is_inside:
                    begin, end = find_ends(b_begin, batch, b_batch, b_lines, b_step, b_length)
                    patch_b(
                        b_target, b_source, b_step, b_item, b_rest, b_left, b_needed, begin, end
                    )
            sync()

            a_at, b_at = a_from, b_from
            for _ in range(int32((min(k_left, tile_k) + MMA - 1) // MMA)):
                a_frag, b_frag = (), ()
                for i in static_range(reads_a):
                    a_frag = a_frag + load_matrices(a_is_transposed, a_at, i * MMA * a_x_bytes)
                for j in static_range(reads_b):
                    b_frag = b_frag + load_matrices(b_is_transposed, b_at, j * MMA * b_x_bytes)
                acc = mma_tile(dtype, acc, a_frag, b_frag)
                a_at = int32(a_at + MMA * a_k_bytes)
                b_at = int32(b_at + MMA * b_k_bytes)
            a_source += tile_k * (ITEM_BYTES if a_is_along_k else a_step)
            b_source += tile_k * (ITEM_BYTES if b_is_along_k else b_step)
            k_left -= tile_k
            sync()  # before the next tile, or the result, overwrites this one

        # --- Epilogue ---
        store_tile(
            acc, smem, thread, exists, matrix, warp_row, warp_col, tile_row, tile_col, m, n,
            alpha, beta, c, out, extra,
        )  # fmt: skip

    return half_batch_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(144, 144, 144, warp_m=48, warp_n=48),
        Config(128, 128, 128, warp_m=32, warp_n=64),
        Config(96, 96, 96, warp_m=48, warp_n=32),
        Config(80, 80, 80, warp_m=16, warp_n=80),
        Config(64, 64, 128, warp_m=32, warp_n=32),
        Config(64, 64, 64, warp_m=32, warp_n=32),
        Config(48, 48, 48, warp_m=16, warp_n=48),
        Config(32, 32, 32, warp_m=16, warp_n=32, matrices=2),
        Config(16, 16, 16, warp_m=16, warp_n=16, matrices=4),
    ),
    dtypes=("float16", "bfloat16"),
    minimum_arch=80,
    supports=supports,
    variant=variant,
    block_count=block_count,
    tile_count=block_a_tile,
    takes_pairs=True,
    order_of_sums="mma",
)
