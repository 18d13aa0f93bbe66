"""GPU time of many small products: batches in one array, lists of arrays, mixed sizes.

The automatic choice (for lists `plan_grouped`) is interleaved with cuBLAS, as `groups.py` calls it,
and torch; `vs_cublas` is the time of the quicker of these over a row's.
"""

from __future__ import annotations

from typing import Any

from cases import SMOKE
from groups import batched_case, cublas_batch, own_batch, torch_batch
from measuring import CUBLAS, OWN, Found, Row, bench, fields

CASE_S = 1.0  # of timing a case
SIZES = (4, 8, 16, 32, 48, 64, 96, 128)
BATCHES = (100, 1000, 10_000, 100_000)
LISTS = {
    "equal": (1000, ((4, 4, 4),)),
    "equal 32": (1000, ((32, 32, 32),)),
    "mixed": (300, ((4, 4, 4), (16, 16, 16), (64, 64, 64), (128, 128, 128), (32, 8, 100))),
    "ragged": (300, ((17, 33, 65), (5, 100, 31), (127, 63, 9))),
}

VARIANTS = {OWN: own_batch}
if not SMOKE:
    VARIANTS |= {CUBLAS: cublas_batch, "torch": torch_batch}


def list_cases() -> list[Any]:
    dtypes = ("float32", "float64")
    if SMOKE:
        sizes = ((4, 4, 4), (5, 3, 2))
        return [
            batched_case(dtype, 3, *(sizes if way == "list" else sizes[:1]), way=way)
            for dtype in dtypes
            for way in ("strided", "broadcast", "list")
        ]
    batches = [
        batched_case(dtype, batch, (n, n, n))
        for dtype in dtypes
        for n in SIZES
        for batch in BATCHES
    ]
    broadcast = [batched_case(dtype, 1000, (32, 32, 32), way="broadcast") for dtype in dtypes]
    lists = [
        batched_case(dtype, batch, *sizes, way="list")
        for dtype in dtypes
        for batch, sizes in LISTS.values()
    ]
    return batches + broadcast + lists


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    extra = fields(row, name, found, (CUBLAS, "torch"))
    kernel = f"{extra['implementation']} {extra['config']}" if name == OWN else None
    is_named = row.case.way != "list"
    return extra | {"implementation": name, "config": kernel if is_named else None}


bench_batched = bench([Row(case, VARIANTS) for case in list_cases()], describe, budget_s=CASE_S)
