"""The frame of kernels for few rows or columns: a ring is filled, a warpgroup computes out of it.

The time is that of reading the larger operand once. So it is the left factor, x, of whose rows a
block takes 64; the few rows or columns are those of the right one, y. A stage holds several panels,
each 128 bytes of k, so that memory is read in long runs, and a block's stages together hide its
latency. The blocks of a thread-block cluster share the k of a tile and add up through distributed
shared memory, in the order of their ranks.

A panel of x is 64 rows of 128 bytes, one of y as many rows as the tile has columns; if y is
MN-major, its rows are as wide as the tile has columns, and so is TMA's swizzle of them. One thread
has TMA fill the ring, or a kernel brings a producer of its own.
Source: NVIDIA, "Hopper Tuning Guide"; CUTLASS's `KernelTmaWarpSpecialized`, with operands swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from dxgemm.handwritten.parts import wgmma_layouts
from dxgemm.handwritten.parts.configs import SMEM_BYTES_PER_BLOCK
from dxgemm.handwritten.parts.kernel import BaseConfig, tiles_of
from dxgemm.handwritten.parts.skinny_store import make_store
from dxgemm.handwritten.parts.tensor_map import ITEM_BYTES, TensorMap, operand_of
from dxgemm.handwritten.parts.wgmma_ring import (
    ROW_BYTES,
    WARPGROUP,
    make_after,
    make_corner,
    make_fetch_operand,
    make_init_ring,
)

TILE = 64  # rows of the left factor
SUMS_ROW = (TILE + 4) * 4  # bytes of a column of sums in shared memory, padded against conflicts
ADDED_DTYPES = {"int8": "int32"}  # dtype of sums, where it is not float32


class SkinnyConfig(BaseConfig):
    """Base of configs whose tile is TILE rows of the left factor by `few` columns of the right one.

    A subclass has `few`, and `split_k`, the blocks of a cluster that share the k of a tile.
    """

    few: int
    split_k: int

    dynamic_smem = True
    partial_tiles: ClassVar[int] = 1  # that a block adds up at the end

    @property
    def cluster(self) -> int:
        return self.split_k

    @property
    def tile_m(self) -> int:
        """Rows of a tile, or columns if the result has few columns."""
        return self.few

    @property
    def tile_n(self) -> int:
        return TILE

    @property
    def sums_bytes(self) -> int:
        return self.few * SUMS_ROW


@dataclass(frozen=True)
class Config(SkinnyConfig):
    """Tile of TILE rows of the left factor by `few` columns of the right one.

    Attributes:
        panels: k of a stage, in multiples of 128 bytes.
        split_k: blocks of a cluster that share the k of a tile.
    """

    few: int
    panels: int
    stages: int
    split_k: int = 1

    def complaints(self) -> Iterator[str]:
        if self.few not in (8, 16, 32, 64):
            yield "a tile has 8, 16, 32 or 64 columns, as many as are a swizzle's width"
        if self.few * TILE % self.split_k:
            yield "the blocks of a cluster add up equal shares of a tile"
        needed = self.smem_bytes("float32")
        if needed > SMEM_BYTES_PER_BLOCK:
            yield f"{needed} bytes of shared memory, more than {SMEM_BYTES_PER_BLOCK}"
        if self.partial_tiles * self.sums_bytes > self.stages * self.stage_bytes:
            yield "its sums do not fit in the place of the stages"

    @property
    def producers(self) -> int:
        """Threads that fill the ring; of those for TMA one does."""
        return 32

    @property
    def threads(self) -> int:
        return WARPGROUP + self.producers

    def tile_k(self, dtype: str) -> int:
        """k of a stage."""
        return self.panels * ROW_BYTES // ITEM_BYTES[dtype]

    @property
    def stage_bytes(self) -> int:
        return self.panels * (TILE + self.few) * ROW_BYTES

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, aligned to 1024, of barriers, of the sums that come from a cluster."""
        return 1024 + self.stages * (self.stage_bytes + 16) + self.sums_bytes * (self.split_k > 1)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.partial_tiles * TILE * self.few // WARPGROUP * 4

    def __str__(self) -> str:
        tile = f"{self.few}x{TILE} panels {self.panels} stages {self.stages}"
        return tile + (f" split {self.split_k}" if self.split_k > 1 else "")


class Producer(NamedTuple):
    """Device function of the threads behind the warpgroup.

    Attributes:
        produce: (thread, smem, full, empty, a, b, matrix, x, y, x_count, y_count, k, depth, left)
            fills a stage for each that is left, from k = depth on.
        arrivals: arrivals that fill a stage.
    """

    produce: Callable[..., None]
    arrivals: int


