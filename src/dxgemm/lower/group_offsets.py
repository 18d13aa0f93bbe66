"""Programs of groups by offsets: a kernel makes the table on the device, another multiplies."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import count as naturals
from typing import Any, NamedTuple

import numpy as np

from dxgemm.choice.implementation import is_before
from dxgemm.compiler import KernelSpec, compute_capability
from dxgemm.errors import UnsupportedProblemError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.lower.group_wgmma import (
    choose_wgmma_config,
    lower_groups_of_k,
    refusal,
    wgmma_specs,
    wgmma_step,
)
from dxgemm.lower.grouped import DTYPES, choose_config, kernel_file, minimum_arch, table_step
from dxgemm.lower.indexed_rows import (
    IndexedRows,
    gathered_problem,
    indexed_specs,
    lower_gathered,
    lower_scattered,
    scattered_problem,
)
from dxgemm.lower.product import with_copies
from dxgemm.lower.steps import file_step
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.device import device_facts
from dxgemm.runtime.program import OUT, A, B, C, Program, Step, Symbol, Value, parameters

OFFSET_DTYPES = ("int32", "int64")


class OffsetGroup(NamedTuple):
    """Group of problems in one array each, told apart by offsets.

    Attributes:
        problem: sizes and strides of the whole call. In the dimension that is shared out, the size
            is that of all problems together; batch strides lead from one problem to the next in
            operands that do not have it. Alignments are those of every problem.
        shared: dimension of the problem that is shared out: "m", "n" or "k".
        groups: number of problems.
        offsets_dtype: dtype of the offsets.
        rows: matrix whose rows are multiplied in the order of indices, if there are any: a if
            `shared` is "m", b transposed if it is "n".
        out_rows: matrix whose rows are written in the order of indices, in the same way; the result
            of the problem is then in the workspace.
    """

    problem: Problem
    shared: str
    groups: int
    offsets_dtype: str
    rows: IndexedRows | None = None
    out_rows: IndexedRows | None = None


@lru_cache(maxsize=256)
def bind_group(group: OffsetGroup, ordinal: int) -> Launch:
    """Choose and bind the kernels of a group, building missing ones; see `lower_group`."""
    device = device_facts(ordinal)
    return lower_group(group, device).bind(device.arch, ordinal)


def lower_group(group: OffsetGroup, device: DeviceFacts) -> Program:
    """Choose the kernels of a group; return their program.

    Its epilogue arguments are address and number of the indices of `out_rows`, if
    there are any; then those of `rows`, of the offsets, and those of the problem's epilogue.

    Raises:
        UnsupportedProblemError: no kernel takes an epilogue for this problem.
    """
    problem, shared, count, offsets_dtype, rows, out_rows = group
    if problem.k == 0 and problem.dtype in FLOAT8 and problem.out_dtype not in FLOAT8:
        dtype = "float16" if problem.out_dtype == "float16" else "bfloat16"
        problem = replace(problem, dtype=dtype)  # neither a nor b is read
    symbols = map(Symbol, naturals())
    out_indices, indices, offsets = (
        (next(symbols), next(symbols)) if is_there else None for is_there in (out_rows, rows, True)
    )
    assert offsets is not None
    fused = tuple(next(symbols) for _ in parameters(problem.epilogue))
    if out_rows:
        problem = scattered_problem(problem, shared)
    own = gathered_problem(problem, shared) if rows else problem
    is_float8 = problem.dtype in FLOAT8  # no other kernel reads what this one must copy
    in_place = replace(own, batch=count, copies_any_size=is_float8)
    whole = in_place.aligned if is_float8 else in_place
    reason = refusal(whole, shared, device.arch)
    if reason and is_float8:
        raise UnsupportedProblemError(
            f"gemm_grouped: no kernel computes groups of float8 by offsets here: {reason}; pass "
            "lists of arrays, or convert them to bfloat16, which is exact."
        )
    if reason and problem.epilogue:
        raise UnsupportedProblemError(
            f"gemm_grouped: no kernel takes an epilogue for this problem: {reason}; apply it later."
        )
    if not reason and shared == "k":
        config = choose_wgmma_config(whole, shared, *_equal_sizes(own, shared, count), device)
        program = lower_groups_of_k(whole, config, offsets_dtype, device, offsets, fused)
    else:
        takes_wgmma = reason is None
        program = _lower_table(whole, shared, offsets_dtype, device, offsets, fused, takes_wgmma)
        program = with_copies(in_place, whole, program)
    if rows and indices:
        program = lower_gathered(problem, shared, rows, indices, program)
    if out_rows and out_indices:
        whole = replace(problem, batch=count)
        program = lower_scattered(
            whole, shared, out_rows, out_indices, offsets, offsets_dtype, program
        )
    return program


def _lower_table(
    problem: Problem,
    shared: str,
    offsets_dtype: str,
    device: DeviceFacts,
    offsets: tuple[Symbol, Symbol],
    fused: tuple[Symbol, ...],
    takes_wgmma: bool,
) -> Program:
    """Program of a group by a table that a kernel makes of the offsets; `batch` counts problems."""
    from dxgemm.handwritten.kernels.group_offsets import table_items

    count, table, scalars = problem.batch, Symbol("table"), Symbol("scalars")
    items, numbers = table_items(count), 2 * count + 2
    equal = _equal_sizes(problem, shared, count)
    if takes_wgmma:
        config = choose_wgmma_config(problem, shared, *equal, device)
    else:
        config, variant = _choose(problem, shared, equal, device)
    tile = config.tile_m, config.tile_n
    tiles = most_tiles(problem, shared, count, *tile)
    tables = table, items, scalars, numbers
    making = maker_step(problem, shared, offsets_dtype, (*offsets, *tables, *tile))
    if takes_wgmma:  # all with the factors of the call
        product = wgmma_step(problem, shared, config, tiles, device, (*fused, table, items))
    else:
        product = table_step(config, problem.dtype, variant, count + 1, tiles, problem.k)
        product = replace(product, values=(A, B, C, OUT, 1.0, 0.0), operands=tables)
    sizes = {table.name: items * 8, scalars.name: numbers * ITEM_SIZES[problem.scalar_dtype]}
    return Program((making, product), sizes)


def forget_launches() -> None:
    """Forget all bound launches, so that kernels are looked up and built again."""
    bind_group.cache_clear()


def offset_specs(dtypes: tuple[str, ...], arch: str) -> list[KernelSpec]:
    """List the kernels to build ahead of time for an architecture, for integers in int32."""
    if is_before(arch, minimum_arch()):
        return []
    dtypes = tuple(dtype for dtype in DTYPES if dtype in dtypes)
    problems = [contiguous_problem(dtype, 1, 1, 1) for dtype in dtypes]
    makers = [maker_step(p, shared, "int32", ()) for p in problems for shared in ("m", "n", "k")]
    specs = Program(tuple(makers)).specs + indexed_specs(dtypes) + wgmma_specs(dtypes, arch)
    return list(dict.fromkeys(specs))


def most_tiles(problem: Problem, shared: str, count: int, tile_m: int, tile_n: int) -> int:
    """Largest number of tiles of all results, whatever the offsets."""

    def along(size: int, tile: int, is_shared: bool) -> int:
        # Each problem may end with a tile of one element.
        return (size + min(count, size) * (tile - 1)) // tile if is_shared else -(-size // tile)

    tiles = along(problem.m, tile_m, shared == "m") * along(problem.n, tile_n, shared == "n")
    return tiles * count if shared == "k" else tiles


def maker_step(
    problem: Problem, shared: str, offsets_dtype: str, operands: tuple[Value, ...]
) -> Step:
    """Step that makes the table and the factors of each problem; `batch` counts them."""
    from dxgemm.handwritten.kernels import group_offsets as file

    p, dtype = problem, problem.scalar_dtype
    buffers = tuple(FusedOperand("buffer", name) for name in (offsets_dtype, "int64", dtype))
    fusion = Fusion((), (*buffers, *[FusedOperand("number", "int64")] * 2))
    arguments = KernelArguments(dtype, p.m, p.n, p.k, p.batch, p.a, p.b, p.c, p.out, fusion)
    return file_step(file, arguments, (shared,), blocks=1, operands=operands)


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
