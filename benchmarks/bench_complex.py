"""GPU time of complex products, against cuBLAS's own complex ones.

Each row is the automatic choice, in the dtype's own arithmetic, by three products, and emulated;
`vs_cublas` is the time of cublasCgemm or cublasZgemm over it. Operations are counted as 8 m n k.
The cuBLASDx pipeline, which is used only when named, has rows of its own.
Rows with an epilogue have it fused; cuBLAS is then followed by one kernel of `cupy.fuse`, and
`vs_plain` is the time of the same product without it over theirs.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from cases import SMOKE, Case, own
from fused import FusedCase, fused, plain, separate_kernels
from measuring import CUBLAS, OWN, Found, Row, Variants, bench, fields, ratio

from dxgemm.problem.dtypes import COMPLEX_PARTS

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
PLAIN = "plain"

SQUARES = (256, 512, 1024, 2048, 4096, 8192)
OTHERS = [
    # m, n, k: odd sizes; rectangles; small k; few rows
    (257, 257, 257), (1000, 1003, 517), (2047, 2049, 2051), (4097, 4095, 4099),
    (512, 8192, 2048), (8192, 512, 2048), (256, 256, 16384), (16384, 1024, 512),
    (4096, 4096, 16), (4096, 4096, 64), (8192, 8192, 128),
    (1, 4096, 4096), (8, 4096, 4096), (64, 4096, 4096),
]  # fmt: skip
BATCHES = [(4, 100_000), (8, 50_000), (16, 20_000), (32, 5_000), (64, 2_000)]
ARRANGEMENTS = ("row_row_row", "row_col_row")


def list_cases() -> list[Case]:
    if SMOKE:
        return [
            Case("complex64", 3, 4, 5),
            Case("complex128", 4, 3, 2, "row_col_row"),
            Case("complex64", 4, 3, 5, batch=3),
        ]
    sizes = [(n, n, n) for n in SQUARES] + OTHERS
    cases = [
        Case(dtype, *size, arrangement)
        for dtype, size, arrangement in product(COMPLEX_PARTS, sizes, ARRANGEMENTS)
        if arrangement == ARRANGEMENTS[0] or size in OTHERS[-3:]
    ]
    cases += [Case(dtype, n, n, n, batch=batch) for dtype in COMPLEX_PARTS for n, batch in BATCHES]
    others = [
        Case(dtype, n, n, n, precision=precision)
        for dtype, precision, n in product(COMPLEX_PARTS, ("3m", "emulated"), SQUARES[2:])
    ]
    return cases + others


def list_fused_cases() -> list[Case]:
    if SMOKE:
        return [FusedCase("complex64", 3, 3, 3, epilogue="bias | squared_magnitude")]
    kinds = product(COMPLEX_PARTS, SQUARES[:5], ("bias", "bias | squared_magnitude"))
    return [FusedCase(dtype, n, n, n, epilogue=text) for dtype, n, text in kinds]


def rows(cases: list[Case], own_variants: Variants, rival: Any) -> list[Row]:
    variants = own_variants if SMOKE else {**own_variants, CUBLAS: rival}
    return [Row(case, variants, [OWN]) for case in cases]


def describe_fused(row: Row, name: str, found: Found) -> dict[str, Any]:
    return fields(row, name, found, vs_plain=ratio(found, PLAIN, name))


bench_complex = bench(
    rows(list_cases(), {OWN: own()}, own(CUBLAS, precision=None)), budget_s=CASE_S
)
bench_complex_epilogue = bench(
    rows(list_fused_cases(), {OWN: fused(), PLAIN: plain()}, separate_kernels),
    describe_fused,
    budget_s=CASE_S,
)
