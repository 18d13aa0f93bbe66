"""How long a kernel takes: a model of waves, latency and memory.

A GPU's multiprocessors (SMs) share out the tiles of the result. What a config reaches there is a
`Speed`: from the GPU's table if it was tuned, else from what the kernel file says.
Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (CACM,
2009), for the bounds; NVIDIA, "Matrix Multiplication Background User's Guide", for waves of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from dxgemm._correction import LEAST_FACTOR, Schedule, features_of
from dxgemm._occupancy import sm_limits
from dxgemm._problem import ITEM_SIZES, Problem
from dxgemm._registry import DEFAULT_LAUNCH_US, Implementation
from dxgemm._speeds import IN_BATCHES, USUAL, Speed, group_of, name_of
from dxgemm.runtime.device import DeviceFacts

# What a fused reduction adds for an element, and for a tile, of a block that has its SM for itself:
# argmin and the two smallest in float32 on the H200. A stored matrix is read at this part of the
# memory's peak.
REDUCTION_NS = 0.1
REDUCTION_TILE_US = 0.5
READING_EFFICIENCY = 0.75

# What an epilogue adds for an element on an SM that one block has for itself, that two share, or
# more: bias, gelu and residual on the H200. Two blocks in float64 pay half of it after a short k.
# So many times that in kernels for batches, which take the elements from registers and not,
# several rows at once, from shared memory.
EPILOGUE_NS = {"float32": (0.28, 0.18, 0.16), "float64": (0.33, 0.7, 0.22)}
EPILOGUE_FROM_REGISTERS = 1.9

# Of the memory's peak, by matrices of a batch, where no batches were measured: with 48 x 48 and
# less on the H200.
BATCH_MEMORY_SHARE = 0.88

# What adding the sums of slices takes: another kernel, and its reading of them, from the L2 cache.
ADDING_US = 3.5
ADDING_BYTES_PER_US = 2.5e6

# What a block without a pipeline waits for memory before each step along k.
WAIT_US = 0.5

# A config that the table of its kernel leaves out was hardly ever near the best: it is taken to
# reach this part of what its kernel file says. Of batches it may just have been rare.
UNTUNED = 0.7

# What a config of these reaches in batches its kernel file knows better than single products do.
FOR_BATCHES = ("small_batch", "tensor_batch")


class Prediction(NamedTuple):
    """How long a launch takes. To correct that takes the host longer than all else that is known.

    Attributes:
        plain_us: by what the GPU does, without epilogue.
        epilogue_us: what it adds, and a fused reduction.
        corrected_by: gives a factor of plain_us, `LEAST_FACTOR` or more; None for 1.
        later_us: of kernels behind it.
    """

    plain_us: float
    epilogue_us: float = 0.0
    corrected_by: Callable[[], float] | None = None
    later_us: float = 0.0

    @property
    def us(self) -> float:
        return self._by(self.corrected_by() if self.corrected_by else 1.0)

    @property
    def least_us(self) -> float:
        """What `us` certainly is not below."""
        return self._by(LEAST_FACTOR if self.corrected_by else 1.0)

    def _by(self, factor: float) -> float:
        return self.plain_us * factor + self.epilogue_us + self.later_us


def predict_us(
    implementation: Implementation,
    config: Any,
    problem: Problem,
    device: DeviceFacts,
    speed: Speed | None = None,
) -> float:
    """Time of one launch, as `predict` has it."""
    return predict(implementation, config, problem, device, speed).us


def predict(
    implementation: Implementation,
    config: Any,
    problem: Problem,
    device: DeviceFacts,
    speed: Speed | None = None,
) -> Prediction:
    """Of one launch: rounds of tiles at the speed that the config reaches.

    Every SM works on one tile after the other, as many at a time as it holds blocks. These take
    either their share of its arithmetic, or what a block takes by itself, filling its pipeline
    first: about the longer of the two. The launch takes as long as the SM with the most tiles,
    however full the others are, and no less than its traffic with memory. Epilogues and fused
    reductions cost each element the same, less where other blocks of the SM multiply meanwhile.

    Args:
        speed: to try; None for that of the device.
    """
    tiles = implementation.tile_count(config, problem)
    if not tiles:
        return Prediction(0.0)
    if device.is_simulated:
        # The simulator pays for every barrier.
        return Prediction(float(config.smem_bytes(problem.dtype) > 0))
    speed = speed or speed_of(implementation, config, problem, device)
    work = schedule(config, problem, tiles * problem.slices, device, speed)

    peak = device.peak_tflops[problem.scalar_dtype] * 1e6 / device.sm_count  # FLOP a microsecond
    k_us = 2 * config.tile_m * config.tile_n * work.tile_k / (peak * speed.efficiency)
    if not (problem.a_is_aligned and problem.b_is_aligned):
        k_us *= speed.misaligned
    if speed.guarded != 1:
        k_us *= 1 + (speed.guarded - 1) * edge_share(config, problem)
    tile_us = work.k_tiles * k_us + speed.tile_us
    if not problem.b_is_aligned:
        tile_us += speed.misaligned_tile_us
    lone_us = work.k_tiles * k_us / speed.lone_share + work.fills * speed.fill_us
    generations, left = divmod(work.rounds, work.resident)
    arithmetic_us = generations * _longer(work.resident * tile_us, lone_us, speed.sharpness)
    if left:
        arithmetic_us += _longer(left * tile_us, lone_us, speed.sharpness)

    bytes_per_us = device.memory_gbytes_per_s * 1e3
    written = float(problem.result_bytes * problem.slices)
    if not problem.result_is_aligned:
        written *= speed.misaligned_writes
    read_us = (problem.bytes_moved - problem.result_bytes) / (bytes_per_us * speed.read_share)
    write_us = written / (bytes_per_us * speed.write_share)
    cluster_us = work.rounds * speed.cluster_block_us * (work.split_k - 1)
    apart_us = speed.launch_us + cluster_us + adding_us(problem)
    # Arithmetic and memory hide behind each other in part.
    plain_us = apart_us + math.hypot(arithmetic_us, read_us + write_us)
    arithmetic_us += _epilogue_us(implementation, config, problem, work.rounds, device)
    fused_us = apart_us + math.hypot(arithmetic_us, read_us + write_us)
    correction = speed.correction
    if correction is None:
        return Prediction(plain_us, fused_us - plain_us)

    def corrected_by() -> float:
        return correction(features_of(config, problem, work))

    return Prediction(plain_us, fused_us - plain_us, corrected_by)


def schedule(
    config: Any, problem: Problem, blocks: int, device: DeviceFacts, speed: Speed
) -> Schedule:
    """How blocks that each compute a tile, or a share of its k, spread over SMs."""
    split_k = getattr(config, "split_k", 1)
    k = -(-problem.k // (split_k * problem.slices))
    step = getattr(config, "tile_k", None)
    tile_k = step if isinstance(step, int) else max(k, 1)
    k_tiles = -(-k // tile_k)
    fills = 1 if getattr(config, "stages", 1) > 1 else k_tiles
    rounds = -(-blocks // device.sm_count)
    return Schedule(
        blocks, device.sm_count, rounds, speed.resident, split_k, k, tile_k, k_tiles, fills
    )


def edge_share(config: Any, problem: Problem) -> float:
    """Part of the tiles that reach beyond the result."""
    rows, cols = problem.m // config.tile_m, problem.n // config.tile_n
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    return 1 - rows * cols / tiles


def _longer(one_us: float, other_us: float, sharpness: float) -> float:
    """The longer of two times that overlap, and more where they are alike."""
    longer, shorter = max(one_us, other_us), min(one_us, other_us)
    if math.isinf(sharpness) or not longer:
        return longer
    return longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)


def _epilogue_us(
    implementation: Implementation, config: Any, problem: Problem, rounds: int, device: DeviceFacts
) -> float:
    """What an epilogue and a fused reduction add to rounds of tiles."""
    if problem.epilogue is None:
        return 0.0
    is_fused = bool(problem.epilogue.stages)
    resident = resident_blocks(config, problem.dtype, device, is_fused)
    elements = rounds * config.tile_m * config.tile_n // getattr(config, "split_k", 1)
    us = 0.0
    if is_fused:
        by_blocks = EPILOGUE_NS["float64" if problem.scalar_dtype == "float64" else "float32"]
        epilogue_ns = by_blocks[min(resident, len(by_blocks)) - 1]
        if implementation.name in FOR_BATCHES:
            epilogue_ns *= EPILOGUE_FROM_REGISTERS
        us += elements * epilogue_ns / 1e3
    if problem.reduction is not None:
        us += (elements * REDUCTION_NS / 1e3 + rounds * REDUCTION_TILE_US) / resident
    return us


def speed_of(
    implementation: Implementation, config: Any, problem: Problem, device: DeviceFacts
) -> Speed:
    """From the GPU's table, or by the kernel file's own account.

    Where the table knows of usual products alone, others go by these as far as they can.
    """
    dtype, group = problem.dtype, group_of(problem)
    measured = device.speeds.get((dtype, name_of(implementation, config, group)))
    if measured is not None:
        return measured
    if group != IN_BATCHES or implementation.name not in FOR_BATCHES:
        measured = device.speeds.get((dtype, name_of(implementation, config, USUAL)))
    stated = measured or _stated_speed(implementation, config, problem, device)
    if group == IN_BATCHES:
        share = BATCH_MEMORY_SHARE
        stated = replace(stated, read_share=share, write_share=share, correction=None)
    return stated


def _stated_speed(
    implementation: Implementation, config: Any, problem: Problem, device: DeviceFacts
) -> Speed:
    """By the kernel file's own account."""
    resident = getattr(config, "blocks_per_sm", 1)
    fill_us = 0.0 if getattr(config, "stages", 1) > 1 else WAIT_US
    is_left_out = problem.batch == 1 and any(
        (problem.dtype, implementation.name, group) in device.tuned_kernels
        for group in (group_of(problem), USUAL)
    )
    part = UNTUNED if is_left_out else 1.0
    return Speed(
        efficiency=part * implementation.efficiency(config, problem),
        lone_share=implementation.lone_share(config) if resident > 1 else 1.0,
        resident=resident,
        launch_us=implementation.launch_us / part - fill_us,  # which counts the first wait
        fill_us=fill_us,
        read_share=part * implementation.memory_share,
        write_share=part * implementation.memory_share,
        cluster_block_us=implementation.cluster_block_us / part,
    )


