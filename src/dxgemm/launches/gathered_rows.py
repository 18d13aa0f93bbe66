"""Launches of groups of rows in any order: a kernel copies the rows, another launch multiplies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from dxgemm.choice.implementation import common_problems, copying_spec
from dxgemm.compiler import KernelSpec
from dxgemm.handwritten.kernels import align_rows
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.layout import MAX_ALIGNMENT, NO_STRIDES, SECTOR_BYTES, Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import launch_kernel
from dxgemm.runtime.device import device_facts


class IndexedRows(NamedTuple):
    """Matrix whose rows are multiplied in the order of indices.

    Attributes:
        dtype: dtype of the indices.
        size: number of rows of the matrix.
        strides: strides of the matrix.
    """

    dtype: str
    size: int
    strides: Strides


class GatheredLaunch(LaunchSeries):
    """Launch of a kernel that copies rows into the workspace, then of a product.

    Address and number of the indices come before the epilogue arguments of the product.
    """

    def __init__(
        self,
        problem: Problem,
        shared: str,
        rows: IndexedRows,
        product: LaunchSeries,
        ordinal: int,
    ) -> None:
        """Bind the kernel that copies, building it if need be.

        Args:
            problem: the problem to compute.
            shared: "m" if the rows are those of a, "n" if they are the columns of b.
            rows: the matrix whose rows are copied.
            product: launch of the product, for `gathered_problem`.
            ordinal: ordinal of the GPU.
        """
        super().__init__(ordinal)
        self._side = "mn".index(shared)
        self._product = product
        copy = copy_problem(problem, shared, rows)
        self._place = self._take(copy.m * copy.out.row * ITEM_SIZES[copy.dtype])
        self._product_place = self._take(product.size)
        self._gather = None
        if problem.k > 0:  # else nothing is multiplied
            spec = gather_spec(copy)
            blocks = align_rows.KERNEL.block_count(spec.config, copy)
            self._gather = launch_kernel(spec, copy, blocks, device_facts(ordinal).arch, ordinal)

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        side, source, copy = self._side, call[self._side], base + self._place
        calls = self._product.calls(
            base + self._product_place, (*call[:side], copy, *call[side + 1 :]), operands[2:]
        )
        if self._gather is None:
            return calls
        return [Call(self._gather, (source, source, copy, copy, 0, 0), operands[:2]), *calls]


def gathered_problem(problem: Problem, shared: str) -> Problem:
    """Problem with the copy of the rows in the place of a, or of b if columns are shared out."""
    width = SECTOR_BYTES // ITEM_SIZES[problem.dtype]
    copy = Strides(0, -(-problem.k // width) * width, 1)
    if shared == "m":
        return replace(problem, a=copy, a_alignment=MAX_ALIGNMENT)
    return replace(problem, b=copy.transposed(), b_alignment=MAX_ALIGNMENT)


def copy_problem(problem: Problem, shared: str, rows: IndexedRows) -> Problem:
    """Problem of the copy, as `align_rows` has it."""
    gathered = gathered_problem(problem, shared)
    is_a = shared == "m"
    return Problem(
        dtype=problem.dtype,
        m=problem.m if is_a else problem.n,
        n=problem.k,
        k=rows.size,
        batch=1,
        a=rows.strides,
        b=NO_STRIDES,
        c=NO_STRIDES,
        out=gathered.a if is_a else gathered.b.transposed(),
        out_dtype=problem.dtype,
        epilogue=Fusion((), (FusedOperand("buffer", rows.dtype),)),
    )


def gather_spec(copy: Problem) -> KernelSpec:
    """Spec of the kernel that copies rows, for `copy_problem`."""
    return replace(copying_spec(copy), epilogue=copy.epilogue)


def gather_specs(dtypes: tuple[str, ...]) -> list[KernelSpec]:
    """List the kernels that copy rows, to build ahead of time, for indices in int32."""
    problems = [
        copy_problem(problem, "m", IndexedRows("int32", problem.m, problem.a))
        for dtype in dtypes
        for problem in common_problems(dtype)
    ]
    return list(dict.fromkeys(map(gather_spec, problems)))
