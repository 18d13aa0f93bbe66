"""float8 on tensor cores by `mma.sync`, from Ada on, with sums promoted to float32 every 128 of k.

Idea: `tensor_tile`, whose sums of a stage, of which tensor cores keep fewer bits than float32 has,
are added to the tile's sums in float32. So a warp has twice the sums, and a smaller tile.
Layout: a (m, k), b (k, n), any batch, of either float8 format; c and out (m, n), any strides,
bfloat16, float16 or float32. MN-major operands are transposed in registers, on their way to shared
memory.
Constraints: those of `tensor_tile`; compute capability 8.9.
Source: PTX ISA, "mma.m16n8k32", types .e4m3 and .e5m2; as `promoted_mainloop`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dxgemm.handwritten.kernels import tensor_tile
from dxgemm.handwritten.kernels.tensor_tile import Config, make_line_kernel
from dxgemm.handwritten.parts.block_mask import make_is_dead
from dxgemm.handwritten.parts.line_mainloop import stage_k
from dxgemm.handwritten.parts.line_tiles import STEPS, layout
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.store import make_store

LAYOUTS = "k16", "k16_ragged", "x4"  # of a and b, see `line_tiles`


def make_add(dtype: str, count: int) -> tuple[Callable[..., Any], ...]:
    """The products of a step, by step of a stage; behind `count` totals are sums of the stage."""
    from numba import float32

    from dxgemm.handwritten.parts.intrinsics import add_scaled, device_function, zeros
    from dxgemm.handwritten.parts.mma import mma_tile
    from dxgemm.handwritten.parts.unroll import unroll

    def make_step(is_first: bool, is_last: bool) -> Callable[..., Any]:
        def add(sums, a_frag, b_frag):
            totals, stage = sums[:count], sums[count:]
            if is_first:
                stage = zeros(float32, count)
            stage = mma_tile(dtype, stage, a_frag, b_frag)
            if is_last:
                totals = add_scaled(totals, stage, float32(1))
            return totals + stage

        return device_function(unroll(add))

    return tuple(make_step(step == 0, step == STEPS - 1) for step in range(STEPS))


def supports(problem: Any) -> str | None:
    """Reason why a problem's operands cannot be copied by whole words; None if they can."""
    kinds = {layout(problem, name) for name in "ab"}
    if not problem.is_empty and problem.k > 0 and not kinds <= set(LAYOUTS):
        return f"it reads lines of {', '.join(LAYOUTS)}, not of {', '.join(kinds)}"
    return None


def make_kernel(
    config: Config, dtype: str, a_layout: str, b_layout: str, out_dtype: str, slicing: str = "",
    ranges: str = "", epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config; its variant is that of `tensor_tile`."""
    epilogue, _, is_dead = make_is_dead(epilogue)
    count, is_sliced = config.warp_m * config.warp_n // 32, slicing == "sliced"
    return make_line_kernel(
        config,
        dtype,
        (a_layout, b_layout),
        make_place(config, stage_k(dtype), is_sliced=is_sliced, is_dead=is_dead, ranges=ranges),
        make_store(config, out_dtype, epilogue=epilogue),
        add=make_add(dtype, count),
        kept=count,
    )


KERNEL = replace(
    tensor_tile.KERNEL,
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=64, warp_m=32, stages=3),
        Config(tile_m=64, tile_n=128, warp_m=32, stages=3),
        Config(tile_m=64, tile_n=64, warp_m=16, stages=4),
    ),
    dtypes=FLOAT8,
    supports=supports,
    minimum_arch=89,
    order_of_sums="mma_float8",
)
