"""The arithmetic with which a GEMM's speed is explained: roofline, Little's law, waves.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model"
(CACM, 2009); Volkov, "Understanding latency hiding on GPUs" (2016), for Little's law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Of a load from device memory while its bandwidth is used up: an assumption, for no driver tells.
MEMORY_LATENCY_NS = 600.0


@dataclass(frozen=True)
class Roofline:
    """The least time of some work on a GPU, from its arithmetic and from its memory.

    Attributes:
        flops: operations.
        bytes_moved: through device memory.
        peak_tflops: TFLOP/s.
        memory_gbytes_per_s: GB/s.
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
        """The intensity, FLOP per byte, from which on arithmetic takes longer than memory."""
        return self.peak_tflops * 1e3 / self.memory_gbytes_per_s

    @property
    def compute_us(self) -> float:
        return self.flops / (self.peak_tflops * 1e6)

    @property
    def memory_us(self) -> float:
        return self.bytes_moved / (self.memory_gbytes_per_s * 1e3)

    @property
    def time_us(self) -> float:
        """The longer of the two: arithmetic and memory work at the same time."""
        return max(self.compute_us, self.memory_us)

    @property
    def bound(self) -> str:
        """`"compute"` or `"memory"`: which of the two it is."""
        return "compute" if self.compute_us >= self.memory_us else "memory"


def tile_intensity(rows: int, cols: int, item_bytes: int) -> float:
    """FLOP per byte read by a tile that reads each of its rows and columns once for each k."""
    return 2 * rows * cols / ((rows + cols) * item_bytes)


def tile_efficiency(rows: int, cols: int) -> float:
    """Part of its peak that a tile of so many rows and columns allows: an estimate.

    A step along k multiplies rows * cols pairs and loads rows + cols elements; where nothing was
    measured, a load is taken to cost as much as 32 multiplications.
    """
    return rows * cols / (rows * cols + 32 * (rows + cols))


def bytes_in_flight_needed(
    memory_gbytes_per_s: float, sm_count: int, latency_ns: float = MEMORY_LATENCY_NS
) -> float:
    """Bytes an SM must be waiting for at any time to draw its share of the bandwidth.

    Little's law: what is in flight is bandwidth times latency.
    """
    return memory_gbytes_per_s * latency_ns / sm_count


def count_waves(tiles: int, blocks: int, resident: int) -> float:
    """Rounds in which the tiles are computed, the last one counted by how full it is.

    Args:
        tiles: of the result.
        blocks: of the launch; fewer than tiles where each computes several.
        resident: blocks that the GPU holds at once.
    """
    return tiles / (min(blocks, resident) if blocks < tiles else resident)


def tail_efficiency(waves: float) -> float:
    """Tiles over those that as many full waves would hold: 1 where the last wave is full."""
    return waves / math.ceil(waves) if waves else 1.0
