"""How many blocks of a kernel an SM holds at once, and what stops it from holding more.

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
    """What the blocks on one SM share.

    Attributes:
        threads, blocks, registers, smem_bytes: at most, at once.
        reserved_smem_bytes: what the system takes for each block on top of its own.
    """

    threads: int
    blocks: int
    smem_bytes: int
    registers: int = 65536
    reserved_smem_bytes: int = 1024


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
    """The calculation, step by step.

    Attributes:
        limits: of the SM.
        threads, registers, smem_bytes: of a block, a thread and a block: what is asked for.
        warps: of a block.
        registers_of_warp: as allocated.
        smem_bytes_of_block: as allocated, with what the system takes.
        blocks_by: blocks that would fit if this were the only limit, by the limit's name.
    """

    limits: SmLimits
    threads: int
    registers: int
    smem_bytes: int
    warps: int
    registers_of_warp: int
    smem_bytes_of_block: int
    blocks_by: dict[str, int]

    @property
    def blocks(self) -> int:
        """Blocks resident on an SM at once."""
        return min(self.blocks_by.values())

    @property
    def limiters(self) -> tuple[str, ...]:
        """Names of the limits that hold the number of blocks down."""
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
        """Resident warps over those an SM can hold: what is called occupancy."""
        return self.resident_warps / self.most_warps


def sm_limits(arch: str) -> SmLimits | None:
    """The limits of an architecture such as "sm_90a"; None if they are not known here."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return _LIMITS.get(int(match[1])) if match else None


def occupancy(limits: SmLimits, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """How many blocks fit.

    Args:
        limits: of the SM.
        threads: of a block.
        registers: of a thread.
        smem_bytes: of a block, static and dynamic together.
    """
    warps = _round_up(threads, WARP_THREADS) // WARP_THREADS
    registers_of_warp = _round_up(registers * WARP_THREADS, REGISTER_UNIT)
    smem_bytes_of_block = _round_up(smem_bytes + limits.reserved_smem_bytes, SMEM_UNIT)
    blocks_by = {
        "threads": limits.threads // WARP_THREADS // warps,
        "blocks": limits.blocks,
        "registers": _round_down(limits.registers // registers_of_warp, WARP_UNIT) // warps,
    }
    if smem_bytes:
        blocks_by["shared memory"] = limits.smem_bytes // smem_bytes_of_block
    return Occupancy(
        limits=limits,
        threads=threads,
        registers=registers,
        smem_bytes=smem_bytes,
        warps=warps,
        registers_of_warp=registers_of_warp,
        smem_bytes_of_block=smem_bytes_of_block,
        blocks_by=blocks_by,
    )


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _round_down(count: int, unit: int) -> int:
    return count // unit * unit
