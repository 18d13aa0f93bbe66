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
from dxgemm.handwritten.kernels.tensor_tile import make_line_kernel
from dxgemm.handwritten.parts import residue_store
from dxgemm.handwritten.parts.kernel import no_maps
from dxgemm.handwritten.parts.line_mainloop import stage_k
from dxgemm.handwritten.parts.place import make_place

LAYOUTS = "k16", "k16"  # of residues, see `line_tiles`


def make_kernel(
    config: tensor_tile.Config, dtype: str, stored: str = "", epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile."""
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import Operand

    @device_function
    def operands_of(work, tile, a, b, m, n, k):
        """The matrices of an operand are those of all moduli, one after the other."""
        a = Operand(a.data, m * a.row, a.row, a.col)
        return a, Operand(b.data, n * b.col, b.row, b.col), m, n, k

    return make_line_kernel(
        config, dtype, LAYOUTS,
        make_place(config, stage_k(dtype), stored, flag=0, counter=1),
        residue_store.make_store(config, config.warp_n),
        operands_of,
    )  # fmt: skip


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
