"""Launches of a GEMM by products of parts: what all have in common, and those of float32."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

from dxgemm.compiler import KernelSpec
from dxgemm.gpu.roofline import tile_efficiency
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten import tensor_core, tuned
from dxgemm.handwritten.kernels import emulated_float32, native_fallback, validity_check
from dxgemm.handwritten.parts.emulation import CHOSEN
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.reduction import slot_count
from dxgemm.launches.emulation_parts import (
    NO_STRIDES,
    NUMBER_BYTES,
    buffers,
    first_config,
    parts_of_problem,
    series_spec,
)
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.counter import Counter
from dxgemm.runtime.device import device_facts

# What multiplies a and b themselves.
NATIVE: dict[str, Any] = {"float32": tuned, "float64": tensor_core}
LARGE_GPU_SMS = 128  # about: the config of a fallback may be any


def product_spec(config: Any, problem: Problem) -> KernelSpec:
    """The kernel that multiplies the parts."""
    parts = parts_of_problem(problem)
    variant = CHOSEN, parts["a"].innermost, parts["b"].innermost
    return series_spec(emulated_float32, config, _product_problem(problem), variant)


def other_specs(problem: Problem) -> list[KernelSpec]:
    """The kernels before it, and the one in its place."""
    parts = parts_of_problem(problem)
    judged = validity_problem(problem.k, parts["a"].blocks, parts["b"].blocks)
    invalid = validity_spec(judged)
    return [*(part.spec for part in parts.values()), invalid, native_spec(problem)]


def validity_spec(problem: Problem) -> KernelSpec:
    """The kernel that judges the parts of operands of any dtype, by `validity_problem`."""
    return series_spec(validity_check, first_config(validity_check), problem, ())


def validity_problem(k: int, a_blocks: int, b_blocks: int) -> Problem:
    """What `validity_check` takes for one, of operands that so many blocks split."""
    return Problem(
        dtype="float32",
        m=a_blocks,
        n=b_blocks,
        k=k,
        batch=1,
        a=NO_STRIDES,
        b=NO_STRIDES,
        c=NO_STRIDES,
        out=NO_STRIDES,
        out_dtype="float32",
        epilogue=Fusion((), buffers("int32", "int32", "int32", "int32")),
    )


def native_config(problem: Problem, config: Any = None) -> Any:
    """Config of the kernel that multiplies a and b themselves: of the least work in whole rounds.

    Where a reduction is fused, it leaves at least as many partial results as the product of parts:
    that fills what it has no tile for.

    Args:
        config: of the product of parts; where none is given, a reduction does not matter.
    """
    file, reduction = NATIVE[problem.dtype], problem.reduction

    def cost(config: Any) -> float:
        rounds = -(-file.KERNEL.block_count(config, problem) // LARGE_GPU_SMS)
        work = config.tile_m * config.tile_n / config.split_k
        return rounds * work / tile_efficiency(config.tile_m, config.tile_n)

    configs = file.KERNEL.configs
    if reduction is not None and config is not None:
        tiles = -(-problem.n // config.tile_n)
        configs = [c for c in configs if _native_partial_results(c, problem) >= tiles]
    return min(configs, key=cost)


def partial_results(config: Any, problem: Problem) -> int:
    """How many are left of each row: by both products as many, since only the GPU knows which."""
    return _native_partial_results(native_config(problem, config), problem)


def _native_partial_results(config: Any, problem: Problem) -> int:
    tile, sizes = (config.tile_m, config.tile_n), (problem.m, problem.n)
    return slot_count(config, tile, problem.reduction, sizes, VECTOR_BYTES // NUMBER_BYTES)


def native_spec(problem: Problem, config: Any = None) -> KernelSpec:
    """The kernel that multiplies a and b themselves if the validity check says so."""
    file, own = NATIVE[problem.dtype], with_buffers(problem, "int32")
    config = native_config(problem, config)
    return series_spec(native_fallback, config, own, file.KERNEL.variant(config, own))


def native_launch(problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
    """The launch of that kernel where there is no check, since nothing is multiplied."""
    file = NATIVE[problem.dtype]
    config = native_config(problem, config)
    spec = series_spec(file, config, problem, file.KERNEL.variant(config, problem))
    return launch_kernel(spec, problem, file.KERNEL.block_count(config, problem), arch, ordinal)


def bind(problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
    """The launch of a problem: a `SplitLaunch`, or `tuned` where nothing is multiplied."""
    if problem.k == 0:
        return native_launch(problem, config, arch, ordinal)
    return SplitLaunch(problem, config, arch, ordinal)


class PartsLaunch(LaunchSeries):
    """Split a and b, judge, multiply what they were split into, or else a and b themselves.

    Which of the two products is computed is known on the device alone: both are queued, and the
    other's blocks leave at once.
    """

    def __init__(self, problem: Problem, config: Any, arch: str, ordinal: int) -> None:
        """Build the kernels that are not there.

        Args:
            problem: what to compute; k is not 0.
            config: of the product of parts.
            arch, ordinal: of the GPU.
        """
        super().__init__(ordinal)
        self._parts = parts = parts_of_problem(problem)
        self._splits = {name: part.bind(arch, ordinal) for name, part in parts.items()}
        judged = validity_problem(problem.k, parts["a"].blocks, parts["b"].blocks)
        judge = validity_spec(judged)
        self._judge = launch_kernel(judge, judged, 1, arch, ordinal)
        self._counter = _counter(ordinal).pointer
        native, own = native_spec(problem, config), with_buffers(problem, "int32")
        blocks = NATIVE[problem.dtype].KERNEL.block_count(native.config, problem)
        self._native = launch_kernel(native, own, blocks, arch, ordinal)
        self._prepared: dict[str, int] = {}

    def prepared(self, operand: str, parts: int) -> PartsLaunch:
        """This launch with the parts of "a" or "b" that are at an address."""
        launch = copy(self)
        launch._prepared = {operand: parts}
        launch._lay_out()
        return launch

    def _lay_out(self) -> None:
        """The workspace: the flag of validity_check, and the parts that are not prepared."""
        self._size = 0
        self._invalid = self._take(NUMBER_BYTES)
        self._made = {
            name: self._take(parts.size)
            for name, parts in self._parts.items()
            if name not in self._prepared
        }

    def _places(self, base: int) -> dict[str, int]:
        """Addresses of the parts of a and b."""
        return self._prepared | {name: base + start for name, start in self._made.items()}

    def _factors(self, places: dict[str, int]) -> tuple[int, ...]:
        """The buffers of factors."""
        a, b = self._parts["a"], self._parts["b"]
        return *a.factors(places["a"]), *b.factors(places["b"])

    def _splitting(self, places: dict[str, int], invalid: int, call: tuple[Any, ...]) -> list[Call]:
        """The launches before the product's."""
        a, b = self._parts["a"], self._parts["b"]
        status = *a.status(places["a"]), *b.status(places["b"])
        sources = dict(zip("ab", call, strict=False))
        splits = [
            Call(
                self._splits[name],
                (sources[name],) * 4 + (0, 0),
                self._parts[name].arguments(places[name]),
            )
            for name in self._made
        ]
        return [
            *splits,
            Call(self._judge, (invalid,) * 4 + (0, 0), (*status, invalid, 1, self._counter, 1)),
        ]


