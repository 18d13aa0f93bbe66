"""Fit of a table to measured times: the speed of each config, then the corrections."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dxgemm.choice.columns import Columns, Row
from dxgemm.choice.model import predict, schedule
from dxgemm.choice.problem_facts import ProblemFacts
from dxgemm.choice.residual import candidate_features, problem_features
from dxgemm.choice.selection import all_rows, speed_of
from dxgemm.choice.tables import (
    FEATURES,
    SPEED_NAMES,
    Chip,
    Key,
    Speed,
    Table,
    table_of_another,
    write_table,
)
from dxgemm.errors import MissingPackageError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.tuning.observations import Observation

# Smallest and largest plausible value of each number of a speed. An efficiency may exceed 1, since
# the model predicts more than the longest of times that overlap.
RANGES = {
    "efficiency": (0.001, 1.5),
    "lone_share": (0.1, 1.0),
    "launch_us": (1.0, 60.0),
    "fill_us": (0.02, 20.0),
    "tile_us": (0.01, 20.0),
    "misaligned": (0.8, 4.0),
    "a_col": (0.7, 4.0),
    "b_col": (0.7, 4.0),
    "read_share": (0.02, 1.2),
    "write_share": (0.02, 1.2),
    "misaligned_writes": (1.0, 8.0),
    "cluster_block_us": (0.02, 3.0),
    "epilogue_ns": (0.01, 20.0),
}
TOLERANCE = 0.05  # errors of ln(predicted / measured) beyond it count less, as outliers
# Weight of a prior speed, near which numbers stay that the data do not determine: of that in the
# table, and of one for all configs of a kernel, found by leaving problems out.
PRIOR, POOLED = 0.05, 1.0
# Fewest measurements of a config for a fit of its speed, without and with a speed in the table. The
# second is larger, since small problems do not determine the speed on large ones.
FEWEST, FEWEST_KNOWN = 4, 25
# What a candidate that was measured on no chip has to be quicker by; of its logarithm.
UNPROVEN = 0.03
# Of the corrections: the largest ln(measured / predicted) that counts, and the penalty of the
# square by which a weight differs from another chip's, both found by leaving problems out.
MOST_LEFT, PENALTY = 0.6, 32.0
# Time over the best one's, less 1, of a measurement that counts half: found in the same way.
BEHIND = 0.4
NO_WEIGHTS = np.zeros(len(FEATURES))


@dataclass(frozen=True)
class Fit:
    """Fit of one dtype.

    Attributes:
        workloads: number of measured workloads.
        speeds: speeds, each with its number of measurements.
        corrections: weights by candidate, each with their number of measurements.
        error: root mean square of ln(predicted / measured) by the model alone.
        corrected_error: the same after the corrections, on the problems that they were fitted to.
    """

    workloads: int
    speeds: dict[Key, tuple[Speed, int]]
    corrections: dict[str, tuple[np.ndarray, int]]
    error: float
    corrected_error: float


def fit_table(
    folder: Path,
    observations: Collection[Observation],
    device: DeviceFacts,
    known: Table | None,
    about: Mapping[str, Any],
) -> dict[str, Fit]:
    """Fit each dtype that was measured and write the table; entries of other dtypes are kept.

    Args:
        folder: folder of the table.
        observations: observations of any dtypes.
        device, known: as `fit_dtype` takes them.
        about: date and package versions of the observations.

    Returns:
        The fits by dtype.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    by_dtype: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        by_dtype[one.workload.dtype].append(one)
    another = table_of_another(device)
    fits = {
        dtype: fit_dtype(dtype, own, device, known, another)
        for dtype, own in sorted(by_dtype.items())
    }
    speeds = {
        key: (speed, 0)
        for table in (another, known)
        if table is not None
        for key, speed in table.speeds.items()
    }
    corrections = {
        (dtype, name): (weights, 0)
        for dtype, by_name in (known.corrections.items() if known else ())
        if dtype not in fits
        for name, weights in by_name.items()
    }
    for dtype, fit in fits.items():
        speeds |= fit.speeds
        corrections |= {(dtype, name): entry for name, entry in fit.corrections.items()}
    write_table(folder, Chip.of(device), speeds, corrections, about)
    return fits


