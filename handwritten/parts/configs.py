"""Configs that rungs share: tiles of the result by elements, by threads, by warps, in stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dxgemm.handwritten.parts import tile_store
from dxgemm.handwritten.parts.chunk_store import STORE_BYTES
from dxgemm.handwritten.parts.kernel import BaseConfig
from dxgemm.handwritten.parts.line_tiles import LINE_BYTES
from dxgemm.handwritten.parts.operands import FLOAT8, HALVES, VECTOR_BYTES
from dxgemm.handwritten.parts.rounded_store import BLOCK_BYTES, BLOCK_COLS
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, WARPGROUP, WARPGROUP_ROWS

THREADS_PER_SM, SMEM_BYTES_PER_BLOCK = 2048, 227 * 1024
LANES_M, LANES_N = 4, 8  # how a warp's 32 threads share its tile
MOST_STAGES = 8
TILE_ROWS = 64, 128, 192, 256  # of tiles that warpgroups share
NOTE_BYTES = 16  # of a tile that a producer found for the consumers
PARKED_BYTES = 24  # of shared memory: where the block begins and ends
REGISTERS_PER_SM, MOST_REGISTERS, REGISTER_BYTES = 65536, 255, 4


def min_blocks(threads: int, elements: int, dtype: str) -> int:
    """Minimum resident blocks per SM (`__launch_bounds__`), at `elements` a thread.

    A thread needs room for its elements, 32 operands, and 32 addresses and counters. Told nothing,
    the compiler takes all registers that one block leaves, to read further ahead.
    """
    registers = 32 + (32 + elements) * np.dtype(dtype).itemsize // REGISTER_BYTES
    return max(1, REGISTERS_PER_SM // (threads * min(registers, MOST_REGISTERS)))


@dataclass(frozen=True)
class ElementConfig(BaseConfig):
    """Block tile tile_m x tile_n; one element per thread."""

    tile_m: int
    tile_n: int

    @property
    def threads(self) -> int:
        return self.tile_m * self.tile_n

    def min_blocks(self, dtype: str) -> int:
        return THREADS_PER_SM // self.threads

    def accumulator_bytes(self, dtype: str) -> int:
        return np.dtype(dtype).itemsize

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n}"


@dataclass(frozen=True)
class GroupsConfig(BaseConfig):
    """Groups of threads in a block. The members of a group share a row, a column or an element."""

    groups: int
    threads_per_group: int

    def complaints(self) -> Iterator[str]:
        if self.threads_per_group & (self.threads_per_group - 1):
            yield "threads_per_group must be a power of two"

    @property
    def threads(self) -> int:
        return self.groups * self.threads_per_group

    def __str__(self) -> str:
        return f"{self.groups} groups of {self.threads_per_group} threads"


@dataclass(frozen=True)
class ThreadTileConfig(BaseConfig):
    """Block tile tile_m x tile_n x tile_k; thread tile thread_m x thread_n."""

    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n:
            yield "thread tiles must fill the block tile"

    @property
    def threads(self) -> int:
        return self.tile_m // self.thread_m * (self.tile_n // self.thread_n)

    def min_blocks(self, dtype: str) -> int:
        return min_blocks(self.threads, self.thread_m * self.thread_n, dtype)

    def smem_bytes(self, dtype: str) -> int:
        return self.tile_k * (self.tile_m + self.tile_n) * np.dtype(dtype).itemsize

    def accumulator_bytes(self, dtype: str) -> int:
        return self.thread_m * self.thread_n * np.dtype(dtype).itemsize

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k} thread {self.thread_m}x{self.thread_n}"


def vector_complaints(config: ThreadTileConfig) -> Iterator[str]:
    """Constraints of 16-byte accesses: to four float32, or twice two float64."""
    if config.thread_m % 4 or config.thread_n % 4 or config.tile_k % 4:
        yield "thread tiles and tile_k must be multiples of 4 for vectors"
    for tile in (config.tile_m, config.tile_n):
        if tile * config.tile_k % (4 * config.threads):
            yield f"vectors of 4 must be shared evenly by {config.threads}"


@dataclass(frozen=True)
class VectorConfig(ThreadTileConfig):
    """A `ThreadTileConfig` for 16-byte accesses."""

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        yield from vector_complaints(self)

    def smem_bytes(self, dtype: str) -> int:
        return super().smem_bytes(dtype) + PARKED_BYTES


@dataclass(frozen=True)
class WarpTileConfig(ThreadTileConfig):
    """A `ThreadTileConfig` whose threads form warp tiles of LANES_M x LANES_N thread tiles."""

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            yield f"warp tiles {self.warp_m}x{self.warp_n} must fill the tile"

    @property
    def warp_m(self) -> int:
        return LANES_M * self.thread_m

    @property
    def warp_n(self) -> int:
        return LANES_N * self.thread_n

    @property
    def threads(self) -> int:
        return 32 * (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)


@dataclass(frozen=True)
class WarpVectorConfig(WarpTileConfig):
    """A `WarpTileConfig` for 16-byte accesses, with padded tiles in shared memory."""

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        yield from vector_complaints(self)

    def smem_bytes(self, dtype: str) -> int:
        padding = 2 * self.tile_k * VECTOR_BYTES
        return super().smem_bytes(dtype) + padding

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile} warp {self.warp_m}x{self.warp_n} thread {self.thread_m}x{self.thread_n}"


@dataclass(frozen=True)
class RingConfig(WarpTileConfig):
    """A `WarpTileConfig` with several tiles of a and b in shared memory.

    Attributes:
        stages: tiles in shared memory, of which stages - 1 are being copied.
    """

    stages: int

    least_threads = 32
    dynamic_smem = True

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.thread_m % 2 or self.thread_n % 4:
            yield "a thread has rows in twos and columns in fours"
        if self.stages < 2 or self.tile_k < 2:
            yield "a pipeline needs two stages of two k or more"

    def a_row_bytes(self, dtype: str) -> int:
        """Bytes from one k of a's tile in shared memory to the next, padded against conflicts."""
        return self.tile_m * np.dtype(dtype).itemsize + VECTOR_BYTES

    def b_row_bytes(self, dtype: str) -> int:
        return self.tile_n * np.dtype(dtype).itemsize + VECTOR_BYTES

    def stage_bytes(self, dtype: str) -> int:
        return self.tile_k * (self.a_row_bytes(dtype) + self.b_row_bytes(dtype))

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, or of the tile of the result that overwrites it.

        That of a symmetric result may be transposed.
        """
        shorter, longer = sorted((self.tile_m, self.tile_n))
        result = tile_store.tile_bytes(longer, shorter, dtype)
        return max(self.stages * self.stage_bytes(dtype), result)

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM: two where their accumulators leave room."""
        return 2 if self.accumulator_bytes(dtype) <= 256 else 1

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile} thread {self.thread_m}x{self.thread_n} stages {self.stages}"


