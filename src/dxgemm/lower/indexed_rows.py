"""Programs of groups of rows in any order: a kernel copies rows before or after the product."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dxgemm.choice.implementation import common_problems
from dxgemm.compiler import KernelSpec
from dxgemm.handwritten.kernels import scatter_rows
from dxgemm.lower.product import copy_step
from dxgemm.lower.steps import file_step
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import MAX_ALIGNMENT, Strides, copied_step
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import OUT, Program, Symbol


class IndexedRows(NamedTuple):
    """Matrix whose rows are read, or written, in the order of indices.

    Attributes:
        dtype: dtype of the indices.
        size: number of rows of the matrix.
        strides: strides of the matrix.
    """

    dtype: str
    size: int
    strides: Strides


def gathered_problem(problem: Problem, shared: str) -> Problem:
    """Problem with the copy of the rows in the place of a, or of b if columns are shared out."""
    copy = Strides(0, copied_step(problem.k, problem.dtype), 1)
    if shared == "m":
        return replace(problem, a=copy, a_alignment=MAX_ALIGNMENT)
    return replace(problem, b=copy.transposed(), b_alignment=MAX_ALIGNMENT)


def lower_gathered(
    problem: Problem,
    shared: str,
    rows: IndexedRows,
    indices: tuple[Symbol, Symbol],
    product: Program,
) -> Program:
    """Program that copies rows into the workspace, then multiplies; with k == 0 it copies none.

    Args:
        problem: the problem to compute.
        shared: "m" if the rows are those of a, "n" if they are the columns of b.
        rows: the matrix whose rows are copied.
        indices: address and number of the indices.
        product: program of the product, for `gathered_problem`.
    """
    name, along = ("a", problem.m) if shared == "m" else ("b", problem.n)
    gathered, copy = gathered_problem(problem, shared), Symbol("gathered rows")
    target = gathered.a if shared == "m" else gathered.b.transposed()
    arguments = KernelArguments(
        problem.dtype, along, problem.k, rows.size, 1, rows.strides, out=target,
        epilogue=Fusion((), (FusedOperand("buffer", rows.dtype),)),
    )  # fmt: skip
    steps = (copy_step(arguments, Symbol(name), copy, *indices),) if problem.k else ()
    size = along * target.row * ITEM_SIZES[problem.dtype]
    return Program(steps, {copy.name: size}) + product.given({name: copy})


def scattered_problem(problem: Problem, shared: str) -> Problem:
    """Problem with rows in the workspace in the place of out, or columns if they are shared out."""
    columns = problem.result_columns if shared == "m" else problem.m
    out = Strides(0, copied_step(columns, problem.out_dtype), 1)
    return replace(problem, out=out if shared == "m" else out.transposed())


def lower_scattered(
    problem: Problem,
    shared: str,
    rows: IndexedRows,
    indices: tuple[Symbol, Symbol],
    offsets: tuple[Symbol, Symbol],
    offsets_dtype: str,
    product: Program,
) -> Program:
    """Program of a product into the workspace, and of a kernel that copies the rows of the result.

    Args:
        problem: `scattered_problem` of all groups.
        shared: "m" if the rows are those of the result, "n" if they are its columns.
        rows: the matrix whose rows are written.
        indices, offsets: addresses and numbers of the indices, and of the offsets.
        offsets_dtype: dtype of the offsets.
        product: program of the product.
    """
    is_m, result = shared == "m", Symbol("result rows")
    m, n = (problem.m, problem.result_columns) if is_m else (problem.n, problem.m)
    source = problem.out if is_m else problem.out.transposed()
    fused = tuple(FusedOperand("buffer", dtype) for dtype in (rows.dtype, offsets_dtype))
    arguments = KernelArguments(
        problem.out_dtype, m, n, rows.size, problem.batch, source, out=rows.strides,
        epilogue=Fusion((), fused),
    )  # fmt: skip
    values = result, result, OUT, OUT, 0, 0
    copying = file_step(scatter_rows, arguments, values=values, operands=(*indices, *offsets))
    size = m * source.row * ITEM_SIZES[problem.out_dtype]
    return product.given({"out": result}) + Program((copying,), {result.name: size})


def indexed_specs(dtypes: tuple[str, ...]) -> list[KernelSpec]:
    """List the kernels that copy rows, to build ahead of time, for indices in int32."""
    specs: dict[KernelSpec, None] = {}
    pair, nothing = (Symbol(0), Symbol(1)), Program(())
    for problem in (problem for dtype in dtypes for problem in common_problems(dtype)):
        read, written = (IndexedRows("int32", problem.m, x) for x in (problem.a, problem.out))
        gathering = lower_gathered(problem, "m", read, pair, nothing)
        scattering = lower_scattered(problem, "m", written, pair, pair, "int32", nothing)
        specs |= dict.fromkeys(gathering.specs + scattering.specs)
    return list(specs)