class SplitLaunch(PartsLaunch):
    """float32 as sums of parts."""

    def __init__(self, problem: Problem, config: Any, arch: str, ordinal: int) -> None:
        """Build the kernels that are not there.

        Args:
            problem: what to compute; k is not 0.
            config: of `emulated_float32`.
            arch, ordinal: of the GPU.
        """
        super().__init__(problem, config, arch, ordinal)
        own, spec = _product_problem(problem), product_spec(config, problem)
        self._product = launch_kernel(
            spec,
            own,
            min(emulated_float32.KERNEL.block_count(config, own), device_facts(ordinal).sm_count),
            arch,
            ordinal,
            emulated_float32.KERNEL.tensor_maps(config, own, *spec.variant),
        )
        self._lay_out()

    def _calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        invalid, places = base + self._invalid, self._places(base)
        return [
            *self._splitting(places, invalid, call),
            Call(
                self._product,
                (places["a"], places["b"], *call[2:]),
                (*operands, *self._factors(places), invalid, 1),
            ),
            Call(self._native, call, (*operands, invalid, 1)),
        ]


def split_fallbacks(device: int = 0) -> int:
    """How many calls with precision="split" have multiplied the operands themselves.

    They could not be split within the bound on the error, which is known on the GPU alone; reading
    the count waits for the work queued there.

    Args:
        device: CUDA ordinal.
    """
    return 0 if simulator_enabled() else _counter(device).read()


@cache
def _counter(ordinal: int) -> Counter:
    return Counter(ordinal)


def _product_problem(problem: Problem) -> Problem:
    return with_buffers(problem, "float32", "float32", "int32")


def with_buffers(problem: Problem, *dtypes: str) -> Problem:
    """The problem with buffers behind the operands of its epilogue."""
    epilogue = problem.epilogue or Fusion((), (), problem.is_transposed)
    operands = (*epilogue.operands, *buffers(*dtypes))
    return replace(problem, epilogue=replace(epilogue, operands=operands))
