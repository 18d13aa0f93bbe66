"""Start of a new process: import, first call, kernels.

Every sample is a process of its own. Of imports and first calls the first is not counted, so that
files come from the page cache and byte code is compiled; it also fills the warm kernel cache. A
cold kernel cache is an empty folder for every process, and so is that beside a wheel, of which a
folder with its files is installed. Long builds are sampled once or twice: a kernel of `pipeline` in
one process, then the same with an epilogue, for which the device functions of cuBLASDx are kept; a
kernel of nvmath.device for one shape, up to its first result; the float32 kernels of `tuned`, in as
many processes as there are CPUs; and `dxgemm demo`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from cases import SMOKE
from measuring import OWN, Found, Measured, Row, bench
from provenance import REPOSITORY

from dxgemm.errors import MissingPackageError

ROUNDS, UNCOUNTED = (1, 0) if SMOKE else (3, 1)
DTYPES = ["float32"] if SMOKE else ["float32", "float64"]
HOME = "numpy" if SMOKE else "cupy"
SIZE = 8 if SMOKE else 1024
FIRST_CALLS = [OWN] if SMOKE else ["coalesced", OWN]
PIPELINE = ("coalesced", "float32") if SMOKE else ("pipeline", "float64")
EPILOGUES = () if SMOKE else ("relu", "gelu")
ARCH = "sm_90a"  # of the pipeline

# A process: seconds of a step, what it set `returned` to, the compilers that it brought into the
# process, and why it cannot be taken here. What the setup brought counts neither as time nor as
# loaded.
PROCESS = r"""
import json, re, sys, time
from pathlib import Path
def loaded():
    libraries = r"lib(?:nvrtc|nvvm|nvJitLink|mathdx|llvmlite)\b[^/\s]*"
    found = re.findall(libraries, Path("/proc/self/maps").read_text())
    return {"numba", "nvmath"} & sys.modules.keys() | set(found)
setup, step, check = sys.argv[1:]
names = {"returned": None, "unavailable": None}
exec(setup, names)
before, start = loaded(), time.perf_counter()
exec(step, names)
found = {"seconds": time.perf_counter() - start, "loaded": sorted(loaded() - before)}
exec(check, names)
print(json.dumps({**found, **{name: names[name] for name in ("returned", "unavailable")}}))
"""
# Operands, sums of products of which are exact, in a library that has a context; and their check.
OPERANDS = f"""
import numpy as np
rng = np.random.default_rng(0)
a, b, out = (rng.integers(-3, 4, ({SIZE}, {SIZE})).astype("{{dtype}}") for _ in range(3))
expected, wait = a @ b, lambda: None
{{upload}}
wait()
"""
UPLOADS = {
    "numpy": "",
    "cupy": """import cupy
a, b, out = map(cupy.asarray, (a, b, out))
wait = cupy.cuda.Device().synchronize""",
    "torch": """import torch
a, b, out = (torch.from_numpy(array).cuda() for array in (a, b, out))
wait = torch.cuda.synchronize""",
}
GEMM = "import dxgemm\ndxgemm.gemm(a, b, out=out, implementation={!r})\nwait()"
CHECK = """
found = out.get() if hasattr(out, "get") else np.asarray(out.cpu() if hasattr(out, "cpu") else out)
np.testing.assert_array_equal(found, expected)
"""
NVMATH = """
try:
    from nvmath_pipeline import nvmath_pipeline
    nvmath_pipeline(a, b, out)()
    wait()
except Exception as error:  # of whatever type: what it lacks shows when it is used
    unavailable = str(error)
