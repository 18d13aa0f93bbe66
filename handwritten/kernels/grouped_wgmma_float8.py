"""float8 of problems that share out the rows of a, in one launch, on Hopper's `wgmma`.

Idea: `grouped_wgmma` with the sums of `wgmma_float8`, promoted to float32 every 128 of k. With
scales of blocks, the consumers read where their tile is when its first stage arrives, and not when
they store it.
Layout: a (total, k), b (problems, k, n), both contiguous along k, of either float8 format; c and
out (total, n). Scales of blocks are float32, see `block_scales`: those of a belong to single rows.
Constraints: those of `grouped_wgmma`.
Source: as `grouped_wgmma` and `wgmma_float8`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dxgemm.handwritten.frames.tma import make_tma_kernel
from dxgemm.handwritten.kernels import grouped_wgmma
from dxgemm.handwritten.kernels.wgmma_float8 import Config, fits
from dxgemm.handwritten.parts import wgmma_layouts
from dxgemm.handwritten.parts.block_scales import make_block_scales
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.promoted_mainloop import make_multiply
from dxgemm.handwritten.parts.store import make_store
from dxgemm.handwritten.parts.wgmma_ring import make_load

# Configs, with the fraction of its peak that an SM reaches: an estimate, after those of `wgmma`.
SHARES = {
    Config(tile_m=128, tile_n=192): 0.72,
    Config(tile_m=128, tile_n=128): 0.64,
    Config(tile_m=64, tile_n=128): 0.45,
    Config(tile_m=64, tile_n=64): 0.28,
}


def make_kernel(
    config: Config, dtype: str, a_innermost: str, b_innermost: str, out_dtype: str | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile.

    Its last parameter holds the operands of the epilogue, then the table.
    """
    tile_k = wgmma_layouts.stage_k(dtype)
    table = len(epilogue.stage_operands)
    fused, scales = make_block_scales(epilogue, False)
    return make_tma_kernel(
        config,
        tile_k,
        make_place(config, tile_k, shared="m", table=table),
        make_load(config, tile_k, False, False, wgmma_layouts.TENSOR_MAPS),
        make_multiply(config, dtype, scales),
        make_store(config, out_dtype or dtype, epilogue=fused if fused and fused.stages else None),
        takes_tile=scales is not None,
    )


KERNEL = replace(
    grouped_wgmma.KERNEL,
    make_kernel=make_kernel,
    configs=tuple(SHARES),
    dtypes=FLOAT8,
    fits=fits,
    takes_block_scales=True,
)