def times_of(observed: Sequence[Observation], rows: Sequence[Row]) -> np.ndarray:
    """Times, a row per observation and a column per candidate; NaN where none was measured."""
    times = [[one.us.get(row.name, np.nan) for row in rows] for one in observed]
    return np.array(times, float).reshape(len(observed), len(rows))


def features_of_problems(observed: Sequence[Observation]) -> np.ndarray:
    """`problem_features` of what was measured, a row per observation."""
    problems = [one.workload.problem() for one in observed]
    return np.array([problem_features(ProblemFacts.of(problem)) for problem in problems])


def closeness(us: np.ndarray, behind: float) -> np.ndarray:
    """What times count: 1 for a problem's least, half of it where so much longer."""
    least_us = np.fmin.reduce(us, axis=1, keepdims=True)
    return 1 / (1 + ((us / least_us - 1) / behind) ** 2)


def fit_dtype(
    dtype: str,
    observations: Iterable[Observation],
    device: DeviceFacts,
    known: Table | None,
    another: Table | None = None,
) -> Fit:
    """Fit the speeds of a dtype's configs, and the corrections of the predictions from them.

    Args:
        dtype: of a and b.
        observations: of any precision.
        device: where they were made.
        known: a table of this chip or another, from which the search for speeds begins.
        another: a table of another chip, whose corrections hold where nothing was measured.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    observed = list(observations)
    facts = ProblemFacts.of_all([observation.workload.problem() for observation in observed])
    rows = all_rows(dtype, device)
    us = times_of(observed, rows)
    rows_of: dict[Any, list[int]] = defaultdict(list)
    for column, row in enumerate(rows):
        rows_of[row.implementation.name, row.config].append(column)
    speeds: dict[Key, tuple[Speed, int]] = {}
    of_rows: list[Speed] = [speed_of(row, dtype, known) for row in rows]
    columns = Columns.of(rows, of_rows, dtype, device)
    # A split-K candidate of a single slice is none, whatever was measured.
    us[np.isinf(predict(facts, schedule(columns, facts)))] = np.nan
    pooled = _pooled_speeds(rows, of_rows, facts, us, dtype, device)
    for (name, config), places in rows_of.items():
        count = int(np.isfinite(us[:, places]).sum())
        speed = pooled.get(name, of_rows[places[0]])
        is_known = known is not None and (dtype, name, str(config)) in known.speeds
        if count >= (FEWEST_KNOWN if is_known or name in pooled else FEWEST):
            few, prior = [rows[place] for place in places], POOLED if name in pooled else PRIOR
            speed = fit_speed(few, speed, facts, us[:, places], dtype, device, prior)
        if count >= FEWEST or name in pooled:
            speeds[dtype, name, str(config)] = speed, count
        for place in places:
            of_rows[place] = speed
    columns = Columns.of(rows, of_rows, dtype, device)
    plan = schedule(columns, facts)
    left = np.log(us / predict(facts, plan))
    left[~np.isfinite(left)] = np.nan
    shared, own = features_of_problems(observed), candidate_features(plan)
    likely = another.corrections.get(dtype, {}) if another else {}
    corrections = {row.name: (likely[row.name], 0) for row in rows if row.name in likely}
    rest = left.copy()
    counts = closeness(us, BEHIND)

    def features_of(places: list[int]) -> tuple[np.ndarray, tuple[Any, Any]]:
        """Features of what is known of some candidates, and where that is."""
        known, among = np.nonzero(np.isfinite(left[:, places]))
        where = known, np.array(places, int)[among]
        return np.concatenate([shared[known], own[:, where[0], where[1]].T], axis=1), where

    # Candidates whose names have the same words, of a kernel of whose tiles the model knows the
    # costs, are off alike.
    places_of: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.implementation.name in pooled:
            places_of[re.sub(r"\d+", "", row.name)].append(place)
    alike: dict[str, np.ndarray] = {}
    for places in places_of.values():
        features, where = features_of(places)
        weights = ridge(features, left[where], counts[where])
        alike |= {rows[place].name: weights for place in places}
    corrections |= {name: (weights, 0) for name, weights in alike.items() if name not in likely}
    for column, row in enumerate(rows):
        known_ones = np.isfinite(left[:, column])
        count = int(known_ones.sum())
        if count >= FEWEST:
            features, _ = features_of([column])
            begin = likely.get(row.name, alike.get(row.name, NO_WEIGHTS))
            goal = left[known_ones, column] - features @ begin
            weights = begin + ridge(features, goal, counts[known_ones, column])
            corrections[row.name] = weights, count
            rest[known_ones, column] -= features @ weights
        if row.name in alike and row.name not in likely:
            weights, count = corrections[row.name]
            doubt = UNPROVEN * max(0.0, 1 - count / FEWEST_KNOWN)
            corrections[row.name] = weights + doubt * (np.arange(len(FEATURES)) == 0), count
    return Fit(len(observed), speeds, corrections, _rms(left), _rms(rest))


def ridge(
    features: np.ndarray, left: np.ndarray, counts: np.ndarray, penalty: float = PENALTY
) -> np.ndarray:
    """Fit weights of features to the residuals of the model by ridge regression.

    Residuals of candidates that are near the best one count more: these decide.
    """
    counted = features.T * counts
    squares = counted @ features + penalty * np.eye(features.shape[1])
    weights: np.ndarray = np.linalg.solve(squares, counted @ left.clip(-MOST_LEFT, MOST_LEFT))
    return weights


def _pooled_speeds(
    rows: list[Row], starts: list[Speed], facts: ProblemFacts, us: np.ndarray, dtype: str,
    device: DeviceFacts,
) -> dict[str, Speed]:  # fmt: skip
    """One speed for all configs of each kernel of whose tiles the model knows the costs.

    Source: Gelman et al., "Bayesian Data Analysis", 2013, chapter 5, for partial pooling.
    """
    known_costs = Columns.of(rows, starts, dtype, device).is_persistent > 0
    places_of: dict[str, list[int]] = defaultdict(list)
    for place in np.flatnonzero(known_costs & np.isfinite(us).any(axis=0)):
        places_of[rows[place].implementation.name].append(int(place))
    return {
        name: fit_speed([rows[p] for p in places], Speed(1.0), facts, us[:, places], dtype, device)
        for name, places in places_of.items()
    }


def fit_speed(
    rows: list[Row], start: Speed, facts: ProblemFacts, us: np.ndarray, dtype: str,
    device: DeviceFacts, prior: float = PRIOR,
) -> Speed:  # fmt: skip
    """Fit the speed of one config, or one speed for several.

    Args:
        rows: rows of the config, without and with split-K.
        start: prior speed of the config.
        facts: the problems.
        us: measured times, a row per problem and a column per entry of rows; NaN for missing ones.
        dtype: dtype of a and b.
        device: the GPU of the measurements.
        prior: weight of the prior speed.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise MissingPackageError(
            f"tuning needs SciPy ({error}); pip install 'dxgemm[tune]'."
        ) from error
    is_measured = np.isfinite(us)
    used = is_measured.any(axis=1)
    few = facts.mapped(lambda column: column[used])
    is_measured, logs = is_measured[used], np.log(us[used])
    least, most = (np.log([RANGES[name][end] for name in SPEED_NAMES]) for end in (0, 1))
    begin = np.log([getattr(start, name) for name in SPEED_NAMES]).clip(least, most)

    def residuals(values: Any) -> Any:
        speed = Speed(*np.exp(values))
        columns = Columns.of(rows, [speed] * len(rows), dtype, device)
        predicted = predict(few, schedule(columns, few))
        errors = (np.log(predicted) - logs)[is_measured]
        return np.concatenate([errors, prior * (values - begin)])

    found = least_squares(
        residuals, begin, bounds=(least - 1e-9, most + 1e-9), loss="soft_l1", f_scale=TOLERANCE,
        max_nfev=60,
    )  # fmt: skip
    return replace(start, **dict(zip(SPEED_NAMES, map(float, np.exp(found.x)), strict=True)))


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.nanmean(errors**2)))
