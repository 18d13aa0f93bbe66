"""Each kernel is built once, by whoever wants it first, and nobody waits for a slow one in vain."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import counted_builds
import numpy as np
import pytest
from conftest import SOURCES
from counted_builds import ARCH, DEATH, NAME, PATIENCE_S
from filelock import FileLock

import dxgemm
from dxgemm import compiler, errors
from dxgemm.call import bind as binding
from dxgemm.call import route
from dxgemm.choice import legality, registry, selection
from dxgemm.choice.implementation import Implementation
from dxgemm.choice.tables import Speed
from dxgemm.compiler import KernelSpec, ahead, kernel_store, kernels, obtain_kernel
from dxgemm.lower.ahead import kernel_specs
from dxgemm.lower.product import lower_candidate

PROCESSES = 16
THREADS = 8
PATH = os.pathsep.join([str(SOURCES), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


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
            [sys.executable, "-c", program], env={**inherited, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
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


OBTAIN_IN_THREADS = """
import counted_builds
from concurrent.futures import ThreadPoolExecutor
from dxgemm.compiler import obtain_kernel
specs = [counted_builds.spec(name, {options}) for name in ("one", "two")] * {count}
with ThreadPoolExecutor(len(specs)) as pool:
    kernels = list(pool.map(lambda spec: obtain_kernel(spec, counted_builds.ARCH), specs))
assert len(set(map(id, kernels))) == 2
assert [kernel.cubin.decode() for kernel in kernels[:2]] == ["cubin of one", "cubin of two"]
"""


def test_threads_of_processes_that_start_cold_together_build_a_kernel_once(
    run_python, environment, builds
):
    program = OBTAIN_IN_THREADS.format(options="seconds=0.3", count=THREADS // 2)
    with ThreadPoolExecutor(PROCESSES) as pool:
        runs = [pool.submit(run_python, program, **environment) for _ in range(PROCESSES)]
    assert [run.result() for run in runs] == [""] * PROCESSES
    assert names(builds) == ["one", "two"]


def test_threads_build_a_kernel_once_and_different_kernels_together(start, builds, tmp_path):
    gate = tmp_path / "gate"
    options = f"gate={str(gate)!r}"
    process = start(OBTAIN_IN_THREADS.format(options=options, count=THREADS // 2))
    wait_until(lambda: names(builds) == ["one", "two"])  # neither has ended yet
    gate.touch()
    _, messages = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, messages
    assert names(builds) == ["one", "two"]


OBTAIN_FUNCTIONS = """
import os, time
from stored_functions import DESCRIPTOR, FUNCTIONS
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


INTERRUPTED_BUILD = """
import counted_builds, os, pathlib, signal, threading, time
from dxgemm.compiler import obtain_kernel

def interrupt():
    while not os.path.getsize(os.environ["COUNTED_BUILDS"]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored from outside
threading.Thread(target=interrupt).start()
spec = counted_builds.spec("one", gate={gate!r})
try:
    obtain_kernel(spec, counted_builds.ARCH)
except KeyboardInterrupt:
    pathlib.Path({gate!r}).touch()
    print(obtain_kernel(spec, counted_builds.ARCH).cubin.decode())
"""


def test_an_interrupted_build_can_be_made_again(run_python, environment, builds, tmp_path):
    program = INTERRUPTED_BUILD.format(gate=str(tmp_path / "gate"))
    assert run_python(program, **environment) == "cubin of one\n"
    assert names(builds) == ["one", "one"]


FORKED_BY_ANOTHER_THREAD = """
import os, threading, time
from dxgemm.compiler.locks import mathdx_lock, numba_lock

def build():  # as kernels over cuBLASDx are built
    with numba_lock:
        has_begun.set()
        time.sleep(0.3)
        with mathdx_lock:
            pass

has_begun = threading.Event()
threading.Thread(target=build).start()
has_begun.wait()
child = os.fork()
are_free = numba_lock.acquire(timeout=10) and mathdx_lock.acquire(timeout=10)
if child == 0:
    os._exit(not are_free)
assert are_free and os.waitpid(child, 0)[1] == 0
"""


