"""float64 products by int8 `mma.sync`: `emulated_float64` for GPUs without `wgmma`.

Idea: the main loop of `tensor_tile` over the residues, with the store of `emulated_float64`.
Layout: as `emulated_float64`.
Constraints: those of `emulated_float64`, but compute capability 8.0.
Source: as `emulated_float64` and `tensor_tile`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dxgemm.handwritten.kernels import emulated_float64, tensor_tile
from dxgemm.handwritten.kernels.tensor_tile import WARP_N
from dxgemm.handwritten.parts.kernel import no_maps

LAYOUT = "k16"  # of residues, see `line_tiles`


def make_kernel(
    config: tensor_tile.Config, dtype: str, stored: str = "", epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.intrinsics import divide, global_address
    from dxgemm.handwritten.parts.residue_store import ALIGNMENT, make_store_residues
    from dxgemm.handwritten.parts.unroll import unroll

    constants_of, store_residues = make_store_residues(WARP_N)

    @cuda.jit(device=True, forceinline=True)
    def allows_vectors(m, n, beta, c, out):
        return True

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_tile(
        acc, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta, c, out, extra
    ):
        count: int32 = extra[1]
        constants = constants_of(int32(matrix - divide(matrix, count) * count))
        pitch = (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        target = global_address(out.data) + (matrix * m + top) * pitch + col
        rows: int32 = m - top
        cols: int32 = pitch - col
        store_residues(acc, chunk_smem, lane, rows, cols, target, pitch, constants)

    store = allows_vectors, store_tile
    return tensor_tile.make_tile_kernel(
        config, dtype, LAYOUT, LAYOUT, store, is_modular=True, stored=stored
    )


KERNEL = replace(
    emulated_float64.KERNEL,
    make_kernel=make_kernel,
    configs=tensor_tile.KERNEL.configs,
    only_arch=None,
    minimum_arch=80,
    tensor_maps=no_maps,
    tensor_map_names=(),
    is_persistent=False,
)
