"""Hopper's own path: TMA feeds shared memory, warpgroups multiply out of it.

Idea: grown from `tensor_core`. One thread, the producer, has TMA bring boxes of a and b to shared
memory; two warpgroups, the consumers, multiply them by wgmma. Between them is a ring of stages,
each with barriers for "full" and "empty". While a block stores a tile, it fetches the next one.
Layout: a (m, k), b (k, n), any batch, row- or column-major; c and out (m, n), any strides.
wgmma reads 16-bit operands K-major or MN-major, and bytes K-major. tf32 operands must be K-major in
shared memory, but the left one may come from registers: an MN-major one is made the left, if need
be of b.T @ a.T.
Constraints: bases and strides at multiples of 16 bytes, as TMA wants. m, n and k are free: what
is out of bounds arrives as zeros. A stage is 128 bytes of k deep. Sums of float8 stay in the tensor
core, which keeps fewer bits of them than float32 has: `wgmma_float8` promotes them.
Source: NVIDIA, "Hopper Tuning Guide" and PTX ISA; CUTLASS's `KernelTmaWarpSpecializedCooperative`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.frames.tma import make_tma_kernel
from dxgemm.handwritten.parts import operands, wgmma_layouts
from dxgemm.handwritten.parts.block_mask import make_is_dead
from dxgemm.handwritten.parts.configs import WgmmaConfig as Config
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.store import make_store
from dxgemm.handwritten.parts.wgmma_mainloop import make_multiply
from dxgemm.handwritten.parts.wgmma_ring import make_load


def supports(problem: Any) -> str | None:
    """Reason why the kernel cannot take a problem; None if it can."""
    if problem.dtype in operands.FLOAT8 and problem.precision != "fast":
        return "its sums of float8 have fewer bits than float32; precision='fast' permits them"
    if problem.dtype in operands.FLOAT8 and "mn" in wgmma_layouts.innermost(problem):
        return "it reads float8 contiguous along k; wgmma_float8 reads others"
    if problem.clears and operands.ITEM_BYTES[problem.dtype] == 1:
        return "it multiplies what stands beside the diagonal of an operand of bytes"
    return wgmma_layouts.supports(problem)


def make_kernel(
    config: Config, dtype: str, a_innermost: str, b_innermost: str,
    out_dtype: str | None = None, stored: str = "", slicing: str = "", ranges: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, one layout, and the triangles `stored` of a symmetric result.

    If k is sliced, the grid has a y for each slice, and out holds one batch of sums per slice.
    `ranges` names the triangles of a and b, see `k_ranges`, or `Problem.clears` if `slicing` is
    "clears".
    """
    tile_k = wgmma_layouts.stage_k(dtype)
    way = wgmma_layouts.orient(config, dtype, a_innermost, b_innermost, stored, ranges, slicing)
    epilogue, _, is_dead = make_is_dead(epilogue, way.is_exchanged)
    config = config if way.right_across else config.k_major
    row_order = "split pairs" if dtype == "float32" and way.left_across else ""
    return make_tma_kernel(
        config,
        tile_k,
        make_place(config, tile_k, stored, slicing == "sliced", is_dead, ranges=way.ranges),
        make_load(config, tile_k, way.left_across, way.right_across, way.maps),
        make_multiply(config, way.dtype, way.left_across, way.right_across, way.clears),
        make_store(
            config, out_dtype or dtype, not way.is_exchanged, row_order, stored, epilogue,
            operands.sums_dtype(dtype),
        ),
        way.is_exchanged,
    )  # fmt: skip


KERNEL = Kernel(
    make_kernel=make_kernel,
    # The first is fastest where its tiles fill the GPU in whole waves. Other widths share out other
    # results better; pingpong is for two waves and more, and pairs for operands whose rows do not
    # begin at cache lines, so that each is read from L2 as two.
    configs=(
        Config(tile_m=128, tile_n=256),
        Config(tile_m=256, tile_n=160, is_paired=True),
        Config(tile_m=256, tile_n=160, is_turned=True, is_paired=True),
        Config(tile_m=256, tile_n=152, is_turned=True, is_paired=True),
        Config(tile_m=192, tile_n=192, is_paired=True),
        Config(tile_m=192, tile_n=176, is_paired=True),
        Config(tile_m=192, tile_n=160, is_paired=True),
        Config(tile_m=128, tile_n=256, is_turned=True),
        Config(tile_m=192, tile_n=144, is_turned=True, is_paired=True),
        Config(tile_m=128, tile_n=224),
        Config(tile_m=128, tile_n=192),
        Config(tile_m=128, tile_n=192, is_turned=True, is_paired=True),
        Config(tile_m=128, tile_n=176, is_pingpong=True),
        Config(tile_m=128, tile_n=176, is_pingpong=True, is_paired=True),
        Config(tile_m=128, tile_n=176, is_turned=True),
        Config(tile_m=128, tile_n=168, is_pingpong=True),
        Config(tile_m=128, tile_n=160),
        Config(tile_m=128, tile_n=144),
        Config(tile_m=128, tile_n=144, is_turned=True),
        Config(tile_m=128, tile_n=128),
        Config(tile_m=128, tile_n=128, is_pingpong=True),
        Config(tile_m=64, tile_n=256, is_pingpong=True),
        Config(tile_m=128, tile_n=112),
        Config(tile_m=64, tile_n=192, is_pingpong=True),
        Config(tile_m=64, tile_n=160),
        Config(tile_m=64, tile_n=144, is_turned=True),
        Config(tile_m=128, tile_n=64),
        Config(tile_m=64, tile_n=128),
        Config(tile_m=64, tile_n=128, is_pingpong=True),
        Config(tile_m=64, tile_n=64),
    ),
    dtypes=(*operands.HALVES, "float32", *operands.BYTES, *operands.FLOAT8),
    only_arch=90,
    supports=supports,
    variant=wgmma_layouts.variant,
    block_count=wgmma_layouts.block_count,
    tensor_maps=wgmma_layouts.tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    is_persistent=True,
    order_of_sums="wgmma",
    slices_k=True,
    copies_operands=True,
    takes_triangles=True,
    takes_k_ranges=True,
    clears_triangles=True,
    takes_masks=True,
    takes_pairs=True,
    quantises=True,
)
