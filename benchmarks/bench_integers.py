"""GPU time of products of integers and bool, against CuPy, JAX and, of int8, torch.

Operands hold all that their dtype does. Each result must be that of CuPy in 64 bits, cut to its
dtype; a wrong one is not timed. CuPy and JAX give results of the operands' dtype, and dxgemm its
default. All are timed interleaved; `comparison.py` says how.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from comparison import (
    SMOKE,
    Case,
    Timer,
    make_timer,
    row,
    sets_of_operands,
    take_turns,
    xp,
)
from interleave import replay, replay_clock

import dxgemm
from dxgemm.problem.dtypes import factor_dtypes

CASE_S = 0.2  # of timing a case, unless fewest rounds take longer
MOST_SETS = 4  # of operands, which are large
OWN, CUPY, JAX, TORCH = "automatic", "cupy", "jax", "torch._int_mm"
DTYPES = ("int8", "uint8", "uint8 int8", "int16", "int32", "uint32", "int64", "uint64", "bool")
SHAPES = (
    (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 8192, 8192), (999, 1001, 1003), (1, 4096, 4096), (16, 4096, 4096), (512, 512, 2**17),
)  # fmt: skip
BATCHES = ((4, 512), (64, 64))

pytestmark = pytest.mark.benchmark(timer=replay_clock)

Call = Callable[[], Any]


def list_cases() -> list[Case]:
    if SMOKE:
        return [Case("uint8 int8", 6, 5, 3), Case("int64", 5, 6, 4)]
    cases = [Case(dtype, *shape) for dtype in DTYPES for shape in SHAPES]
    return cases + [Case(d, n, n, n, batch=batch) for d in DTYPES for batch, n in BATCHES]


def operands_of(case: Case, rng: Any) -> tuple[Any, Any]:
    """Random a and b of all that their dtypes hold; of bool, few that are true."""
    found = []
    for shape, dtype in zip(case.shapes, factor_dtypes(case.dtype)):
        if dtype == "bool":
            found.append(rng.integers(0, 2**10, shape) == 0)
            continue
        low = rng.integers(0, 2**32, shape, dtype="uint64")
        found.append((rng.integers(0, 2**32, shape, dtype="uint64") << 32 | low).astype(dtype))
    return found[0], found[1]


def calls_of(case: Case, a: Any, b: Any) -> dict[str, Call]:
    """The variants on one pair of operands, by name; each call returns its result."""
    calls: dict[str, Call] = {OWN: dxgemm.plan(a, b)}
    if SMOKE or case.dtype == "uint8 int8":
        return calls
    calls[CUPY] = lambda: xp.matmul(a, b)
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        left, right = map(jax.dlpack.from_dlpack, (a, b))
        multiply = jax.jit(jax.numpy.matmul)
        calls[JAX] = lambda: multiply(left, right)
    except (ImportError, TypeError, RuntimeError):
        pass  # it is not installed, or has no such arrays
    if case.dtype == "int8" and case.m > 16 and case.batch == 1 and case.n % 8 == case.k % 8 == 0:
        import torch

        first, second = torch.from_dlpack(a), torch.from_dlpack(b)
        calls[TORCH] = lambda: torch._int_mm(first, second)
    return calls


@pytest.fixture(scope="module")
def timer() -> Timer:
    return make_timer()


@pytest.mark.parametrize("case", list_cases(), ids=str)
def bench_integers(benchmark: Any, timer: Timer, case: Case) -> None:
    rng = xp.random.default_rng(0)
    count = min(sets_of_operands(case, MOST_SETS), MOST_SETS)
    sets = [operands_of(case, rng) for _ in range(count)]
    variants = [calls_of(case, *operands) for operands in sets]
    exact = xp.matmul(*(operand.astype("uint64") for operand in sets[0]))
    expected = exact != 0 if case.dtype == "bool" else exact.astype(case.out_dtype)
    if not bool((variants[0][OWN]() == expected).all()):
        pytest.fail(f"a wrong result for {case}", pytrace=False)
    calls = {name: [each[name] for each in variants] for name in variants[0]}
    for of_one in calls.values():  # builds
        of_one[0]()
    call_s = {name: timer(of_one[:1]) for name, of_one in calls.items()}
    samples_s = take_turns(calls, call_s, timer, CASE_S)
    seconds = {name: statistics.median(samples) for name, samples in samples_s.items()}
    explained = variants[0][OWN].explain()  # type: ignore[attr-defined]
    rivals = [name for name in seconds if name != OWN]
    rival = min(rivals, key=lambda name: seconds[name], default=None)
    benchmark.group = str(case)
    benchmark.extra_info.update(
        row(case, OWN, explained.choice.config, samples_s),
        implementation=explained.choice.implementation,
        form=explained.work.computed_as,
        tops=1e-12 * case.flops / seconds[OWN],
        vs_cupy=seconds[CUPY] / seconds[OWN] if CUPY in seconds else None,
        vs_jax=seconds[JAX] / seconds[OWN] if JAX in seconds else None,
        rival=rival,
        vs_rival=seconds[rival] / seconds[OWN] if rival else None,
    )
    replay(benchmark, samples_s[OWN])
