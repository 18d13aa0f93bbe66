"""Roofline, Little's law and waves: the arithmetic that explains a GEMM's speed.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model"
(CACM, 2009); Volkov, "Understanding latency hiding on GPUs" (2016), for Little's law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Latency of a load from device memory at full bandwidth: an assumption, for no driver tells it.
MEMORY_LATENCY_NS = 600.0


@dataclass(frozen=True)
class Roofline:
    """Lower bounds of the time of some work on a GPU, from arithmetic and from memory.

    Attributes:
        flops: floating-point operations.
        bytes_moved: bytes through device memory.
        peak_tflops: arithmetic peak in TFLOP/s.
        memory_gbytes_per_s: peak bandwidth in GB/s.
    """

    flops: int
    bytes_moved: int
    peak_tflops: float
    memory_gbytes_per_s: float

    @property
    def intensity(self) -> float:
        """FLOP per byte of device memory; 0 where nothing is moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0

    @property
    def ridge(self) -> float:
        """Intensity, FLOP per byte, from which on arithmetic takes longer than memory."""
        return self.peak_tflops * 1e3 / self.memory_gbytes_per_s

    @property
    def compute_us(self) -> float:
        return self.flops / (self.peak_tflops * 1e6)

    @property
    def memory_us(self) -> float:
        return self.bytes_moved / (self.memory_gbytes_per_s * 1e3)

    @property
    def time_us(self) -> float:
        """Lower bound of the time: the longer of compute_us and memory_us, which overlap."""
        return max(self.compute_us, self.memory_us)

    @property
    def bound(self) -> str:
        """`"compute"` or `"memory"`: the one that takes longer."""
        return "compute" if self.compute_us >= self.memory_us else "memory"


def tile_intensity(rows: int, cols: int, item_bytes: int) -> float:
    """FLOP per byte of a tile that reads each of its rows and columns once for each k."""
    return 2 * rows * cols / ((rows + cols) * item_bytes)


def tile_efficiency(rows: int, cols: int) -> float:
    """Fraction of the peak that a tile of so many rows and columns allows: an estimate.

    A step along k multiplies rows * cols pairs and loads rows + cols elements. A load is taken to
    cost as much as 32 multiplications.
    """
    return rows * cols / (rows * cols + 32 * (rows + cols))


def bytes_in_flight_needed(
    memory_gbytes_per_s: float, sm_count: int, latency_ns: float = MEMORY_LATENCY_NS
) -> float:
    """Bytes in flight per SM that use the full bandwidth of the memory.

    Little's law: bytes in flight are bandwidth times latency.
    """
    return memory_gbytes_per_s * latency_ns / sm_count


def count_waves(tiles: int, blocks: int, resident: int) -> float:
    """Waves in which the tiles are computed; the last one counts as the fraction that is filled.

    Args:
        tiles: tiles of the result.
        blocks: blocks of the launch; fewer than tiles for a persistent kernel.
        resident: resident blocks of the whole GPU.
    """
    return tiles / (min(blocks, resident) if blocks < tiles else resident)


def tail_efficiency(waves: float) -> float:
    """Waves over waves rounded up: 1 if the last wave is full."""
    return waves / math.ceil(waves) if waves else 1.0
