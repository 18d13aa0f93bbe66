"""Launches of emulated float64: products of residues (Ozaki scheme II), or the native product."""

from __future__ import annotations

from typing import Any

from dxgemm.choice.emulation import reconstruct_problem, reconstruct_spec
from dxgemm.choice.implementation import EmulatedProduct
from dxgemm.handwritten.kernels import reconstruct
from dxgemm.handwritten.parts.moduli import moduli_count
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.launches.emulated_float32 import PartsLaunch
from dxgemm.launches.series import Call
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import launch_kernel


class EmulatedFloat64Launch(PartsLaunch):
    """Launch of emulated float64: residues of integers, their products, and the reconstruction."""

    def __init__(
        self,
        implementation: EmulatedProduct,
        problem: Problem,
        config: Any,
        arch: str,
        ordinal: int,
    ) -> None:
        """Build the missing kernels and bind them.

        Args:
            implementation: the product of the residues.
            problem: the problem to compute; k is not 0.
            config: config of the implementation.
            arch, ordinal: architecture and ordinal of the GPU.
        """
        self._count = moduli_count(problem)
        self._residue_bytes = problem.batch * self._count * problem.m * row_bytes(problem.n)
        super().__init__(implementation, problem, config, arch, ordinal)
        spec = reconstruct_spec(problem)
        blocks = reconstruct.KERNEL.block_count(spec.config, problem)
        own = reconstruct_problem(problem)
        self._reconstruct = launch_kernel(spec, own, blocks, arch, ordinal)

    def _lay_out(self) -> None:
        super()._lay_out()
        self._residues = self._take(self._residue_bytes)

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        invalid, places = base + self._invalid, self._places(base, call)
        residues = base + self._residues
        buffers = residues, self._residue_bytes, *self._factors(places), invalid, 1
        return [
            *self._decomposing(places, invalid, call),
            Call(
                self._product,
                (places["a"], places["b"], residues, residues, 0, 0),
                (invalid, 1, self._count),
            ),
            Call(self._reconstruct, call, (*operands, *buffers)),
            Call(self._native, call, (*operands, invalid, 1)),
        ]
