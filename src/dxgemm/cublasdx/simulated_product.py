"""Stand-in for cuBLASDx's complex product, for numba's simulator: one thread multiplies by NumPy.

Every thread of the block must call `multiply_tile` together, as a barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from dxgemm.handwritten.parts.complex_product import COMPLEX_PARTS
from dxgemm.handwritten.parts.intrinsics import load_global, store_shared

_held: list[Any] = [None]  # product of the block that is running


def make_product(
    tile_m: int,
    tile_n: int,
    tile_k: int,
    threads: int,
    dtype: str,
    a_direction: str,
    b_direction: str,
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Make `multiply_tile` and `put_tile` as `cublasdx.intrinsics` has them.

    Args:
        tile_m, tile_n, tile_k, threads: as the config has them.
        dtype: dtype of the complex elements.
        a_direction, b_direction: layouts of a and b, "row" or "col".
    """
    real = np.dtype(COMPLEX_PARTS[dtype]).type
    item_bytes = np.dtype(dtype).itemsize

    def matrix(direction: str, start: Any, rows: int, cols: int, stride: Any) -> Any:
        row_step, col_step = (stride, 1) if direction == "row" else (1, stride)
        parts = [
            load_global(real, 2, start + item_bytes * (row * row_step + col * col_step), 0)
            for row in range(rows)
            for col in range(cols)
        ]
        return np.array(parts, real).view(dtype).reshape(rows, cols)

    @cuda.jit(device=True)
    def multiply_tile(smem, k, a, a_rows, a_stride, b, b_cols, b_stride):
        if k % tile_k or (a_rows, b_cols) != (tile_m, tile_n):
            raise ValueError(f"no whole tiles: {a_rows} x {b_cols} x {k}")
        thread = int(cuda.threadIdx.x)
        if thread == 0:
            left = matrix(a_direction, a, a_rows, int(k), a_stride)
            right = matrix(b_direction, b, int(k), b_cols, b_stride)
            product = np.empty((a_rows, b_cols), dtype)
            product.real = left.real @ right.real - left.imag @ right.imag
            product.imag = left.real @ right.imag + left.imag @ right.real
            _held[0] = product
        cuda.syncthreads()
        own = tuple(_held[0].ravel()[thread::threads].copy().view(real))
        cuda.syncthreads()  # before the next call replaces what others read
        return own

    @cuda.jit(device=True)
    def put_tile(smem, row_bytes, acc, alpha, skipped_rows, skipped_cols):
        for i in range(len(acc) // 2):
            row, col = divmod(int(cuda.threadIdx.x) + threads * i, tile_n)
            row, col = row - skipped_rows, col - skipped_cols
            if row >= 0 and col >= 0:
                re, im = acc[2 * i : 2 * i + 2]
                store_shared(smem + row * row_bytes + col * item_bytes, 0, (alpha * re, alpha * im))

    return multiply_tile, put_tile
