"""Many problems of any sizes in one launch: a block finds its own in a table.

Idea: grown from `small_batch` and `tensor_batch`, whose tiles it computes. Tiles are numbered
through all problems. If problems differ in sizes or strides, a table in global memory has a row of
sizes, strides and starts of operands for each; a binary search over the first tile of each problem
leads from a tile to its problem. If they differ in addresses alone, everything is a parameter as in
a batch, and a block first reads the starts of its operands.
Layout: a (m, k), b (k, n), c and out (m, n), different for each problem, any strides. `table` is
that of group_table.py; `scalars` holds alpha and beta of each. For problems that are alike,
`starts` holds the starts of a, b, c and out.
Constraints: those of the other two. No problem is empty but one at the end, to which tiles beyond
the last belong (see group_offsets.py). If a block has several tiles, each takes as many steps as
the longest k.
Source: NVIDIA's CUTLASS, "Grouped Kernel Schedulers", for the visit of tiles by their problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.kernels import small_batch, tensor_batch
from dxgemm.handwritten.kernels.tensor_batch import Config as TensorConfig
from dxgemm.handwritten.parts.batch_place import Matrix, Product, Tile, make_find_matrix
from dxgemm.handwritten.parts.batch_tiles import block_count
from dxgemm.handwritten.parts.batch_tiles import distance as distance  # re-exported
from dxgemm.handwritten.parts.group_table import make_find_problem
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.operands import operand_mode
from dxgemm.handwritten.parts.unroll import device

ALIKE, TABLE = "alike", "table"  # kinds of kernels
START_BYTES = 32  # of an equal problem: four starts


@dataclass(frozen=True)
class TableConfig(small_batch.Config):
    """A tile whose sizes, strides and addresses take registers, instead of being parameters."""

    address_registers = 64


@dataclass(frozen=True)
class TensorTableConfig(TensorConfig):
    """A `TableConfig` on tensor cores."""

    address_registers = 96


# Configs for float64, in place of those that have as many rows.
TENSOR_CONFIGS = (
    TensorTableConfig(64, 64, 32, warp_m=32, warp_n=32),
    TensorTableConfig(32, 32, 32, warp_m=16, warp_n=16),
    TensorTableConfig(16, 16, 16, warp_m=8, warp_n=16, matrices=2),
)

# Fraction of its peak that an SM reaches, by the rows of a tile. Most time is spent waiting for
# memory, so an estimate is enough to tell tiles apart.
SHARES = {64: 0.55, 32: 0.4, 16: 0.2, 8: 0.1, 4: 0.04}
TENSOR_SHARES = {64: 1.1, 32: 0.6, 16: 0.25}


def table_configs(dtype: str, capability: int, variant: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """The configs of a dtype and a compute capability (times 10), for problems that differ."""
    if dtype not in tensor_batch.KERNEL.dtypes or capability < tensor_batch.KERNEL.minimum_arch:
        return KERNEL.configs
    least = min(config.tile_m for config in TENSOR_CONFIGS)
    return TENSOR_CONFIGS + tuple(config for config in KERNEL.configs if config.tile_m < least)


def share(config: Any) -> float:
    """Fraction of its peak without tensor cores that an SM reaches, an estimate."""
    shares = TENSOR_SHARES if isinstance(config, TensorConfig) else SHARES
    return shares[config.tile_m]


def make_kernel(
    config: Any, dtype: str, a_mode: str, b_mode: str, kind: str, *notes: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile."""
    file = tensor_batch if isinstance(config, TensorConfig) else small_batch
    place = make_alike_place(config) if kind == ALIKE else make_table_place(config)
    return file.make_kernel(config, dtype, a_mode, b_mode, *notes, place=place)


