"""Which implementation, with which config, computes a problem, and why: a pure function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from dxgemm._decision_tree import DecisionTree, Way, features_of, tree_key
from dxgemm._errors import UnknownImplementationError, UnsupportedProblemError
from dxgemm._model import Prediction, predict, reducing_us, resident_blocks
from dxgemm._problem import Problem, sliced_problem, stored_problem
from dxgemm._registry import (
    IMPLEMENTATIONS,
    MOST_SLICES,
    Implementation,
    find_config,
    find_implementation,
)
from dxgemm._speeds import group_of
from dxgemm.runtime.device import DeviceFacts

FEWEST_SLICED_TILES = 4  # of k, in a slice
LOOKED_UP = "the quickest by the decision tree of this GPU's table"


class Candidate(NamedTuple):
    """One way to compute the problem, with the rule that put it in its place.

    Attributes:
        slices: equal parts of k, whose sums another kernel adds.
        stores_matrix: whether the matrix is stored, which another kernel reduces.
    """

    implementation: Implementation
    config: Any
    reason: str
    slices: int = 1
    stores_matrix: bool = False

    def part_of(self, problem: Problem) -> Problem:
        """What its kernel computes of a problem."""
        part = stored_problem(problem) if self.stores_matrix else problem
        return sliced_problem(part, self.slices) if self.slices > 1 else part

    def __str__(self) -> str:
        config = f" {self.config}" if self.config is not None else ""
        slices = f" in {self.slices} slices" if self.slices > 1 else ""
        return f"{self.implementation.name}{config}{slices}"


class Ranking(NamedTuple):
    """All that could compute the problem.

    Attributes:
        candidates: best first, one an implementation.
        rejected: why each other implementation is not the best, or not among the candidates.
    """

    candidates: tuple[Candidate, ...]
    rejected: dict[str, str]


def choose(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[Any, ...] | None = None
) -> Candidate:
    """The best candidate; where a tree knows it, in microseconds.

    Args, Raises:
        as of `rank`.
    """
    if implementation is not None:
        return _named(problem, device, implementation).candidates[0]
    dtype, precision = problem.dtype, problem.precision
    pair = device.trees.get(dtype if precision is None else tree_key(dtype, precision))
    if pair is not None:
        fusion = problem.epilogue
        tree = pair.products if fusion is None and problem.batch == 1 else pair.varied
        index = tree.find(features_of(problem))
        ready = tree.ready[index] or _make_ready(tree, index, dtype)
        refuses, candidate, fill, stores_matrix, in_slices = ready
        is_reduced = stores_matrix or (fusion is not None and fusion.reduction is not None)
        # A tree may say what is not possible where it has seen too few problems: that a kernel
        # takes what it refuses, reduces what it cannot, or reduces slices.
        can_reduce = not is_reduced or (
            not fill and _reduces(candidate.implementation, problem, stores_matrix)
        )
        if can_reduce and refuses(problem) is None:
            if not fill:
                return candidate
            return in_slices[slices_that_fill(candidate.config, problem, device, fill)]
    timed, rejected = _time_all(problem, device)
    if not timed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
        raise UnsupportedProblemError(f"gemm: no implementation fits. {reasons}")
    return timed[0][1]


def rank(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[Any, ...] | None = None
) -> Ranking:
    """What can compute the problem, and why one is better than another.

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
    best = choose(problem, device)
    best_us = _predict(best, problem, device).us
    timed, rejected = _time_all(problem, device)
    rejected.pop(best.implementation.name, None)
    others = [(us, c) for us, c in timed if c.implementation is not best.implementation]
    for us, other in others:
        comparison = "slower" if us >= best_us else "hardly faster"
        rejected[other.implementation.name] = f"{comparison}: {other.reason}"
    return Ranking((best, *(other for _, other in others)), rejected)


# A way of a tree: why it cannot compute a problem, or None; the candidate; how many blocks slices
# of k give a multiprocessor; whether another kernel reduces the matrix; candidates by their slices.
Ready = tuple[Callable[[Problem], str | None], Candidate, int, bool, tuple[Candidate, ...]]


