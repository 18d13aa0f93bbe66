"""Measurement of all promising candidates on a workload: each is checked, then timed in turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle, islice
from typing import Any

import numpy as np

import dxgemm
from dxgemm.choice.legality import Candidate, legal_kernels
from dxgemm.choice.selection import time_candidates
from dxgemm.compiler import KernelSpec, build_kernels
from dxgemm.errors import (
    BuildError,
    MissingPackageError,
    UnsupportedProblemError,
    WrongResultError,
)
from dxgemm.gpu.facts import SIMULATED_DEVICE, DeviceFacts
from dxgemm.gpu.status import simulator_enabled
from dxgemm.lower.product import lower_candidate
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES
from dxgemm.problem.problem import Problem
from dxgemm.tuning.observations import Observation
from dxgemm.tuning.sampling import calls_in_sample, interleave, sets_of_operands
from dxgemm.tuning.workloads import TINY, Workload

# A candidate is measured if its predicted time is within this factor of the shortest.
HOPELESS = 1.5
# A candidate is timed again if its first time is within this factor of the shortest, or within so
# many microseconds of it.
BEHIND, BEHIND_US = 1.5, 2.0
ROUNDS, SAMPLE_S, MOST_CALLS = 5, 5e-4, 10  # samples of a candidate; seconds and calls of a sample
POOL = 2**22 + 1  # number of random numbers, repeated as often as an operand needs
INT8_SCALE = 20  # factor of normal numbers before they are truncated to int8
GELU_ERROR = 0.01  # over the largest element: results in half precision, and tanh of the GPU

Timer = Callable[[Sequence[Callable[[], object]]], float]


def candidates(
    problem: Problem, device: DeviceFacts, hopeless: float = HOPELESS
) -> dict[str, Candidate]:
    """Candidates that may be best according to the model, by the names of rows of the table.

    Of the tiny square, all: large products do not tell the fixed time of a kernel's launches, and
    a kernel of several launches is never near the best on small ones.

    Args:
        problem: the problem to compute.
        device: the GPU.
        hopeless: factor of the shortest predicted time beyond which a candidate is left out.
    """
    (times,) = time_candidates(problem, device, legal_kernels(problem, device))
    is_tiny = (problem.m, problem.n, problem.k, problem.batch) == (TINY, TINY, TINY, 1)
    limit_us = math.inf if is_tiny else hopeless * times.us.min()
    return {
        row.name: times.candidate(place)
        for place, row in enumerate(times.columns.rows)
        if times.us[place] <= limit_us and math.isfinite(times.us[place])
    }


def candidate_specs(problem: Problem, candidate: Candidate) -> list[KernelSpec]:
    """Specs of the kernels of a candidate."""
    return lower_candidate(problem, candidate, SIMULATED_DEVICE).specs


def build_candidates(
    workloads: Iterable[Workload],
    device: DeviceFacts,
    jobs: int | None = None,
    hopeless: float = HOPELESS,
) -> None:
    """Build the kernels of all candidates, in parallel.

    Args:
        workloads: workloads to be measured.
        device: the GPU.
        jobs: number of processes; None for one per CPU.
        hopeless: as `candidates` takes it.
    """
    specs: dict[KernelSpec, None] = {}
    for workload in workloads:
        problem = workload.problem()
        for candidate in candidates(problem, device, hopeless).values():
            specs |= dict.fromkeys(candidate_specs(problem, candidate))
    build_kernels([(spec, device.arch) for spec in specs], jobs=jobs)


def measure(workload: Workload, device: DeviceFacts, timer: Timer) -> Observation:
    """Measure the median times of all candidates, interleaved.

    Args:
        workload: the workload to compute.
        device: the GPU.
        timer: function from a batch of calls to the seconds per call, such as
            `dxgemm.tuning.timing.EventTimer`.

    Raises:
        WrongResultError: a kernel is wrong; no time of the workload is kept.
    """
    samplers = Bench(workload, timer).samplers(candidates(workload.problem(), device))
    samples = interleave(near_best(samplers), 1 if simulator_enabled() else ROUNDS)
    medians = {name: statistics.median(of) for name, of in samples.items()}
    # A candidate that is far behind was timed once; its time counts, so that it is not tried again.
    seconds = {name: medians.get(name, sampler.first_s) for name, sampler in samplers.items()}
    return Observation(workload, {name: round(1e6 * s, 3) for name, s in seconds.items()})


class Sampler:
    """Plans of one candidate on several sets of operands; a call times a sample of them.

    Attributes:
        first_s: seconds of a call in the first sample.
    """

    def __init__(self, plans: Sequence[Callable[[], object]], timer: Timer) -> None:
        self._timer = timer
        self._plans = cycle(plans)
        self._calls = calls_in_sample(timer(plans[:1]), SAMPLE_S, MOST_CALLS)
        self.first_s = self()

    def __call__(self) -> float:
        return self._timer(list(islice(self._plans, self._calls)))


def near_best(samplers: dict[str, Sampler]) -> dict[str, Sampler]:
    """Candidates that are worth timing again: those whose first time was not far behind."""
    least_s = min(sampler.first_s for sampler in samplers.values())
    limit_s = max(BEHIND * least_s, least_s + BEHIND_US * 1e-6)
    return {name: sampler for name, sampler in samplers.items() if sampler.first_s <= limit_s}


def uses_cupy() -> bool:
    return not simulator_enabled() and find_spec("cupy") is not None


def array_module() -> Any:
    """Module of the arrays: CuPy if they go to a GPU, else NumPy."""
    return import_module("cupy" if uses_cupy() else "numpy")


def to_dtype(array: Any, dtype: str) -> Any:
    """Round an array to a dtype; bfloat16, which NumPy lacks, becomes a torch tensor."""
    if dtype != "bfloat16":
        return array.astype(dtype, copy=False)
    if find_spec("torch") is None:
        raise MissingPackageError(
            "bfloat16 arrays are torch's, which is not installed; pip install 'dxgemm[torch]'."
        )
    torch = import_module("torch")
    return torch.from_dlpack(array).to(torch.bfloat16)


def _wide_dtype(workload: Workload) -> str:
    """Dtype of random numbers, before they are converted to that of the workload."""
    return workload.dtype if workload.dtype in ("float64", *COMPLEX_PARTS) else "float32"


@cache
def _pool(xp: Any, kind: str, dtype: str) -> Any:
    """POOL random numbers: normal ones, or -1, 0 and 1, whose sums of products are exact."""
    numbers = np.random.default_rng(0)
    draw = partial(numbers.integers, -1, 2) if kind == "integers" else numbers.standard_normal
    drawn = draw(POOL) + 1j * draw(POOL) if dtype in COMPLEX_PARTS else draw(POOL)
    return xp.asarray(drawn.astype(dtype))


def random_operands(
    workload: Workload,
    cast: Callable[[Any, str], Any] = to_dtype,
    place: int = 0,
    kind: str = "normal",
) -> list[Any]:
    """Make a, b and out of a workload.

    Args:
        workload: the workload.
        cast: as `Bench` takes it.
        place: number of the set of operands, whose numbers differ from those of others.
        kind: "normal" for normal numbers, "integers" for -1, 0 and 1.
    """
    xp, arrays = array_module(), []
    pool = _pool(xp, kind, _wide_dtype(workload))
    for number, (name, (shape, is_col)) in enumerate(workload.shapes.items()):
        stored = (*shape[:-2], shape[-1], shape[-2]) if is_col else shape
        if name == "out":
            array = cast(xp.zeros(stored, "float32"), workload.out_dtype)
        else:
            part = xp.roll(pool, 7919 * place + 3331 * number)
            if workload.dtype == "int8":
                part = part * INT8_SCALE
            array = cast(xp.resize(part, stored), workload.dtype)
        arrays.append(array.swapaxes(-1, -2) if is_col else array)
    return arrays


class Bench:
    """Bench of one workload: operands on which candidates are checked and timed."""

    def __init__(
        self, workload: Workload, timer: Timer, cast: Callable[[Any, str], Any] = to_dtype
    ) -> None:
        """Make the operands.

        Args:
            workload: the workload.
            timer: as `measure` takes it.
            cast: function that converts an array to a dtype, in another library if CuPy lacks it.
        """
        self._workload = workload
        self._timer = timer
        self._cast = cast
        self._xp = array_module()
        self._epilogue = dxgemm.epilogues.gelu_tanh if workload.epilogue else None
        self._exact = random_operands(workload, cast, kind="integers")
        self._expected = self._reference()
        places = range(self._set_count())
        self.operands = [random_operands(workload, cast, place) for place in places]

    def samplers(self, found: dict[str, Candidate]) -> dict[str, Sampler]:
        """Make samplers of candidates, by name, without those that cannot be built.

        Raises:
            WrongResultError: the result of a candidate is wrong.
        """
        made = {
            name: self.sampler((candidate.implementation.name, candidate.config, candidate.slices))
            for name, candidate in found.items()
        }
        return {name: sampler for name, sampler in made.items() if sampler is not None}

    def sampler(self, implementation: Any) -> Sampler | None:
        """Make the sampler of a candidate; None if it cannot compute the workload or be built.

        Raises:
            WrongResultError: the result of the candidate is wrong.
        """
        try:
            plans = self.plans(implementation)
        except (UnsupportedProblemError, BuildError, MissingPackageError):
            return None
        return Sampler(plans, self._timer)

    def plans(self, implementation: Any) -> list[Any]:
        """Check an implementation, and make a plan of it for each set of operands.

        Raises:
            UnsupportedProblemError, BuildError, MissingPackageError: it cannot compute this.
            WrongResultError: its result is wrong.
        """
        self._check(implementation)
        return [self._plan(operands, implementation) for operands in self.operands]

    def _plan(self, operands: Sequence[Any], implementation: Any) -> Any:
        a, b, out = operands
        return dxgemm.plan(
            a,
            b,
            out=out,
            epilogue=self._epilogue,
            implementation=implementation,
            precision=self._workload.precision,
        )

    def _check(self, implementation: Any) -> None:
        out = self._exact[2]
        out[...] = -1
        self._plan(self._exact, implementation)()
        error = float(abs(self._wide(out) - self._expected).max())
        # Sums of products of such integers are exact; gelu of them is rounded.
        allowed = GELU_ERROR * float(abs(self._expected).max()) if self._epilogue else 0.0
        if not error <= allowed:
            raise WrongResultError(f"{implementation} is wrong by {error}: {self._workload}")

    def _reference(self) -> Any:
        a, b, _ = map(self._wide, self._exact)
        expected = self._xp.matmul(a, b)
        if self._epilogue:
            inner = (2 / math.pi) ** 0.5 * (expected + 0.044715 * expected**3)
            expected = 0.5 * expected * (1 + self._xp.tanh(inner))
        return self._wide(self._cast(expected, self._workload.out_dtype))

    def _wide(self, array: Any) -> Any:
        """Convert an array of a narrow dtype to float32, in which the sums are exact too."""
        if not isinstance(array, self._xp.ndarray):
            array = self._xp.from_dlpack(array.float())
        return to_dtype(array, _wide_dtype(self._workload))

    def _set_count(self) -> int:
        """Number of sets of operands, so that a call finds none, or few, of its own in L2."""
        w = self._workload
        set_bytes = ITEM_SIZES[w.dtype] * w.batch * (w.m * w.k + w.k * w.n)
        set_bytes += ITEM_SIZES[w.out_dtype] * w.batch * w.m * w.n
        cache_bytes = 0
        if not simulator_enabled():
            from dxgemm.tuning.timing import l2_bytes

            cache_bytes = l2_bytes()
        return sets_of_operands(set_bytes, cache_bytes, MOST_CALLS)