def test_a_process_forked_while_a_thread_builds_can_build(run_python):
    run_python(FORKED_BY_ANOTHER_THREAD)


FORKED_DURING_A_LAUNCH = """
import os, signal, threading, time
import numpy as np, dxgemm
from numba.cuda.simulator import kernel

ones = np.ones((40, 40), np.float32)
dxgemm.gemm(ones[:2], ones)
other = threading.Thread(target=dxgemm.gemm, args=(ones, ones))
other.start()
while kernel._kernel_context is None:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that waits forever
is_right = (dxgemm.gemm(ones[:2], ones) == 40).all()
if child == 0:
    os._exit(not is_right)
assert is_right and os.waitpid(child, 0)[1] == 0
"""


def test_a_process_forked_during_a_simulated_launch_can_launch(run_python):
    run_python(FORKED_DURING_A_LAUNCH, NUMBA_ENABLE_CUDASIM="1")


def test_a_fork_waits_for_every_lock_that_a_call_waits_for():
    sources = Path(dxgemm.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "RLock(" in path.read_text()] == ["locks.py"]


@dataclass(frozen=True, eq=False)
class Counted(Implementation):
    """A kernel whose builds are counted; what is run in its place is `naive`."""

    counted: KernelSpec | None = None

    def supports(self, problem):
        return None

    def configs(self, dtype=None, arch=None):
        return registry.find_implementation("naive").configs(dtype, arch)[:1]


@pytest.fixture
def register(monkeypatch, environment):
    """Puts a `Counted` in front of all implementations, the quickest, beside an empty cache."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(kernels, "compile_kernel", counted_builds.compile_counted)

    def lower(problem, candidate, device):
        if isinstance(candidate.implementation, Counted):
            obtain_kernel(candidate.implementation.counted, device.arch)
            candidate = candidate._replace(implementation=registry.find_implementation("naive"))
        return lower_candidate(problem, candidate, device)

    monkeypatch.setattr(binding, "lower_candidate", lower)

    def register(**options):
        first = Counted(NAME, "", counted=counted_builds.spec("one", **options))
        for module in (legality, selection):
            monkeypatch.setattr(module, "IMPLEMENTATIONS", (first, *registry.IMPLEMENTATIONS))
        monkeypatch.setitem(registry._by_name, NAME, first)
        forget()

    def speed_of(row, *arguments):
        quickest = Speed(2.0, launch_us=0.1, fill_us=0.1, tile_us=0.1)
        return quickest if row.implementation.name == NAME else known_speed_of(row, *arguments)

    known_speed_of = selection.speed_of
    monkeypatch.setattr(selection, "speed_of", speed_of)
    yield register
    monkeypatch.undo()
    forget()


def forget():
    """Leave what is on disk only."""
    kernel_store.cache_clear()
    kernels._in_memory.clear()
    route.clear_routes()
    legality._automatic_kernels.cache_clear()
    selection.forget_candidates()


@pytest.fixture
def a(home):
    return home.send(np.eye(3, dtype=np.float32))


def test_what_is_not_built_is_built_by_the_call_that_needs_it(register, home, a, builds):
    register()
    np.testing.assert_array_equal(home.fetch(dxgemm.gemm(a, a)), np.eye(3))
    assert dxgemm.explain(a, a).implementation == NAME
    assert names(builds) == ["one"]
    forget()
    assert dxgemm.plan(a, a, implementation=NAME).explain().implementation == NAME
    assert names(builds) == ["one"]


def test_the_next_candidate_takes_the_place_of_one_that_cannot_be_built(register, home, a):
    register(failure="NVRTC failed")
    with pytest.warns(RuntimeWarning, match=f"takes the place of {NAME}.*NVRTC failed"):
        result = dxgemm.gemm(a, a)
    np.testing.assert_array_equal(home.fetch(result), np.eye(3))
    explained = dxgemm.explain(a, a)
    assert explained.choice.rejected[NAME].startswith("not built: ")
    assert "NVRTC failed" in explained.choice.rejected[NAME]
    with pytest.raises(errors.BuildError, match="NVRTC failed"):
        dxgemm.gemm(a, a, implementation=NAME)


BUILD_SOME = """
import counted_builds, json, sys
from dxgemm import errors
from dxgemm.compiler import build_kernels
options = json.loads(sys.argv[1])
tasks = [(counted_builds.spec(name, **more), counted_builds.ARCH) for name, more in options.items()]
steps = []
try:
    built = build_kernels(tasks, int(sys.argv[2]), lambda *step: steps.append(step))
    print([kernel.record.config for kernel in built], [done for done, _, _ in steps])
