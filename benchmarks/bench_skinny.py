"""GPU time of products with few rows, against cuBLAS and against reading as many bytes.

Each row is the automatic choice. A product reads its weights once, and does little else. So there
are two fields besides the usual ones: `gbs`, the bytes of operands and result over the time, in
GB/s; and `read_gbs`, the rate at which CuPy sums as many bytes as float32, measured in the same
rounds. Weights are n x k, of layers of models and of odd sizes, row-major or column-major.

With `batch_invariant` the choice keeps each row's bits, for one to thousands of rows.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from cases import SMOKE, Call, Case, Operands, own, xp
from measuring import CUBLAS, OWN, Found, Row, bench, fields

from dxgemm.choice.batch_invariant import BatchInvariant

CASE_S = 0.08  # of timing a case, unless fewest rounds take longer
READING = "read"

ROWS = (1, 2, 4, 8, 16, 32, 64)
LAYERS = [
    # n x k of projections and MLPs of Llama and Qwen; a long and a wide one; odd ones.
    (4096, 4096), (14336, 4096), (4096, 14336), (6144, 5120),
    (1024, 65536), (65536, 1024), (4099, 4097), (3001, 11009),
]  # fmt: skip
ARRANGEMENTS = ("row_col_row", "row_row_row")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8")
INVARIANT_ROWS = (*ROWS, 128, 256, 512, 1024, 2048, 4096, 8192)


def list_invariant_cases() -> list[Case]:
    """Activations of many numbers of rows, times weights as torch stores them."""
    if SMOKE:
        return [Case("float16", 2, 6, 5, "row_col_row")]
    return [
        Case("bfloat16", m, n, k, "row_col_row")
        for (n, k), m in product(LAYERS[:3], INVARIANT_ROWS)
    ]


def list_cases() -> list[Case]:
    """The cases, weights of which are a layer's: b is n x k, column-major if stored as such."""
    if SMOKE:
        return [Case("float32", 2, 6, 5, "row_col_row")]
    return [
        Case(dtype, m, n, k, arrangement)
        for dtype, (n, k), arrangement, m in product(DTYPES, LAYERS, ARRANGEMENTS, ROWS)
        if dtype == "float16" or (n, k) in LAYERS[:3] + LAYERS[-2:-1]
    ]


def read(case: Case, x: Operands) -> Call:
    """Sum as many bytes as the case moves."""
    array = xp.ones(-(-case.bytes_moved // 4), "float32")
    total = xp.empty((), "float32")
    return lambda: array.sum(out=total)


def benchmark_of(cases: list[Case], implementation: Any) -> Any:
    variants = {OWN: own(implementation), READING: read}
    variants |= {} if SMOKE else {CUBLAS: own(CUBLAS)}

    def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
        extra = fields(row, name, found, batch_invariant=implementation is not None)
        read_gbs = 1e-9 * row.case.bytes_moved / found[READING].seconds
        return extra | {"gbs": extra["gbytes_per_s"], "read_gbs": read_gbs}

    return bench([Row(case, variants, [OWN]) for case in cases], describe, budget_s=CASE_S)


bench_few_rows = benchmark_of(list_cases(), None)
bench_batch_invariant = benchmark_of(list_invariant_cases(), BatchInvariant(None))
