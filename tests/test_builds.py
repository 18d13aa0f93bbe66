"""Each kernel is built once, by whoever wants it first, and nobody waits for a slow one in vain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SOURCES

PROCESSES = 16
PATH = os.pathsep.join([str(SOURCES), str(Path(__file__).parent)])
PATIENCE_S = 120  # for what happens in a moment, on a busy machine too


@pytest.fixture
def builds(tmp_path):
    """The file that counted builds are written to."""
    path = tmp_path / "builds"
    path.touch()
    return path


@pytest.fixture
def environment(tmp_path, builds):
    """Counts the builds of a process, which has an empty cache."""
    return {
        "PYTHONPATH": PATH,
        "COUNTED_BUILDS": str(builds),
        "DXGEMM_CACHE_DIR": str(tmp_path / "cache"),
    }


@pytest.fixture
def start(environment):
    """Starts a program beside the test, and ends it with the test."""
    started = []

    def start(program):
        inherited = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**inherited, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(is_so):
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def names(builds):
    return sorted(builds.read_text().split())


OBTAIN = """
import counted_builds
from dxgemm.compiler import obtain_kernel
spec = counted_builds.spec("one", {options})
print(obtain_kernel(spec, counted_builds.ARCH).cubin.decode())
"""


def test_processes_that_start_cold_together_build_a_kernel_once(run_python, environment, builds):
    with ThreadPoolExecutor(PROCESSES) as pool:
        program = OBTAIN.format(options="seconds=0.3")
        runs = [pool.submit(run_python, program, **environment) for _ in range(PROCESSES)]
    assert {run.result() for run in runs} == {"cubin of one\n"}
    assert names(builds) == ["one"]


OBTAIN_IN_THREADS = """
import counted_builds
from concurrent.futures import ThreadPoolExecutor
from dxgemm.compiler import obtain_kernel
specs = [counted_builds.spec(name, gate={gate!r}) for name in ("one", "two")] * 4
with ThreadPoolExecutor(len(specs)) as pool:
    kernels = list(pool.map(lambda spec: obtain_kernel(spec, counted_builds.ARCH), specs))
assert len(set(map(id, kernels))) == 2
"""


def test_threads_build_a_kernel_once_and_different_kernels_together(start, builds, tmp_path):
    gate = tmp_path / "gate"
    process = start(OBTAIN_IN_THREADS.format(gate=str(gate)))
    wait_until(lambda: names(builds) == ["one", "two"])  # neither has ended yet
    gate.touch()
    _, messages = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, messages
    assert names(builds) == ["one", "two"]


OBTAIN_FUNCTIONS = """
import os, time
from test_cublasdx import DESCRIPTOR, FUNCTIONS
from dxgemm.cublasdx import function_store

def build(descriptor):
    with open(os.environ["COUNTED_BUILDS"], "a") as file:
        file.write("functions\\n")
    time.sleep(0.3)
    return FUNCTIONS

function_store.build_functions = build
assert function_store.obtain_functions(DESCRIPTOR) == FUNCTIONS
"""


def test_device_functions_are_built_once_too(run_python, environment, builds):
    with ThreadPoolExecutor(PROCESSES) as pool:
        runs = [pool.submit(run_python, OBTAIN_FUNCTIONS, **environment) for _ in range(PROCESSES)]
    assert [run.result() for run in runs] == [""] * PROCESSES
    assert names(builds) == ["functions"]


def test_a_killed_builder_blocks_nobody(start, builds, tmp_path):
    gate = tmp_path / "gate"
    program = OBTAIN.format(options=f"gate={str(gate)!r}")
    killed = start(program)
    wait_until(lambda: names(builds) == ["one"])
    waiting = start(program)
    os.kill(killed.pid, signal.SIGKILL)
    gate.touch()
    output, messages = waiting.communicate(timeout=PATIENCE_S)
    assert output == "cubin of one\n", messages
    assert names(builds) == ["one", "one"]
