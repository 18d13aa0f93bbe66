"""Launches of groups by offsets: a kernel makes the table on the device, another multiplies."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from dxgemm.choice.implementation import is_before
from dxgemm.compiler import KernelSpec, compute_capability
from dxgemm.errors import UnsupportedProblemError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.status import simulator_enabled
from dxgemm.launches.group_wgmma import (
    GroupsOfKLaunch,
    bind_rows,
    choose_wgmma_config,
    refusal,
    wgmma_specs,
)
from dxgemm.launches.grouped import (
    DTYPES,
    bind_table,
    choose_config,
    kernel_file,
    minimum_arch,
)
from dxgemm.launches.indexed_rows import (
    GatheredLaunch,
    IndexedRows,
    ScatteredLaunch,
    gathered_problem,
    indexed_specs,
    scattered_problem,
)
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.dtypes import ITEM_SIZES, scalar_dtype
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.device import device_facts

OFFSET_DTYPES = ("int32", "int64")


class GroupOffsetsLaunch(LaunchSeries):
    """Launch of a group by a table that a kernel makes of the offsets."""

    def __init__(
        self,
        problem: Problem,
        shared: str,
        count: int,
        offsets_dtype: str,
        rows: Problem | None,
        ordinal: int,
    ) -> None:
        """Choose a config, and bind the kernels, building missing ones.

        Args:
            problem, shared, count, offsets_dtype, ordinal: as `bind_group` has them.
            rows: the problem for a kernel that shares out rows by `wgmma`; None for other kernels.
        """
        from dxgemm.handwritten.kernels.group_offsets import table_items

        super().__init__(ordinal)
        self._shares_rows = rows is not None
        device = device_facts(ordinal)
        equal = _equal_sizes(problem, shared, count)
        if rows:
            self._config = choose_wgmma_config(rows, shared, *equal, device)
        else:
            self._config, variant = _choose(problem, shared, equal, device)
        self._maker = bind_maker(problem, shared, count, offsets_dtype, device.arch, ordinal)
        sizes = (table_items(count), 8), (2 * count + 2, ITEM_SIZES[problem.scalar_dtype])
        self._buffers = [(self._take(items * size), items) for items, size in sizes]
        tiles = most_tiles(problem, shared, count, self._config.tile_m, self._config.tile_n)
        if rows:
            self._product = bind_rows(rows, self._config, tiles, device, ordinal)
        else:
            self._product = bind_table(
                self._config, problem.dtype, variant, count + 1, tiles, problem.k, ordinal
            )

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        buffers = [number for start, items in self._buffers for number in (base + start, items)]
        tile = self._config.tile_m, self._config.tile_n
        offsets, fused = operands[:2], operands[2:]
        maker = Call(self._maker, call, (*offsets, *buffers, *tile))
        if self._shares_rows:  # all with the factors of the call
            return [maker, Call(self._product, call, (*fused, *buffers[:2]))]
        return [maker, Call(self._product, (*call[:4], 1.0, 0.0), tuple(buffers))]


@lru_cache(maxsize=256)
def bind_group(
    problem: Problem,
    shared: str,
    count: int,
    offsets_dtype: str,
    rows: IndexedRows | None,
    out_rows: IndexedRows | None,
    ordinal: int,
) -> LaunchSeries:
    """Choose and bind the kernels of a group, building missing ones.

    The epilogue arguments of the launch are address and number of the indices of `out_rows`, if
    there are any; then those of `rows`, of the offsets, and those of the problem's epilogue.

    Args:
        problem: sizes and strides of the whole call. In the dimension that is shared out, the size
            is that of all problems together; batch strides lead from one problem to the next in
            operands that do not have it. Alignments are those of every problem.
        shared: dimension of the problem that is shared out: "m", "n" or "k".
        count: number of problems.
        offsets_dtype: dtype of the offsets.
        rows: matrix whose rows are multiplied in the order of indices, if there are any: a if
            `shared` is "m", b transposed if it is "n".
        out_rows: matrix whose rows are written in the order of indices, in the same way; the result
            of the problem is then in the workspace.
        ordinal: ordinal of the GPU.

    Raises:
        UnsupportedProblemError: no kernel takes an epilogue for this problem.
    """
    if out_rows:
        problem = scattered_problem(problem, shared)
        product = bind_group(problem, shared, count, offsets_dtype, rows, None, ordinal)
        whole, place = replace(problem, batch=count), 2 if rows else 0
        return ScatteredLaunch(whole, shared, out_rows, offsets_dtype, place, product, ordinal)
    if rows:
        gathered = gathered_problem(problem, shared)
        product = bind_group(gathered, shared, count, offsets_dtype, None, None, ordinal)
        return GatheredLaunch(problem, shared, rows, product, ordinal)
    device = device_facts(ordinal)
    whole = replace(problem, batch=count)
    reason = refusal(whole, shared, device.arch)
    if reason and problem.epilogue:
        raise UnsupportedProblemError(
            f"gemm_grouped: no kernel takes an epilogue for this problem: {reason}; apply it later."
        )
    if reason:
        return GroupOffsetsLaunch(problem, shared, count, offsets_dtype, None, ordinal)
    if shared == "m":
        return GroupOffsetsLaunch(problem, shared, count, offsets_dtype, whole, ordinal)
    config = choose_wgmma_config(whole, shared, *_equal_sizes(problem, shared, count), device)
    return GroupsOfKLaunch(whole, config, offsets_dtype, ordinal)


def forget_launches() -> None:
    """Forget all bound launches, so that kernels are looked up and built again."""
    bind_group.cache_clear()


def kernel_specs(dtypes: tuple[str, ...], arch: str) -> list[KernelSpec]:
    """List the kernels to build ahead of time for an architecture, for integers in int32."""
    if is_before(arch, minimum_arch()):
        return []
    dtypes = tuple(dtype for dtype in DTYPES if dtype in dtypes)
    scalars = {scalar_dtype(dtype): None for dtype in dtypes}
    makers = [maker_spec(shared, dtype, "int32") for dtype in scalars for shared in ("m", "n", "k")]
    return makers + indexed_specs(dtypes) + wgmma_specs(dtypes, arch)


def most_tiles(problem: Problem, shared: str, count: int, tile_m: int, tile_n: int) -> int:
    """Largest number of tiles of all results, whatever the offsets."""

    def along(size: int, tile: int, is_shared: bool) -> int:
        # Each problem may end with a tile of one element.
        return (size + min(count, size) * (tile - 1)) // tile if is_shared else -(-size // tile)

    tiles = along(problem.m, tile_m, shared == "m") * along(problem.n, tile_n, shared == "n")
    return tiles * count if shared == "k" else tiles


def maker_spec(shared: str, dtype: str, offsets_dtype: str) -> KernelSpec:
    """Spec of the kernel that makes the table; dtype is that of alpha and beta."""
    from dxgemm.handwritten.kernels import group_offsets as file

    configs = file.KERNEL.simulator_configs if simulator_enabled() else file.KERNEL.configs
    buffers = tuple(FusedOperand("buffer", name) for name in (offsets_dtype, "int64", dtype))
    fusion = Fusion((), (*buffers, *[FusedOperand("number", "int64")] * 2))
    return KernelSpec("group_offsets", file.__name__, configs[0], dtype, (shared,), fusion)


def bind_maker(
    problem: Problem, shared: str, count: int, offsets_dtype: str, arch: str, ordinal: int
) -> Launch:
    """Bind the kernel that makes the table."""
    spec = maker_spec(shared, problem.scalar_dtype, offsets_dtype)
    problem = replace(problem, batch=count, epilogue=spec.epilogue)
    return launch_kernel(spec, problem, 1, arch, ordinal)


def _equal_sizes(
    problem: Problem, shared: str, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """m, n and k of each problem, as if all problems had the same size."""
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k")}
    sizes[shared] = -(-sizes[shared] // count)
    m, n, k = (np.full(count, sizes[name]) for name in ("m", "n", "k"))
    return m, n, k


def _choose(
    problem: Problem,
    shared: str,
    sizes: tuple[np.ndarray, np.ndarray, np.ndarray],
    device: DeviceFacts,
) -> tuple[Any, tuple[str, ...]]:
    """Config and variant of the kernel that reads a table, for problems of these sizes."""
    file = kernel_file(problem.dtype)
    variant = file.table_variant([problem])
    configs = file.table_configs(problem.dtype, compute_capability(device.arch), variant)
    if shared == "k":  # tiles of one block would wait for the longest k, which nobody knows
        configs = [config for config in configs if config.matrices == 1]
    return choose_config(configs, file.share, *sizes, device), variant
