"""float8 by Hopper's `wgmma`, with sums that are promoted to float32 every 128 of k.

Idea: `wgmma`, but that its sums of a stage, of which the tensor core keeps few bits, are added to
others in float32. So a thread has twice the sums, and tiles are smaller; up to 128 columns it has
three times, and the tensor core multiplies a stage while the sums of another are added. Scales of
blocks of a and b are factors of what is added. An MN-major a goes through registers, see
`left_bytes`; of an MN-major b, the transposed product is computed.
Layout: a (m, k), b (k, n), of either float8 format, one of them contiguous along k, any batch; c
and out (m, n), any strides, bfloat16, float16 or float32. Scales of blocks are float32, see
`block_scales`.
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
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.handwritten.parts.left_bytes import PANEL_ROWS
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.promoted_mainloop import make_multiply
from dxgemm.handwritten.parts.store import make_store
from dxgemm.handwritten.parts.wgmma_ring import make_load


@dataclass(frozen=True)
class Config(WgmmaConfig):
    """A `WgmmaConfig` with two or three times the sums: the producer leaves its registers."""

    @property
    def gives_registers(self) -> bool:
        return self.tile_n > 64 and self.tile_m > 64


def fits(config: Config, problem: Any) -> bool:
    """False if scales of a tile's columns do not fit in memory, or its MN-major rows no panel."""
    innermost = wgmma_layouts.innermost(problem.aligned)
    is_exchanged = wgmma_layouts.is_exchanged(config, problem.dtype, *innermost)
    is_panel = config.tile_m == PANEL_ROWS and not config.is_turned
    suits = is_panel or "mn" not in innermost
    return suits and block_scales.fits(problem.epilogue, config.tile_n, is_exchanged)


def issues_ahead(config: Config, scales: Any) -> bool:
    """True if a thread has registers for the sums of two stages, and no scales to wait for."""
    return config.tile_n <= 128 and scales is None


def make_kernel(
    config: Config, dtype: str, a_innermost: str, b_innermost: str,
    out_dtype: str | None = None, stored: str = "", slicing: str = "", ranges: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config; its variant is that of `wgmma`."""
    tile_k = wgmma_layouts.stage_k(dtype)
    way = wgmma_layouts.orient(config, dtype, a_innermost, b_innermost, stored, ranges)
    row_order = "pairs" if way.left_across else ""
    epilogue, _, is_dead = make_is_dead(epilogue, way.is_exchanged)
    epilogue, scales = block_scales.make_block_scales(
        epilogue, way.is_exchanged, config.tile_n, row_order
    )
    place = make_place(config, tile_k, stored, slicing == "sliced", is_dead, ranges=way.ranges)
    return make_tma_kernel(
        config,
        tile_k,
        place._replace(descends=False),  # scales of blocks are read in the order of k
        make_load(config, tile_k, way.left_across, False, way.maps),
        make_multiply(config, way.dtype, way.left_across, scales, issues_ahead(config, scales)),
        make_store(config, out_dtype or dtype, not way.is_exchanged, row_order, stored, epilogue),
        way.is_exchanged,
    )


KERNEL = replace(
    wgmma.KERNEL,
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=192),
        Config(tile_m=128, tile_n=192, is_paired=True),
        Config(tile_m=128, tile_n=176),
        Config(tile_m=128, tile_n=160),
        Config(tile_m=128, tile_n=128),
        Config(tile_m=128, tile_n=128, is_paired=True),
        Config(tile_m=128, tile_n=80),
        Config(tile_m=128, tile_n=64),
        Config(tile_m=64, tile_n=128),
        Config(tile_m=64, tile_n=96),
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
