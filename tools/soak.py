"""Random problems of every sort on several threads and streams, each result checked.

    PYTHONPATH=tests python tools/soak.py --minutes 20 --seed 1
    PYTHONPATH=tests python tools/soak.py --seed 1 --problem 4711      # one of them again, alone

Problems are drawn from a list of kernels, so that few are built: of each implementation its first
and last config in every kind of arithmetic, in layouts of all sorts, with epilogues, reductions,
split-K slices, groups, and the automatic choice. Sizes, batches, scalars, data, streams and whether
`gemm` or a plan is called vary; some sizes need variants of the kernels, which are built during the
run. Most data are small integers, whose results must be right to the last bit; the others are
judged by the acceptance rule. Operands lie between guards.

It stops at the first wrong result, and when what it takes of the GPU's memory has grown since each
kernel of the list was loaded. `--out` writes the counts, which docs/reliability.md shows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from recorded_runs import run_info, write_run
from soak_problems import compute, draw, kernels

from dxgemm import errors
from dxgemm.gpu.status import probe, simulator_enabled
from dxgemm.runtime import workspace

THREADS = 1 if simulator_enabled() else 8  # numba's simulator knows one kernel at a time
STREAMS = 3  # of each thread, besides the default ones
SAMPLE_S = 5.0
# Bytes of the GPU's memory: what is kept for workspaces, and the pieces that the driver hands out.
MOST_GROWTH = workspace.KEPT_BYTES + (64 << 20)
WARM_UP = 3  # samples before memory has to stay flat


class Soak:
    """Run of the soak test: counts of what was computed so far, and the first failure.

    Attributes:
        counts: numbers of problems, also by kind, implementation and extra; of calls; of refusals.
        failure: first failure, with the command that repeats it; "" as long as nothing failed.
    """

    def __init__(self, seed: int, most_problems: int | None = None) -> None:
        self.seed = seed
        self.counts: Counter[tuple[str, str]] = Counter()
        self.failure = ""
        self._end = len(kernels()) + most_problems if most_problems else sys.maxsize
        self._numbers = itertools.count(len(kernels()))
        self._lock = threading.Lock()

    def step(self, number: int) -> None:
        """Compute one problem; an error is the run's failure."""
        problem = draw(self.seed, number)
        try:
            compute(problem)
            names = [
                ("problems", ""),
                ("kind", problem.kernel.kind),
                ("implementation", problem.kernel.name),
                ("extra", problem.kernel.extra or "none"),
            ]
        except errors.UnsupportedProblemError:
            names = [("refused", problem.kernel.name)]
        except Exception as error:
            is_wrong = isinstance(error, AssertionError)
            what = f"wrong result: {error}" if is_wrong else traceback.format_exc()
            again = f"PYTHONPATH=tests python tools/soak.py --seed {self.seed} --problem {number}"
            with self._lock:
                self.failure = self.failure or f"{problem}\n{what}\n{again}"
            return
        with self._lock:
            self.counts.update(names)
            self.counts["calls", ""] += problem.calls

    def work(self, until: float) -> None:
        """Compute problems in this thread, on streams of its own, until a time."""
        streams = [contextlib.nullcontext()]
        if not simulator_enabled():
            import cupy

            streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
            streams += [cupy.cuda.Stream.null, cupy.cuda.Stream.ptds]
        for stream in itertools.cycle(streams):
            number = next(self._numbers)
            if self.failure or number >= self._end or time.monotonic() > until:
                return
            with stream:
                self.step(number)

    def load_all(self) -> None:
        """Compute one problem with each kernel."""
        for number in range(len(kernels())):
            if not self.failure:
                self.step(number)

    def run(self, minutes: float, threads: int) -> list[int]:
        """Compute problems in several threads; returns samples of the memory it takes, in bytes."""
        until = time.monotonic() + 60 * minutes
        samples = [memory_bytes()]
        with ThreadPoolExecutor(threads) as pool:
            workers = [pool.submit(self.work, until) for _ in range(threads)]
            while wait(workers, SAMPLE_S).not_done:
                samples.append(memory_bytes())
                growth = samples[-1] - samples[:WARM_UP][-1]
                if growth > MOST_GROWTH and not self.failure:
                    self.failure = f"memory on the GPU has grown by {growth} bytes: {samples}"
        for worker in workers:
            worker.result()
        return [*samples, memory_bytes()]


