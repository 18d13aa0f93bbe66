"""Half precision and int8 on tensor cores by `mma.sync`, from Ampere on.

Idea: grown from `tensor_core`. A tile of a and b is one line of 128 bytes of k deep in shared
memory. `ldmatrix` reads it as fragments, in either layout of the operand (line_tiles.py), so
that nothing changes sides. Copies go straight to shared memory, or, in `shifted_tile`, through
registers: a tile is read while the one before is multiplied, and written once that is half done.
Layout: a (m, k), b (k, n), row- or column-major, any batch, int8 with neighbouring k; c and out
(m, n), any strides, in the dtype of a and b or in float32, and for int8 in int32.
Constraints: compute capability 8.0; rows of a and b, or columns, begin at multiples of 16 bytes;
all extents powers of two, see `Config`. Edges are predicated: elements outside count as zero and
are not written.
Source: PTX ISA, "mma.m16n8k16", "mma.m16n8k32", "ldmatrix", "cp.async"; A. Kerr et al., "CUTLASS:
Fast Linear Algebra in CUDA C++", NVIDIA 2017, for the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.frames.ring import make_ring_kernel
from dxgemm.handwritten.parts.block_mask import make_is_dead
from dxgemm.handwritten.parts.configs import LineConfig
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.line_mainloop import make_line_tiles, make_multiply, stage_k
from dxgemm.handwritten.parts.line_tiles import layout
from dxgemm.handwritten.parts.operands import BYTES, HALVES, ITEM_BYTES, sums_dtype
from dxgemm.handwritten.parts.place import Place, make_place
from dxgemm.handwritten.parts.ring import make_load
from dxgemm.handwritten.parts.store import Store, make_store


@dataclass(frozen=True)
class Config(LineConfig):
    """Block tile tile_m x tile_n; warp tile warp_m x 64.

    Attributes:
        stages: tiles of a and b in shared memory.
    """

    tile_m: int
    tile_n: int
    warp_m: int
    stages: int

    least_threads = 64
    warp_n = 64  # two chunks of `chunk_store`

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        for name in ("tile_m", "tile_n", "warp_m"):
            extent = getattr(self, name)
            if extent & (extent - 1):
                yield f"{name} must be a power of two"
        if self.warp_m < 16 or self.tile_m < 64:
            yield "a warp computes 16 rows or more, a line holds 64"

    def accumulator_bytes(self, dtype: str) -> int:
        return self.warp_m * self.warp_n // 32 * 4

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n} warp {self.warp_m}x{self.warp_n} stages {self.stages}"


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Layouts of a and b (see `line_tiles`), dtype of the result, "sliced" if k is, its ranges.

    The latter two are left out where they are empty.
    """
    kinds = layout(problem, "a"), layout(problem, "b"), problem.out_dtype
    if problem.k_ranges:
        return *kinds, "", problem.k_ranges
    return kinds if problem.slices == 1 else (*kinds, "sliced")


def supports(problem: Any) -> str | None:
    """Reason why a problem's operands cannot be copied 16 bytes at a time; None if they can."""
    unaligned = [name for name in "ab" if "16" not in layout(problem, name)]
    if unaligned and not problem.is_empty and problem.k > 0:
        return f"{' and '.join(unaligned)} cannot be copied 16 bytes at a time"
    return None


def make_kernel(
    config: Config, dtype: str, a_layout: str, b_layout: str, out_dtype: str, slicing: str = "",
    ranges: str = "", epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config and variant, as a Python function to compile.

    If k is sliced, the grid has a y for each slice, and out holds one batch of sums per slice.
    `ranges` names the triangles of a and b, see `k_ranges`.
    """
    is_sliced = slicing == "sliced"
    epilogue, _, is_dead = make_is_dead(epilogue)
    return make_line_kernel(
        config, dtype, (a_layout, b_layout),
        make_place(config, stage_k(dtype), is_sliced=is_sliced, is_dead=is_dead, ranges=ranges),
        make_store(config, out_dtype, epilogue=epilogue, acc_dtype=sums_dtype(dtype)),
    )  # fmt: skip


def make_line_kernel(
    config: LineConfig, dtype: str, layouts: tuple[str, str], place: Place, store: Store,
    operands_of: Callable[..., Any] | None = None, **multiply: Any,
) -> Callable[..., None]:  # fmt: skip
    """The kernel with parts of its own.

    Args:
        layouts: of a and b, see `line_tiles`.
        operands_of: see `ring.make_load`.
        multiply: further arguments of `line_mainloop.make_multiply`.
    """
    tile_k, lines = stage_k(dtype), make_line_tiles(config, dtype, *layouts)
    load = make_load(config, tile_k, ITEM_BYTES[dtype], lines, operands_of)
    return make_ring_kernel(
        tile_k,
        place,
        load.fill,
        make_multiply(config, dtype, lines, load, **multiply),
        store,
    )


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=256, warp_m=64, stages=3),
        Config(tile_m=128, tile_n=128, warp_m=64, stages=3),
        Config(tile_m=64, tile_n=128, warp_m=32, stages=3),
        Config(tile_m=64, tile_n=64, warp_m=16, stages=4),
    ),
    dtypes=(*HALVES, *BYTES),
    minimum_arch=80,
    supports=supports,
    variant=variant,
    copies_operands=True,
    takes_masks=True,
    takes_k_ranges=True,
    takes_pairs=True,
    quantises=True,
    slices_k=True,
    order_of_sums="mma",
)
