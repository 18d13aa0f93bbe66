"""`dxgemm profile`: the GPU's counters of one launch of a rung."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Annotated, Any

import typer

import dxgemm
from dxgemm.cli.counters import (
    STALLS,
    Launch,
    busiest_pipe,
    ncu_command,
    parse_launches,
    top_stall,
)
from dxgemm.cli.device import require_gpu
from dxgemm.cli.output import JsonOption, note, print_json
from dxgemm.cli.rungs import (
    SHOWN_SIZE,
    Arithmetic,
    ArithmeticOption,
    ConfigOption,
    RungArgument,
    find_config,
    find_rung,
    require_support,
)
from dxgemm.gpu.status import simulator_enabled
from dxgemm.tuning.measure import array_module, random_operands

EXPLANATION = """\
Three counters say most of what there is to know of a GEMM:

  units busy      How often the units that multiply had work: fma (float32), fp64 (float64) or the
                  tensor cores. 100 % is the speed of light; what is missing went into the next two.
  shared memory   How busy the path to it is, and which part of its passes bank conflicts cost. Near
                  100 % the multipliers starve: more reuse in registers, wider loads or another
                  layout help.
  top stall       What warps wait for, in cycles per instruction. long_scoreboard: global memory, so
                  prefetch. short_scoreboard, mio_throttle: shared memory. barrier: too few warps
                  or blocks to hide it. math_pipe_throttle, not_selected: the units are the limit,
                  which is the end of the ladder."""


class ProfilerError(dxgemm.DxgemmError, RuntimeError):
    """ncu failed, or counted nothing."""


def profile(
    rung: RungArgument,
    config: ConfigOption = None,
    dtype: ArithmeticOption = Arithmetic.float32,
    size: Annotated[int, typer.Option(min=1, help="m = n = k.")] = SHOWN_SIZE,
    once: Annotated[
        bool, typer.Option("--once", help="Launch the rung once: what the profiler runs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the ncu command for one launch of a rung, run it where ncu is, and explain it."""
    implementation = find_rung(rung, dtype)
    if once:
        launch_once(implementation, config, dtype, size)
        return
    require_gpu("profiling")
    command = profile_command(implementation.name, config, dtype, size)
    ncu = shutil.which("ncu")
    values: dict[str, float] = {}
    if ncu is None:
        note("ncu is not on the PATH: it comes with the CUDA toolkit, as Nsight Compute.")
    else:
        ((_, values),) = profiled_launches(ncu_command(command, ncu=ncu, as_csv=True))
    if as_json:
        print_json({"command": shlex.join(ncu_command(command)), "counters": values})
        return
    typer.echo(f"{shlex.join(ncu_command(command))}\n\n{EXPLANATION}")
    if values:
        typer.echo(f"\n{implementation.name}, {dtype.value}, m = n = k = {size}:\n")
        for label, text in summary(values):
            typer.echo(f"  {label:<16}{text}")


def profile_command(name: str, config: str | None, dtype: Arithmetic, size: int) -> list[str]:
    """Make the arguments of the Python interpreter for one launch."""
    chosen = ["--config", config] if config else []
    options = ["--dtype", dtype.value, "--size", str(size), "--once"]
    return ["-m", "dxgemm", "profile", name, *chosen, *options]


def launch_once(implementation: Any, config: str | None, dtype: Arithmetic, size: int) -> None:
    """Launch a rung once, on standard normal operands."""
    require_support(implementation, dtype.problem(size))
    chosen: Any = implementation.name
    if config is not None:
        chosen = (implementation.name, find_config(implementation, config, dtype))
    a, b, _ = random_operands(dtype.workload(size))
    dxgemm.gemm(a, b, implementation=chosen, precision=dtype.precision)
    if not simulator_enabled():
        array_module().cuda.Device().synchronize()


def profiled_launches(command: list[str]) -> list[Launch]:
    """Run ncu and read the launches, each with its kernel's name.

    Raises:
        ProfilerError: ncu failed; the error holds its message.
    """
    finished = subprocess.run(command, capture_output=True, text=True)
    launches = parse_launches(finished.stdout)
    if finished.returncode or not launches:
        said = (finished.stdout + finished.stderr).strip().splitlines()
        errors = [line for line in said if "ERROR" in line or "error" in line] or said[-1:]
        raise ProfilerError(f"ncu counted nothing: {' '.join(errors) or 'it said nothing'}")
    return launches


def summary(values: dict[str, float]) -> list[tuple[str, str]]:
    """Describe the three counters and their context as lines of (quantity, text)."""
    lines = []
    if "time_ns" in values:
        lines.append(("time", f"{values['time_ns'] / 1e3:.1f} us"))
    busiest = busiest_pipe(values)
    if busiest is not None:
        lines.append(("units busy", f"{busiest[0]} {busiest[1]:.1f} %"))
    if "issue_percent" in values:
        lines.append(("issue slots", f"{values['issue_percent']:.1f} %"))
    if "smem_percent" in values:
        conflicts = values.get("smem_conflicts", 0) / max(values.get("smem_wavefronts", 0), 1)
        text = f"{values['smem_percent']:.1f} % busy, {conflicts:.1%} of it bank conflicts"
        lines.append(("shared memory", text))
    stall = top_stall(values)
    if stall is not None:
        cycles = values[f"stall_{stall}"]
        text = f"{stall}, {cycles:.2f} cycles per instruction: {STALLS[stall]}"
        lines.append(("top stall", text))
    if "warps_percent" in values:
        lines.append(("occupancy", f"{values['warps_percent']:.1f} % of the warps"))
    return lines
