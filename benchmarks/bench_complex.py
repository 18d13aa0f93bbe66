"""GPU time of complex products, against cuBLAS's own complex ones.

Each row is the automatic choice, in the dtype's own arithmetic, by three products, and emulated;
`vs_cublas` is the time of cublasCgemm or cublasZgemm over it. Operations are counted as 8 m n k.
The cuBLASDx pipeline, which is used only when named, has rows of its own.
Rows with an epilogue have it fused; cuBLAS is then followed by one kernel of `cupy.fuse`, and
`vs_plain` is the time of the same product without it over theirs. The result must be exact for
small integers. All are timed interleaved; `comparison.py` says how.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from comparison import L2_BYTES, SMOKE, Case, Timer, make_timer, row, take_turns, xp
from interleave import replay, replay_clock

import dxgemm
from dxgemm import epilogues
from dxgemm.problem.dtypes import COMPLEX_PARTS
from dxgemm.tuning import sampling

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
MOST_SETS = 4  # of operands, which are large
OWN, CUBLAS, PLAIN = "automatic", "cublas", "plain"

pytestmark = pytest.mark.benchmark(timer=replay_clock)

SQUARES = (256, 512, 1024, 2048, 4096, 8192)
OTHERS = [
    # m, n, k: odd sizes; rectangles; small k; few rows
    (257, 257, 257), (1000, 1003, 517), (2047, 2049, 2051), (4097, 4095, 4099),
    (512, 8192, 2048), (8192, 512, 2048), (256, 256, 16384), (16384, 1024, 512),
    (4096, 4096, 16), (4096, 4096, 64), (8192, 8192, 128),
    (1, 4096, 4096), (8, 4096, 4096), (64, 4096, 4096),
]  # fmt: skip
BATCHES = [(4, 100_000), (8, 50_000), (16, 20_000), (32, 5_000), (64, 2_000)]
ARRANGEMENTS = ("row_row_row", "row_col_row")


def list_cases() -> list[Case]:
    if SMOKE:
        return [
            Case("complex64", 3, 4, 5),
            Case("complex128", 4, 3, 2, "row_col_row"),
            Case("complex64", 4, 3, 5, batch=3),
        ]
    sizes = [(n, n, n) for n in SQUARES] + OTHERS
    cases = [
        Case(dtype, *size, arrangement)
        for dtype, size, arrangement in product(COMPLEX_PARTS, sizes, ARRANGEMENTS)
        if arrangement == ARRANGEMENTS[0] or size in OTHERS[-3:]
    ]
    cases += [Case(dtype, n, n, n, batch=batch) for dtype in COMPLEX_PARTS for n, batch in BATCHES]
    others = [
        Case(dtype, n, n, n, precision=precision)
        for dtype, precision, n in product(COMPLEX_PARTS, ("3m", "emulated"), SQUARES[2:])
    ]
    return cases + others


# Each epilogue, and the same on whole arrays; both are given a vector.
CHAINS = {
    "bias": (epilogues.bias, lambda values, vector: values + vector),
    "bias | squared_magnitude": (
        lambda vector: epilogues.bias(vector) | epilogues.squared_magnitude,
        lambda values, vector: xp.real(values + vector) ** 2 + xp.imag(values + vector) ** 2,
    ),
}


def list_fused_cases() -> list[tuple[Case, str]]:
    sizes = (3,) if SMOKE else SQUARES[:5]
    cases = (Case(dtype, n, n, n) for dtype, n in product(COMPLEX_PARTS, sizes))
    return [*product(cases, CHAINS)]


def operands(case: Case, rng: Any, is_small: bool) -> list[Any]:
    """a, b and out, of small integers or of normal numbers."""
    arrays = []
    for shape, order in zip(case.shapes, case.arrangement.split("_"), strict=True):
        if order == "col":
            shape = (*shape[:-2], shape[-1], shape[-2])
        parts = [
            rng.integers(-2, 3, shape) if is_small else rng.standard_normal(shape) for _ in range(2)
        ]
        array = (parts[0] + 1j * parts[1]).astype(case.dtype)
        arrays.append(array.swapaxes(-1, -2) if order == "col" else array)
    return arrays


def plans_of(case: Case, arrays: list[Any]) -> dict[str, Any]:
    a, b, out = arrays
    plans = {OWN: dxgemm.plan(a, b, out=out, precision=case.precision)}
    if not SMOKE:
        plans[CUBLAS] = dxgemm.plan(a, b, out=out, implementation="cublas")
    return plans


@pytest.fixture(scope="module")
def timer() -> Timer:
    return make_timer()


@pytest.mark.parametrize("case", list_cases(), ids=str)
def bench_complex(benchmark: Any, timer: Timer, case: Case) -> None:
    rng = xp.random.default_rng(0)
    small = operands(case, rng, is_small=True)
    exact = xp.matmul(*(array.astype("complex128") for array in small[:2])).astype(case.dtype)
    own = plans_of(case, small)[OWN]
    if not bool((own() == exact).all()):
        pytest.fail(f"a wrong result for {case}", pytrace=False)
    del small, exact
    measure(benchmark, timer, case, rng, own, partial(plans_of, case))


def measure(
    benchmark: Any,
    timer: Timer,
    case: Case,
    rng: Any,
    own: dxgemm.Plan,
    calls_of: Callable[[list[Any]], dict[str, Any]],
    epilogue: str = "none",
) -> None:
    """Time the calls that `calls_of` makes of operands, interleaved, and report those of OWN."""
    count = sampling.sets_of_operands(case.bytes_moved, L2_BYTES, MOST_SETS)
    sets = [calls_of(operands(case, rng, is_small=False)) for _ in range(count)]
    calls = {name: [each[name] for each in sets] for name in sets[0]}
    call_s = {name: timer(of_one[:1]) for name, of_one in calls.items()}
    samples_s = take_turns(calls, call_s, timer, CASE_S)
    explained = own.explain()
    benchmark.group = str(case) if epilogue == "none" else f"{case}-{epilogue}"
    measured = row(case, OWN, explained.choice.config, samples_s)
    measured |= {"implementation": explained.choice.implementation, "epilogue": epilogue}
    if PLAIN in samples_s:
        medians = {name: statistics.median(samples_s[name]) for name in (OWN, PLAIN)}
        measured["vs_plain"] = medians[PLAIN] / medians[OWN]
    benchmark.extra_info.update(measured)
    replay(benchmark, samples_s[OWN])


def fused_calls(case: Case, name: str, arrays: list[Any], vector: Any) -> dict[str, Any]:
    bind, on_arrays = CHAINS[name]
    a, b, out = arrays
    calls = {OWN: dxgemm.plan(a, b, epilogue=bind(vector)), PLAIN: dxgemm.plan(a, b, out=out)}
    if not SMOKE:
        sums = dxgemm.plan(a, b, out=out, implementation=CUBLAS)
        fused = xp.fuse(kernel_name="chain")(on_arrays)
        calls[CUBLAS] = lambda: fused(sums(), vector)
    return calls


@pytest.mark.parametrize(("case", "name"), list_fused_cases(), ids=str)
def bench_complex_epilogue(benchmark: Any, timer: Timer, case: Case, name: str) -> None:
    rng = xp.random.default_rng(0)
    small = operands(case, rng, is_small=True)
    wide = [array.astype("complex128") for array in small[:2]]
    vector = small[0][0]
    own = fused_calls(case, name, small, vector)[OWN]
    if not bool((own() == CHAINS[name][1](xp.matmul(*wide), vector)).all()):
        pytest.fail(f"a wrong result for {case} with {name}", pytrace=False)
    del small, wide

    def calls_of(arrays: list[Any]) -> dict[str, Any]:
        return fused_calls(case, name, arrays, arrays[0][0].copy())

    measure(benchmark, timer, case, rng, own, calls_of, name)
