"""Half precision and int8 on tensor cores by `mma.sync`, from Ampere on.

Idea: grown from `tensor_core`. A tile of a and b is one line of 128 bytes of k deep in shared
memory. `ldmatrix` reads it as fragments, whichever way the operand lies there (line_tiles.py), so
that nothing changes sides. Copies go straight to shared memory, or, in `shifted_tile`, through
registers: a tile is read while the one before is multiplied, and written once that is half done.
Layout: a (m, k), b (k, n), row- or column-major, any batch, int8 with neighbouring k; c and out
(m, n), any strides, in the dtype of a and b or in float32, and for int8 in int32.
Constraints: compute capability 8.0; rows of a and b, or columns, begin at multiples of 16 bytes;
all extents powers of two, see `Config`. Edges are predicated: elements outside count as zero and
are not written.
Source: PTX ISA, "mma.m16n8k16", "mma.m16n8k32", "ldmatrix", "cp.async"; A. Kerr et al., "CUTLASS:
Fast Linear Algebra in CUDA C++", NVIDIA 2017, for the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts.chunk_store import STORE_BYTES
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel
from dxgemm.handwritten.parts.line_tiles import LINE_BYTES, STEPS, layout
from dxgemm.handwritten.parts.operands import ITEM_BYTES

SWIZZLE_ROWS = 8  # rows of tiles that are computed together, so that they share what is in L2
WARP_N = 64  # columns of a warp: two chunks of `chunk_store`


@dataclass(frozen=True)
class Config(BaseConfig):
    """Block tile tile_m x tile_n; warp tile warp_m x 64.

    Attributes:
        stages: tiles of a and b in shared memory.
    """

    tile_m: int
    tile_n: int
    warp_m: int
    stages: int

    dynamic_smem = True
    least_threads = 64

    def complaints(self) -> Iterator[str]:
        for name in ("tile_m", "tile_n", "warp_m"):
            extent = getattr(self, name)
            if extent & (extent - 1):
                yield f"{name} must be a power of two"
        if self.tile_m % self.warp_m or self.tile_n % WARP_N:
            yield "warp tiles must fill the block tile"
        if self.warp_m < 16 or self.tile_m < 64:
            yield "a warp computes 16 rows or more, a line holds 64"
        if self.stages < 2:
            yield "one stage is copied while another is read: 2 or more"

    @property
    def warps(self) -> int:
        return self.tile_m // self.warp_m * (self.tile_n // WARP_N)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def tile_k(self) -> int:
        """Elements of k in a stage, of two bytes each. A stage has twice as many int8."""
        return LINE_BYTES // 2

    @property
    def split_k(self) -> int:
        """Blocks of a cluster that share the k of a tile: none."""
        return 1

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * LINE_BYTES

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, in whose place the warps put their parts of the result in the end."""
        return max(self.stages * self.stage_bytes, self.warps * STORE_BYTES)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.warp_m * WARP_N // 32 * 4

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n} warp {self.warp_m}x{WARP_N} stages {self.stages}"


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Layouts of a and b (see `line_tiles`), the dtype of the result, "sliced" if k is."""
    kinds = layout(problem, "a"), layout(problem, "b"), problem.out_dtype
    return kinds if problem.slices == 1 else (*kinds, "sliced")


def supports(problem: Any) -> str | None:
    """Reason why a problem's operands cannot be copied 16 bytes at a time; None if they can."""
    unaligned = [name for name in "ab" if "16" not in layout(problem, name)]
    if unaligned and not problem.is_empty and problem.k > 0:
        return f"{' and '.join(unaligned)} cannot be copied 16 bytes at a time"
    return None


