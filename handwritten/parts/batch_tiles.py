"""Tiles of many small matrices: their configs, and which tile of which matrix a thread works on.

A tile is copied whole, k included, and then multiplied: a block of a few warps lives for some
thousand clocks, and its work around the product counts. So strides and offsets are 32-bit numbers,
of which one instruction makes an address, unless the strides of a matrix need more.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from dxgemm.handwritten.parts.configs import MOST_REGISTERS, REGISTERS_PER_SM
from dxgemm.handwritten.parts.kernel import BaseConfig, block_a_tile

# Words of a variant besides the layouts of a and b: strides that need 64 bits, and an a that is the
# same for a whole batch.
FAR, SHARED_A = "far", "shared a"
NEAR_BYTES = 1 << 31

# Limits of an SM for small blocks that share it. A block takes a little memory besides its own, and
# more threads would have too few registers each.
SMEM_BYTES, RESERVED_SMEM_BYTES, THREADS = 227 << 10, 1 << 10, 1024
EPILOGUE_REGISTERS = 32  # per thread, for the functions and their operands


def resident_blocks(threads: int, registers: int, smem_bytes: int) -> int:
    """Resident blocks per SM for given registers per thread and shared memory per block."""
    by_smem = SMEM_BYTES // (smem_bytes + RESERVED_SMEM_BYTES)
    by_registers = REGISTERS_PER_SM // (threads * min(registers, MOST_REGISTERS))
    return max(1, min(by_smem, by_registers, THREADS // threads))


@dataclass(frozen=True)
class BatchConfig(BaseConfig):
    """Tile of a matrix tile_m x tile_n x tile_k.

    A subclass says how many threads share a tile, `tile_threads`, the bytes of shared memory that
    it takes, `tile_bytes(dtype)`, and the registers for the sums and fragments of a thread,
    `tile_registers(dtype)`.

    Attributes:
        matrices: tiles that a block computes, each by threads of its own.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    _: KW_ONLY
    matrices: int = 1

    dynamic_smem = True
    address_registers: ClassVar[int] = 32
    # True if a warp with a tile of its own waits for no others. Reads then move across its barrier,
    # for which thread tiles have no registers.
    has_warps_apart: ClassVar[bool] = False

    @property
    def threads(self) -> int:
        threads: int = self.tile_threads * self.matrices  # type: ignore[attr-defined]
        return threads

    def smem_bytes(self, dtype: str) -> int:
        tile_bytes: int = self.tile_bytes(dtype)  # type: ignore[attr-defined]
        return self.matrices * tile_bytes

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM (`__launch_bounds__`): as many as it has room for.

        Most time is spent waiting for memory, which takes many blocks to fill.
        """
        return self._resident_blocks(dtype, self.address_registers)

    def min_blocks_fused(self, dtype: str) -> int:
        """`min_blocks` for a thread that has registers of an epilogue too."""
        return self._resident_blocks(dtype, self.address_registers + EPILOGUE_REGISTERS)

    def _resident_blocks(self, dtype: str, registers: int) -> int:
        """Resident blocks per SM, for so many registers per thread besides those of its tile."""
        registers += self.tile_registers(dtype)  # type: ignore[attr-defined]
        return resident_blocks(self.threads, registers, self.smem_bytes(dtype))


@dataclass(frozen=True)
class WarpConfig(BatchConfig):
    """A `BatchConfig` whose tile is shared out among warps, warp_m x warp_n each."""

    warp_m: int
    warp_n: int

    least_threads = 32

    @property
    def tile_threads(self) -> int:
        return 32 * (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)


def block_count(config: Any, problem: Any) -> int:
    """Blocks to launch: one for `config.matrices` tiles of the result."""
    return -(-block_a_tile(config, problem) // config.matrices)


def batch_notes(problem: Any) -> tuple[str, ...]:
    """Words of a variant about strides and batch: FAR, SHARED_A, both or none."""
    is_shared = problem.batch > 1 and problem.a.batch == 0
    return (*distance(problem), SHARED_A) if is_shared else distance(problem)


def distance(problem: Any) -> tuple[str, ...]:
    """Words of a variant about the strides in a matrix: FAR if their bytes exceed 32 bits."""
    item_size = np.dtype(problem.dtype).itemsize
    operands = (problem.a, problem.b, problem.c, problem.out)
    longest = max(abs(stride) for o in operands for stride in (o.row, o.col))
    return () if longest * item_size < NEAR_BYTES else (FAR,)
