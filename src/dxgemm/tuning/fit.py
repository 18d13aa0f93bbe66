"""From measured times to what each config reaches."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dxgemm._correction import Correction, features_of
from dxgemm._errors import MissingPackageError
from dxgemm._model import predict_us, resident_blocks, schedule
from dxgemm._problem import Problem, contiguous_problem, sliced_problem
from dxgemm._registry import Implementation, find_config, find_implementation
from dxgemm._speeds import Speed, group_of, name_of
from dxgemm.runtime.device import DeviceFacts
from dxgemm.tuning.observations import Measured

# What is fitted, with a first guess and the least and the largest value that make sense.
RANGES = {
    "efficiency": (0.6, 0.01, 8.0),
    "lone_share": (0.75, 0.1, 1.0),
    "launch_us": (2.5, 1.0, 8.0),
    "fill_us": (1.0, 0.02, 20.0),
    "tile_us": (0.3, 0.01, 20.0),
    "misaligned_tile_us": (0.1, 0.001, 20.0),
    "misaligned": (1.1, 0.8, 4.0),
    "guarded": (1.02, 0.9, 2.0),
    "read_share": (0.6, 0.1, 1.2),
    "write_share": (0.6, 0.1, 1.2),
    "misaligned_writes": (2.0, 1.0, 8.0),
    "cluster_block_us": (0.3, 0.02, 3.0),
}
TOLERANCE = 0.05  # of ln(predicted / measured): larger ones count less, as outliers
SHARPNESS = 3.0  # fits the H200 better than 2, or a kink
# Observations of a config, for it to be in the table. Single products differ more than batches do:
# what was fitted to a dozen of them has promised half the time of others.
FEWEST, FEWEST_IN_BATCHES = 30, 8
# Problems that it has to be the best at, if the choice leaves it out as a rule: such kernels take
# half a minute to build, until when another one answers, with other last bits.
FEWEST_WINS = 5

# Of the correction: observations that weigh as much as a slope's preference for zero; standard
# deviations of what it learns, and of a measured time, both of logarithms.
RIDGE = 30.0
AMPLITUDE, NOISE = 0.1, 0.02


@dataclass(frozen=True)
class Fit:
    """A config's speed.

    Attributes:
        observations: how many.
        error: root mean square of ln(predicted / measured).
    """

    speed: Speed
    observations: int
    error: float


def fit_speeds(measured: Iterable[Measured], device: DeviceFacts) -> dict[tuple[str, str], Fit]:
    """A speed for each dtype and config that was measured often enough.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    return {key: fit_group(points, device) for key, points in group_points(measured).items()}


def group_points(measured: Iterable[Measured]) -> dict[tuple[str, str], list[Point]]:
    """By dtype and config, of those that were measured often enough.

    Not of what the automatic choice leaves out as a rule, unless it was the best FEWEST_WINS times.
    Batches and thin products are apart from others, see `dxgemm._speeds.group_of`.
    """
    points: dict[tuple[str, str], list[Point]] = defaultdict(list)
    wins: Counter[tuple[str, str]] = Counter()
    for one in measured:
        dtype, problem = one.shape.dtype, contiguous_problem(*one.shape)
        own = [o for o in one.observations if find_implementation(o.implementation).is_own]
        best_us = min((o.us for o in own), default=0.0)
        for observation in own:
            implementation = find_implementation(observation.implementation)
            config = find_config(implementation, dtype, observation.config)
            if config is None:
                continue  # of an earlier version
            sliced = problem
            if observation.slices > 1:
                sliced = sliced_problem(problem, observation.slices)
            key = dtype, name_of(implementation, config, group_of(problem))
            points[key].append(Point(implementation, config, sliced, observation.us))
            wins[key] += observation.us == best_us
    return {
        key: of
        for key, of in points.items()
        if of[0].implementation.is_automatic(key[0]) or wins[key] >= FEWEST_WINS
        if _are_enough(of)
    }


def _are_enough(points: Sequence[Point]) -> bool:
    return len(points) >= (FEWEST_IN_BATCHES if points[0].problem.batch > 1 else FEWEST)


class Point(NamedTuple):
    """What was measured of a config on a problem."""

    implementation: Implementation
    config: Any
    problem: Problem
    us: float


def fit_group(points: list[Point], device: DeviceFacts) -> Fit:
    """The speed of one config.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    try:
        import numpy as np
        from scipy.optimize import least_squares
    except ImportError as error:
        raise MissingPackageError(
            f"tuning needs SciPy ({error}); pip install 'dxgemm[tune]'."
        ) from error
    implementation, config, problem, *_ = points[0]
    resident = resident_blocks(config, problem.dtype, device)
    names = list(RANGES)
    if getattr(config, "split_k", 1) == 1:
        names.remove("cluster_block_us")
    guess, least, most = (np.log([RANGES[name][i] for name in names]) for i in range(3))

    def speed(logs: Any) -> Speed:
        values: dict[str, Any] = dict(zip(names, map(float, np.exp(logs)), strict=True))
        return Speed(resident=resident, sharpness=SHARPNESS, **values)

    def errors(trial: Speed) -> Any:
        return np.array(
            [
                math.log(
                    predict_us(implementation, config, point.problem, device, trial) / point.us
                )
                for point in points
            ]
        )

    def residuals(logs: Any) -> Any:
        # What the data do not tell stays near the guess.
        return np.concatenate([errors(speed(logs)), 0.02 * (logs - guess)])

    found = least_squares(
        residuals, guess, bounds=(least, most + 1e-9), loss="soft_l1", f_scale=TOLERANCE
    )
    physical = speed(found.x)
    correction = _correct(points, -errors(physical), device, physical)
    fitted = replace(physical, correction=correction)
    return Fit(fitted, len(points), float(np.sqrt(np.mean(errors(fitted) ** 2))))


def _correct(points: list[Point], left: Any, device: DeviceFacts, physical: Speed) -> Correction:
    """From what the model leaves over of ln(time) at each point."""
    import numpy as np
    from scipy.spatial.distance import cdist

    def features(point: Point) -> tuple[float, ...]:
        blocks = point.implementation.tile_count(point.config, point.problem) * point.problem.slices
        work = schedule(point.config, point.problem, blocks, device, physical)
        return features_of(point.config, point.problem, work)

    rows = np.array([features(point) for point in points]).astype(np.float16).astype(float)
    linear = np.column_stack([np.ones(len(rows)), rows])
    slopes = np.linalg.solve(linear.T @ linear + RIDGE * np.eye(linear.shape[1]), linear.T @ left)
    covariance = AMPLITUDE**2 * np.exp(-cdist(rows, rows, "cityblock"))
    weights = AMPLITUDE**2 * np.linalg.solve(
        covariance + NOISE**2 * np.eye(len(rows)), left - linear @ slopes
    )
    neighbours = np.column_stack([rows, weights]).astype(np.float16)
    return Correction(tuple(map(float, slopes)), neighbours.tobytes())