except errors.BuildError as error:
    print("BuildError", error)
"""


@pytest.mark.parametrize("jobs", [1, 3])
def test_kernels_are_built_ahead_by_several_processes(run_python, environment, builds, jobs):
    kernels = {name: {} for name in ("one", "two", "three", "four", "five")}
    for _ in range(2):  # the second time they are all there
        printed = run_python(BUILD_SOME, json.dumps(kernels), str(jobs), **environment)
        assert printed.startswith(f"{list(kernels)} [")
        assert names(builds) == sorted(kernels)
    assert printed.endswith(" [5]\n")


def test_a_warning_of_a_worker_is_passed_on(run_python, environment):
    program = f"import warnings; warnings.simplefilter('error')\n{BUILD_SOME}"
    kernels = {"one": {}, "two": {"warning": "the disk is full"}}
    with pytest.raises(AssertionError, match="RuntimeWarning: the disk is full"):
        run_python(program, json.dumps(kernels), "2", **environment)


def test_several_kernels_are_built_at_a_time(run_python, environment, builds, tmp_path):
    # Each of them waits until the other has begun.
    kernels = {"one": {"gate": str(tmp_path / "two")}, "two": {"gate": str(tmp_path / "one")}}
    kernels = {name: {**more, "opens": str(tmp_path / name)} for name, more in kernels.items()}
    printed = run_python(BUILD_SOME, json.dumps(kernels), "2", **environment)
    assert printed == "['one', 'two'] [0, 1, 2]\n"


def test_the_first_failure_ends_the_others_and_is_named(run_python, environment, builds, tmp_path):
    never = {"gate": str(tmp_path / "gate")}
    kernels = {"one": never, "two": {"failure": "NVRTC failed"}, "three": never}
    printed = run_python(BUILD_SOME, json.dumps(kernels), "2", **environment)
    assert printed == "BuildError counted two float32 for sm_90a: NVRTC failed\n"
    assert "three" not in names(builds)


def test_a_process_that_dies_is_told(run_python, environment):
    kernels = {"one": {}, "two": {"failure": "dies"}}
    printed = run_python(BUILD_SOME, json.dumps(kernels), "2", **environment)
    assert f"two float32 for sm_90a: the process that built it ended with status {DEATH}" in printed


INTERRUPTED = """
import counted_builds, os, signal, threading, time
from dxgemm.compiler import build_kernels

def interrupt():
    while os.path.getsize(os.environ["COUNTED_BUILDS"]) < len("one two "):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored from outside
threading.Thread(target=interrupt).start()
tasks = [(counted_builds.spec(name, gate={gate!r}), "sm_90a") for name in ("one", "two", "three")]
try:
    build_kernels(tasks, jobs=2)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_ends_the_workers(run_python, environment, builds, tmp_path):
    program = INTERRUPTED.format(gate=str(tmp_path / "gate"))
    assert run_python(program, **environment) == "interrupted\n"
    assert names(builds) == ["one", "two"]
    (tmp_path / "gate").touch()
    locks = Path(environment["DXGEMM_CACHE_DIR"]) / "locks"
    for lock in locks.iterdir():
        with FileLock(lock, blocking=False):
            pass  # nobody builds any more


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_build_needs_a_process(jobs):
    with pytest.raises(errors.SettingError, match=f"jobs is {jobs}"):
        dxgemm.build(arch=ARCH, jobs=jobs)


