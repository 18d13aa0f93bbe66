"""Complex128 on tensor cores, read in place as pairs of real and imaginary parts.

Idea: grown from `tensor_core`. A complex element is 16 bytes, what a thread copies and reads at a
time in any layout: no operand is copied or transposed beforehand. An instruction multiplies 16 x 8
by 8 x 8 parts, which are 8 x 4 by 4 x 8 complex elements: of an element of a its left operand holds
[re, -im] above [im, re], of an element of b its right operand re above im. All of them are what a
lane has read itself. A conjugate changes signs.
Layout: a (m, k), b (k, n), c and out (m, n) of complex elements, any strides, any batch. alpha and
beta are the real and the imaginary part of the factor of the product, the extra arguments those of
the factor of c, which is not read if both are 0. split_k blocks of a cluster share a tile, each
with its share of k; then each adds up its share of the tile, reading the others' shared memory in a
fixed order.
Constraints: compute capability 8.0, whose tensor cores take float64; split_k needs the clusters of
9.0. All extents are powers of two, see `Config`. Edges are predicated: elements outside count as
zero and are not written.
Source: PTX ISA, "mma.m16n8k8", "mma.m8n8k4", "cp.async", "mapa".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.frames.ring import make_ring_kernel
from dxgemm.handwritten.parts.batch_tiles import resident_blocks
from dxgemm.handwritten.parts.complex_mma import (
    ITEM_BYTES,
    MMA_COLS,
    MMA_ROWS,
    PERMUTED,
    make_multiply,
    make_operand_tile,
    make_result,
)
from dxgemm.handwritten.parts.configs import MmaRingConfig
from dxgemm.handwritten.parts.kernel import Kernel, never
from dxgemm.handwritten.parts.operands import operand_mode
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.ring import make_load


@dataclass(frozen=True)
class Config(MmaRingConfig):
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

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        for name, extent in vars(self).items():
            if name != "stages" and extent & (extent - 1):
                yield f"{name} must be a power of two"
        if self.warp_m % MMA_ROWS or self.warp_n % MMA_COLS:
            yield f"instructions compute {MMA_ROWS} x {MMA_COLS}"
        if self.tile_k < PERMUTED:
            yield f"lines of shared memory are permuted by {PERMUTED} elements"
        longer, shorter = max(self.tile_m, self.tile_n), min(self.tile_m, self.tile_n)
        if not longer <= self.threads <= shorter * self.tile_k:
            yield f"{self.threads} threads cannot share the copies evenly"
        if self.split_k > min(8, self.warp_m * self.warp_n // 32):
            yield "a portable cluster has at most 8 blocks, with sums for each"

    @property
    def cluster(self) -> int:
        return self.split_k

    @property
    def line_bytes(self) -> int:
        return self.tile_k * ITEM_BYTES

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


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Names of the conjugated operands, layouts of a and b; their triangles, if there are any."""
    a_mode, b_mode = (operand_mode(problem, name).removesuffix("16") for name in "ab")
    ranges = (problem.k_ranges,) if problem.k_ranges else ()
    return problem.conjugates, a_mode, b_mode, *ranges


def make_kernel(
    config: Config, dtype: str, conjugates: str, a_mode: str, b_mode: str, ranges: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile.

    Args:
        config, dtype: config, and "complex128".
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
        a_mode, b_mode: see `variant`.
        ranges: triangles of a and b, see `k_ranges`.
        epilogue: a `Fusion` that ends with two numbers.
    """
    tile_k, threads = config.tile_k, config.threads
    tiles = (
        make_operand_tile(a_mode == "row", config.tile_m, tile_k, threads),
        make_operand_tile(b_mode == "col", config.tile_n, tile_k, threads),
    )
    load = make_load(config, tile_k, ITEM_BYTES, tiles)
    return make_ring_kernel(
        tile_k,
        make_place(config, tile_k, ranges=ranges),
        load.fill,
        make_multiply(config, tiles, load, conjugates),
        make_result(config, dtype, epilogue),
    )


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
    takes_k_ranges=True,
    commutes=never,
    order_of_sums="complex mma",
)
