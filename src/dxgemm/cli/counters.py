"""GPU counters that tell what limits a kernel, as Nsight Compute (`ncu`) names them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO
from typing import NamedTuple

PERCENT = "avg.pct_of_peak_sustained_active"
# ncu's names of counters, by dxgemm's.
COUNTERS = {
    "time_ns": "gpu__time_duration.sum",
    "issue_percent": f"sm__inst_issued.{PERCENT}",  # issue slots that held an instruction
    # Units busy: multiply-adds of float32 and of float64, and tensor cores.
    "fma_percent": f"sm__inst_executed_pipe_fma.{PERCENT}",
    "fp64_percent": f"sm__inst_executed_pipe_fp64.{PERCENT}",
    "tensor_percent": f"sm__pipe_tensor_cycles_active.{PERCENT}",
    # Shared memory: its path busy, extra passes that bank conflicts cost, and all passes.
    "smem_percent": f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{PERCENT}",
    "smem_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "smem_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "dram_bytes": "dram__bytes.sum",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",  # from the L2 cache to SMs
    "warps_percent": f"sm__warps_active.{PERCENT}",  # resident warps: achieved occupancy
    "registers": "launch__registers_per_thread",
    "blocks": "launch__grid_size",
    "waves": "launch__waves_per_multiprocessor",
}

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# Reasons why a warp waits; the counters give cycles per instruction.
STALLS = {
    "barrier": "other warps, at a barrier",
    "dispatch_stall": "the dispatcher",
    "gmma": "wgmma, which runs on its own",
    "lg_throttle": "a place in the queue to global memory",
    "long_scoreboard": "data from global memory",
    "math_pipe_throttle": "the arithmetic unit, which is taken",
    "mio_throttle": "a place in the queue to shared memory",
    "no_instruction": "the next instruction, from the instruction cache",
    "not_selected": "a turn: other warps were ready too",
    "short_scoreboard": "data from shared memory",
    "sleeping": "the end of a sleep",
    "wait": "the fixed latency of the last instruction",
}


def metrics() -> list[str]:
    """List all metrics to ask ncu for."""
    return [*COUNTERS.values(), *map(_STALL.format, STALLS)]


def ncu_command(
    profiled: Sequence[str], *, ncu: str = "ncu", launches: int | None = 1, as_csv: bool = False
) -> list[str]:
    """Make the command that profiles kernels that a Python program launches.

    Args:
        profiled: arguments of the Python interpreter.
        ncu: path of the profiler.
        launches: profile so many launches of dxgemm's kernels, the first ones; None for all
            kernels that are launched while the program has the CUDA profiler started.
        as_csv: True to print CSV with the counters' plain values, for programs.
    """
    # numba names a kernel by its module.
    own = ("--kernel-name-base", "mangled", "--kernel-name", "regex:handwritten")
    return [
        ncu,
        *("--clock-control", "none"),  # as it is outside the profiler
        *(("--profile-from-start", "off") if launches is None else own),
        *(() if launches is None else ("--launch-count", str(launches))),
        *(("--csv", "--print-units", "base") if as_csv else ()),
        *("--metrics", ",".join(metrics())),
        sys.executable,
        *profiled,
    ]


class Launch(NamedTuple):
    """Name of a kernel, and the counters of one launch of it, by name; `stall_<name>` is a stall.

    Counters that the GPU does not have are missing.
    """

    kernel: str
    values: dict[str, float]


def parse_launches(output: str) -> list[Launch]:
    """Read the launches from ncu's CSV, in order, without those of which nothing was counted."""
    names = {metric: name for name, metric in COUNTERS.items()}
    names |= {_STALL.format(name): f"stall_{name}" for name in STALLS}
    lines = [line for line in output.splitlines() if line.startswith('"')]
    launches: dict[str, Launch] = {}
    for row in csv.DictReader(StringIO("\n".join(lines))):
        name = names.get(row.get("Metric Name", ""))
        text = row.get("Metric Value", "").replace(",", "")
        launch = launches.setdefault(row.get("ID", ""), Launch(row.get("Kernel Name", ""), {}))
        if name is not None:
            with suppress(ValueError):  # of "n/a"
                launch.values[name] = float(text)
    return [launch for launch in launches.values() if launch.values]


def top_stall(values: dict[str, float]) -> str | None:
    """Find the reason that warps wait for most; None if ncu gave none."""
    stalls = {name: values.get(f"stall_{name}", 0.0) for name in STALLS}
    longest = max(stalls, key=lambda name: stalls[name])
    return longest if stalls[longest] else None


def busiest_pipe(values: dict[str, float]) -> tuple[str, float] | None:
    """Find the busiest arithmetic units, with their utilisation in percent."""
    pipes = {"fma": "fma_percent", "fp64": "fp64_percent", "tensor": "tensor_percent"}
    found = {pipe: values[name] for pipe, name in pipes.items() if name in values}
    return max(found.items(), key=lambda item: item[1]) if found else None
