"""Launches of groups of rows in any order: a kernel copies rows before or after the product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from dxgemm.choice.implementation import common_problems, copying_spec
from dxgemm.compiler import KernelSpec
from dxgemm.handwritten.kernels import align_rows, scatter_rows
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.layout import MAX_ALIGNMENT, NO_STRIDES, SECTOR_BYTES, Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import launch_kernel
from dxgemm.runtime.device import device_facts


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


class ScatteredLaunch(LaunchSeries):
    """Launch of a product into the workspace, then of a kernel that copies its rows.

    Address and number of the indices come before the epilogue arguments of the product.
    """

    def __init__(
        self,
        problem: Problem,
        shared: str,
        rows: IndexedRows,
        offsets_dtype: str,
        offsets_place: int,
        product: LaunchSeries,
        ordinal: int,
    ) -> None:
        """Bind the kernel that copies, building it if need be.

        Args:
            problem: `scattered_problem` of all groups.
            shared: "m" if the rows are those of the result, "n" if they are its columns.
            rows: the matrix whose rows are written.
            offsets_dtype: dtype of the offsets.
            offsets_place: place of the address of the offsets in the product's epilogue arguments.
            product: launch of the product.
            ordinal: ordinal of the GPU.
        """
        super().__init__(ordinal)
        self._product, self._offsets_place = product, offsets_place
        copy = scatter_problem(problem, shared, rows, offsets_dtype)
        self._place = self._take(copy.m * copy.a.row * ITEM_SIZES[copy.dtype])
        self._product_place = self._take(product.size)
        spec = scatter_spec(copy)
        blocks = scatter_rows.KERNEL.block_count(spec.config, copy)
        self._scatter = launch_kernel(spec, copy, blocks, device_facts(ordinal).arch, ordinal)

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        a, b, c, out, alpha, beta = call
        (rows, others), result = (operands[:2], operands[2:]), base + self._place
        product = (a, b, c, result, alpha, beta)
        calls = self._product.calls(base + self._product_place, product, others)
        offsets = others[self._offsets_place : self._offsets_place + 2]
        return [*calls, Call(self._scatter, (result, result, out, out, 0, 0), (*rows, *offsets))]


def aligned_step(size: int, dtype: str) -> int:
    """Elements from one row of a copy of `size` columns to the next."""
    width = SECTOR_BYTES // ITEM_SIZES[dtype]
    return -(-size // width) * width


def gathered_problem(problem: Problem, shared: str) -> Problem:
    """Problem with the copy of the rows in the place of a, or of b if columns are shared out."""
    copy = Strides(0, aligned_step(problem.k, problem.dtype), 1)
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


def scattered_problem(problem: Problem, shared: str) -> Problem:
    """Problem with rows in the workspace in the place of out, or columns if they are shared out."""
    columns = problem.result_columns if shared == "m" else problem.m
    out = Strides(0, aligned_step(columns, problem.out_dtype), 1)
    return replace(problem, out=out if shared == "m" else out.transposed())


def scatter_problem(
    problem: Problem, shared: str, rows: IndexedRows, offsets_dtype: str
) -> Problem:
    """Problem of the copy, as `scatter_rows` has it."""
    is_m = shared == "m"
    indices, offsets = (FusedOperand("buffer", dtype) for dtype in (rows.dtype, offsets_dtype))
    return Problem(
        dtype=problem.out_dtype,
        m=problem.m if is_m else problem.n,
        n=problem.result_columns if is_m else problem.m,
        k=rows.size,
        batch=problem.batch,
        a=problem.out if is_m else problem.out.transposed(),
        b=NO_STRIDES,
        c=NO_STRIDES,
        out=rows.strides,
        out_dtype=problem.out_dtype,
        epilogue=Fusion((), (indices, offsets)),
    )


def scatter_spec(copy: Problem) -> KernelSpec:
    """Spec of the kernel that writes rows, for `scatter_problem`."""
    (config,) = scatter_rows.KERNEL.configs
    name = scatter_rows.__name__
    return KernelSpec("scatter_rows", name, config, copy.dtype, (), epilogue=copy.epilogue)


def gather_spec(copy: Problem) -> KernelSpec:
    """Spec of the kernel that copies rows, for `copy_problem`."""
    return replace(copying_spec(copy), epilogue=copy.epilogue)


def indexed_specs(dtypes: tuple[str, ...]) -> list[KernelSpec]:
    """List the kernels that copy rows, to build ahead of time, for indices in int32."""
    specs: dict[KernelSpec, None] = {}
    for problem in (problem for dtype in dtypes for problem in common_problems(dtype)):
        copy = copy_problem(problem, "m", IndexedRows("int32", problem.m, problem.a))
        written = IndexedRows("int32", problem.m, problem.out)
        specs[gather_spec(copy)] = None
        specs[scatter_spec(scatter_problem(problem, "m", written, "int32"))] = None
    return list(specs)