def test_each_architecture_gets_what_it_can_run(configs_of_a_gpu, monkeypatch):
    built = []
    monkeypatch.setattr(compiler, "build_kernels", lambda tasks, *rest: built.extend(tasks) or [])
    dxgemm.build(arch=("sm_80", "sm_90a", "sm_80"), dtypes=("float32", "float16"))
    on = {arch: {s.implementation for s, name in built if name == arch} for _, arch in built}
    assert "coalesced" in on["sm_80"] and "wgmma" not in on["sm_80"] and "wgmma" in on["sm_90a"]
    assert all("grouped" in names for names in on.values())
    assert len(set(built)) == len(built)
    built.clear()
    dxgemm.build(arch="sm_89", dtypes=("float32", "float16"))
    assert {spec.implementation for spec, _ in built} >= {"tuned", "tensor_tile"}
    for spec, _ in built:
        assert spec.config.smem_bytes(spec.dtype) <= 99 * 1024 and spec.config.cluster == 1, spec
    with pytest.raises(errors.BuildError, match="no wgmma for sm_80"):
        dxgemm.build(arch="sm_80", implementations=("wgmma",))


INTERRUPTING = """
import counted_builds, os, signal, sys, threading, warnings
from dxgemm import errors
from dxgemm.compiler import kernels, obtain_kernel

kind, calls = sys.argv[1], []

def interrupt(*_):
    for build in (
        lambda: obtain_kernel(counted_builds.spec("one"), counted_builds.ARCH),
        lambda: obtain_kernel(counted_builds.spec("two"), counted_builds.ARCH),
    ):
        try:
            build()
        except errors.BuildError as error:
            calls.append("interrupts a build" in str(error))

class Dropped:
    __del__ = interrupt

def compile_kernel(spec, arch):
    if kind == "signal":
        signal.raise_signal(signal.SIGALRM)
    elif kind == "finalizer":
        Dropped()
    return counted_builds.compile_counted(spec, arch)

signal.signal(signal.SIGALRM, interrupt)
kernels.compile_kernel = compile_kernel
kernel = obtain_kernel(counted_builds.spec("one"), counted_builds.ARCH)
assert kernel.cubin == b"cubin of one" and calls == [True] * 2, calls
kind = "neither"
assert obtain_kernel(counted_builds.spec("two"), counted_builds.ARCH).cubin == b"cubin of two"
"""


@pytest.mark.parametrize("kind", ["signal", "finalizer"])
def test_a_call_that_interrupts_a_build_is_refused(run_python, environment, builds, kind):
    run_python(INTERRUPTING, kind, **environment)
    assert names(builds) == ["one", "two"]


def test_kernels_of_the_same_ptx_are_built_together():
    first, second = kernel_specs(("float32",), ("coalesced",))[:2]
    functions = counted_builds.spec("a", functions="1")
    tasks = [
        (spec, arch)
        for arch in ("sm_120", "sm_90a", "sm_89", "sm_80", "sm_100")
        for spec in (first, functions, second)
    ]
    groups = ahead._by_ptx(tasks)
    assert sorted(map(str, (task for group in groups for task in group))) == sorted(map(str, tasks))
    archs = {(group[0][0], *(arch for _, arch in group)) for group in groups}
    assert archs == {
        *((spec, "sm_120", "sm_100") for spec in (first, second)),
        *((spec, "sm_89", "sm_80") for spec in (first, second)),
        *((spec, "sm_90a") for spec in (first, second)),
        *((functions, arch) for arch in ("sm_120", "sm_90a", "sm_89", "sm_80", "sm_100")),
    }


def test_no_two_kernels_over_the_same_functions_begin_together():
    quick = (kernel_specs(("float32",), ("coalesced",))[0], ARCH)
    a, b, c, d, e = (
        (counted_builds.spec(name, functions=functions), ARCH)
        for name, functions in zip("abcde", "11212")
    )
    assert ahead._in_order([a, quick, b, c, d, e]) == [a, c, quick, b, d, e]
