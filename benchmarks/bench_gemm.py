"""GPU time of every implementation over sizes, arrangements, batches and dtypes.

All implementations of a case, cuBLAS among them, are interleaved. Operands are standard normal.
Consecutive calls take different operands, and the L2 cache is overwritten before each batch of
calls, so that every call reads its operands from memory. What is timed is a `Plan` that writes to
`out`; before, the implementation has to pass a bit-exact check on integers of the same shape.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
from interleave import interleave, replay, replay_clock

import dxgemm
from dxgemm._gpu import simulator_enabled
from dxgemm.testing import inputs

SMOKE = simulator_enabled()
if SMOKE:
    xp: Any = np
else:
    import cupy as xp
    from event_timer import EventTimer

Timer = Callable[[Sequence[Callable[[], object]]], float]

IMPLEMENTATIONS = [implementation.name for implementation in dxgemm.implementations()]
L2_BYTES = 0 if SMOKE else xp.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]
ROUNDS = 1 if SMOKE else 21
SAMPLE_S = 1e-3  # a sample is a batch of as many calls as fit in this time ...
MOST_CALLS = 20  # ... but at least one and at most so many
LONGEST_CALL_S = 60 if SMOKE else 0.1  # slower implementations are left out, cuBLAS never
CANARY_K = 2048  # up to here float32 sums of canary data are exact, beyond it those of `integers`
DTYPES = ("float32", "float64")

pytestmark = pytest.mark.benchmark(timer=replay_clock)


@dataclass(frozen=True)
class Case:
    """One problem; `arrangement` says "row" or "col" of a, b and out."""

    dtype: str
    m: int
    n: int
    k: int
    arrangement: str = "row_row_row"
    batch: int = 1

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        return f"{self.dtype}-{batch}{self.m}x{self.n}x{self.k}-{self.arrangement}"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of a, b and out."""
        batch = (self.batch,) if self.batch > 1 else ()
        matrices = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        return [(*batch, *matrix) for matrix in matrices]

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        """Each operand read once, the result written once."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return self.batch * elements * np.dtype(self.dtype).itemsize


SQUARES = [16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192]
RAGGED = [
    (127, 129, 65), (639, 640, 347), (1000, 1000, 1000), (2047, 2049, 2053), (4011, 4012, 103),
]  # fmt: skip
NARROW = [
    (1, 4096, 4096), (4096, 16, 4096), (9, 16, 23040), (25, 64, 27920), (50176, 64, 27),
    (24000, 256, 256),
]  # fmt: skip
ARRANGED_SIZES = [1024, 4096]
ARRANGEMENTS = ["row_col_row", "col_row_row", "col_col_row", "row_row_col", "col_col_col"]
BATCHED = [(1000, 32), (256, 128), (64, 512)]


def list_cases() -> list[Case]:
    if SMOKE:
        cases = [Case(dtype, 6, 5, 3) for dtype in DTYPES]
        return [*cases, Case("float32", 3, 4, 2, "col_row_col", batch=2)]
    cases = []
    for dtype in DTYPES:
        cases += [Case(dtype, n, n, n) for n in SQUARES]
        cases += [Case(dtype, *shape) for shape in RAGGED + NARROW]
        cases += [Case(dtype, n, n, n, order) for n in ARRANGED_SIZES for order in ARRANGEMENTS]
        cases += [Case(dtype, n, n, n, batch=batch) for batch, n in BATCHED]
    return cases


@dataclass
class Measurement:
    """One case: per implementation its samples, or why there are none."""

    samples_s: dict[str, list[float]] = field(default_factory=dict)
    configs: dict[str, str | None] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)


def store(matrix: Any, order: str) -> Any:
    """A copy of a matrix, or of each in a batch, in row- or column-major order."""
    if order == "row":
        return xp.ascontiguousarray(matrix)
    return xp.ascontiguousarray(matrix.swapaxes(-1, -2)).swapaxes(-1, -2)


def arrange(case: Case, *matrices: Any) -> list[Any]:
    orders = case.arrangement.split("_")
    return [store(matrix, order) for matrix, order in zip(matrices, orders, strict=True)]


def random_operands(case: Case, rng: Any) -> list[Any]:
    """a, b and out, of standard normal values."""
    return arrange(case, *(rng.standard_normal(shape, dtype=case.dtype) for shape in case.shapes))


def integer_operands(case: Case) -> list[Any]:
    """a, b and out, of values whose products and sums are exact in any order."""
    data = "canary" if case.k <= CANARY_K else "integers"
    return arrange(case, *map(xp.asarray, inputs.operands(data, *case.shapes, case.dtype)))


def seconds_in_simulator(calls: Sequence[Callable[[], object]]) -> float:
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) / len(calls)


@pytest.fixture(scope="module")
def timer() -> Timer:
    return seconds_in_simulator if SMOKE else EventTimer(L2_BYTES)


@pytest.fixture(scope="module", params=list_cases(), ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="module")
def measurement(case: Case, timer: Timer) -> Measurement:
    """Check every implementation, then time those that pass, interleaved."""
    result = Measurement()
    calls: dict[str, int] = {}
    a, b, out = integer_operands(case)
    exact = xp.matmul(a.astype("float64"), b.astype("float64"))
    for name in IMPLEMENTATIONS:
        try:
            plan = dxgemm.plan(a, b, out=out, implementation=name)
        except dxgemm.errors.UnsupportedProblemError as error:
            result.left_out[name] = str(error)
            continue
        out.fill(np.nan)
        plan()
        if not (out == exact).all():
            result.wrong.add(name)
            continue
        call_s = timer([plan])
        if call_s > LONGEST_CALL_S and name != "cublas":
            result.left_out[name] = f"one call takes {call_s:.2f} s"
            continue
        result.configs[name] = plan.explain().config
        calls[name] = min(MOST_CALLS, max(1, int(SAMPLE_S / call_s)))

    rng = xp.random.default_rng(0)
    sets = min(max(calls.values(), default=1), 1 + 2 * L2_BYTES // case.bytes_moved)
    operands = [random_operands(case, rng) for _ in range(sets)]

    def sampler(name: str) -> Callable[[], float]:
        plans = cycle([dxgemm.plan(a, b, out=out, implementation=name) for a, b, out in operands])
        return lambda: timer(list(islice(plans, calls[name])))

    result.samples_s = interleave({name: sampler(name) for name in calls}, ROUNDS)
    return result


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def bench_implementation(
    benchmark: Any, case: Case, measurement: Measurement, implementation: str
) -> None:
    if implementation in measurement.left_out:
        pytest.skip(measurement.left_out[implementation])
    if implementation in measurement.wrong:
        pytest.fail(f"{implementation} gives a wrong result for {case}", pytrace=False)
    samples_s = measurement.samples_s
    seconds = statistics.median(samples_s[implementation])
    vs_cublas = None
    if "cublas" in samples_s:
        vs_cublas = statistics.median(samples_s["cublas"]) / seconds
    benchmark.group = str(case)
    benchmark.extra_info.update(
        asdict(case),
        epilogue="none",
        implementation=implementation,
        config=measurement.configs[implementation],
        gpu_us=1e6 * seconds,
        tflops=1e-12 * case.flops / seconds,
        gbytes_per_s=1e-9 * case.bytes_moved / seconds,
        vs_cublas=vs_cublas,
    )
    replay(benchmark, samples_s[implementation])
