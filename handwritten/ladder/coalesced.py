"""One thread per output element; consecutive threads take consecutive columns.

Idea: `naive` with the threads numbered along rows. The threads of a warp then own consecutive
columns: they read b and write the result contiguously, and all of them read the same element of a,
which is broadcast.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch.
Constraints: none. Each element of a is read n times and each element of b m times, mostly from the
L1 cache. That suits tiny problems, and is the baseline for everything else.
Source: CUDA C++ Programming Guide, "Shared Memory", the version without shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import ElementConfig as Config
from dxgemm.handwritten.parts.kernel import Kernel


def variant(config: Config, problem: Any) -> tuple[str]:
    """Stride within a row of a: "unit" if the row is contiguous, else "strided"."""
    return ("unit",) if problem.a.col == 1 else ("strided",)


def make_kernel(
    config: Config, dtype: str, a_row: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate."""
    from numba import cuda

    from dxgemm.handwritten.parts.block_mask import make_is_dead
    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import below_2_31
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    scalar = np.dtype(dtype).type
    epilogue, is_masked, is_dead = make_is_dead(epilogue)
    finish = make_finish(epilogue, dtype, dtype)
    tile_m, tile_n = config.tile_m, config.tile_n
    # A stride of 1 known at compile time saves half of the loop's address arithmetic.
    is_unit = a_row == "unit"

    @gemm_kernel
    def coalesced_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, this thread's element ---
        tiles_m = below_2_31((m + tile_m - 1) // tile_m)
        tiles_n = below_2_31((n + tile_n - 1) // tile_n)
        matrix, tile = divmod(below_2_31(cuda.blockIdx.x), below_2_31(tiles_m * tiles_n))
        thread = cuda.threadIdx.x & 1023
        # New: consecutive threads take consecutive columns.
        row = tile // tiles_n * tile_m + thread // tile_n
        col = tile % tiles_n * tile_n + thread % tile_n
        if row >= m or col >= n:
            return
        if is_masked and is_dead(row, col, extra):
            return

        # --- Main loop ---
        a_index = matrix * a.batch + row * a.row
        b_index = matrix * b.batch + col * b.col
        acc = scalar(0)
        left = k
        while left > 0:
            acc += a.data[a_index] * b.data[b_index]
            a_index += 1 if is_unit else a.col
            b_index += b.row
            left -= 1

        # --- Epilogue ---
        value = alpha * acc
        if beta != 0:  # BLAS: beta == 0 must not read c, which may hold NaN
            value += beta * c.data[matrix * c.batch + row * c.row + col * c.col]
        value = finish(value, matrix, row, col, extra)
        out.data[matrix * out.batch + row * out.row + col * out.col] = value

    return coalesced_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    # A warp spans the 32 columns of a tile: 128-byte rows of b in float32. The larger tile reads a
    # row of b once for 32 rows of a; the smaller one spreads a small problem over more SMs.
    configs=(Config(tile_m=32, tile_n=32), Config(tile_m=4, tile_n=32)),
    simulator_configs=(Config(tile_m=2, tile_n=4),),
    variant=variant,
    takes_masks=True,
)
