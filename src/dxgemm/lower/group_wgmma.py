"""Programs of groups by offsets on Hopper's tensor cores by `wgmma`: groups of rows, or of k."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from dxgemm.choice.implementation import common_problems, launchable
from dxgemm.choice.kernel_files import file_spec
from dxgemm.compiler import KernelSpec, compute_capability
from dxgemm.gpu.facts import SIMULATED_DEVICE, DeviceFacts
from dxgemm.handwritten.kernels import (
    group_maps,
    grouped_wgmma,
    grouped_wgmma_float8,
    grouped_wgmma_k,
)
from dxgemm.handwritten.parts.group_table import ITEM_BYTES, ROW_ITEMS
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.lower.grouped import choose_config
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import Program, Step, Symbol, Value

# Kernel files by the dimension that is shared out; of float8 it is m.
FILES: dict[str, Any] = {"m": grouped_wgmma, "k": grouped_wgmma_k}
MOST_FUSED_COLUMNS = 192  # of a tile whose epilogue has registers beside the sums
TABLE = FusedOperand("buffer", "int64")


def kernel_file(problem: Problem, shared: str) -> Any:
    """The kernel file of a group; None without one."""
    if problem.dtype in FLOAT8:
        return grouped_wgmma_float8 if shared == "m" else None
    return FILES.get(shared)


def refusal(problem: Problem, shared: str, arch: str) -> str | None:
    """Reason why a kernel cannot compute a group; None if it can.

    Args:
        problem: the problem of all groups together; `batch` counts them, and alignments are those
            of every group, because TMA reads only from multiples of 16 bytes on.
        shared: dimension of the problem that is shared out.
        arch: architecture.
    """
    file = kernel_file(problem, shared)
    if file is None:
        is_float8 = problem.dtype in FLOAT8
        return "wgmma shares out rows of a" + (", not k of float8" if is_float8 else ", or k")
    kernel = file.KERNEL
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
    file = kernel_file(problem, shared)
    shares = file.SHARES
    configs = [c for c in shares if not problem.epilogue or c.tile_n <= MOST_FUSED_COLUMNS]
    configs = [c for c in configs if file.KERNEL.fits(c, problem)]
    return choose_config(configs, shares.__getitem__, m, n, k, device)


def wgmma_step(
    problem: Problem,
    shared: str,
    config: Any,
    tiles: int,
    device: DeviceFacts,
    operands: tuple[Value, ...],
) -> Step:
    """Step that multiplies at most so many tiles.

    Args:
        problem, shared: as `refusal` has them.
        config: config of the kernel.
        tiles: most tiles of all results.
        device: the GPU.
        operands: arguments of the epilogue, then address and size of the table.
    """
    file = kernel_file(problem, shared)
    fusion = problem.epilogue or Fusion((), ())
    own = replace(problem, epilogue=replace(fusion, operands=(*fusion.operands, TABLE)))
    spec = file_spec(file, own, file.KERNEL.variant(config, problem), config)
    maps = file.KERNEL.tensor_maps(config, problem) if shared == "m" else ()
    blocks = min(tiles, device.sm_count)
    return Step(spec, own, blocks, operands=operands, maps=maps)


def lower_groups_of_k(
    problem: Problem,
    config: Any,
    offsets_dtype: str,
    device: DeviceFacts,
    offsets: tuple[Value, ...],
    fused: tuple[Value, ...],
) -> Program:
    """Program of groups that share out k: a kernel makes their tensor maps, another multiplies."""
    table, items = Symbol("table"), problem.batch * ROW_ITEMS
    tiles = problem.batch * -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    fusion = Fusion((), (FusedOperand("buffer", offsets_dtype), TABLE))
    p, innermost = problem, group_maps.KERNEL.variant(config, problem)[:2]
    own = KernelArguments(p.dtype, p.m, p.n, p.k, p.batch, p.a, p.b, p.c, p.out, fusion)
    making = Step(
        file_spec(group_maps, own, innermost), own, operands=(*offsets, table, items),
        maps=grouped_wgmma_k.KERNEL.tensor_maps(config, problem),
    )  # fmt: skip
    product = wgmma_step(problem, "k", config, tiles, device, (*fused, table, items))
    return Program((making, product), {table.name: items * ITEM_BYTES})


def wgmma_specs(dtypes: tuple[str, ...], arch: str) -> list[KernelSpec]:
    """List the kernels to build ahead of time for an architecture, for offsets in int32."""
    specs: dict[KernelSpec, None] = {}
    for shared, file in FILES.items():
        kernel = file.KERNEL
        for dtype in (dtype for dtype in kernel.dtypes if dtype in dtypes):
            problems = [p for p in common_problems(dtype) if refusal(p, shared, arch) is None]
            for problem, config in product(problems, kernel.configs):
                if shared == "k":
                    program = lower_groups_of_k(problem, config, "int32", SIMULATED_DEVICE, (), ())
                else:
                    step = wgmma_step(problem, shared, config, 1, SIMULATED_DEVICE, ())
                    program = Program((step,))
                specs |= dict.fromkeys(program.specs)
    return launchable(list(specs), arch)
