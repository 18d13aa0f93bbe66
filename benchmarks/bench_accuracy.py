"""Errors against the exact product: every kind of arithmetic, every implementation.

m = n = 256, k up to 16384, on normal values, whose sums cancel, and on values between 0 and 1,
whose sums only grow, so that what is cut off instead of rounded adds up. The reference is the
product in float64, for float64 in more digits (tests/oracle/reference.py). Errors are given twice:
in units of eps |A| |B|, with the eps of the type of sums; and as `ratio`, over what the acceptance
rule of the tests allows (tests/oracle/compare.py), where above 1 is wrong. Of time there is only
one call's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from comparison import SMOKE, make_timer
from interleave import replay, replay_clock
from oracle.compare import compare
from oracle.inputs import random
from oracle.kinds import FLOAT_KINDS, KINDS, limits, numpy_dtype
from oracle.libraries import LIBRARIES
from oracle.reference import Reference, product

import dxgemm
from dxgemm import errors
from dxgemm.problem.define import contiguous_problem

AUTOMATIC = "automatic"  # what implementation=None takes
LINES = 6 if SMOKE else 256  # m and n
DEPTHS = (8,) if SMOKE else (64, 256, 1024, 4096, 16384)
ACCURACY_KINDS = ("float32", "float64") if SMOKE else FLOAT_KINDS


def uniform(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.random(shape).astype(numpy_dtype(dtype))


DATA: dict[str, Callable[..., np.ndarray]] = {"normal": random, "uniform": uniform}

pytestmark = pytest.mark.benchmark(timer=replay_clock)
home = LIBRARIES["numpy" if SMOKE else "cupy"]


@dataclass(frozen=True)
class AccuracyCase:
    """One product; `kind` is a name from `tests/oracle/kinds.py`."""

    kind: str
    data: str
    k: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.data}-{self.k}"


def names_of(kind: str) -> list[str]:
    """Implementations that compute a kind in its own arithmetic, the baseline last.

    float32 kernels serve where reduced precision is permitted; they are shown as float32 only.
    """
    wanted = KINDS[kind]
    rows = contiguous_problem(
        wanted.dtype, LINES, LINES, LINES, out_dtype=wanted.out_dtype, precision=wanted.precision
    )
    names = []
    for implementation in dxgemm.implementations():
        problems = (rows, replace(rows, b=rows.b.transposed()))
        computes = any(implementation.supports(problem) is None for problem in problems)
        plain = replace(rows, precision=None)
        is_plain = wanted.precision is not None and implementation.supports(plain) is None
        has_configs = bool(implementation.configs(wanted.dtype))  # some have none on the simulator
        if not implementation.is_own or (has_configs and computes and not is_plain):
            names.append(implementation.name)
    return [AUTOMATIC, *names]


@lru_cache(maxsize=1)
def operands(case: AccuracyCase) -> tuple[Any, dict[str, Any], Reference]:
    """a, b by the order of its storage, and their product."""
    wanted, fill = KINDS[case.kind], DATA[case.data]
    rng = np.random.default_rng(0)
    a, b = (fill(rng, shape, wanted.dtype) for shape in ((LINES, case.k), (case.k, LINES)))
    stored = {"row": home.send(b), "col": home.send(np.ascontiguousarray(b.T)).T}
    return home.send(a), stored, product(a, b, wanted.precision)


@pytest.fixture(scope="module")
def timer() -> Any:
    return make_timer()


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, id=f"{case}-{name}")
        for kind in ACCURACY_KINDS
        for data in DATA
        for case in (AccuracyCase(kind, data, k) for k in DEPTHS)
        for name in names_of(kind)
    ],
)
def bench_accuracy(benchmark: Any, timer: Any, case: AccuracyCase, name: str) -> None:
    wanted = KINDS[case.kind]
    a, stored, reference = operands(case)
    out = home.send(np.full((LINES, LINES), np.nan, numpy_dtype(wanted.out_dtype)))
    implementation = None if name == AUTOMATIC else name
    refusal = ""
    for order, b in stored.items():
        arrangement = f"row_{order}_row"
        try:
            plan = dxgemm.plan(
                a, b, out=out, implementation=implementation, precision=wanted.precision
            )
            break
        except errors.UnsupportedProblemError as error:
            refusal = str(error)
    else:
        pytest.skip(refusal)
    plan()
    result = home.fetch(out)
    unit = limits(wanted.scalar_dtype).eps * reference.magnitude
    error = (np.abs(result.astype(reference.value.dtype) - reference.value) / unit).astype(float)
    explanation = plan.explain()
    seconds = timer([plan])
    benchmark.group = str(case)
    benchmark.extra_info.update(
        kind=case.kind,
        data=case.data,
        dtype=wanted.dtype,
        m=LINES,
        n=LINES,
        k=case.k,
        arrangement=arrangement,
        epilogue="none",
        implementation=name,
        answered_by=explanation.choice.implementation,
        config=None if explanation.choice.config is None else str(explanation.choice.config),
        slices=explanation.choice.slices,
        gpu_us=1e6 * seconds,
        tflops=2e-12 * LINES * LINES * case.k / seconds,
        vs_cublas=None,  # not interleaved
        max_error=float(error.max()),
        rms_error=float(np.sqrt(np.square(error).mean())),
        ratio=compare(result, reference).ratio,
    )
    replay(benchmark, [seconds])
