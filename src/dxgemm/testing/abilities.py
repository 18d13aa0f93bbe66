"""Kinds of arithmetic that an implementation computes, and the layouts that suit it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.problem import Problem
from dxgemm.testing.cases import plain_layouts
from dxgemm.testing.kinds import KINDS


def inability(implementation: Any, kind: str, arch: str) -> str | None:
    """Says why an implementation does not compute a kind, so that nothing is tested; or None.

    What computes float32 without regard to precision is not tested again under TF32.
    """
    wanted = KINDS[kind]
    rows, along_k = _problems(kind)
    reason: str | None = implementation.supports(rows)
    if reason is not None and implementation.supports(along_k) is not None:
        return reason
    if wanted.precision and implementation.supports(replace(rows, precision=None)) is None:
        return f"it serves {kind} as {wanted.dtype}"
    unfit: str | None = implementation.runs_on(arch)
    return unfit


def fitting_layouts(implementation: Any, kind: str) -> tuple[str, str, str]:
    """Layouts of a, b and c that an implementation computes: rows, if it can."""
    rows, along_k = _problems(kind)
    if implementation.supports(rows) is not None and implementation.supports(along_k) is None:
        return "row_aligned", "col_aligned", "row"
    return plain_layouts(kind)


def _problems(kind: str) -> tuple[Problem, Problem]:
    """A problem of row-major operands, and one with a and b both contiguous along k."""
    wanted = KINDS[kind]
    rows = contiguous_problem(
        wanted.dtype, 64, 64, 64, out_dtype=wanted.out_dtype, precision=wanted.precision
    )
    return rows, replace(rows, b=rows.b.transposed())
