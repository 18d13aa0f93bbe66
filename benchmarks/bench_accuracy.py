"""Errors against the exact product: every kind of arithmetic, every implementation.

m = n = 256, k up to 16384, on normal values, whose sums cancel, and on values between 0 and 1,
whose sums only grow, so that what is cut off instead of rounded adds up. The reference is the
product in float64, for float64 in more digits (tests/oracle/reference.py). Errors are given twice:
in units of eps |A| |B|, with the eps of the type of sums; and as `ratio`, over what the acceptance
rule of the tests allows (tests/oracle/compare.py), where above 1 is wrong. Of time there is only
one call's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cases import SMOKE, Call, Case, Operands, own
from measuring import OWN, Found, Row, bench, first_times
from oracle.compare import compare
from oracle.inputs import random
from oracle.kinds import FLOAT_KINDS, KINDS, limits, numpy_dtype
from oracle.libraries import LIBRARIES
from oracle.reference import Reference, product

import dxgemm
from dxgemm.errors import UnsupportedProblemError
from dxgemm.problem.define import contiguous_problem

LINES = 6 if SMOKE else 256  # m and n
DEPTHS = (8,) if SMOKE else (64, 256, 1024, 4096, 16384)
home = LIBRARIES["numpy" if SMOKE else "cupy"]


@dataclass(frozen=True)
class AccuracyCase(Case):
    """One product; `kind` is a name from `tests/oracle/kinds.py`, `data` "normal" or "uniform"."""

    kind: str = ""
    data: str = ""

    def __str__(self) -> str:
        return f"{self.kind}-{self.data}-{self.k}"

    def tiny(self) -> Any:
        return self  # is tiny already

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """a and b on the host, and on the device, with b by the order of its storage."""
        rng = np.random.default_rng(0)
        fill = random if self.data == "normal" else lambda rng, shape, _: rng.random(shape)
        a, b = (
            fill(rng, shape, self.dtype).astype(numpy_dtype(self.dtype))
            for shape in ((LINES, self.k), (self.k, LINES))
        )
        b_by_columns = home.send(np.ascontiguousarray(b.T)).T
        return Operands(host=(a, b), a=home.send(a), b=home.send(b), b_by_columns=b_by_columns)

    def expected(self, x: Operands) -> Reference:
        return product(*x.host, self.precision)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        call()
        result = home.fetch(x.out)
        unit = limits(KINDS[self.kind].scalar_dtype).eps * expected.magnitude
        wide = result.astype(expected.value.dtype)
        error = (np.abs(wide - expected.value) / unit).astype(float)
        return {
            "arrangement": x.arrangement,
            "max_error": float(error.max()),
            "rms_error": float(np.sqrt(np.square(error).mean())),
            "ratio": compare(result, expected).ratio,
        }


def in_either_layout(implementation: str | None) -> Callable[[Case, Operands], dxgemm.Plan]:
    """Variant: with b as an implementation takes it."""

    def make(case: Case, x: Operands) -> dxgemm.Plan:
        x.out = home.send(np.full((LINES, LINES), np.nan, numpy_dtype(case.out_dtype)))
        try:
            x.arrangement = "row_row_row"
            return own(implementation)(case, Operands(a=x.a, b=x.b, out=x.out))
        except UnsupportedProblemError:
            x.arrangement = "row_col_row"
            return own(implementation)(case, Operands(a=x.a, b=x.b_by_columns, out=x.out))

    return make


def variants(case: AccuracyCase) -> dict[str, Any]:
    """Implementations that compute a kind in its own arithmetic, the baseline last.

    float32 kernels serve where reduced precision is permitted; they are shown as float32 only.
    """
    wanted = KINDS[case.kind]
    options = {"out_dtype": wanted.out_dtype, "precision": wanted.precision}
    rows = contiguous_problem(wanted.dtype, LINES, LINES, LINES, **options)
    names: list[str | None] = [None]
    for implementation in dxgemm.implementations():
        problems = (rows, replace(rows, b=rows.b.transposed()))
        computes = any(implementation.supports(problem) is None for problem in problems)
        plain = replace(rows, precision=None)
        is_plain = wanted.precision is not None and implementation.supports(plain) is None
        has_configs = bool(implementation.configs(wanted.dtype))  # some have none on the simulator
        if not implementation.is_own or (has_configs and computes and not is_plain):
            names.append(implementation.name)
    return {name or OWN: in_either_layout(name) for name in names}


def measure_errors(row: Row) -> Found:
    found = first_times(row.case, row.timed)
    for one in found.values():
        one.samples_s = [one.call_s]
    return found


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    choice = found[name].explanation.choice
    answered = {"answered_by": choice.implementation, "slices": choice.slices}
    return {"implementation": name, "vs_cublas": None, **answered}


CASES = [
    AccuracyCase(
        of.dtype, LINES, LINES, k, precision=of.precision, kind=kind, data=data,
        result_dtype=of.out_dtype if of.out_dtype != of.dtype else None,
    )
    for kind in (("float32",) if SMOKE else FLOAT_KINDS)
    for of in [KINDS[kind]]
    for data in ("normal", "uniform")
    for k in DEPTHS
]  # fmt: skip
bench_accuracy = bench(CASES, variants, more=describe, measuring=measure_errors)
