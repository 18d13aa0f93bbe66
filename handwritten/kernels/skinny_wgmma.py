"""Few rows or columns in half precision and int8 at the speed of memory: TMA feeds wgmma.

Idea: grown from `wgmma`. The larger operand is the left factor, 64 of whose rows a wgmma takes, and
the few rows are its columns: 8 of them cost as much as they are (frames/skinny.py). A k of several
hundred bytes is one group of wgmmas.
Layout: a (m, k), b (k, n), any batch, row- or column-major; c and out (m, n), any strides. int8
must be K-major.
Constraints: as `wgmma`.
Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", for swizzles of each width.
"""

from __future__ import annotations

from functools import partial

from dxgemm.handwritten.frames.skinny import make_skinny_kernel
from dxgemm.handwritten.parts import skinny_layouts, wgmma_layouts
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.operands import HALVES
from dxgemm.handwritten.parts.skinny_layouts import Config
from dxgemm.handwritten.parts.skinny_load import make_tma_producer
from dxgemm.handwritten.parts.skinny_multiply import make_wgmma_consumer

KERNEL = Kernel(
    make_kernel=partial(make_skinny_kernel, make_wgmma_consumer, make_tma_producer),
    # Two blocks share an SM, except with the first config of each width.
    configs=(
        Config(64, panels=2, stages=5),
        Config(64, panels=2, stages=3),
        Config(64, panels=2, stages=3, split_k=8),
        Config(32, panels=4, stages=4),
        Config(32, panels=2, stages=4),
        Config(32, panels=2, stages=4, split_k=8),
        Config(16, panels=4, stages=5),
        Config(16, panels=2, stages=5),
        Config(16, panels=2, stages=5, split_k=4),
        Config(16, panels=2, stages=5, split_k=8),
        Config(8, panels=4, stages=6),
        Config(8, panels=4, stages=3),
        Config(8, panels=4, stages=3, split_k=4),
        Config(8, panels=4, stages=3, split_k=8),
    ),
    dtypes=(*HALVES, "int8"),
    only_arch=90,
    supports=wgmma_layouts.supports,
    variant=skinny_layouts.variant,
    block_count=skinny_layouts.block_count,
    result_tile=skinny_layouts.result_tile,
    smaller_first=True,
    tensor_maps=skinny_layouts.tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    order_of_sums="wgmma",
    copies_operands=True,
    takes_pairs=True,
    quantises=True,
)
