"""Launches of a product from aligned copies of its operands."""

from __future__ import annotations

from typing import Any

from dxgemm.choice.implementation import copy_problems, copying_spec
from dxgemm.handwritten.kernels import align_rows
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel


class AlignedLaunch(LaunchSeries):
    """Launch of the kernels that copy a, b or both into the workspace, then of the product."""

    def __init__(
        self, problem: Problem, computed: Problem, product: Launch, arch: str, ordinal: int
    ) -> None:
        """Build the missing kernels and bind them.

        Args:
            problem: the problem to compute.
            computed: the same with the aligned copies, as the product reads them.
            product: the bound kernel of the product.
            arch, ordinal: architecture and ordinal of the GPU.
        """
        super().__init__(ordinal)
        self._product = product
        self._copies: dict[str, tuple[Launch, int]] = {}
        for name, copy in copy_problems(problem, computed).items():
            spec = copying_spec(copy)
            blocks = align_rows.KERNEL.block_count(spec.config, copy)
            place = self._take(copy.batch * copy.m * copy.out.row * ITEM_SIZES[copy.dtype])
            self._copies[name] = launch_kernel(spec, copy, blocks, arch, ordinal), place

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        sources = dict(zip("ab", call, strict=False))
        places = sources | {name: base + place for name, (_, place) in self._copies.items()}
        copies = [
            Call(launch, (sources[name], sources[name], places[name], places[name], 0, 0))
            for name, (launch, _) in self._copies.items()
        ]
        return [*copies, Call(self._product, (places["a"], places["b"], *call[2:]), operands)]