class Consumer(NamedTuple):
    """Device functions of the warpgroup, of 128 threads.

    Attributes:
        begin: () -> a thread's sums, of zeros.
        consume: (sums, smem, full, empty, thread, stages to come) -> sums, after all of them.
        put: (sums, smem, thread): write them to shared memory, [partial tile][column][row].
        arrivals: arrivals that free a stage.
    """

    begin: Callable[..., Any]
    consume: Callable[..., Any]
    put: Callable[..., None]
    arrivals: int


def large_operand(problem: Any) -> str:
    """Operand that is the left factor: "b" for few rows of the result, "a" for few columns."""
    return "b" if problem.m <= problem.n else "a"


def result_tile(config: Config, problem: Any) -> tuple[int, int]:
    """Rows and columns of a block's tile of the result."""
    return (config.few, TILE) if large_operand(problem) == "b" else (TILE, config.few)


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: a cluster for each tile of each matrix of the result."""
    blocks: int = problem.batch * tiles_of(problem, *result_tile(config, problem)) * config.split_k
    return blocks


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """The left factor, then as `wgmma` has it."""
    return large_operand(problem), *wgmma_layouts.variant(config, problem)


def tensor_maps(config: Config, problem: Any) -> tuple[TensorMap | None, ...]:
    """The maps of a and b, with the boxes that the producer asks for; None if nothing is read."""
    if problem.k == 0:
        return None, None
    maps, panel_k = [], ROW_BYTES // ITEM_BYTES[problem.dtype]
    for name in ("a", "b"):
        operand = operand_of(problem, name)
        box_along = config.few
        if name == large_operand(problem):
            box_along = TILE if operand.innermost == "k" else panel_k
        maps.append(operand.tensor_map(problem.dtype, box_along, panel_k))
    return tuple(maps)


def make_find_tile(few: int, split_k: int, large_is_a: bool) -> Callable[..., Any]:
    """A device function: (m, n) -> a block's rank in its cluster, its matrix, its tile.

    Of the tile it returns the sizes of x and y in the matrix, and where the tile begins in them.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide
    from dxgemm.handwritten.parts.unroll import unroll

    def find_tile(m, n):
        if large_is_a:
            x_count: int32 = m
            y_count: int32 = n
        else:
            x_count = n
            y_count = m
        tiles_x: int32 = (x_count + TILE - 1) // TILE
        tiles_y: int32 = (y_count + few - 1) // few
        block: int32 = cuda.blockIdx.x
        rank: int32 = block % split_k
        block = block // split_k
        matrix = divide(block, tiles_x * tiles_y)
        tile: int32 = block - matrix * tiles_x * tiles_y
        row_of_tiles = divide(tile, tiles_x)
        y: int32 = row_of_tiles * few
        x: int32 = (tile - row_of_tiles * tiles_x) * TILE
        return rank, matrix, x_count, y_count, x, y

    return device_function(unroll(find_tile))


