"""Launches of problems that share out the rows of a, on Hopper's tensor cores by `wgmma`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dxgemm.choice.implementation import common_problems, launchable
from dxgemm.compiler import KernelSpec, compute_capability
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.launches.grouped import choose_config, table_operands
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel


def takes_rows(problem: Problem, arch: str) -> bool:
    """True if the kernel can compute a group: m is that of all problems, and batch counts them."""
    from dxgemm.handwritten.kernels.grouped_wgmma import KERNEL

    is_hopper = compute_capability(arch) == KERNEL.only_arch
    return is_hopper and problem.dtype in KERNEL.dtypes and KERNEL.supports(problem) is None


def choose_rows_config(m: np.ndarray, n: np.ndarray, k: np.ndarray, device: DeviceFacts) -> Any:
    """Choose a config for problems of these sizes."""
    from dxgemm.handwritten.kernels.grouped_wgmma import SHARES

    return choose_config(list(SHARES), SHARES.__getitem__, m, n, k, device)


def bind_rows(
    problem: Problem, config: Any, tiles: int, device: DeviceFacts, ordinal: int
) -> Launch:
    """Bind the kernel to a group of at most so many tiles."""
    from dxgemm.handwritten.kernels.grouped_wgmma import KERNEL

    spec = rows_spec(problem, config)
    maps = KERNEL.tensor_maps(config, problem)
    problem = replace(problem, epilogue=spec.epilogue)
    blocks = min(tiles, device.sm_count)
    return launch_kernel(spec, problem, blocks, device.arch, ordinal, maps)


def rows_spec(problem: Problem, config: Any) -> KernelSpec:
    """Spec of the kernel: it reads a table and scalars."""
    from dxgemm.handwritten.kernels import grouped_wgmma as file

    variant = file.KERNEL.variant(config, problem)
    fusion = Fusion((), table_operands(problem.dtype))
    return KernelSpec("grouped_wgmma", file.__name__, config, problem.dtype, variant, fusion)


def rows_specs(dtypes: tuple[str, ...], arch: str) -> list[KernelSpec]:
    """List the kernels to build ahead of time for an architecture."""
    from dxgemm.handwritten.kernels.grouped_wgmma import KERNEL

    specs = [
        rows_spec(problem, config)
        for dtype in KERNEL.dtypes
        if dtype in dtypes
        for problem in common_problems(dtype)
        if takes_rows(problem, arch)
        for config in KERNEL.configs
    ]
    return launchable(specs, arch)
