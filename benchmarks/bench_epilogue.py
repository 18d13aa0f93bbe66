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

from typing import Any

from cases import grid
from fused import BASELINES, CATALOGUE, FusedCase, baselines_of, fused, plain
from measuring import OWN, Found, Row, bench, ratio
from reduced import REDUCING_BASELINES, ReducedCase, reduced, unreduced

from dxgemm.choice.registry import find_implementation

CASE_S = 0.3  # of timing a case, unless fewest rounds take longer
SQUARE, SHALLOW = (4096, 4096, 4096), (8192, 8192, 128)
# What may be best on SHALLOW; the config of each that is shows in the results.
SHALLOW_RUNG = {"float32": "tuned", "float64": "tensor_core"}
PATHS = {OWN: None, "fused": True, "unfused": False}
FLOATS, CHAIN, NEAREST = ["float32", "float64"], "bias | gelu | residual", "argmin(axis=1)"
INT8 = {"dtype": "int8", "result_dtype": "float32", "epilogue": "dequantise"}
CASES = [
    *grid(FusedCase, dtype=FLOATS, size=[SQUARE, SHALLOW], epilogue=CHAIN),
    *grid(FusedCase, dtype=["float16", "bfloat16"], size=[SQUARE], epilogue=CHAIN),
    *grid(FusedCase, dtype="float16", size=[4096], epilogue=["bias | relu", "bias | gelu_tanh"]),
    *grid(FusedCase, of=INT8, size=[4096], arrangement=["row_row_row", "row_col_row"]),
    *grid(FusedCase, dtype=FLOATS, size=[4096], epilogue=CATALOGUE),
]
REDUCED_CASES = []
for kinds in (FLOATS, [{"dtype": "float32", "precision": "emulated"}]):
    of = [kind if isinstance(kind, dict) else {"dtype": kind} for kind in kinds]
    shape, two = [(65536, 16384, 64)], [(8192, 8192, 256)]
    REDUCED_CASES += grid(ReducedCase, of=of[:1], size=shape, reduction=NEAREST)
    REDUCED_CASES += grid(ReducedCase, size=two, reduction="smallest(2, axis=None)", of=of)
    REDUCED_CASES += grid(ReducedCase, size=[4096], reduction="sum(axis=1)", of=of)


def choices(case: FusedCase) -> dict[str, Any]:
    """The automatic choice, and on SHALLOW every config of a rung."""
    found: dict[str, Any] = {OWN: None}
    if (case.m, case.n, case.k) == SHALLOW:
        name = SHALLOW_RUNG[case.dtype]
        configs = find_implementation(name).configs(case.dtype)
        found |= {f"{name} {config}": (name, config) for config in configs}
    return found


def variants(case: FusedCase) -> dict[str, Any]:
    own = {name: fused(choice) for name, choice in choices(case).items()}
    return own | baselines_of(case)


def others(case: FusedCase) -> dict[str, Any]:
    return {f"{name} plain": plain(choice) for name, choice in choices(case).items()}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    without = f"{name} plain"
    assert without not in found or not found[without].wrong, found[without].wrong
    named = {"epilogue": getattr(row.case, "reduction", "") or row.case.epilogue}
    return named | {"is_automatic": name == OWN, "vs_plain": ratio(found, without, name)}


bench_epilogue = bench(CASES, variants, others, describe, cublas=tuple(BASELINES), budget_s=CASE_S)
bench_reduction = bench(
    REDUCED_CASES,
    {name: reduced(is_fused) for name, is_fused in PATHS.items()} | REDUCING_BASELINES,
    {f"{name} plain": unreduced(is_fused) for name, is_fused in PATHS.items()},
    describe,
    cublas=tuple(REDUCING_BASELINES),
    budget_s=CASE_S,
)
