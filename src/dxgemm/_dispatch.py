"""Which implementation, with which config, computes a problem, and why: a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxgemm._errors import UnknownImplementationError, UnsupportedProblemError
from dxgemm._problem import Problem
from dxgemm._registry import IMPLEMENTATIONS, Implementation, find_implementation
from dxgemm.runtime.device import DeviceFacts

# Up to here `coalesced` and `thread_tile_2d` are about even on the H200: with operands in L2 the
# former is 6 % quicker at 16^3, read from memory it is 8 % slower. Beyond, the latter gains.
COALESCED_MULTIPLICATIONS = 16**3

# A tile is too large where more of it than this lies outside the result.
WASTED_TILE_FRACTION = 0.25


@dataclass(frozen=True)
class Candidate:
    """One way to compute the problem, with the rule that put it in its place."""

    implementation: Implementation
    config: Any
    reason: str

    def __str__(self) -> str:
        config = f" {self.config}" if self.config is not None else ""
        return f"{self.implementation.name}{config}"


@dataclass(frozen=True)
class Decision:
    """Candidates, best first, and why each other implementation is not among them."""

    candidates: tuple[Candidate, ...]
    rejected: dict[str, str]


def choose(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[str, Any] | None = None
) -> Decision:
    """Rank what can compute the problem.

    Args:
        problem: what to compute.
        device: where.
        implementation: None for the automatic choice among dxgemm's own kernels, a name for exactly
            that one, or a name and one of its configs.

    Raises:
        UnknownImplementationError: no such name.
        UnsupportedProblemError: the named implementation cannot, or none can; with all reasons.
    """
    if implementation is not None:
        return _named(problem, device, implementation)
    prefers_coalesced, rule = _size_rule(problem, device)
    ranked: list[Candidate] = []
    rejected: dict[str, str] = {}
    for candidate in IMPLEMENTATIONS:
        reason = candidate.supports(problem) or candidate.runs_on(device.arch)
        if reason is not None:
            rejected[candidate.name] = reason
        elif not candidate.is_own:
            rejected[candidate.name] = "a baseline: used only when named"
        elif not candidate.is_automatic:
            rejected[candidate.name] = "a step of the ladder: used only when named"
        else:
            ranked.append(_with_config(candidate, problem, device, rule))
    if not ranked:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
        raise UnsupportedProblemError(f"gemm: no implementation fits. {reasons}")
    ranked.sort(key=lambda c: (c.implementation.name == "coalesced") != prefers_coalesced)
    rejected.update((other.implementation.name, rule) for other in ranked[1:])
    return Decision(tuple(ranked), rejected)


def _size_rule(problem: Problem, device: DeviceFacts) -> tuple[bool, str]:
    """Whether one thread an element is quickest, and the rule that says so."""
    if device.is_simulated:
        return True, "the simulator pays for every barrier"
    multiplications = problem.batch * problem.m * problem.n * problem.k
    if multiplications <= COALESCED_MULTIPLICATIONS:
        return True, f"at most {COALESCED_MULTIPLICATIONS} multiplications"
    return False, f"more than {COALESCED_MULTIPLICATIONS} multiplications"


def _named(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[str, Any]
) -> Decision:
    name, config = _name_and_config(implementation)
    chosen = find_implementation(name)
    reason = chosen.supports(problem) or chosen.runs_on(device.arch)
    if reason is not None:
        raise UnsupportedProblemError(
            f"gemm: implementation {name!r} cannot compute this: {reason}."
        )
    if config is None:
        candidate = _with_config(chosen, problem, device, "asked for by name")
    elif config in chosen.configs(problem.dtype):
        candidate = Candidate(chosen, config, "asked for by name and config")
    else:
        listed = ", ".join(str(known) for known in chosen.configs(problem.dtype))
        raise UnsupportedProblemError(f"gemm: {name!r} has no config {config}; there are {listed}.")
    others = {i.name: f"{name} was asked for" for i in IMPLEMENTATIONS if i is not chosen}
    return Decision((candidate,), others)


def _name_and_config(implementation: Any) -> tuple[Any, Any]:
    if not isinstance(implementation, tuple):
        return implementation, None
    if len(implementation) != 2:
        raise UnknownImplementationError(
            f"gemm: implementation is {implementation!r}; pass a name, or a pair (name, config)."
        )
    return implementation


def _with_config(
    implementation: Implementation, problem: Problem, device: DeviceFacts, rule: str
) -> Candidate:
    """The largest tile that wastes little and gives half the SMs a block, or the smallest tile.

    Half, not all: a larger tile on half the SMs beat a smaller one on all of them (512^3 on the
    H200: 64x32 tiles took 33 us, 32x32 tiles 48 us).
    """
    configs = implementation.configs(problem.dtype)
    if configs == (None,):
        return Candidate(implementation, None, rule)
    if len(configs) == 1:
        return Candidate(implementation, configs[0], f"{rule}; its only tile")
    for config in configs:
        blocks = implementation.block_count(config, problem)
        if 2 * blocks >= device.sm_count and _wasted_fraction(config, problem) <= (
            WASTED_TILE_FRACTION
        ):
            why = f"the largest tile that fits, with a block for half of {device.sm_count} SMs"
            return Candidate(implementation, config, f"{rule}; {why}")
    why = f"the smallest tile: {blocks} blocks for {device.sm_count} SMs"
    return Candidate(implementation, config, f"{rule}; {why}")


def _wasted_fraction(config: Any, problem: Problem) -> float:
    """How much of the tiles that cover one matrix of the result lies outside it."""
    covered_m = -(-problem.m // config.tile_m) * config.tile_m
    covered_n = -(-problem.n // config.tile_n) * config.tile_n
    return 1 - problem.m * problem.n / max(covered_m * covered_n, 1)
