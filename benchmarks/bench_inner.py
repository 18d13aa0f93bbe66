"""GPU time of products by an inner function, against the instructions they need, and torch.

`vs_bound` is the time that the function's operations take at the GPU's rate of instructions, one a
pair of elements for each, over that of the product. `vs_cdist` and `vs_compiled` are the times of
`torch.cdist` and of the compiled broadcast form over it. Rows with an epilogue have the nearest
column found in the same kernel; their `vs_plain` is the time without it over theirs. A result must
be exact on small integers. All are timed interleaved; `comparison.py` says how.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from comparison import (
    L2_BYTES,
    SMOKE,
    Case,
    Timer,
    arrange,
    make_timer,
    random_operands,
    row,
    take_turns,
    to_dtypes,
    working_dtype,
    xp,
)
from interleave import replay, replay_clock

import dxgemm
from dxgemm import inners, reductions
from dxgemm.runtime.device import device_facts
from dxgemm.tuning import sampling

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
MOST_SETS = 4  # of operands, which are large
CHECKED = 64  # rows and columns of a result
OWN, NEAREST, CDIST, COMPILED = "automatic", "argmin", "torch.cdist", "torch.compile"
SIZES = [
    (1024, 1024, 1024), (4096, 4096, 4096), (4096, 4096, 128), (20000, 2000, 64), (1000, 1003, 517),
]  # fmt: skip

# By broadcasting, of points (..., m, 1, k) and (..., 1, n, k); and the p of torch.cdist.
FORMS: dict[str, tuple[Callable[[Any, Any], Any], float | None]] = {
    "l1": (lambda x, y: abs(x - y).sum(-1), 1.0),
    "chebyshev": (lambda x, y: (abs(x - y)).max(-1), float("inf")),
    "squared_euclidean": (lambda x, y: ((x - y) ** 2).sum(-1), None),
    "min_plus": (lambda x, y: (x + y).min(-1), None),
}

pytestmark = pytest.mark.benchmark(timer=replay_clock)

Call = Callable[[], Any]


def list_cases() -> list[Case]:
    """Points in the rows of a and in the columns of b."""
    if SMOKE:
        return [Case("float32", 5, 6, 3, "row_col_row"), Case("float16", 4, 3, 5, "row_col_row")]
    cases = [
        Case(dtype, *size, "row_col_row") for dtype in ("float32", "float64") for size in SIZES
    ]
    cases += [Case("float32", 500, 500, 500, "row_col_row", 64)]
    return [*cases, Case("float32", 4096, 4096, 4096), Case("float16", *SIZES[2], "row_col_row")]


def rivals_of(name: str, operands: Any) -> dict[str, Call]:
    """Calls of torch on the same points."""
    if SMOKE:
        return {}
    import torch

    form, p = FORMS[name]
    x, y = (torch.from_dlpack(operand) for operand in operands[:2])
    y = y.swapaxes(-1, -2)
    reduced = {"chebyshev": lambda x, y: (x - y).abs().amax(-1),
               "min_plus": lambda x, y: (x + y).amin(-1)}.get(name, form)  # fmt: skip
    compiled = torch.compile(lambda x, y: reduced(x[..., :, None, :], y[..., None, :, :]))
    calls: dict[str, Call] = {COMPILED: lambda: compiled(x, y)}
    if p is not None and x.dtype != torch.float16:
        calls[CDIST] = lambda: torch.cdist(x, y, p=p)
    return calls


def check(name: str, case: Case) -> None:
    """Stop at a result that is not exact."""
    rng, dtype = xp.random.default_rng(0), working_dtype(case)
    matrices = [rng.integers(-3, 4, shape).astype(dtype) for shape in case.shapes]
    a, b, out = to_dtypes(case, arrange(case, matrices))
    dxgemm.gemm(a, b, out=out, inner=getattr(inners, name))
    x, y = a[..., :CHECKED, :].astype("float64"), b[..., :CHECKED].astype("float64")
    exact = FORMS[name][0](x[..., :, None, :], y.swapaxes(-1, -2)[..., None, :, :])
    if not bool((out[..., :CHECKED, :CHECKED] == exact.astype(out.dtype)).all()):
        pytest.fail(f"a wrong result for {name}, {case}", pytrace=False)


@pytest.fixture(scope="module")
def timer() -> Timer:
    return make_timer()


@pytest.mark.parametrize("name, case", [*product(FORMS, list_cases())], ids=str)
def bench_inner(benchmark: Any, timer: Timer, name: str, case: Case) -> None:
    inner, rng = getattr(inners, name), xp.random.default_rng(0)
    check(name, case)
    count = sampling.sets_of_operands(case.bytes_moved, L2_BYTES, MOST_SETS)
    calls: dict[str, list[Call]] = {}
    for _ in range(count):
        a, b, out = operands = random_operands(case, rng)
        found: dict[str, Call] = {OWN: dxgemm.plan(a, b, out=out, inner=inner)}
        if name == "l1":
            found[NEAREST] = dxgemm.plan(a, b, inner=inner, epilogue=reductions.argmin(1))
        for variant, call in (found | rivals_of(name, operands)).items():
            calls.setdefault(variant, []).append(call)
    for of_one in calls.values():  # builds
        of_one[0]()
    call_s = {variant: timer(of_one[:1]) for variant, of_one in calls.items()}
    samples_s = take_turns(calls, call_s, timer, CASE_S)
    seconds = {variant: statistics.median(samples) for variant, samples in samples_s.items()}
    explained = calls[OWN][0].explain()  # type: ignore[attr-defined]
    peak = device_facts(0).peak_tflops["float64" if case.dtype == "float64" else "float32"]
    bound_s = inner.operations * case.flops / 2 / (1e12 * peak / 2)
    benchmark.group = f"{name}, {case}"
    benchmark.extra_info.update(
        row(case, OWN, explained.choice.config, samples_s),
        implementation=explained.choice.implementation,
        inner=name,
        tpairs_per_s=1e-12 * case.flops / 2 / seconds[OWN],
        vs_bound=None if SMOKE else bound_s / seconds[OWN],
        vs_cdist=seconds[CDIST] / seconds[OWN] if CDIST in seconds else None,
        vs_compiled=seconds[COMPILED] / seconds[OWN] if COMPILED in seconds else None,
        vs_plain=seconds[OWN] / seconds[NEAREST] if NEAREST in seconds else None,
    )
    replay(benchmark, samples_s[OWN])
