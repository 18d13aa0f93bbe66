"""Few rows or columns in float32 at the speed of memory: TMA feeds multiply-adds.

Idea: grown from `skinny_wgmma`, whose frame it shares (frames/skinny.py). A thread multiplies four
rows of the larger operand by all of the few columns, for every eighth four of k: eight vectors of
one operand and four of the other feed 128 multiply-adds or more. So a block leaves eight partial
tiles, which it adds up.
Layout: a (m, k), b (k, n), any batch, row- or column-major; c and out (m, n), any strides.
Constraints: compute capability 9.0; bases and strides at multiples of 16 bytes, as TMA wants.
Source: PTX ISA, "Tensor Swizzling Modes", for the order of vectors in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dxgemm.handwritten.frames.skinny import make_skinny_kernel
from dxgemm.handwritten.parts import skinny_layouts, wgmma_layouts
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.skinny_load import make_tma_producer
from dxgemm.handwritten.parts.skinny_multiply import make_fma_consumer


@dataclass(frozen=True)
class Config(skinny_layouts.Config):
    """A `skinny_layouts.Config` whose threads share out k eight ways."""

    partial_tiles = 8


KERNEL = Kernel(
    make_kernel=partial(make_skinny_kernel, make_fma_consumer, make_tma_producer),
    configs=(
        Config(16, panels=4, stages=2),
        Config(16, panels=4, stages=2, split_k=4),
        Config(8, panels=4, stages=3),
        Config(8, panels=4, stages=3, split_k=2),
        Config(8, panels=4, stages=3, split_k=8),
    ),
    dtypes=("float32",),
    only_arch=90,
    supports=wgmma_layouts.supports_tma,
    variant=skinny_layouts.variant,
    block_count=skinny_layouts.block_count,
    result_tile=skinny_layouts.result_tile,
    smaller_first=True,
    tensor_maps=skinny_layouts.tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    takes_pairs=True,
)
