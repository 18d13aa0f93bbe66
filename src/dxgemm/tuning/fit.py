"""From measured times to a table: the speed of each config, then what is left over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dxgemm._errors import MissingPackageError
from dxgemm.choice.model import Asked, Columns, Row, predict, schedule
from dxgemm.choice.residual import candidate_features, problem_features
from dxgemm.choice.selection import all_rows, speed_of
from dxgemm.choice.tables import (
    POINT,
    SPEED_NAMES,
    Chip,
    Key,
    Measured,
    Speed,
    Table,
    write_table,
)
from dxgemm.runtime.device import DeviceFacts
from dxgemm.tuning.observations import Observation

# The least and the largest value of each number of a speed that make sense.
RANGES = {
    "efficiency": (0.001, 1.0),
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
TOLERANCE = 0.05  # of ln(predicted / measured): larger ones count less, as outliers
PRIOR = 0.05  # weight of the speed that was known before; what the data do not tell stays near it
# Measurements of a config, for it to get a speed of its own: many where a table knows one already,
# since small problems do not tell how fast it is on large ones.
FEWEST, FEWEST_KNOWN = 4, 60
MOST_POINTS = 500  # problems by which predictions are corrected: a choice reads them all

# Of the Gaussian process: standard deviations of what the model leaves over and of a measured time,
# both of logarithms.
AMPLITUDE, NOISE = 0.15, 0.025


@dataclass(frozen=True)
class Fit:
    """What was learned of one dtype.

    Attributes:
        workloads: how many were measured.
        speeds: with the number of measurements behind each.
        measured: the problems, and how they correct predictions.
        error, corrected_error: root mean square of ln(predicted / measured), by the model and with
            the correction of the problems themselves.
    """

    workloads: int
    speeds: dict[Key, tuple[Speed, int]]
    measured: Measured
    error: float
    corrected_error: float


def fit_table(
    folder: Path,
    observations: Collection[Observation],
    device: DeviceFacts,
    known: Table | None,
    about: Mapping[str, Any],
) -> dict[str, Fit]:
    """Fit each dtype that was measured and write the table; what was known of others stays.

    Args:
        folder: of the table.
        observations: of any dtypes.
        device, known: as of `fit_dtype`.
        about: when and with what they were made.

    Returns:
        The fits by dtype.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    by_dtype: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        by_dtype[one.workload.dtype].append(one)
    fits = {dtype: fit_dtype(dtype, own, device, known) for dtype, own in sorted(by_dtype.items())}
    speeds = {key: (speed, 0) for key, speed in known.speeds.items()} if known else {}
    for fit in fits.values():
        speeds |= fit.speeds
    measured = {dtype: fit.measured for dtype, fit in fits.items()}
    write_table(folder, Chip.of(device), speeds, measured, about)
    return fits


def fit_dtype(
    dtype: str, observations: Iterable[Observation], device: DeviceFacts, known: Table | None
) -> Fit:
    """Fit the speeds of a dtype's configs, and what they leave over.

    Args:
        dtype: of a and b.
        observations: of any precision.
        device: where they were made.
        known: a table of this chip or another, from which the search begins.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    observed = list(observations)
    asked = Asked.of_all([observation.workload.problem() for observation in observed])
    rows = all_rows(dtype, device)
    us = np.full((len(observed), len(rows)), np.nan)
    for column, row in enumerate(rows):
        us[:, column] = [observation.us.get(row.name, np.nan) for observation in observed]
    rows_of: dict[Any, list[int]] = defaultdict(list)
    for column, row in enumerate(rows):
        rows_of[row.implementation.name, row.config].append(column)
    speeds: dict[Key, tuple[Speed, int]] = {}
    of_rows: list[Speed] = [speed_of(row, dtype, known) for row in rows]
    for (name, config), places in rows_of.items():
        count = int(np.isfinite(us[:, places]).sum())
        speed = of_rows[places[0]]
        is_known = known is not None and (dtype, name, str(config)) in known.speeds
        if count >= (FEWEST_KNOWN if is_known else FEWEST):
            few = [rows[place] for place in places]
            speed = fit_speed(few, speed, asked, us[:, places], dtype, device)
            speeds[dtype, name, str(config)] = speed, count
        for place in places:
            of_rows[place] = speed
    columns = Columns.of(rows, of_rows, dtype, device)
    asked, us = Asked(*(column[:MOST_POINTS] for column in asked)), us[:MOST_POINTS]
    plan = schedule(columns, asked)
    left = np.log(us / predict(columns, asked, plan))
    left[~np.isfinite(left)] = np.nan
    weights, corrected = _weigh(left, problem_features(asked), candidate_features(columns, plan))
    points = np.concatenate([np.broadcast_to(getattr(asked, n), us[:, :1].shape) for n in POINT], 1)
    used = np.isfinite(left).any(axis=0)
    names = tuple(row.name for row, is_used in zip(rows, used, strict=True) if is_used)
    measured = Measured(points, names, weights[:, used])
    return Fit(len(observed), speeds, measured, _rms(left), _rms(corrected))


def fit_speed(
    rows: list[Row], start: Speed, asked: Asked, us: np.ndarray, dtype: str, device: DeviceFacts
) -> Speed:
    """The speed of one config.

    Args:
        rows: k in one piece, and in slices.
        start: what is known of it.
        asked: the problems.
        us: what they took: a row a problem, a column a row; NaN for what was not measured.

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
    few = Asked(*(np.broadcast_to(column, us[:, :1].shape)[used] for column in asked))
    is_measured, logs = is_measured[used], np.log(us[used])
    least, most = (np.log([RANGES[name][end] for name in SPEED_NAMES]) for end in (0, 1))
    begin = np.log([getattr(start, name) for name in SPEED_NAMES]).clip(least, most)

    def residuals(values: Any) -> Any:
        speed = Speed(*np.exp(values))
        columns = Columns.of(rows, [speed] * len(rows), dtype, device)
        predicted = predict(columns, few, schedule(columns, few))
        errors = (np.log(predicted) - logs)[is_measured]
        return np.concatenate([errors, PRIOR * (values - begin)])

    found = least_squares(
        residuals, begin, bounds=(least - 1e-9, most + 1e-9), loss="soft_l1", f_scale=TOLERANCE,
        max_nfev=60,
    )  # fmt: skip
    return replace(start, **dict(zip(SPEED_NAMES, map(float, np.exp(found.x)), strict=True)))


def _weigh(left: np.ndarray, shared: np.ndarray, own: np.ndarray) -> tuple[Any, Any]:
    """The weights of a Gaussian process for each candidate, and what it leaves over in turn."""
    weights, rest = np.zeros_like(left), left.copy()
    apart_shared = np.abs(shared[:, :, None] - shared[:, None, :]).sum(axis=0)
    for column in range(left.shape[1]):
        known = np.isfinite(left[:, column])
        if not known.any():
            continue
        mine = own[known, column]
        apart = apart_shared[np.ix_(known, known)]
        apart = apart + np.abs(mine[:, None] - mine[None]).sum(axis=2)
        likeness = AMPLITUDE**2 * np.exp(-apart)
        noise = NOISE**2 * np.eye(len(likeness))
        solved = np.linalg.solve(likeness + noise, left[known, column])
        weights[known, column] = AMPLITUDE**2 * solved
        rest[known, column] = left[known, column] - likeness @ solved
    return weights, rest


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.nanmean(errors**2)))
