"""Launches of a GEMM by products of parts: what all have in common, and those of float32."""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Any

from dxgemm.choice.emulation import (
    NATIVE,
    native_config,
    native_spec,
    parts_problem,
    product_spec,
    validity_problem,
    validity_spec,
    with_buffers,
)
from dxgemm.choice.emulation_parts import NUMBER_BYTES, parts_of_problem, series_spec
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import emulated_float32
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.counter import Counter
from dxgemm.runtime.device import device_facts


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
        own, spec = parts_problem(problem), product_spec(config, problem)
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


def emulation_fallbacks(device: int = 0) -> int:
    """How many calls with precision="emulated" have multiplied the operands themselves.

    They could not be split within the bound on the error, which is known on the GPU alone; reading
    the count waits for the work queued there.

    Args:
        device: CUDA ordinal.
    """
    return 0 if simulator_enabled() else _counter(device).read()


@cache
def _counter(ordinal: int) -> Counter:
    return Counter(ordinal)
