"""GPU time of products by an inner function, against the instructions they need, and torch.

`vs_bound` is the time of a product's instructions alone, two per pair of elements, over that of the
product. `vs_cdist` and `vs_compiled` are the times of `torch.cdist` and of the compiled broadcast
form over it. That is compiled for any shape of a dtype, anew for offsets of 64 bits and for another
order of b, and left out if a kernel takes longer than `COMPILE_S`. With the inner function `l1` the
nearest column is also found in the same kernel; `vs_plain` is the time of the product over that.
Results must be exact on small integers. Kernels are built before, by several processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from cases import SMOKE, Call, Case, Operands, same, to_dtype, widened, xp
from measuring import OWN, Found, Row, Variants, bench, fields, measure, ratio
from oracle import inputs
from rivals import as_tensor, torch

import dxgemm
from dxgemm import errors, inners, reductions
from dxgemm.runtime.device import device_facts

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
LONGEST_S = 0.25  # of a call: what takes longer is not timed
COMPILE_S = 8  # of torch.compile, for one kernel
CHECKED = 64  # rows and columns of a result
# 10**12 pairs a second at which the two instructions of a function were measured to issue in
# float32, on the 132 SMs of an H100; in float64 half of it.
ISSUED = {"l1": 15.2, "chebyshev": 14.2, "squared_euclidean": 15.2, "min_plus": 14.0}
MEASURED_SMS = 132
NEAREST, CDIST, COMPILED = "argmin", "torch.cdist", "torch.compile"
SIZES = [
    (1024, 1024, 1024), (4096, 4096, 4096), (4096, 4096, 128), (20000, 2000, 64), (1000, 1003, 517),
]  # fmt: skip

# What broadcast points give in a library; and the p of torch.cdist. Each is a function of its own:
# of one, torch.compile makes eight kernels, and then runs it as it is, with all pairs in memory.
FORMS: dict[str, tuple[Callable[[Any, Any, Any], Any], float | None]] = {
    "l1": (lambda library, x, y: library.sum(abs(x - y), -1), 1.0),
    "chebyshev": (lambda library, x, y: library.amax(abs(x - y), -1), float("inf")),
    "squared_euclidean": (lambda library, x, y: library.sum((x - y) ** 2, -1), None),
    "min_plus": (lambda library, x, y: library.amin(x + y, -1), None),
}
BATCH = ("row_row_row", 4096)
FEW = ("l1", "min_plus")  # functions that are measured beyond float32 and `SIZES`


@dataclass(frozen=True)
class InnerCase(Case):
    """Points in the rows of a and in the columns of b, and an inner function of `FORMS`."""

    inner: str = ""

    def __str__(self) -> str:
        return f"{self.inner}-{super().__str__()}"

    @property
    def exact_fills(self) -> tuple[Any, Any]:
        return inputs.integers, inputs.integers

    def expected(self, x: Operands) -> Any:
        """The first rows and columns of the result."""
        few = x.a[..., :CHECKED, :], x.b[..., :CHECKED].swapaxes(-1, -2)
        form, points = FORMS[self.inner][0], broadcast(*map(widened, few))
        return widened(to_dtype(form(xp, *points), self.out_dtype))

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        if name == NEAREST:
            is_right = same(call(), x.out.argmin(-1))  # of what the plain product, checked, left
        else:
            self.spoil(x.out)
            is_right = same(widened(call()[..., :CHECKED, :CHECKED]), expected)
        if not is_right:
            self.fail(name)
        return {}


def broadcast(x: Any, y: Any) -> tuple[Any, Any]:
    """Points (..., m, k) and (..., n, k), each against all of the other."""
    return x[..., :, None, :], y[..., None, :, :]


def points(x: Operands) -> tuple[Any, Any]:
    return as_tensor(x.a), as_tensor(x.b).swapaxes(-1, -2)


def options_of(case: InnerCase, x: Operands, name: str) -> dict[str, Any]:
    """The options of the product, or of the search for the nearest column."""
    options = {"out": x.out} if name == OWN else {"epilogue": reductions.argmin(1)}
    return {"inner": getattr(inners, case.inner), **options}


def own(case: InnerCase, x: Operands) -> Call:
    return dxgemm.plan(x.a, x.b, **options_of(case, x, OWN))


def nearest(case: InnerCase, x: Operands) -> Call:
    return dxgemm.plan(x.a, x.b, **options_of(case, x, NEAREST))


def cdist(case: InnerCase, x: Operands) -> Call:
    a, b = points(x)
    return lambda: torch().cdist(a, b, p=FORMS[case.inner][1])


def compiled(case: InnerCase, x: Operands) -> Call:
    a, b = broadcast(*points(x))
    call, fault = compiled_form(kernel_of(case))
    if fault:
        raise errors.UnsupportedProblemError(fault)
    return lambda: call(torch(), a, b)


def kernel_of(case: InnerCase) -> InnerCase:
    """Another case for which torch.compile makes the same kernel, with offsets of 32 or 64 bits."""
    size = (4096, 4095, 257) if case.m * case.n * case.k >= 2**31 else (300, 200, 37)
    return InnerCase(case.dtype, *size, case.arrangement, inner=case.inner)


@cache
def compiled_form(case: InnerCase) -> tuple[Any, str]:
    """The broadcast form, compiled for a case, and the reason why it cannot be timed, or ""."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"it takes longer than {COMPILE_S} s")

    # With the whole graph, what is not compiled is an error.
    call = torch().compile(FORMS[case.inner][0], dynamic=True, fullgraph=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(COMPILE_S)
    try:
        call(torch(), *broadcast(*points(case.operands(xp.random.default_rng(0)))))
        torch().cuda.synchronize()
    except Exception as error:  # of whatever type: the compiler wraps the interruption in its own
        return None, f"torch.compile: {str(error).splitlines()[0]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return call, ""


def variants_of(case: InnerCase) -> Variants:
    variants: dict[str, Any] = {OWN: own}
    if case.inner == "l1":
        variants[NEAREST] = nearest
    if not SMOKE:
        if case.batch == 1:
            variants[COMPILED] = compiled
        if FORMS[case.inner][1] is not None and case.dtype in ("float32", "float64"):
            variants[CDIST] = cdist
    return variants


def list_cases() -> list[InnerCase]:
    if SMOKE:
        kind = "float32", 5, 6, 3, "row_col_row"
        return [InnerCase(*kind, inner=inner) for inner in FEW]
    kinds = [("float32", *size, "row_col_row") for size in SIZES]
    few = [("float64", *size, "row_col_row") for size in SIZES]
    few += [("float32", 4096, 4096, 4096), ("float32", 64, 64, 65536, "row_col_row")]
    few += [("float32", 500, 500, 500, "row_col_row", 64), ("float32", 32, 32, 32, *BATCH)]
    few += [("float16", *SIZES[2], "row_col_row"), ("int32", *SIZES[1], "row_col_row")]
    cases = [InnerCase(*kind, inner=inner) for inner, kind in product(FORMS, kinds)]
    return cases + [InnerCase(*kind, inner=inner) for inner, kind in product(FEW, few)]


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    case, seconds = row.case, found[name].seconds
    pairs = case.flops / 2
    rate = ISSUED[case.inner] * device_facts(0).sm_count / MEASURED_SMS
    bound_s = 1e-12 * pairs / (rate / 2 if case.dtype == "float64" else rate)
    is_timed = NEAREST in found and found[NEAREST].samples_s
    return fields(
        row,
        name,
        found,
        tpairs_per_s=1e-12 * pairs / seconds,
        vs_bound=None if SMOKE else bound_s / seconds,
        vs_cdist=ratio(found, CDIST, name),
        vs_compiled=ratio(found, COMPILED, name),
        vs_plain=ratio(found, OWN, NEAREST) if is_timed else None,
    )


def build(case: InnerCase, name: str) -> None:
    """Build the kernel of a variant of a case, by calling it once."""
    with suppress(Exception):  # of whatever type: the row of the case tells it
        variants_of(case)[name](case, case.operands(xp.random.default_rng(0)))()


def tasks() -> list[tuple[InnerCase, str]]:
    """A case and a variant for each kernel, those first that take longest to build."""
    found: dict[Any, tuple[InnerCase, str]] = {}
    for case in list_cases():
        x = case.operands(xp.random.default_rng(0))
        for name in variants_of(case):
            if name == COMPILED:
                found.setdefault(kernel_of(case), (case, name))
            elif name != CDIST:
                choice = dxgemm.explain(x.a, x.b, **options_of(case, x, name)).choice
                kind = case.inner, case.dtype, case.arrangement, case.batch, name, str(choice)
                found.setdefault(kind, (case, name))
    return sorted(found.values(), key=lambda task: task[1] == OWN)


@cache
def build_all() -> None:
    """Build the kernels of the suite in parallel processes, which share caches."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # of each process
    jobs = min(8, os.cpu_count() or 1)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(build, *zip(*tasks(), strict=True)))


def measure_built(row: Row) -> Found:
    if not SMOKE:
        build_all()
    return measure(row.case, row.variants, budget_s=CASE_S, longest_s=LONGEST_S)


bench_inner = bench(
    [Row(case, variants_of(case), [OWN]) for case in list_cases()], describe, measure_built
)
