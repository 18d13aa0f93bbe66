"""float32 products on tensor cores: time and error of each precision, on several kinds of data.

precision="split" and "tf32" are interleaved with cuBLAS SGEMM and the automatic choice in float32;
`precision_comparison.py` says what errors are. On one size every scheme of parts and every interval
of promotion is measured too, there without the splitting of operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from comparison import SMOKE, make_timer, row
from interleave import replay, replay_clock
from precision_comparison import (
    DATA,
    ERROR_WAYS,
    MOST_ERROR,
    TIMED_WAYS,
    PrecisionCase,
    measure,
)

if SMOKE:
    SCHEME_WAYS: Mapping[str, Any] = {}
else:
    from scheme_products import STUDIES, scheme_product

    SCHEME_WAYS = {str(study): scheme_product(study) for study in STUDIES}

SIZES = (1024, 1536, 2048, 3000, 4096, 8192)
REFUSED_SIZES = (1024, 2048, 4096)
DEPTHS = (64, 256, 1024, 4096, 16384, 65536)
ERROR_LINES = 256  # m and n
STUDY_SIZES = ((4096, 4096, 4096), (256, 256, 65536))

pytestmark = pytest.mark.benchmark(timer=replay_clock)


def ways_of_cases() -> dict[PrecisionCase, Mapping[str, Any]]:
    """What to compute, and how."""
    if SMOKE:
        return {PrecisionCase("float32", 5, 6, 8, data=data): TIMED_WAYS for data in DATA}
    ways: dict[PrecisionCase, Mapping[str, Any]] = {}
    for size in [*((n, n, n) for n in SIZES), (4096, 16384, 4096)]:
        ways[PrecisionCase("float32", *size)] = TIMED_WAYS
    for n in REFUSED_SIZES:
        ways[PrecisionCase("float32", n, n, n, data="elements over 60 binades")] = ERROR_WAYS
    for data in DATA:
        for k in DEPTHS:
            ways[PrecisionCase("float32", ERROR_LINES, ERROR_LINES, k, data=data)] = ERROR_WAYS
    for size in STUDY_SIZES:
        for data in ("normal", "uniform(0, 1)"):
            case = PrecisionCase("float32", *size, data=data)
            ways[case] = {**ways.get(case, ERROR_WAYS), **SCHEME_WAYS}
    return ways


WAYS = ways_of_cases()


@pytest.fixture(scope="module")
def measurement() -> Any:
    """Measures a case when it is first asked for; its ways follow each other."""
    timer = make_timer()
    return cache(lambda case: measure(case, WAYS[case], timer))


@pytest.mark.parametrize(
    ("case", "way"),
    [pytest.param(case, way, id=f"{case}-{way}") for case in WAYS for way in WAYS[case]],
)
def bench_precision(benchmark: Any, measurement: Any, case: PrecisionCase, way: str) -> None:
    measured = measurement(case)
    result = measured[way]
    if result.refusal is not None:
        pytest.skip(result.refusal)
    if way.startswith("split") and result.max_error > MOST_ERROR and not result.is_native:
        pytest.fail(f"{way} is wrong by {result.max_error:.3g} units for {case}", pytrace=False)
    benchmark.group = str(case)
    samples_s = {name: other.samples_s for name, other in measured.items() if other.samples_s}
    benchmark.extra_info.update(
        row(case, way, result.config, samples_s),
        way=way,
        implementation=result.implementation,
        is_native=result.is_native,
        max_error=result.max_error,
        rms_error=result.rms_error,
    )
    replay(benchmark, result.samples_s)
