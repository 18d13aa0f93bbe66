"""Speed predicted from a rung's Config: arithmetic intensity, and the nearest of four limits.

The limits are those of an H200 at its boost clock. A kernel can come close to one of them, never
beyond it; under full load the GPU clocks lower, which costs up to a fifth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxgemm.gpu.roofline import tile_intensity

SMS = 132
CLOCK_HZ = 1.98e9
SMEM_BYTES_A_CLOCK = 128  # of an SM: the path to shared memory and L1, one pass a clock
WARP = 32
VECTOR_BYTES = 16
ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}
# TFLOP/s: outside and inside tensor cores. Source: NVIDIA H200 datasheet.
PEAKS = {"float32": 67.0, "float64": 33.5}
TENSOR_PEAKS = {"float64": 67.0, "tf32": 494.7, "float16": 989.4, "bfloat16": 989.4}
# What `mma.sync` gives at best, measured by a kernel of that instruction alone: float64 at the
# clock that the GPU holds then, TF32 at 63 % of what wgmma gives.
MMA_PEAKS = {"float64": 64.6, "tf32": 311.0}
DRAM_TBYTES_PER_S = 4.8
SMEM_TBYTES_PER_S = SMS * SMEM_BYTES_A_CLOCK * CLOCK_HZ * 1e-12
TENSOR_RUNGS = ("tensor_core", "tensor_core_tf32", "wgmma")
FIRST_VECTORIZED = 6  # from this rung on, threads read 16 bytes at a time
# Here a lies as it does in memory, and the compiler reads 16 bytes of it at a time, along k.
READ_A_ALONG_K = ("shared_tile", "thread_tile_1d")


@dataclass(frozen=True)
class Tiles:
    """Tiles that share data: a block's, and that of a reader of shared memory, such as a warp.

    Attributes:
        block: rows and columns of a block's tile; None where nothing is kept in shared memory.
        reader: rows and columns fed by one read of each of its elements.
    """

    block: tuple[int, int] | None
    reader: tuple[int, int]


@dataclass(frozen=True)
class Prediction:
    """The nearest limit.

    Attributes:
        tflops: the rate it allows.
        limit: its name.
    """

    tflops: float
    limit: str


def tiles_of(config: Any) -> Tiles:
    if hasattr(config, "warp_left"):  # mma.sync: a warp reads both fragments
        return Tiles((config.tile_left, config.tile_right), (config.warp_left, config.warp_right))
    if hasattr(config, "consumers"):  # wgmma: each warpgroup's instruction reads both operands
        return Tiles(
            (config.tile_m, config.tile_n), (config.tile_m // config.consumers, config.tile_n)
        )
    reader = (getattr(config, "thread_m", 1), getattr(config, "thread_n", 1))
    block = (config.tile_m, config.tile_n) if config.smem_bytes("float32") else None
    return Tiles(block, reader)


def depth_of(config: Any) -> int:
    """Number of k that a block keeps in shared memory at a time; 1 where it keeps none."""
    depth: int = getattr(config, "tile_k", getattr(config, "tile", 1))
    return depth


def global_intensity(config: Any, kind: str) -> float:
    """FLOP per byte that a block asks global memory for."""
    tiles = tiles_of(config)
    return tile_intensity(*(tiles.block or tiles.reader), ITEM_BYTES[kind])


def shared_intensity(config: Any, kind: str) -> float | None:
    """FLOP per byte read from shared memory; None where it is not used."""
    tiles = tiles_of(config)
    return tile_intensity(*tiles.reader, ITEM_BYTES[kind]) if tiles.block else None


def lanes_of(config: Any) -> tuple[int, int]:
    """Rows and columns of threads in a warp."""
    thread_m, thread_n = tiles_of(config).reader
    if hasattr(config, "warp_m"):
        return config.warp_m // thread_m, config.warp_n // thread_n
    lanes_n = min(WARP, config.tile_n // thread_n)
    return WARP // lanes_n, lanes_n


def warp_reads(name: str, rung: int, config: Any, kind: str) -> tuple[float, float]:
    """Instructions that read a and b, and passes of 128 bytes they take, of a warp for each k.

    A pass delivers 128 bytes, once for all lanes that want them; each instruction takes at least
    one. Bank conflicts are not counted.
    """
    item_bytes = ITEM_BYTES[kind]
    if name == "naive":  # neighbouring threads read rows of a that are far apart
        return 2.0, 1.0 + WARP
    vector = VECTOR_BYTES // item_bytes
    if name in READ_A_ALONG_K:  # lanes of a warp share each row of a
        of_a = tiles_of(config).reader[0] / vector
        return of_a + 1, of_a + max(1, WARP * item_bytes // SMEM_BYTES_A_CLOCK)
    width = vector if rung >= FIRST_VECTORIZED else 1
    instructions = passes = 0.0
    for elements, lanes in zip(tiles_of(config).reader, lanes_of(config), strict=True):
        loads = max(1, elements // width)
        size = min(elements, width) * item_bytes
        instructions += loads
        passes += loads * max(1, lanes * size // SMEM_BYTES_A_CLOCK)
    return instructions, passes


def predict(name: str, rung: int, config: Any, kind: str) -> Prediction:
    """The nearest limit of a rung: arithmetic, issue slots, or the path to shared memory and L1."""
    if name in TENSOR_RUNGS:
        path = (shared_intensity(config, kind) or 0) * SMEM_TBYTES_PER_S
        peak = (TENSOR_PEAKS if name == "wgmma" else MMA_PEAKS)[kind]
        limits = {"tensor cores": peak, "shared memory": path}
    else:
        rows, cols = tiles_of(config).reader
        products = rows * cols  # of a thread, for each k: one instruction each
        instructions, passes = warp_reads(name, rung, config, kind)
        flops_a_clock = 2 * WARP * products / passes
        slots = products / (products + instructions)
        limits = {
            "arithmetic": PEAKS[kind],
            "issue slots": PEAKS["float32"] * slots,
            "path to L1 and shared memory": SMS * CLOCK_HZ * flops_a_clock * 1e-12,
        }
    limit = min(limits, key=lambda name: limits[name])
    return Prediction(limits[limit], limit)
