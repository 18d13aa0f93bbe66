"""Steps of groups: problems of any sizes in one launch, which reads them from a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dxgemm.choice.implementation import Implementation, common_problems, is_before, launchable
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import best_of
from dxgemm.compiler import KernelSpec, compute_capability
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.lower.steps import file_step
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import scalar_dtype
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.kernel_arguments import Call, KernelArguments
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, refuse_large
from dxgemm.runtime.device import device_facts
from dxgemm.runtime.program import Step, parameters

DTYPES = ("float32", "float64", "float16", "bfloat16")


class GroupMember(NamedTuple):
    """Problem of a group, in the kernels' orientation.

    Attributes:
        problem: sizes and strides.
        starts: addresses of a, b, c and out, in elements.
        alpha, beta: factors of the product and of c.
    """

    problem: Problem
    starts: list[int]
    alpha: float
    beta: float

    @property
    def row(self) -> list[int]:
        """Row of the table, as `dxgemm.handwritten.parts.group_table` describes it."""
        problem = self.problem
        row = [problem.m, problem.n, problem.k]
        for start, strides in zip(
            self.starts, (problem.a, problem.b, problem.c, problem.out), strict=True
        ):
            row += [start, strides.row, strides.col]
        return [*row, 0]

    def is_like(self, other: GroupMember) -> bool:
        """True if the two problems differ in their addresses only."""
        return (self.problem, self.alpha, self.beta) == (other.problem, other.alpha, other.beta)


class GroupTable:
    """Table of the problems as the kernel reads it, and the kernel, built if need be.

    Attributes:
        bytes: contents of the table, to be copied to device memory.
    """

    def __init__(self, members: Sequence[GroupMember], ordinal: int) -> None:
        first = members[0]
        self._launch: Any
        self._scalars = 0.0, 0.0
        device = device_facts(ordinal)
        has_batches = bool(_batch_kernels(first.problem.dtype, device.arch))
        if has_batches and all(member.is_like(first) for member in members):
            batch = replace(first.problem, batch=len(members))
            self._scalars = first.alpha, first.beta
            self._arrays = [np.array([member.starts for member in members], np.int64)]
            self._launch = _bind_alike(batch, ordinal)
        else:
            self._arrays, self._launch = _table(members, device, ordinal)
        self.bytes = np.frombuffer(b"".join(a.tobytes() for a in self._arrays), np.uint8)

    def launch(self, address: int, stream: int) -> None:
        """Queue the kernel, with the table at an address."""
        self._launch(self._call(address), stream)

    def fixed(self, address: int) -> Any:
        """Bind the launch to a table at an address; only the stream is left to pass."""
        return self._launch.fixed(self._call(address))

    def _call(self, address: int) -> Call:
        """The factors, then address and size of each array."""
        operands: list[int] = []
        for array in self._arrays:
            operands += [address, array.size]
            address += array.nbytes
        return 0, 0, 0, 0, *self._scalars, *operands


def kernel_file(dtype: str) -> Any:
    """The kernel file that computes a table of problems of a dtype."""
    from dxgemm.handwritten.kernels import grouped, grouped_tensor_tile

    return grouped_tensor_tile if dtype in grouped_tensor_tile.KERNEL.dtypes else grouped


def minimum_arch() -> int:
    """Least compute capability of the kernels, times ten."""
    from dxgemm.handwritten.kernels import grouped

    return grouped.KERNEL.minimum_arch


def needs_later(ordinal: int) -> bool:
    """True if the kernels need a later GPU than this one."""
    return is_before(device_facts(ordinal).arch, minimum_arch())


def group_specs(dtypes: tuple[str, ...], arch: str) -> list[KernelSpec]:
    """List the kernels to build ahead of time for an architecture.

    Kernels for problems that differ are built with each config for the common layouts. Kernels for
    equal problems are built for row-major operands only, aligned and not; others when needed.
    """
    steps: list[Step] = []
    for dtype in (dtype for dtype in DTYPES if dtype in dtypes):
        file = kernel_file(dtype)
        if is_before(arch, file.KERNEL.minimum_arch):
            continue
        problems = common_problems(dtype)
        for variant in dict.fromkeys(file.table_variant([problem]) for problem in problems):
            configs = file.table_configs(dtype, compute_capability(arch), variant)
            steps += [table_step(config, dtype, variant, 1, 1, 1) for config in configs]
        alike = [implementation.configs(dtype) for implementation in _batch_kernels(dtype, arch)]
        for config in chain.from_iterable(alike):
            steps += [alike_step(config, problem) for problem in (problems[0], problems[-1])]
    return launchable([step.spec for step in steps if step.spec], arch)


def forget_launches() -> None:
    """Forget all bound launches, so that kernels are looked up and built again."""
    _bind_table.cache_clear()
    _bind_alike.cache_clear()


def _batch_kernels(dtype: str, arch: str) -> list[Implementation]:
    """Implementations whose configs equal problems are computed with."""
    kernels = map(find_implementation, ("small_batch", "tensor_batch"))
    return [kernel for kernel in kernels if kernel.configs(dtype) and not kernel.runs_on(arch)]


def _choose_alike(batch: Problem, device: DeviceFacts) -> Any:
    """Choose the fastest config for equal problems, timed as one contiguous batch."""
    batch = contiguous_problem(batch.dtype, batch.m, batch.n, batch.k, batch.batch)
    kernels = _batch_kernels(batch.dtype, device.arch)
    return best_of(batch, device, kernels).config


def _table(
    members: Sequence[GroupMember], device: DeviceFacts, ordinal: int
) -> tuple[list[np.ndarray], Launch]:
    """Make the table of problems that differ, and bind the kernel that reads it."""
    first = members[0].problem
    file = kernel_file(first.dtype)
    rows = np.array([member.row for member in members], np.int64)
    m, n, k = rows[:, :3].T
    # Members of equal layouts have one problem, from the cache of `_define`.
    problems = {id(member.problem): member.problem for member in members}.values()
    variant = file.table_variant(list(problems))
    configs = file.table_configs(first.dtype, compute_capability(device.arch), variant)
    config = choose_config(configs, file.share, m, n, k, device)
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
    sizes = config, first.dtype, variant, len(members), int(tiles.sum()), int(k.max())
    spec = table_step(*sizes).spec
    assert spec is not None
    refuse_large(spec, int(tiles.sum()), int(rows[:, :3].max()))
    first_tiles = np.cumsum(tiles) - tiles
    table = np.concatenate([first_tiles, rows.ravel()])
    scalars = [(member.alpha, member.beta) for member in members]
    launch = _bind_table(*sizes, ordinal)
    return [table, np.array(scalars, first.scalar_dtype)], launch


def table_step(
    config: Any, dtype: str, variant: tuple[str, ...], count: int, tiles: int, k: int
) -> Step:
    """Step of a number of problems and tiles; k is the longest of the problems."""
    file, fusion = kernel_file(dtype), Fusion((), table_operands(dtype))
    arguments = KernelArguments(dtype, count, 0, k, tiles, epilogue=fusion)
    blocks = -(-tiles // config.matrices)
    return file_step(file, arguments, variant, config, blocks=blocks, operands=parameters(fusion))


def alike_step(config: Any, batch: Problem) -> Step:
    """Step of equal problems, which reads only their addresses."""
    from dxgemm.handwritten.kernels import grouped

    fusion = Fusion((), table_operands(batch.dtype)[:1])
    arguments = replace(batch, epilogue=fusion)
    variant = grouped.batch_variant(batch)
    file, blocks = kernel_file(batch.dtype), grouped.KERNEL.block_count(config, batch)
    return file_step(file, arguments, variant, config, blocks=blocks, operands=parameters(fusion))


@lru_cache(maxsize=256)
def _bind_table(*table: Any) -> Launch:
    """Bind a `table_step`; the last argument is the ordinal of the GPU."""
    *sizes, ordinal = table
    return table_step(*sizes).bind(device_facts(ordinal).arch, ordinal)


@lru_cache(maxsize=256)
def _bind_alike(batch: Problem, ordinal: int) -> Launch:
    """Bind the fastest kernel to equal problems."""
    device = device_facts(ordinal)
    return alike_step(_choose_alike(batch, device), batch).bind(device.arch, ordinal)


def table_operands(dtype: str) -> tuple[FusedOperand, FusedOperand]:
    """Operands by which a kernel gets the table, and alpha and beta of each problem."""
    return FusedOperand("buffer", "int64"), FusedOperand("buffer", scalar_dtype(dtype))


def choose_config(
    configs: Sequence[Any],
    share: Callable[[Any], float],
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    device: DeviceFacts,
) -> Any:
    """Choose the tile with the least time, including the parts of tiles outside the results.

    Args:
        configs: the configs to choose from.
        share: (config) -> fraction of its peak that an SM reaches.
        m, n, k: sizes of each problem.
        device: the GPU.
    """

    def cost(config: Any) -> float:
        tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
        depth = k if config.matrices == 1 else k.max()
        work = -(-depth // config.tile_k) * config.tile_k + config.tile_k  # and the prologue
        work = work * config.tile_m * config.tile_n / share(config)
        return float((tiles * work).sum() / device.sm_count + np.max(work))

    return min(configs, key=cost)
