"""float32 products by float16 `mma.sync`: `emulated_float32` for GPUs without `wgmma`.

Idea: the products of parts of `emulated_float32` in the form of `tensor_tile`. A stage holds a tile
of each part of a and of b. hi @ hi is summed anew for each step of 16 k, and added to the total by
true float32 additions; lo @ hi and hi @ lo are summed over a stage. A warp has 32 x 32 elements, so
that these three sums and the fragments of two steps fit its registers.
Layout: a (m, k) and b (k, n) as `decompose` leaves them, K-major or MN-major, any batch; c and out
(m, n), any strides. In the last parameter, behind the epilogue's operands: the factors that scale
rows and columns back, and the flag of validity_check.
Constraints: compute capability 8.0; m, n and k are free. If the flag is not 0, the kernel computes
nothing and leaves the product to `native_fallback`.
Source: as `emulated_float32` and `tensor_tile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dxgemm.handwritten.kernels import emulated_float32
from dxgemm.handwritten.kernels.tensor_tile import SWIZZLE_ROWS
from dxgemm.handwritten.parts.chunk_store import STORE_BYTES
from dxgemm.handwritten.parts.emulation import PADDING, SCHEMES
from dxgemm.handwritten.parts.kernel import BaseConfig, Reductions, no_maps
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES, LINE_BYTES, STEPS

WARP_TILE = 32  # rows and columns of a warp
PARTS, ITEM_BYTES = 2, 2
TILE_K = LINE_BYTES // ITEM_BYTES


@dataclass(frozen=True)
class Config(BaseConfig):
    """Block tile tile_m x tile_n; a ring of `stages`."""

    tile_m: int
    tile_n: int
    stages: int

    dynamic_smem = True
    split_k = 1  # blocks of a cluster that share the k of a tile

    def complaints(self) -> Iterator[str]:
        if self.tile_m not in (64, 128) or self.tile_n not in (64, 128):
            yield "tile_m and tile_n are 64 or 128"
        if self.stages < 2:
            yield "one stage is copied while another is read: 2 or more"

    @property
    def threads(self) -> int:
        return self.tile_m * self.tile_n // WARP_TILE

    @property
    def tile_k(self) -> int:
        return TILE_K

    @property
    def stage_bytes(self) -> int:
        return PARTS * (self.tile_m + self.tile_n) * LINE_BYTES

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, in whose place the warps put their parts of the result in the end."""
        return max(self.stages * self.stage_bytes, self.threads // 32 * STORE_BYTES)

    def accumulator_bytes(self, dtype: str) -> int:
        return 3 * WARP_TILE * 4

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n} stages {self.stages}"