def _make_ready(tree: DecisionTree, index: int, dtype: str) -> Ready:
    """A way of a tree, remembered there if it is one of this version's."""
    way = tree.ways[index]
    implementation = find_implementation(way.implementation)
    config = find_config(implementation, dtype, way.config)
    whole = Candidate(implementation, config, LOOKED_UP, 1, way.stores_matrix)
    if config is None:
        return lambda problem: "a config of an earlier version", whole, 0, False, ()
    most = MOST_SLICES if way.fill else 0
    in_slices = tuple(whole._replace(slices=slices) for slices in range(most + 1))
    ready = implementation.refuses, whole, way.fill, way.stores_matrix, in_slices
    tree.ready[index] = ready
    return ready


def _time_all(
    problem: Problem, device: DeviceFacts
) -> tuple[list[tuple[float, Candidate]], dict[str, str]]:
    """Predicted times and candidates, one an implementation, best first; why others are none."""
    timed: list[tuple[float, Candidate]] = []
    rejected: dict[str, str] = {}
    for implementation in IMPLEMENTATIONS:
        reason = _exclusion(implementation, problem, device)
        if reason is None:
            timed.append(_with_config(implementation, problem, device))
        else:
            rejected[implementation.name] = reason
    return sorted(timed, key=lambda each: each[0]), rejected


def _exclusion(implementation: Implementation, problem: Problem, device: DeviceFacts) -> str | None:
    """None, or why the automatic choice does not consider it."""
    reason = _refusal(implementation, problem, device)
    if reason is not None:
        return reason
    if not implementation.is_own:
        return "a baseline: used only when named"
    if not _is_considered(implementation, problem, device):
        return "surpassed by others on such problems: used only when named"
    return None


def _is_considered(implementation: Implementation, problem: Problem, device: DeviceFacts) -> bool:
    """Whether the automatic choice may take it: as a rule, or since the GPU's table has it.

    What is no rule is considered where the table knows that it wins: for that group of problems.
    """
    if implementation.is_automatic(problem.dtype):
        return True
    return (problem.dtype, implementation.name, group_of(problem)) in device.tuned_kernels


def _named(problem: Problem, device: DeviceFacts, implementation: str | tuple[Any, ...]) -> Ranking:
    name, config, slices = _name_config_and_slices(implementation)
    chosen = find_implementation(name)
    reason = _refusal(chosen, problem, device)
    if reason is not None:
        raise UnsupportedProblemError(
            f"gemm: implementation {name!r} cannot compute this: {reason}."
        )
    if config is None:
        _, best = _with_config(chosen, problem, device)
        candidate = best._replace(reason=f"asked for by name; {best.reason}")
    elif config in chosen.configs(problem.dtype):
        if slices > 1 and not _can_slice(chosen, config, problem, slices):
            raise UnsupportedProblemError(f"gemm: {name} {config} cannot cut this k into {slices}.")
        _, best = _with_config(chosen, problem, device, (config,), slices)
        candidate = best._replace(reason="asked for by name and config")
    else:
        listed = ", ".join(str(known) for known in chosen.configs(problem.dtype))
        raise UnsupportedProblemError(f"gemm: {name!r} has no config {config}; there are {listed}.")
    others = {i.name: f"{name} was asked for" for i in IMPLEMENTATIONS if i is not chosen}
    return Ranking((candidate,), others)


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


def _reduces(implementation: Implementation, problem: Problem, stores_matrix: bool) -> bool:
    """Whether its kernel may end so: with the reduction, if any, or with the matrix for another."""
    if problem.reduction is None:
        return not stores_matrix
    if stores_matrix:
        return not problem.must_fuse
    return problem.must_fuse is not False and implementation.fuses_reduction(problem)


def _may_store(implementation: Implementation, problem: Problem) -> list[bool]:
    """Whether the matrix may be stored that another kernel reduces: False, True or both.

    Nothing if the reduction has to be the kernel's own, which has none.
    """
    return [stores for stores in (False, True) if _reduces(implementation, problem, stores)]


