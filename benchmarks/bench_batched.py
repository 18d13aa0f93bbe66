"""GPU time of many small products: batches in one array, lists of arrays, mixed sizes.

The automatic choice (for lists `plan_grouped`) is interleaved with cuBLAS and torch, as
`batched_comparison.py` says; `vs_cublas` is the time of the quicker of these over a row's. Every
call is checked exactly first, and reads operands that are not in the L2 cache.
"""

from __future__ import annotations

import statistics
from functools import cache
from typing import Any

import pytest
from batched_comparison import OWN, RIVALS, BatchedCase, Measurement, measure
from comparison import SMOKE, make_timer
from interleave import replay, replay_clock

SIZES = (4, 8, 16, 32, 48, 64, 96, 128)
BATCHES = (100, 1000, 10_000, 100_000)
LISTS = {
    "equal": (1000, ((4, 4, 4),)),
    "equal 32": (1000, ((32, 32, 32),)),
    "mixed": (300, ((4, 4, 4), (16, 16, 16), (64, 64, 64), (128, 128, 128), (32, 8, 100))),
    "ragged": (300, ((17, 33, 65), (5, 100, 31), (127, 63, 9))),
}

pytestmark = pytest.mark.benchmark(timer=replay_clock)


def list_cases() -> list[BatchedCase]:
    dtypes = ("float32", "float64")
    if SMOKE:
        sizes = ((4, 4, 4), (5, 3, 2))
        return [
            BatchedCase(dtype, 3, sizes if layout == "list" else sizes[:1], layout)
            for dtype in dtypes
            for layout in ("strided", "broadcast", "list")
        ]
    batches = [
        BatchedCase(dtype, batch, ((n, n, n),))
        for dtype in dtypes
        for n in SIZES
        for batch in BATCHES
    ]
    broadcast = [BatchedCase(dtype, 1000, ((32, 32, 32),), "broadcast") for dtype in dtypes]
    lists = [BatchedCase(dtype, *of, "list") for dtype in dtypes for of in LISTS.values()]
    return batches + broadcast + lists


@pytest.fixture(scope="module")
def measurement() -> Any:
    """Measures a case when it is first asked for; its names follow each other."""
    timer = make_timer()
    return cache(lambda case: measure(case, timer))


@pytest.mark.parametrize("name", [OWN, *RIVALS])
@pytest.mark.parametrize("case", list_cases(), ids=str)
def bench_batched(benchmark: Any, measurement: Any, case: BatchedCase, name: str) -> None:
    measured: Measurement = measurement(case)
    if name in measured.wrong:
        pytest.fail(f"{name} gives a wrong result for {case}", pytrace=False)
    if name not in measured.samples_s:
        pytest.skip(measured.refusals.get(name, "it needs a GPU"))
    benchmark.group = str(case)
    medians = {other: statistics.median(s) for other, s in measured.samples_s.items()}
    rivals = [medians[rival] for rival in RIVALS if rival in medians]
    m, n, k = case.sizes[0] if len(case.sizes) == 1 else (None, None, None)
    benchmark.extra_info.update(
        dtype=case.dtype,
        m=m,
        n=n,
        k=k,
        batch=case.batch,
        sizes=case.sizes,
        way=case.layout,
        arrangement="row_row_row",
        epilogue="none",
        implementation=name,
        config=measured.config if name == OWN else None,
        gpu_us=1e6 * medians[name],
        tflops=1e-12 * case.flops / medians[name],
        gbytes_per_s=1e-9 * case.bytes_moved / medians[name],
        vs_cublas=min(rivals) / medians[name] if rivals else None,
    )
    replay(benchmark, measured.samples_s[name])
