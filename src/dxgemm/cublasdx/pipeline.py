"""cuBLASDx pipelines: NVIDIA's device functions multiply, the kernel finds and stores the tiles.

Idea: a block gets the sums of its tile from cuBLASDx in registers, and does the rest itself. Each
block makes the pipeline object for its own tile inside the kernel: nothing is allocated or launched
beforehand, and a block's share of k, its matrix of a batch and its place at an edge are just other
pointers and sizes.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch.
Constraints: the pipeline reads whole tiles and checks no bounds. So tiles at the edges of m and n
are moved inwards until they fit, and store only the elements that no other tile stores; the rest of
k after the last whole tile_k is added by plain loads. A matrix smaller than a tile, or without unit
strides, is multiplied by these plain loads alone: right, but slow. Compute capability 8.0, for
cp.async, and 9.0 for clusters.
Source: cuBLASDx 0.6 documentation, "Pipelining"; mathdx.py for the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dxgemm.compiler import compute_capability
from dxgemm.cublasdx.function_store import obtain_fitting_functions
from dxgemm.cublasdx.mathdx import ITEM_BYTES, Descriptor, DeviceFunctions
from dxgemm.cublasdx.result_tile import USUAL_BAND_M
from dxgemm.cublasdx.warp_turns import take_turns
from dxgemm.errors import BuildError
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, never
from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode
from dxgemm.handwritten.parts.tile_store import row_bytes, tile_bytes

HALF = ("float16", "bfloat16")
SUMS = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
}
BARRIER_BYTES = 16  # bytes of a stage beside its tiles
TENSOR_MEMORY_BYTES = 4  # bytes beside the stages that cuBLASDx wants on compute capability 10.x
TMA_CAPABILITY = 90  # least compute capability, times ten, with TMA
MOST_OBJECT_BYTES = 128  # size of pointers, extents and strides; larger objects have tensor maps


@dataclass(frozen=True)
class Config(BaseConfig):
    """Config of a block's tile and its pipeline.

    Attributes:
        dtype: dtype that the config is for.
        tile_m, tile_n, tile_k: extents of the block's tile.
        threads: threads per block.
        stages: k tiles in shared memory.
        split_k: blocks, of one cluster, that share a tile of the result.
        blocks_per_sm: minimum resident blocks per SM (`__launch_bounds__`).
        band_m: threadblock swizzle: rows of tiles per band, whose tiles share operands in L2.
    """

    dtype: str
    tile_m: int
    tile_n: int
    tile_k: int
    threads: int
    stages: int
    split_k: int = 1
    blocks_per_sm: int = 1
    band_m: int = USUAL_BAND_M

    least_threads: ClassVar[int] = 32
    dynamic_smem: ClassVar[bool] = True

    def complaints(self) -> Iterator[str]:
        if self.tile_m % 32 or self.tile_n % 32 or min(self.tile_m, self.tile_n) < 32:
            yield "tile_m and tile_n must be multiples of 32"
        for name in ("tile_k", "threads", "split_k", "band_m"):
            extent = getattr(self, name)
            if extent < 1 or extent & (extent - 1):
                yield f"{name} must be a power of two"
        if self.stages < 2:
            yield "one stage is copied while another is read: 2 or more"
        if self.split_k > 8:
            yield "a portable cluster has at most 8 blocks"
        if self.smem_bytes(self.dtype) > 227 * 1024:
            yield f"{self.smem_bytes(self.dtype)} bytes of shared memory"

    @property
    def cluster(self) -> int:
        return self.split_k

    @property
    def least_sizes(self) -> dict[str, int]:
        """Smallest m, n and k that fill the pipeline; smaller problems use slow plain loads."""
        stages_k = self.stages * self.split_k * self.tile_k
        return {"m": self.tile_m, "n": self.tile_n, "k": stages_k}

    def min_blocks(self, dtype: str) -> int:
        return self.blocks_per_sm

    def stage_bytes(self, dtype: str) -> int:
        """Bytes of the tiles of a and b in a stage."""
        return (self.tile_m + self.tile_n) * self.tile_k * ITEM_BYTES[dtype]

    def pipeline_bytes(self, dtype: str) -> int:
        """Bytes of the pipeline in shared memory: all stages, then their barriers."""
        return self.stages * (self.stage_bytes(dtype) + BARRIER_BYTES) + TENSOR_MEMORY_BYTES

    def pipeline_start(self, dtype: str) -> int:
        """Offset of the pipeline, such that its barriers come after the tile of the result.

        Copies arrive at a barrier on their own, maybe after all threads have passed it.
        """
        behind = tile_bytes(self.tile_m, self.tile_n, SUMS[dtype])
        behind -= self.stages * self.stage_bytes(dtype)
        return max(0, -(-behind // 1024) * 1024)

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the pipeline, whose stages the tile of the result later replaces."""
        return self.pipeline_start(dtype) + self.pipeline_bytes(dtype)

    def accumulator_bytes(self, dtype: str) -> int:
        if dtype != self.dtype:
            return 2**31  # it is no config of that dtype
        return self.tile_m * self.tile_n // self.threads * np.dtype(SUMS[dtype]).itemsize

    def __str__(self) -> str:
        split = f" split {self.split_k}" if self.split_k > 1 else ""
        band = f" band {self.band_m}" if self.band_m != USUAL_BAND_M else ""
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k} threads {self.threads} "
            f"stages {self.stages}{split}{band}"
        )


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Layouts of a and b, "16" if 16 bytes can be copied at once, and the dtype of the result.

    The dtype is left out if it is that of the sums. With split-K it is followed by "sliced".
    """
    layouts = operand_layouts(problem)
    if problem.slices > 1:
        return (*layouts, SUMS[problem.dtype], "sliced")
    return layouts if problem.out_dtype == SUMS[problem.dtype] else (*layouts, problem.out_dtype)


def operand_layouts(problem: Any) -> tuple[str, str, str]:
    """Layouts of a and b, and "16" if 16 bytes can be copied at once, or else "item"."""
    if problem.k == 0:
        return "row", "row", "16"
    a_mode, b_mode = operand_mode(problem, "a"), operand_mode(problem, "b")
    # A tile that is moved inwards begins at m - tile_m, or n - tile_n: a multiple of 16 bytes?
    width = VECTOR_BYTES // ITEM_BYTES[problem.dtype]
    is_vector = a_mode.endswith("16") and b_mode.endswith("16")
    if a_mode.startswith("col"):
        is_vector = is_vector and problem.m % width == 0
    if b_mode.startswith("row"):
        is_vector = is_vector and problem.n % width == 0
    return (a_mode.rstrip("16"), b_mode.rstrip("16"), "16" if is_vector else "item")


def descriptor(
    config: Config,
    dtype: str,
    a_direction: str,
    b_direction: str,
    alignment: str,
    *out_dtype: str,
    arch: str,
) -> Descriptor:
    """Descriptor of the device functions of a kernel; several kernels may share one."""
    return Descriptor(
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        tile_k=config.tile_k,
        threads=config.threads,
        stages=config.stages,
        dtype=dtype,
        accumulator=SUMS[dtype],
        a_arrangement=a_direction,
        b_arrangement=b_direction,
        alignment=_copy_bytes(dtype, a_direction, b_direction, alignment, arch),
        arch=arch,
    )


def _copy_bytes(dtype: str, a_direction: str, b_direction: str, alignment: str, arch: str) -> int:
    """Bytes that are copied at once.

    On GPUs with TMA, cuBLASDx takes it for half precision and for K-major int8, unless addresses
    are multiples of 8 bytes only.
    """
    if alignment == "item":
        return ITEM_BYTES[dtype]
    is_k_major = (a_direction, b_direction) == ("row", "col")
    takes_tma = is_k_major if dtype == "int8" else dtype in HALF
    has_tma = compute_capability(arch) >= TMA_CAPABILITY
    return VECTOR_BYTES // 2 if takes_tma and has_tma else VECTOR_BYTES


def device_functions(config: Config, dtype: str, *variant: str, arch: str) -> DeviceFunctions:
    """Device functions of a kernel, from disk or built."""
    what = descriptor(config, dtype, *variant, arch=arch)
    functions = obtain_fitting_functions(what, config.pipeline_bytes(dtype))
    if functions.device_pipeline.size > MOST_OBJECT_BYTES:
        raise BuildError(
            f"cuBLASDx's pipeline object for {config}, {dtype} {' '.join(variant)} takes "
            f"{functions.device_pipeline.size} bytes: it holds tensor maps, which a kernel cannot "
            "make for itself."
        )
    return functions


def make_kernel(
    config: Config,
    dtype: str,
    a_direction: str,
    b_direction: str,
    alignment: str,
    out_dtype: str | None = None,
    slicing: str = "",
    *,
    functions: DeviceFunctions,
    epilogue: Any = None,
) -> Callable[..., None]:
    """Make the kernel of one config and variant, as a Python function to compile and link.

    With split-K, the grid has a y for every slice, and out one batch of matrices per slice.
    """
    from numba import cuda, int32, int64, types

    from dxgemm.cublasdx.intrinsics import make_intrinsics, meet_cluster
    from dxgemm.cublasdx.result_tile import make_store_result
    from dxgemm.handwritten.parts.intrinsics import divide, global_address, shared_address, zeros
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    is_sliced = slicing == "sliced"
    sums, item_bytes = SUMS[dtype], ITEM_BYTES[dtype]
    scalar = np.dtype(sums).type
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    stages, split_k, band_m = config.stages, config.split_k, config.band_m
    is_a_row, is_b_row = a_direction == "row", b_direction == "row"
    elements = functions.fragment_size
    smem_row_bytes = row_bytes(tile_n, sums)
    start = config.pipeline_start(dtype)
    intrinsics = make_intrinsics(functions, getattr(types, sums), dtype, start)
    multiply_tile, _, add_products, put_tile, add_tile = intrinsics
    store_result = make_store_result(config, sums, out_dtype or sums, epilogue)

    def pipeline_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = cuda.shared.array(0, np.uint8, alignment=1024)

        # This block's tile of the result, and its share of k. This is `result_tile.make_find_tile`,
        # written out: a call of it costs float32's main loop 5 %, since the compiler then keeps the
        # accumulators in other registers and moves them more.
        rank, block = int32(cuda.blockIdx.x % split_k), int32(cuda.blockIdx.x // split_k)
        tiles_m = int32((m + tile_m - 1) // tile_m)
        tiles_n = int32((n + tile_n - 1) // tile_n)
        matrix, band = int32(0), int32(0)
        if batch > 1:
            matrix = divide(block, int32(tiles_m * tiles_n))
            block = int32(block - matrix * int32(tiles_m * tiles_n))
        if tiles_m > band_m:
            band = divide(block, int32(band_m * tiles_n))
            block = int32(block - band * int32(band_m * tiles_n))
        band_rows = min(int32(tiles_m - band * band_m), int32(band_m))
        col_tile = divide(block, band_rows)
        row_tile = int32(block - col_tile * band_rows + band * band_m)
        tile_row, tile_col = row_tile * tile_m, col_tile * tile_n

        # First row and column that the pipeline reads: at an edge, further inwards than the tile.
        first_row, first_col = min(tile_row, m - tile_m), min(tile_col, n - tile_n)
        is_whole = first_row >= 0 and first_col >= 0
        if is_a_row:
            a_stride, is_whole = a.row, is_whole and a.col == 1
        else:
            a_stride, is_whole = a.col, is_whole and a.row == 1
        if is_b_row:
            b_stride, is_whole = b.row, is_whole and b.col == 1
        else:
            b_stride, is_whole = b.col, is_whole and b.row == 1
        first_row, first_col = max(first_row, 0), max(first_col, 0)
        a_first = matrix * a.batch + first_row * a.row
        b_first = matrix * b.batch + first_col * b.col

        # The pipeline fills all its stages, however short its k is; so no block has fewer k tiles.
        if is_sliced:
            part, parts = int32(cuda.blockIdx.y), int32(cuda.gridDim.y)
            matrix = int32(part * batch + matrix)  # of the result, from here on
        else:
            part, parts = rank, int32(split_k)
        k_tiles = int32(k // tile_k)
        if not is_whole or k_tiles < stages * parts:
            k_tiles = int32(0)
        # From tile k_tiles * part // parts on; that product may need more than 32 bits.
        share = divide(k_tiles, parts)
        others = int32(k_tiles - share * parts)
        first_tile = int32(share * part + divide(int32(others * part), parts))
        end_tile = int32(share * (part + 1) + divide(int32(others * (part + 1)), parts))
        k_start, k_end = first_tile * tile_k, end_tile * tile_k
        depth = k_end - k_start

        # Main loop, in cuBLASDx.
        acc = zeros(scalar, elements)
        if depth > 0:
            acc = multiply_tile(
                smem, depth,
                global_address(a.data) + item_bytes * (a_first + k_start * a.col), tile_m, a_stride,
                global_address(b.data) + item_bytes * (b_first + k_start * b.row), tile_n, b_stride,
            )  # fmt: skip

        # Epilogue: the tile goes through shared memory, whose rows are stored 16 bytes at a time.
        cuda.syncthreads()
        tile_smem = shared_address(smem)
        skipped_rows, skipped_cols = int32(tile_row - first_row), int32(tile_col - first_col)
        put_tile(tile_smem, smem_row_bytes, acc, alpha, skipped_rows, skipped_cols)

        # The rest of k is added in shared memory too. If it were added to the sums in registers,
        # the main loop would keep these in worse ones: 5 % in float32.
        k_done = int64(k_tiles) * tile_k
        if part == parts - 1 and k_done < k:
            last_row = int32(min(m - 1 - first_row, tile_m - 1))
            last_col = int32(min(n - 1 - first_col, tile_n - 1))
            a_line = global_address(a.data) + item_bytes * a_first
            b_line = global_address(b.data) + item_bytes * b_first
            a_step, b_step = item_bytes * a.col, item_bytes * b.row
            rest = zeros(scalar, elements)
            for kk in range(k_done, k):
                rest = add_products(
                    rest, a_line + kk * a_step, item_bytes * a.row, last_row,
                    b_line + kk * b_step, item_bytes * b.col, last_col,
                )  # fmt: skip
            add_tile(tile_smem, smem_row_bytes, rest, alpha, skipped_rows, skipped_cols)
        cuda.syncthreads()
        if split_k > 1:
            meet_cluster()
        store_result(tile_smem, rank, matrix, tile_row, tile_col, m, n, beta, c, out, extra)
        if split_k > 1:
            meet_cluster()  # until then, others read this block's shared memory

    return gemm_kernel(pipeline_kernel)


KERNEL = Kernel(
    make_kernel=make_kernel,
    # Two deep stages beat four shallow ones in float64: between two k tiles of a block its warps
    # wait for each other, and no fragment of the next tile is in registers yet. 96 x 96 is for
    # sizes whose 64 x 128 tiles leave a last wave nearly empty: m = n = 1536 or 3072 on 132 SMs. A
    # band of 32 rows of 64 x 128 makes the resident tiles nearly a square, which reads the least:
    # 16384^3 takes 0.91 of the time of 8 rows. Other sizes, and float32, are not memory bound.
    configs=(
        Config("float64", 64, 128, 32, threads=128, stages=2, blocks_per_sm=2, band_m=32),
        Config("float64", 64, 128, 32, threads=128, stages=2, blocks_per_sm=2),
        Config("float64", 64, 128, 32, threads=128, stages=2, split_k=2, blocks_per_sm=2),
        Config("float64", 96, 96, 32, threads=128, stages=2, blocks_per_sm=2),
        Config("float64", 64, 64, 32, threads=128, stages=4, split_k=2),
        Config("float64", 128, 64, 16, threads=128, stages=4, blocks_per_sm=2),
        Config("float32", 128, 256, 16, threads=256, stages=3),
        Config("float32", 64, 128, 16, threads=128, stages=4, blocks_per_sm=3),
        Config("float32", 64, 128, 16, threads=128, stages=4, split_k=2, blocks_per_sm=3),
        Config("float32", 64, 128, 16, threads=128, stages=4, split_k=8, blocks_per_sm=3),
        Config("float16", 128, 128, 32, threads=128, stages=4, blocks_per_sm=2),
        Config("bfloat16", 128, 128, 32, threads=128, stages=4, blocks_per_sm=2),
        Config("int8", 128, 128, 64, threads=128, stages=4, blocks_per_sm=2),
    ),
    dtypes=("float64", "float32", "float16", "bfloat16", "int8"),
    minimum_arch=80,
    variant=variant,
    slices_k=True,
    device_functions=device_functions,
    descriptor=descriptor,
    commutes=never,  # nothing is known of the order in which the library adds
    finish_cubin=take_turns,
)
