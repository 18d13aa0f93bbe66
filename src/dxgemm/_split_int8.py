"""Launches of a float64 GEMM by products of remainders, and of the native one in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm._fusion import FusedOperand, Fusion
from dxgemm._parts import buffers, first_config, parts_of_problem, series_spec
from dxgemm._problem import Problem
from dxgemm._series import Call
from dxgemm._split import PartsLaunch, verdict_problem, verdict_spec, with_buffers
from dxgemm.compiler import KernelSpec
from dxgemm.handwritten import guarded, reconstruct, split_int8, tensor_core
from dxgemm.handwritten.moduli import moduli_count
from dxgemm.handwritten.residues import row_bytes
from dxgemm.runtime.binding import Launch, launch_kernel

NAME = "split_int8"
NATIVE = "tensor_core"


def product_spec(config: Any, problem: Problem) -> KernelSpec:
    """The kernel that multiplies remainders."""
    return series_spec(split_int8, config, _product_problem(problem), (), NAME)


def reconstruct_spec(problem: Problem) -> KernelSpec:
    """The kernel that finds the result by its remainders."""
    own, count = _reconstruct_problem(problem), str(moduli_count(problem))
    return series_spec(reconstruct, first_config(reconstruct), own, (count,), NAME)


def other_specs(problem: Problem) -> list[KernelSpec]:
    """The kernels before and after the product's, and the one in its place."""
    parts = parts_of_problem(problem)
    verdict = verdict_spec(verdict_problem(problem.k, parts["a"].blocks, parts["b"].blocks))
    return [
        *(part.spec for part in parts.values()),
        replace(verdict, implementation=NAME),
        reconstruct_spec(problem),
        _native_spec(problem),
    ]


def native_config(problem: Problem) -> Any:
    """Of `tensor_core`: that of the shortest predicted time, by rounds of tiles at its speed."""

    def predicted(config: Any) -> float:
        rounds = -(-tensor_core.block_count(config, problem) // split_int8.SM_COUNT)
        work = config.tile_m * config.tile_n / config.split_k
        return rounds * work / tensor_core.efficiency(config, problem)

    return min(tensor_core.CONFIGS, key=predicted)


def bind(problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
    """The launch of a problem: a `ResidueLaunch`, or the native one where nothing is multiplied."""
    if problem.k > 0:
        return ResidueLaunch(problem, config, arch, ordinal)
    config = native_config(problem)
    spec = series_spec(tensor_core, config, problem, tensor_core.variant(config, problem), NAME)
    return launch_kernel(spec, problem, tensor_core.block_count(config, problem), arch, ordinal)


class ResidueLaunch(PartsLaunch):
    """float64 as remainders of integers: their products by each modulus, and what has them."""

    def __init__(self, problem: Problem, config: Any, arch: str, ordinal: int) -> None:
        """Build the kernels that are not there.

        Args:
            problem: what to compute; k is not 0.
            config: of `split_int8`.
            arch, ordinal: of the GPU.
        """
        native = _native_spec(problem)
        blocks = tensor_core.block_count(native.config, problem)
        super().__init__(problem, native, blocks, arch, ordinal)
        self._count = moduli_count(problem)
        self._remainder_bytes = problem.batch * self._count * problem.m * row_bytes(problem.n)
        self._product = launch_kernel(
            product_spec(config, problem),
            _product_problem(problem),
            split_int8.block_count(config, problem),
            arch,
            ordinal,
            split_int8.tensor_maps(config, problem),
        )
        spec = reconstruct_spec(problem)
        blocks = reconstruct.block_count(spec.config, problem)
        own = _reconstruct_problem(problem)
        self._reconstruct = launch_kernel(spec, own, blocks, arch, ordinal)
        self._lay_out()

    def _lay_out(self) -> None:
        super()._lay_out()
        self._remainders = self._take(self._remainder_bytes)

    def _calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        verdict, places = base + self._verdict, self._places(base)
        remainders = base + self._remainders
        buffers = remainders, self._remainder_bytes, *self._factors(places), verdict, 1
        return [
            *self._splitting(places, verdict, call),
            Call(
                self._product,
                (places["a"], places["b"], remainders, remainders, 0, 0),
                (verdict, 1, self._count),
            ),
            Call(self._reconstruct, call, (*operands, *buffers)),
            Call(self._native, call, (*operands, verdict, 1)),
        ]


def _product_problem(problem: Problem) -> Problem:
    operands = *buffers("int32"), FusedOperand("number", "int64")
    return replace(problem, dtype="int8", out_dtype="int8", epilogue=Fusion((), operands))


def _reconstruct_problem(problem: Problem) -> Problem:
    return with_buffers(problem, "int8", "float64", "float64", "int32")


def _native_spec(problem: Problem) -> KernelSpec:
    config, own = native_config(problem), with_buffers(problem, "int32")
    return series_spec(guarded, config, own, tensor_core.variant(config, own), NAME)
