"""Many small complex matrices, read in place as pairs of real and imaginary parts.

Idea: grown from `small_batch`, whose tiles and copies it has, with complex elements: a matrix
crosses memory once, in one launch (`complex_product` says how a thread multiplies).
A matrix in complex64 has the bytes of one in float64, and four times the arithmetic of float32:
from 42 x 42 on, that takes longer than memory on an H200, and so it is in complex128.
Layout: a (m, k), b (k, n), c and out (m, n) of complex elements, any strides, any batch. alpha and
beta are the real and the imaginary part of the factor of the product, the extra arguments those of
the factor of c, which is not read if both are 0.
Constraints: see `Config`; cp.async needs compute capability 8.0. Complex elements begin at
multiples of their size. Larger matrices are computed tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.frames.resident import make_resident_kernel
from dxgemm.handwritten.kernels import small_batch
from dxgemm.handwritten.parts.batch_load import make_tile_load
from dxgemm.handwritten.parts.batch_multiply import make_fma_multiply
from dxgemm.handwritten.parts.batch_place import make_batch_place
from dxgemm.handwritten.parts.batch_store import Store
from dxgemm.handwritten.parts.batch_tiles import FAR, batch_notes, block_count
from dxgemm.handwritten.parts.complex_product import COMPLEX_PARTS, make_add_products
from dxgemm.handwritten.parts.complex_store import ThreadTile, make_store
from dxgemm.handwritten.parts.configs import REGISTERS_PER_SM
from dxgemm.handwritten.parts.kernel import Kernel, block_a_tile, never
from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode

QUARTERS, WARP = 4, 32
MOST_UNROLLED_K = 4  # a step has four times the instructions of a real one


@dataclass(frozen=True)
class Config(small_batch.Config):
    """Tile of a matrix, as that of `small_batch`, whose elements are complex."""

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n:
            yield "thread tiles must fill the tile"
        if self.tile_m % 2 or self.thread_n % 2 or self.tile_k % (2 * self.parts):
            yield "tiles, and parts of k, are read in vectors of 2"

    def tile_registers(self, dtype: str) -> int:
        """Registers of the sums, of a vector per row, of a row of b and of that row times i."""
        size = np.dtype(dtype).itemsize
        elements = self.thread_m * (self.thread_n + VECTOR_BYTES // size) + 2 * self.thread_n
        return elements * size // 4

    def _resident_blocks(self, dtype: str, registers: int) -> int:
        # Whole warps take registers, each of the quarter of an SM that it runs on.
        registers_each = registers + self.tile_registers(dtype)
        warps = QUARTERS * (REGISTERS_PER_SM // QUARTERS // (WARP * registers_each))
        by_warps = max(1, warps // -(-self.threads // WARP))
        return min(by_warps, super()._resident_blocks(dtype, registers))


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Names of the conjugated operands, layouts of a and b, then the words of `batch_notes`."""
    a_mode, b_mode = operand_mode(problem, "a"), operand_mode(problem, "b")
    b_mode = b_mode.replace("col16", "col")
    return problem.conjugates, a_mode, b_mode, *batch_notes(problem)


def make_kernel(
    config: Config, dtype: str, conjugates: str, a_mode: str, b_mode: str, *notes: str,
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        config, dtype: config, and dtype of the complex elements.
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
        a_mode, b_mode, notes: see `variant`.
        epilogue: a `Fusion` that ends with two numbers.
    """
    from dxgemm.handwritten.parts.inner import make_complex_combine

    places, (rows, cols) = config.places(a_mode, dtype), config.thread_layout(a_mode, dtype)
    add_products = make_add_products(config.thread_m, config.thread_n, conjugates)
    scalar = np.dtype(COMPLEX_PARTS[dtype]).type
    combine = make_complex_combine(epilogue, COMPLEX_PARTS[dtype], conjugates, add_products)
    multiply = make_fma_multiply(config, scalar, 2, places, rows, MOST_UNROLLED_K, combine)
    (row_count, row_width, row_group), (col_count, _, col_group) = rows, cols
    stored = make_store(
        ThreadTile(row_count, col_count, row_group, col_group, row_width), multiply.locate, dtype,
        epilogue, config.tile_threads, config.tile_bytes(dtype), is_far=FAR in notes,
    )  # fmt: skip
    store = Store(stored.store, is_shared=True, takes_smem=bool(epilogue.stages))
    return make_resident_kernel(
        config, dtype, make_batch_place(config),
        make_tile_load(config, dtype, "a", a_mode, places[0], notes),
        make_tile_load(config, dtype, "b", b_mode, places[1], notes),
        multiply, store,
    )  # fmt: skip


KERNEL = Kernel(
    make_kernel=make_kernel,
    # The tiles of `small_batch`. Half of k at a time lets an SM hold two large ones in complex128,
    # of which the largest thread tiles leave no registers.
    configs=(
        Config(80, 80, 40, thread_m=10, thread_n=4),
        Config(80, 80, 40, thread_m=8, thread_n=4),
        Config(72, 72, 36, thread_m=6, thread_n=4),
        Config(64, 64, 32, thread_m=8, thread_n=4, parts=2),
        Config(56, 56, 28, thread_m=7, thread_n=4),
        Config(48, 48, 48, thread_m=3, thread_n=4, parts=3),
        Config(40, 40, 40, thread_m=4, thread_n=4, parts=2),
        Config(32, 32, 16, thread_m=4, thread_n=4),
        Config(24, 24, 24, thread_m=3, thread_n=4, matrices=2),
        Config(20, 20, 20, thread_m=5, thread_n=4, matrices=4),
        Config(16, 16, 16, thread_m=2, thread_n=4, matrices=2),
        Config(12, 12, 12, thread_m=3, thread_n=4, matrices=8),
        Config(8, 8, 8, thread_m=1, thread_n=4, matrices=4),
        Config(4, 4, 4, thread_m=1, thread_n=2, matrices=16),
    ),
    simulator_configs=(
        Config(8, 8, 8, thread_m=2, thread_n=4, parts=2),
        Config(4, 4, 4, thread_m=1, thread_n=4, matrices=2),
    ),
    dtypes=tuple(COMPLEX_PARTS),
    minimum_arch=80,
    variant=variant,
    block_count=block_count,
    tile_count=block_a_tile,
    takes_inner=True,
    commutes=never,
    order_of_sums="complex fma",
)
