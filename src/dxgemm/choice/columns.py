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

    Those that `of_kind` returns are for problems of one kind: the first six arrays depend on it.
    """

    rows: tuple[Row, ...]
    tile_m: np.ndarray  # rows and columns of a tile of the result
    tile_n: np.ndarray
    step_us: np.ndarray  # time of a fully occupied SM for one step along k of a tile
    tile_us: np.ndarray  # the same for each tile, beside its steps
    write_us: np.ndarray  # time of a byte that is written
    fetch_us: np.ndarray  # time to read what a step needs from L2, by TMA in rows of cache lines
    read_us: np.ndarray  # time of a byte that is read
    smaller_first: np.ndarray  # True if tile_m lies along the smaller of m and n
    few: np.ndarray  # rows or columns for which a kernel made for few reads the larger operand once
    step_k: np.ndarray  # elements of k that all blocks of a cluster take in one step
    slice_k: np.ndarray  # fewest elements of k in a split-K slice
    cluster: np.ndarray  # blocks of a cluster, which share the k of a tile, or the tile
    blocks_per_sm: np.ndarray  # the same, divided by the number of SMs
    resident: np.ndarray  # resident blocks per SM
    fill: np.ndarray  # blocks per SM that split-K aims at; 0 without split-K
    filling_blocks: np.ndarray  # the same on the whole device
    unsliced_us: np.ndarray  # infinite for a split-K candidate, which is none if k is not cut
    least_m: np.ndarray  # smallest sizes of a problem that fills the pipeline
    least_n: np.ndarray
    least_k: np.ndarray
    is_modular: np.ndarray  # True if the work is repeated for each modulus
    alone: np.ndarray  # time of a block that has an SM to itself, over that per tile of a full SM
    launch_us: np.ndarray  # fixed time of a launch
    prologue_us: np.ndarray  # latency of the prologue, once per block
    wait_us: np.ndarray  # latency of each step along k, for kernels without a pipeline
    misaligned: np.ndarray  # factors, as in `Speed`
    a_col: np.ndarray
    b_col: np.ndarray
    misaligned_writes: np.ndarray
    cluster_us: np.ndarray  # time of a tile for the other blocks of its cluster
    epilogue_us: np.ndarray  # time of an element for functions applied to it
    copies_operands: np.ndarray  # True if it computes from aligned copies of operands
    takes_k_ranges: np.ndarray  # True if it skips the zeros of triangular operands
    copy_us: np.ndarray  # time of a byte that is copied
    # For kernels that fetch by TMA, whose blocks compute tile after tile; 0 for others.
    is_persistent: np.ndarray
    smem_us: np.ndarray  # time to write and to read a step in shared memory
    a_fetch_us: np.ndarray  # time to read what a step needs of an operand from L2
    b_fetch_us: np.ndarray
    a_panels_us: np.ndarray  # the same for an MN-major operand, of which whole panels are read
    b_panels_us: np.ndarray
    a_begins: np.ndarray  # bytes, alignment of a tile's panels in an MN-major operand
    b_begins: np.ndarray
    wave_us: np.ndarray  # latency before the steps of a wave, of which persistent blocks have none
    first_us: np.ndarray  # latency of persistent blocks before their tiles
    turns: np.ndarray  # share of the tiles of an SM that overlap no other: half with ping-pong
    most_stores: np.ndarray  # tiles whose store overlaps nothing: the last one with ping-pong

    @classmethod
    def of(
        cls, rows: Sequence[Row], speeds: Sequence[Speed], dtype: str, device: DeviceFacts
    ) -> Columns:
        """Columns of candidates for problems of a dtype on a device."""
        each = zip(rows, speeds, strict=True)
        numbers = [_numbers(row, speed, dtype, device) for row, speed in each]
        return cls(tuple(rows), *(np.array([x[name] for x in numbers], float) for name in NAMES))

    def take(self, places: Sequence[int] | np.ndarray) -> Columns:
        """Columns of some of the candidates."""
        rows = tuple(self.rows[place] for place in places)
        return Columns(rows, *(getattr(self, name)[places] for name in NAMES))

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

    def may_slice(self, k: int, elements: int) -> bool:
        """False if k is too short, or the result too large, for two slices by any candidate."""
        return k >= self._sliced_sizes[0] and elements <= self._sliced_sizes[1]

    @cached_property
    def _sliced_sizes(self) -> tuple[float, float]:
        """The shortest k of two slices, and the most elements of a result of two per tile."""
        least_k = np.where(self.fill > 0, 2 * self.slice_k, np.inf)
        most = self.tile_m * self.tile_n * self.filling_blocks / 2
        return float(least_k.min(initial=np.inf)), float(most.max(initial=0.0))

    def lower_tiles(self, n: float) -> np.ndarray:
        """Tiles that meet the lower triangle of an n x n matrix."""
        tiles = zip(self.tile_m.astype(int).tolist(), self.tile_n.astype(int).tolist())
        return np.array([tile_count(int(n), tile_m, tile_n) for tile_m, tile_n in tiles], float)

    @cached_property
    def has(self) -> dict[str, bool]:
        """True for each column in which some candidate has more than 0, by name."""
        return {name: bool(np.any(getattr(self, name))) for name in NAMES}

    @cached_property
    def lone_step_us(self) -> np.ndarray:
        """Time of a step for a block that has an SM to itself; 0 for persistent blocks."""
        return (self.step_us * self.alone + self.wait_us) * (self.is_persistent == 0)


NAMES = tuple(field.name for field in fields(Columns))[1:]


def _numbers(row: Row, speed: Speed, dtype: str, device: DeviceFacts) -> dict[str, float]:
    """A row of the table, by the names of the columns."""
    config, kernel = row.config, row.implementation.kernel
    bytes_per_us = device.memory_gbytes_per_s * 1e3
    tile_k = getattr(config, "tile_k", 1)
    if callable(tile_k):
        tile_k = tile_k(dtype)
    flops = step_flops(dtype) * config.tile_m * config.tile_n * tile_k
    fills_once = getattr(config, "stages", 1) > 1 or not hasattr(config, "tile_k")
    copies = kernel.copies_operands
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
    step_k, prologue_us = tile_k * getattr(config, "split_k", 1), speed.fill_us * fills_once
    is_pingpong = is_tma and config.is_pingpong
    a_side, b_side = sides
    return {
        "tile_m": tile[0],
        "tile_n": tile[1],
        "step_us": flops / (flops_per_us * speed.efficiency),
        "tile_us": speed.tile_us,
        "write_us": 1 / (bytes_per_us * speed.write_share),
        "fetch_us": 0.0,
        "read_us": 1 / (bytes_per_us * speed.read_share),
        "smaller_first": kernel.smaller_first,
        "few": tile[0] if kernel.smaller_first else 2.0**31,
        "step_k": step_k,
        "slice_k": step_k * FEWEST_SLICED_TILES,
        "cluster": blocks,
        "blocks_per_sm": blocks / device.sm_count,
        "resident": resident_blocks(config, dtype, device),
        "fill": row.fill,
        "filling_blocks": row.fill * device.sm_count,
        "unsliced_us": math.inf if row.fill else 0.0,
        **{f"least_{name}": config.least_sizes.get(name, 0) for name in "mnk"},
        "is_modular": row.implementation.is_modular(dtype),
        "alone": 1 / speed.lone_share,
        "launch_us": speed.launch_us,
        "prologue_us": prologue_us,
        "wait_us": speed.fill_us * (not fills_once),
        "misaligned": 1.0 if copies else speed.misaligned,
        "a_col": speed.a_col,
        "b_col": speed.b_col,
        "misaligned_writes": speed.misaligned_writes,
        "cluster_us": speed.cluster_block_us * (blocks - 1),
        "epilogue_us": speed.epilogue_ns / 1e3,
        "copies_operands": copies,
        "takes_k_ranges": kernel.takes_k_ranges,
        "copy_us": 2 / (bytes_per_us * COPYING_SHARE),
        "is_persistent": is_tma,
        "smem_us": smem_us,
        **dict(zip(("a_fetch_us", "a_panels_us", "a_begins"), a_side, strict=True)),
        **dict(zip(("b_fetch_us", "b_panels_us", "b_begins"), b_side, strict=True)),
        "wave_us": prologue_us * (not is_tma),
        "first_us": prologue_us * is_tma,
        "turns": 0.5 * is_pingpong if is_tma else 1.0,
        "most_stores": (1.0 if is_pingpong else math.inf) if is_tma else 0.0,
    }


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
