"""GPU time of many small products: batches in one array, lists of arrays, mixed sizes.

The automatic choice (for lists `plan_grouped`) is interleaved with cuBLAS, as `groups.py` calls it,
and torch; `vs_cublas` is the time of the quicker of these over a row's.
"""

from __future__ import annotations

from typing import Any

from groups import batched_case, cublas_batch, own_batch, torch_batch
from measuring import CUBLAS, OWN, Found, Row, bench

SIZES = (4, 8, 16, 32, 48, 64, 96, 128)
BATCHES = (100, 1000, 10_000, 100_000)
LISTS: list[tuple[int, Any]] = [
    (1000, ((4, 4, 4),)),
    (1000, ((32, 32, 32),)),
    (300, ((4, 4, 4), (16, 16, 16), (64, 64, 64), (128, 128, 128), (32, 8, 100))),
    (300, ((17, 33, 65), (5, 100, 31), (127, 63, 9))),
]
CASES = []
for dtype in ("float32", "float64"):
    CASES += [batched_case(dtype, batch, (n, n, n)) for n in SIZES for batch in BATCHES]
    CASES += [batched_case(dtype, 1000, (32, 32, 32), way="broadcast")]
    CASES += [batched_case(dtype, batch, *sizes, way="list") for batch, sizes in LISTS]


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    choice = getattr(found[name].explanation, "choice", None)
    is_named = name == OWN and row.case.way != "list"
    kernel = f"{choice.implementation} {choice.config}" if choice and is_named else None
    return {"implementation": name, "config": kernel}


bench_batched = bench(
    CASES,
    {OWN: own_batch, CUBLAS: cublas_batch, "torch": torch_batch},
    more=describe,
    cublas=(CUBLAS, "torch"),
    budget_s=1.0,
)
