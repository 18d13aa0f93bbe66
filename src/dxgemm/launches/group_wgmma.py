"""Launches of groups by offsets on Hopper's tensor cores by `wgmma`: groups of rows, or of k."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from dxgemm.choice.implementation import common_problems, launchable
from dxgemm.compiler import KernelSpec, compute_capability
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels import group_maps, grouped_wgmma, grouped_wgmma_k
from dxgemm.handwritten.parts.group_table import ITEM_BYTES, ROW_ITEMS
from dxgemm.launches.grouped import choose_config
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.device import device_facts

# Kernel files by the dimension that is shared out.
FILES: dict[str, Any] = {"m": grouped_wgmma, "k": grouped_wgmma_k}
MOST_FUSED_COLUMNS = 192  # of a tile whose epilogue has registers beside the sums
TABLE = FusedOperand("buffer", "int64")


def refusal(problem: Problem, shared: str, arch: str) -> str | None:
    """Reason why a kernel cannot compute a group; None if it can.

    Args:
        problem: the problem of all groups together; `batch` counts them, and alignments are those
            of every group, because TMA reads only from multiples of 16 bytes on.
        shared: dimension of the problem that is shared out.
        arch: architecture.
    """
    if shared not in FILES:
        return "wgmma shares out rows of a, or k"
    kernel = FILES[shared].KERNEL
    if compute_capability(arch) != kernel.only_arch:
        return "it needs wgmma, of compute capability 9.0"
    if problem.dtype not in kernel.dtypes:
        return f"it takes {' and '.join(kernel.dtypes)}"
    return "k is 0" if problem.k == 0 else kernel.supports(problem)


def choose_wgmma_config(
    problem: Problem,
    shared: str,
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    device: DeviceFacts,
) -> Any:
    """Choose a config of the kernel for problems of these sizes."""
    shares = FILES[shared].SHARES
    configs = [c for c in shares if not problem.epilogue or c.tile_n <= MOST_FUSED_COLUMNS]
    return choose_config(configs, shares.__getitem__, m, n, k, device)


def bind_rows(
    problem: Problem, config: Any, tiles: int, device: DeviceFacts, ordinal: int
) -> Launch:
    """Bind the kernel of groups of rows to at most so many tiles."""
    spec = product_spec(problem, "m", config)
    maps = grouped_wgmma.KERNEL.tensor_maps(config, problem)
    problem = replace(problem, epilogue=spec.epilogue)
    return launch_kernel(spec, problem, min(tiles, device.sm_count), device.arch, ordinal, maps)


class GroupsOfKLaunch(LaunchSeries):
    """Launch of groups that share out k: a kernel makes their tensor maps, another multiplies.

    Its epilogue arguments are the address and the number of the offsets.
    """

    def __init__(self, problem: Problem, config: Any, offsets_dtype: str, ordinal: int) -> None:
        """Bind the kernels, building missing ones; the problem is as `refusal` has it."""
        super().__init__(ordinal)
        device = device_facts(ordinal)
        maker = maps_spec(problem, offsets_dtype)
        maps = grouped_wgmma_k.KERNEL.tensor_maps(config, problem)
        tiles = problem.batch * -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
        spec = product_spec(problem, "k", config)
        self._maker = launch_kernel(
            maker, replace(problem, epilogue=maker.epilogue), 1, device.arch, ordinal, maps
        )
        self._product = launch_kernel(
            spec, replace(problem, epilogue=spec.epilogue), min(tiles, device.sm_count),
            device.arch, ordinal,
        )  # fmt: skip
        self._items = problem.batch * ROW_ITEMS
        self._table = self._take(self._items * ITEM_BYTES)

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        table = base + self._table, self._items
        offsets, fused = operands[:2], operands[2:]
        return [
            Call(self._maker, call, (*offsets, *table)),
            Call(self._product, call, (*fused, *table)),
        ]


def product_spec(problem: Problem, shared: str, config: Any) -> KernelSpec:
    """Spec of a kernel that multiplies; its table follows the operands of the epilogue."""
    file = FILES[shared]
    variant = file.KERNEL.variant(config, problem)
    fusion = problem.epilogue or Fusion((), ())
    fusion = replace(fusion, operands=(*fusion.operands, TABLE))
    name = file.__name__.rpartition(".")[2]
    return KernelSpec(name, file.__name__, config, problem.dtype, variant, fusion)


def maps_spec(problem: Problem, offsets_dtype: str) -> KernelSpec:
    """Spec of the kernel that makes the tensor maps of groups of k."""
    (config,) = group_maps.KERNEL.configs
    innermost = group_maps.KERNEL.variant(config, problem)[:2]
    fusion = Fusion((), (FusedOperand("buffer", offsets_dtype), TABLE))
    return KernelSpec("group_maps", group_maps.__name__, config, problem.dtype, innermost, fusion)


def wgmma_specs(dtypes: tuple[str, ...], arch: str) -> list[KernelSpec]:
    """List the kernels to build ahead of time for an architecture, for offsets in int32."""
    specs: dict[KernelSpec, None] = {}
    for shared, file in FILES.items():
        kernel = file.KERNEL
        for dtype in (dtype for dtype in kernel.dtypes if dtype in dtypes):
            problems = [p for p in common_problems(dtype) if refusal(p, shared, arch) is None]
            for problem, config in product(problems, kernel.configs):
                specs[product_spec(problem, shared, config)] = None
            if shared == "k":
                specs |= {maps_spec(problem, "int32"): None for problem in problems}
    return launchable(list(specs), arch)
