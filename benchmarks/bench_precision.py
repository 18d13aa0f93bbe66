"""Products by parts on tensor cores: time and error of each precision, on several kinds of data.

precision="emulated" is interleaved with cuBLAS and the automatic choice in the operands' dtype, in
float32 with "tf32" too, in float64 with several numbers of moduli; `precision_cases.py` says what
errors are.
"""

from __future__ import annotations

from cases import grid
from measuring import bench
from precision_cases import DATA, ERROR_VARIANTS, TIMED_VARIANTS, PrecisionCase

SIZES = {"float32": [1024, 1536, 2048, 3000, 4096, 8192], "float64": [2048, 4096, 8192]}
REFUSED_SIZES, REFUSED = [1024, 2048, 4096], "elements over 60 binades"
DEPTHS = [(256, 256, k) for k in (64, 256, 1024, 4096, 16384, 65536)]

CASES = {}
for dtype, sizes in SIZES.items():
    timed = grid(PrecisionCase, dtype=dtype, size=[*sizes, (4096, 16384, 4096)])
    compared = grid(PrecisionCase, dtype=dtype, size=REFUSED_SIZES, data=[REFUSED])
    compared += grid(PrecisionCase, dtype=dtype, data=[*DATA], size=DEPTHS)
    CASES |= dict.fromkeys(timed, TIMED_VARIANTS[dtype])
    CASES |= dict.fromkeys(compared, ERROR_VARIANTS[dtype])

bench_precision = bench(
    CASES,
    lambda case: CASES.get(case, TIMED_VARIANTS[case.dtype]),
    more=lambda row, name, found: {"way": name},
    budget_s=1.0,
)
