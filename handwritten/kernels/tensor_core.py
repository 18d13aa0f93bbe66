"""Tensor cores by `mma.sync`: float64 products of a whole warp in one instruction.

Idea: grown from `tuned`. A warp no longer multiplies element by element: fragments of both tiles go
to the tensor cores, 16x8 by 8x8 per instruction, a quarter of it before Hopper (mma.py). Whatever
else the mainloop does, starting copies, reading the next fragments, waiting for a tile, stands
between two of these instructions: a burst of it would leave the tensor cores idle.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch. Tiles are stored so that
a lane reads the adjacent registers of the instruction by one load; row-major a and b
change sides for that, out.T = b.T @ a.T (mma_operands.py). split_k blocks of a cluster share a
tile, each with its share of k; then each adds up its share of the tile, reading the others' shared
memory in a fixed order (tile_store.py). Or k is cut into slices, whose sums `add_slices` adds. Of a
symmetric result, half the tiles are computed (triangle.py).
Constraints: compute capability 8.0, whose tensor cores take float64; split_k needs the clusters of
9.0. All extents are powers of two, see `Config`. Edges are predicated: elements outside count as
zero and are not written.
Source: PTX ISA, "mma.m16n8k8", "mma.m8n8k4", "cp.async", "mapa"; A. Kerr et al., "CUTLASS: Fast
Linear Algebra in CUDA C++", NVIDIA 2017, for the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts import triangle
from dxgemm.handwritten.parts.fragment import mma_fragment
from dxgemm.handwritten.parts.k_ranges import exchanged, make_k_range
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, Reductions, tiles_of
from dxgemm.handwritten.parts.mma_operands import (
    MMA_COLS,
    MMA_K,
    MMA_ROWS,
    choose_sides,
    make_operand_tile,
)
from dxgemm.handwritten.parts.result import Origin, Result
from dxgemm.handwritten.parts.tile_store import make_store_tile, tile_bytes

SWIZZLE_ROWS = 8  # rows of tiles that are computed together, so that they share what is in L2


@dataclass(frozen=True)
class Config(BaseConfig):
    """Tile of the left and right operand, each warp's share of it, depth of the pipeline.

    Attributes:
        tile_left, tile_right: extent of a block's tile along the rows of the left operand and the
            columns of the right one.
        tile_k: elements of k in a stage.
        warp_left, warp_right: extents of the warp tile, along the same.
        stages: tiles in shared memory.
        split_k: blocks of a cluster that share the k of a tile of the result (cluster split-K).
    """

    tile_left: int
    tile_right: int
    tile_k: int
    warp_left: int
    warp_right: int
    stages: int
    split_k: int = 1

    least_threads = 32
    dynamic_smem = True

    def complaints(self) -> Iterator[str]:
        for name, extent in vars(self).items():
            if name != "stages" and extent & (extent - 1):
                yield f"{name} must be a power of two"
        if self.tile_left % self.warp_left or self.tile_right % self.warp_right:
            yield "warp tiles must fill the block tile"
        if self.stages < 2:
            yield "one stage is copied while another is read: 2 or more"
        if self.warp_left < 32 or self.warp_right < 8:
            yield "a warp computes 32 x 8 or more, two instructions ahead"
        if self.tile_k < 16 or self.threads < max(self.tile_left, self.tile_right):
            yield "too few threads or too small a tile_k to copy a tile"
        if self.split_k > 8:
            yield "a portable cluster has at most 8 blocks"

    @property
    def tile_m(self) -> int:
        """Rows of a block's tile for row-major operands; others may exchange them for tile_n."""
        return self.tile_right

    @property
    def tile_n(self) -> int:
        return self.tile_left

    @property
    def threads(self) -> int:
        return 32 * (self.tile_left // self.warp_left) * (self.tile_right // self.warp_right)

    @property
    def cluster(self) -> int:
        return self.split_k

    def stage_bytes(self, dtype: str) -> int:
        return (self.tile_left + self.tile_right) * self.tile_k * np.dtype(dtype).itemsize

    def smem_bytes(self, dtype: str) -> int:
        shorter, longer = sorted((self.tile_left, self.tile_right))
        sums = max(tile_bytes(longer, shorter, dtype), tile_bytes(shorter, longer, dtype))
        return max(self.stages * self.stage_bytes(dtype) + 32, sums)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.warp_left * self.warp_right // 32 * np.dtype(dtype).itemsize

    def __str__(self) -> str:
        split = f" split {self.split_k}" if self.split_k > 1 else ""
        return (
            f"{self.tile_left}x{self.tile_right}x{self.tile_k} warp "
            f"{self.warp_left}x{self.warp_right} stages {self.stages}{split}"
        )


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: split_k for each tile of the result, matrix after matrix."""
    tile_m, tile_n = result_tile(config, problem)
    return problem.batch * tiles_of(problem, tile_m, tile_n) * config.split_k


def result_tile(config: Config, problem: Any) -> tuple[int, int]:
    """Rows and columns of the result that a block's tile has."""
    side = choose_sides(problem)[0]
    tile = config.tile_left, config.tile_right
    return tile if side == "a left" else tile[::-1]


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Side of a, modes of copying (see `mma_operands`), "sliced" if k is; triangle; k_ranges.

    The latter three are left out where they are empty.
    """
    sides = choose_sides(problem)
    if problem.k_ranges:
        return *sides, "", "", problem.k_ranges
    slicing = "" if problem.slices == 1 else "sliced"
    if problem.triangle:
        return *sides, slicing, problem.triangle
    return (*sides, slicing) if slicing else sides


def make_kernel(
    config: Config,
    dtype: str,
    a_side: str,
    left_mode: str,
    right_mode: str,
    slicing: str = "",
    stored: str = "",
    ranges: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and variant, as a Python function to compile.

    If k is sliced, the grid has a y for each slice, and out holds one batch of sums per slice.
    `stored` names the triangles of a symmetric result that are written; it is "" for any other.
    `ranges` names the triangles of a and b, see `k_ranges`.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.block_mask import make_is_dead
    from dxgemm.handwritten.parts.epilogue import make_prefetch
    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        divide,
        global_address,
        load_shared,
        shared_address,
        store_shared,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.mma import as_is, mma_tile, round_to_tf32
    from dxgemm.handwritten.parts.tile_order import make_share, make_tile_map
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    scalar, item_bytes = np.dtype(dtype).type, np.dtype(dtype).itemsize
    a_is_left, is_sliced = a_side == "a left", slicing == "sliced"
    tile_left, tile_right, tile_k = config.tile_left, config.tile_right, config.tile_k
    warp_left, warp_right = config.warp_left, config.warp_right
    warps_right = tile_right // warp_right
    stages, split_k, threads = config.stages, config.split_k, config.threads
    steps = tile_k // MMA_K
    left_mmas, right_mmas = warp_left // MMA_ROWS, warp_right // MMA_COLS
    mmas = left_mmas * right_mmas
    left_tile = make_operand_tile("left", left_mode, tile_left, warp_left, tile_k, threads, dtype)
    right_tile = make_operand_tile(
        "right", right_mode, tile_right, warp_right, tile_k, threads, dtype
    )
    left_first, left_place, start_left, start_left_edge, load_left = left_tile[:5]
    right_first, right_place, start_right, start_right_edge, load_right = right_tile[:5]
    left_xor, left_add, left_step, left_steps_k, left_bytes = left_tile[5:]
    right_xor, right_add, right_step, right_steps_k, right_bytes = right_tile[5:]
    stage_bytes = left_bytes + right_bytes
    ring_bytes = stages * stage_bytes
    prepare = round_to_tf32 if dtype == "float32" else as_is
    kind = "tf32" if dtype == "float32" else dtype
    epilogue, is_masked, is_dead = make_is_dead(epilogue, not a_is_left)
    locate, _ = triangle.make_tile_map(tile_left, tile_right, SWIZZLE_ROWS)
    ranges = ranges if a_is_left or not ranges else exchanged(ranges)
    locate_in_turn, _ = make_tile_map(tile_left, tile_right, SWIZZLE_ROWS, "", ranges)
    k_range = make_k_range(ranges, tile_left, tile_right, tile_k)
    share = make_share()
    fragment, tile = mma_fragment(left_mmas, right_mmas), (tile_left, tile_right)
    if not a_is_left:
        fragment, tile = fragment.transposed(), tile[::-1]
    store_tiles = tuple(
        make_store_tile(fragment, tile, threads, dtype, epilogue, split_k, *how)
        for how in triangle.stores(stored, epilogue)
    )
    # The blocks of a cluster ask for a part of the tile's rows each.
    shared_rows = tile[0] // split_k
    prefetch = make_prefetch(epilogue, shared_rows, tile[1], threads)
    is_prefetching = prefetch is not None

    @gemm_kernel
    def tensor_core_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = shared_address(cuda.shared.array(0, scalar, alignment=1024))
        if a_is_left:
            rows, cols = m, n
            left, left_stride_batch, left_stride, left_stride_k = (
                global_address(a.data), a.batch, a.row, a.col
            )  # fmt: skip
            right, right_stride_batch, right_stride, right_stride_k = (
                global_address(b.data), b.batch, b.col, b.row
            )  # fmt: skip
        else:
            rows, cols = n, m
            left, left_stride_batch, left_stride, left_stride_k = (
                global_address(b.data), b.batch, b.col, b.row
            )  # fmt: skip
            right, right_stride_batch, right_stride, right_stride_k = (
                global_address(a.data), a.batch, a.row, a.col
            )  # fmt: skip

        # --- This block's tile, its share of k, this thread's place ---
        rank: int32 = cuda.blockIdx.x % split_k
        block: int32 = cuda.blockIdx.x // split_k
        tiles_left: int32 = (rows + tile_left - 1) // tile_left
        tiles_right: int32 = (cols + tile_right - 1) // tile_right
        if stored:
            matrix, row_tile, col_tile = locate(block, tiles_left, tiles_right)
        elif ranges:
            matrix, row_tile, col_tile = locate_in_turn(block, tiles_left, tiles_right)
            row_tile, col_tile = int32(row_tile // tile_left), int32(col_tile // tile_right)
        else:
            matrix, group = int32(0), int32(0)
            if batch > 1:
                matrix = divide(block, int32(tiles_left * tiles_right))
                block = block - matrix * tiles_left * tiles_right
            if tiles_left > SWIZZLE_ROWS:
                group = divide(block, int32(SWIZZLE_ROWS * tiles_right))
                block = block - group * SWIZZLE_ROWS * tiles_right
            group_rows = min(int32(tiles_left - group * SWIZZLE_ROWS), int32(SWIZZLE_ROWS))
            col_tile = divide(block, group_rows)
            row_tile = int32(block - col_tile * group_rows + group * SWIZZLE_ROWS)
        tile_row, tile_col = row_tile * tile_left, col_tile * tile_right
        if is_masked and is_dead(tile_row, tile_col, extra):
            return

        all_tiles: int32 = (k + tile_k - 1) // tile_k
        if is_sliced:
            first_tile, tiles = share(all_tiles, int32(cuda.blockIdx.y), int32(cuda.gridDim.y))
            result = int32(int32(cuda.blockIdx.y) * batch + matrix)
        elif ranges:
            first_k_tile, end_k_tile = k_range(tile_row, tile_col, all_tiles)
            first_tile, tiles = share(int32(end_k_tile - first_k_tile), rank, int32(split_k))
            first_tile = int32(first_tile + first_k_tile)
            result = matrix
        else:
            first_tile, tiles = share(all_tiles, rank, int32(split_k))
            result = matrix
        k_start = first_tile * tile_k
        last_depth = int32(min(k - k_start - (tiles - 1) * tile_k, tile_k))
        rows_inside = int32(min(rows - tile_row, tile_left))
        cols_inside = int32(min(cols - tile_col, tile_right))
        # The first full_tiles tiles are copied without predicates.
        full_tiles = int32(0)
        if rows_inside == tile_left and cols_inside == tile_right:
            full_tiles = tiles if last_depth == tile_k else int32(tiles - 1)
        if split_k > 1 or is_sliced or ranges:
            full_tiles = max(full_tiles, int32(0))  # of a share without tiles

        thread: int32 = cuda.threadIdx.x & 1023
        warp, group, member = int32(thread // 32), int32(thread % 32 // 4), int32(thread % 4)
        lane_row: int32 = warp // warps_right * warp_left + group * 2
        lane_col: int32 = warp % warps_right * warp_right

        # The first element of each tile this thread copies, in global and shared memory.
        left_x, left_k = left_first(thread)
        right_x, right_k = right_first(thread)
        left_source = left + item_bytes * (
            matrix * left_stride_batch
            + (tile_row + left_x) * left_stride
            + (k_start + left_k) * left_stride_k
        )
        right_source = right + item_bytes * (
            matrix * right_stride_batch
            + (tile_col + right_x) * right_stride
            + (k_start + right_k) * right_stride_k
        )
        left_pass = left_step * item_bytes * (left_stride_k if left_steps_k else left_stride)
        right_pass = right_step * item_bytes * (right_stride_k if right_steps_k else right_stride)
        left_advance = tile_k * item_bytes * left_stride_k
        right_advance = tile_k * item_bytes * right_stride_k
        left_target: int32 = smem + left_place(left_x, left_k)
        right_target: int32 = smem + left_bytes + right_place(right_x, right_k)

        # --- Prologue: all stages but one are on their way ---
        # Two loops, not one with a branch: LLVM would write that out, and short problems would wait
        # for their instructions.
        write: int32 = 0
        prefetched = min(full_tiles, int32(stages - 1))
        for _ in range(prefetched):
            start_left(int32(left_target + write), left_source, left_pass)
            start_right(int32(right_target + write), right_source, right_pass)
            commit_copies()
            left_source += left_advance
            right_source += right_advance
            write += stage_bytes
        for started in range(prefetched, int32(stages - 1)):
            if started < tiles:
                depth = last_depth if started == tiles - 1 else int32(tile_k)
                start_left_edge(
                    int32(left_target + write), left_source, left_pass,
                    int32(rows_inside - left_x), int32(depth - left_k),
                )  # fmt: skip
                start_right_edge(
                    int32(right_target + write), right_source, right_pass,
                    int32(cols_inside - right_x), int32(depth - right_k),
                )  # fmt: skip
            commit_copies()
            left_source += left_advance
            right_source += right_advance
            write += stage_bytes
        if is_prefetching:
            first_row, first_col = (tile_row, tile_col) if a_is_left else (tile_col, tile_row)
            prefetch(result, first_row + rank * shared_rows, first_col, m, n, extra)
        # The main loop takes every register: numbers for the epilogue wait in shared memory.
        if thread == 0:
            store_shared(smem, ring_bytes, (result, row_tile, col_tile, tiles))
            store_shared(smem, ring_bytes + 16, (rows_inside, cols_inside, last_depth, int32(0)))
        wait_copies(stages - 2)
        cuda.syncthreads()
        left_base: int32 = smem + left_place(lane_row, member * 2)
        right_base: int32 = smem + left_bytes + right_place(lane_col + group, member * 2)
        read: int32 = 0
        left_next, right_next = (), ()
        for i in static_range(left_mmas):
            left_next = left_next + load_left(int32(left_base ^ left_xor[0][i]), left_add[0][i])
        for j in static_range(right_mmas):
            right_next = right_next + load_right(
                int32(right_base ^ right_xor[0][j]), right_add[0][j]
            )
        left_ready, right_next = prepare(left_next[0:4]), prepare(right_next)
        acc = zeros(scalar, mmas * 4)

        # --- Main loop ---
        # Each step reads the next one's fragments, across tiles too. First while full tiles are
        # copied, in one straight line of code, then for the rest.
        exact: int32 = max(full_tiles - (stages - 1), 0)
        started = int32(exact + stages - 1)
        for phase in static_range(2):
            if phase == 1:
                result, row_tile, col_tile, tiles = load_shared(int32, 4, smem, ring_bytes)
                rows_inside, cols_inside, last_depth, _ = load_shared(
                    int32, 4, smem, ring_bytes + 16
                )
                tile_row, tile_col = row_tile * tile_left, col_tile * tile_right
            for _ in range(exact if phase == 0 else int32(tiles - exact)):
                for step in static_range(steps):
                    left_frag, right_frag, left_now = left_next, right_next, left_ready
                    left_next, right_next, sums = (), (), ()
                    if step == steps - 1:
                        read += stage_bytes
                        if read == ring_bytes:
                            read = 0
                    for i in static_range(left_mmas):
                        if i < left_mmas - 1:
                            left_ready = prepare(left_frag[4 * i + 4 : 4 * i + 8])
                        else:
                            left_ready = prepare(left_next[0:4])
                            right_next = prepare(right_next)
                        sums = sums + mma_tile(
                            kind, acc[i * right_mmas * 4 : (i + 1) * right_mmas * 4], left_now,
                            right_frag,
                        )  # fmt: skip
                        left_now = left_ready
                        # Between the instructions that keep the tensor cores busy:
                        if step == 0 and phase == 0:
                            if i == 0:
                                start_left(int32(left_target + write), left_source, left_pass)
                                left_source += left_advance
                            if i == left_mmas // 2:
                                start_right(int32(right_target + write), right_source, right_pass)
                                right_source += right_advance
                        if step == steps - 1 and i == 0:
                            wait_copies(stages - 2)
                            cuda.syncthreads()
                        if i == 0:
                            for j in static_range(right_mmas):
                                right_next = right_next + load_right(
                                    int32(right_base ^ right_xor[(step + 1) % steps][j]),
                                    int32(read + right_add[(step + 1) % steps][j]),
                                )
                        left_next = left_next + load_left(
                            int32(left_base ^ left_xor[(step + 1) % steps][i]),
                            int32(read + left_add[(step + 1) % steps][i]),
                        )
                    acc = sums
                    if step == 0:  # into the stage that all had read before the last barrier
                        if phase == 1 and started < tiles:
                            depth = last_depth if started == tiles - 1 else int32(tile_k)
                            start_left_edge(
                                int32(left_target + write), left_source, left_pass,
                                int32(rows_inside - left_x), int32(depth - left_k),
                            )  # fmt: skip
                            start_right_edge(
                                int32(right_target + write), right_source, right_pass,
                                int32(cols_inside - right_x), int32(depth - right_k),
                            )  # fmt: skip
                            left_source += left_advance
                            right_source += right_advance
                            started = int32(started + 1)
                        commit_copies()
                        write += stage_bytes
                        if write == ring_bytes:
                            write = 0

        # --- Epilogue ---
        lane_col += member * 2
        if a_is_left:
            row, col = lane_row, lane_col
        else:
            row, col, tile_row, tile_col = lane_col, lane_row, tile_col, tile_row
        for i in static_range(len(store_tiles)):
            store_tiles[i](
                acc, smem, rank, row, col, tile_row, tile_col,
                Origin(result, result * c.batch, result * out.batch),
                Result(alpha, beta, c, out, m, n, batch, extra),
            )  # fmt: skip

    return tensor_core_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(128, 128, 16, warp_left=64, warp_right=32, stages=4),
        Config(128, 64, 16, warp_left=64, warp_right=32, stages=4),
        Config(64, 64, 16, warp_left=32, warp_right=32, stages=4),
        Config(64, 64, 16, warp_left=32, warp_right=32, stages=4, split_k=8),
        Config(64, 32, 16, warp_left=32, warp_right=16, stages=8),
        Config(32, 64, 16, warp_left=32, warp_right=16, stages=6),
        Config(32, 32, 32, warp_left=32, warp_right=8, stages=6),
        Config(64, 16, 32, warp_left=32, warp_right=8, stages=3),
        # Little shared memory, so that many blocks are resident per SM: for batches.
        Config(32, 32, 32, warp_left=32, warp_right=8, stages=3),
        Config(32, 32, 32, warp_left=32, warp_right=16, stages=2),
    ),
    dtypes=("float64",),
    minimum_arch=80,
    variant=variant,
    takes_triangles=True,
    takes_masks=True,
    takes_k_ranges=True,
    block_count=block_count,
    result_tile=result_tile,
    reductions=Reductions.ALL,
    takes_pairs=True,
    slices_k=True,
    order_of_sums="mma",
)
