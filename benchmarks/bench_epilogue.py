"""GPU time of epilogues, against cuBLAS followed by separate kernels, and against no epilogue.

Every case is the automatic choice with the epilogue fused, and the same kernel without it. Chains
are also compared with what computes them otherwise: cuBLAS and one kernel that `cupy.fuse` makes
of the chain (`cublas_cupy`), cuBLAS and torch's operations one by one (`cublas_torch`), and
cuBLASLt's own epilogue where it has one (`cublaslt`, which torch calls). `vs_cublas` is the time of
the quickest of these over a row's. Arrays of the epilogue are rotated like the other operands.

Reductions of the result, which is not stored, are timed fused and unfused, and against cuBLAS with
what CuPy (`cublas_cupy_reduction`) and torch (`cublas_torch_reduction`) reduce its matrix with; in
float32 also with precision="emulated", against the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import SMOKE
from chains import CATALOGUE
from fused import BASELINES, FusedCase, baselines_of, fused, plain
from measuring import OWN, Found, Row, bench, fields, ratio
from reduced import REDUCING_BASELINES, ReducedCase, reduced, unreduced

from dxgemm.choice.registry import find_implementation

CASE_S = 0.3  # of timing a case, unless fewest rounds take longer
SHALLOW = (8192, 8192, 128)
# What may be best on SHALLOW; the config of each that is shows in the results.
SHALLOW_RUNG = {"float32": "tuned", "float64": "tensor_core"}
PATHS = {OWN: None, "fused": True, "unfused": False}


def list_cases() -> list[FusedCase]:
    if SMOKE:
        shape = (6, 5, 3)
        cases = [FusedCase("float32", *shape, epilogue=text) for text in CATALOGUE]
        cases += [FusedCase("float64", *shape, epilogue="bias | gelu | residual")]
        cases += [FusedCase("float16", *shape, epilogue="bias | relu")]
        return [*cases, int8_case(*shape, "row_col_row")]
    square = (4096, 4096, 4096)
    chain = "bias | gelu | residual"
    cases = [
        FusedCase(dtype, *shape, epilogue=chain)
        for dtype in ("float32", "float64")
        for shape in (square, SHALLOW)
    ]
    cases += [FusedCase(dtype, *square, epilogue=chain) for dtype in ("float16", "bfloat16")]
    cases += [
        FusedCase("float16", *square, epilogue=text) for text in ("bias | relu", "bias | gelu_tanh")
    ]
    cases += [int8_case(*square, arrangement) for arrangement in ("row_row_row", "row_col_row")]
    return cases + [
        FusedCase(dtype, *square, epilogue=text)
        for dtype in ("float32", "float64")
        for text in CATALOGUE
    ]


def int8_case(m: int, n: int, k: int, arrangement: str) -> FusedCase:
    return FusedCase("int8", m, n, k, arrangement, result_dtype="float32", epilogue="dequantise")


def fused_row(case: FusedCase) -> Row:
    """The automatic choice, on SHALLOW every config of a rung, and what else there is."""
    choices: dict[str, Any] = {OWN: None}
    if (case.m, case.n, case.k) == SHALLOW:
        name = SHALLOW_RUNG[case.dtype]
        configs = find_implementation(name).configs(case.dtype)
        choices |= {f"{name} {config}": (name, config) for config in configs}
    own = {name: fused(choice) for name, choice in choices.items()}
    without = {f"{name} plain": plain(choice) for name, choice in choices.items()}
    others = {} if SMOKE else baselines_of(case)
    return Row(case, own | without | others, [*own, *others])


def list_reduced_cases() -> list[ReducedCase]:
    if SMOKE:
        return [ReducedCase("float32", 6, 5, 3, reduction="argmin(axis=1)")]
    nearest = ReducedCase("float32", 65536, 16384, 64, reduction="argmin(axis=1)")
    shapes = {"smallest(2, axis=None)": (8192, 8192, 256), "sum(axis=1)": (4096, 4096, 4096)}
    cases = [nearest] + [
        ReducedCase(dtype, *shape, reduction=text)
        for text, shape in shapes.items()
        for dtype in ("float32", "float64")
    ]
    emulated = [replace(case, precision="emulated") for case in cases if case.dtype == "float32"]
    return [*cases, *emulated]


def reduced_row(case: ReducedCase) -> Row:
    own = {name: reduced(is_fused) for name, is_fused in PATHS.items()}
    without = {f"{name} plain": unreduced(is_fused) for name, is_fused in PATHS.items()}
    others = {} if SMOKE else REDUCING_BASELINES
    return Row(case, own | without | others, [*own, *others])


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    without = f"{name} plain"
    assert without not in found or not found[without].wrong, found[without].wrong
    extra = fields(row, name, found, (*BASELINES, *REDUCING_BASELINES))
    extra["epilogue"] = getattr(row.case, "reduction", extra["epilogue"])
    return extra | {"is_automatic": name == OWN, "vs_plain": ratio(found, without, name)}


bench_epilogue = bench([fused_row(case) for case in list_cases()], describe, budget_s=CASE_S)
bench_reduction = bench(
    [reduced_row(case) for case in list_reduced_cases()], describe, budget_s=CASE_S
)