def make_alike_place(config: Any) -> Callable[..., Any]:
    """The place for problems that differ in addresses alone, the starts of which `extra` holds."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import global_address, load_global

    find_matrix = make_find_matrix(config)

    @device
    def place(given, block, thread, extra):
        a, b, c, out, alpha, beta, m, n, k, batch = given
        m, n, k = int32(m), int32(n), int32(k)
        tile = find_matrix(block, thread, m, n, k, int32(batch))
        starts = global_address(extra[0][0]) + int64(tile.matrix) * START_BYTES
        a_start, b_start = load_global(int64, 2, starts, 0)
        c_start, out_start = load_global(int64, 2, starts, 16)
        return tile, Product(
            Matrix(a.data, a_start, 0, a.row, a.col), Matrix(b.data, b_start, 0, b.row, b.col),
            Matrix(c.data, c_start, 0, c.row, c.col),
            Matrix(out.data, out_start, 0, out.row, out.col), alpha, beta, m, n, k, batch,
        )  # fmt: skip

    return place


def make_table_place(config: Any) -> Callable[..., Any]:
    """The place for problems that differ in sizes or strides.

    The kernel's parameter m counts problems, `batch` counts tiles, and k is the longest k of all.
    `extra` holds the table and the scalars.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import divide

    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    tile_threads, matrices = config.tile_threads, config.matrices
    find_problem = make_find_problem()

    @device
    def matrix_at(data, table, at):
        return Matrix(data, table[at], 0, table[at + 1], table[at + 2])

    @device
    def place(given, block, thread, extra):
        a, b, c, out, _, _, problems, _, k, tiles = given
        member, thread = int32(thread // tile_threads), int32(thread % tile_threads)
        table, scalars = extra[0][0], extra[1][0]
        found = block * matrices + member
        problem, number, row = find_problem(table, problems, min(found, tiles - 1))
        own_m, own_n, own_k = table[row], table[row + 1], table[row + 2]
        tiles_n: int32 = (own_n + tile_n - 1) // tile_n
        tile_row = divide(number, tiles_n)
        tile_col: int32 = number - tile_row * tiles_n
        # Threads of several tiles must meet at the same barriers.
        longest = own_k if matrices == 1 else k
        tile = Tile(
            thread, member, found < tiles and own_m > 0, 0, tile_row * tile_m, tile_col * tile_n,
            int32((longest + tile_k - 1) // tile_k),
        )  # fmt: skip
        return tile, Product(
            matrix_at(a.data, table, row + 3), matrix_at(b.data, table, row + 6),
            matrix_at(c.data, table, row + 9), matrix_at(out.data, table, row + 12),
            scalars[2 * problem], scalars[2 * problem + 1], own_m, own_n, own_k, 1,
        )  # fmt: skip

    return place


def batch_variant(batch: Any) -> tuple[str, ...]:
    """Variant for equal problems, of which `batch` is one or all: modes, ALIKE and perhaps FAR."""
    common = modes([(operand_mode(batch, "a"), operand_mode(batch, "b"))])
    return (*common, ALIKE, *distance(batch))


def table_variant(problems: Sequence[Any]) -> tuple[str, ...]:
    """Variant for problems that differ: modes, TABLE and perhaps FAR."""
    common = modes([(operand_mode(p, "a"), operand_mode(p, "b")) for p in problems])
    return (*common, TABLE, *max(map(distance, problems)))


def modes(operands: list[tuple[str, str]]) -> tuple[str, str]:
    """Layouts that a kernel is compiled for: one in which it can read every a, one for every b.

    Args:
        operands: `operand_mode` of a and b of each problem.
    """
    a_mode, b_mode = (_common_mode(set(of_all)) for of_all in zip(*operands, strict=True))
    return a_mode, b_mode.replace("col16", "col")


def _common_mode(found: set[str]) -> str:
    """Layout in which any of these operands can be read; element by element, any layout can."""
    if len(found) == 1:
        return found.pop()
    directions = {mode.removesuffix("16") for mode in found}
    return directions.pop() if len(directions) == 1 else "row"


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        TableConfig(64, 64, 32, thread_m=8, thread_n=4, matrices=1),
        TableConfig(32, 32, 32, thread_m=4, thread_n=4, matrices=1),
        TableConfig(16, 16, 16, thread_m=2, thread_n=4, matrices=4),
        TableConfig(8, 8, 8, thread_m=2, thread_n=4, matrices=16),
        TableConfig(4, 4, 4, thread_m=1, thread_n=4, matrices=32),
    ),
    minimum_arch=80,
    block_count=block_count,
)