def _refusal(implementation: Implementation, problem: Problem, device: DeviceFacts) -> str | None:
    may_store = _may_store(implementation, problem)
    if not may_store:
        return "its kernels reduce nothing"
    part = stored_problem(problem) if may_store[-1] else problem
    return implementation.supports(part) or implementation.runs_on(device.arch)


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
    # There is a config for each of its dtypes.
    candidates = _candidates(implementation, problem, device, configs, slices)
    least_us, best, _ = _quickest(candidates, problem, device)[0]
    slicing = f", k in {best.slices} slices" if best.slices > 1 else ""
    return least_us, best._replace(reason=f"predicted {least_us:.3g} us{slicing}")


def predicted_us(problem: Problem, device: DeviceFacts, within: float) -> dict[Way, float]:
    """Of what the automatic choice is among.

    Args:
        within: times the shortest, that are of interest; others may be missing.
    """
    candidates = (
        candidate
        for implementation in IMPLEMENTATIONS
        if _exclusion(implementation, problem, device) is None
        for candidate in _candidates(implementation, problem, device)
    )
    return {
        Way(each.implementation.name, str(each.config), fill, each.stores_matrix): us
        for us, each, fill in _quickest(candidates, problem, device, within)
    }


def _quickest(
    candidates: Iterable[tuple[Candidate, int]],
    problem: Problem,
    device: DeviceFacts,
    within: float = 1.0,
) -> list[tuple[float, Candidate, int]]:
    """Predicted times, and what of: the shortest first, and of equals that which is given first.

    They are corrected one by one, first what promises most, until others are certainly too long.

    Args:
        candidates: each, and with how many blocks its slices of k fill a multiprocessor.
        within: times the shortest, that are of interest; others may be missing.
    """
    asked = [(_predict(each, problem, device), each, fill) for each, fill in candidates]
    found: list[tuple[float, int]] = []
    shortest_us = math.inf
    for number in sorted(range(len(asked)), key=lambda number: asked[number][0].least_us):
        prediction = asked[number][0]
        if prediction.least_us > within * shortest_us:
            break
        us = prediction.us
        found.append((us, number))
        shortest_us = min(shortest_us, us)
    return [(us, *asked[number][1:]) for us, number in sorted(found)]


def _candidates(
    implementation: Implementation,
    problem: Problem,
    device: DeviceFacts,
    configs: tuple[Any, ...] | None = None,
    slices: int | None = None,
) -> Iterator[tuple[Candidate, int]]:
    """Each, and with how many blocks its slices of k fill a multiprocessor.

    Args:
        configs, slices: None for all that are to be tried.
    """
    for config in configs or implementation.configs(problem.dtype):
        if slices is None:
            counts = slice_counts(implementation, config, problem, device)
        else:
            counts = {slices: 0}
        for stores_matrix in _may_store(implementation, problem):
            for count, fill in counts.items():
                yield Candidate(implementation, config, "", count, stores_matrix), fill


def _predict(candidate: Candidate, problem: Problem, device: DeviceFacts) -> Prediction:
    """For its kernel, and for those that reduce the result behind it."""
    part = candidate.part_of(problem)
    prediction = predict(candidate.implementation, candidate.config, part, device)
    if problem.reduction is None or device.is_simulated:
        return prediction
    later_us = reducing_us(problem, not candidate.stores_matrix, device)
    return prediction._replace(later_us=later_us)


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
) -> dict[int, int]:
    """How many slices to try, and with how many blocks each fills a multiprocessor.

    One slice, with 0; and as many as fill the GPU's multiprocessors once, half and whole.
    """
    counts = {1: 0}
    if _can_slice(implementation, config, problem, 2):
        resident = resident_blocks(config, problem.dtype, device)
        for fill in sorted({1, resident, 2 * resident}):
            count = slices_that_fill(config, problem, device, fill)
            counts.setdefault(count, fill)
    return counts


def slices_that_fill(config: Any, problem: Problem, device: DeviceFacts, fill: int) -> int:
    """Of k, so that each multiprocessor has so many blocks, if k is long enough; at least 1."""
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    slices = fill * device.sm_count // (problem.batch * tiles or 1)
    most = problem.k // (config.tile_k * FEWEST_SLICED_TILES)
    if slices > most:  # a call looks this up: min() takes longer
        slices = most
    if slices > MOST_SLICES:
        slices = MOST_SLICES
    return slices or 1