@dataclass(frozen=True)
class WgmmaConfig(BaseConfig):
    """Block tile tile_m x tile_n; a ring of as many stages as fit, each ROW_BYTES of k deep.

    A threadblock swizzle of swizzle_rows tiles along m lets concurrent blocks share rows of a and
    columns of b in L2.

    Attributes:
        is_pingpong: True if two warpgroups take turns, each with whole tiles: one stores its tile
            while the other multiplies. Otherwise they share every tile: each has a strip of 64
            rows, or two of 256.
        is_turned: True if the transposed result is computed: tile_m is then along n.
        is_paired: True for a cluster of two blocks, with tiles side by side along the shorter of
            tile_m and tile_n: each fetches half of what both read of the other operand, and
            multicasts it.
        has_panels: True for stages with room for whole panels of an MN-major b, such as the name
            of the config counts.
    """

    tile_m: int
    tile_n: int
    swizzle_rows: int = 16
    is_pingpong: bool = False
    is_turned: bool = False
    is_paired: bool = False
    has_panels: bool = True

    dynamic_smem = True
    begins_early = True
    split_k = 1
    matrices = 1  # that a block computes at a time
    tile_k = ROW_BYTES // 2  # of 16-bit elements
    parts = 1  # matrices whose sum is an operand

    def complaints(self) -> Iterator[str]:
        if self.tile_m not in ((64, 128) if self.is_pingpong else TILE_ROWS):
            yield "tile_m must be 64 or 128, or 192 or 256 if warpgroups share a tile"
        if self.tile_n % 8 or not 8 <= self.tile_n <= 256:
            yield "tile_n must be a multiple of 8 up to 256"
        if self.stages < 2:
            yield "two stages do not fit in shared memory"
        if self.is_paired and max(self.tile_m, self.tile_n) % 16:
            yield "a pair of blocks fetches multiples of 8 rows or columns each"

    def takes(self, dtype: str) -> bool:
        """Floats of 16 and 8 bits take every config; others only plain ones of whole panels."""
        is_plain = not (self.is_pingpong or self.is_turned or self.is_paired)
        is_plain = is_plain and self.tile_m <= 128 and self.tile_n % BLOCK_COLS == 0
        return dtype in (*HALVES, *FLOAT8) or is_plain

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.is_pingpong else self.tile_m // WARPGROUP_ROWS // self.strips

    @property
    def pair(self) -> tuple[int, int]:
        if not self.is_paired:
            return 1, 1
        return (1, 2) if self.tile_m > self.tile_n else (2, 1)

    @property
    def cluster(self) -> int:
        return 2 if self.is_paired else 1

    @property
    def takes_slices(self) -> bool:
        """False where an SM has several tiles to take turns with: slices would be more of them."""
        return not self.is_pingpong

    @property
    def strips(self) -> int:
        """Strips of 64 rows that a warpgroup has of a tile."""
        if self.is_pingpong:
            return self.tile_m // WARPGROUP_ROWS
        return 2 if self.tile_m == 256 else 1

    @property
    def piece_step(self) -> int:
        """Rows from a strip of a warpgroup to its next one: it skips those of the others."""
        return WARPGROUP_ROWS * (1 if self.is_pingpong else self.consumers)

    @property
    def warp_m(self) -> int:
        """Rows of a warp."""
        return 16 * self.strips

    @property
    def warp_n(self) -> int:
        return self.tile_n

    @property
    def gives_registers(self) -> bool:
        """True if the producer is a warpgroup, which can leave registers, and not a warp."""
        return self.is_pingpong or self.tile_m > 128

    @property
    def threads(self) -> int:
        """Threads of a block: those of the consumers, and the warp or warpgroup of the producer."""
        return self.consumers * WARPGROUP + (WARPGROUP if self.gives_registers else 32)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        columns = self.tile_n
        if self.has_panels:
            columns = -(-columns // BLOCK_COLS) * BLOCK_COLS
        return self.parts * (self.tile_m + columns) * ROW_BYTES

    @property
    def stage_smem_bytes(self) -> int:
        """Bytes of a stage that are written, and that are read: all of b for every 64 rows of a."""
        strips = self.tile_m // WARPGROUP_ROWS
        rows = self.tile_m + self.tile_n + strips * (WARPGROUP_ROWS + self.tile_n)
        return self.parts * rows * ROW_BYTES

    @property
    def shared_registers(self) -> tuple[int, int]:
        """Registers of a producer's and of a consumer's thread; 0 if they exchange none."""
        if not self.gives_registers:
            return 0, 0
        return (24, 240) if self.consumers == 2 else (32, 160)

    @property
    def launch_registers(self) -> int:
        producer, consumer = self.shared_registers
        return (producer + self.consumers * consumer) // (self.consumers + 1)

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Bytes that a warp's part of the result may have in shared memory, the best first.

        Two blocks of `rounded_store` take turns; `chunk_store` needs less.
        """
        return 2 * BLOCK_BYTES, STORE_BYTES

    @cached_property
    def stages(self) -> int:
        """As many stages as shared memory holds, but no more than hide its latency."""
        counts = range(MOST_STAGES, 0, -1)
        return next((count for count in counts if self._chunk_bytes(count)), 0)

    @cached_property
    def k_major(self) -> WgmmaConfig:
        """Config with as many stages as fit if b is K-major."""
        return replace(self, has_panels=False)

    @property
    def notes(self) -> int:
        """Notes on tiles in shared memory, see `place`.

        The producer may be ahead by as many tiles as there are stages, and about to write one more
        note, while each consumer still needs that of the tile which it stores.
        """
        return self.stages + 3

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of a warp's part of the result in shared memory."""
        return self._chunk_bytes(self.stages)

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the larger ring: that of an MN-major b, or of a K-major one."""
        rings = self, self.k_major
        return max(ring._smem_bytes(ring.stages, ring.chunk_bytes) for ring in rings)

    def _chunk_bytes(self, stages: int) -> int:
        """The first of `chunk_sizes` that leaves room for so many stages; 0 if none does."""
        left = SMEM_BYTES_PER_BLOCK - self._smem_bytes(stages, 0)
        return next((c for c in self.chunk_sizes if self.consumers * 4 * c <= left), 0)

    def _smem_bytes(self, stages: int, chunk_bytes: int) -> int:
        """Bytes of the ring, aligned to 1024, barriers, notes, and a chunk of each warp."""
        ring = 1024 + stages * (self.stage_bytes + 16) + (stages + 3) * NOTE_BYTES
        return ring + 16 + self.consumers * 4 * chunk_bytes

    def accumulator_bytes(self, dtype: str) -> int:
        return self.strips * self.tile_n // 2 * 4

    def __str__(self) -> str:
        kinds = " pingpong" * self.is_pingpong + " turned" * self.is_turned
        kinds += " paired" * self.is_paired
        return f"{self.tile_m}x{self.tile_n} stages {self.stages}{kinds}"


class MmaRingConfig(BaseConfig):
    """Base for the frame `ring` with `mma.sync`: block tile tile_m x tile_n, several stages."""

    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    stages: int

    dynamic_smem = True
    piece_step = 16  # rows from 16 rows of a warp to its next 16
    swizzle_rows = 8  # of tiles that are computed together, so that they share data in L2
    parts = 1  # matrices whose sum is an operand

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            yield "warp tiles must fill the block tile"
        if self.stages < 2:
            yield "one stage is copied while another is read: 2 or more"

    @property
    def warps(self) -> int:
        return self.tile_m // self.warp_m * (self.tile_n // self.warp_n)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def line_bytes(self) -> int:
        """Bytes of a stage's k."""
        return LINE_BYTES

    @property
    def stage_bytes(self) -> int:
        return self.parts * (self.tile_m + self.tile_n) * self.line_bytes


class LineConfig(MmaRingConfig):
    """An `MmaRingConfig` for tiles of lines, whose results are stored by warps."""

    split_k = 1  # blocks of a cluster that share the k of a tile
    chunk_bytes = STORE_BYTES  # of a warp's part of the result in shared memory
    tile_k = LINE_BYTES // 2  # of elements of two bytes; twice as many int8

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, which the warps overwrite with their parts of the result."""
        return max(self.stages * self.stage_bytes, self.warps * self.chunk_bytes)
