"""Candidates as columns of a table: what each takes for a step, a tile, a byte and a launch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

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
# Of kernels that fetch by TMA, fitted together to times of 19 products on the H200: bytes per SM
# and microsecond from L2, which all SMs share, and from shared memory; more from L2 for rows of
# boxes that begin at no cache line, at no half, at no quarter of one.
FETCHED_BYTES_PER_US, SHARED_BYTES_PER_US = 1.95e5, 3.2e5
NO_LINE, NO_HALF_LINE, NO_SECTOR = 0.7, 0.67, 0.73
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


class Columns:
    """Tiles and speeds of candidates, as arrays with a number per candidate: see `_numbers`.

    Those that `of_kind` returns are for problems of one kind.
    """

    def __init__(self, rows: Sequence[Row], numbers: Mapping[str, np.ndarray]) -> None:
        """Take the candidates, and the arrays by their names."""
        self.rows = tuple(rows)
        self._numbers = numbers
        vars(self).update(numbers)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> np.ndarray: ...

    @classmethod
    def of(
        cls, rows: Sequence[Row], speeds: Sequence[Speed], dtype: str, device: DeviceFacts
    ) -> Columns:
        """Columns of candidates for problems of a dtype on a device."""
        each = zip(rows, speeds, strict=True)
        numbers = [_numbers(row, speed, dtype, device) for row, speed in each]
        names = numbers[0] if numbers else ()
        return cls(rows, {name: np.array([x[name] for x in numbers], float) for name in names})

    def take(self, places: Sequence[int] | np.ndarray) -> Columns:
        """Columns of some of the candidates."""
        numbers = {name: column[places] for name, column in self._numbers.items()}
        return Columns([self.rows[place] for place in places], numbers)

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
        of_kind = {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "step_us": about_longest(step_us, self.smem_us),
            "tile_us": self.tile_us + (epilogue_us + kind.is_reduced * reduction_us),
            "write_us": self.write_us * np.where(kind.out_is_misaligned, self.misaligned_writes, 1),
            "fetch_us": self._fetch_us(kind),
        }
        return Columns(self.rows, {**self._numbers, **of_kind})

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
        return {name: bool(np.any(self._numbers[name])) for name in self._numbers}

    @cached_property
    def lone_step_us(self) -> np.ndarray:
        """Time of a step for a block that has an SM to itself; 0 for persistent blocks."""
        return (self.step_us * self.alone + self.wait_us) * (self.is_persistent == 0)


def _numbers(row: Row, speed: Speed, dtype: str, device: DeviceFacts) -> dict[str, float]:
    """A row of the table, by the names of the columns."""
    config, kernel = row.config, row.implementation.kernel
    bytes_per_us = device.memory_gbytes_per_s * 1e3
    tile_k = getattr(config, "tile_k", 1)
    if callable(tile_k):
        tile_k = tile_k(dtype)
    flops = step_flops(dtype) * config.tile_m * config.tile_n * tile_k
    fills_once = getattr(config, "stages", 1) > 1 or not hasattr(config, "tile_k")
    # Blocks of a cluster share the k of a tile, or have tiles side by side.
    blocks, (pair_m, pair_n) = config.cluster, config.pair
    tile = [config.tile_m * pair_m, config.tile_n * pair_n]
    is_tma = kernel.copies_operands and hasattr(config, "is_turned")
    sides, smem_us = [(0.0, 0.0, 0)] * 2, 0.0
    if is_tma:
        stages = tile_k * ITEM_SIZES[dtype] / LINE_BYTES  # per step
        extents = (config.tile_m, pair_n), (config.tile_n, pair_m)
        sides = [_side(extent, stages / others, dtype) for extent, others in extents]
        smem_us = stages * config.stage_smem_bytes / SHARED_BYTES_PER_US
        if config.is_turned:
            tile.reverse()
            sides.reverse()
    flops_per_us = row.implementation.peak_tflops(dtype, device) * 1e6 / device.sm_count
    step_k, prologue_us = tile_k * getattr(config, "split_k", 1), speed.fill_us * fills_once
    is_pingpong = is_tma and config.is_pingpong
    a_side, b_side = (
        dict(zip((f"{name}_fetch_us", f"{name}_panels_us", f"{name}_begins"), side, strict=True))
        for name, side in zip("ab", sides, strict=True)
    )
    return {
        "tile_m": tile[0],  # rows and columns of a tile of the result
        "tile_n": tile[1],
        # Time of a fully occupied SM: for one step along k of a tile, and for each tile beside.
        "step_us": flops / (flops_per_us * speed.efficiency),
        "tile_us": speed.tile_us,
        "write_us": 1 / (bytes_per_us * speed.write_share),  # time of a byte that is written
        "read_us": 1 / (bytes_per_us * speed.read_share),
        "copy_us": 2 / (bytes_per_us * COPYING_SHARE),
        "smaller_first": kernel.smaller_first,  # tile_m is along the smaller of m and n
        # Rows or columns for which a kernel made for few reads the larger operand once.
        "few": tile[0] if kernel.smaller_first else 2.0**31,
        "step_k": step_k,  # elements of k that all blocks of a cluster take in one step
        "slice_k": step_k * FEWEST_SLICED_TILES,  # fewest elements of k in a split-K slice
        "cluster": blocks,  # blocks of a cluster, which share the k of a tile, or the tile
        "blocks_per_sm": blocks / device.sm_count,
        "resident": resident_blocks(config, dtype, device),  # blocks per SM
        "fill": row.fill,  # blocks per SM that split-K aims at; 0 without split-K
        "filling_blocks": row.fill * device.sm_count,
        "unsliced_us": math.inf if row.fill else 0.0,  # split-K of one slice is no candidate
        # Smallest sizes of a problem that fills the pipeline.
        **{f"least_{name}": config.least_sizes.get(name, 0) for name in "mnk"},
        "is_modular": row.implementation.is_modular(dtype),  # repeated for each modulus
        # Time of a block that has an SM to itself, over that per tile of a full SM.
        "alone": 1 / speed.lone_share,
        "launch_us": speed.launch_us,
        "prologue_us": prologue_us,  # latency of the prologue, once per block
        # Latency of each step along k, for kernels without a pipeline; before the steps of a wave,
        # of which persistent blocks have none; before all tiles of a persistent block.
        "wait_us": speed.fill_us * (not fills_once),
        "wave_us": prologue_us * (not is_tma),
        "first_us": prologue_us * is_tma,
        # Factors, as in `Speed`.
        "misaligned": 1.0 if kernel.copies_operands else speed.misaligned,
        "misaligned_writes": speed.misaligned_writes,
        "a_col": speed.a_col,
        "b_col": speed.b_col,
        "cluster_us": speed.cluster_block_us * (blocks - 1),  # per tile, for the other blocks
        "epilogue_us": speed.epilogue_ns / 1e3,  # time of an element for functions applied to it
        "copies_operands": kernel.copies_operands,
        "takes_k_ranges": kernel.takes_k_ranges,
        # For kernels that fetch by TMA, whose blocks compute tile after tile; 0 for others. Times
        # to write and read a step in shared memory; to read what it needs of an operand from L2;
        # the same for whole panels of an MN-major one; bytes at whose multiples those begin.
        "is_persistent": is_tma,
        "smem_us": smem_us,
        **a_side,
        **b_side,
        "fetch_us": 0.0,  # of both operands, for a kind of problem
        # Share of an SM's tiles that overlap no other, and number of tiles whose store overlaps
        # nothing: with ping-pong half of them, and the last one.
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
