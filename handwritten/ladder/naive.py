"""One thread per output element; consecutive threads take consecutive rows, uncoalesced.

Idea: the three loops of the definition, with the outer two spread over threads. The obvious
numbering of the threads, down the rows, is the wrong one: for row-major operands the 32 threads of
a warp read 32 different rows of a and write 32 different rows of the result. Each access is a
memory transaction of its own, of which 4 or 8 bytes are used. That shows why `coalesced` is the
first thing to get right.
If n and k are only a few elements, it is the right numbering, and the fastest there is: a warp that
takes 32 rows of one column has all its threads at work, and waits for one round of loads only. The
configs with tiles of one column are for that.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch.
Constraints: none.
Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory", which warns of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import ElementConfig
from dxgemm.handwritten.parts.kernel import Kernel


class Config(ElementConfig):
    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM: two blocks of 1024 threads fill it.

        Small blocks get more registers per thread, for loads in flight.
        """
        return 2


def make_kernel(config: Config, dtype: str, epilogue: Any = None) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate."""
    from numba import cuda  # here: a kernel that is already on disk launches without numba

    from dxgemm.handwritten.parts.block_mask import make_is_dead
    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import below_2_31
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    scalar = np.dtype(dtype).type
    epilogue, is_masked, is_dead = make_is_dead(epilogue)
    finish = make_finish(epilogue, dtype, dtype)
    tile_m, tile_n = config.tile_m, config.tile_n

    @gemm_kernel
    def naive_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, this thread's element ---
        tiles_m = below_2_31((m + tile_m - 1) // tile_m)
        tiles_n = below_2_31((n + tile_n - 1) // tile_n)
        matrix, tile = divmod(below_2_31(cuda.blockIdx.x), below_2_31(tiles_m * tiles_n))
        thread = cuda.threadIdx.x & 1023
        # Consecutive threads take consecutive rows. `coalesced` swaps the roles of these two lines.
        row = tile // tiles_n * tile_m + thread % tile_m
        col = tile % tiles_n * tile_n + thread // tile_m
        if row >= m or col >= n:
            return
        if is_masked and is_dead(row, col, extra):
            return

        # --- Main loop ---
        a_index = matrix * a.batch + row * a.row
        b_index = matrix * b.batch + col * b.col
        acc = scalar(0)
        # The loop counts down, because numba's range() costs more than the multiplication.
        left = k
        while left > 0:
            acc += a.data[a_index] * b.data[b_index]
            a_index += a.col
            b_index += b.row
            left -= 1

        # --- Epilogue ---
        value = alpha * acc
        if beta != 0:  # BLAS: beta == 0 must not read c, which may hold NaN
            value += beta * c.data[matrix * c.batch + row * c.row + col * c.col]
        value = finish(value, matrix, row, col, extra)
        out.data[matrix * out.batch + row * out.row + col * out.col] = value

    return naive_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    # The first config is for large results, the others are for narrow ones.
    configs=(
        Config(tile_m=32, tile_n=32),
        Config(tile_m=128, tile_n=1),
        Config(tile_m=32, tile_n=1),
    ),
    simulator_configs=(Config(tile_m=4, tile_n=2),),
    takes_masks=True,
)
