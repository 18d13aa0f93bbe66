"""GPU time of all kernels of the automatic choice, over sizes, layouts, batches and dtypes.

Each implementation takes the config that the dispatcher chooses. The other steps of the ladder have
a suite of theirs; `naive`, which can be the quickest where m, n or k is a few elements, is among
them on small ones. On products of few rows "batch_invariant" is the choice that serves every number
of rows; on squares, torch and nvmath are compared too, and on some of them nvmath.device.
"""

from __future__ import annotations

import math

from cases import SMOKE, Case, own
from measuring import Row, Variants, bench, fields
from rivals import RIVALS

import dxgemm
from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.choice.implementation import Role

# What the automatic choice may be among for some dtype, the pipelines with all of theirs, the
# baseline; and what of these is left out of larger products, in which it takes a hundred times as
# long.
IMPLEMENTATIONS = [i.name for i in dxgemm.implementations() if i.role is not Role.RUNG]
FOR_SMALL_ONES, MOST_FLOPS = "naive", 2 * 256**3
# Implementations with longer calls are left out, and those that take so many times the fastest's;
# cuBLAS never is.
LONGEST_CALL_S = 60 if SMOKE else 0.3
SLOWEST = math.inf if SMOKE else 8.0
CASE_S = 0.5  # of timing a case, unless fewest rounds take longer
DTYPES = ("float32", "float64")

SQUARES = [
    16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384,
]  # fmt: skip
THIN = [
    (4, 4, 4), (8, 8, 8), (64, 4, 1), (256, 2, 2), (1024, 4, 2), (2048, 5, 4), (4096, 2, 8),
    (1024, 1, 8), (256, 256, 4), (64, 8, 512),
]  # fmt: skip
RAGGED = [
    (127, 129, 65), (639, 640, 347), (1000, 1000, 1000), (2047, 2049, 2053), (4011, 4012, 103),
    (4095, 4095, 4095),
]  # fmt: skip
RECTANGLES = [
    # Narrow in one direction, or in two.
    (1, 4096, 4096), (4096, 16, 4096), (8192, 256, 8192), (9, 16, 23040), (25, 64, 27920),
    # Deep and shallow.
    (512, 512, 16384), (1024, 1024, 8192), (4096, 4096, 64),
    # Layers of a transformer: attention's projection, the two of its MLP.
    (4096, 4096, 11008), (4096, 11008, 4096), (2048, 5120, 5120),
    # Element matrices times basis functions, of many finite elements at once.
    (50176, 64, 27), (24000, 256, 256),
]  # fmt: skip
FEW_ROWS = [(m, 4096, 4096) for m in (8, 16, 128, 1024)]
ARRANGED_SIZES = [1024, 4096]
ARRANGEMENTS = ["row_col_row", "col_row_row", "col_col_row", "row_row_col", "col_col_col"]
BATCHED = [(1000, 32), (256, 128), (64, 512)]
TENSOR_CORE_SIZES = [1024, 2048, 4096, 8192, 16384]
# dtype, precision and result's dtype of what tensor cores multiply, with its arrangements.
TENSOR_CORE_KINDS = [
    ("float16", None, "float32", ("row_row_row", "row_col_row")),
    ("float16", None, None, ("row_row_row", "row_col_row", "col_row_row", "col_col_row")),
    ("bfloat16", None, None, ("row_row_row", "row_col_row")),
    ("float32", "tf32", None, ("row_col_row",)),
    ("float32", "emulated", None, ("row_row_row", "row_col_row")),
    ("int8", None, None, ("row_row_row", "row_col_row")),
]
# What nvmath.device builds a kernel for, two minutes each: size, and dtype with that of the result.
DEVICE_SIZES = (4096,)
DEVICE_KINDS = (("float64", "float64"), ("float16", "float32"))


def list_cases() -> list[Case]:
    if SMOKE:
        cases = [Case(dtype, 6, 5, 3) for dtype in DTYPES]
        return [*cases, Case("float32", 3, 4, 2, "col_row_col", batch=2)]
    cases = []
    for dtype in DTYPES:
        cases += [Case(dtype, n, n, n) for n in SQUARES]
        cases += [Case(dtype, *shape) for shape in THIN + RAGGED + RECTANGLES + FEW_ROWS]
        cases += [Case(dtype, n, n, n, order) for n in ARRANGED_SIZES for order in ARRANGEMENTS]
        cases += [Case(dtype, n, n, n, batch=batch) for batch, n in BATCHED]
    cases += [Case("float16", *shape, "row_col_row") for shape in FEW_ROWS]
    return cases + [
        Case(dtype, n, n, n, order, precision=precision, result_dtype=result_dtype)
        for dtype, precision, result_dtype, orders in TENSOR_CORE_KINDS
        for order in orders
        for n in TENSOR_CORE_SIZES
    ]


def rivals_of(case: Case) -> list[str]:
    """Names of other libraries that are compared too, on row-major squares in floating point."""
    is_square = case.m == case.n == case.k and case.batch == 1
    if not is_square or case.arrangement != "row_row_row" or case.precision is not None:
        return []
    is_one_dtype = case.result_dtype is None and case.dtype != "int8"
    rivals = ["torch", "nvmath"] if is_one_dtype else []
    if case.m in DEVICE_SIZES and (case.dtype, case.out_dtype) in DEVICE_KINDS:
        rivals.append("nvmath.device")
    return rivals


def variants_of(case: Case) -> Variants:
    names = [n for n in IMPLEMENTATIONS if n != FOR_SMALL_ONES or case.flops <= MOST_FLOPS]
    variants = {name: own(name) for name in names}
    if SMOKE or (case.m, case.n, case.k) in FEW_ROWS:
        variants["batch_invariant"] = own(BatchInvariant(None))
    return variants if SMOKE else variants | {name: RIVALS[name] for name in rivals_of(case)}


bench_implementation = bench(
    [Row(case, variants_of(case)) for case in list_cases()],
    lambda row, name, found: fields(row, name, found, implementation=name),
    budget_s=CASE_S,
    slowest=SLOWEST,
    longest_s=LONGEST_CALL_S,
)
