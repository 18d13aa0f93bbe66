"""Half precision of any sizes in one launch, on tensor cores by `mma.sync`, from Ampere on.

Idea: `tensor_tile` and `shifted_tile`, whose blocks find their problems in a table as those of
`grouped` do. The kernel is compiled for one layout of a and one of b in which all problems can be
read: aligned lines are copied straight to shared memory; lines at any address go through registers,
and so do elements, where some problems have lines along k and others across it.
Layout: a (m, k), b (k, n), c and out (m, n), different for each problem, any strides; c and out in
the dtype of a and b or in float32. The table is that of group_table.py.
Constraints: those of `tensor_tile`, and that of `grouped` on empty problems.
Source: as `tensor_tile` and `grouped`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.kernels import tensor_tile
from dxgemm.handwritten.kernels.tensor_tile import WARP_N
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.line_tiles import common_layout

ALIGNED = "16"  # part of the names of layouts whose lines are aligned


@dataclass(frozen=True)
class TableConfig(tensor_tile.Config):
    """Config of `tensor_tile`; a block computes one tile."""

    matrices = 1


# Configs for aligned operands and for any, with the fraction of its peak that an SM reaches: an
# estimate, after the speeds of `tensor_tile` and `shifted_tile` on the H100. Warp tiles of 64 x 64
# would spill before Hopper: a problem's numbers take registers instead of being parameters.
ALIGNED_SHARES = {
    TableConfig(tile_m=128, tile_n=128, warp_m=32, stages=3): 0.65,
    TableConfig(tile_m=64, tile_n=128, warp_m=32, stages=3): 0.54,
    TableConfig(tile_m=64, tile_n=64, warp_m=16, stages=4): 0.37,
}
SHIFTED_SHARES = {
    TableConfig(tile_m=128, tile_n=128, warp_m=32, stages=2): 0.44,
    TableConfig(tile_m=64, tile_n=128, warp_m=16, stages=2): 0.25,
    TableConfig(tile_m=64, tile_n=64, warp_m=16, stages=3): 0.18,
}


def table_variant(problems: Sequence[Any]) -> tuple[str, ...]:
    """Layouts of a and b (see `line_tiles`) for all problems, and the dtype of the results."""
    read = [problem for problem in problems if problem.k] or problems
    return common_layout(read, "a"), common_layout(read, "b"), problems[0].out_dtype


def table_configs(dtype: str, capability: int, variant: tuple[str, ...]) -> tuple[Any, ...]:
    """The configs of a variant: those of `tensor_tile` if a and b are aligned in all problems."""
    are_aligned = all(ALIGNED in layout for layout in variant[:2])
    return tuple(ALIGNED_SHARES if are_aligned else SHIFTED_SHARES)


def share(config: TableConfig) -> float:
    """Fraction of its peak that an SM reaches, an estimate."""
    return (ALIGNED_SHARES | SHIFTED_SHARES)[config]


def make_kernel(
    config: TableConfig,
    dtype: str,
    a_layout: str,
    b_layout: str,
    out_dtype: str,
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and variant, as a Python function to compile.

    Its parameter m counts problems, and `batch` counts tiles. The last parameter holds the table
    and the scalars.
    """
    from dxgemm.handwritten.parts.wgmma_store import make_store_tile

    store = make_store_tile(WARP_N, out_dtype, True, False)
    return tensor_tile.make_tile_kernel(config, dtype, a_layout, b_layout, store, is_grouped=True)


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(*ALIGNED_SHARES, *SHIFTED_SHARES),
    dtypes=("float16", "bfloat16"),
    minimum_arch=80,
)