def make_add_partial_tiles(config: Any) -> Callable[..., None]:
    """A device function: add up a block's partial tiles, in their order, in place of the first.

    Args:
        config: a `SkinnyConfig`.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, load_shared, store_shared
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    parts, sums_bytes = config.partial_tiles, config.sums_bytes
    elements, threads = config.few * TILE, config.threads

    def add_partial_tiles(smem, thread):
        for element in range(thread, elements, threads):
            place: int32 = smem + element // TILE * SUMS_ROW + element % TILE * 4
            total = load_shared(float32, 1, place, 0)[0]
            for part in static_range(1, parts):
                total = float32(total + load_shared(float32, 1, place, part * sums_bytes)[0])
            store_shared(place, 0, (total,))

    return device_function(unroll(add_partial_tiles))


def make_tma_producer(
    config: Config, dtype: str, large: str, x_innermost: str, y_innermost: str
) -> Producer:
    """The producer of which one thread has TMA fetch panel after panel."""
    from numba import int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.hopper import tensor_map
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    large_is_a = large == "a"
    x_across, y_across = x_innermost == "mn", y_innermost == "mn"
    x_map, y_map = wgmma_layouts.TENSOR_MAPS if large_is_a else wgmma_layouts.TENSOR_MAPS[::-1]
    panels, stage_bytes, tile_k = config.panels, config.stage_bytes, config.tile_k(dtype)
    panel_k = tile_k // panels
    x_panel_bytes, y_panel_bytes = TILE * ROW_BYTES, config.few * ROW_BYTES
    y_smem = panels * x_panel_bytes
    corner, after = make_corner(), make_after(config.stages)
    fetch_x = make_fetch_operand(TILE, panel_k, x_across)

    def produce(
        thread, smem, full, empty, a, b, matrix, x, y, x_count, y_count, k, depth, left
    ):  # fmt: skip
        x_batch, y_batch = (a.batch, b.batch) if large_is_a else (b.batch, a.batch)
        if thread == 0:
            x_matrix: int32 = matrix if x_batch != 0 else 0
            y_matrix: int32 = matrix if y_batch != 0 else 0
            stage: int32 = 0
            parity: int32 = 0
            while left > 0:
                barrier: int32 = full + 8 * stage
                target: int32 = smem + stage * stage_bytes
                hopper.wait_barrier(int32(empty + 8 * stage), int32(parity ^ 1))
                hopper.expect_bytes(barrier, stage_bytes)
                for panel in static_range(panels):
                    at: int32 = depth + panel * panel_k
                    x_at: int32 = target + panel * x_panel_bytes
                    y_at: int32 = target + (y_smem + panel * y_panel_bytes)
                    fetch_x(x_at, barrier, x, at, tensor_map(x_map), x_matrix)
                    y_corner = corner(y_across, y, at, y_matrix)
                    hopper.copy_box(y_at, tensor_map(y_map), barrier, y_corner)
                depth = int32(depth + tile_k)
                left = int32(left - 1)
                stage, parity = after(stage, parity)

    return Producer(device_function(unroll(produce)), arrivals=1)


def make_skinny_kernel(
    make_consumer: Callable[..., Consumer], make_producer: Callable[..., Producer],
    config: Config, dtype: str, large: str, a_innermost: str, b_innermost: str,
    out_dtype: str | None = None, epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config and one layout, as a Python function to compile.

    Args:
        make_consumer: (config, dtype, and for x and y True if MN-major) -> the `Consumer`.
        make_producer: (config, dtype, large, layouts of x and y) -> the `Producer`.
        large: operand that is the left factor, "a" or "b".
        a_innermost, b_innermost: layouts of a and b: "mn" if MN-major, otherwise another name.
    """
    from numba import cuda, int32, uint8

    from dxgemm.handwritten.parts.intrinsics import cluster_arrive, shared_address
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    large_is_a = large == "a"
    innermosts = (a_innermost, b_innermost) if large_is_a else (b_innermost, a_innermost)
    x_across, y_across = (innermost == "mn" for innermost in innermosts)
    few, split_k, stages = config.few, config.split_k, config.stages
    tile_k = config.tile_k(dtype)
    barriers_smem = stages * config.stage_bytes
    buffer_smem = barriers_smem + 16 * stages
    begin, consume, put, frees = make_consumer(config, dtype, x_across, y_across)
    produce, fills = make_producer(config, dtype, large, *innermosts)
    init_ring = make_init_ring(stages, frees, fills)
    partial_tiles = config.partial_tiles
    find_tile = make_find_tile(few, split_k, large_is_a)
    add_partial_tiles = make_add_partial_tiles(config)
    store_tile = make_store(
        TILE, few, config.threads, split_k, large_is_a, SUMS_ROW,
        ADDED_DTYPES.get(dtype, "float32"), out_dtype or dtype, epilogue,
    )  # fmt: skip

    @gemm_kernel
    def skinny_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, its share of k ---
        rank, matrix, x_count, y_count, x, y = find_tile(m, n)
        k_tiles: int32 = (k + tile_k - 1) // tile_k
        first: int32 = k_tiles * rank // split_k
        left: int32 = k_tiles * (rank + 1) // split_k - first
        depth: int32 = first * tile_k

        # --- Prologue: the ring ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + barriers_smem
        empty: int32 = full + 8 * stages
        thread: int32 = cuda.threadIdx.x & 1023
        if thread == 0:
            init_ring(full, empty)
        cuda.syncthreads()
        if split_k > 1:
            cluster_arrive()

        # --- Main loop: the producer, and the consumer, a warpgroup ---
        sums = begin()
        if thread >= WARPGROUP:
            produce(
                int32(thread - WARPGROUP), smem, full, empty, a, b, matrix, x, y, x_count, y_count,
                k, depth, left,
            )  # fmt: skip
        else:
            sums = consume(sums, smem, full, empty, thread, left)
        cuda.syncwarp()
        cuda.syncthreads()

        # --- Epilogue: sums take the place of the stages; a cluster adds up, each block a share ---
        if thread < WARPGROUP:
            put(sums, smem, thread)
        if partial_tiles > 1:
            cuda.syncthreads()
            add_partial_tiles(smem, thread)
        store_tile(
            smem, int32(smem + buffer_smem), rank, thread, matrix, x, y, x_count, y_count, alpha,
            beta, c, out, extra,
        )  # fmt: skip

    return skinny_kernel
