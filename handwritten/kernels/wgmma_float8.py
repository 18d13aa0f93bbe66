"""float8 by Hopper's `wgmma`, with sums that are promoted to float32 every 128 of k.

Idea: `wgmma`, but that its sums of a stage, of which the tensor core keeps few bits, are added to
others in float32. So a thread has twice the sums, and tiles are smaller. Scales of blocks of a and
b are factors of what is added.
Layout: a (m, k), b (k, n), both contiguous along k, any batch, of either float8 format; c and out
(m, n), any strides, bfloat16, float16 or float32. Scales of blocks are float32, see `block_scales`.
Constraints: those of `wgmma`; with scales of blocks, k is not sliced.
Source: as `promoted_mainloop`; DeepSeek, "DeepGEMM".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dxgemm.handwritten.frames.tma import make_tma_kernel
from dxgemm.handwritten.kernels import wgmma
from dxgemm.handwritten.parts import block_scales, wgmma_layouts
from dxgemm.handwritten.parts.block_mask import make_is_dead
from dxgemm.handwritten.parts.block_scales import BLOCK_K
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.promoted_mainloop import make_multiply
from dxgemm.handwritten.parts.store import make_store
from dxgemm.handwritten.parts.wgmma_ring import make_load


@dataclass(frozen=True)
class Config(WgmmaConfig):
    """A `WgmmaConfig` with twice the sums: for wide tiles, the producer leaves its registers."""

    @property
    def gives_registers(self) -> bool:
        return self.tile_n > BLOCK_K


def fits(config: Config, problem: Any) -> bool:
    """False if the columns of a tile have several scales, and too many for registers."""
    return block_scales.fits(problem.epilogue, config.tile_n, config.is_turned)


def make_kernel(
    config: Config, dtype: str, a_innermost: str, b_innermost: str,
    out_dtype: str | None = None, stored: str = "", slicing: str = "", ranges: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config; its variant is that of `wgmma`."""
    tile_k = wgmma_layouts.stage_k(dtype)
    way = wgmma_layouts.orient(config, dtype, a_innermost, b_innermost, stored, ranges)
    epilogue, _, is_dead = make_is_dead(epilogue, way.is_exchanged)
    epilogue, scales = block_scales.make_block_scales(epilogue, way.is_exchanged)
    return make_tma_kernel(
        config,
        tile_k,
        make_place(config, tile_k, stored, slicing == "sliced", is_dead, ranges=way.ranges),
        make_load(config, tile_k, False, False, way.maps),
        make_multiply(config, way.dtype, scales),
        make_store(config, out_dtype or dtype, not way.is_exchanged, False, stored, epilogue),
        way.is_exchanged,
    )


KERNEL = replace(
    wgmma.KERNEL,
    make_kernel=make_kernel,
    # With scales of blocks, widths divide 128, so that a tile has one block of columns.
    configs=(
        Config(tile_m=128, tile_n=192),
        Config(tile_m=128, tile_n=192, is_paired=True),
        Config(tile_m=128, tile_n=160),
        Config(tile_m=128, tile_n=128),
        Config(tile_m=128, tile_n=128, is_paired=True),
        Config(tile_m=128, tile_n=64),
        Config(tile_m=64, tile_n=128),
        Config(tile_m=64, tile_n=128, is_turned=True),
        Config(tile_m=64, tile_n=64),
        Config(tile_m=64, tile_n=16, is_turned=True),
    ),
    dtypes=FLOAT8,
    supports=wgmma_layouts.supports,
    fits=fits,
    order_of_sums="wgmma_float8",
    takes_block_scales=True,
    clears_triangles=False,
)
