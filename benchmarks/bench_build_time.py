"""What a new process pays for dxgemm: its import, its first call, its kernels.

Every sample is a process of its own, see `fresh_process.py`. The first is not counted, so that
files come from the page cache and byte code is compiled; it also fills the warm kernel cache.
A cold kernel cache is an empty folder for every process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from interleave import replay, replay_clock

from dxgemm._gpu import simulator_enabled

SMOKE = simulator_enabled()
ROUNDS = 1 if SMOKE else 5
DTYPES = ["float32"] if SMOKE else ["float32", "float64"]
SIZE = 8 if SMOKE else 1024
TARGETS_S = {
    "import dxgemm": 0.15,
    "first call, warm cache": 0.5,
    "first call, cold cache": 3.0,
    "build of every kernel": None,
}

pytestmark = pytest.mark.benchmark(timer=replay_clock)


def run_fresh(cache: Path, *arguments: str, simulator: bool = SMOKE) -> dict[str, Any]:
    """Run one step in a new process; `cache` is its kernel cache."""
    environment = {**os.environ, "DXGEMM_CACHE_DIR": str(cache)}
    environment["NUMBA_ENABLE_CUDASIM"] = "1" if simulator else "0"
    command = [sys.executable, str(Path(__file__).with_name("fresh_process.py")), *arguments]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def report(benchmark: Any, step: str, samples: list[dict[str, Any]], **problem: object) -> None:
    """Hand the samples to pytest-benchmark, without the first."""
    seconds = [sample["seconds"] for sample in samples[1:]]
    benchmark.group = step
    benchmark.extra_info.update(
        step=step,
        seconds=statistics.median(seconds),
        target_s=TARGETS_S[step],
        loaded=samples[-1]["loaded"],
        **problem,
    )
    replay(benchmark, seconds)


def bench_import(benchmark: Any, tmp_path: Path) -> None:
    """`import dxgemm` after `import numpy`."""
    samples = [run_fresh(tmp_path, "import") for _ in range(1 + ROUNDS)]
    report(benchmark, "import dxgemm", samples)
    assert not samples[-1]["loaded"]


@pytest.mark.parametrize("implementation", ["coalesced", "thread_tile_2d"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", ["warm", "cold"])
def bench_first_call(
    benchmark: Any, tmp_path: Path, cache: str, dtype: str, implementation: str
) -> None:
    """`import dxgemm` and the first gemm, after CuPy, its context and the operands."""
    caches = (tmp_path / (str(index) if cache == "cold" else "warm") for index in count())
    arguments = ["gemm", f"--dtype={dtype}", f"--implementation={implementation}"]
    arguments += [f"--size={SIZE}", f"--library={'numpy' if SMOKE else 'cupy'}"]
    samples = [run_fresh(next(caches), *arguments) for _ in range(1 + ROUNDS)]
    problem = {"dtype": dtype, "implementation": implementation, "m": SIZE, "n": SIZE, "k": SIZE}
    report(benchmark, f"first call, {cache} cache", samples, **problem)
    if cache == "warm" and not SMOKE:
        assert not samples[-1]["loaded"]


def bench_build(benchmark: Any, tmp_path: Path) -> None:
    """`dxgemm.build()` of every kernel for this GPU; in the smoke run, of one for sm_90a."""
    arguments = ["--arch=sm_90a", "--implementation=coalesced"] if SMOKE else []
    samples = [
        run_fresh(tmp_path / str(index), "build", *arguments, simulator=False)
        for index in range(1 + ROUNDS)
    ]
    report(benchmark, "build of every kernel", samples, kernels=samples[-1]["returned"])
