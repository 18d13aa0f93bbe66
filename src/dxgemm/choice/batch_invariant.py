"""Batch-invariant choice of a kernel: no row depends on the number of rows.

The order in which a kernel adds follows from k and its config alone, except with split-K or where
the operands' values decide on the arithmetic; and kernels may share it (`order_of_sums`). So one
order serves every number of rows and every batch: the one with the smallest worst-case slowdown.
For each number of rows the quickest config of that order is taken. No size of an operand changes
the order: aligned copies are made of any (`for_any_rows`), and where no kernel of the order can
index all rows or matrices, the config is that of their pieces.
Source: H. He et al., "Defeating Nondeterminism in LLM Inference", 2025, for batch invariance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dxgemm.choice import legality
from dxgemm.choice.implementation import Implementation
from dxgemm.choice.legality import Candidate
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.choice.selection import Ranking, Times, choose, rank, time_candidates
from dxgemm.errors import UnsupportedProblemError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.parts.tensor_map import MOST_STRIDE_BYTES
from dxgemm.problem.arguments import check_flag
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.layout import LINE_BYTES, MAX_ALIGNMENT, Strides
from dxgemm.problem.problem import Problem

TYPICAL_ROWS = (1, 16, 128, 1024, 8192)  # numbers of rows for which orders are compared


@dataclass(frozen=True)
class BatchInvariant:
    """Marker of a call with batch_invariant=True, in place of its implementation.

    Attributes:
        implementation: implementation that the caller passed.
    """

    implementation: Any


def with_batch_invariance(implementation: Any, batch_invariant: Any) -> Any:
    """Mark the implementation of a call with `batch_invariant=`, if that is True."""
    is_invariant = check_flag("batch_invariant", batch_invariant)
    return BatchInvariant(implementation) if is_invariant else implementation


def rank_asked(problem: Problem, device: DeviceFacts, asked: Any) -> Ranking:
    """Rank all candidates for a call's implementation, which may be marked as batch-invariant."""
    if isinstance(asked, BatchInvariant):
        return rank_for_any_rows(problem, device, asked.implementation)
    return rank(problem, device, asked)


def choose_asked(problem: Problem, device: DeviceFacts, asked: Any) -> Candidate:
    """Choose the first candidate of `rank_asked`."""
    if isinstance(asked, BatchInvariant):
        return rank_asked(problem, device, asked).candidates[0]
    return choose(problem, device, asked)


def rank_for_any_rows(problem: Problem, device: DeviceFacts, implementation: Any) -> Ranking:
    """Choose one candidate for all problems that differ in their rows and batch only.

    Args:
        problem: the problem to compute.
        device: the GPU to compute it on.
        implementation: as `rank` takes it, but without split-K slices.

    Raises:
        UnknownImplementationError: there is no such name.
        UnsupportedProblemError: the named implementation cannot compute the problem, or the problem
            has a reduction.
    """
    if problem.reduction is not None:
        raise UnsupportedProblemError(
            "gemm: batch_invariant=True makes rows of the matrix; reduce them in a second step."
        )
    if problem.is_integer:
        return rank(problem, device, implementation)  # exact in any order
    problem = for_any_rows(problem)
    considered, wish = IMPLEMENTATIONS, "batch invariant"
    if implementation is not None:
        ranking = rank(problem, device, implementation)
        asked = ranking.candidates[0]
        refusal = _refusal(asked.implementation, problem)
        if isinstance(implementation, tuple) and refusal is None:
            if asked.slices == 1:
                return ranking
            refusal = "the order in which split-K slices are added depends on the result's size"
        if refusal is not None:
            raise UnsupportedProblemError(f"gemm: {asked} is not batch invariant: {refusal}.")
        considered, wish = (asked.implementation,), "asked for by name, batch invariant"
    rejected = {other.name: f"{wish}: another fits all sizes better" for other in IMPLEMENTATIONS}
    samples = tuple(_with_rows(problem, rows) for rows in TYPICAL_ROWS)
    found, refused = _best_for_all(considered, samples, device, implementation is not None)
    rejected.update(refused)
    if found is None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
        raise UnsupportedProblemError(f"gemm: no batch-invariant implementation fits. {reasons}")
    order, sharing, ratio = found
    times, place = _best_of_order(problem, device, sharing, order)
    row = times.columns.rows[place]
    del rejected[row.implementation.name]
    reason = f"{wish}; predicted to take at most {ratio:.3g} times the best, whatever the rows"
    best = Candidate(row.implementation, row.config, us=float(times.us[place]), note=reason)
    return Ranking((best,), rejected)


def for_any_rows(problem: Problem) -> Problem:
    """Problem of a batch-invariant call: operands of any size are copied to aligned lines."""
    return problem if problem.copies_any_size else replace(problem, copies_any_size=True)


