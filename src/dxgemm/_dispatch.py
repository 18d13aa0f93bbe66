"""Which implementation, with which config, computes a problem, and why: a pure function."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from dxgemm._errors import UnknownImplementationError, UnsupportedProblemError
from dxgemm._occupancy import sm_limits
from dxgemm._problem import ITEM_SIZES, Problem, sliced_problem, stored_problem
from dxgemm._registry import (
    DEFAULT_LAUNCH_US,
    IMPLEMENTATIONS,
    MOST_SLICES,
    Implementation,
    find_implementation,
)
from dxgemm.runtime.device import DeviceFacts

# What a fused reduction adds for an element of a block that has its SM for itself: argmin and the
# two smallest in float32 on the H200. A stored matrix is read at this part of the memory's peak.
REDUCTION_NS = 0.1
READING_EFFICIENCY = 0.75

# What adding the sums of slices takes: another kernel, and its reading of them, from the L2 cache.
ADDING_US = 2.5
ADDING_BYTES_PER_US = 3e6

FEWEST_SLICED_TILES = 4  # of k, in a slice

# What an epilogue adds for an element of a block that has its SM for itself: bias, gelu and
# residual in float32 on the H200.
EPILOGUE_NS = 0.54


@dataclass(frozen=True)
class Candidate:
    """One way to compute the problem, with the rule that put it in its place.

    Attributes:
        problem: what its kernel computes; where a reduction is split off, the matrix, and where k
            is sliced, the sums of the slices.
    """

    implementation: Implementation
    config: Any
    reason: str
    problem: Problem

    def __str__(self) -> str:
        config = f" {self.config}" if self.config is not None else ""
        slices = f" in {self.problem.slices} slices" if self.problem.slices > 1 else ""
        return f"{self.implementation.name}{config}{slices}"


@dataclass(frozen=True)
class Decision:
    """Candidates, best first, and why each other implementation is not among them."""

    candidates: tuple[Candidate, ...]
    rejected: dict[str, str]


def choose(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[Any, ...] | None = None
) -> Decision:
    """Rank what can compute the problem.

    Args:
        problem: what to compute.
        device: where.
        implementation: None for the automatic choice among dxgemm's own kernels, a name for exactly
            that one, a name and one of its configs, or these and the number of slices of k.

    Raises:
        UnknownImplementationError: no such name.
        UnsupportedProblemError: the named implementation cannot, or none can; with all reasons.
    """
    if implementation is not None:
        return _named(problem, device, implementation)
    ranked: list[tuple[float, Candidate]] = []
    rejected: dict[str, str] = {}
    for candidate in IMPLEMENTATIONS:
        reason = _refusal(candidate, problem, device)
        if reason is not None:
            rejected[candidate.name] = reason
        elif not candidate.is_own:
            rejected[candidate.name] = "a baseline: used only when named"
        elif not candidate.is_automatic(problem.dtype):
            rejected[candidate.name] = "surpassed by others everywhere: used only when named"
        else:
            ranked.append(_with_config(candidate, problem, device))
    if not ranked:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
        raise UnsupportedProblemError(f"gemm: no implementation fits. {reasons}")
    ranked.sort(key=lambda timed: timed[0])
    rejected.update(
        (other.implementation.name, f"slower: {other.reason}") for _, other in ranked[1:]
    )
    return Decision(tuple(candidate for _, candidate in ranked), rejected)


def _named(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[Any, ...]
) -> Decision:
    name, config, slices = _name_config_and_slices(implementation)
    chosen = find_implementation(name)
    reason = _refusal(chosen, problem, device)
    if reason is not None:
        raise UnsupportedProblemError(
            f"gemm: implementation {name!r} cannot compute this: {reason}."
        )
    if config is None:
        _, best = _with_config(chosen, problem, device)
        candidate = replace(best, reason=f"asked for by name; {best.reason}")
    elif config in chosen.configs(problem.dtype):
        if slices > 1 and not _can_slice(chosen, config, problem, slices):
            raise UnsupportedProblemError(f"gemm: {name} {config} cannot cut this k into {slices}.")
        _, best = _with_config(chosen, problem, device, (config,), slices)
        candidate = replace(best, reason="asked for by name and config")
    else:
        listed = ", ".join(str(known) for known in chosen.configs(problem.dtype))
        raise UnsupportedProblemError(f"gemm: {name!r} has no config {config}; there are {listed}.")
    others = {i.name: f"{name} was asked for" for i in IMPLEMENTATIONS if i is not chosen}
    return Decision((candidate,), others)


def _name_config_and_slices(implementation: Any) -> tuple[Any, Any, int]:
    if not isinstance(implementation, tuple):
        return implementation, None, 1
    given = (*implementation, 1) if len(implementation) == 2 else implementation
    if len(given) != 3 or not isinstance(given[2], int) or given[2] < 1:
        raise UnknownImplementationError(
            f"gemm: implementation is {implementation!r}; pass a name, (name, config), or "
            "(name, config, slices) with a number of slices of k."
        )
    return given


def _ways(implementation: Implementation, problem: Problem) -> list[Problem]:
    """What its kernel may compute: the problem, or the matrix of which another makes the rest."""
    if problem.reduction is None:
        return [problem]
    fused = [problem] if implementation.fuses_reductions and problem.must_fuse is not False else []
    return fused if problem.must_fuse else [*fused, stored_problem(problem)]


def _refusal(implementation: Implementation, problem: Problem, device: DeviceFacts) -> str | None:
    ways = _ways(implementation, problem)
    if not ways:
        return "its kernels reduce nothing"
    return implementation.supports(ways[-1]) or implementation.runs_on(device.arch)


def _with_config(
    implementation: Implementation,
    problem: Problem,
    device: DeviceFacts,
    configs: tuple[Any, ...] | None = None,
    slices: int | None = None,
) -> tuple[float, Candidate]:
    """The config of the shortest predicted time, of equals the first, and that time.

    k is cut into the slices given, or into as many as are predicted to be best.
    """
    timed = []
    for config in configs or implementation.configs(problem.dtype):
        counts = [slices] if slices else _slice_counts(implementation, config, problem, device)
        for way in _ways(implementation, problem):
            timed += [
                (predict_us(implementation, config, sliced, device), config, sliced)
                for sliced in (sliced_problem(way, s) if s > 1 else way for s in counts)
            ]
    if problem.reduction is not None and not device.is_simulated:
        timed = [
            (us + _reducing_us(problem, way, device), config, way) for us, config, way in timed
        ]
    us, config, way = min(timed, key=lambda entry: entry[0])
    slicing = f", k in {way.slices} slices" if way.slices > 1 else ""
    return us, Candidate(implementation, config, f"predicted {us:.3g} us{slicing}", way)


def _can_slice(implementation: Implementation, config: Any, problem: Problem, slices: int) -> bool:
    return (
        implementation.slices_k
        and config.split_k == 1
        and problem.dtype == problem.out_dtype == problem.scalar_dtype
        and problem.reduction is None
        and slices <= -(-problem.k // config.tile_k)
    )


def _slice_counts(
    implementation: Implementation, config: Any, problem: Problem, device: DeviceFacts
) -> list[int]:
    """One slice, and as many as fill the GPU's multiprocessors once, half and whole."""
    if not _can_slice(implementation, config, problem, 2):
        return [1]
    tiles = max(implementation.tile_count(config, problem), 1)
    most = min(MOST_SLICES, problem.k // (config.tile_k * FEWEST_SLICED_TILES))
    resident = _resident_blocks(config, problem.dtype, device)
    counts = (
        min(blocks * device.sm_count // tiles, most) for blocks in {1, resident, 2 * resident}
    )
    return [1, *sorted({count for count in counts if count > 1})]


def _reducing_us(problem: Problem, way: Problem, device: DeviceFacts) -> float:
    """What the kernels after the product's take."""
    merging_us = DEFAULT_LAUNCH_US
    if way is problem:
        return merging_us
    matrix_bytes = problem.batch * problem.m * problem.n * ITEM_SIZES[problem.out_dtype]
    bytes_per_us = device.memory_gbytes_per_s * 1e3 * READING_EFFICIENCY
    return merging_us + DEFAULT_LAUNCH_US + matrix_bytes / bytes_per_us


def predict_us(
    implementation: Implementation, config: Any, problem: Problem, device: DeviceFacts
) -> float:
    """Time of one launch by a model: rounds of tiles at the speed its config reaches.

    Every SM works on one tile after the other, each at the config's share of the SM's peak; with
    other blocks beside it a tile takes longer, by as much as it is joined by them. Where fewer
    blocks are left than an SM is meant to hold, they do not fill it: `lone_share` says how far one
    alone falls behind. The launch takes as long as the SM with the most tiles, however full the
    others are. Against measurements of `tuned` from 256^3 to 2048^3 the error is at most a seventh.
    Epilogues and fused reductions cost each element the same, less where other blocks of the SM
    multiply meanwhile. Matrices of a batch are read once, so that memory may take longer; then
    arithmetic hides behind it, but not all.
    """
    tiles = implementation.tile_count(config, problem)
    if not tiles:
        return 0.0
    if device.is_simulated:
        return float(config.smem_bytes(problem.dtype) > 0)  # the simulator pays for every barrier
    tiles *= problem.slices
    split_k = getattr(config, "split_k", 1)
    flops = 2 * config.tile_m * config.tile_n * -(-problem.k // (split_k * problem.slices))
    peak = device.peak_tflops[problem.scalar_dtype] * 1e6 / device.sm_count  # FLOP a microsecond
    tile_us = flops / (peak * implementation.efficiency(config, problem))
    rounds = -(-tiles // device.sm_count)
    blocks_per_sm = getattr(config, "blocks_per_sm", 1)
    left = rounds % blocks_per_sm
    if left:
        lone_share = implementation.lone_share(config)
        share = lone_share + (1 - lone_share) * (left - 1) / (blocks_per_sm - 1)
        tiles_us = (rounds - left + left / share) * tile_us
    else:
        tiles_us = rounds * tile_us
    if problem.epilogue is not None:
        resident = _resident_blocks(config, problem.dtype, device)
        elements = rounds * config.tile_m * config.tile_n // split_k
        if problem.epilogue.stages:
            tiles_us += elements * EPILOGUE_NS / 1e3 / resident
        if problem.reduction is not None:
            tiles_us += elements * REDUCTION_NS / 1e3 / resident
    if problem.batch > 1:
        bytes_per_us = device.memory_gbytes_per_s * 1e3 * implementation.memory_share
        tiles_us = math.hypot(tiles_us, problem.bytes_moved / bytes_per_us)
    cluster_us = rounds * implementation.cluster_block_us * (split_k - 1)
    adding_us = 0.0
    if problem.slices > 1:
        sums = problem.slices * problem.batch * problem.out.batch * ITEM_SIZES[problem.out_dtype]
        adding_us = ADDING_US + sums / ADDING_BYTES_PER_US
    return implementation.launch_us + tiles_us + cluster_us + adding_us


def _resident_blocks(config: Any, dtype: str, device: DeviceFacts) -> int:
    """Blocks that share an SM: what the config says, or what shared memory has room for."""
    if hasattr(config, "min_blocks"):
        blocks: int = config.min_blocks(dtype)
        return blocks
    limits = sm_limits(device.arch)
    if limits is None:
        return 1
    return max(limits.smem_bytes // (config.smem_bytes(dtype) + limits.reserved_smem_bytes), 1)