def make_kernel(
    config: Config,
    dtype: str,
    a_layout: str,
    b_layout: str,
    out_dtype: str,
    slicing: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and variant, as a Python function to compile.

    If k is sliced, the grid has a y for each slice, and out holds one batch of sums a slice.
    """
    from dxgemm.handwritten.parts.block_mask import make_is_dead
    from dxgemm.handwritten.parts.wgmma_store import make_store_tile

    acc_dtype = "int32" if dtype == "int8" else "float32"
    epilogue, is_masked, is_dead = make_is_dead(epilogue)
    store = make_store_tile(WARP_N, out_dtype, True, False, epilogue, acc_dtype)
    is_sliced, mask = slicing == "sliced", (is_masked, is_dead)
    return make_tile_kernel(config, dtype, a_layout, b_layout, store, is_sliced, mask=mask)


def make_tile_kernel(
    config: Config,
    dtype: str,
    a_layout: str,
    b_layout: str,
    store: tuple[Callable[..., Any], Callable[..., Any]],
    is_sliced: bool = False,
    is_modular: bool = False,
    is_grouped: bool = False,
    mask: tuple[bool, Callable[..., bool] | None] = (False, None),
    stored: str = "",
) -> Callable[..., None]:
    """The kernel with a store of its own.

    Args:
        config, dtype: config, and dtype of a and b.
        a_layout, b_layout: layouts of a and b, see `line_tiles`.
        store: device functions allows_vectors and store_tile, see `make_store_tile`.
        is_sliced: True if a block computes a slice of k.
        is_modular: True for products of residues. The last parameter holds the flag of the validity
            check and the number of moduli; the matrices of a and b are those by all moduli, one
            after the other, and a batch stride of 0 means that all products share them.
        is_grouped: True if a block finds its problem in a table. Then m is the number of problems;
            the last parameter holds the table (see group_table.py), and alpha and beta of each.
        mask: True with a block mask, and its device function is_dead, see `make_is_dead`.
        stored: triangles of a symmetric result that the store writes; "" for another result.
    """
    from numba import cuda, float32, int32

    from dxgemm.handwritten.parts.group_table import make_find_problem
    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        divide,
        global_address,
        shared_address,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.line_tiles import make_line_tile
    from dxgemm.handwritten.parts.mma import mma_tile
    from dxgemm.handwritten.parts.tile_order import make_share, make_tile_map
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    tile_m, tile_n, warp_m, stages = config.tile_m, config.tile_n, config.warp_m, config.stages
    item_bytes, threads = ITEM_BYTES[dtype], config.threads
    tile_k = LINE_BYTES // item_bytes
    scalar = int32 if dtype == "int8" else float32
    warps_n = tile_n // WARP_N
    mmas_m = warp_m // 16
    sums_m = WARP_N // 8 * 4  # of 16 rows, in a lane
    left = make_line_tile(a_layout, "left", tile_m, warp_m, threads, item_bytes)
    right = make_line_tile(b_layout, "right", tile_n, WARP_N, threads, item_bytes)
    a_is_async, a_first, a_place, start_a, load_a, put_a, a_lane, read_a, a_xor, a_add, _ = left
    b_is_async, b_first, b_place, start_b, load_b, put_b, b_lane, read_b, b_xor, b_add, _ = right
    a_bytes, stage_bytes = tile_m * LINE_BYTES, config.stage_bytes
    ring_bytes = stages * stage_bytes
    reads_b = WARP_N // 16
    locate, _ = make_tile_map(tile_m, tile_n, SWIZZLE_ROWS, stored)
    find_problem = make_find_problem()
    allows_vectors, store_tile = store
    is_masked, is_dead = mask
    share = make_share()

    @gemm_kernel
    def tensor_tile_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = shared_address(cuda.shared.array(0, float32, alignment=1024))

        # --- This block's tile, its share of k, this thread's place ---
        block: int32 = cuda.blockIdx.x
        if is_grouped:
            # The problem counts as matrix 1 of a batch: its start is the stride of the matrices.
            table, scalars = extra[0][0], extra[1][0]
            problem, block, fields = find_problem(table, m, block)
            m, n, k = table[fields], table[fields + 1], table[fields + 2]
            if m == 0:  # behind the last tile
                return
            a.batch, a.row, a.col = table[fields + 3], table[fields + 4], table[fields + 5]
            b.batch, b.row, b.col = table[fields + 6], table[fields + 7], table[fields + 8]
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        matrix, row, col = locate(block, tiles_m, tiles_n)
        if is_grouped:
            matrix = int32(1)
        if is_masked and is_dead(row, col, extra):
            return
        tiles: int32 = (k + tile_k - 1) // tile_k
        k_start: int32 = 0
        result = matrix
        if is_sliced:
            first_tile, tiles = share(tiles)
            k_start = first_tile * tile_k
            result = int32(int32(cuda.blockIdx.y) * batch + matrix)
        a_offset, b_offset = matrix * a.batch, matrix * b.batch
        if is_modular:
            flag, _ = extra[0]
            count: int32 = extra[1]
            if flag[0] != 0:
                tiles = 0
            residues = int32(matrix - divide(matrix, count) * count)
            a_offset = (matrix if a.batch != 0 else residues) * m * a.row
            b_offset = (matrix if b.batch != 0 else residues) * n * b.col
        k_inside: int32 = min(k - k_start, tiles * tile_k)

        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        warp_row: int32 = warp // warps_n * warp_m
        warp_col: int32 = warp % warps_n * WARP_N

        # The first chunk of each tile that this thread copies, and what is left behind it.
        a_x, a_k = a_first(thread)
        b_x, b_k = b_first(thread)
        a_x_step, a_k_step = a.row * item_bytes, a.col * item_bytes
        b_x_step, b_k_step = b.col * item_bytes, b.row * item_bytes
        a_begin = global_address(a.data) + a_offset * item_bytes
        b_begin = global_address(b.data) + b_offset * item_bytes
        a_source = a_begin + ((row + a_x) * a_x_step + (k_start + a_k) * a_k_step)
        b_source = b_begin + ((col + b_x) * b_x_step + (k_start + b_k) * b_k_step)
        a_end = a_begin + ((m - 1) * max(a_x_step, 0) + (k - 1) * max(a_k_step, 0) + item_bytes)
        b_end = b_begin + ((n - 1) * max(b_x_step, 0) + (k - 1) * max(b_k_step, 0) + item_bytes)
        a_begin += (m - 1) * min(a_x_step, 0) + (k - 1) * min(a_k_step, 0)
        b_begin += (n - 1) * min(b_x_step, 0) + (k - 1) * min(b_k_step, 0)
        a_target: int32 = smem + a_place(a_x, a_k)
        b_target: int32 = smem + a_bytes + b_place(b_x, b_k)
        a_x_left: int32 = min(m - row, tile_m) - a_x
        b_x_left: int32 = min(n - col, tile_n) - b_x
        a_k_left: int32 = k_inside - a_k
        b_k_left: int32 = k_inside - b_k
        write: int32 = 0
        next_write: int32 = 0
        a_chunks, b_chunks = (), ()  # on their way through registers

        def start_tile():
            """Start the copies of the next tile that go straight to shared memory."""
            nonlocal write, a_source, b_source, a_k_left, b_k_left
            if a_is_async:
                start_a(int32(a_target + write), a_source, a_x_step, a_k_step, a_x_left, a_k_left)
                a_source += tile_k * a_k_step
                a_k_left -= tile_k
            if b_is_async:
                start_b(int32(b_target + write), b_source, b_x_step, b_k_step, b_x_left, b_k_left)
                b_source += tile_k * b_k_step
                b_k_left -= tile_k
            commit_copies()
            write += stage_bytes
            if write == ring_bytes:
                write = 0

        def load_next_a():
            """Read the next tile of an operand that goes through registers."""
            nonlocal a_chunks, a_source, a_k_left
            a_chunks = load_a(a_source, a_x_step, a_k_step, a_x_left, a_k_left, a_begin, a_end)
            a_source += tile_k * a_k_step
            a_k_left -= tile_k

        def load_next_b():
            nonlocal b_chunks, b_source, b_k_left
            b_chunks = load_b(b_source, b_x_step, b_k_step, b_x_left, b_k_left, b_begin, b_end)
            b_source += tile_k * b_k_step
            b_k_left -= tile_k

        # --- Prologue: all stages but one are on their way ---
        for _ in range(stages - 1):
            start_tile()
        if not a_is_async:
            load_next_a()
        if not b_is_async:
            load_next_b()
        if not a_is_async:
            put_a(a_target, a_chunks)
            load_next_a()
        if not b_is_async:
            put_b(b_target, b_chunks)
            load_next_b()
        a_lane_x, a_lane_k = a_lane(lane)
        b_lane_x, b_lane_k = b_lane(lane)
        a_from: int32 = smem + a_place(int32(warp_row + a_lane_x), a_lane_k)
        b_from: int32 = smem + a_bytes + b_place(int32(warp_col + b_lane_x), b_lane_k)
        wait_copies(stages - 2)
        cuda.syncthreads()
        read: int32 = 0
        a_next, b_next = (), ()
        for i in static_range(mmas_m):
            a_next = a_next + read_a(int32(a_from ^ a_xor[0][i]), a_add[0][i])
        for j in static_range(reads_b):
            b_next = b_next + read_b(int32(b_from ^ b_xor[0][j]), b_add[0][j])
        acc = zeros(scalar, mmas_m * sums_m)

        # --- Main loop: each step reads the fragments of the next one, across tiles too ---
        for _ in range(tiles):
            next_write += stage_bytes
            if next_write == ring_bytes:
                next_write = 0
            for step in static_range(STEPS):
                a_frag, b_frag = a_next, b_next
                if step == 0:
                    start_tile()
                if step == 1 and not a_is_async:
                    put_a(int32(a_target + next_write), a_chunks)
                    load_next_a()
                if step == 2 and not b_is_async:
                    put_b(int32(b_target + next_write), b_chunks)
                    load_next_b()
                if step == STEPS - 1:
                    wait_copies(stages - 2)
                    cuda.syncthreads()
                    read = next_write
                a_next, b_next = (), ()
                for i in static_range(mmas_m):
                    a_next = a_next + read_a(
                        int32((a_from ^ a_xor[(step + 1) % STEPS][i]) + read),
                        a_add[(step + 1) % STEPS][i],
                    )
                for j in static_range(reads_b):
                    b_next = b_next + read_b(
                        int32((b_from ^ b_xor[(step + 1) % STEPS][j]) + read),
                        b_add[(step + 1) % STEPS][j],
                    )
                acc = mma_tile(dtype, acc, a_frag, b_frag)

        # --- Epilogue: 16 rows of a warp at a time, through its own part of shared memory ---
        wait_copies(0)
        cuda.syncthreads()
        if is_grouped:  # read now, these numbers take no registers of the main loop
            m, n = table[fields], table[fields + 1]
            alpha, beta = scalars[2 * problem], scalars[2 * problem + 1]
            c.batch, c.row, c.col = table[fields + 9], table[fields + 10], table[fields + 11]
            out.batch, out.row, out.col = table[fields + 12], table[fields + 13], table[fields + 14]
        has_vectors = allows_vectors(m, n, beta, c, out)
        chunk_smem: int32 = smem + warp * STORE_BYTES
        for i in static_range(mmas_m):
            store_tile(
                acc[i * sums_m : (i + 1) * sums_m], chunk_smem, lane, result,
                int32(row + warp_row + 16 * i), int32(col + warp_col), m, n, has_vectors, alpha,
                beta, c, out, extra,
            )  # fmt: skip

    return tensor_tile_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=256, warp_m=64, stages=3),
        Config(tile_m=128, tile_n=128, warp_m=64, stages=3),
        Config(tile_m=64, tile_n=128, warp_m=32, stages=3),
        Config(tile_m=64, tile_n=64, warp_m=16, stages=4),
    ),
    dtypes=("float16", "bfloat16", "int8"),
    minimum_arch=80,
    supports=supports,
    variant=variant,
    copies_operands=True,
    takes_masks=True,
    takes_pairs=True,
    quantises=True,
    slices_k=True,
    order_of_sums="mma",
)
