"""How long a kernel takes: a model of waves, latency and memory.

A GPU's multiprocessors (SMs) share out the tiles of the result. What a config reaches there is a
`Speed`: from the GPU's table if it was tuned, else from what the kernel file says.
Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (CACM,
2009), for the bounds; NVIDIA, "Matrix Multiplication Background User's Guide", for waves of tiles.
"""

from __future__ import annotations

import math
from typing import Any

from dxgemm._occupancy import sm_limits
from dxgemm._problem import ITEM_SIZES, Problem
from dxgemm._registry import DEFAULT_LAUNCH_US, Implementation
from dxgemm._speeds import Speed
from dxgemm.runtime.device import DeviceFacts

# What a fused reduction adds for an element, and for a tile, of a block that has its SM for itself:
# argmin and the two smallest in float32 on the H200. A stored matrix is read at this part of the
# memory's peak.
REDUCTION_NS = 0.1
REDUCTION_TILE_US = 0.5
READING_EFFICIENCY = 0.75

# What an epilogue adds for an element on an SM: bias, gelu and residual on the H200. Where three
# blocks or more share the SM, this part of it.
EPILOGUE_NS = {"float32": 0.27, "float64": 0.67}
SHARED_EPILOGUE = 2 / 3

# Of the memory's peak, by matrices of a batch: with 48 x 48 and less on the H200.
BATCH_MEMORY_SHARE = 0.88

# What adding the sums of slices takes: another kernel, and its reading of them, from the L2 cache.
ADDING_US = 3.5
ADDING_BYTES_PER_US = 3e6


def predict_us(
    implementation: Implementation,
    config: Any,
    problem: Problem,
    device: DeviceFacts,
    speed: Speed | None = None,
) -> float:
    """Time of one launch: rounds of tiles at the speed that the config reaches.

    Every SM works on one tile after the other, each at the config's share of the SM's peak; with
    other blocks beside it a tile takes longer, by as much as it is joined by them. Where fewer
    blocks are left than an SM holds, they do not fill it: `lone_share` says how far one alone falls
    behind. The launch takes as long as the SM with the most tiles, however full the others are, and
    no less than its traffic with memory. Epilogues and fused reductions cost each element the same,
    less where other blocks of the SM multiply meanwhile.

    Args:
        speed: to try; None for that of the device.
    """
    tiles = implementation.tile_count(config, problem)
    if not tiles:
        return 0.0
    if device.is_simulated:
        return float(config.smem_bytes(problem.dtype) > 0)  # the simulator pays for every barrier
    speed = speed or speed_of(implementation, config, problem, device)
    split_k = getattr(config, "split_k", 1)
    flops = 2 * config.tile_m * config.tile_n * -(-problem.k // (split_k * problem.slices))
    peak = device.peak_tflops[problem.scalar_dtype] * 1e6 / device.sm_count  # FLOP a microsecond
    tile_us = flops / (peak * speed.efficiency)
    if speed.misaligned > 1 and not problem.is_aligned:
        tile_us *= speed.misaligned
    rounds = -(-tiles * problem.slices // device.sm_count)
    left = rounds % speed.resident
    arithmetic_us = (rounds - left) * tile_us + -(-rounds // speed.resident) * speed.tile_us
    if left:
        share = speed.lone_share
        if speed.resident > 1:
            share += (1 - share) * (left - 1) / (speed.resident - 1)
        arithmetic_us += left / share * tile_us
    if problem.epilogue is not None:
        resident = resident_blocks(config, problem.dtype, device)
        elements = rounds * config.tile_m * config.tile_n // split_k
        if problem.epilogue.stages:
            element_ns = EPILOGUE_NS["float64" if problem.scalar_dtype == "float64" else "float32"]
            element_ns *= SHARED_EPILOGUE if resident > 2 else 1.0
            arithmetic_us += elements * element_ns / 1e3
        if problem.reduction is not None:
            reduction_us = elements * REDUCTION_NS / 1e3 + rounds * REDUCTION_TILE_US
            arithmetic_us += reduction_us / resident
    memory_share = speed.memory_share if problem.batch == 1 else BATCH_MEMORY_SHARE
    memory_us = problem.bytes_moved / (device.memory_gbytes_per_s * 1e3 * memory_share)
    body_us = math.hypot(arithmetic_us, memory_us)  # they hide behind each other, but not all
    cluster_us = rounds * speed.cluster_block_us * (split_k - 1)
    return speed.launch_us + body_us + cluster_us + adding_us(problem)


def speed_of(
    implementation: Implementation, config: Any, problem: Problem, device: DeviceFacts
) -> Speed:
    """From the GPU's table, or by the kernel file's own account."""
    measured = device.speeds.get((problem.dtype, f"{implementation.name} {config}"))
    if measured is not None:
        return measured
    return Speed(
        efficiency=implementation.efficiency(config, problem),
        lone_share=implementation.lone_share(config),
        resident=getattr(config, "blocks_per_sm", 1),
        launch_us=implementation.launch_us,
        memory_share=implementation.memory_share,
        cluster_block_us=implementation.cluster_block_us,
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


def resident_blocks(config: Any, dtype: str, device: DeviceFacts) -> int:
    """Blocks that share an SM: what the config says, or what shared memory has room for."""
    if hasattr(config, "min_blocks"):
        blocks: int = config.min_blocks(dtype)
        return blocks
    limits = sm_limits(device.arch)
    if limits is None:
        return 1
    return max(limits.smem_bytes // (config.smem_bytes(dtype) + limits.reserved_smem_bytes), 1)
