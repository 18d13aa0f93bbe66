"""Launches of split-K with a workspace: the product's kernel, and the one that adds the slices.

A symmetric result may be made in the same way by kernels that compute it whole, in one slice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm.choice.implementation import adding_spec
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.complex_form import in_parts, result_in_parts
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel


class SlicedLaunch(LaunchSeries):
    """Launch of split-K: sums of all slices, then their total with alpha, beta and the epilogue."""

    def __init__(
        self,
        problem: Problem,
        sliced: Problem,
        product: Launch,
        arch: str,
        ordinal: int,
        triangle: str = "",
    ) -> None:
        """Build the kernel that adds, if it is missing, and bind it.

        Args:
            problem: the problem to compute.
            sliced: the problem of the slices' sums.
            product: the bound launch that computes them.
            arch, ordinal: architecture and ordinal of the GPU.
            triangle: triangles of the result that are written; "" for the whole result.
        """
        super().__init__(ordinal)
        self._product = product
        sheets = sliced.batch * sliced.out.batch  # elements of a slice's matrices
        self._sums = self._take(sliced.slices * sheets * ITEM_SIZES[sliced.out_dtype])
        sums = Strides(sliced.out.batch, sliced.out.row, sheets)
        adding = replace(problem, k=sliced.slices, a=sums, b=Strides(0, 0, 0), triangle=triangle)
        spec = adding_spec(adding, sliced.slices)
        if problem.dtype in COMPLEX_PARTS:
            adding = replace(
                adding, dtype=spec.dtype, out_dtype=spec.dtype, a=in_parts(sums._replace(col=1)),
                b=Strides(2 * sheets, 0, 0), c=in_parts(problem.c), out=result_in_parts(problem),
            )  # fmt: skip
        blocks = problem.batch * -(-problem.m * problem.n // spec.config.elements)
        self._adder = launch_kernel(spec, adding, blocks, arch, ordinal)

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        a, b, c, out, alpha, beta = call
        sums = base + self._sums
        return [
            Call(self._product, (a, b, sums, sums, 1, 0)),
            Call(self._adder, (sums, sums, c, out, alpha, beta), operands),
        ]
