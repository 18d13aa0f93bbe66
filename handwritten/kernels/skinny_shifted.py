"""Few rows or columns in half precision and int8 at any address, such as those of odd width.

Idea: `skinny_wgmma`, whose ring threads fill where TMA cannot: its rows begin at multiples of 16
bytes. Warpgroups take turns. Each has a stage in its registers, in flight from memory, while the
others write theirs to shared memory, shifted (line_tiles.py), in the order of TMA's swizzle.
Layout: a (m, k), b (k, n), any batch; the larger operand row- or column-major, int8 with
neighbouring k; the other one, c and out (m, n) with any strides.
Constraints: compute capability 9.0.
Source: PTX ISA, "Async Proxy", for the fence between a thread's writes and wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from dxgemm.handwritten.frames.skinny import make_skinny_kernel
from dxgemm.handwritten.parts import skinny_layouts
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.line_tiles import layout
from dxgemm.handwritten.parts.operands import HALVES
from dxgemm.handwritten.parts.skinny_layouts import large_operand
from dxgemm.handwritten.parts.skinny_load import make_lines_producer
from dxgemm.handwritten.parts.skinny_multiply import make_wgmma_consumer
from dxgemm.handwritten.parts.wgmma_ring import WARPGROUP


@dataclass(frozen=True)
class Config(skinny_layouts.Config):
    """A `skinny_layouts.Config` whose ring so many warpgroups fill."""

    warpgroups: int = 2

    @property
    def producers(self) -> int:
        return self.warpgroups * WARPGROUP


def innermost(problem: Any, name: str) -> str:
    """Layout of an operand: "k" or "mn", along which its elements are neighbours, or "any"."""
    kind = layout(problem, name)
    if kind.startswith("k"):
        return "k"
    is_large = name == large_operand(problem)
    return "mn" if kind.startswith("x") and is_large and problem.dtype != "int8" else "any"


def supports(problem: Any) -> str | None:
    """Reason why the larger operand cannot be read in lines; None if it can."""
    name = large_operand(problem)
    if innermost(problem, name) == "any" and problem.k > 0:
        where = "k" if problem.dtype == "int8" else "its rows or columns"
        return f"{name}, the larger operand, is not contiguous along {where}"
    return None


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """The left factor, the layouts of a and b, the dtype of the result if it is another."""
    innermosts = innermost(problem, "a"), innermost(problem, "b")
    if problem.k == 0:  # nothing is read
        innermosts = "k", "k"
    is_other = problem.out_dtype != problem.dtype
    return large_operand(problem), *innermosts, *([problem.out_dtype] if is_other else [])


KERNEL = Kernel(
    make_kernel=partial(make_skinny_kernel, make_wgmma_consumer, make_lines_producer),
    configs=(
        Config(64, panels=1, stages=9, warpgroups=2),
        Config(64, panels=1, stages=9, warpgroups=2, split_k=2),
        Config(64, panels=1, stages=9, warpgroups=2, split_k=8),
        Config(32, panels=1, stages=9, warpgroups=3),
        Config(32, panels=1, stages=9, warpgroups=3, split_k=2),
        Config(32, panels=1, stages=9, warpgroups=3, split_k=8),
        Config(8, panels=1, stages=8, warpgroups=4),
        Config(8, panels=1, stages=8, warpgroups=4, split_k=2),
        Config(8, panels=1, stages=8, warpgroups=4, split_k=4),
        Config(8, panels=1, stages=8, warpgroups=4, split_k=8),
    ),
    dtypes=(*HALVES, "int8"),
    only_arch=90,
    supports=supports,
    variant=variant,
    block_count=skinny_layouts.block_count,
    result_tile=skinny_layouts.result_tile,
    smaller_first=True,
    order_of_sums="wgmma",
    takes_pairs=True,
    quantises=True,
)
