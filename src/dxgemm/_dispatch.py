"""Which implementation, with which config, computes a problem, and why: a pure function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dxgemm._errors import UnknownImplementationError, UnsupportedProblemError
from dxgemm._model import predict_us, reducing_us, resident_blocks
from dxgemm._problem import Problem, sliced_problem, stored_problem
from dxgemm._registry import (
    IMPLEMENTATIONS,
    MOST_SLICES,
    Implementation,
    find_implementation,
)
from dxgemm.runtime.device import DeviceFacts

FEWEST_SLICED_TILES = 4  # of k, in a slice


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
        elif not _is_considered(candidate, problem.dtype, device):
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


def _is_considered(implementation: Implementation, dtype: str, device: DeviceFacts) -> bool:
    """Whether the automatic choice may take it: as a rule, or since the GPU's table has it."""
    is_tuned = (dtype, implementation.name) in device.tuned_kernels
    return is_tuned or implementation.is_automatic(dtype)


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
    may_fuse = problem.must_fuse is not False and implementation.fuses_reduction(problem)
    fused = [problem] if may_fuse else []
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
        counts = [slices] if slices else slice_counts(implementation, config, problem, device)
        for way in _ways(implementation, problem):
            timed += [
                (predict_us(implementation, config, sliced, device), config, sliced)
                for sliced in (sliced_problem(way, s) if s > 1 else way for s in counts)
            ]
    if problem.reduction is not None and not device.is_simulated:
        timed = [
            (us + reducing_us(problem, way is problem, device), config, way)
            for us, config, way in timed
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


def slice_counts(
    implementation: Implementation, config: Any, problem: Problem, device: DeviceFacts
) -> list[int]:
    """One slice, and as many as fill the GPU's multiprocessors once, half and whole."""
    if not _can_slice(implementation, config, problem, 2):
        return [1]
    tiles = max(implementation.tile_count(config, problem), 1)
    most = min(MOST_SLICES, problem.k // (config.tile_k * FEWEST_SLICED_TILES))
    resident = resident_blocks(config, problem.dtype, device)
    counts = (
        min(blocks * device.sm_count // tiles, most) for blocks in {1, resident, 2 * resident}
    )
    return [1, *sorted({count for count in counts if count > 1})]
