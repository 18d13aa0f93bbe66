"""GPU time of products with few rows, against cuBLAS and against reading as many bytes.

Each row is the automatic choice. A product reads its weights once, and does little else. So there
are two fields besides the usual ones: `gbs`, the bytes of operands and result over the time, in
GB/s; and `read_gbs`, the rate at which CuPy sums as many bytes as float32, measured in the same
rounds. Weights are n x k, of layers of models and of odd sizes, row-major or column-major.

With `batch_invariant` the choice keeps each row's bits, for one to thousands of rows.
"""

from typing import Any

from cases import Call, Case, Operands, grid, own, xp
from measuring import CUBLAS, OWN, Found, Row, bench

from dxgemm.choice.batch_invariant import BatchInvariant

READING = "read"

ROWS = (1, 2, 4, 8, 16, 32, 64)
LAYERS = [
    # n x k of projections and MLPs of Llama and Qwen; a long and a wide one; odd ones.
    (4096, 4096), (14336, 4096), (4096, 14336), (6144, 5120),
    (1024, 65536), (65536, 1024), (4099, 4097), (3001, 11009),
]  # fmt: skip
ARRANGEMENTS = ["row_col_row", "row_row_row"]
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8"]
INVARIANT_ROWS = (*ROWS, 128, 256, 512, 1024, 2048, 4096, 8192)
CASES = []
for dtype in DTYPES:  # weights are a layer's: b is n x k, column-major if stored as such
    for n, k in LAYERS if dtype == "float16" else LAYERS[:3] + LAYERS[-2:-1]:
        CASES += grid(dtype=dtype, arrangement=ARRANGEMENTS, size=[(m, n, k) for m in ROWS])
# Activations of many numbers of rows, times weights as torch stores them.
SIZES = [(m, n, k) for n, k in LAYERS[:3] for m in INVARIANT_ROWS]
INVARIANT_CASES = grid(dtype="bfloat16", size=SIZES, arrangement="row_col_row")


def read(case: Case, x: Operands) -> Call:
    """Sum as many bytes as the case moves."""
    array = xp.ones(-(-case.bytes_moved // 4), "float32")
    total = xp.empty((), "float32")
    return lambda: array.sum(out=total)


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    gbs, read_gbs = (1e-9 * row.case.bytes_moved / found[n].seconds for n in (name, READING))
    return {"gbs": gbs, "read_gbs": read_gbs, "batch_invariant": False}


def invariant(*found: Any) -> dict[str, Any]:
    return {**describe(*found), "batch_invariant": True}


OTHERS = {READING: read, CUBLAS: own(CUBLAS)}
bench_few_rows = bench(CASES, {OWN: own()}, OTHERS, describe, budget_s=0.08)
bench_batch_invariant = bench(
    INVARIANT_CASES, {OWN: own(BatchInvariant(None))}, OTHERS, invariant, budget_s=0.08
)
