"""float32 products by float16 `mma.sync`: `emulated_float32` for GPUs without `wgmma`.

Idea: the products of parts of `emulated_float32` in the form of `tensor_tile`. A stage holds a tile
of each part of a and of b. hi @ hi is summed anew for each step of 16 k, and added to the total by
true float32 additions; lo @ hi and hi @ lo are summed over a stage. A warp has 32 x 32 elements, so
that these three sums and the fragments of two steps fit its registers.
Layout: a (m, k) and b (k, n) as `decompose` leaves them, K-major or MN-major, any batch; c and out
(m, n), any strides. In the last parameter, after the epilogue's operands: the factors that scale
rows and columns back, and the flag of validity_check.
Constraints: compute capability 8.0; m, n and k are free. If the flag is not 0, the kernel computes
nothing and leaves the product to `native_fallback`.
Source: as `emulated_float32` and `tensor_tile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dxgemm.handwritten.kernels import emulated_float32
from dxgemm.handwritten.kernels.tensor_tile import make_line_kernel
from dxgemm.handwritten.parts.configs import LineConfig
from dxgemm.handwritten.parts.emulation import SCHEMES
from dxgemm.handwritten.parts.kernel import Reductions, no_maps
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES, STEPS
from dxgemm.handwritten.parts.operands import ITEM_BYTES
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.scale_back import make_scale_back
from dxgemm.handwritten.parts.store import make_store

ELEMENT = "float16"
CHUNK_ITEMS = CHUNK_BYTES // ITEM_BYTES[ELEMENT]


@dataclass(frozen=True)
class Config(LineConfig):
    """A `LineConfig` for parts."""

    tile_m: int
    tile_n: int
    stages: int

    warp_m, warp_n, parts = 32, 32, 2

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.tile_m not in (64, 128) or self.tile_n not in (64, 128):
            yield "tile_m and tile_n are 64 or 128"

    def accumulator_bytes(self, dtype: str) -> int:
        return 3 * self.warp_m * 4

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n} stages {self.stages}"


def make_add(config: Config, shift: int) -> tuple[Callable[..., Any], ...]:
    """The products of a step, by step of a stage: see the idea above.

    The sums are the total, then those of lo @ hi and hi @ lo, which are multiples of 2**-shift.
    """
    from numba import float32

    from dxgemm.handwritten.parts.intrinsics import add_scaled, device_function, zeros
    from dxgemm.handwritten.parts.mma import mma_tile
    from dxgemm.handwritten.parts.unroll import unroll

    count, unit = config.warp_m * config.warp_n // 32, float(2.0**-shift)
    a_half, b_half = config.warp_m // 4, config.warp_n // 4  # registers of a part

    def make_step(is_first: bool, is_last: bool) -> Callable[..., Any]:
        def add(sums, a_frag, b_frag):
            total, small = sums[:count], sums[count:]
            a_hi, a_lo = a_frag[:a_half], a_frag[a_half:]
            b_hi, b_lo = b_frag[:b_half], b_frag[b_half:]
            if is_first:
                small = zeros(float32, count)
            large = mma_tile(ELEMENT, zeros(float32, count), a_hi, b_hi)
            small = mma_tile(ELEMENT, small, a_hi, b_lo)
            small = mma_tile(ELEMENT, small, a_lo, b_hi)
            total = add_scaled(total, large, float32(1))
            if is_last:
                total = add_scaled(total, small, float32(unit))
            return total + small

        return device_function(unroll(add))

    return tuple(make_step(step == 0, step == STEPS - 1) for step in range(STEPS))


def make_operands_of(a_is_k_major: bool, b_is_k_major: bool) -> Callable[..., Any]:
    """A device function: the parts as operands, whose lines are filled up to whole chunks."""
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import Operand, unroll

    def line_items(length):
        return (length + CHUNK_ITEMS - 1) // CHUNK_ITEMS * CHUNK_ITEMS

    line_items = device_function(line_items)

    def operands_of(work, tile, a, b, m, n, k):
        if a_is_k_major:
            a = Operand(a.data, m * line_items(k), line_items(k), 1)
        else:
            a = Operand(a.data, k * line_items(m), 1, line_items(m))
        if b_is_k_major:
            b = Operand(b.data, n * line_items(k), 1, line_items(k))
        else:
            b = Operand(b.data, k * line_items(n), line_items(n), 1)
        return a, b, m, n, k

    return device_function(unroll(operands_of))


def make_kernel(
    config: Config, dtype: str, scheme_name: str, a_innermost: str, b_innermost: str,
    stored: str = "", epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config and one layout, as a Python function to compile.

    Args:
        scheme_name: a key of `emulation.SCHEMES`, one of two float16 parts.
        a_innermost, b_innermost: layout of the parts: "k" (K-major) or "mn" (MN-major).
        stored: triangles of a symmetric result that are written; "" for another result.
        epilogue: a `Fusion`, whose operands end with the buffers of row factors, column factors and
            the flag of validity_check.
    """
    a_is_k_major, b_is_k_major = a_innermost == "k", b_innermost == "k"
    flag = len(epilogue.operands) - 1
    return make_line_kernel(
        config,
        ELEMENT,
        ("k16" if a_is_k_major else "x16", "k16" if b_is_k_major else "x16"),
        make_place(config, config.tile_k, stored, flag=flag),
        make_store(
            config, "float32", stored=stored, epilogue=epilogue if epilogue.stages else None,
            commutes=False, prepare=make_scale_back(config.warp_n, flag - 2),
        ),
        make_operands_of(a_is_k_major, b_is_k_major),
        add=make_add(config, SCHEMES[scheme_name].shift),
        kept=config.warp_m * config.warp_n // 32,
    )  # fmt: skip


KERNEL = replace(
    emulated_float32.KERNEL,
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=64, stages=3),
        Config(tile_m=128, tile_n=64, stages=2),
        Config(tile_m=64, tile_n=64, stages=2),
    ),
    only_arch=None,
    minimum_arch=80,
    tensor_maps=no_maps,
    tensor_map_names=(),
    is_persistent=False,
    reductions=Reductions.NONE,
)
