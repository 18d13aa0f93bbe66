"""GPU time of products by an inner function, against the instructions they need, and torch.

`vs_bound` is the time of a product's instructions alone, two per pair of elements, over that of the
product. `vs_cdist` and `vs_compiled` are the times of `torch.cdist` and of the compiled broadcast
form over it. That is compiled once per function, for any float32 shape, and left out if that takes
longer than `COMPILE_S`. With the inner function `l1` the nearest column is also found in the same
kernel; `vs_plain` is the time of the product over that. Results must be exact on small integers.
Kernels are built before, by several processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from cases import SMOKE, Call, Case, Operands, own, same, to_dtype, widened, xp
from measuring import OWN, Found, Row, Variants, bench, fields, measure, ratio
from oracle import inputs
from rivals import as_tensor, torch

import dxgemm
from dxgemm import errors, inners, reductions
from dxgemm.runtime.device import device_facts

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
LONGEST_S = 0.25  # of a call: what takes longer is not timed
COMPILE_S = 8  # of torch.compile, for one function
CHECKED = 64  # rows and columns of a result
# 10**12 pairs a second at which the two instructions of a function were measured to issue in
# float32, on the 132 SMs of an H100; in float64 half of it.
ISSUED = {"l1": 15.2, "chebyshev": 14.2, "squared_euclidean": 15.2, "min_plus": 14.0}
MEASURED_SMS = 132
NEAREST, CDIST, COMPILED = "argmin", "torch.cdist", "torch.compile"
SIZES = [
    (1024, 1024, 1024), (4096, 4096, 4096), (4096, 4096, 128), (20000, 2000, 64), (1000, 1003, 517),
]  # fmt: skip

# Of broadcast points: the reduction over k, and what it reduces; and the p of torch.cdist.
FORMS: dict[str, tuple[str, Callable[[Any, Any], Any], float | None]] = {
    "l1": ("sum", lambda x, y: abs(x - y), 1.0),
    "chebyshev": ("amax", lambda x, y: abs(x - y), float("inf")),
    "squared_euclidean": ("sum", lambda x, y: (x - y) ** 2, None),
    "min_plus": ("amin", lambda x, y: x + y, None),
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
        return widened(to_dtype(form(self.inner, xp)(*map(widened, few)), self.out_dtype))

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        if name == NEAREST:
            is_right = same(call(), x.out.argmin(-1))  # of what the plain product, checked, left
        else:
            self.spoil(x.out)
            is_right = same(widened(call()[..., :CHECKED, :CHECKED]), expected)
        if not is_right:
            self.fail(name)
        return {}


def form(inner: str, module: Any) -> Callable[[Any, Any], Any]:
    """The function by broadcasting, of points (..., m, k) and (..., n, k) in a library."""
    reduction, pairs, _ = FORMS[inner]
    reduce = getattr(module, reduction)
    return lambda x, y: reduce(pairs(x[..., :, None, :], y[..., None, :, :]), -1)


def points(x: Operands) -> tuple[Any, Any]:
    return as_tensor(x.a), as_tensor(x.b).swapaxes(-1, -2)


def nearest(case: InnerCase, x: Operands) -> Call:
    inner = getattr(inners, case.inner)
    return dxgemm.plan(x.a, x.b, inner=inner, epilogue=reductions.argmin(1))


def cdist(case: InnerCase, x: Operands) -> Call:
    a, b = points(x)
    return lambda: torch().cdist(a, b, p=FORMS[case.inner][2])


def compiled(case: InnerCase, x: Operands) -> Call:
    a, b = points(x)
    call, fault = compiled_form(case.inner)
    if fault:
        raise errors.UnsupportedProblemError(fault)
    return lambda: call(a, b)


@cache
def compiled_form(inner: str) -> tuple[Any, str]:
    """The compiled broadcast form, and the reason why it cannot be timed, or ""."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"it takes longer than {COMPILE_S} s")

    call = torch().compile(form(inner, torch()), dynamic=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(COMPILE_S)
    try:
        for size in (37, 64):
            call(*(torch().zeros((rows, size), device="cuda") for rows in (300, 200)))
        torch().cuda.synchronize()
    except Exception as error:  # of whatever type: the compiler wraps the interruption in its own
        return None, f"torch.compile: {str(error).splitlines()[0]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return call, ""


def variants_of(case: InnerCase) -> Variants:
    variants: dict[str, Any] = {OWN: own(inner=getattr(inners, case.inner))}
    if case.inner == "l1":
        variants[NEAREST] = nearest
    if not SMOKE:
        if case.dtype == "float32" and case.batch == 1:
            variants[COMPILED] = compiled
        if FORMS[case.inner][2] is not None and case.dtype in ("float32", "float64"):
            variants[CDIST] = cdist
    return variants


def list_cases() -> list[InnerCase]:
    if SMOKE:
        kinds = [("float32", 5, 6, 3, "row_col_row"), ("float16", 4, 3, 5, "row_col_row")]
        return [InnerCase(*kind, inner=inner) for inner, kind in product(FORMS, kinds)]
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


def build_share(share: int, shares: int) -> None:
    """Build the kernels of every so manieth case, by calling them once."""
    for case in list_cases()[share::shares]:
        x = case.operands(xp.random.default_rng(0))
        for name, make in variants_of(case).items():
            if name in (OWN, NEAREST):
                make(case, x)()


@cache
def build_all() -> None:
    """Build the kernels of the suite in parallel processes, which share a cache."""
    jobs = min(16, os.cpu_count() or 1)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(build_share, range(jobs), [jobs] * jobs))


def measure_built(row: Row) -> Found:
    if not SMOKE:
        build_all()
    return measure(row.case, row.variants, budget_s=CASE_S, longest_s=LONGEST_S)


bench_inner = bench(
    [Row(case, variants_of(case), [OWN]) for case in list_cases()], describe, measure_built
)
