"""From measured times to what each config reaches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dxgemm._errors import MissingPackageError
from dxgemm._model import predict_us, resident_blocks
from dxgemm._problem import Problem, contiguous_problem, sliced_problem
from dxgemm._registry import Implementation, find_implementation
from dxgemm._speeds import Speed
from dxgemm.runtime.device import DeviceFacts
from dxgemm.tuning.observations import Measured

# What is fitted, with a first guess and the least and the largest value that make sense.
RANGES = {
    "efficiency": (0.6, 0.01, 8.0),
    "lone_share": (0.75, 0.1, 1.0),
    "launch_us": (3.0, 1.5, 12.0),
    "tile_us": (1.0, 0.02, 20.0),
    "memory_share": (0.6, 0.1, 1.0),
    "misaligned": (1.05, 1.0, 3.0),
    "cluster_block_us": (0.3, 0.02, 3.0),
}
TOLERANCE = 0.05  # of ln(predicted / measured): larger ones count less, as outliers
FEWEST = 12  # observations of a config, for it to be in the table
# What a config of these reaches depends on the problem and its batch: its kernel file says more.
NOT_FITTED = ("small_batch", "tensor_batch")


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
    points: dict[tuple[str, str], list[tuple[Any, Any, Problem, float]]] = defaultdict(list)
    for one in measured:
        dtype, m, n, k = one.shape
        problem = contiguous_problem(dtype, m, n, k)
        for observation in one.observations:
            implementation = find_implementation(observation.implementation)
            if not implementation.is_own or implementation.name in NOT_FITTED:
                continue
            config = find_config(implementation, dtype, observation.config)
            if config is None:
                continue  # of an earlier version
            sliced = problem
            if observation.slices > 1:
                sliced = sliced_problem(problem, observation.slices)
            key = dtype, f"{observation.implementation} {observation.config}"
            points[key].append((implementation, config, sliced, observation.us))
    return {key: _fit(of, device) for key, of in points.items() if len(of) >= FEWEST}


def find_config(implementation: Implementation, dtype: str, text: str) -> Any:
    """The config that prints so; None if there is none any more."""
    return next((c for c in implementation.configs(dtype) if str(c) == text), None)


def _fit(points: list[tuple[Any, Any, Problem, float]], device: DeviceFacts) -> Fit:
    try:
        import numpy as np
        from scipy.optimize import least_squares
    except ImportError as error:
        raise MissingPackageError(
            f"tuning needs SciPy ({error}); pip install 'dxgemm[tune]'."
        ) from error
    implementation, config, problem, _ = points[0]
    resident = resident_blocks(config, problem.dtype, device)
    names = list(RANGES)
    if getattr(config, "split_k", 1) == 1:
        names.remove("cluster_block_us")
    guess, least, most = (np.log([RANGES[name][i] for name in names]) for i in range(3))

    def speed(logs: Any) -> Speed:
        values = dict(zip(names, map(float, np.exp(logs)), strict=True))
        return Speed(resident=resident, **values)

    def residuals(logs: Any) -> list[float]:
        trial = speed(logs)
        errors = [
            math.log(predict_us(implementation, config, p, device, trial) / us)
            for _, _, p, us in points
        ]
        # What the data do not tell stays near the guess.
        return errors + [0.02 * float(x) for x in logs - guess]

    found = least_squares(
        residuals, guess, bounds=(least, most + 1e-9), loss="soft_l1", f_scale=TOLERANCE
    )
    errors = residuals(found.x)[: len(points)]
    mean_square = sum(e * e for e in errors) / len(errors)
    return Fit(speed(found.x), len(points), math.sqrt(mean_square))
