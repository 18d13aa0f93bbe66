"""GPU time of epilogues, against cuBLAS followed by separate kernels, and against no epilogue.

Every case is the automatic choice with the epilogue fused, and the same kernel without it. Chains
are also compared with what computes them otherwise: cuBLAS and one kernel that `cupy.fuse` makes
of the chain (`cublas_cupy`), cuBLAS and torch's operations one by one (`cublas_torch`), and
cuBLASLt's own epilogue where it has one (`cublaslt`, which torch calls). `vs_cublas` is the time of
the quickest of these over a row's. All are checked first and then timed interleaved, as
`comparison.py` says; arrays of the epilogue lie in memory like the other operands. Kernels are
built before, in parallel.

Reductions of the result, which is not stored, are timed fused and unfused, and against cuBLAS with
what CuPy (`cublas_cupy_reduction`) and torch (`cublas_torch_reduction`) reduce its matrix with; in
float32 also with precision="emulated", against the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from chains import CATALOGUE
from comparison import SMOKE, row
from fused_comparison import AUTOMATIC, BASELINES, Comparison, FusedCase, problems_of
from interleave import replay, replay_clock
from reduced_comparison import (
    PATHS,
    REDUCERS,
    REDUCING_BASELINES,
    ReducedCase,
    ReducedComparison,
    path_of,
)

import dxgemm
from dxgemm import errors
from dxgemm.choice.selection import choose
from dxgemm.compiler import KernelSpec, build_kernels, find_kernel
from dxgemm.compiler.worker import Worker
from dxgemm.runtime.device import device_facts

SHALLOW = (8192, 8192, 128)
# What may be best on SHALLOW; the config of each that is shows in the results.
SHALLOW_RUNG = {"float32": "tuned", "float64": "tensor_core"}

pytestmark = pytest.mark.benchmark(timer=replay_clock)


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


def own_choices(case: FusedCase) -> dict[str, Any]:
    """Values of `implementation=`, by a name that tells them apart."""
    choices: dict[str, Any] = {AUTOMATIC: None}
    if (case.m, case.n, case.k) == SHALLOW:
        name = SHALLOW_RUNG[case.dtype]
        (rung,) = (i for i in dxgemm.implementations() if i.name == name)
        choices |= {f"{name} {config}": (name, config) for config in rung.configs(case.dtype)}
    return choices


def list_reduced_cases() -> list[ReducedCase]:
    if SMOKE:
        cases = [ReducedCase("float32", 6, 5, 3, reduction=text) for text in REDUCERS]
        return [*cases, replace(cases[0], precision="emulated")]
    nearest = ReducedCase("float32", 65536, 16384, 64, reduction="argmin(axis=1)")
    shapes = {"smallest(2, axis=None)": (8192, 8192, 256), "sum(axis=1)": (4096, 4096, 4096)}
    cases = [nearest] + [
        ReducedCase(dtype, *shape, reduction=text)
        for text, shape in shapes.items()
        for dtype in ("float32", "float64")
    ]
    split = [replace(case, precision="emulated") for case in cases if case.dtype == "float32"]
    return [*cases, *split]


PARAMETERS = [
    pytest.param(case, name, id=f"{case}-{name}")
    for case in list_cases()
    for name in [*own_choices(case), *case.baselines]
]


def needed_kernels() -> Iterator[KernelSpec]:
    """Yield the kernels of all own choices, with the epilogue and without."""
    device = device_facts(0)
    for case in list_cases():
        fused, plain = problems_of(case)
        for choice in own_choices(case).values():
            with suppress(errors.UnsupportedProblemError):
                candidate = choose(fused, device, choice)
                for problem in (fused, plain):
                    yield candidate.implementation.spec_for(candidate.config, problem)


@pytest.fixture(scope="module")
def unbuilt() -> dict[str, str]:
    """Build in parallel, in other processes, which may crash; returns what failed, by dtype."""
    if SMOKE:
        return {}
    arch = device_facts(0).arch
    tasks = [(spec, arch) for spec in dict.fromkeys(needed_kernels())]
    with suppress(errors.DxgemmError):
        build_kernels(tasks)
        return {}
    failures = {}
    for dtype in {spec.dtype for spec, _ in tasks}:
        missing = [task for task in tasks if task[0].dtype == dtype and not find_kernel(*task)]
        try:
            if len(missing) > 1:
                build_kernels(missing)
            elif missing:  # which `build_kernels` would build in this process
                with Worker() as worker:
                    worker.build(*missing[0])
        except errors.DxgemmError as error:
            failures[dtype] = str(error)
    return failures


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison()


@pytest.mark.parametrize(("case", "name"), PARAMETERS)
def bench_epilogue(
    benchmark: Any, comparison: Comparison, unbuilt: dict[str, str], case: FusedCase, name: str
) -> None:
    if case.dtype in unbuilt:
        pytest.fail(unbuilt[case.dtype], pytrace=False)
    if case.dtype == "bfloat16":
        pytest.importorskip("torch", reason="bfloat16 arrays are torch's")
    measurement = comparison.measure(case, own_choices(case))
    attempt = measurement.attempts[name]
    if attempt.is_wrong:
        pytest.fail(f"{name} gives a wrong result for {case}", pytrace=False)
    if attempt.refusal:
        pytest.skip(attempt.refusal)
    benchmark.group = str(case)
    is_own = name not in BASELINES
    implementation, config = attempt.implementation, None
    if is_own:
        implementation, config = (
            attempt.explanation.choice.implementation,
            attempt.explanation.choice.config,
        )
    seconds = measurement.seconds(name)
    rivals = [
        measurement.seconds(rival) for rival in case.baselines if rival in measurement.samples_s
    ]
    benchmark.extra_info.update(
        row(case, implementation, config, {implementation: measurement.samples_s[name]}),
        epilogue=case.epilogue,
        is_automatic=name == AUTOMATIC,
        vs_cublas=min(rivals) / seconds if rivals else None,
        vs_plain=measurement.seconds((name, "plain")) / seconds if is_own else None,
    )
    replay(benchmark, measurement.samples_s[name])


@pytest.fixture(scope="module")
def reduced_comparison() -> ReducedComparison:
    return ReducedComparison()


@pytest.mark.parametrize("name", [*PATHS, *REDUCING_BASELINES])
@pytest.mark.parametrize("case", list_reduced_cases(), ids=str)
def bench_reduction(
    benchmark: Any, reduced_comparison: ReducedComparison, case: ReducedCase, name: str
) -> None:
    measurement = reduced_comparison.measure(case)
    attempt = measurement.attempts[name]
    if attempt.is_wrong:
        pytest.fail(f"{name} gives a wrong result for {case}", pytrace=False)
    if attempt.refusal:
        pytest.skip(attempt.refusal)
    benchmark.group = str(case)
    implementation, config, path = name, None, None
    if name in PATHS:
        implementation, config = (
            attempt.explanation.choice.implementation,
            attempt.explanation.choice.config,
        )
        path = path_of(attempt.explanation)
    seconds = measurement.seconds(name)
    rivals = [
        measurement.seconds(rival) for rival in REDUCING_BASELINES if rival in measurement.samples_s
    ]
    benchmark.extra_info.update(
        row(case, implementation, config, {implementation: measurement.samples_s[name]}),
        epilogue=case.reduction,
        way=path,
        is_automatic=name == AUTOMATIC,
        vs_cublas=min(rivals) / seconds if rivals else None,
        vs_plain=measurement.seconds((name, "plain")) / seconds if path else None,
    )
    replay(benchmark, measurement.samples_s[name])
