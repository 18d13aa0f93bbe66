"""Abilities of implementations: the kinds of arithmetic and the layouts that each computes."""

from dataclasses import replace
from typing import Any

from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.problem import Problem
from oracle.cases import plain_layouts
from oracle.kinds import KINDS


def inability(implementation: Any, kind: str, arch: str) -> str | None:
    """Reason why an implementation is not tested with a kind; None if it is.

    An implementation that computes float32 for any precision is not tested again with TF32.
    """
    unfit: str | None = implementation.runs_on(arch) or implementation.build_fault(arch)
    if unfit is not None:
        return unfit
    wanted = KINDS[kind]
    rows, k_major = _problems(kind)
    reason: str | None = implementation.supports(rows)
    if reason is not None and implementation.supports(k_major) is not None:
        return reason
    if wanted.precision and implementation.supports(replace(rows, precision=None)) is None:
        return f"it serves {kind} as {wanted.dtype}"
    return None


def fitting_layouts(implementation: Any, kind: str) -> tuple[str, str, str]:
    """Layouts of a, b and c that an implementation computes, row-major if possible."""
    rows, k_major = _problems(kind)
    if implementation.supports(rows) is not None and implementation.supports(k_major) is None:
        return "row_aligned", "col_aligned", "row"
    odd_rows, _ = _problems(kind, size=65)
    if implementation.supports(odd_rows) is not None:
        return "row_aligned", "row_aligned", "row"
    return plain_layouts(kind)


def _problems(kind: str, size: int = 64) -> tuple[Problem, Problem]:
    """Square problems of row-major operands, and of a and b both K-major."""
    wanted = KINDS[kind]
    rows = contiguous_problem(
        wanted.dtype, size, size, size, out_dtype=wanted.out_dtype, precision=wanted.precision
    )
    return rows, replace(rows, b=rows.b.transposed())
