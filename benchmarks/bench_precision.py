"""Products by parts on tensor cores: time and error of each precision, on several kinds of data.

precision="emulated" is interleaved with cuBLAS and the automatic choice in the operands' dtype, in
float32 with "tf32" too, in float64 with several numbers of moduli; `precision_cases.py` says what
errors are. On one size every scheme of float32's parts and every interval of promotion is measured
too, there without the splitting of operands.
"""

from __future__ import annotations

from cases import SMOKE
from measuring import Row, Variants, bench, fields
from precision_cases import DATA, ERROR_VARIANTS, TIMED_VARIANTS, PrecisionCase
from result_files import DEPTH_LINES

SCHEME_VARIANTS: Variants = {}
if not SMOKE:
    from scheme_products import STUDIES, scheme_product

    SCHEME_VARIANTS = {str(study): scheme_product(study) for study in STUDIES}

CASE_S = 1.0  # of timing a case
SIZES = {"float32": (1024, 1536, 2048, 3000, 4096, 8192), "float64": (2048, 4096, 8192)}
REFUSED_SIZES = (1024, 2048, 4096)
DEPTHS = (64, 256, 1024, 4096, 16384, 65536)
STUDY_SIZES = ((4096, 4096, 4096), (256, 256, 65536))


def variants_of_cases() -> dict[PrecisionCase, Variants]:
    """Problems and precisions."""
    variants: dict[PrecisionCase, Variants] = {}
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


bench_precision = bench(
    [Row(case, variants) for case, variants in variants_of_cases().items()],
    lambda row, name, found: fields(row, name, found, way=name),
    budget_s=CASE_S,
)
