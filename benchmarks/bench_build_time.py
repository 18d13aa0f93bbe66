"""Start of a new process: import, first call, kernels.

Every sample is a process of its own, see `fresh_process.py`. Of imports and first calls the first
is not counted, so that files come from the page cache and byte code is compiled; it also fills the
warm kernel cache. A cold kernel cache is an empty folder for every process, and so is that beside a
wheel, of which a folder with its files is installed. Long builds are sampled once or twice: a
kernel of `pipeline` in one process, then the same with an epilogue, for which the device functions
of cuBLASDx are kept; a kernel of nvmath.device for one shape, up to its first result; the float32
kernels of `tuned`, in as many processes as there are CPUs; and `dxgemm demo`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from cases import SMOKE
from measuring import OWN, Found, Measured, Row, bench

from dxgemm.errors import MissingPackageError

ROUNDS, UNCOUNTED = (1, 0) if SMOKE else (3, 1)
DTYPES = ["float32"] if SMOKE else ["float32", "float64"]
SIZE = 8 if SMOKE else 1024
PIPELINE = ("coalesced", "float32") if SMOKE else ("pipeline", "float64")
BUILT = "coalesced" if SMOKE else "tuned"
IMPORTS = ["import dxgemm", "from dxgemm import gemm"]
FIRST_CALLS = ["coalesced", OWN]
EPILOGUES = ("relu",) if SMOKE else ("relu", "gelu")
ARCH = ["--arch=sm_90a"]


@dataclass(frozen=True)
class Start:
    """A step that is taken in new processes.

    Attributes:
        step: its name in the results.
        arguments: of `fresh_process.py`.
        cache: kernel cache: "warm", "cold", or "wheel", an empty one beside an installed wheel.
        problem: fields of the results.
        is_long: True if it is sampled once, on the compiler even in a smoke run.
    """

    step: str
    arguments: list[str]
    cache: str = "warm"
    problem: Mapping[str, Any] = field(default_factory=dict)
    is_long: bool = False

    def __str__(self) -> str:
        return "-".join(map(str, (self.step, *self.problem.values())))


def first_call(step: str, cache: str, library: str, dtype: str, implementation: str) -> Start:
    """The first gemm, after the library, its context and the operands."""
    arguments = ["gemm", f"--library={library}", f"--dtype={dtype}", f"--size={SIZE}"]
    arguments += [f"--implementation={implementation}"] if implementation != OWN else []
    problem = {"dtype": dtype, "implementation": implementation, "m": SIZE, "n": SIZE, "k": SIZE}
    return Start(step, arguments, cache, problem)


def list_starts() -> list[Start]:
    home = "numpy" if SMOKE else "cupy"
    starts = [
        Start(each, ["import", each]) for each in ("import dxgemm", "from dxgemm import gemm")
    ]
    calls = list(product(DTYPES, FIRST_CALLS))
    if not SMOKE:  # the simulator loads no kernels
        starts += [first_call("first call, wheels", "wheel", home, *call) for call in calls]
        # Before NumPy's there is no CUDA context.
        libraries = [library for library in ("torch", "numpy") if find_spec(library)]
        starts += [
            first_call(f"first call, wheels, {library}", "wheel", library, "float32", OWN)
            for library in libraries
        ]
    starts += [
        first_call(f"first call, {cache} cache", cache, home, *call)
        for cache in ("warm", "cold")
        for call in calls
    ]
    if not SMOKE:
        problem = {"dtype": "float64", "implementation": "nvmath.device"}
        problem |= dict.fromkeys("mnk", SIZE)
        arguments = ["nvmath.device", "--dtype=float64", f"--size={SIZE}"]
        step = "nvmath.device pipeline, one shape"
        starts.append(Start(step, arguments, "cold", problem, is_long=True))
    arguments = ["build", "--dtype=float32", f"--implementation={BUILT}", *(ARCH if SMOKE else [])]
    problem = {"dtype": "float32", "implementation": BUILT}
    return [*starts, Start("build ahead", arguments, "cold", problem, is_long=True)]


def environment_with(cache: Path, simulator: bool = SMOKE) -> dict[str, str]:
    """Environment of a new process; `cache` is its kernel cache."""
    environment = {**os.environ, "DXGEMM_CACHE_DIR": str(cache)}
    environment["NUMBA_ENABLE_CUDASIM"] = "1" if simulator else "0"
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # packages are installed with their byte code
    return environment


def run_fresh(
    cache: Path, arguments: list[str], simulator: bool = SMOKE, path: Path | None = None
) -> dict[str, Any]:
    """Run one step in a new process, where packages in the folder `path` are installed too."""
    environment = environment_with(cache, simulator)
    if path:
        known = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (known, str(path))))
    command = [sys.executable, str(Path(__file__).with_name("fresh_process.py")), *arguments]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def measure_start(row: Row) -> Found:
    start: Start = row.case
    samples = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(1 if start.is_long else UNCOUNTED + ROUNDS):
            folder = Path(name, str(number) if start.cache == "cold" else "kernels")
            path = wheel() if start.cache == "wheel" else None
            simulator = SMOKE and not start.is_long
            samples.append(run_fresh(folder, start.arguments, simulator, path))
        is_built = start.cache == "wheel" and folder.exists() and any(folder.iterdir())
    if "unavailable" in samples[0]:
        return {OWN: Measured(refusal=samples[0]["unavailable"])}
    one = measured(samples if start.is_long else samples[UNCOUNTED:])
    assert not is_built, "a kernel was built that is in the wheel"
    assert SMOKE or start.cache == "cold" or not one.facts["loaded"], one.facts["loaded"]
    return {OWN: one}


def measured(samples: list[dict[str, Any]], **facts: Any) -> Measured:
    seconds = [sample["seconds"] for sample in samples]
    facts |= {"loaded": samples[-1]["loaded"]}
    if isinstance(samples[-1].get("returned"), int):
        facts["kernels"] = samples[-1]["returned"]
    return Measured(samples_s=seconds, facts=facts)


@cache
def wheel() -> Path:
    """Folder in which a wheel of this GPU's kernels for the first calls is installed."""
    from dxgemm.choice.selection import choose
    from dxgemm.compiler import build_kernels
    from dxgemm.compiler.wheels import package_name, write_kernels
    from dxgemm.lower.ahead import kernel_specs
    from dxgemm.problem.define import contiguous_problem
    from dxgemm.runtime.device import device_facts
    from dxgemm.tuning.measure import candidate_specs

    device, folder = device_facts(0), Path(tempfile.mkdtemp())
    specs = kernel_specs(tuple(DTYPES), ("coalesced",), device.arch)
    for dtype in DTYPES:
        problem = contiguous_problem(dtype, SIZE, SIZE, SIZE)
        specs += candidate_specs(problem, choose(problem, device))
    built = build_kernels([(spec, device.arch) for spec in specs])
    kernels = {spec.key(device.arch): kernel for spec, kernel in zip(specs, built)}
    write_kernels(folder / package_name(device.arch), device.arch, kernels)
    return folder


