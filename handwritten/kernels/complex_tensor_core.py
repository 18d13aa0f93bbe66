"""Complex128 on tensor cores, multiplied as it lies: pairs of real and imaginary parts.

Idea: grown from `tensor_core`. A complex element is 16 bytes, what a thread copies and reads at a
time in any layout: no operand is copied or transposed beforehand. An instruction multiplies 16 x 8
by 8 x 8 parts, which are 8 x 4 by 4 x 8 complex elements: of an element of a its left operand holds
[re, -im] above [im, re], of an element of b its right operand re above im. All of them are what a
lane has read itself. A conjugate changes signs.
Layout: a (m, k), b (k, n), c and out (m, n) of complex elements, any strides, any batch. alpha and
beta are the real and the imaginary part of the factor of the product, the extra arguments those of
the factor of c, which is not read if both are 0. Both tiles lie in shared memory in lines of what
is contiguous in global memory, elements permuted by XOR with the number of the line: copies and
reads find their elements in different banks. For that, rows of an instruction are 0, 4, 1, 5, 2, 6,
3, 7 of eight, and so are columns. split_k blocks of a cluster share a tile, each with its share of
k; then each adds up its share of the tile, reading the others' shared memory in a fixed order.
Constraints: compute capability 8.0, whose tensor cores take float64; split_k needs the clusters of
9.0. All extents are powers of two, see `Config`. Edges are predicated: elements outside count as
zero and are not written.
Source: PTX ISA, "mma.m16n8k8", "mma.m8n8k4", "cp.async", "mapa".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.batch_tiles import resident_blocks
from dxgemm.handwritten.parts.complex_store import ThreadTile, make_add_blocks, make_store_complex
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, never
from dxgemm.handwritten.parts.mma_operands import BANK_BYTES
from dxgemm.handwritten.parts.operands import operand_mode
from dxgemm.handwritten.parts.tiles import smem_alignment

ITEM_BYTES = 16  # of a complex element, and of the widest access
MMA_ROWS, MMA_COLS, MMA_K = 8, 8, 4  # of an instruction, in complex elements
PERMUTED = 8  # elements that fill all banks of shared memory
SWIZZLE_ROWS = 8  # rows of tiles that are computed together, so that they share what is in L2


@dataclass(frozen=True)
class Config(BaseConfig):
    """Block tile, warp tile, depth of the pipeline.

    Attributes:
        tile_m, tile_n, tile_k: a block's tile of the result, and elements of k in a stage.
        warp_m, warp_n: a warp's share of the tile.
        stages: tiles of a and b in shared memory.
        split_k: blocks of a cluster that share the k of a tile (cluster split-K).
    """

    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    stages: int
    split_k: int = 1

    least_threads = 32
    dynamic_smem = True

    def complaints(self) -> Iterator[str]:
        for name, extent in vars(self).items():
            if name != "stages" and extent & (extent - 1):
                yield f"{name} must be a power of two"
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            yield "warp tiles must fill the block tile"
        if self.warp_m % MMA_ROWS or self.warp_n % MMA_COLS:
            yield f"instructions compute {MMA_ROWS} x {MMA_COLS}"
        if self.stages < 2:
            yield "one stage is copied while another is read: 2 or more"
        if self.tile_k < PERMUTED:
            yield f"lines of shared memory are permuted by {PERMUTED} elements"
        longer, shorter = max(self.tile_m, self.tile_n), min(self.tile_m, self.tile_n)
        if not longer <= self.threads <= shorter * self.tile_k:
            yield f"{self.threads} threads cannot share the copies evenly"
        if self.split_k > min(8, self.warp_m * self.warp_n // 32):
            yield "a portable cluster has at most 8 blocks, with sums for each"

    @property
    def threads(self) -> int:
        return 32 * (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)

    @property
    def cluster(self) -> int:
        return self.split_k

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * ITEM_BYTES

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, or of the sums that take its place for a cluster."""
        sums = self.tile_m * self.tile_n * ITEM_BYTES if self.split_k > 1 else 0
        return max(self.stages * self.stage_bytes, sums)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.warp_m * self.warp_n // 32 * ITEM_BYTES

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM (`__launch_bounds__`): as many as it has room for."""
        fragments = 2 * (self.warp_m + self.warp_n) // 8  # of this step and the next
        registers = 48 + (self.accumulator_bytes(dtype) + fragments * ITEM_BYTES) // 4
        return resident_blocks(self.threads, registers, self.smem_bytes(dtype))

    def __str__(self) -> str:
        split = f" split {self.split_k}" if self.split_k > 1 else ""
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k} warp "
            f"{self.warp_m}x{self.warp_n} stages {self.stages}{split}"
        )


def variant(config: Config, problem: Any) -> tuple[str, str, str]:
    """Names of the conjugated operands, layouts of a and b."""
    a_mode, b_mode = (operand_mode(problem, name).removesuffix("16") for name in "ab")
    return problem.conjugates, a_mode, b_mode


def smem_offset(line: Any, place: Any, line_bytes: int) -> Any:
    """Offset of an element in its tile, in bytes, by its line and its place there."""
    return line * line_bytes + (place ^ line % PERMUTED) * ITEM_BYTES


class OperandTile(NamedTuple):
    """Device functions for the tiles of one operand. Its index beside k is called x.

    Attributes:
        first: (thread) -> (x, k) of the first element in a tile that the thread copies.
        offset: (x, k) -> offset of an element in the tile, in bytes.
        start: (target, source, pass_bytes, x_left, k_left) starts the thread's copies. target is
            the address of its first element in shared memory, source in global memory, pass_bytes
            the distance of its copies there; zeros replace elements x_left or k_left or more away
            from the first.
        pass_step: elements between a thread's copies, along x if lines run along k, else along k.
        step_xor, step_add: by step along k, what an address is XORed with, and what is added.
        mma_bytes: from the fragment of an instruction to the next one along x.
    """

    first: Callable[..., Any]
    offset: Callable[..., Any]
    start: Callable[..., Any]
    pass_step: int
    step_xor: tuple[int, ...]
    step_add: tuple[int, ...]
    mma_bytes: int


def make_operand_tile(is_along_k: bool, extent: int, tile_k: int, threads: int) -> OperandTile:
    """The functions for one operand, of whose tile lines run along k or along x."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import copy_async_part, device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    places, lines = (tile_k, extent) if is_along_k else (extent, tile_k)
    line_bytes = places * ITEM_BYTES
    pass_step = threads // places
    passes = lines // pass_step
    pass_offsets = [smem_offset(p * pass_step, 0, line_bytes) for p in range(passes)]
    step_k = range(0, tile_k, MMA_K)
    step_offsets = [smem_offset(*((0, k) if is_along_k else (k, 0)), line_bytes) for k in step_k]
    # Offsets of a line and of a place in it are XORed in the 128 bytes of all banks, else added.
    pass_xor, pass_add, step_xor, step_add = (
        tuple(part(offset) for offset in offsets)
        for offsets in (pass_offsets, step_offsets)
        for part in (
            lambda offset: offset % BANK_BYTES,
            lambda offset: offset - offset % BANK_BYTES,
        )
    )

    def first(thread):
        place, line = int32(thread % places), int32(thread // places)
        if is_along_k:
            return line, place
        return place, line

    in_line = device_function(smem_offset)

    def offset(x, k):
        if is_along_k:
            return in_line(x, k, line_bytes)
        return in_line(k, x, line_bytes)

    def start(target, source, pass_bytes, x_left, k_left):
        place_left, line_left = (k_left, x_left) if is_along_k else (x_left, k_left)
        for p in static_range(passes):
            is_inside = place_left > 0 and line_left > p * pass_step
            copy_async_part(
                ITEM_BYTES, int32(target ^ pass_xor[p]), pass_add[p], source + p * pass_bytes,
                int32(ITEM_BYTES * is_inside),
            )  # fmt: skip

    mma_x = (MMA_ROWS, 0) if is_along_k else (0, MMA_ROWS)
    return OperandTile(
        device_function(unroll(first)), device_function(unroll(offset)),
        device_function(unroll(start)), pass_step, step_xor, step_add,
        smem_offset(*mma_x, line_bytes),
    )  # fmt: skip


def make_kernel(
    config: Config, dtype: str, conjugates: str, a_mode: str, b_mode: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    Args:
        config, dtype: config, and "complex128".
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
        a_mode, b_mode: see `variant`.
        epilogue: a `Fusion` that ends with two numbers.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        device_function,
        global_address,
        load_shared,
        load_vectors,
        shared_address,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.mma import mma_tile, negated
    from dxgemm.handwritten.parts.tile_order import make_locate
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range, unroll

    alignment = smem_alignment() and 1024  # for addresses that are XORed
    item, real = ITEM_BYTES, np.float64
    a_is_along_k, b_is_along_k = a_mode == "row", b_mode == "col"
    a_is_conjugate, b_is_conjugate = "a" in conjugates, "b" in conjugates
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    warp_m, warp_n, warps_n = config.warp_m, config.warp_n, config.tile_n // config.warp_n
    stages, split_k, threads = config.stages, config.split_k, config.threads
    is_fused = bool(epilogue.stages)
    steps, mmas_m, mmas_n = tile_k // MMA_K, warp_m // MMA_ROWS, warp_n // MMA_COLS
    a_bytes, stage_bytes = tile_m * tile_k * item, config.stage_bytes
    ring_bytes = stages * stage_bytes
    row_sums = 4 * mmas_n
    # A lane's sums lie eight rows and four columns apart. Blocks of a cluster share out its rows,
    # then parts of them.
    thread_m, thread_n = mmas_m, 2 * mmas_n
    share_m = max(1, thread_m // split_k)
    share_n = thread_m * thread_n // split_k // share_m
    shares_n = thread_n // share_n
    a_first, a_offset, start_a, a_step, a_xor, a_add, a_mma = make_operand_tile(
        a_is_along_k, tile_m, tile_k, threads
    )
    b_first, b_offset, start_b, b_step, b_xor, b_add, b_mma = make_operand_tile(
        b_is_along_k, tile_n, tile_k, threads
    )
    locate = make_locate(tile_m, tile_n, SWIZZLE_ROWS)
    count = 2 * thread_m * thread_n  # real numbers
    add_blocks = make_add_blocks(real, count, threads, split_k) if split_k > 1 else None
    store_complex = make_store_complex(
        ThreadTile(share_m, share_n, row_group=8, col_group=4, row_width=1), dtype, int64, epilogue,
        threads, config.smem_bytes(dtype),
    )  # fmt: skip

    def load_a(address):
        re, im = load_shared(real, 2, address, 0)
        minus_im = negated(im)
        if a_is_conjugate:
            im, minus_im = minus_im, im
        return (re, im, im, negated(re)) if b_is_conjugate else (re, im, minus_im, re)

    def in_rows(acc):
        """Real and imaginary part of each sum, row by row."""
        sums = ()
        for mma in static_range(mmas_m * mmas_n):
            re_0, re_1, im_0, im_1 = acc[4 * mma : 4 * mma + 4]
            sums = sums + (re_0, im_0, re_1, im_1)
        return sums

    load_a, in_rows = device_function(unroll(load_a)), device_function(unroll(in_rows))

    @gemm_kernel
    def complex_tensor_core_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = shared_address(cuda.shared.array(0, int32, alignment))

        # --- This block's tile, its share of k, this thread's place ---
        rank: int32 = cuda.blockIdx.x % split_k
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        matrix, tile_row, tile_col = locate(int32(cuda.blockIdx.x // split_k), tiles_m, tiles_n)
        all_tiles: int32 = (k + tile_k - 1) // tile_k
        most: int32 = (all_tiles + split_k - 1) // split_k
        first_tile: int32 = min(int32(most * rank), all_tiles)
        tiles: int32 = min(most, int32(all_tiles - first_tile))
        k_start: int32 = first_tile * tile_k
        k_left: int32 = min(k - k_start, tiles * tile_k)

        thread: int32 = cuda.threadIdx.x & 1023
        warp, group, member = int32(thread // 32), int32(thread % 32 // 4), int32(thread % 4)
        lane_x: int32 = group % 2 * 4 + group // 2
        lane_row: int32 = warp // warps_n * warp_m + lane_x
        warp_col: int32 = warp % warps_n * warp_n

        # The first element of each tile this thread copies, in global and shared memory.
        a_x, a_k = a_first(thread)
        b_x, b_k = b_first(thread)
        a_bytes_x, a_bytes_k = int64(a.row * item), int64(a.col * item)
        b_bytes_x, b_bytes_k = int64(b.col * item), int64(b.row * item)
        a_source = (
            global_address(a.data) + int64(matrix) * a.batch * item
            + int64(int32(tile_row + a_x)) * a_bytes_x + int64(int32(k_start + a_k)) * a_bytes_k
        )  # fmt: skip
        b_source = (
            global_address(b.data) + int64(matrix) * b.batch * item
            + int64(int32(tile_col + b_x)) * b_bytes_x + int64(int32(k_start + b_k)) * b_bytes_k
        )  # fmt: skip
        a_pass = a_step * (a_bytes_x if a_is_along_k else a_bytes_k)
        b_pass = b_step * (b_bytes_x if b_is_along_k else b_bytes_k)
        a_left: int32 = m - tile_row - a_x
        b_left: int32 = n - tile_col - b_x
        a_target: int32 = smem + a_offset(a_x, a_k)
        b_target: int32 = smem + a_bytes + b_offset(b_x, b_k)
        write: int32 = 0

        def fetch_a():
            nonlocal a_source
            if k_left > 0:
                start_a(int32(a_target + write), a_source, a_pass, a_left, int32(k_left - a_k))
                a_source += tile_k * a_bytes_k

        def fetch_b():
            nonlocal b_source, k_left, write
            if k_left > 0:
                start_b(int32(b_target + write), b_source, b_pass, b_left, int32(k_left - b_k))
                b_source += tile_k * b_bytes_k
                k_left -= tile_k
            commit_copies()
            write += stage_bytes
            if write == ring_bytes:
                write = 0

        # --- Prologue: all stages but one are on their way ---
        for _ in range(stages - 1):
            fetch_a()
            fetch_b()
        a_base: int32 = smem + a_offset(lane_row, member)
        b_base: int32 = smem + a_bytes + b_offset(int32(warp_col + lane_x), member)
        wait_copies(stages - 2)
        cuda.syncthreads()
        read: int32 = 0
        a_next = ()
        for i in static_range(mmas_m):
            a_next = a_next + load_a(int32(a_base + i * a_mma))
        b_next = load_vectors(real, 2, b_base, 0, b_mma, mmas_n)
        acc = zeros(real, mmas_m * row_sums)

        # --- Main loop: each step reads the next one's fragments, across tiles too ---
        for _ in range(tiles):
            for step in static_range(steps):
                a_frag, b_frag = a_next, b_next
                a_next, sums = (), ()
                if step == steps - 1:
                    read += stage_bytes
                    if read == ring_bytes:
                        read = 0
                for i in static_range(mmas_m):
                    sums = sums + mma_tile(
                        "float64", acc[i * row_sums : (i + 1) * row_sums],
                        a_frag[4 * i : 4 * i + 4], b_frag,
                    )  # fmt: skip
                    # Between the instructions that keep the tensor cores busy. Copies go into the
                    # stage that all had read before the last barrier.
                    if step == 0 and i == 0:
                        fetch_a()
                    if step == 0 and i == mmas_m // 2:
                        fetch_b()
                    if i == 0:
                        if step == steps - 1:
                            wait_copies(stages - 2)
                            cuda.syncthreads()
                        a_from: int32 = (a_base ^ a_xor[(step + 1) % steps]) + read
                        b_from: int32 = (b_base ^ b_xor[(step + 1) % steps]) + read
                        b_next = load_vectors(
                            real, 2, b_from, b_add[(step + 1) % steps], b_mma, mmas_n
                        )
                    a_next = a_next + load_a(
                        int32(a_from + (a_add[(step + 1) % steps] + i * a_mma))
                    )
                acc = sums

        # --- Epilogue ---
        if is_fused:
            cuda.syncthreads()  # the tiles of a and b have been read
        sums = in_rows(acc)
        row: int32 = tile_row + lane_row
        col: int32 = tile_col + warp_col + member
        if split_k > 1:
            sums = add_blocks(sums, smem, thread, rank)
            row += rank // shares_n * share_m * 8
            col += rank % shares_n * share_n * 4
        store_complex(
            sums, smem, thread, matrix, row, col, m, n, alpha, beta,
            c, int64(matrix) * c.batch, out, int64(matrix) * out.batch, extra,
        )  # fmt: skip

    return complex_tensor_core_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(64, 64, 8, warp_m=32, warp_n=32, stages=4),
        Config(64, 64, 8, warp_m=32, warp_n=16, stages=4, split_k=2),
        Config(64, 32, 8, warp_m=32, warp_n=16, stages=4),
        Config(64, 32, 8, warp_m=32, warp_n=16, stages=4, split_k=2),
        Config(32, 32, 8, warp_m=16, warp_n=16, stages=4),
        Config(32, 32, 16, warp_m=16, warp_n=8, stages=5, split_k=2),
        Config(32, 32, 16, warp_m=16, warp_n=16, stages=5, split_k=8),
        Config(16, 64, 8, warp_m=16, warp_n=16, stages=6, split_k=2),
        Config(32, 16, 16, warp_m=16, warp_n=8, stages=6),
    ),
    simulator_configs=(
        Config(16, 8, 8, warp_m=16, warp_n=8, stages=2),
        Config(32, 16, 8, warp_m=32, warp_n=8, stages=3),
    ),
    dtypes=("complex128",),
    minimum_arch=80,
    variant=variant,
    commutes=never,
    order_of_sums="complex mma",
)
