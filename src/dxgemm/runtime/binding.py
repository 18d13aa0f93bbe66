"""Binding of kernels to problems, on a GPU or on the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dxgemm.compiler import KernelSpec, find_kernel, obtain_kernel, replace_kernel
from dxgemm.errors import (
    BuildError,
    LaunchError,
    MissingPackageError,
    UnsupportedProblemError,
)
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.kernel import MOST_BLOCKS, MOST_INDEX
from dxgemm.problem.kernel_arguments import Arguments, Call
from dxgemm.runtime.capture import launch_is_captured
from dxgemm.runtime.device import refuse_foreign_context
from dxgemm.runtime.nvtx import RangedLaunch, ranges_enabled


class Launch(Protocol):
    """Implementation bound to one problem."""

    def __call__(self, call: Call, stream: int) -> None:
        """Queue the work on a stream, a raw handle, and return."""

    def fixed(self, call: Call) -> Callable[[int], None]:
        """Pack a call, for many quick launches on any stream."""


def launch_kernel(
    spec: KernelSpec,
    problem: Arguments,
    blocks: int,
    arch: str,
    ordinal: int,
    maps: tuple[Any, ...] = (),
    tiles: int = 0,
) -> Launch:
    """Bind a kernel, built if need be, to its arguments; on the simulator if it is enabled.

    Args:
        spec: the kernel.
        problem: sizes and strides.
        blocks, arch, ordinal: blocks of the grid; architecture and ordinal of the GPU.
        maps, tiles: as `Step` has them.

    Raises:
        BuildError: the kernel does not compile.
        LaunchError: the kernel is not loaded yet, and the launch is under capture. Or the driver
            cannot load it, or another context than a primary one is current.
        UnsupportedProblemError: the kernel cannot index the problem, or the grid has no such size.
    """
    sizes = problem.m, problem.n, problem.k, problem.batch * problem.slices
    refuse_large(spec, max(blocks, tiles), *sizes)
    launch = _bind(spec, problem, blocks, arch, ordinal, maps)
    return RangedLaunch(launch, spec, problem) if ranges_enabled() else launch


def refuse_large(spec: KernelSpec, blocks: int, *sizes: int) -> None:
    """Refuse sizes that a kernel's 32-bit indices do not reach, and grids that wrap around.

    Raises:
        UnsupportedProblemError: a size or the number of blocks is too large.
    """
    if max(sizes) > MOST_INDEX or blocks > MOST_BLOCKS:
        raise UnsupportedProblemError(
            f"gemm: {spec.implementation} {spec.config} is for sizes up to {MOST_INDEX} and up to "
            f"{MOST_BLOCKS} blocks, but a step of this call takes {', '.join(map(str, sizes))} and "
            f"{blocks} blocks; call it for parts of the operands."
        )


def _bind(
    spec: KernelSpec,
    problem: Arguments,
    blocks: int,
    arch: str,
    ordinal: int,
    maps: tuple[Any, ...],
) -> Launch:
    if simulator_enabled():
        from dxgemm.runtime.simulator import SimulatedLaunch

        return SimulatedLaunch(spec, problem, blocks)
    from dxgemm.runtime.launch import KernelLaunch, UnreadableCubinError, is_loaded

    refuse_foreign_context()
    kernel = find_kernel(spec, arch)
    if not is_loaded(kernel, ordinal) and launch_is_captured():
        raise LaunchError(
            f"gemm: the stream is under capture, and {spec.implementation} {spec.config} is not "
            "loaded yet; make the call once, or its plan, before the capture begins."
        )
    kernel = kernel or obtain_kernel(spec, arch)
    try:
        return KernelLaunch(kernel, problem, blocks, ordinal, maps)
    except UnreadableCubinError as error:
        refusal = error
    try:
        kernel = replace_kernel(spec, arch, kernel)
    except (BuildError, MissingPackageError) as error:
        raise LaunchError(f"{refusal} It cannot be built again: {error}") from None
    return KernelLaunch(kernel, problem, blocks, ordinal, maps)
