"""Timing every config that may be best on a problem: checked first, then in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import cycle, islice
from typing import Any, NamedTuple

import dxgemm
from dxgemm._dispatch import slice_counts
from dxgemm._errors import (
    BuildError,
    MissingPackageError,
    UnsupportedProblemError,
    WrongResultError,
)
from dxgemm._gpu import simulator_enabled
from dxgemm._model import predict_us
from dxgemm._problem import ITEM_SIZES, Problem, contiguous_problem, sliced_problem
from dxgemm._registry import IMPLEMENTATIONS, Implementation, KernelFile, adding_spec
from dxgemm.compiler import KernelSpec, build_kernels
from dxgemm.runtime.device import DeviceFacts, device_facts
from dxgemm.tuning.observations import Measured, Observation
from dxgemm.tuning.sampling import MOST_CALLS, calls_in_sample, interleave, sets_of_operands
from dxgemm.tuning.shapes import Shape

# Times the shortest predicted time: what is predicted to take longer is not built. With a table of
# the H200 the best was never predicted to take more than 1.26 times as long.
HOPELESS, HOPELESS_BY_TABLE = 4.0, 2.0
BEHIND = 1.8  # times the shortest first time: what took longer is not timed again
BEHIND_US = 3.0  # ... nor, of short ones, what took so much longer
ROUNDS = 7


class Way(NamedTuple):
    """To compute a problem: implementation and config by name, and the slices of k."""

    implementation: str
    config: str
    slices: int


BASELINE = Way("cublas", "", 1)
Timer = Callable[[Sequence[Callable[[], object]]], float]


def candidates(problem: Problem, device: DeviceFacts) -> Iterator[tuple[Implementation, Any, int]]:
    """Implementation, config and slices of k: what may be best, by the model."""
    ways = []
    for implementation in IMPLEMENTATIONS:
        if not implementation.is_searched(problem.dtype) or implementation.supports(problem):
            continue
        if implementation.runs_on(device.arch):
            continue
        for config in implementation.configs(problem.dtype):
            for slices in slice_counts(implementation, config, problem, device):
                way = sliced_problem(problem, slices) if slices > 1 else problem
                us = predict_us(implementation, config, way, device)
                ways.append((us, implementation, config, slices))
    hopeless = HOPELESS_BY_TABLE if device.speeds else HOPELESS
    shortest_us = min(us for us, *_ in ways)
    for us, implementation, config, slices in ways:
        if us <= hopeless * shortest_us:
            yield implementation, config, slices


def build_candidates(
    shapes: Iterable[Shape],
    jobs: int | None = None,
    report: Callable[[int, int, str], None] | None = None,
) -> None:
    """The kernels of all candidates, in parallel.

    Args:
        shapes: to be measured.
        jobs: processes; None for one a CPU.
        report: called as `dxgemm.build` calls its progress.
    """
    device = device_facts(0)
    specs: dict[KernelSpec, None] = {}
    for shape in shapes:
        problem = contiguous_problem(*shape)
        for implementation, config, slices in candidates(problem, device):
            way = problem
            if slices > 1:
                way = sliced_problem(problem, slices)
                specs[adding_spec(problem, slices)] = None
            if isinstance(implementation, KernelFile):
                specs[implementation.spec_for(config, way)] = None
    build_kernels([(spec, device.arch) for spec in specs], jobs=jobs, progress=report)


def measure(shape: Shape, timer: Timer) -> Measured:
    """Median times of all candidates and of cuBLAS, interleaved.

    Args:
        timer: seconds a call of a batch of calls, as `dxgemm.tuning.timing.EventTimer`.

    Raises:
        WrongResultError: a kernel is wrong; nothing of the problem is kept.
    """
    samples = interleave(make_samplers(shape, timer), rounds())
    return Measured(
        shape,
        tuple(
            Observation(way.implementation, way.config, way.slices, 1e6 * statistics.median(s))
            for way, s in samples.items()
        ),
    )


def rounds() -> int:
    """Samples of each candidate."""
    return 1 if simulator_enabled() else ROUNDS


def make_samplers(
    shape: Shape, timer: Timer, always: Way = BASELINE
) -> dict[Way, Callable[[], float]]:
    """Functions that time a sample, in seconds a call, of each candidate and of cuBLAS.

    All were checked. What is far behind at first is not among them, but for `always`.

    Raises:
        WrongResultError: a kernel is wrong.
    """
    xp = import_module("numpy" if simulator_enabled() else "cupy")
    problem = contiguous_problem(*shape)
    rng = xp.random.default_rng(0)
    # Sums of products of such integers are exact, in any order.
    (exact,) = _operands(xp, shape, 1, lambda size, dtype: rng.integers(-3, 4, size).astype(dtype))
    expected = xp.matmul(exact[0], exact[1])
    operands = _operands(xp, shape, MOST_CALLS, rng.standard_normal)
    choices: dict[Way, Any] = {
        Way(i.name, str(config), slices): (i.name, config, slices)
        for i, config, slices in candidates(problem, device_facts(0))
    }
    choices[BASELINE] = BASELINE.implementation
    plans: dict[Way, Sequence[Callable[[], object]]] = {}
    first_s: dict[Way, float] = {}
    for way, choice in choices.items():
        try:
            _check(way, choice, exact, expected)
        except (UnsupportedProblemError, BuildError, MissingPackageError):
            continue
        plans[way] = [dxgemm.plan(a, b, out=out, implementation=choice) for a, b, out in operands]
        first_s[way] = timer(plans[way][:1])
    limit_s = max(BEHIND * min(first_s.values()), min(first_s.values()) + BEHIND_US * 1e-6)
    kept = {w: of for w, of in plans.items() if first_s[w] <= limit_s or w in (BASELINE, always)}
    return {way: _sampler(of, first_s[way], timer) for way, of in kept.items()}


def _operands(xp: Any, shape: Shape, most: int, fill: Callable[..., Any]) -> list[Any]:
    """Sets of a, b and out, so many that a call finds none of its own in the L2 cache, or most."""
    dtype, m, n, k, batch = shape
    matrices = (batch,) if batch > 1 else ()
    set_bytes = ITEM_SIZES[dtype] * batch * (m * k + k * n + m * n)
    cache_bytes = 0
    if not simulator_enabled():
        from dxgemm.tuning.timing import l2_bytes

        cache_bytes = l2_bytes()
    return [
        (
            fill((*matrices, m, k), dtype=dtype),
            fill((*matrices, k, n), dtype=dtype),
            xp.empty((*matrices, m, n), dtype),
        )
        for _ in range(sets_of_operands(set_bytes, cache_bytes, most))
    ]


def _check(way: Way, choice: Any, exact: Any, expected: Any) -> None:
    a, b, out = exact
    out[...] = float("nan")
    dxgemm.gemm(a, b, out=out, implementation=choice)
    if not bool((out == expected).all()):
        raise WrongResultError(f"{way.implementation} {way.config} is wrong: {a.shape} @ {b.shape}")


def _sampler(
    plans: Sequence[Callable[[], object]], call_s: float, timer: Timer
) -> Callable[[], float]:
    """A function that times the next sample of these plans, which take so long a call."""
    calls, count = cycle(plans), calls_in_sample(call_s)
    return lambda: timer(list(islice(calls, count)))
