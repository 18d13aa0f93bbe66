"""Launches of a GEMM whose k is sliced: the product's kernel, and the one that adds its sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm.choice.legality import Candidate
from dxgemm.choice.registry import adding_spec
from dxgemm.launches.product import bind_product
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import launch_kernel


class SlicedLaunch(LaunchSeries):
    """The sums of all slices, to a workspace; then their sum, with alpha, beta and the epilogue."""

    def __init__(self, problem: Problem, candidate: Candidate, arch: str, ordinal: int) -> None:
        """Build the kernels that are not there.

        Args:
            problem: what is wanted.
            candidate: how the sums are computed.
            arch, ordinal: of the GPU.
        """
        super().__init__(ordinal)
        way = candidate.part_of(problem)
        self._product = bind_product(candidate.implementation, way, candidate.config, arch, ordinal)
        sheets = way.batch * way.out.batch  # elements of a slice's matrices
        self._sums = self._take(way.slices * sheets * ITEM_SIZES[way.out_dtype])
        adding = replace(
            problem, k=way.slices, a=Strides(way.out.batch, way.out.row, sheets), b=Strides(0, 0, 0)
        )
        spec = adding_spec(problem, way.slices)
        blocks = problem.batch * -(-problem.m * problem.n // spec.config.elements)
        self._adder = launch_kernel(spec, adding, blocks, arch, ordinal)

    def _calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        a, b, c, out, alpha, beta = call
        sums = base + self._sums
        return [
            Call(self._product, (a, b, sums, sums, 1, 0)),
            Call(self._adder, (sums, sums, c, out, alpha, beta), operands),
        ]
