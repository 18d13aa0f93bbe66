"""Predicted times of all candidates, from arithmetic, waves and memory, in one NumPy expression.

The SMs of a GPU share out the tiles of the result. A launch takes about the longest of three times:
the arithmetic of the tiles of the busiest SM; the waves of that SM, each of as many tiles as it
holds blocks, where a wave takes no less than a block alone, prologue included; and the traffic of
all SMs with memory.
Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (CACM,
2009), for the bounds; NVIDIA, "Matrix Multiplication Background User's Guide", for waves of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dxgemm.choice.implementation import MOST_SLICES, Implementation
from dxgemm.choice.legality import FEWEST_SLICED_TILES
from dxgemm.choice.tables import Speed
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.occupancy import sm_limits
from dxgemm.handwritten.kernels import align_rows
from dxgemm.handwritten.parts.k_ranges import EXCHANGED
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES
from dxgemm.handwritten.parts.moduli import LONGEST_K, moduli_count
from dxgemm.handwritten.parts.triangle import tile_count
from dxgemm.problem.dtypes import ITEM_SIZES, slice_dtype, step_flops
from dxgemm.problem.layout import LINE_BYTES, MAX_ALIGNMENT, Strides
from dxgemm.problem.problem import Problem

# The split-K reduction kernel: its launch, and its reading of the partial sums from the L2 cache.
ADDING_US, ADDING_BYTES_PER_US = 3.5, 2.5e6
# Time that a fused reduction adds per element and per tile, for a block that has an SM to itself:
# argmin and the two smallest in float32 on the H200.
REDUCTION_NS, REDUCTION_TILE_US = 0.1, 0.5
# Half the tiles of a symmetric result: the second store of each element, by the bytes of one, that
# of 2 bytes in rows that are not aligned, and that of the last tile: measured on the H200.
MIRROR_NS, MISALIGNED_MIRROR_NS, MIRROR_US = {2: 0.13, 4: 0.25, 8: 0.5}, 0.48, 1.0
# The kernel that merges partial results, and the one that reads a stored matrix to reduce it.
MERGING_US, READING_US, READING_SHARE = 4.0, 4.0, 0.75
# Time to queue an aligned copy of an operand, the bandwidth of reading and writing it, the factor
# of its bytes if it is transposed, too, and the bytes that the time of a block is worth at least:
# measured on the H100.
COPYING_US, COPYING_SHARE, TURNED, LEAST_COPIED_BYTES = 4.0, 0.75, 1.5, 6500
# Time to read an operand once more, from L2, over that of the first time: by the regret of the
# choice on the H100 and the H200.
READ_AGAIN = 0.6
# Of kernels that fetch by TMA, from 2,300 times on the H200: bytes per SM and microsecond from L2,
# which all SMs share, and from shared memory; more from L2 for rows of boxes that begin at no cache
# line, at no half, at no quarter of one; factor of shared memory's time for blocks of a pair, which
# wait for each other; share of its time that a block saves where others of its wave are missing.
FETCHED_BYTES_PER_US, SHARED_BYTES_PER_US = 1.44e5, 2.73e5
NO_LINE, NO_HALF_LINE, NO_SECTOR = 0.67, 0.68, 0.87
PAIRED, UNSHARED = 1.15, 0.31
HOPPER = "sm_90a"
MODULAR = 4  # instructions per pair of a product modulo a number, as long as multiply-adds
NO_SLICES = 1.0  # k in one piece, for all candidates
UNFILLED = 50.0  # factor of the time if a problem is too small to fill the pipeline


class Asked(NamedTuple):
    """Numbers of a problem that its time depends on; or arrays of them, one row per problem."""

    m: Any
    n: Any
    k: Any
    batch: Any
    moduli: Any  # products of residues, for emulated float64
    read_bytes: Any
    written_bytes: Any  # of the result
    slice_bytes: Any  # of the partial sums of a split-K slice
    misaligned: Any  # share of a and b whose rows or columns do not start at multiples of 16 bytes
    out_is_misaligned: Any
    a_is_col: Any  # a is column-major
    b_is_col: Any
    has_epilogue: Any  # functions are applied to elements
    is_reduced: Any  # the kernel of the product reduces its tiles
    copies: Any  # operands that kernels which read aligned ones need a copy of: 0 to 2
    copied_bytes: Any  # more for those that are transposed, or of small matrices
    is_exchanged: Any  # kernels which read aligned operands compute out.T = b.T @ a.T
    a_alignment: Any  # bytes, alignment of rows or columns, up to a cache line
    b_alignment: Any
    is_half: Any  # half the tiles of a symmetric result are computed
    mirror_ns: Any  # time of storing an element of these on the other side of the diagonal, too
    large_bytes: Any  # of the larger operand
    few: Any  # rows or columns of the other one, of all matrices that read the same larger one
    instructions: Any  # per pair: 1 for a multiply-add, more for an inner function or a modulus
    has_ranges: Any  # kernels may skip the zeros of triangular operands
    filled: Any  # share of the products of elements in which neither factor is such a zero
    a_is_triangular: Any
    b_is_triangular: Any
    triangular_bytes: Any  # of the triangular operands, with their zeros

    @classmethod
    def of(cls, problem: Problem) -> Asked:
        """Numbers of one problem."""
        a, b, fusion = problem.a, problem.b, problem.epilogue and problem.epilogue.unmasked
        a_alignment, b_alignment = problem.a_row_alignment, problem.b_row_alignment
        a_is_misaligned = min(a_alignment, problem.a_alignment) < MAX_ALIGNMENT
        b_is_misaligned = min(b_alignment, problem.b_alignment) < MAX_ALIGNMENT
        is_modular = problem.precision and problem.dtype == "float64" and problem.k <= LONGEST_K
        slice_items = problem.batch * problem.m * problem.n
        a_copy, b_copy = problem.aligned_operands
        copied = [
            _copied_bytes(problem, source, copy, along)
            for source, copy, along in (
                (a, a_copy, problem.m),
                (b.transposed(), b_copy and b_copy.transposed(), problem.n),
            )
            if copy is not None
        ]
        larger = int(problem.m <= problem.n)  # 0 for a, 1 for b
        triangles = problem.k_ranges.split() or ["full", "full"]
        are_triangular = [triangle != "full" for triangle in triangles]
        sizes = zip(are_triangular, problem.operand_bytes, strict=True)
        return cls(
            problem.m or 1,
            problem.n or 1,
            problem.k,
            problem.batch or 1,
            moduli_count(problem) if is_modular else 1,
            problem.read_bytes,
            problem.result_bytes,
            slice_items * ITEM_SIZES[slice_dtype(problem.dtype, problem.out_dtype)],
            0.5 * (a_is_misaligned + b_is_misaligned),
            problem.result_row_alignment < MAX_ALIGNMENT,
            a.row == 1 != a.col,
            b.row == 1 != b.col,
            fusion is not None and bool(fusion.stages),
            fusion is not None and fusion.reduction is not None,
            len(copied),
            float(sum(copied)),
            problem.precision == "tf32" and (b_copy or b).row != 1,
            a_alignment,
            b_alignment,
            bool(problem.triangle),
            _mirror_ns(problem) if problem.triangle == "both" else 0.0,
            problem.operand_bytes[larger],
            (min(problem.m, problem.n) or 1) * (1 if (a, b)[larger].batch else problem.batch or 1),
            problem.inner.operations if problem.inner else MODULAR if problem.modulus else 1,
            any(are_triangular),
            filled_share(problem),
            are_triangular[0],
            are_triangular[1],
            sum(is_triangular * size for is_triangular, size in sizes),
        )

    @classmethod
    def of_all(cls, problems: Sequence[Problem]) -> Asked:
        """Numbers of many problems, one row each."""
        columns = zip(*(cls.of(problem) for problem in problems), strict=True)
        return cls(*(np.array(column, float)[:, None] for column in columns))


def filled_share(problem: Problem) -> float:
    """Share of the products of elements in which neither factor is a zero of a triangle."""
    if not problem.k_ranges or not problem.flops:
        return 1.0
    a, b = problem.k_ranges.split()
    k = np.arange(problem.k, dtype=float)
    rows, cols = (
        {
            "full": size + 0 * k,
            "lower": np.maximum(size - k, 0),  # elements that are not above the diagonal
            "upper": np.minimum(k + 1, size),
        }[triangle]
        for size, triangle in ((problem.m, a), (problem.n, EXCHANGED[b]))
    )
    return float(rows @ cols) / (problem.m * problem.n * problem.k)


def _mirror_ns(problem: Problem) -> float:
    """Time of storing an element on the other side of the diagonal, too."""
    item_bytes = ITEM_SIZES[problem.out_dtype]
    is_narrow = item_bytes == 2 and problem.result_row_alignment < MAX_ALIGNMENT
    return MISALIGNED_MIRROR_NS if is_narrow else MIRROR_NS[item_bytes]


def _copied_bytes(problem: Problem, source: Strides, copy: Strides, along: int) -> float:
    """Bytes of an aligned copy, as far as its time goes.

    Args:
        problem: the problem.
        source, copy: strides along m or n, and along k.
        along: m or n.
    """
    copies_rows = copy.col == 1
    rows, cols = (along, problem.k) if copies_rows else (problem.k, along)
    matrices = problem.batch if source.batch else 1
    row_bytes = cols * ITEM_SIZES[problem.dtype]
    is_turned = (source.col if copies_rows else source.row) != 1
    (config,) = align_rows.KERNEL.configs
    tile_rows, tile_chunks = config.tile("any" if is_turned else "row")
    blocks = math.ceil(rows / tile_rows) * math.ceil(row_bytes / (tile_chunks * CHUNK_BYTES))
    read_bytes = rows * row_bytes * (TURNED if is_turned else 1)
    return matrices * max(read_bytes, blocks * LEAST_COPIED_BYTES)


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


@dataclass(frozen=True)
class Columns:
    """Tiles and speeds of candidates, as columns of a table with a row per candidate.

    Attributes:
        rows: the candidates.
        sm_count: number of SMs of the device.
        tile_m, tile_n: rows and columns of a tile of the result.
        smaller_first: True if tile_m lies along the smaller of m and n.
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
    """

    rows: tuple[Row, ...]
    sm_count: int
    tile_m: np.ndarray
    tile_n: np.ndarray
    smaller_first: np.ndarray
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

    @classmethod
    def of(
        cls, rows: Sequence[Row], speeds: Sequence[Speed], dtype: str, device: DeviceFacts
    ) -> Columns:
        """Columns of candidates for problems of a dtype on a device."""
        bytes_per_us = device.memory_gbytes_per_s * 1e3
        numbers = []
        for row, speed in zip(rows, speeds, strict=True):
            config = row.config
            tile_k = getattr(config, "tile_k", 1)
            if callable(tile_k):
                tile_k = tile_k(dtype)
            cluster = getattr(config, "split_k", 1)
            flops = step_flops(dtype) * config.tile_m * config.tile_n * tile_k
            fills_once = getattr(config, "stages", 1) > 1 or not hasattr(config, "tile_k")
            least = config.least_sizes
            copies = row.implementation.kernel.copies_operands
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
            numbers.append(
                (
                    *tile,
                    row.implementation.kernel.smaller_first,
                    tile_k * cluster,
                    blocks,
                    resident_blocks(config, dtype, device),
                    row.fill,
                    least.get("m", 0),
                    least.get("n", 0),
                    least.get("k", 0),
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
                    row.implementation.kernel.takes_k_ranges,
                    2 / (bytes_per_us * COPYING_SHARE),
                    *(number for pair in zip(*sides, strict=True) for number in pair),
                    smem_us,
                    is_tma and config.is_pingpong,
                )
            )
        columns = np.array(numbers, float).reshape(len(rows), -1).T
        return cls(tuple(rows), device.sm_count, *columns)

    def take(self, places: Sequence[int] | np.ndarray) -> Columns:
        """Columns of some of the candidates."""
        rows = tuple(self.rows[place] for place in places)
        names = [field.name for field in fields(self)][2:]
        return Columns(rows, self.sm_count, *(getattr(self, name)[places] for name in names))

    @cached_property
    def has_slices(self) -> bool:
        """True if some candidates use split-K with a workspace."""
        return bool(self.fill.any())

    def lower_tiles(self, n: int) -> np.ndarray:
        """Tiles that meet the lower triangle of an n x n matrix."""
        tiles = zip(self.tile_m.astype(int).tolist(), self.tile_n.astype(int).tolist())
        return np.array([tile_count(n, tile_m, tile_n) for tile_m, tile_n in tiles], float)

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
    def has_clusters(self) -> bool:
        """True if some candidates use cluster split-K."""
        return bool(self.cluster_us.any())

    @cached_property
    def has_smaller_first(self) -> bool:
        """True if the tiles of some candidates lie along the smaller of m and n."""
        return bool(self.smaller_first.any())

    @cached_property
    def few(self) -> np.ndarray:
        """Rows or columns for which a kernel made for few reads the larger operand once."""
        return np.where(self.smaller_first > 0, self.tile_m, 2.0**31)

    @cached_property
    def has_modular(self) -> bool:
        """True if some candidates multiply residues."""
        return bool(self.is_modular.any())

    @cached_property
    def fetches_lines(self) -> bool:
        """True if the times to fetch operands are known of some candidates."""
        return bool(self.a_fetch_us.any())

    @cached_property
    def has_least(self) -> bool:
        """True if some candidates have a pipeline that small problems do not fill."""
        return bool((self.least_m + self.least_n + self.least_k).any())


class Schedule(NamedTuple):
    """Distribution of the blocks of a launch over the SMs, for each candidate.

    Each block computes a tile, or its share of the k of a tile: here that too counts as a tile.

    Attributes:
        slices: number of split-K slices.
        k_steps: steps along the k of a block; the last one may be partial.
        mean_tiles_per_sm: tiles per SM on average.
        tiles_per_sm: tiles of the busiest SM.
        waves: waves of the busiest SM; a wave has a tile for each resident block.
        skips_zeros: for triangular operands, True where k_steps are those of an average tile; None
            for full ones.
    """

    slices: Any
    k_steps: Any
    mean_tiles_per_sm: Any
    tiles_per_sm: Any
    waves: Any
    skips_zeros: Any = None


def schedule(columns: Columns, asked: Asked, slices: Any = None) -> Schedule:
    """Distribute the blocks of each candidate over the SMs.

    Args:
        columns: the candidates.
        asked: the problem, or many.
        slices: number of split-K slices; None for the number that follows from `fill`.
    """
    tile_m, tile_n = _tile_sizes(columns, asked)
    if asked.is_half is True:
        tiles = columns.lower_tiles(asked.n) * asked.batch
    else:
        tiles = np.ceil(asked.m / tile_m) * np.ceil(asked.n / tile_n) * asked.batch
    if slices is None:
        slices = _slices_that_fill(columns, asked, tiles) if columns.has_slices else NO_SLICES
    if slices is NO_SLICES:
        mean_tiles = tiles * columns.blocks_per_tile_and_sm
        k_steps = np.ceil(asked.k / columns.step_k)
    else:
        mean_tiles = tiles * slices * columns.blocks_per_tile_and_sm
        k_steps = np.ceil(asked.k / (columns.step_k * slices))
    if columns.has_modular:
        mean_tiles = mean_tiles * np.where(columns.is_modular > 0, asked.moduli, 1)
    most_tiles = np.ceil(mean_tiles)
    waves = np.ceil(most_tiles / columns.resident)
    skips_zeros = None
    if asked.has_ranges is True:
        skips_zeros = (columns.takes_k_ranges > 0) & (np.asarray(slices) == 1)
        along = asked.a_is_triangular * tile_m + asked.b_is_triangular * tile_n
        some_k = np.minimum(asked.k * asked.filled + along / 2, asked.k)
        k_steps = np.where(skips_zeros, np.ceil(some_k / columns.step_k), k_steps)
    return Schedule(slices, k_steps, mean_tiles, most_tiles, waves, skips_zeros)


def _tile_sizes(columns: Columns, asked: Asked) -> tuple[Any, Any]:
    """Rows and columns of the result in a tile of each candidate."""
    tile_m, tile_n = columns.tile_m, columns.tile_n
    if asked.is_exchanged is not False:
        is_exchanged = asked.is_exchanged * columns.copies_operands > 0
        tile_m, tile_n = _exchanged(is_exchanged, tile_m, tile_n)
    is_tall = asked.n < asked.m
    if is_tall is not False and columns.has_smaller_first:
        tile_m, tile_n = _exchanged((columns.smaller_first > 0) & is_tall, tile_m, tile_n)
    return tile_m, tile_n


def _side(extent: int, stages: float, dtype: str) -> tuple[float, float, int]:
    """Time to fetch a tile's rows of an operand, and whole panels; bytes where panels begin."""
    row_us = stages * LINE_BYTES / FETCHED_BYTES_PER_US
    panel = LINE_BYTES // ITEM_SIZES[dtype]
    begins = math.gcd(extent * ITEM_SIZES[dtype], LINE_BYTES)
    return extent * row_us, -(-extent // panel) * panel * row_us, begins


def _exchanged(where: Any, left: Any, right: Any) -> tuple[Any, Any]:
    return np.where(where, right, left), np.where(where, left, right)


def _slices_that_fill(columns: Columns, asked: Asked, tiles: Any) -> Any:
    """Number of split-K slices that give each SM `fill` blocks, if k is long enough; at least 1."""
    wanted = np.minimum(columns.filling_blocks / tiles, asked.k / columns.slice_k)
    return np.floor(np.minimum(np.maximum(wanted, 1), MOST_SLICES))


def predict(columns: Columns, asked: Asked, plan: Schedule) -> Any:
    """Predict the microseconds of each candidate, with the kernel that adds split-K slices."""
    steps_us = plan.k_steps * columns.step_us * asked.instructions
    steps_us = steps_us * columns.misaligned**asked.misaligned
    steps_us = _times(steps_us, columns.a_col, asked.a_is_col)
    steps_us = _times(steps_us, columns.b_col, asked.b_is_col)
    if columns.fetches_lines:
        steps_us = _about_longest(steps_us, plan.k_steps * columns.smem_us)
    full_us = steps_us + columns.tile_us
    if asked.has_epilogue is not False or asked.is_reduced is not False:
        full_us = full_us + _epilogue_us(columns, asked)
    if asked.is_half is True:
        # Residues are stored once; the kernel that makes the result of them mirrors it.
        stored_tiles = np.where(columns.is_modular > 0, 1 / asked.moduli, 1)
        full_us = full_us + columns.tile_m * columns.tile_n * stored_tiles * asked.mirror_ns / 1e3
    waits_us = columns.prologue_us + columns.wait_us * plan.k_steps
    arithmetic_us = plan.tiles_per_sm * full_us
    latency_us = plan.waves * (steps_us * columns.alone + waits_us)
    if columns.fetches_lines:
        is_tma = columns.smem_us > 0
        tiles_us = _persistent_us(columns, asked, plan, steps_us, full_us) + waits_us
        arithmetic_us = np.where(is_tma, tiles_us, arithmetic_us)
        latency_us = np.where(is_tma, 0, latency_us)
    if plan.skips_zeros is not None:  # no SM is done before the longest tile
        longest = np.ceil(asked.k / columns.step_k) / np.maximum(plan.k_steps, 1)
        lone_us = steps_us * longest * columns.alone + waits_us
        latency_us = np.where(plan.skips_zeros, np.maximum(latency_us, lone_us), latency_us)
    written_us = asked.written_bytes * columns.write_us
    if plan.slices is not NO_SLICES:
        is_sliced, sums_bytes = plan.slices > 1, plan.slices * asked.slice_bytes
        written_us = np.where(is_sliced, sums_bytes * columns.write_us, written_us)
    written_us = _times(written_us, columns.misaligned_writes, asked.out_is_misaligned)
    read_bytes = asked.read_bytes
    if columns.has_smaller_first:
        again_bytes = READ_AGAIN * asked.large_bytes
        readings = np.ceil(asked.few / columns.few)
        read_bytes = read_bytes - again_bytes + again_bytes * readings
    memory_us = read_bytes * columns.read_us + written_us
    # The three overlap: together they take about as long as the longest, more where memory and the
    # SM take alike. Arithmetic and waves are of one SM: hardly more where those are alike.
    busy_squares = np.cbrt(arithmetic_us**6 + latency_us**6)
    us = columns.launch_us + np.sqrt(busy_squares + memory_us * memory_us)
    if asked.is_half is True:
        us = us + MIRROR_US
    if columns.has_clusters:
        us = us + plan.tiles_per_sm * columns.cluster_us
    if plan.slices is not NO_SLICES:
        us = us + is_sliced * (ADDING_US + sums_bytes / ADDING_BYTES_PER_US)
    if not isinstance(asked.copies, int) or asked.copies > 0:
        copying_us = asked.copies * COPYING_US + asked.copied_bytes * columns.copy_us
        us = us + columns.copies_operands * copying_us
    if plan.skips_zeros is not None:  # half of a triangular operand is read, half or all written
        copied_bytes = asked.triangular_bytes * np.where(plan.skips_zeros, 0.5, 0.75)
        copies = int(asked.a_is_triangular) + int(asked.b_is_triangular)
        us = us + copies * COPYING_US + copied_bytes * columns.copy_us
    if columns.has_least:
        is_filled = (asked.k >= columns.least_k) & (asked.m >= columns.least_m)
        us = us * np.where(is_filled & (asked.n >= columns.least_n), 1, UNFILLED)
    return us


def _times(us: Any, factor: Any, where: Any) -> Any:
    """Multiply times by a factor where a condition holds; for one problem that is a bool."""
    if isinstance(where, bool):
        return us * factor if where else us
    return us * np.where(where, factor, 1)


def _persistent_us(
    columns: Columns, asked: Asked, plan: Schedule, steps_us: Any, full_us: Any
) -> Any:
    """Time of the tiles of the busiest SM, where a block computes tile after tile.

    A wave that is not full takes less than a full one, since its blocks share L2 and power with
    fewer others. A pingpong config stores a tile while it multiplies the next one.
    """
    tiles, mean_tiles = plan.tiles_per_sm, plan.mean_tiles_per_sm
    multiply_us = steps_us * (tiles - UNSHARED * (tiles - mean_tiles))
    fetch_us = plan.k_steps * _fetch_us(columns, asked) * mean_tiles
    busy_us, store_us = _about_longest(multiply_us, fetch_us), full_us - steps_us
    in_turns_us = np.maximum(busy_us, tiles * full_us / 2) + store_us
    return np.where(columns.is_pingpong > 0, in_turns_us, busy_us + tiles * store_us)


def _about_longest(left: Any, right: Any) -> Any:
    return np.sqrt(np.sqrt(left**4 + right**4))


def _fetch_us(columns: Columns, asked: Asked) -> Any:
    """Time to read what a step needs from L2."""
    a_us = columns.a_fetch_us * _requests(asked.a_alignment)
    b_us = columns.b_fetch_us * _requests(asked.b_alignment)
    if asked.a_is_col is not False:
        across_us = columns.a_panels_us * _requests(np.minimum(asked.a_alignment, columns.a_begins))
        a_us = np.where(asked.a_is_col, across_us, a_us)
    if asked.b_is_col is not True:
        across_us = columns.b_panels_us * _requests(np.minimum(asked.b_alignment, columns.b_begins))
        b_us = np.where(asked.b_is_col, b_us, across_us)
    return a_us + b_us


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


def _epilogue_us(columns: Columns, asked: Asked) -> Any:
    """Time that element functions and a fused reduction add to a tile on a fully occupied SM."""
    elements = columns.tile_m * columns.tile_n / columns.cluster
    reduction_us = (elements * REDUCTION_NS / 1e3 + REDUCTION_TILE_US) / columns.resident
    return asked.has_epilogue * elements * columns.epilogue_us + asked.is_reduced * reduction_us


def reducing_us(problem: Problem, is_fused: bool, device: DeviceFacts) -> float:
    """Predict the microseconds of the kernels that reduce the result after the product."""
    if is_fused:
        return MERGING_US
    matrix_bytes = problem.batch * problem.m * problem.n * ITEM_SIZES[problem.out_dtype]
    bytes_per_us = device.memory_gbytes_per_s * 1e3 * READING_SHARE
    return MERGING_US + READING_US + matrix_bytes / bytes_per_us


def folding_us(problem: Problem) -> float:
    """Predict the microseconds of the kernel that writes triangles from sums in a workspace."""
    sums_bytes = problem.batch * problem.m * problem.n * ITEM_SIZES[problem.scalar_dtype]
    return ADDING_US + (2 + problem.adds_transpose) * sums_bytes / ADDING_BYTES_PER_US


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
