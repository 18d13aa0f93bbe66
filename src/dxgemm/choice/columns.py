"""Candidates as columns of a table: what each takes for a step, a tile, a byte and a launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dxgemm.choice.implementation import Implementation
from dxgemm.choice.legality import FEWEST_SLICED_TILES
from dxgemm.choice.problem_facts import Kind
from dxgemm.choice.tables import Speed
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.occupancy import sm_limits
from dxgemm.handwritten.parts.triangle import tile_count
from dxgemm.problem.dtypes import ITEM_SIZES, step_flops
from dxgemm.problem.layout import LINE_BYTES, MAX_ALIGNMENT

# Time that a fused reduction adds per element and per tile, for a block that has an SM to itself:
# argmin and the two smallest in float32 on the H200.
REDUCTION_NS, REDUCTION_TILE_US = 0.1, 0.5
COPYING_SHARE = 0.75  # bandwidth of an aligned copy over the memory's: measured on the H100
# Of kernels that fetch by TMA, from 2,300 times on the H200: bytes per SM and microsecond from L2,
# which all SMs share, and from shared memory; more from L2 for rows of boxes that begin at no cache
# line, at no half, at no quarter of one; factor of shared memory's time for blocks of a pair, which
# wait for each other.
FETCHED_BYTES_PER_US, SHARED_BYTES_PER_US = 1.44e5, 2.73e5
NO_LINE, NO_HALF_LINE, NO_SECTOR = 0.67, 0.68, 0.87
PAIRED = 1.15
HOPPER = "sm_90a"
FOUR = np.array(4.0)  # quick in NumPy


class Row(NamedTuple):
    """Candidate for any problem of a dtype.

    Attributes:
        implementation, config: kernel and config.
        fill: blocks per SM that split-K aims at; 0 without split-K.
    """

    implementation: Implementation
    config: Any
    fill: int = 0

    @property
    def name(self) -> str:
        fill = f" fill {self.fill}" if self.fill else ""
        return f"{self.implementation.name} {self.config}{fill}"


@dataclass(frozen=True, eq=False)
class Columns:
    """Tiles and speeds of candidates, as columns of a table with a row per candidate.

    Those of `of_kind` are for problems of one kind: tile_m, tile_n, step_us, tile_us, write_us and
    fetch_us are theirs.

    Attributes:
        rows: the candidates.
        sm_count: number of SMs of the device.
        tile_m, tile_n: rows and columns of a tile of the result.
        smaller_first: True if tile_m lies along the smaller of m and n.
        few: rows or columns for which a kernel made for few reads the larger operand once.
        step_k: elements of k that all blocks of a cluster take in one step.
        cluster: blocks of a cluster, which share the k of a tile, or the tile.
        resident: resident blocks per SM.
        fill: blocks per SM that split-K aims at; 0 without split-K.
        least_m, least_n, least_k: smallest sizes of a problem that fills the pipeline.
        is_modular: True if the work is repeated for each modulus.
        step_us: time of a fully occupied SM for one step along k of a tile.
        alone: time of a block that has an SM to itself, over the time per tile of a full SM.
        launch_us: fixed time of a launch.
        prologue_us: latency of the prologue, once per block.
        wait_us: latency of each step along k, for kernels without a pipeline.
        tile_us: time of a fully occupied SM for each tile, beside its steps.
        misaligned, a_col, b_col, misaligned_writes: factors, as in `Speed`.
        read_us, write_us: time of a byte.
        cluster_us: time of a tile for the other blocks of its cluster.
        epilogue_us: time of an element for functions applied to it.
        copies_operands: True if it computes from aligned copies of operands that lie otherwise.
        takes_k_ranges: True if it skips the zeros of triangular operands.
        copy_us: time of a byte that is copied.
        a_fetch_us, b_fetch_us: time to read what a step needs of an operand from L2, for kernels
            that fetch rows of a cache line by TMA; 0 for others.
        a_panels_us, b_panels_us: the same for an MN-major operand, of which whole panels are read.
        a_begins, b_begins: bytes, alignment of a tile's panels in an MN-major operand.
        smem_us: time to write and to read a step in shared memory, for the same kernels, whose
            blocks compute tile after tile; 0 for others.
        is_pingpong: True if a tile is stored while the next one is multiplied.
        fetch_us: time to read what a step needs of both operands from L2, for the same kernels.
    """

    rows: tuple[Row, ...]
    sm_count: int
    tile_m: np.ndarray
    tile_n: np.ndarray
    smaller_first: np.ndarray
    few: np.ndarray
    step_k: np.ndarray
    cluster: np.ndarray
    resident: np.ndarray
    fill: np.ndarray
    least_m: np.ndarray
    least_n: np.ndarray
    least_k: np.ndarray
    is_modular: np.ndarray
    step_us: np.ndarray
    alone: np.ndarray
    launch_us: np.ndarray
    prologue_us: np.ndarray
    wait_us: np.ndarray
    tile_us: np.ndarray
    misaligned: np.ndarray
    a_col: np.ndarray
    b_col: np.ndarray
    read_us: np.ndarray
    write_us: np.ndarray
    misaligned_writes: np.ndarray
    cluster_us: np.ndarray
    epilogue_us: np.ndarray
    copies_operands: np.ndarray
    takes_k_ranges: np.ndarray
    copy_us: np.ndarray
    a_fetch_us: np.ndarray
    b_fetch_us: np.ndarray
    a_panels_us: np.ndarray
    b_panels_us: np.ndarray
    a_begins: np.ndarray
    b_begins: np.ndarray
    smem_us: np.ndarray
    is_pingpong: np.ndarray
    fetch_us: np.ndarray

    @classmethod
    def of(
        cls, rows: Sequence[Row], speeds: Sequence[Speed], dtype: str, device: DeviceFacts
    ) -> Columns:
        """Columns of candidates for problems of a dtype on a device."""
        each = zip(rows, speeds, strict=True)
        numbers = [_numbers(row, speed, dtype, device) for row, speed in each]
        columns = np.array(numbers, float).reshape(len(rows), -1).T
        return cls(tuple(rows), device.sm_count, *columns)

    def take(self, places: Sequence[int] | np.ndarray) -> Columns:
        """Columns of some of the candidates."""
        rows = tuple(self.rows[place] for place in places)
        names = [field.name for field in fields(self)][2:]
        return Columns(rows, self.sm_count, *(getattr(self, name)[places] for name in names))

    def of_kind(self, kind: Kind) -> Columns:
        """Columns for problems of one kind, which are kept; or of many, a row per problem."""
        if isinstance(kind.is_tall, np.ndarray):
            return self._of_kind(kind)
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = self._of_kind(kind)
        return found

    @cached_property
    def _kinds(self) -> dict[Kind, Columns]:
        return {}

    def _of_kind(self, kind: Kind) -> Columns:
        is_exchanged = kind.is_exchanged * self.copies_operands > 0
        tile_m, tile_n = _exchanged(is_exchanged, self.tile_m, self.tile_n)
        tile_m, tile_n = _exchanged(kind.is_tall * self.smaller_first > 0, tile_m, tile_n)
        step_us = self.step_us * kind.instructions * self.misaligned**kind.misaligned
        step_us = step_us * np.where(kind.a_is_col, self.a_col, 1)
        step_us = step_us * np.where(kind.b_is_col, self.b_col, 1)
        elements = self.tile_m * self.tile_n / self.cluster
        reduction_us = (elements * REDUCTION_NS / 1e3 + REDUCTION_TILE_US) / self.resident
        epilogue_us = kind.has_epilogue * elements * self.epilogue_us
        return replace(
            self,
            tile_m=tile_m,
            tile_n=tile_n,
            step_us=about_longest(step_us, self.smem_us),
            tile_us=self.tile_us + (epilogue_us + kind.is_reduced * reduction_us),
            write_us=self.write_us * np.where(kind.out_is_misaligned, self.misaligned_writes, 1),
            fetch_us=self._fetch_us(kind),
        )

    def _fetch_us(self, kind: Kind) -> Any:
        a_us = self.a_fetch_us * _requests(kind.a_alignment)
        b_us = self.b_fetch_us * _requests(kind.b_alignment)
        a_across_us = self.a_panels_us * _requests(np.minimum(kind.a_alignment, self.a_begins))
        b_across_us = self.b_panels_us * _requests(np.minimum(kind.b_alignment, self.b_begins))
        a_us = np.where(kind.a_is_col, a_across_us, a_us)
        return a_us + np.where(kind.b_is_col, b_us, b_across_us)

    @cached_property
    def places(self) -> dict[Implementation, slice]:
        """Places of the candidates of each kernel, which follow one another."""
        found: dict[Implementation, slice] = {}
        for place, row in enumerate(self.rows):
            first = found.get(row.implementation, slice(place, 0)).start
            found[row.implementation] = slice(first, place + 1)
        return found

    def lower_tiles(self, n: float) -> np.ndarray:
        """Tiles that meet the lower triangle of an n x n matrix."""
        tiles = zip(self.tile_m.astype(int).tolist(), self.tile_n.astype(int).tolist())
        return np.array([tile_count(int(n), tile_m, tile_n) for tile_m, tile_n in tiles], float)

    @cached_property
    def has_slices(self) -> bool:
        """True if some candidates use split-K with a workspace."""
        return bool(self.fill.any())

    @cached_property
    def unsliced_us(self) -> np.ndarray:
        """Time in one slice that others do not take: a split-K candidate is none then."""
        return np.where(self.fill > 0, np.inf, 0.0)

    @cached_property
    def slice_k(self) -> np.ndarray:
        """Fewest elements of k in a split-K slice."""
        return self.step_k * FEWEST_SLICED_TILES

    @cached_property
    def filling_blocks(self) -> np.ndarray:
        """Blocks on the whole device that split-K aims at; 0 without split-K."""
        return self.fill * self.sm_count

    @cached_property
    def blocks_per_tile_and_sm(self) -> np.ndarray:
        """Blocks of a tile of the result, divided by the number of SMs."""
        return self.cluster / self.sm_count

    @cached_property
    def lone_step_us(self) -> np.ndarray:
        """Time of a step for a block that has an SM to itself; 0 for persistent blocks."""
        return np.where(self.is_persistent, 0.0, self.step_us * self.alone + self.wait_us)

    @cached_property
    def wave_us(self) -> np.ndarray:
        """Latency of a wave before its steps; 0 for persistent blocks, which take but one."""
        return np.where(self.is_persistent, 0.0, self.prologue_us)

    @cached_property
    def first_us(self) -> np.ndarray:
        """Latency of persistent blocks before their tiles; 0 for others."""
        return self.prologue_us - self.wave_us

    @cached_property
    def turns(self) -> np.ndarray:
        """Share of the tiles of an SM that no other one overlaps: half with ping-pong."""
        return np.where(self.is_persistent, 0.5 * self.is_pingpong, 1.0)

    @cached_property
    def most_stores(self) -> np.ndarray:
        """Tiles whose store overlaps nothing: the last with ping-pong, else any number."""
        return np.where(self.is_pingpong > 0, 1.0, np.where(self.is_persistent, np.inf, 0.0))

    @cached_property
    def is_persistent(self) -> np.ndarray:
        """True if a block fetches by TMA, and computes tile after tile."""
        return self.smem_us > 0

    @cached_property
    def has_persistent(self) -> bool:
        """True if some candidates are."""
        return bool(self.is_persistent.any())

    @cached_property
    def has_clusters(self) -> bool:
        """True if some candidates use cluster split-K."""
        return bool(self.cluster_us.any())

    @cached_property
    def has_few(self) -> bool:
        """True if some candidates are made for few rows or columns."""
        return bool(self.smaller_first.any())

    @cached_property
    def has_modular(self) -> bool:
        """True if some candidates multiply residues."""
        return bool(self.is_modular.any())

    @cached_property
    def has_least(self) -> bool:
        """True if some candidates have a pipeline that small problems do not fill."""
        return bool((self.least_m + self.least_n + self.least_k).any())


def _numbers(row: Row, speed: Speed, dtype: str, device: DeviceFacts) -> tuple[float, ...]:
    """A row of the table, in the order of the fields of `Columns`."""
    config, kernel = row.config, row.implementation.kernel
    bytes_per_us = device.memory_gbytes_per_s * 1e3
    tile_k = getattr(config, "tile_k", 1)
    if callable(tile_k):
        tile_k = tile_k(dtype)
    flops = step_flops(dtype) * config.tile_m * config.tile_n * tile_k
    fills_once = getattr(config, "stages", 1) > 1 or not hasattr(config, "tile_k")
    copies, least = kernel.copies_operands, config.least_sizes
    # Blocks of a cluster share the k of a tile, or have tiles side by side.
    blocks, (pair_m, pair_n) = config.cluster, config.pair
    tile = [config.tile_m * pair_m, config.tile_n * pair_n]
    is_tma = copies and hasattr(config, "is_turned")
    sides, smem_us = [(0.0, 0.0, 0)] * 2, 0.0
    if is_tma:
        stages = tile_k * ITEM_SIZES[dtype] / LINE_BYTES  # per step
        sides = [
            _side(config.tile_m, stages / pair_n, dtype),
            _side(config.tile_n, stages / pair_m, dtype),
        ]
        smem_us = stages * config.stage_smem_bytes / SHARED_BYTES_PER_US
        smem_us *= PAIRED if config.is_paired else 1
        if config.is_turned:
            tile.reverse()
            sides.reverse()
    flops_per_us = row.implementation.peak_tflops(dtype, device) * 1e6 / device.sm_count
    return (
        *tile,
        kernel.smaller_first,
        tile[0] if kernel.smaller_first else 2.0**31,
        tile_k * getattr(config, "split_k", 1),
        blocks,
        resident_blocks(config, dtype, device),
        row.fill,
        *(least.get(name, 0) for name in "mnk"),
        row.implementation.is_modular(dtype),
        flops / (flops_per_us * speed.efficiency),
        1 / speed.lone_share,
        speed.launch_us,
        speed.fill_us if fills_once else 0.0,
        0.0 if fills_once else speed.fill_us,
        speed.tile_us,
        1.0 if copies else speed.misaligned,
        speed.a_col,
        speed.b_col,
        1 / (bytes_per_us * speed.read_share),
        1 / (bytes_per_us * speed.write_share),
        speed.misaligned_writes,
        speed.cluster_block_us * (blocks - 1),
        speed.epilogue_ns / 1e3,
        copies,
        kernel.takes_k_ranges,
        2 / (bytes_per_us * COPYING_SHARE),
        *(number for pair in zip(*sides, strict=True) for number in pair),
        smem_us,
        is_tma and config.is_pingpong,
        0.0,
    )


def _side(extent: int, stages: float, dtype: str) -> tuple[float, float, int]:
    """Time to fetch a tile's rows of an operand, and whole panels; bytes where panels begin."""
    row_us = stages * LINE_BYTES / FETCHED_BYTES_PER_US
    panel = LINE_BYTES // ITEM_SIZES[dtype]
    begins = math.gcd(extent * ITEM_SIZES[dtype], LINE_BYTES)
    return extent * row_us, -(-extent // panel) * panel * row_us, begins


def _requests(alignment: Any) -> Any:
    """Factor of the time to fetch rows that begin at multiples of so many bytes.

    Below MAX_ALIGNMENT they are copied, to sectors.
    """
    return (
        1
        + NO_LINE * (alignment < LINE_BYTES)
        + NO_HALF_LINE * (alignment < LINE_BYTES // 2)
        + NO_SECTOR * (alignment == MAX_ALIGNMENT)
    )


def _exchanged(where: Any, left: Any, right: Any) -> tuple[Any, Any]:
    return np.where(where, right, left), np.where(where, left, right)


def about_longest(left: Any, right: Any) -> Any:
    """Time of two things that overlap: more than the longest where they take alike."""
    return np.sqrt(np.sqrt(left**FOUR + right**FOUR))


def resident_blocks(config: Any, dtype: str, device: DeviceFacts) -> int:
    """Resident blocks per SM: as many as the config declares, if their memory and threads fit.

    Configs declare them for Hopper, and the speeds measured there count on it.
    """
    declared, limits = config.min_blocks(dtype), sm_limits(device.arch)
    if limits is None or (declared and device.arch == HOPPER):
        return declared or 1
    smem_bytes = max(config.smem_bytes(dtype) + limits.reserved_smem_bytes, 1)
    by_smem, by_threads = limits.smem_bytes // smem_bytes, limits.threads // config.threads
    return max(min(declared or by_smem, by_smem, by_threads), 1)
