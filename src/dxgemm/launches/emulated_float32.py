"""Launches of emulated products: the base class for all dtypes, and emulated float32 (fp16x2)."""

from __future__ import annotations

from copy import copy
from typing import Any

from dxgemm.choice.emulation import (
    NATIVE,
    native_config,
    native_spec,
    product_problem,
    validity_problem,
    validity_spec,
    with_buffers,
)
from dxgemm.choice.emulation_parts import NUMBER_BYTES, parts_of_problem, series_spec
from dxgemm.choice.implementation import EmulatedProduct
from dxgemm.errors import GpuUnavailableError, named_in_errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.arguments import check_size
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.counter import Counter
from dxgemm.runtime.device import device_count, device_facts
from dxgemm.runtime.workspace import Workspace


def native_launch(problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
    """Bind the native kernel alone, without a validity check, for problems with k == 0."""
    file = NATIVE[problem.dtype]
    config = native_config(problem, config)
    spec = series_spec(file, config, problem, file.KERNEL.variant(config, problem))
    return launch_kernel(spec, problem, file.KERNEL.block_count(config, problem), arch, ordinal)


class PartsLaunch(LaunchSeries):
    """Launch of an emulated product: split a and b, check them, multiply the parts or a and b.

    Only the device knows the result of the validity check. So both products are queued, and the
    blocks of the one that is not needed return at once.
    """

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
            implementation: the product of the parts.
            problem: the problem to compute; k is not 0.
            config: config of the implementation.
            arch, ordinal: architecture and ordinal of the GPU.
        """
        super().__init__(ordinal)
        self._parts = parts = parts_of_problem(problem)
        self._decompose = {name: part.bind(arch, ordinal) for name, part in parts.items()}
        checked = validity_problem(problem.k, parts["a"].blocks, parts["b"].blocks)
        self._check = launch_kernel(validity_spec(checked), checked, 1, arch, ordinal)
        self._counter = _counter(ordinal).pointer
        native, own = native_spec(problem, config), with_buffers(problem, "int32")
        blocks = NATIVE[problem.dtype].KERNEL.block_count(native.config, problem)
        self._native = launch_kernel(native, own, blocks, arch, ordinal)
        product = implementation.spec_for(config, problem)
        self._product = launch_kernel(
            product,
            product_problem(problem),
            implementation.block_count(config, problem, device_facts(ordinal).sm_count),
            arch,
            ordinal,
            implementation.kernel.tensor_maps(config, problem, *product.variant),
        )
        self._prepared: dict[str, int] = {}
        self._lay_out()

    def prepared(self, operand: str, parts: Workspace) -> PartsLaunch:
        """Return a copy of this launch that uses prepared parts of "a" or "b"."""
        launch = copy(self)
        launch._prepared, launch.kept = {operand: parts.pointer}, (parts,)
        launch._lay_out()
        return launch

    def _lay_out(self) -> None:
        """Lay out the workspace: flag of the validity check, then all parts but prepared ones."""
        self.size = 0
        self._invalid = self._take(NUMBER_BYTES)
        self._made = {
            name: self._take(parts.size)
            for name, parts in self._parts.items()
            if name not in self._prepared
        }

    def _places(self, base: int, call: tuple[Any, ...]) -> dict[str, int]:
        """Addresses of the parts of a and b; the same if b is a.T, whose parts are those of a."""
        places = self._prepared | {name: base + start for name, start in self._made.items()}
        a, b, *_ = call
        if a == b and not self._prepared and self._parts["a"] == self._parts["b"]:
            places["b"] = places["a"]
        return places

    def _factors(self, places: dict[str, int]) -> tuple[int, ...]:
        """Addresses and sizes of the buffers of factors."""
        a, b = self._parts["a"], self._parts["b"]
        return *a.factors(places["a"]), *b.factors(places["b"])

    def _decomposing(
        self, places: dict[str, int], invalid: int, call: tuple[Any, ...]
    ) -> list[Call]:
        """Calls before the product: the kernels that split the operands, and the check."""
        a, b = self._parts["a"], self._parts["b"]
        status = *a.status(places["a"]), *b.status(places["b"])
        sources = dict(zip("ab", call, strict=False))
        made = [name for name in self._made if name == "a" or places["a"] != places["b"]]
        decompositions = [
            Call(
                self._decompose[name],
                (sources[name],) * 4 + (0, 0),
                self._parts[name].arguments(places[name]),
            )
            for name in made
        ]
        return [
            *decompositions,
            Call(self._check, (invalid,) * 4 + (0, 0), (*status, invalid, 1, self._counter, 1)),
        ]


class EmulatedFloat32Launch(PartsLaunch):
    """Launch of emulated float32: each number is the sum of two float16 parts."""

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        invalid, places = base + self._invalid, self._places(base, call)
        return [
            *self._decomposing(places, invalid, call),
            Call(
                self._product,
                (places["a"], places["b"], *call[2:]),
                (*operands, *self._factors(places), invalid, 1),
            ),
            Call(self._native, call, (*operands, invalid, 1)),
        ]


@named_in_errors("emulation_fallbacks")
def emulation_fallbacks(device: int = 0) -> int:
    """Count the calls with precision="emulated" that multiplied the operands themselves.

    Those operands failed the validity check of the bound on the error. Only the GPU knows the
    count. Reading it waits for the work on the default stream and on the current streams of CuPy
    and torch, but for none that is under capture; calls on other streams count once they have run.
    It disturbs no capture of any thread.

    Args:
        device: CUDA ordinal.

    Returns:
        The number of such calls in this process.
    """
    ordinal = check_size("device", device)
    if simulator_enabled():
        return 0
    if ordinal >= device_count():
        raise GpuUnavailableError(f"gemm: device is {ordinal}; there are {device_count()} GPUs.")
    return _counter(ordinal).read()


_counters: dict[int, Counter] = {}  # by GPU


def _counter(ordinal: int) -> Counter:
    counter = _counters.get(ordinal)
    # Not by `cache`: two threads would count in two counters, and the memory of one be freed.
    return counter or _counters.setdefault(ordinal, Counter(ordinal))
