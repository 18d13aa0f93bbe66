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
from dxgemm.handwritten.kernels.tensor_tile import make_line_kernel
from dxgemm.handwritten.parts.group_table import FIELDS
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.line_mainloop import stage_k
from dxgemm.handwritten.parts.line_tiles import common_layout
from dxgemm.handwritten.parts.place import Tile, make_place
from dxgemm.handwritten.parts.result import Result
from dxgemm.handwritten.parts.store import Store, make_store

OPERANDS = "a", "b", "c", "out"

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
    config: TableConfig, dtype: str, a_layout: str, b_layout: str, out_dtype: str,
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config and variant, as a Python function to compile.

    Its parameter m counts problems, and `batch` counts tiles. The last parameter holds the table
    and the scalars. A problem's operand counts as the second matrix of a batch: it begins where the
    stride between matrices, its start in the table, leads to.
    """
    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import Operand, unroll

    begin_store, store_tile = make_store(config, out_dtype)
    a_start, b_start, c_start, out_start = (FIELDS.index(f"{name}_start") for name in OPERANDS)

    def operand(data, table, at):
        return Operand(data, table[at], table[at + 1], table[at + 2])

    operand, fields = device_function(operand), len(FIELDS)

    def operands_of(work, tile, a, b, m, n, k):
        table = work.table
        at = work.table_rows + tile.matrix * fields
        a, b = operand(a.data, table, at + a_start), operand(b.data, table, at + b_start)
        return a, b, table[at], table[at + 1], table[at + 2]

    def begin(result):
        return 0

    def store(sums, smem, thread, tile, work, result, held):
        """Read now, the numbers of the problem take no registers of the main loop."""
        table, scalars = work.table, result.extra[1][0]
        at = work.table_rows + tile.matrix * fields
        alpha, beta = scalars[2 * tile.matrix], scalars[2 * tile.matrix + 1]
        c = operand(result.c.data, table, at + c_start)
        out = operand(result.out.data, table, at + out_start)
        m, n = table[at], table[at + 1]
        result = Result(alpha, beta, c, out, m, n, 1, result.extra)
        tile = Tile(1, 1, 1, tile.row, tile.col, m, 0, 0)
        store_tile(sums, smem, thread, tile, work, result, begin_store(result))

    return make_line_kernel(
        config, dtype, (a_layout, b_layout),
        make_place(config, stage_k(dtype), shared="each"),
        Store(device_function(begin), device_function(unroll(store))),
        device_function(unroll(operands_of)),
    )  # fmt: skip


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(*ALIGNED_SHARES, *SHIFTED_SHARES),
    dtypes=("float16", "bfloat16"),
    minimum_arch=80,
)
