"""Timing every config that may be best on a problem: checked first, then in turn."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import dxgemm
from dxgemm._dispatch import slice_counts
from dxgemm._errors import BuildError, MissingPackageError, UnsupportedProblemError
from dxgemm._model import predict_us
from dxgemm._problem import ITEM_SIZES, Problem, contiguous_problem, sliced_problem
from dxgemm._registry import IMPLEMENTATIONS, Implementation
from dxgemm.runtime.device import DeviceFacts, device_facts
from dxgemm.tuning.observations import Measured, Observation
from dxgemm.tuning.shapes import Shape

HOPELESS = 4.0  # times the shortest predicted time: what is predicted to take longer is not built
BEHIND = 1.8  # times the shortest first time: what took longer is not timed again
BEHIND_US = 3.0  # ... nor, of short ones, what took so much longer
ROUNDS, SAMPLE_S, MOST_CALLS = 7, 1e-3, 20
BASELINE = "cublas"


class WrongResultError(RuntimeError):
    """A kernel computed something else than the exact product."""


def candidates(problem: Problem, device: DeviceFacts) -> Iterator[tuple[Implementation, Any, int]]:
    """Implementation, config and slices of k: what may be best, by the model."""
    ways = []
    for implementation in IMPLEMENTATIONS:
        if not implementation.is_automatic(problem.dtype) or implementation.supports(problem):
            continue
        if implementation.runs_on(device.arch):
            continue
        for config in implementation.configs(problem.dtype):
            for slices in slice_counts(implementation, config, problem, device):
                way = sliced_problem(problem, slices) if slices > 1 else problem
                us = predict_us(implementation, config, way, device)
                ways.append((us, implementation, config, slices))
    shortest_us = min(us for us, *_ in ways)
    for us, implementation, config, slices in ways:
        if us <= HOPELESS * shortest_us:
            yield implementation, config, slices


class Operands:
    """Sets of a, b and out, enough of them that a call finds none of its own in the L2 cache."""

    def __init__(self, shape: Shape, l2_bytes: int, fill: Callable[..., Any]) -> None:
        import cupy

        dtype, m, n, k = shape
        set_bytes = ITEM_SIZES[dtype] * (m * k + k * n + m * n)
        count = min(MOST_CALLS, 1 + 2 * l2_bytes // set_bytes)
        self.sets = [
            (fill((m, k), dtype), fill((k, n), dtype), cupy.empty((m, n), dtype))
            for _ in range(count)
        ]


def measure(shape: Shape, timer: Any) -> Measured:
    """Median times of all candidates and of cuBLAS, interleaved.

    Args:
        timer: seconds a call of a batch, as `dxgemm.tuning.timing.EventTimer`.

    Raises:
        WrongResultError: a kernel is wrong; nothing of the problem is kept.
    """
    import cupy

    from dxgemm.tuning.timing import l2_bytes

    dtype, m, n, k = shape
    device, problem = device_facts(0), contiguous_problem(dtype, m, n, k)
    rng = cupy.random.default_rng(0)
    # Sums of products of such integers are exact, in any order.
    exact = Operands(shape, 0, lambda size, dtype: rng.integers(-3, 4, size).astype(dtype)).sets[0]
    expected = cupy.matmul(exact[0], exact[1])
    operands = Operands(
        shape, l2_bytes(), lambda size, dtype: rng.standard_normal(size, dtype)
    ).sets
    choices: dict[Observation, Any] = {
        Observation(i.name, str(config), slices, 0.0): (i.name, config, slices)
        for i, config, slices in candidates(problem, device)
    }
    choices[Observation(BASELINE, "", 1, 0.0)] = BASELINE
    plans: dict[Observation, Sequence[Callable[[], object]]] = {}
    first_s: dict[Observation, float] = {}
    for key, choice in choices.items():
        try:
            _check(key, choice, exact, expected)
        except (UnsupportedProblemError, BuildError, MissingPackageError):
            continue
        plans[key] = [dxgemm.plan(a, b, out=out, implementation=choice) for a, b, out in operands]
        first_s[key] = timer(plans[key][:1])
    limit_s = max(BEHIND * min(first_s.values()), min(first_s.values()) + BEHIND_US * 1e-6)
    kept = {
        key: plans[key]
        for key, s in first_s.items()
        if s <= limit_s or key.implementation == BASELINE
    }
    samples = _in_turn(kept, first_s, timer)
    return Measured(
        shape,
        tuple(
            Observation(key.implementation, key.config, key.slices, 1e6 * statistics.median(s))
            for key, s in samples.items()
        ),
    )


def _check(key: Observation, choice: Any, exact: Any, expected: Any) -> None:
    a, b, out = exact
    out[...] = float("nan")
    dxgemm.gemm(a, b, out=out, implementation=choice)
    if not bool((out == expected).all()):
        raise WrongResultError(f"{key.implementation} {key.config} is wrong on {a.shape} {b.shape}")


def _in_turn(
    plans: dict[Observation, Sequence[Callable[[], object]]],
    first_s: dict[Observation, float],
    timer: Any,
) -> dict[Observation, list[float]]:
    """One sample each, beginning with another one each round: clocks drift."""
    samples: dict[Observation, list[float]] = {key: [] for key in plans}
    calls = {key: cycle(of) for key, of in plans.items()}
    order = deque(plans)
    for _ in range(ROUNDS):
        for key in order:
            count = min(MOST_CALLS, max(1, int(SAMPLE_S / first_s[key])))
            samples[key].append(timer(list(islice(calls[key], count))))
        order.rotate(-1)
    return samples
