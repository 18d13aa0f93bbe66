"""Amendment of a table by times of its choices, beside those of a few other candidates.

A fit takes times of many candidates per problem; suites time the choice, and tell where it lost.
Their times change the corrections only, which begin at the table's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from itertools import islice
from pathlib import Path

import numpy as np

from dxgemm.choice.columns import Columns
from dxgemm.choice.legality import is_sliceable, legal_kernels
from dxgemm.choice.model import predict, schedule
from dxgemm.choice.problem_facts import ProblemFacts
from dxgemm.choice.residual import MOST, candidate_features
from dxgemm.choice.selection import MEASURED_AS, all_rows, speed_of
from dxgemm.choice.tables import PROBLEM_FEATURES, Table, read_table, write_corrections
from dxgemm.errors import SettingError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.tuning.fit import NO_WEIGHTS, closeness, features_of_problems, ridge, times_of
from dxgemm.tuning.observations import Observation
from dxgemm.tuning.workloads import random_workloads

# Penalty of the square by which a weight differs from the table's; weight of the guess that a
# problem's times are off by nothing in common; both found by leaving problems out.
PENALTY, IN_COMMON = 4.0, 0.3
BEHIND = 0.2  # as a fit has it, but for choices: what is far from the best one tells less
# What a candidate that was not measured takes more than the best one that was; of its logarithm.
HELD = 0.05
# Loss above which a choice counts as wrong, of the same logarithm; how much more it counts then.
MOST_LOST, MORE = 0.01, 0.5
ROUNDS = 40
NEVER = 99.0  # logarithm of the time of what cannot run, such as split-K of one slice
# Random problems without times, and what the table's choice of them may lose by the table's times.
ANCHORS, DOUBT = 1000, 0.15


def amend_table(folder: Path, observations: Collection[Observation], device: DeviceFacts) -> None:
    """Amend the corrections of each dtype that was measured, in a table's file.

    Args:
        folder: folder of the table.
        observations: times of the choice and of other candidates; those of a problem of one run.
        device: where they were made.

    Raises:
        SettingError: the folder has no table.
    """
    known = read_table(folder)
    if known is None:
        raise SettingError(f"{folder} has no table to amend; measure one with `dxgemm tune`.")
    by_dtype: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        by_dtype[MEASURED_AS.get(one.workload.dtype, one.workload.dtype)].append(one)
    for dtype, few in by_dtype.items():
        random = islice(random_workloads([(dtype, None)], seed=0), ANCHORS)
        few += [Observation(workload, {}) for workload in random]
    found = {dtype: amend_dtype(dtype, few, device, known) for dtype, few in by_dtype.items()}
    write_corrections(
        folder,
        {
            (dtype, name): (weights, 0)
            for dtype, by_name in {**known.corrections, **found}.items()
            for name, weights in by_name.items()
        },
    )


def amend_dtype(
    dtype: str, observed: list[Observation], device: DeviceFacts, known: Table
) -> dict[str, np.ndarray]:
    """Weights of a dtype's candidates, by name.

    Only differences between candidates of a problem count, since the choice depends on no others.
    A candidate that is predicted to be the best of a problem, but was not measured there, counts as
    slower by HELD; of a problem without any times, the table's stand. Where a round's choice loses
    time, it and the best one count more in the next.
    Source: Freund and Schapire, "A decision-theoretic generalization of on-line learning and an
    application to boosting", 1997, for the rounds.
    """
    problems = [one.workload.problem() for one in observed]
    facts, rows = ProblemFacts.of_all(problems), all_rows(dtype, device)
    speeds = [speed_of(row, dtype, known) for row in rows]
    plan = schedule(Columns.of(rows, speeds, dtype, device), facts)
    predicted = np.log(predict(facts, plan)).clip(max=NEVER)
    us = np.where(predicted < NEVER, times_of(observed, rows), np.nan)
    measured, is_measured = np.log(us), np.isfinite(us)
    best = np.fmin.reduce(measured, axis=1, keepdims=True)
    counts = np.where(is_measured, closeness(us, BEHIND), 0.0)
    is_legal = np.zeros(counts.shape, bool)
    for place, problem in enumerate(problems):
        kernels, may_slice = legal_kernels(problem, device), is_sliceable(problem)
        is_legal[place] = [x.implementation in kernels and (may_slice or not x.fill) for x in rows]
    old = known.corrections.get(dtype, {})
    begin = np.array([old.get(row.name, NO_WEIGHTS) for row in rows])
    shared, own = features_of_problems(observed), candidate_features(plan)
    weights = begin.copy()

    def corrected() -> np.ndarray:
        of_problem, of_plan = np.split(weights, [len(PROBLEM_FEATURES)], axis=1)
        exponents = shared @ of_problem.T + np.einsum("fpc,cf->pc", own, of_plan)
        return np.where(is_legal, predicted + exponents.clip(-MOST, MOST), np.inf)

    off = np.where(is_measured & is_legal, measured - corrected(), 0.0)
    in_common = (off * counts).sum(axis=1) / (counts.sum(axis=1) + IN_COMMON)
    is_anchor = np.isnan(best)
    ends = np.where(is_measured, measured, np.where(is_anchor, corrected(), best + HELD))
    best, most_lost = ends.min(axis=1), np.where(is_anchor[:, 0], DOUBT, MOST_LOST)
    goals, every = ends - in_common[:, None] - predicted, np.arange(len(observed))
    first, found, least = ends.argmin(axis=1), weights.copy(), np.inf
    for _ in range(ROUNDS):
        for column in np.flatnonzero(counts.any(axis=0)):
            where = counts[:, column] > 0
            features = np.concatenate([shared[where], own[:, where, column].T], axis=1)
            left = goals[where, column] - features @ begin[column]
            weights[column] = begin[column] + ridge(features, left, counts[where, column], PENALTY)
        choice = corrected().argmin(axis=1)
        lost = ends[every, choice] - best
        wrong = lost > most_lost
        if lost[wrong].sum() < least:
            found, least = weights.copy(), lost[wrong].sum()
        counts[every[wrong], choice[wrong]] += MORE
        counts[every[wrong], first[wrong]] += MORE
    return {row.name: own for row, own in zip(rows, found, strict=True) if own.any()}