def make_kernel(
    config: Config,
    dtype: str,
    scheme_name: str,
    a_innermost: str,
    b_innermost: str,
    stored: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and one layout, as a Python function to compile.

    Args:
        scheme_name: a key of `emulation.SCHEMES`, one of two float16 parts.
        a_innermost, b_innermost: layout of the parts: "k" (K-major) or "mn" (MN-major).
        stored: triangles of a symmetric result that are written; "" for another result.
        epilogue: a `Fusion`, whose operands end with the buffers of row factors, column factors and
            the flag of validity_check.
    """
    from numba import cuda, float32, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        add_scaled,
        commit_copies,
        global_address,
        shared_address,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.line_tiles import make_line_tile
    from dxgemm.handwritten.parts.mma import mma_tile
    from dxgemm.handwritten.parts.scale_back import make_scale_back
    from dxgemm.handwritten.parts.tile_order import make_tile_map
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range
    from dxgemm.handwritten.parts.wgmma_store import make_store_tile

    scheme = SCHEMES[scheme_name]
    shift = float(2.0**-scheme.shift)
    tile_m, tile_n, stages, threads = config.tile_m, config.tile_n, config.stages, config.threads
    a_is_k_major, b_is_k_major = a_innermost == "k", b_innermost == "k"
    left = make_line_tile(
        "k16" if a_is_k_major else "x16", "left", tile_m, WARP_TILE, threads, ITEM_BYTES
    )
    right = make_line_tile(
        "k16" if b_is_k_major else "x16", "right", tile_n, WARP_TILE, threads, ITEM_BYTES
    )
    _, a_first, a_place, start_a, _, _, a_lane, read_a, a_xor, a_add, _ = left
    _, b_first, b_place, start_b, _, _, b_lane, read_b, b_xor, b_add, _ = right
    a_tile, b_tile = tile_m * LINE_BYTES, tile_n * LINE_BYTES  # bytes of a part
    b_start, stage_bytes = PARTS * a_tile, config.stage_bytes
    ring_bytes = stages * stage_bytes
    warps_n = tile_n // WARP_TILE
    halves = WARP_TILE // 16  # of a warp's rows, and of its columns
    sums, sums_m = WARP_TILE * WARP_TILE // 32, WARP_TILE // 8 * 4
    chunk_items = CHUNK_BYTES // ITEM_BYTES
    row_factors = len(epilogue.operands) - 3  # its place in `extra`
    col_factors, invalid = row_factors + 1, row_factors + 2
    locate, _ = make_tile_map(tile_m, tile_n, SWIZZLE_ROWS, stored)
    scale_back = make_scale_back(WARP_TILE)
    allows_vectors, store_tile = make_store_tile(
        WARP_TILE, "float32", True, False, epilogue, stored=stored, commutes=False
    )

    @gemm_kernel
    def emulated_float32_tile_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = shared_address(cuda.shared.array(0, float32, alignment=1024))
        flag, _ = extra[invalid]
        if flag[0] != 0:
            return

        # --- This block's tile, this thread's place ---
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        block: int32 = cuda.blockIdx.x
        matrix, row, col = locate(block, tiles_m, tiles_n)
        tiles: int32 = (k + TILE_K - 1) // TILE_K
        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % 32
        warp: int32 = thread // 32
        warp_row: int32 = warp // warps_n * WARP_TILE
        warp_col: int32 = warp % warps_n * WARP_TILE

        # Lines of parts are filled up to 16 bytes; those of hi come before those of lo.
        if a_is_k_major:
            a_x_step = (k + chunk_items - 1) // chunk_items * CHUNK_BYTES
            a_k_step, a_part = int64(ITEM_BYTES), m * a_x_step
        else:
            a_k_step = (m + chunk_items - 1) // chunk_items * CHUNK_BYTES
            a_x_step, a_part = int64(ITEM_BYTES), k * a_k_step
        if b_is_k_major:
            b_x_step = (k + chunk_items - 1) // chunk_items * CHUNK_BYTES
            b_k_step, b_part = int64(ITEM_BYTES), n * b_x_step
        else:
            b_k_step = (n + chunk_items - 1) // chunk_items * CHUNK_BYTES
            b_x_step, b_part = int64(ITEM_BYTES), k * b_k_step
        a_x, a_k = a_first(thread)
        b_x, b_k = b_first(thread)
        a_source = global_address(a.data) + ((row + a_x) * a_x_step + a_k * a_k_step)
        b_source = global_address(b.data) + ((col + b_x) * b_x_step + b_k * b_k_step)
        if a.batch != 0:
            a_source += matrix * PARTS * a_part
        if b.batch != 0:
            b_source += matrix * PARTS * b_part
        a_target: int32 = smem + a_place(a_x, a_k)
        b_target: int32 = smem + b_start + b_place(b_x, b_k)
        a_x_left: int32 = min(m - row, tile_m) - a_x
        b_x_left: int32 = min(n - col, tile_n) - b_x
        a_k_left: int32 = k - a_k
        b_k_left: int32 = k - b_k
        write: int32 = 0
        next_write: int32 = 0

        def start_tile():
            """Start the copies of the next tile of all parts."""
            nonlocal write, a_source, b_source, a_k_left, b_k_left
            for part in static_range(PARTS):
                start_a(
                    int32(a_target + write + part * a_tile), a_source + part * a_part,
                    a_x_step, a_k_step, a_x_left, a_k_left,
                )  # fmt: skip
                start_b(
                    int32(b_target + write + part * b_tile), b_source + part * b_part,
                    b_x_step, b_k_step, b_x_left, b_k_left,
                )  # fmt: skip
            a_source += TILE_K * a_k_step
            b_source += TILE_K * b_k_step
            a_k_left -= TILE_K
            b_k_left -= TILE_K
            commit_copies()
            write += stage_bytes
            if write == ring_bytes:
                write = 0

        # --- Prologue: all stages but one are on their way ---
        for _ in range(stages - 1):
            start_tile()
        a_lane_x, a_lane_k = a_lane(lane)
        b_lane_x, b_lane_k = b_lane(lane)
        a_from: int32 = smem + a_place(int32(warp_row + a_lane_x), a_lane_k)
        b_from: int32 = smem + b_start + b_place(int32(warp_col + b_lane_x), b_lane_k)
        wait_copies(stages - 2)
        cuda.syncthreads()
        read: int32 = 0
        a_next, b_next = (), ()  # fragments of hi, then of lo
        for i in static_range(PARTS * halves):
            a_next = a_next + read_a(
                int32(a_from ^ a_xor[0][i % halves]), a_add[0][i % halves] + i // halves * a_tile
            )
            b_next = b_next + read_b(
                int32(b_from ^ b_xor[0][i % halves]), b_add[0][i % halves] + i // halves * b_tile
            )
        total = zeros(float32, sums)

        # --- Main loop: each step reads the fragments of the next one, across tiles too ---
        for _ in range(tiles):
            next_write += stage_bytes
            if next_write == ring_bytes:
                next_write = 0
            small = zeros(float32, sums)
            for step in static_range(STEPS):
                a_frag, b_frag = a_next, b_next
                if step == 0:
                    start_tile()
                if step == STEPS - 1:
                    wait_copies(stages - 2)
                    cuda.syncthreads()
                    read = next_write
                a_next, b_next = (), ()
                for i in static_range(PARTS * halves):
                    a_next = a_next + read_a(
                        int32((a_from ^ a_xor[(step + 1) % STEPS][i % halves]) + read),
                        a_add[(step + 1) % STEPS][i % halves] + i // halves * a_tile,
                    )
                    b_next = b_next + read_b(
                        int32((b_from ^ b_xor[(step + 1) % STEPS][i % halves]) + read),
                        b_add[(step + 1) % STEPS][i % halves] + i // halves * b_tile,
                    )
                a_hi, a_lo = a_frag[: 4 * halves], a_frag[4 * halves :]
                b_hi, b_lo = b_frag[: 4 * halves], b_frag[4 * halves :]
                large = mma_tile("float16", zeros(float32, sums), a_hi, b_hi)
                small = mma_tile("float16", small, a_hi, b_lo)
                small = mma_tile("float16", small, a_lo, b_hi)
                total = add_scaled(total, large, float32(1))
            total = add_scaled(total, small, float32(shift))

        # --- Epilogue: 16 rows of a warp at a time, through its own part of shared memory ---
        wait_copies(0)
        cuda.syncthreads()
        has_vectors = allows_vectors(m, n, beta, c, out)
        chunk_smem: int32 = smem + warp * STORE_BYTES
        top: int32 = row + warp_row
        first_col: int32 = col + warp_col
        a_factors, _ = extra[row_factors]
        b_factors, _ = extra[col_factors]
        a_at = int64(top + lane // 4)
        b_at = int64(first_col + lane % 4 * 2)
        if a.batch != 0:
            a_at += matrix * ((m + PADDING - 1) // PADDING * PADDING)
        if b.batch != 0:
            b_at += matrix * ((n + PADDING - 1) // PADDING * PADDING)
        for i in static_range(halves):
            scaled = scale_back(
                total[i * sums_m : (i + 1) * sums_m], a_factors[a_at + 16 * i],
                a_factors[a_at + 16 * i + 8], b_factors, b_at,
            )  # fmt: skip
            store_tile(
                scaled, chunk_smem, lane, matrix, int32(top + 16 * i), first_col, m, n,
                has_vectors, alpha, beta, c, out, extra,
            )  # fmt: skip

    return emulated_float32_tile_kernel


KERNEL = replace(
    emulated_float32.KERNEL,
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=64, stages=3),
        Config(tile_m=128, tile_n=64, stages=2),
        Config(tile_m=64, tile_n=64, stages=2),
    ),
    only_arch=None,
    minimum_arch=80,
    tensor_maps=no_maps,
    tensor_map_names=(),
    is_persistent=False,
    reductions=Reductions.NONE,
)