def measure_pipeline(row: Row) -> Found:
    """A kernel over cuBLASDx from an empty cache, then with epilogues: NVRTC has nothing to do."""
    if not SMOKE:
        from dxgemm.cublasdx.library import library

        try:
            library()
        except MissingPackageError as error:
            return {name: Measured(refusal=str(error)) for name in row.shown}
    arguments = ["kernel", *(f"--{name}={value}" for name, value in row.case.problem.items())]
    with tempfile.TemporaryDirectory() as name:
        samples = [
            run_fresh(Path(name), [*arguments, *ARCH, *epilogue], simulator=False)
            for epilogue in ([], *([f"--epilogue={text}"] for text in EPILOGUES))
        ]
    assert not any("mathdx" in library for library in samples[-1]["loaded"])
    parts = dict(zip(row.shown, (samples[:1], samples[1:])))
    return {step: measured(part, kernel=part[0]["returned"]) for step, part in parts.items()}


def measure_demo(row: Row) -> Found:
    """`dxgemm demo` with an empty cache, to its first result and to its end."""
    if SMOKE:
        refused = Measured(refusal="the simulator builds no kernels")
        return dict.fromkeys(row.shown, refused)
    command = [sys.executable, "-m", "dxgemm", "demo"]
    with tempfile.TemporaryDirectory() as cache:
        start, environment = time.perf_counter(), environment_with(Path(cache))
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            assert "digits right" in demo.stdout.readline()
            first_s = time.perf_counter() - start
            demo.stdout.read()
        seconds = first_s, time.perf_counter() - start
    assert demo.returncode == 0
    samples = ({"seconds": each, "loaded": []} for each in seconds)
    return {step: measured([sample]) for step, sample in zip(row.shown, samples)}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    one, step = found[name], row.case.step if name == OWN else name
    return {"step": step, "seconds": one.seconds, **row.case.problem, **one.facts}


PIPELINE_STEPS = ("pipeline kernel, cold cache", "pipeline kernel, new epilogue")
KERNEL = dict(zip(("implementation", "dtype"), PIPELINE))
bench_start = bench([Row(each, shown=[OWN]) for each in list_starts()], describe, measure_start)
bench_pipeline_kernel = bench(
    [Row(Start("pipeline", [], problem=KERNEL), shown=PIPELINE_STEPS)], describe, measure_pipeline
)
bench_demo = bench(
    [Row(Start("demo", []), shown=["demo, first result", "demo, cold cache"])],
    describe,
    measure_demo,
)