@lru_cache(maxsize=1024)
def _best_for_all(
    implementations: tuple[Implementation, ...],
    samples: tuple[Problem, ...],
    device: DeviceFacts,
    is_named: bool,
) -> tuple[tuple[Hashable, tuple[Implementation, ...], float] | None, dict[str, str]]:
    """Find the best order of sums, the kernels that have it and its slowdown; refusals by name.

    The result is cached: often only the number of rows differs from call to call.

    Args:
        implementations: the kernels to compare.
        samples: the problem with each of `TYPICAL_ROWS`.
        device: the GPU.
        is_named: True if the caller named the kernel.
    """
    refused: dict[str, str] = {}
    fitting = []
    for candidate in implementations:
        refusals = [
            legality.refusal(candidate, samples[0], device),
            _refusal(candidate, samples[0]),
        ]
        if not is_named and not candidate.is_automatic(device.arch):
            refusals.append("used only when named")
        if not any(refusals):
            refusals += map(candidate.supports, samples)
        refusal = next(filter(None, refusals), None)
        if refusal is None:
            fitting.append(candidate)
        else:
            refused[candidate.name] = refusal
    if not fitting:
        return None, refused
    times: dict[Hashable, list[float]] = defaultdict(lambda: [math.inf] * len(samples))
    sharing: dict[Hashable, dict[Implementation, None]] = defaultdict(dict)
    for number, sample in enumerate(samples):
        (found,) = time_candidates(sample, device, fitting)
        for row, us in zip(found.columns.rows, found.us.tolist(), strict=True):
            if not row.fill:
                order = row.implementation.order_of_sums(row.config)
                times[order][number] = min(times[order][number], us)
                sharing[order][row.implementation] = None
    order, ratio = _smallest_slowdown(times)
    return (order, tuple(sharing[order]), ratio), refused


def _best_of_order(
    problem: Problem, device: DeviceFacts, implementations: Sequence[Implementation], order: Any
) -> tuple[Times, int]:
    """Predict the times of some kernels, and find the quickest config that has an order of sums.

    Where none of the kernels can index all rows or matrices, those that compute pieces are taken.

    Raises:
        UnsupportedProblemError: none of the kernels computes pieces of the problem, either.
    """
    refusals: dict[str, str] = {}
    for part in (problem, _piece(problem)):
        refusals = {i.name: legality.refusal(i, part, device) or "" for i in implementations}
        fitting = [i for i in implementations if not refusals[i.name]]
        if not fitting:
            continue
        (times,) = time_candidates(part, device, fitting)
        places = [
            place
            for place, row in enumerate(times.columns.rows)
            if not row.fill and row.implementation.order_of_sums(row.config) == order
        ]
        if places:
            return times, min(places, key=lambda place: times.us[place])
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
    raise UnsupportedProblemError(
        "gemm: no kernel that adds in the batch-invariant order of this n, k and layout takes "
        f"the operands; copy them to contiguous arrays. {reasons}"
    )


def _piece(problem: Problem) -> Problem:
    """Some rows of one matrix of a problem, as they are."""
    rows = "n" if _rows_are_columns(problem) else "m"
    most = min(getattr(problem, rows), TYPICAL_ROWS[-1])
    return replace(problem, batch=1, **{rows: most})


def _rows_are_columns(problem: Problem) -> bool:
    """True if the rows of the caller's matrix are the columns of the problem."""
    return problem.is_transposed or problem.n == 1  # several rows of one column are transposed


def _with_rows(problem: Problem, rows: int) -> Problem:
    """Replace the caller's number of rows, in one matrix; a row without a stride gets one."""
    a, b = problem.a._replace(batch=0), problem.b._replace(batch=0)
    if _rows_are_columns(problem):
        b = b if problem.n > 1 or b.col else b._replace(col=problem.k)
        b, alignment = _typical(b, problem.b_alignment, problem, rows)
        out = Strides(0, rows, 1)
        return replace(problem, n=rows, batch=1, a=a, b=b, b_alignment=alignment, c=out, out=out)
    a = a if problem.m > 1 or a.row else a._replace(row=problem.k)
    a, alignment = _typical(a, problem.a_alignment, problem, rows)
    out = Strides(0, problem.n, 1)
    return replace(problem, m=rows, batch=1, a=a, b=b, a_alignment=alignment, c=out, out=out)


def _typical(strides: Strides, alignment: int, problem: Problem, rows: int) -> tuple[Strides, int]:
    """Strides and alignment of which only multiples of 16 bytes are known, as is promised."""
    item_size = ITEM_SIZES[problem.dtype]
    line = LINE_BYTES // item_size
    long = -(-max(rows, problem.k) // line) * line

    def typical(stride: int) -> int:
        if stride in (0, 1) or abs(stride) * item_size >= MOST_STRIDE_BYTES:
            return stride  # the last: of no array, but of sizes that are only explained
        length = long if stride * item_size % MAX_ALIGNMENT == 0 else long + 1
        return length if stride > 0 else -length

    typical_alignment = alignment if alignment == MAX_ALIGNMENT else item_size
    return Strides(0, typical(strides.row), typical(strides.col)), typical_alignment


def _smallest_slowdown(times: dict[Hashable, list[float]]) -> tuple[Hashable, float]:
    """Find the order with the smallest worst-case time over the best time, and that ratio."""
    least = [min(each) for each in zip(*times.values(), strict=True)]
    worst = {
        # One microsecond more: the simulator's times may be 0.
        order: max((us + 1) / (best + 1) for us, best in zip(each, least, strict=True))
        for order, each in times.items()
    }
    order = min(worst, key=lambda entry: worst[entry])
    return order, worst[order]


def _refusal(implementation: Implementation, problem: Problem) -> str | None:
    """Reason why a row may depend on other rows; None if it does not."""
    if not implementation.is_own:
        return "its library chooses by the sizes"
    if implementation.fallback(problem) is not None:
        return "the values of all rows decide what is computed"
    if any("m" in config.least_sizes for config in implementation.configs(problem.dtype)):
        return "few rows are summed by plain loads, maybe in another order"
    return None
