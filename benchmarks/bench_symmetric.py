"""GPU time of symmetric and of masked results, against `gemm` of the same operands, and cuBLAS.

`vs_gemm` is the time of `gemm`, which multiplies a by a transposed copy of it and so knows of no
symmetry, over that of `gemm_symmetric`, which writes both triangles. `vs_rival` is that of the
quicker of cuBLAS's gemm, which writes both, and its syrk for float32 and float64, which writes one.
For emulated products, both are those of the same dtype.
The result must be exact and symmetric bit for bit. All are timed interleaved; `comparison.py` says
how.

A masked product computes the live blocks alone, `live` of all. Its `vs_gemm` is over the plain
product; it must have that one's values where blocks are live, and leave the others alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from comparison import (
    L2_BYTES,
    SMOKE,
    Case,
    Timer,
    make_timer,
    random_operands,
    row,
    take_turns,
    to_dtype,
    working_dtype,
    xp,
)
from interleave import replay, replay_clock

import dxgemm
from dxgemm.tuning import sampling

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
SIZES = (256, 512, 1000, 1024, 2048, 4095, 4096, 8192)
DEPTHS = (64, 512, None, 65536)  # None: as large as the result
MOST_FLOPS = 2**42
MOST_SETS = 4  # of operands, which are large
KINDS = (
    ("float32", None),
    ("float64", None),
    ("float16", None),
    ("float32", "tf32"),
    ("float32", "emulated"),
    ("float64", "emulated"),
)
MASKED_SIZE = 3 if SMOKE else 4096
MASKED_DEPTHS = (3,) if SMOKE else (512, 4096)
MASKS: tuple[str, ...] = ("all",)
if not SMOKE:
    MASKS += ("half at random", "eighth at random", "lower triangle", "band")
OWN, GEMM, CUBLAS, SYRK = "automatic", "gemm", "cublas", "cublas syrk"

pytestmark = pytest.mark.benchmark(timer=replay_clock)

Call = Callable[[], Any]


def list_cases() -> list[Case]:
    """Products a @ a.T: row-major by column-major."""
    if SMOKE:
        return [Case("float32", 6, 6, 3, "row_col_row"), Case("float16", 5, 5, 4, "row_col_row")]
    return [
        Case(dtype, n, n, k or n, "row_col_row", precision=precision)
        for (dtype, precision), n, k in product(KINDS, SIZES, DEPTHS)
        if 2 * n * n * (k or n) <= MOST_FLOPS and k != n
    ]


def calls_of(case: Case, a: Any) -> dict[str, Call]:
    """The variants on one matrix, by name; each call returns what it wrote."""
    twin = a.copy()  # gemm sees that b is a.T by its address
    out = xp.empty((case.n, case.n), a.dtype)
    precision = case.precision

    def symmetric() -> Any:
        return dxgemm.gemm_symmetric(a, out=out, precision=precision)

    calls = {OWN: symmetric, GEMM: dxgemm.plan(a, twin.T, out=out, precision=precision)}
    if SMOKE:
        return calls
    calls[CUBLAS] = dxgemm.plan(a, twin.T, out=out, precision=precision, implementation="cublas")
    if precision != "tf32" and case.dtype in ("float32", "float64"):
        from cupy import cublas

        if hasattr(cublas, "syrk"):
            calls[SYRK] = lambda: cublas.syrk("N", a, out=out, lower=True)
    return calls


def check(case: Case, calls: Sequence[Call], a: Any) -> None:
    """Stop at a result that is not exact, or not symmetric; a holds small integers."""
    exact = xp.matmul(a.astype("float64"), a.T.astype("float64"))
    found = calls[0]().astype("float64")
    if not bool((found == to_dtype(exact, case.out_dtype).astype("float64")).all()):
        pytest.fail(f"a wrong result for {case}", pytrace=False)


def check_bits(case: Case, call: Call) -> None:
    found = call()
    bits = found.view(f"uint{8 * found.itemsize}")
    if not bool((bits == bits.T).all()):
        pytest.fail(f"an asymmetric result for {case}", pytrace=False)


@pytest.fixture(scope="module")
def timer() -> Timer:
    return make_timer()


@pytest.mark.parametrize("case", list_cases(), ids=str)
def bench_symmetric(benchmark: Any, timer: Timer, case: Case) -> None:
    rng = xp.random.default_rng(0)
    small = rng.integers(-2, 3, (case.n, case.k)).astype(working_dtype(case)).astype(case.dtype)
    check(case, list(calls_of(case, small).values()), small)
    count = sampling.sets_of_operands(case.bytes_moved, L2_BYTES, MOST_SETS)
    matrices = [random_operands(case, rng)[0] for _ in range(count)]
    variants = [calls_of(case, matrix) for matrix in matrices]
    check_bits(case, variants[0][OWN])
    calls = {name: [each[name] for each in variants] for name in variants[0]}
    for of_one in calls.values():  # builds
        of_one[0]()
    call_s = {name: timer(of_one[:1]) for name, of_one in calls.items()}
    samples_s = take_turns(calls, call_s, timer, CASE_S)
    seconds = {name: statistics.median(samples) for name, samples in samples_s.items()}
    rival = min((SYRK, CUBLAS), key=lambda name: seconds.get(name, float("inf")))
    explained = dxgemm.explain_symmetric(matrices[0], precision=case.precision)
    benchmark.group = str(case)
    benchmark.extra_info.update(
        row(case, OWN, explained.choice.config, samples_s),
        implementation=explained.choice.implementation,
        symmetry=explained.work.symmetry,
        vs_gemm=seconds[GEMM] / seconds[OWN],
        rival=rival if rival in seconds else None,
        vs_rival=seconds[rival] / seconds[OWN] if rival in seconds else None,
    )
    replay(benchmark, samples_s[OWN])


def mask_named(name: str, blocks: int) -> Any:
    """A mask of so many blocks along each side, on the device."""
    row, col = np.ogrid[:blocks, :blocks]
    at_random = np.random.default_rng(0).random((blocks, blocks))
    masks = {
        "all": at_random < 1,
        "half at random": at_random < 0.5,
        "eighth at random": at_random < 0.125,
        "lower triangle": row >= col,
        "band": abs(row - col) <= 2,
    }
    return xp.asarray(masks[name])


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("k", MASKED_DEPTHS)
@pytest.mark.parametrize("dtype, precision", [k for k in KINDS if k[1] != "emulated"])
def bench_masked(
    benchmark: Any, timer: Timer, dtype: str, precision: str | None, k: int, name: str
) -> None:
    n, block = MASKED_SIZE, 128
    case, rng = Case(dtype, n, n, k, "row_col_row", precision=precision), xp.random.default_rng(0)
    mask = mask_named(name, -(-n // block))
    calls: dict[str, list[Call]] = {OWN: [], GEMM: []}
    for _ in range(sampling.sets_of_operands(case.bytes_moved, L2_BYTES, MOST_SETS)):
        a, b, *_ = random_operands(case, rng)
        outs = [xp.zeros((n, n), dtype) for _ in calls]
        calls[OWN].append(dxgemm.plan(a, b, out=outs[0], precision=precision, mask=mask))
        calls[GEMM].append(dxgemm.plan(a, b, out=outs[1], precision=precision))
    found, whole = (calls[variant][-1]() for variant in calls)
    is_live = xp.repeat(xp.repeat(mask, block, 0), block, 1)[:n, :n]
    expected = xp.where(is_live, whole.astype("float64"), 0.0)
    error = xp.abs(found.astype("float64") - expected).max() / xp.abs(expected).max()
    if float(error) > 1e-2:
        pytest.fail(f"a wrong result for {case}, {name}", pytrace=False)
    call_s = {variant: timer(plans[:1]) for variant, plans in calls.items()}
    samples_s = take_turns(calls, call_s, timer, CASE_S)
    explained = calls[OWN][0].explain()  # type: ignore[attr-defined]
    benchmark.group = f"{case}, {name}"
    benchmark.extra_info.update(
        row(case, OWN, explained.choice.config, samples_s),
        implementation=explained.choice.implementation,
        mask=name,
        live=float(mask.mean()),
        vs_gemm=statistics.median(samples_s[GEMM]) / statistics.median(samples_s[OWN]),
    )
    replay(benchmark, samples_s[OWN])
