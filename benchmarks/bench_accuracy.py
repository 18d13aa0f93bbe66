"""Errors against the exact product: every kind of arithmetic, every implementation.

m = n = 256, k up to 16384, on normal values, whose sums cancel, and on values between 0 and 1,
whose sums only grow, so that what is cut off instead of rounded adds up. The reference is the
product in float64, for float64 in more digits (tests/oracle/reference.py). Errors are given twice:
in units of eps |A| |B|, with the eps of the type of sums; and as `ratio`, over what the acceptance
rule of the tests allows (tests/oracle/compare.py), where above 1 is wrong. Of time there is only
one call's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cases import SMOKE, Call, Case, Operands, own
from measuring import OWN, Found, Row, bench, fields, first_times
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
ACCURACY_KINDS = ("float32",) if SMOKE else FLOAT_KINDS


def uniform(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.random(shape).astype(numpy_dtype(dtype))


DATA: dict[str, Callable[..., np.ndarray]] = {"normal": random, "uniform": uniform}

home = LIBRARIES["numpy" if SMOKE else "cupy"]


@dataclass(frozen=True)
class AccuracyCase(Case):
    """One product; `kind` is a name from `tests/oracle/kinds.py`."""

    kind: str = ""
    data: str = ""

    def __str__(self) -> str:
        return f"{self.kind}-{self.data}-{self.k}"

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """a and b on the host, and on the device, with b by the order of its storage."""
        shapes, own_rng = ((LINES, self.k), (self.k, LINES)), np.random.default_rng(0)
        a, b = (DATA[self.data](own_rng, shape, self.dtype) for shape in shapes)
        x = Operands(host=(a, b), a=home.send(a), b=home.send(b))
        x.b_by_columns = home.send(np.ascontiguousarray(b.T)).T
        return x

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


def names_of(kind: str) -> list[str]:
    """Implementations that compute a kind in its own arithmetic, the baseline last.

    float32 kernels serve where reduced precision is permitted; they are shown as float32 only.
    """
    wanted = KINDS[kind]
    rows = contiguous_problem(
        wanted.dtype, LINES, LINES, LINES, out_dtype=wanted.out_dtype, precision=wanted.precision
    )
    names = []
    for implementation in dxgemm.implementations():
        problems = (rows, replace(rows, b=rows.b.transposed()))
        computes = any(implementation.supports(problem) is None for problem in problems)
        plain = replace(rows, precision=None)
        is_plain = wanted.precision is not None and implementation.supports(plain) is None
        has_configs = bool(implementation.configs(wanted.dtype))  # some have none on the simulator
        if not implementation.is_own or (has_configs and computes and not is_plain):
            names.append(implementation.name)
    return [OWN, *names]


def list_rows() -> list[Row]:
    rows = []
    for kind in ACCURACY_KINDS:
        names = {name: in_either_layout(None if name == OWN else name) for name in names_of(kind)}
        wanted = KINDS[kind]
        problem = {"dtype": wanted.dtype, "precision": wanted.precision, "kind": kind}
        problem |= {"m": LINES, "n": LINES}
        if wanted.out_dtype != wanted.dtype:
            problem["result_dtype"] = wanted.out_dtype
        rows += [
            Row(AccuracyCase(**problem, k=k, data=data), names) for data in DATA for k in DEPTHS
        ]
    return rows


def measure_errors(row: Row) -> Found:
    found = first_times(row.case, row.variants)
    for one in found.values():
        one.samples_s = [one.call_s]
    return found


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    choice = found[name].explanation.choice
    more = {"answered_by": choice.implementation, "slices": choice.slices}
    return fields(row, name, found, ()) | {"implementation": name} | more


bench_accuracy = bench(list_rows(), describe, measuring=measure_errors)
