"""The best of the ladder's techniques, with the tile sizes that measured fastest.

Idea: grown from `ping_pong`. A thread keeps up to 16 x 8 elements, so that six 16-byte reads of
shared memory feed 128 multiply-adds; blocks run over the result in groups of tile rows, whose
operands stay in L2; small results are split along k over the blocks of a thread-block cluster, so
that every SM has work; split-K with a workspace serves smaller ones yet (`add_slices`). Of a
symmetric result, half the tiles are computed (`triangle`).
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; compiled for the layouts of a
and b (see `async_tiles`).
Constraints: see `Config`. Tiles need not be powers of two: rows are read 8 bytes at a time where 16
do not divide a thread's, and threads may be left without a share of the copying. Edges are
predicated: tiles inside the operands pay one branch for it. split_k needs the clusters of compute
capability 9.0, cp.async 8.0.
Source: NVIDIA's CUTLASS, "Efficient GEMM in CUDA", for the hierarchy of tiles and the pipelines;
S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance", for the ladder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.frames.ring import make_ring_kernel
from dxgemm.handwritten.parts.async_tiles import copy_modes
from dxgemm.handwritten.parts.block_mask import make_is_dead
from dxgemm.handwritten.parts.configs import LANES_M, LANES_N, RingConfig
from dxgemm.handwritten.parts.fragment import make_lane_corner, thread_fragment
from dxgemm.handwritten.parts.kernel import Kernel, Reductions
from dxgemm.handwritten.parts.operands import ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.thread_mainloop import make_load, make_multiply
from dxgemm.handwritten.parts.tile_store import make_store


@dataclass(frozen=True)
class Config(RingConfig):
    """A `RingConfig` whose tile of the result several blocks may share.

    Attributes:
        split_k: blocks of a cluster that share the k of a tile of the result (cluster split-K).
    """

    split_k: int = 1

    swizzle_rows = 8  # of tiles that are computed together, so that they share what is in L2

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.split_k not in (1, 2, 4, 8):
            yield f"a cluster has 1, 2, 4 or 8 blocks, not {self.split_k}"

    @property
    def cluster(self) -> int:
        return self.split_k

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM: 512 threads where registers allow it, else 256."""
        fragments = 2 * (self.thread_m + self.thread_n) * np.dtype(dtype).itemsize
        threads = 512 if self.accumulator_bytes(dtype) + fragments <= 384 else 256
        return max(threads // self.threads, 1)

    def __str__(self) -> str:
        return super().__str__() + (f" split {self.split_k}" if self.split_k > 1 else "")


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Modes of copying a and b (see `async_tiles`); "sliced" if k is; triangle.

    The latter two are left out where they are empty.
    """
    modes = copy_modes(config, problem)
    slicing = "" if problem.slices == 1 else "sliced"
    if problem.triangle:
        return *modes, slicing, problem.triangle
    return (*modes, slicing) if slicing else modes


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, slicing: str = "", stored: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile.

    If k is sliced, the grid has a y for each slice, and out holds one batch of sums a slice.
    `stored` names the triangles of a symmetric result that are written; it is "" for any other.
    """
    from dxgemm.handwritten.parts.intrinsics import outer_product

    width = VECTOR_BYTES // ITEM_BYTES[dtype]
    # A thread's rows come in vectors, one from each of thread_m / row_width row groups.
    row_width = width if config.thread_m % width == 0 else width // 2
    epilogue, _, is_dead = make_is_dead(epilogue)
    fragment = thread_fragment(
        (config.thread_m, row_width, LANES_M * row_width), (config.thread_n, width, LANES_N * width)
    )
    load = make_load(config, dtype, a_mode, b_mode)
    return make_ring_kernel(
        config.tile_k,
        make_place(config, config.tile_k, stored, slicing == "sliced", is_dead, is_even=True),
        load.fill,
        make_multiply(config, dtype, row_width, load, outer_product),
        make_store(
            config, fragment, make_lane_corner(config, row_width, width), dtype, stored, epilogue
        ),
    )


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(128, 256, 8, 16, 8, stages=4),
        Config(160, 192, 8, 10, 12, stages=4),  # for sizes like 4000 = 25 x 160
        Config(128, 128, 8, 8, 8, stages=4),
        Config(128, 64, 8, 8, 8, stages=4),
        Config(128, 128, 8, 8, 8, stages=4, split_k=2),
        Config(64, 64, 8, 8, 4, stages=4),
        Config(64, 64, 8, 8, 4, stages=4, split_k=2),
        Config(64, 64, 8, 8, 4, stages=4, split_k=4),
        Config(32, 64, 8, 4, 4, stages=4, split_k=4),
        Config(32, 64, 16, 4, 4, stages=6),  # more bytes on their way, for 512^3
        # For results of few rows or columns.
        Config(64, 32, 16, 4, 4, stages=6),
        Config(128, 32, 16, 8, 4, stages=4),
        Config(32, 128, 16, 8, 4, stages=4),
        Config(16, 128, 16, 4, 4, stages=4),
    ),
    minimum_arch=80,
    variant=variant,
    takes_triangles=True,
    takes_masks=True,
    reductions=Reductions.ALL,
    takes_pairs=True,
    slices_k=True,
    order_of_sums="fma",
)