"""
SPEC = """
from dataclasses import replace
from dxgemm import epilogues
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import obtain_kernel
from dxgemm.lower.ahead import common_specs
from dxgemm.problem.fusion import Fusion
spec = common_specs(find_implementation("{}"), ("{}",))[0]
"""
KERNEL = f"obtain_kernel(spec, '{ARCH}')\nreturned = str(spec)"
BUILD = "returned = len(dxgemm.build(dtypes=('float32',), implementations=('tuned',)))"


@dataclass(frozen=True)
class Start:
    """A step that is taken in new processes.

    Attributes:
        step: its name in the results.
        code: setup, step and check.
        cache: kernel cache: "warm", "cold", or "wheel", an empty one beside an installed wheel.
        problem: fields of the results.
        is_long: True if it is sampled once.
    """

    step: str
    code: Sequence[str] = ()
    cache: str = "warm"
    problem: dict[str, Any] = field(default_factory=dict)
    is_long: bool = False

    def __str__(self) -> str:
        return "-".join(map(str, (self.step, *self.problem.values())))


def problem_of(dtype: str, implementation: str) -> dict[str, Any]:
    return {"dtype": dtype, "implementation": implementation, **dict.fromkeys("mnk", SIZE)}


def first_call(cache: str, library: str, dtype: str, implementation: str, more: str = "") -> Start:
    """The first gemm, after the library, its context and the operands."""
    step = {"wheel": "first call, wheels"}.get(cache, f"first call, {cache} cache") + more
    gemm = GEMM.format(None if implementation == OWN else implementation)
    code = OPERANDS.format(dtype=dtype, upload=UPLOADS[library]), gemm, CHECK
    return Start(step, code, cache, problem_of(dtype, implementation))


def list_starts() -> list[Start]:
    steps = "import dxgemm", "from dxgemm import gemm"
    starts = [Start(each, ("import numpy", each, "")) for each in steps]
    caches = ["cold"] if SMOKE else ["wheel", "warm", "cold"]
    starts += [first_call(c, HOME, d, name) for c, d, name in product(caches, DTYPES, FIRST_CALLS)]
    if SMOKE:  # the simulator loads no kernels, and builds none
        return starts
    for library in filter(find_spec, ("torch", "numpy")):  # before NumPy's there is no CUDA context
        starts.append(first_call("wheel", library, "float32", OWN, f", {library}"))
    path = f"\nimport sys, dxgemm\nsys.path.append({str(REPOSITORY / 'examples')!r})"
    code = OPERANDS.format(dtype="float64", upload=UPLOADS["cupy"]) + path, NVMATH, ""
    problem = problem_of("float64", "nvmath.device")
    tuned = {"dtype": "float32", "implementation": "tuned"}
    return [
        *starts,
        Start("nvmath.device pipeline, one shape", code, "cold", problem, is_long=True),
        Start("build ahead", ("import dxgemm", BUILD, ""), "cold", tuned, is_long=True),
    ]


def environment(cache: Path, simulator: bool = SMOKE, path: Path | None = None) -> dict[str, str]:
    """Environment of a new process, with a kernel cache, and a folder of installed packages."""
    found = {**os.environ, "DXGEMM_CACHE_DIR": str(cache)}
    found["NUMBA_ENABLE_CUDASIM"] = "1" if simulator else "0"
    found.pop("PYTHONDONTWRITEBYTECODE", None)  # packages are installed with their byte code
    if path:
        found["PYTHONPATH"] = os.pathsep.join([*filter(None, [found.get("PYTHONPATH")]), str(path)])
    return found


def run_fresh(code: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run one step in a new process."""
    command = [sys.executable, "-c", PROCESS, *code]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def measured(samples: Sequence[dict[str, Any]]) -> Measured:
    facts, returned = {"loaded": samples[-1]["loaded"]}, samples[0].get("returned")
    if returned:
        facts["kernels" if isinstance(returned, int) else "kernel"] = returned
    return Measured(samples_s=[sample["seconds"] for sample in samples], facts=facts)


def measure_start(row: Row) -> Found:
    start, samples = row.case, []
    with tempfile.TemporaryDirectory() as name:
        for number in range(1 if start.is_long else UNCOUNTED + ROUNDS):
            folder = Path(name, str(number) if start.cache == "cold" else "kernels")
            path = wheel() if start.cache == "wheel" else None
            samples.append(run_fresh(start.code, environment(folder, path=path)))
        is_built = start.cache == "wheel" and folder.exists() and any(folder.iterdir())
    if samples[0]["unavailable"]:
        return {OWN: Measured(refusal=samples[0]["unavailable"])}
    one = measured(samples if start.is_long else samples[UNCOUNTED:])
    assert not is_built, "a kernel was built that is in the wheel"
    assert SMOKE or start.cache == "cold" or not one.facts["loaded"], one.facts["loaded"]
    return {OWN: one}


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
            return {name: Measured(refusal=str(error)) for name in row.variants}
    spec = SPEC.format(*PIPELINE)
    codes = [
        f"{spec}spec = replace(spec, epilogue=Fusion((epilogues.{e},), ()))" for e in EPILOGUES
    ]
    with tempfile.TemporaryDirectory() as cache:
        given = environment(Path(cache), simulator=False)
        samples = [run_fresh((code, KERNEL, ""), given) for code in [spec, *codes]]
    assert not any("mathdx" in library for library in samples[-1]["loaded"])
    parts = samples[:1], samples[1:]
    return {name: measured(part) for name, part in zip(row.variants, parts)}


def measure_demo(row: Row) -> Found:
    """`dxgemm demo` with an empty cache, to its first result and to its end."""
    if SMOKE:
        return dict.fromkeys(row.variants, Measured(refusal="the simulator builds no kernels"))
    command = [sys.executable, "-m", "dxgemm", "demo"]
    with tempfile.TemporaryDirectory() as cache:
        start, given = time.perf_counter(), environment(Path(cache))
        with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            assert "digits right" in demo.stdout.readline()
            first_s = time.perf_counter() - start
            demo.stdout.read()
        seconds = first_s, time.perf_counter() - start
    assert demo.returncode == 0
    found = ([{"seconds": each, "loaded": []}] for each in seconds)
    return dict(zip(row.variants, map(measured, found)))


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    step = row.case.step if name == OWN else name
    return {"step": step, "seconds": found[name].seconds, **row.case.problem}


PIPELINES = [Start("pipeline", problem=dict(zip(("implementation", "dtype"), PIPELINE)))]
STEPS = ["pipeline kernel, cold cache", "pipeline kernel, new epilogue"][: 1 + bool(EPILOGUES)]
DEMO = ["demo, first result", "demo, cold cache"]
bench_start = bench(list_starts(), {OWN: None}, describe=describe, measuring=measure_start)
bench_pipeline, bench_demo = (
    bench(starts, dict.fromkeys(steps), describe=describe, measuring=measuring)
    for starts, steps, measuring in (
        (PIPELINES, STEPS, measure_pipeline), ([Start("demo")], DEMO, measure_demo),
    )
)  # fmt: skip
