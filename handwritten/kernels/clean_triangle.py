"""Copy of a triangular matrix, with zeros on the other side of its diagonal, for other kernels.

Idea: a block copies a tile, its lanes along a row; a thread reads all of its elements before it
writes the first, so that its loads are in flight together. Elements of the other triangle are not
used, and far from the diagonal, where no kernel reads (`k_ranges`), not written.
Layout: a (m, n), any strides, any batch; out (m, n), row-major. k is the number of elements beyond
the diagonal of each row that are written. Complex elements are pairs, with strides of parts. Short
elements may come in words, of int32: n and the strides then count words.
Source: NVIDIA, "How to Access Global Memory Efficiently in CUDA C/C++ Kernels" (M. Harris).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts import diagonal
from dxgemm.handwritten.parts.k_ranges import LOWER
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel

STEPS = 4  # rows of a thread, and elements of each


@dataclass(frozen=True)
class Config(BaseConfig):
    """Threads of a block along a row, and rows that they are in at a time."""

    lanes: int
    rows: int

    @property
    def threads(self) -> int:
        return self.lanes * self.rows

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return STEPS * self.rows, STEPS * self.lanes

    def accumulator_bytes(self, dtype: str) -> int:
        return 8 * STEPS * STEPS


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one for each tile of each matrix."""
    rows, cols = config.tile
    count: int = problem.batch * -(-problem.m // rows) * -(-problem.n // cols)
    return count


def make_kernel(
    config: Config, dtype: str, triangle: str, unit_dtype: str, parts: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one variant, as a Python function to compile.

    Args:
        triangle: "lower" or "upper".
        unit_dtype: dtype of the ones to write on the diagonal, which is not used; "" to copy it.
        parts: "pairs" if an element has a real and an imaginary part; "2" or "4" for words of so
            many elements; else "".
    """
    import numba
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import divide
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    element = numba.uint16 if dtype in diagonal.ONES else getattr(numba, dtype)
    is_lower, is_unit = triangle == LOWER, unit_dtype != ""
    one, width = diagonal.ONES.get(unit_dtype, 1), 2 if parts == "pairs" else 1
    packed = int(parts) if parts.isdecimal() else 1
    mask = diagonal.make_mask(packed, is_lower, is_unit)
    put_one = diagonal.make_put_one(packed, one)
    lanes, rows = config.lanes, config.rows
    tile_rows, tile_cols = config.tile
    tile_items = tile_cols * packed

    @gemm_kernel
    def clean_triangle_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile ---
        tiles_m: int32 = (m + tile_rows - 1) // tile_rows
        tiles_n: int32 = (n + tile_cols - 1) // tile_cols
        block: int32 = cuda.blockIdx.x
        strip = divide(block, tiles_n)
        matrix = divide(strip, tiles_m)
        first_row = int64(strip - matrix * tiles_m) * tile_rows
        first_col = int64(block - strip * tiles_n) * tile_cols
        beyond = first_col * packed - first_row - (tile_rows - 1)
        if not is_lower:
            beyond = first_row - first_col * packed - (tile_items - 1)
        if beyond > k:
            return
        thread: int32 = cuda.threadIdx.x & 1023
        first_row += thread // lanes
        first_col += thread % lanes
        source = int64(matrix) * a.batch
        target = int64(matrix) * out.batch

        # --- All reads, then all writes ---
        held = ()
        for step in static_range(STEPS * STEPS):
            row = first_row + step // STEPS * rows
            col = first_col + step % STEPS * lanes
            distance = col * packed - row
            is_kept = distance <= 0 if is_lower else distance > -packed
            is_diagonal = is_unit and packed == 1 and distance == 0
            for part in static_range(width):
                value = element(0)
                if is_kept and not is_diagonal and row < m and col < n:
                    value = a.data[source + row * a.row + col * a.col + part]
                if packed > 1:
                    value = mask(value, distance)
                    if is_unit:
                        value = put_one(value, distance)
                if is_diagonal and part == 0:
                    value = element(one)
                held = held + (value,)
        for step in static_range(STEPS * STEPS):
            row = first_row + step // STEPS * rows
            col = first_col + step % STEPS * lanes
            if row < m and col < n:
                for part in static_range(width):
                    at = target + row * out.row + col * out.col + part
                    out.data[at] = held[step * width + part]

    return clean_triangle_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(lanes=32, rows=8),),
    simulator_configs=(Config(lanes=4, rows=2),),
    dtypes=("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
    block_count=block_count,
)
