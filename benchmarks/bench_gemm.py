"""GPU time of all kernels of the automatic choice, over sizes, layouts, batches and dtypes.

Each implementation takes the config that the dispatcher chooses. The other steps of the ladder have
a suite of theirs; `naive`, which can be the quickest where m, n or k is a few elements, is among
them on small ones. On products of few rows "batch_invariant" is the choice that serves every number
of rows; on squares, torch and nvmath are compared too, and on some of them nvmath.device.
"""

from typing import Any

from cases import Case, grid, nvmath_call, nvmath_device_call, own, torch_call
from measuring import bench

import dxgemm
from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.choice.implementation import Role

# What the automatic choice may be among for some dtype, the pipelines with all of theirs, the
# baseline; and what of these is left out of larger products, in which it takes a hundred times as
# long.
IMPLEMENTATIONS = [i.name for i in dxgemm.implementations() if i.role is not Role.RUNG]
FOR_SMALL_ONES, MOST_FLOPS = "naive", 2 * 256**3
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
ARRANGEMENTS = ["row_col_row", "col_row_row", "col_col_row", "row_row_col", "col_col_col"]
BATCHED = [(32, 32, 32, 1000), (128, 128, 128, 256), (512, 512, 512, 64)]
# What tensor cores multiply.
ROWS, HALF = ["row_row_row", "row_col_row"], {"dtype": "float16"}
TENSOR_CORE_KINDS = [
    ({**HALF, "result_dtype": "float32"}, ROWS), (HALF, ["row_row_row", *ARRANGEMENTS[:3]]),
    ({"dtype": "bfloat16"}, ROWS), ({"dtype": "float32", "precision": "tf32"}, ROWS[1:]),
    ({"dtype": "float32", "precision": "emulated"}, ROWS), ({"dtype": "int8"}, ROWS),
]  # fmt: skip
# What nvmath.device builds a kernel for, two minutes each: size, and dtype with that of the result.
DEVICE = [(4096, "float64", "float64"), (4096, "float16", "float32")]

CASES = []
for dtype in DTYPES:
    CASES += grid(dtype=dtype, size=SQUARES + THIN + RAGGED + RECTANGLES + FEW_ROWS)
    CASES += grid(dtype=dtype, size=[1024, 4096], arrangement=ARRANGEMENTS)
    CASES += grid(dtype=dtype, size=BATCHED)
CASES += grid(dtype="float16", size=FEW_ROWS, arrangement="row_col_row")
for kind, orders in TENSOR_CORE_KINDS:
    CASES += grid(of=kind, arrangement=orders, size=[1024, 2048, 4096, 8192, 16384])


def variants(case: Case) -> dict[str, Any]:
    """Kernels, and other libraries on row-major squares in floating point."""
    names = [n for n in IMPLEMENTATIONS if n != FOR_SMALL_ONES or case.flops <= MOST_FLOPS]
    found: dict[str, Any] = {name: own(name) for name in names}
    if (case.m, case.n, case.k) in FEW_ROWS:
        found["batch_invariant"] = own(BatchInvariant(None))
    if case == Case(case.dtype, case.m, case.m, case.m, result_dtype=case.result_dtype):
        if case.result_dtype is None and case.dtype != "int8":
            found |= {"torch": torch_call, "nvmath": nvmath_call}
        if (case.m, case.dtype, case.out_dtype) in DEVICE:
            found["nvmath.device"] = nvmath_device_call
    return found


# cuBLAS is never left out; others are whose call takes longer than 0.3 s, or 8 times the fastest's.
bench_implementation = bench(
    CASES,
    variants,
    more=lambda row, name, found: {"implementation": name},
    budget_s=0.5,
    slowest=8.0,
    longest_s=0.3,
)
