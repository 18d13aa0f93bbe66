"""Configs of kernels for few rows or columns, their tiles and tensor maps.

The larger operand is the left factor, x; the other operand is the right factor, y. A panel of x has
64 rows of 128 bytes; a panel of y has one such row per column of the tile. If y is MN-major, its
rows have as many elements as the tile has columns, and TMA's swizzle has the same width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dxgemm.handwritten.parts import wgmma_layouts
from dxgemm.handwritten.parts.configs import SMEM_BYTES_PER_BLOCK
from dxgemm.handwritten.parts.kernel import BaseConfig, tiles_of
from dxgemm.handwritten.parts.operands import ITEM_BYTES
from dxgemm.handwritten.parts.tensor_map import TensorMap, operand_of
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, WARPGROUP

TILE = 64  # rows of the left factor
SUMS_ROW = (TILE + 4) * 4  # bytes per column of sums in shared memory, padded against conflicts


class SkinnyConfig(BaseConfig):
    """Base of configs whose tile is TILE rows of the left factor by `few` columns of the right one.

    A subclass has `few`, and `split_k`, the blocks of a cluster that share the k of a tile.
    """

    few: int
    split_k: int

    dynamic_smem = True
    partial_tiles: ClassVar[int] = 1  # partial tiles that a block adds up at the end

    @property
    def cluster(self) -> int:
        return self.split_k

    @property
    def tile_m(self) -> int:
        """Rows of a tile of the result, or columns if the result has few columns."""
        return self.few

    @property
    def tile_n(self) -> int:
        return TILE

    @property
    def sums_bytes(self) -> int:
        return self.few * SUMS_ROW


@dataclass(frozen=True)
class Config(SkinnyConfig):
    """Tile of TILE rows of the left factor by `few` columns of the right one.

    Attributes:
        panels: k per stage, in multiples of 128 bytes.
        split_k: blocks of a cluster that share the k of a tile.
    """

    few: int
    panels: int
    stages: int
    split_k: int = 1

    begins_early = True

    def complaints(self) -> Iterator[str]:
        if self.few not in (8, 16, 32, 64):
            yield "a tile has 8, 16, 32 or 64 columns, as many as are a swizzle's width"
        if self.few * TILE % self.split_k:
            yield "the blocks of a cluster add up equal shares of a tile"
        needed = self.smem_bytes("float32")
        if needed > SMEM_BYTES_PER_BLOCK:
            yield f"{needed} bytes of shared memory, more than {SMEM_BYTES_PER_BLOCK}"
        if self.partial_tiles * self.sums_bytes > self.stages * self.stage_bytes:
            yield "its sums do not fit in the place of the stages"

    @property
    def producers(self) -> int:
        """Threads of the producer; with TMA only one of them fills the ring."""
        return 32

    @property
    def threads(self) -> int:
        return WARPGROUP + self.producers

    def tile_k(self, dtype: str) -> int:
        """k per stage."""
        return self.panels * ROW_BYTES // ITEM_BYTES[dtype]

    @property
    def stage_bytes(self) -> int:
        return self.panels * (TILE + self.few) * ROW_BYTES

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, aligned to 1024, of the barriers, and of the sums from a cluster."""
        return 1024 + self.stages * (self.stage_bytes + 16) + self.sums_bytes * (self.split_k > 1)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.partial_tiles * TILE * self.few // WARPGROUP * 4

    def __str__(self) -> str:
        tile = f"{self.few}x{TILE} panels {self.panels} stages {self.stages}"
        return tile + (f" split {self.split_k}" if self.split_k > 1 else "")


def large_operand(problem: Any) -> str:
    """Operand that is the left factor: "b" for few rows of the result, "a" for few columns."""
    return "b" if problem.m <= problem.n else "a"


def result_tile(config: Config, problem: Any) -> tuple[int, int]:
    """Rows and columns of a block's tile of the result."""
    return (config.few, TILE) if large_operand(problem) == "b" else (TILE, config.few)


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one cluster per tile of each matrix of the result."""
    blocks: int = problem.batch * tiles_of(problem, *result_tile(config, problem)) * config.split_k
    return blocks


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Name of the left factor, then the variant of `wgmma`."""
    return large_operand(problem), *wgmma_layouts.variant(config, problem)


def tensor_maps(config: Config, problem: Any) -> tuple[TensorMap | None, ...]:
    """Tensor maps of a and b, with the boxes that the producer copies; None if nothing is read."""
    if problem.k == 0:
        return None, None
    maps, panel_k = [], ROW_BYTES // ITEM_BYTES[problem.dtype]
    for name in ("a", "b"):
        operand = operand_of(problem, name)
        box_along = config.few
        if name == large_operand(problem):
            box_along = TILE if operand.innermost == "k" else panel_k
        maps.append(operand.tensor_map(problem.dtype, box_along, panel_k))
    return tuple(maps)
