"""`dxgemm occupancy`: the resident blocks per SM of a rung, step by step."""

from __future__ import annotations

from typing import Annotated

import typer

import dxgemm
from dxgemm.cli.output import JsonOption, print_json
from dxgemm.cli.rungs import (
    SHOWN_SIZE,
    Arithmetic,
    ArithmeticOption,
    ConfigOption,
    RungArgument,
    default_arch,
    find_config,
    find_rung,
    require_support,
)
from dxgemm.compiler import KernelRecord, obtain_kernel
from dxgemm.gpu.occupancy import (
    REGISTER_UNIT,
    SMEM_UNIT,
    WARP_THREADS,
    WARP_UNIT,
    Occupancy,
    sm_limits,
)
from dxgemm.gpu.occupancy import occupancy as calculate

# What is printed as JSON.
OF_RECORD = "implementation", "config", "arch", "threads", "registers", "smem_bytes"
OF_RESULT = "blocks_by", "blocks", "limiters", "resident_warps", "most_warps"


class UnknownSmError(dxgemm.DxgemmError, ValueError):
    """The limits of this architecture's SMs are not known."""


def occupancy(
    rung: RungArgument,
    config: ConfigOption = None,
    dtype: ArithmeticOption = Arithmetic.float32,
    arch: Annotated[
        str | None,
        typer.Option(help="Such as sm_90a, which needs no GPU; default: this GPU's, or sm_90a."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Work out how many blocks of a rung an SM holds at once, and what limits them."""
    implementation = find_rung(rung, dtype)
    problem = dtype.problem(SHOWN_SIZE)
    chosen = find_config(implementation, config, dtype)
    arch = arch or default_arch()
    limits = sm_limits(arch)
    if limits is None:
        raise UnknownSmError(f"the limits of an SM of {arch!r} are not known; try --arch sm_90a.")
    require_support(implementation, problem, arch)
    record = obtain_kernel(implementation.spec_for(chosen, problem), arch).record
    result = calculate(limits, record.threads, record.registers, record.smem_bytes)
    if as_json:
        own = {name: getattr(record, name) for name in OF_RECORD}
        found = {name: getattr(result, name) for name in OF_RESULT}
        print_json({**own, "dtype": dtype.value, **found, "occupancy": result.fraction})
        return
    typer.echo(f"{record.implementation} {record.config}, {dtype.value}, on {arch}")
    for label, text in occupancy_steps(record, result):
        typer.echo(f"  {label:<15}{text}")


def occupancy_steps(record: KernelRecord, result: Occupancy) -> list[tuple[str, str]]:
    """Describe the calculation as lines of (quantity, text)."""
    limits, warps = result.limits, result.warps
    by = result.blocks_by
    asked = record.registers * WARP_THREADS
    fitting = limits.registers // result.registers_of_warp
    steps = [
        ("a block", f"{record.threads} threads: {_count(warps, 'warp')} of {WARP_THREADS}"),
        (
            "threads",
            f"an SM holds {limits.threads} threads, {result.most_warps} warps; "
            f"{result.most_warps} / {warps}: {_count(by['threads'], 'block')}",
        ),
        (
            "registers",
            f"{record.registers} per thread, {asked} per warp, handed out by {REGISTER_UNIT}: "
            f"{result.registers_of_warp}",
        ),
        (
            "",
            f"{limits.registers} / {result.registers_of_warp}: {fitting} warps, by "
            f"{WARP_UNIT}s: {fitting // WARP_UNIT * WARP_UNIT}; / {warps}: "
            f"{_count(by['registers'], 'block')}",
        ),
    ]
    if "shared memory" in by:
        steps += [
            (
                "shared memory",
                f"{record.smem_bytes} bytes and {limits.reserved_smem_bytes} of the system, handed "
                f"out by {SMEM_UNIT}: {result.smem_bytes_of_block}",
            ),
            (
                "",
                f"{limits.smem_bytes} / {result.smem_bytes_of_block}: "
                f"{_count(by['shared memory'], 'block')}",
            ),
        ]
    else:
        steps.append(("shared memory", "none"))
    steps += [
        ("blocks", f"an SM holds at most {limits.blocks}"),
        (
            "together",
            f"{_count(result.blocks, 'block')}, {result.resident_warps} of {result.most_warps} "
            f"warps: {result.fraction:.1%} occupancy, limited by {' and '.join(result.limiters)}",
        ),
    ]
    return steps


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
