"""Predicted times of all candidates, from arithmetic, waves and memory, in one NumPy expression.

The SMs of a GPU share out the tiles of the result. A launch takes about the longest of three times:
the arithmetic of the tiles of the busiest SM; the waves of that SM, each of as many tiles as it
holds blocks, where a wave takes no less than a block alone, prologue included; and the traffic of
all SMs with memory.
Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (CACM,
2009), for the bounds; NVIDIA, "Matrix Multiplication Background User's Guide", for waves of tiles.

A new shape waits for this. So all that does not depend on sizes is made once (`Columns.of_kind`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dxgemm.choice.columns import Columns, about_longest
from dxgemm.choice.implementation import MOST_SLICES
from dxgemm.choice.problem_facts import ProblemFacts
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.problem import Problem

# The split-K reduction kernel: its launch, and its reading of the partial sums from the L2 cache.
ADDING_US, ADDING_BYTES_PER_US = np.array(3.5), np.array(2.5e6)
MIRROR_US = 1.0  # of half the tiles of a symmetric result, the second store of the last one
# The kernel that merges partial results, and the one that reads a stored matrix to reduce it.
MERGING_US, READING_US, READING_SHARE = 4.0, 4.0, 0.75
COPYING_US = 4.0  # time to queue an aligned copy of an operand: measured on the H100
# Time to read an operand once more, from L2, over that of the first time: by the regret of the
# choice on the H100 and the H200.
READ_AGAIN = 0.6
# Share of its time that a persistent block saves where others of its wave are missing.
UNSHARED = 0.15
NO_SLICES = 1.0  # k in one piece, for all candidates
ONE, SIX, SLICES = np.array(1.0), np.array(6.0), np.array(float(MOST_SLICES))  # quick in NumPy
UNFILLED = 50.0  # factor of the time if a problem is too small to fill the pipeline


class Schedule(NamedTuple):
    """Distribution of the blocks of a launch over the SMs, for each candidate.

    Each block computes a tile, or its share of the k of a tile: here that too counts as a tile.

    Attributes:
        columns: the candidates, for problems of this kind.
        slices: number of split-K slices.
        k_steps: steps along the k of a block; the last one may be partial.
        mean_tiles_per_sm: tiles per SM on average.
        tiles_per_sm: tiles of the busiest SM.
        waves: waves of the busiest SM; a wave has a tile for each resident block.
        skips_zeros: for triangular operands, True where k_steps are those of an average tile; None
            for full ones.
    """

    columns: Columns
    slices: Any
    k_steps: Any
    mean_tiles_per_sm: Any
    tiles_per_sm: Any
    waves: Any
    skips_zeros: Any = None


def schedule(columns: Columns, facts: ProblemFacts, slices: Any = None) -> Schedule:
    """Distribute the blocks of each candidate over the SMs.

    Args:
        columns: the candidates.
        facts: the problem, or many.
        slices: number of split-K slices; None for the number that follows from `fill`.
    """
    columns = columns.of_kind(facts.kind)
    if facts.mirror_ns is not None:
        tiles = columns.lower_tiles(facts.n) * facts.batch
    else:
        tiles = np.ceil(facts.m / columns.tile_m) * np.ceil(facts.n / columns.tile_n) * facts.batch
    step_k, launched = columns.step_k, tiles
    if slices is None and columns.has["fill"]:  # as many as give each SM `fill` blocks
        wanted = np.minimum(columns.filling_blocks / tiles, facts.k / columns.slice_k)
        slices = np.floor(np.minimum(np.maximum(wanted, ONE), SLICES))
    elif slices is not None:
        slices = np.full(tiles.shape, float(slices))
    if slices is None:
        slices = NO_SLICES
    else:
        step_k, launched = step_k * slices, tiles * slices
    k_steps = np.ceil(facts.k / step_k)
    mean_tiles = launched * columns.blocks_per_sm
    if columns.has["is_modular"]:
        mean_tiles = mean_tiles * np.where(columns.is_modular > 0, facts.moduli, 1)
    most_tiles = np.ceil(mean_tiles)
    waves = np.ceil(most_tiles / columns.resident)
    skips_zeros = None
    if facts.zeros is not None:
        skips_zeros = (columns.takes_k_ranges > 0) & (np.asarray(slices) == 1)
        along = facts.zeros.a * columns.tile_m + facts.zeros.b * columns.tile_n
        some_k = np.minimum(facts.k * facts.zeros.filled + along / 2, facts.k)
        k_steps = np.where(skips_zeros, np.ceil(some_k / columns.step_k), k_steps)
    return Schedule(columns, slices, k_steps, mean_tiles, most_tiles, waves, skips_zeros)


def predict(facts: ProblemFacts, plan: Schedule) -> Any:
    """Predict the microseconds of each candidate, with the kernel that adds split-K slices."""
    columns = plan.columns
    steps_us = plan.k_steps * columns.step_us
    full_us = steps_us + columns.tile_us
    if facts.mirror_ns is not None:
        # Residues are stored once; the kernel that makes the result of them mirrors it.
        stored_tiles = np.where(columns.is_modular > 0, 1 / facts.moduli, 1)
        full_us = full_us + columns.tile_m * columns.tile_n * stored_tiles * facts.mirror_ns / 1e3
    arithmetic_us = plan.tiles_per_sm * full_us
    if columns.has["is_persistent"]:
        arithmetic_us = _persistent_us(plan, steps_us, arithmetic_us, full_us - steps_us)
    latency_us = plan.waves * (plan.k_steps * columns.lone_step_us + columns.wave_us)
    if plan.skips_zeros is not None:  # no SM is done before the longest tile
        waits_us = columns.prologue_us + columns.wait_us * plan.k_steps
        longest = np.ceil(facts.k / columns.step_k) / np.maximum(plan.k_steps, 1)
        lone_us = steps_us * longest * columns.alone + waits_us
        latency_us = np.where(plan.skips_zeros, np.maximum(latency_us, lone_us), latency_us)
    written_bytes, adding_us = facts.written_bytes, None
    if plan.slices is not NO_SLICES:
        is_whole, written_bytes = plan.slices == ONE, plan.slices * facts.slice_bytes
        adding_us = written_bytes / ADDING_BYTES_PER_US + ADDING_US
        np.copyto(written_bytes, facts.written_bytes, where=is_whole)
        np.copyto(adding_us, columns.unsliced_us, where=is_whole)
    read_bytes = facts.read_bytes
    if columns.has["smaller_first"]:
        again_bytes = READ_AGAIN * facts.large_bytes
        read_bytes = read_bytes - again_bytes + again_bytes * np.ceil(facts.few / columns.few)
    memory_us = read_bytes * columns.read_us + written_bytes * columns.write_us
    # The three overlap: together they take about as long as the longest, more where memory and the
    # SM take alike. Arithmetic and waves are of one SM: hardly more where those are alike.
    busy_squares = np.cbrt(arithmetic_us**SIX + latency_us**SIX)
    us = columns.launch_us + np.sqrt(busy_squares + memory_us * memory_us)
    if columns.has["cluster_us"]:
        us = us + plan.tiles_per_sm * columns.cluster_us
    if adding_us is not None:
        us = us + adding_us
    return _with_rare_terms(us, facts, plan)


def _with_rare_terms(us: Any, facts: ProblemFacts, plan: Schedule) -> Any:
    """Add what few problems or kernels take: copies, a mirrored store, pipelines unfilled."""
    columns, copies = plan.columns, facts.copies
    if facts.mirror_ns is not None:
        us = us + MIRROR_US
    if type(copies) is not int or copies > 0:
        copying_us = copies * COPYING_US + facts.copied_bytes * columns.copy_us
        us = us + columns.copies_operands * copying_us
    if facts.zeros is not None and facts.zeros.stored_bytes:
        # Half of a triangular operand is read, half or all written.
        copied_bytes = facts.zeros.stored_bytes * np.where(plan.skips_zeros, 0.5, 0.75)
        us = us + (facts.zeros.a + facts.zeros.b) * COPYING_US + copied_bytes * columns.copy_us
    if columns.has["least_k"]:
        is_filled = (facts.k >= columns.least_k) & (facts.m >= columns.least_m)
        us = us * np.where(is_filled & (facts.n >= columns.least_n), 1, UNFILLED)
    return us


def _persistent_us(plan: Schedule, steps_us: Any, tiles_us: Any, store_us: Any) -> Any:
    """Time of the tiles of the busiest SM, where a block may compute tile after tile.

    A wave that is not full takes less than a full one, since its blocks share L2 and power with
    fewer others. A pingpong config stores a tile while it multiplies the next one. For kernels
    whose blocks compute one tile, it is `tiles_us`.
    """
    columns, tiles, mean_tiles = plan.columns, plan.tiles_per_sm, plan.mean_tiles_per_sm
    multiply_us = steps_us * (tiles - UNSHARED * (tiles - mean_tiles))
    busy_us = about_longest(multiply_us, plan.k_steps * columns.fetch_us * mean_tiles)
    in_turns_us = np.maximum(busy_us, tiles_us * columns.turns)
    return in_turns_us + np.minimum(tiles, columns.most_stores) * store_us + columns.first_us


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
    return float(ADDING_US + (2 + problem.adds_transpose) * sums_bytes / ADDING_BYTES_PER_US)
