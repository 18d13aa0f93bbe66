"""Half precision and int8 on tensor cores by `mma.sync`, from Ampere on, in any layout.

Idea: `tensor_tile` for rows at any address, such as those of odd width. 16 bytes of shared memory
come from the two aligned vectors of 16 bytes around them, shifted in registers; int8 that are
neighbours along m or n are transposed there; elements with a stride come one by one. A thread holds
twice as many registers on their way as arrive, which leaves room for a warp tile half as large.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; c and out in the dtypes that
`tensor_tile` gives.
Constraints: those of `tensor_tile`, but for the alignment.
Source: as `tensor_tile`.
"""

from __future__ import annotations

from dataclasses import replace

from dxgemm.handwritten.kernels import tensor_tile
from dxgemm.handwritten.kernels.tensor_tile import Config
from dxgemm.handwritten.parts.kernel import any_problem

KERNEL = replace(
    tensor_tile.KERNEL,
    configs=(
        Config(tile_m=128, tile_n=128, warp_m=32, stages=2),
        Config(tile_m=64, tile_n=128, warp_m=16, stages=2),
        Config(tile_m=64, tile_n=64, warp_m=16, stages=3),
    ),
    supports=any_problem,
    copies_operands=False,
)
