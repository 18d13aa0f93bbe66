"""Complex matrices read in place, by thread tiles of complex sums and a pipeline of copies.

Idea: grown from `tuned`, whose pipeline it has, with the arithmetic of `complex_batch`. An element
of a or b that a thread has read takes part in twice as many multiply-adds as a real one, so 8 x 8
complex sums need half the reads of shared memory that 16 x 8 real ones do. Small results are split
along k over the blocks of a thread-block cluster, of which each adds and stores some rows of every
thread's tile. Split-K with a workspace serves a longer k (`complex_sum`).
Layout: a (m, k), b (k, n), c and out (m, n) of complex elements, any strides, any batch; compiled
for the layouts of a and b (see `async_tiles`), and for conjugates. alpha and beta are the real and
the imaginary part of the factor of the product, the extra arguments those of the factor of c, which
is not read if both are 0.
Constraints: see `Config`. Edges are predicated. split_k needs the clusters of compute capability
9.0, cp.async 8.0. Complex elements begin at multiples of their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.frames.ring import make_ring_kernel
from dxgemm.handwritten.kernels import tuned
from dxgemm.handwritten.parts.async_tiles import copy_modes
from dxgemm.handwritten.parts.complex_product import make_add_products
from dxgemm.handwritten.parts.complex_store import ThreadTile, make_store
from dxgemm.handwritten.parts.configs import (
    LANES_M,
    LANES_N,
    MOST_REGISTERS,
    REGISTER_BYTES,
    REGISTERS_PER_SM,
)
from dxgemm.handwritten.parts.fragment import make_lane_corner
from dxgemm.handwritten.parts.kernel import Kernel, never
from dxgemm.handwritten.parts.operands import ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.thread_mainloop import make_load, make_multiply

OTHER_REGISTERS = 16  # of a thread, besides sums and fragments
BANKS_BYTES = 256  # of a warp's access with 8 bytes per lane: twice all banks


@dataclass(frozen=True)
class Config(tuned.Config):
    """A config of `tuned`, whose elements are complex."""

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.thread_m % self.split_k:
            yield "blocks of a cluster share out the rows of a thread"

    def a_row_bytes(self, dtype: str) -> int:
        """Bytes from one k of a's tile in shared memory to the next.

        Neighbours that copy along k write to different banks.
        """
        return self.tile_m * np.dtype(dtype).itemsize + max(BANKS_BYTES // self.tile_k, 16)

    def b_row_bytes(self, dtype: str) -> int:
        return self.tile_n * np.dtype(dtype).itemsize + max(BANKS_BYTES // self.tile_k, 16)

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, or of the sums that blocks of a cluster exchange."""
        sums = self.threads * self.accumulator_bytes(dtype) if self.split_k > 1 else 0
        return max(self.stages * self.stage_bytes(dtype), sums)

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM: as many as sums and two sets of fragments allow.

        Clusters are for results of few tiles.
        """
        if self.split_k > 1:
            return 1
        fragments = 2 * (self.thread_m + self.thread_n) * np.dtype(dtype).itemsize
        registers = (self.accumulator_bytes(dtype) + fragments) // REGISTER_BYTES + OTHER_REGISTERS
        return max(1, REGISTERS_PER_SM // (min(registers, MOST_REGISTERS) * self.threads))


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Names of the conjugated operands, modes of copying a and b; "sliced" if k is; its ranges.

    The latter two are left out where they are empty.
    """
    kinds = problem.conjugates, *copy_modes(config, problem)
    if problem.k_ranges:
        return *kinds, "", problem.k_ranges
    return (*kinds, "sliced") if problem.slices > 1 else kinds


def make_kernel(
    config: Config, dtype: str, conjugates: str, a_mode: str, b_mode: str, slicing: str = "",
    ranges: str = "", epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        config, dtype: config, and dtype of the complex elements.
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
        a_mode, b_mode: see `async_tiles`.
        slicing: "sliced" if the grid has a y for each slice of k, and out holds one batch of sums a
            slice; otherwise "".
        ranges: triangles of a and b, see `k_ranges`.
        epilogue: a `Fusion` that ends with two numbers; None for slices, whose sums are stored as
            they are.
    """
    width = VECTOR_BYTES // ITEM_BYTES[dtype]  # elements of a 16-byte access
    load = make_load(config, dtype, a_mode, b_mode)
    add = make_add_products(config.thread_m, config.thread_n, conjugates)
    tile = ThreadTile(config.thread_m, config.thread_n, LANES_M * width, LANES_N * width, width)
    return make_ring_kernel(
        config.tile_k,
        make_place(
            config, config.tile_k, is_sliced=slicing == "sliced", is_even=True, ranges=ranges
        ),
        load.fill,
        make_multiply(config, dtype, width, load, add, parts=2),
        make_store(
            tile, make_lane_corner(config, width, width), dtype, epilogue, config.threads,
            config.smem_bytes(dtype), split_k=config.split_k,
        ),
    )  # fmt: skip


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(128, 128, 8, 8, 8, stages=4),
        Config(64, 64, 8, 8, 4, stages=4),
        Config(64, 64, 8, 8, 4, stages=4, split_k=2),
        Config(32, 64, 8, 4, 4, stages=6),
        Config(32, 64, 8, 4, 4, stages=6, split_k=2),
        Config(32, 32, 8, 4, 4, stages=6, split_k=2),
        Config(32, 32, 8, 4, 4, stages=6, split_k=4),
    ),
    simulator_configs=(Config(16, 32, 4, 4, 4, stages=3),),
    dtypes=("complex64",),
    minimum_arch=80,
    variant=variant,
    takes_k_ranges=True,
    commutes=never,
    slices_k=True,
    order_of_sums="complex fma",
)
