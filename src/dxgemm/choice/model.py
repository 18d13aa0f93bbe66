"""The predicted time of every candidate: waves, latency and memory, in one NumPy expression.

The SMs of a GPU share out the tiles of the result. The SM with the most has to do their arithmetic;
it works in waves, on as many tiles at a time as it holds blocks, and a wave takes no less than what
a block takes alone, filling its pipeline first; and all SMs share the traffic with memory. A launch
takes about the longest of these three.
Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (CACM,
2009), for the bounds; NVIDIA, "Matrix Multiplication Background User's Guide", for waves of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dxgemm._occupancy import sm_limits
from dxgemm._problem import ITEM_SIZES, MAX_ALIGNMENT, Problem
from dxgemm._registry import MOST_SLICES, Implementation
from dxgemm.choice.legality import FEWEST_SLICED_TILES
from dxgemm.choice.tables import Speed
from dxgemm.handwritten.moduli import LONGEST_K, moduli_count
from dxgemm.runtime.device import DeviceFacts

# The kernel that adds the sums of slices: its launch, and its reading of them, from the L2 cache.
ADDING_US, ADDING_BYTES_PER_US = 3.5, 2.5e6
# What a fused reduction adds for an element, and for a tile, of a block that has an SM to itself:
# argmin and the two smallest in float32 on the H200.
REDUCTION_NS, REDUCTION_TILE_US = 0.1, 0.5
# The kernel that merges what blocks left, and the one that reads a stored matrix to reduce it.
MERGING_US, READING_US, READING_SHARE = 4.0, 4.0, 0.75
NO_SLICES = 1.0  # k in one piece, for all candidates
UNFILLED = 50.0  # times as long as with a pipeline that is filled


class Asked(NamedTuple):
    """The numbers of a problem that its time depends on; or arrays of them, one row a problem."""

    m: Any
    n: Any
    k: Any
    batch: Any
    moduli: Any  # products of residues, for emulated float64
    read_bytes: Any
    written_bytes: Any  # without those of slices of k
    out_bytes: Any  # of an element
    is_misaligned: Any  # rows or columns of a or b are no multiples of 16 bytes
    out_is_misaligned: Any
    a_is_col: Any  # a is column-major
    b_is_col: Any
    has_epilogue: Any  # functions of elements
    is_reduced: Any  # by the kernel itself
    a_alignment: Any  # bytes, of rows or columns, up to a cache line's
    b_alignment: Any

    @classmethod
    def of(cls, problem: Problem) -> Asked:
        """The numbers of one problem."""
        a, b, fusion = problem.a, problem.b, problem.epilogue
        a_alignment, b_alignment = problem.a_row_alignment, problem.b_row_alignment
        is_modular = problem.precision and problem.dtype == "float64" and problem.k <= LONGEST_K
        written_bytes = problem.result_bytes
        return cls(
            problem.m or 1,
            problem.n or 1,
            problem.k,
            problem.batch or 1,
            moduli_count(problem) if is_modular else 1,
            problem.read_bytes,
            written_bytes,
            ITEM_SIZES[problem.out_dtype],
            min(a_alignment, problem.a_alignment, b_alignment, problem.b_alignment) < MAX_ALIGNMENT,
            problem.result_row_alignment < MAX_ALIGNMENT,
            a.row == 1 != a.col,
            b.row == 1 != b.col,
            fusion is not None and bool(fusion.stages),
            fusion is not None and fusion.reduction is not None,
            a_alignment,
            b_alignment,
        )

    @classmethod
    def of_all(cls, problems: Sequence[Problem]) -> Asked:
        """The numbers of many problems, one row each."""
        columns = zip(*(cls.of(problem) for problem in problems), strict=True)
        return cls(*(np.array(column, float)[:, None] for column in columns))


class Row(NamedTuple):
    """A candidate for any problem of a dtype.

    Attributes:
        implementation, config: the kernel.
        fill: blocks an SM that slices of k give it; 0 for k in one piece.
    """

    implementation: Implementation
    config: Any
    fill: int = 0

    @property
    def name(self) -> str:
        fill = f" fill {self.fill}" if self.fill else ""
        return f"{self.implementation.name} {self.config}{fill}"


@dataclass(frozen=True)
class Columns:
    """What is known of candidates: their tiles, and the speeds that a table has for them.

    Attributes:
        rows: the candidates; each of the other columns has a number for each.
        sm_count: of the device.
        tile_m, tile_n: rows and columns of a tile of the result.
        step_k: elements of k that all blocks of a cluster take in one step.
        cluster: blocks that share the k of a tile.
        resident: blocks that an SM holds.
        fill: blocks an SM that slices of k give it; 0 for k in one piece.
        least: smallest m, n and k of a problem that fills the pipeline.
        is_modular: whether the work is repeated for each modulus.
        step_us: a full SM's time for one step along k of a tile.
        alone: what a block takes that has an SM to itself, over a full one.
        launch_us: of a launch.
        prologue_us, wait_us: of a block, once and at every step along k.
        tile_us: of a full SM for each tile, beside its steps.
        misaligned, a_col, b_col, misaligned_writes: as in `Speed`.
        read_us, write_us: of a byte.
        cluster_us: of a tile, for the other blocks of its cluster.
        epilogue_us: of an element.
    """

    rows: tuple[Row, ...]
    sm_count: int
    tile_m: np.ndarray
    tile_n: np.ndarray
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

    @classmethod
    def of(
        cls, rows: Sequence[Row], speeds: Sequence[Speed], dtype: str, device: DeviceFacts
    ) -> Columns:
        """The columns of candidates for problems of a dtype on a device."""
        bytes_per_us = device.memory_gbytes_per_s * 1e3
        numbers = []
        for row, speed in zip(rows, speeds, strict=True):
            config = row.config
            tile_k = getattr(config, "tile_k", 1)
            if callable(tile_k):
                tile_k = tile_k(dtype)
            cluster = getattr(config, "split_k", 1)
            fills_once = getattr(config, "stages", 1) > 1 or not hasattr(config, "tile_k")
            least = getattr(config, "least_sizes", {})
            flops_per_us = row.implementation.peak_tflops(dtype, device) * 1e6 / device.sm_count
            numbers.append(
                (
                    config.tile_m,
                    config.tile_n,
                    tile_k * cluster,
                    cluster,
                    resident_blocks(config, dtype, device),
                    row.fill,
                    least.get("m", 0),
                    least.get("n", 0),
                    least.get("k", 0),
                    row.implementation.is_modular(dtype),
                    2 * config.tile_m * config.tile_n * tile_k / (flops_per_us * speed.efficiency),
                    1 / speed.lone_share,
                    speed.launch_us,
                    speed.fill_us if fills_once else 0.0,
                    0.0 if fills_once else speed.fill_us,
                    speed.tile_us,
                    speed.misaligned,
                    speed.a_col,
                    speed.b_col,
                    1 / (bytes_per_us * speed.read_share),
                    1 / (bytes_per_us * speed.write_share),
                    speed.misaligned_writes,
                    speed.cluster_block_us * (cluster - 1),
                    speed.epilogue_ns / 1e3,
                )
            )
        columns = np.array(numbers, float).reshape(len(rows), -1).T
        return cls(tuple(rows), device.sm_count, *columns)

    def take(self, places: Sequence[int] | np.ndarray) -> Columns:
        """The columns of some of the candidates."""
        rows = tuple(self.rows[place] for place in places)
        names = [field.name for field in fields(self)][2:]
        return Columns(rows, self.sm_count, *(getattr(self, name)[places] for name in names))

    @cached_property
    def has_slices(self) -> bool:
        """Whether some candidates cut k into slices."""
        return bool(self.fill.any())

    @cached_property
    def slice_k(self) -> np.ndarray:
        """Fewest elements of k in a slice."""
        return self.step_k * FEWEST_SLICED_TILES

    @cached_property
    def filling_blocks(self) -> np.ndarray:
        """Blocks that slices of k give the device; 0 for k in one piece."""
        return self.fill * self.sm_count

    @cached_property
    def share_of_tile(self) -> np.ndarray:
        """Blocks of an SM for each tile of the result, on average."""
        return self.cluster / self.sm_count

    @cached_property
    def has_clusters(self) -> bool:
        """Whether some candidates share the k of a tile among the blocks of a cluster."""
        return bool(self.cluster_us.any())

    @cached_property
    def has_modular(self) -> bool:
        """Whether some candidates multiply residues."""
        return bool(self.is_modular.any())

    @cached_property
    def has_least(self) -> bool:
        """Whether some candidates have a pipeline that small problems do not fill."""
        return bool((self.least_m + self.least_n + self.least_k).any())


class Schedule(NamedTuple):
    """How the blocks of a launch spread over SMs, for each candidate.

    Attributes:
        slices: of k.
        k_steps: along the k of a block, the last one perhaps in part.
        share: blocks of an SM, on average.
        rounds: blocks of the SM that has the most.
        waves: rounds of as many blocks as an SM holds.
    """

    slices: Any
    k_steps: Any
    share: Any
    rounds: Any
    waves: Any


def schedule(columns: Columns, asked: Asked, slices: Any = None) -> Schedule:
    """How each candidate's blocks spread over SMs.

    Args:
        slices: of k; None for as many as each candidate's `fill` makes.
    """
    tiles = np.ceil(asked.m / columns.tile_m) * np.ceil(asked.n / columns.tile_n) * asked.batch
    if slices is None:
        slices = _slices_that_fill(columns, asked, tiles) if columns.has_slices else NO_SLICES
    if slices is NO_SLICES:
        share, k_steps = tiles * columns.share_of_tile, np.ceil(asked.k / columns.step_k)
    else:
        share = tiles * slices * columns.share_of_tile
        k_steps = np.ceil(asked.k / (columns.step_k * slices))
    if columns.has_modular:
        share = share * np.where(columns.is_modular > 0, asked.moduli, 1)
    rounds = np.ceil(share)
    return Schedule(slices, k_steps, share, rounds, np.ceil(rounds / columns.resident))


def _slices_that_fill(columns: Columns, asked: Asked, tiles: Any) -> Any:
    """Slices of k that give each SM `fill` blocks, if k is long enough; at least 1."""
    wanted = np.minimum(columns.filling_blocks / tiles, asked.k / columns.slice_k)
    return np.floor(np.minimum(np.maximum(wanted, 1), MOST_SLICES))


def predict(columns: Columns, asked: Asked, plan: Schedule) -> Any:
    """Microseconds that each candidate takes, with the kernel that adds slices."""
    steps_us = plan.k_steps * columns.step_us
    steps_us = _times(steps_us, columns.misaligned, asked.is_misaligned)
    steps_us = _times(steps_us, columns.a_col, asked.a_is_col)
    steps_us = _times(steps_us, columns.b_col, asked.b_is_col)
    full_us = steps_us + columns.tile_us
    if asked.has_epilogue is not False or asked.is_reduced is not False:
        full_us = full_us + _epilogue_us(columns, asked)
    waits_us = columns.prologue_us + columns.wait_us * plan.k_steps
    arithmetic_us = plan.rounds * full_us
    latency_us = plan.waves * (steps_us * columns.alone + waits_us)
    written_us = asked.written_bytes * plan.slices * columns.write_us
    written_us = _times(written_us, columns.misaligned_writes, asked.out_is_misaligned)
    memory_us = asked.read_bytes * columns.read_us + written_us
    # The three overlap: together they take about as long as the longest, more where two are alike.
    squares = arithmetic_us * arithmetic_us + latency_us * latency_us + memory_us * memory_us
    us = columns.launch_us + np.sqrt(squares)
    if columns.has_clusters:
        us = us + plan.rounds * columns.cluster_us
    if plan.slices is not NO_SLICES:
        sums_bytes = plan.slices * (asked.batch * asked.m * asked.n * asked.out_bytes)
        us = us + (plan.slices > 1) * (ADDING_US + sums_bytes / ADDING_BYTES_PER_US)
    if columns.has_least:
        is_filled = (asked.k >= columns.least_k) & (asked.m >= columns.least_m)
        us = us * np.where(is_filled & (asked.n >= columns.least_n), 1, UNFILLED)
    return us


def _times(us: Any, factor: Any, where: Any) -> Any:
    """Times multiplied by a factor where something applies; for one problem that is a bool."""
    if isinstance(where, bool):
        return us * factor if where else us
    return us * np.where(where, factor, 1)


def _epilogue_us(columns: Columns, asked: Asked) -> Any:
    """What functions of elements, and a fused reduction, add to a tile on a full SM."""
    elements = columns.tile_m * columns.tile_n / columns.cluster
    reduction_us = (elements * REDUCTION_NS / 1e3 + REDUCTION_TILE_US) / columns.resident
    return asked.has_epilogue * elements * columns.epilogue_us + asked.is_reduced * reduction_us


def reducing_us(problem: Problem, is_fused: bool, device: DeviceFacts) -> float:
    """Microseconds of the kernels behind the product's that reduce its result."""
    if is_fused:
        return MERGING_US
    matrix_bytes = problem.batch * problem.m * problem.n * ITEM_SIZES[problem.out_dtype]
    bytes_per_us = device.memory_gbytes_per_s * 1e3 * READING_SHARE
    return MERGING_US + READING_US + matrix_bytes / bytes_per_us


def resident_blocks(config: Any, dtype: str, device: DeviceFacts) -> int:
    """Blocks that share an SM: what the config says, or what shared memory has room for."""
    decide = getattr(config, "min_blocks", None)
    if decide is not None:
        blocks: int = decide(dtype)
        return blocks
    limits = sm_limits(device.arch)
    if limits is None:
        return 1
    return max(limits.smem_bytes // (config.smem_bytes(dtype) + limits.reserved_smem_bytes), 1)
