"""Launches of a product alone, without the kernels that add split-K slices or reduce the result."""

from __future__ import annotations

from typing import Any

from dxgemm.choice.implementation import Cublas, EmulatedProduct, Implementation, KernelFile
from dxgemm.launches.aligned import AlignedLaunch
from dxgemm.launches.cublas import CublasLaunch
from dxgemm.launches.emulated_float32 import EmulatedFloat32Launch, native_launch
from dxgemm.launches.emulated_float64 import EmulatedFloat64Launch
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel, refuse_large
from dxgemm.runtime.device import device_facts


def bind_product(
    implementation: Implementation, problem: Problem, config: Any, arch: str, ordinal: int
) -> Launch:
    """Bind an implementation to a problem, building missing kernels.

    Args:
        implementation: an implementation that supports the problem.
        problem: the problem to compute.
        config: one of the implementation's configs.
        arch, ordinal: architecture and ordinal of the GPU.

    Raises:
        BuildError, MissingPackageError: a kernel cannot be built.
        LaunchError: a kernel is not loaded yet, and the launch is under capture.
    """
    if isinstance(implementation, Cublas):
        return CublasLaunch(problem, ordinal)
    if isinstance(implementation, EmulatedProduct):
        if problem.k == 0:
            return native_launch(problem, config, arch, ordinal)
        is_double = problem.dtype == "float64"
        emulated = EmulatedFloat64Launch if is_double else EmulatedFloat32Launch
        return emulated(implementation, problem, config, arch, ordinal)
    assert isinstance(implementation, KernelFile)
    computed = implementation.computed(problem)
    maps = implementation.kernel.tensor_maps(config, computed)
    blocks = implementation.block_count(config, problem, device_facts(ordinal).sm_count)
    spec = implementation.spec_for(config, problem)
    refuse_large(spec, implementation.tile_count(config, problem), problem.batch * problem.slices)
    launch = launch_kernel(spec, computed, blocks, arch, ordinal, maps)
    if computed is problem:
        return launch
    return AlignedLaunch(problem, computed, launch, arch, ordinal)
