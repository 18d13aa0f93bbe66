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

from dxgemm.handwritten.kernels import grouped_wgmma
from dxgemm.handwritten.kernels.wgmma_float8 import Config, fits, issues_ahead
from dxgemm.handwritten.parts.block_scales import make_block_scales
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.handwritten.parts.promoted_mainloop import make_multiply

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
    fused, scales = make_block_scales(epilogue, False, config.tile_n)
    return grouped_wgmma.make_group_kernel(
        config, dtype, (False, False), out_dtype or dtype, fused, len(epilogue.stage_operands),
        make_multiply(config, dtype, False, scales, issues_ahead(config, scales)),
        takes_tile=scales is not None,
    )  # fmt: skip


KERNEL = replace(
    grouped_wgmma.KERNEL,
    make_kernel=make_kernel,
    configs=tuple(SHARES),
    dtypes=FLOAT8,
    fits=fits,
    takes_block_scales=True,
)