def memory_bytes() -> int:
    """Bytes of GPU memory that this process holds, without the pool of CuPy's arrays.

    If the driver does not know the process by its number, as in most containers, the memory of all
    processes counts.
    """
    if simulator_enabled():
        return 0
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    taken = own_memory_bytes(nvidia_smi()) or total - free
    return int(taken - cupy.get_default_memory_pool().total_bytes())


def nvidia_smi() -> str:
    """Output of nvidia-smi: number and MiB of each process on a GPU, one a line; "" if it fails."""
    columns = "--query-compute-apps=pid,used_gpu_memory"
    asked = ["nvidia-smi", columns, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def own_memory_bytes(processes: str) -> int:
    """Bytes of GPU memory of this process in the output of `nvidia_smi`; 0 if not listed."""
    lines = (line.partition(", ") for line in processes.splitlines())
    return sum(int(mib) << 20 for pid, _, mib in lines if pid == str(os.getpid()) and mib.isdigit())


def build(seed: int, number: int) -> str:
    """Build a kernel by computing a problem with it, in a process of its own; a failure, or ""."""
    soak = Soak(seed)
    soak.step(number)
    return soak.failure


def report(soak: Soak, samples: list[int], seconds: float, threads: int) -> dict[str, Any]:
    """Report of a run, as it is committed: counts, memory and failure."""
    by: dict[str, dict[str, int]] = {}
    for (group, name), count in sorted(soak.counts.items()):
        by.setdefault(group, {})[name] = count
    return {
        **run_info(),
        "seed": soak.seed,
        "seconds": round(seconds, 1),
        "threads": threads,
        "streams": threads * STREAMS + 2,
        "kernels": len(kernels()),
        "problems": soak.counts["problems", ""],
        "calls": soak.counts["calls", ""],
        "refused": by.get("refused", {}),
        "by_kind": by.get("kind", {}),
        "by_implementation": by.get("implementation", {}),
        "by_extra": by.get("extra", {}),
        "memory_bytes": {
            "start": samples[:WARM_UP][-1],
            "most": max(samples[WARM_UP - 1 :] or samples),
            "end": samples[-1],
        },
        "failure": soak.failure,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--problem", type=int, help="compute this one only")
    parser.add_argument("--out", type=Path, help="write the counts here, as JSON")
    jobs = min(15, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs, help="processes that build kernels first")
    arguments = parser.parse_args()
    problem = probe().problem
    if problem is not None and not simulator_enabled():
        print(f"soak: {problem}", file=sys.stderr)
        return 2
    soak = Soak(arguments.seed)
    if arguments.problem is not None:
        print(draw(arguments.seed, arguments.problem))
        soak.step(arguments.problem)
        print(soak.failure or "right")
        return bool(soak.failure)
    if arguments.jobs > 1:
        with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            numbers = range(len(kernels()))
            failures = pool.map(partial(build, arguments.seed), numbers, chunksize=1)
        soak.failure = next(filter(None, failures), "")
    soak.load_all()
    soak.counts.clear()
    start = time.monotonic()
    samples = soak.run(arguments.minutes, arguments.threads)
    counts = report(soak, samples, time.monotonic() - start, arguments.threads)
    if arguments.out:
        write_run(arguments.out, counts)
    print(json.dumps({**counts, "failure": bool(soak.failure)}, indent=1))
    if soak.failure:
        print(soak.failure, file=sys.stderr)
    return bool(soak.failure)


if __name__ == "__main__":
    sys.exit(main())