def adding_us(problem: Problem) -> float:
    """Of the kernel that adds the sums of slices."""
    if problem.slices == 1:
        return 0.0
    sums = problem.slices * problem.batch * problem.out.batch * ITEM_SIZES[problem.out_dtype]
    return ADDING_US + sums / ADDING_BYTES_PER_US


def reducing_us(problem: Problem, is_fused: bool, device: DeviceFacts) -> float:
    """Of the kernels after the product's that reduce its result."""
    merging_us = DEFAULT_LAUNCH_US
    if is_fused:
        return merging_us
    matrix_bytes = problem.batch * problem.m * problem.n * ITEM_SIZES[problem.out_dtype]
    bytes_per_us = device.memory_gbytes_per_s * 1e3 * READING_EFFICIENCY
    return merging_us + DEFAULT_LAUNCH_US + matrix_bytes / bytes_per_us


def resident_blocks(config: Any, dtype: str, device: DeviceFacts, is_fused: bool = False) -> int:
    """Blocks that share an SM: what the config says, or what shared memory has room for.

    Args:
        is_fused: whether an epilogue takes registers too.
    """
    decide = getattr(config, "min_blocks", None)
    if is_fused:
        decide = getattr(config, "min_blocks_fused", decide)
    if decide is not None:
        blocks: int = decide(dtype)
        return blocks
    limits = sm_limits(device.arch)
    if limits is None:
        return 1
    return max(limits.smem_bytes // (config.smem_bytes(dtype) + limits.reserved_smem_bytes), 1)
