"""Occupancy: the resident blocks of a kernel per SM, and the resources that limit them.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", for the
limits; NVIDIA's occupancy calculator for the units in which an SM hands out registers and shared
memory. `cuOccupancyMaxActiveBlocksPerMultiprocessor` gives the same numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WARP_THREADS = 32
REGISTER_UNIT = 256  # registers are given to a warp in pieces of this many ...
WARP_UNIT = 4  # ... and warps come in fours: an SM has four schedulers with a register file each
SMEM_UNIT = 128  # bytes


@dataclass(frozen=True)
class SmLimits:
    """Resources that the blocks on one SM share.

    Attributes:
        threads, blocks, registers, smem_bytes: limits on the total of all resident blocks.
        reserved_smem_bytes: shared memory that the system takes per block on top of the block's.
    """

    threads: int
    blocks: int
    smem_bytes: int
    registers: int = 65536
    reserved_smem_bytes: int = 1024

    @property
    def smem_bytes_per_block(self) -> int:
        """Most shared memory that a block can ask for."""
        return self.smem_bytes - self.reserved_smem_bytes


_KIB = 1024
_LIMITS = {
    70: SmLimits(2048, 32, 96 * _KIB, reserved_smem_bytes=0),
    75: SmLimits(1024, 16, 64 * _KIB, reserved_smem_bytes=0),
    80: SmLimits(2048, 32, 164 * _KIB),
    86: SmLimits(1536, 16, 100 * _KIB),
    87: SmLimits(1536, 16, 164 * _KIB),
    89: SmLimits(1536, 24, 100 * _KIB),
    90: SmLimits(2048, 32, 228 * _KIB),
    100: SmLimits(2048, 32, 228 * _KIB),
    103: SmLimits(2048, 32, 228 * _KIB),
    120: SmLimits(1536, 24, 100 * _KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """Occupancy calculation, step by step.

    Attributes:
        limits: limits of the SM.
        warps: warps per block.
        registers_of_warp: registers per warp, as allocated.
        smem_bytes_of_block: shared memory per block as allocated, with the reserved bytes.
        blocks_by: by name of each limit, the blocks that would fit if it were the only one.
    """

    limits: SmLimits
    warps: int
    registers_of_warp: int
    smem_bytes_of_block: int
    blocks_by: dict[str, int]

    @property
    def blocks(self) -> int:
        """Resident blocks per SM."""
        return min(self.blocks_by.values())

    @property
    def limiters(self) -> tuple[str, ...]:
        """Names of the limits that the number of resident blocks reaches."""
        return tuple(name for name, blocks in self.blocks_by.items() if blocks == self.blocks)

    @property
    def most_warps(self) -> int:
        """Warps an SM can hold."""
        return self.limits.threads // WARP_THREADS

    @property
    def resident_warps(self) -> int:
        return self.blocks * self.warps

    @property
    def fraction(self) -> float:
        """Occupancy: resident warps over the warps that an SM can hold."""
        return self.resident_warps / self.most_warps


def sm_limits(arch: str) -> SmLimits | None:
    """Limits of an architecture such as "sm_90a"; None if they are not known."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return _LIMITS.get(int(match[1])) if match else None


def occupancy(limits: SmLimits, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """Calculate how many blocks of a kernel fit on an SM.

    Args:
        limits: limits of the SM.
        threads: threads per block.
        registers: registers per thread.
        smem_bytes: shared memory per block, static and dynamic together.
    """
    warps = -(-threads // WARP_THREADS)
    registers_of_warp = _round_up(registers * WARP_THREADS, REGISTER_UNIT)
    smem_bytes_of_block = _round_up(smem_bytes + limits.reserved_smem_bytes, SMEM_UNIT)
    blocks_by = {
        "threads": limits.threads // WARP_THREADS // warps,
        "blocks": limits.blocks,
        "registers": limits.registers // registers_of_warp // WARP_UNIT * WARP_UNIT // warps,
    }
    if smem_bytes:
        blocks_by["shared memory"] = limits.smem_bytes // smem_bytes_of_block
    return Occupancy(limits, warps, registers_of_warp, smem_bytes_of_block, blocks_by)


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
