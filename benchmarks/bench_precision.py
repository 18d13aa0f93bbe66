"""Products by parts on tensor cores: time and error of each precision, on several kinds of data.

precision="emulated" is interleaved with cuBLAS and the automatic choice in the operands' dtype, in
float32 with "tf32" too, in float64 with several numbers of moduli; `precision_comparison.py` says
what errors are. On one size every scheme of float32's parts and every interval of promotion is
measured too, there without the splitting of operands.
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
    ERROR_VARIANTS,
    TIMED_VARIANTS,
    PrecisionCase,
    measure,
    most_error,
)
from result_files import DEPTH_LINES

if SMOKE:
    SCHEME_VARIANTS: Mapping[str, Any] = {}
else:
    from scheme_products import STUDIES, scheme_product

    SCHEME_VARIANTS = {str(study): scheme_product(study) for study in STUDIES}

SIZES = {"float32": (1024, 1536, 2048, 3000, 4096, 8192), "float64": (2048, 4096, 8192)}
REFUSED_SIZES = (1024, 2048, 4096)
DEPTHS = (64, 256, 1024, 4096, 16384, 65536)
STUDY_SIZES = ((4096, 4096, 4096), (256, 256, 65536))

pytestmark = pytest.mark.benchmark(timer=replay_clock)


def variants_of_cases() -> dict[PrecisionCase, Mapping[str, Any]]:
    """Problems and precisions."""
    variants: dict[PrecisionCase, Mapping[str, Any]] = {}
    if SMOKE:
        for dtype, of_dtype in TIMED_VARIANTS.items():
            variants |= {PrecisionCase(dtype, 5, 6, 8, data=data): of_dtype for data in DATA}
        return variants
    for dtype, sizes in SIZES.items():
        for size in [*((n, n, n) for n in sizes), (4096, 16384, 4096)]:
            variants[PrecisionCase(dtype, *size)] = TIMED_VARIANTS[dtype]
        for n in REFUSED_SIZES:
            case = PrecisionCase(dtype, n, n, n, data="elements over 60 binades")
            variants[case] = ERROR_VARIANTS[dtype]
        for data in DATA:
            for k in DEPTHS:
                case = PrecisionCase(dtype, DEPTH_LINES, DEPTH_LINES, k, data=data)
                variants[case] = ERROR_VARIANTS[dtype]
    for size in STUDY_SIZES:
        for data in ("normal", "uniform(0, 1)"):
            case = PrecisionCase("float32", *size, data=data)
            variants[case] = {**variants.get(case, ERROR_VARIANTS["float32"]), **SCHEME_VARIANTS}
    return variants


VARIANTS = variants_of_cases()


@pytest.fixture(scope="module")
def measurement() -> Any:
    """Measures a case when it is first asked for; its variants follow each other."""
    timer = make_timer()
    return cache(lambda case: measure(case, VARIANTS[case], timer))


@pytest.mark.parametrize(
    ("case", "variant"),
    [
        pytest.param(case, variant, id=f"{case}-{variant}")
        for case in VARIANTS
        for variant in VARIANTS[case]
    ],
)
def bench_precision(benchmark: Any, measurement: Any, case: PrecisionCase, variant: str) -> None:
    measured = measurement(case)
    result = measured[variant]
    if result.refusal is not None:
        pytest.skip(result.refusal)
    if not result.max_error <= most_error(case, variant, result.is_native):
        pytest.fail(f"{variant} is wrong by {result.max_error:.3g} units for {case}", pytrace=False)
    benchmark.group = str(case)
    samples_s = {name: other.samples_s for name, other in measured.items() if other.samples_s}
    benchmark.extra_info.update(
        row(case, variant, result.config, samples_s),
        way=variant,
        implementation=result.implementation,
        is_native=result.is_native,
        max_error=result.max_error,
        rms_error=result.rms_error,
    )
    replay(benchmark, result.samples_s)
