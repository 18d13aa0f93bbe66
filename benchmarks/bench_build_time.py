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
import statistics
import subprocess
import sys
import time
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from interleave import replay, replay_clock

from dxgemm import errors
from dxgemm.gpu.status import simulator_enabled

SMOKE = simulator_enabled()
ROUNDS = 1 if SMOKE else 3
UNCOUNTED = 0 if SMOKE else 1
DTYPES = ["float32"] if SMOKE else ["float32", "float64"]
SIZE = 8 if SMOKE else 1024
PIPELINE = ("coalesced", "float32") if SMOKE else ("pipeline", "float64")
AUTOMATIC = "automatic"
IMPORTS = ["import dxgemm", "from dxgemm import gemm"]
FIRST_CALLS = ["coalesced", AUTOMATIC]
EPILOGUES = ("relu",) if SMOKE else ("relu", "gelu")
pytestmark = pytest.mark.benchmark(timer=replay_clock)


def environment_with(cache: Path, simulator: bool = SMOKE) -> dict[str, str]:
    """Environment of a new process; `cache` is its kernel cache."""
    environment = {**os.environ, "DXGEMM_CACHE_DIR": str(cache)}
    environment["NUMBA_ENABLE_CUDASIM"] = "1" if simulator else "0"
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # packages are installed with their byte code
    return environment


def run_fresh(
    cache: Path, *arguments: str, simulator: bool = SMOKE, path: Path | None = None
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


def report(benchmark: Any, step: str, samples: list[dict[str, Any]], **problem: object) -> None:
    """Hand the samples to pytest-benchmark."""
    seconds = [sample["seconds"] for sample in samples]
    benchmark.group = step
    benchmark.extra_info.update(
        step=step,
        seconds=statistics.median(seconds),
        loaded=samples[-1]["loaded"],
        **problem,
    )
    replay(benchmark, seconds)


@pytest.mark.parametrize("statement", IMPORTS)
def bench_import(benchmark: Any, tmp_path: Path, statement: str) -> None:
    """The package alone, and the modules of `gemm` as well, after `import numpy`."""
    samples = [run_fresh(tmp_path, "import", statement) for _ in range(UNCOUNTED + ROUNDS)]
    report(benchmark, statement, samples[UNCOUNTED:])
    assert not samples[-1]["loaded"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which a wheel of this GPU's kernels for the first calls is installed."""
    if SMOKE:
        pytest.skip("the simulator loads no kernels")
    from dxgemm.choice.selection import choose
    from dxgemm.compiler import build_kernels
    from dxgemm.compiler.wheels import package_name, write_kernels
    from dxgemm.lower.ahead import kernel_specs
    from dxgemm.problem.define import contiguous_problem
    from dxgemm.runtime.device import device_facts
    from dxgemm.tuning.measure import candidate_specs

    device = device_facts(0)
    arch, folder = device.arch, tmp_path_factory.mktemp("wheel")
    specs = kernel_specs(tuple(DTYPES), ("coalesced",), arch)
    for dtype in DTYPES:
        problem = contiguous_problem(dtype, SIZE, SIZE, SIZE)
        specs += candidate_specs(problem, choose(problem, device))
    built = build_kernels([(spec, arch) for spec in specs])
    kernels = {spec.key(arch): kernel for spec, kernel in zip(specs, built)}
    write_kernels(folder / package_name(arch), arch, kernels)
    return folder


def gemm_arguments(library: str, dtype: str, implementation: str) -> list[str]:
    """Arguments of `fresh_process.py` for the first gemm, by a kernel or the choice."""
    named = [f"--implementation={implementation}"] if implementation != AUTOMATIC else []
    return ["gemm", f"--library={library}", f"--dtype={dtype}", f"--size={SIZE}", *named]


@pytest.mark.parametrize(
    "library, dtype, implementation",
    [
        *product(["cupy"], DTYPES, FIRST_CALLS),
        ("torch", "float32", AUTOMATIC),
        ("numpy", "float32", AUTOMATIC),  # no CUDA context is there before
    ],
)
def bench_first_call_with_wheel(
    benchmark: Any, tmp_path: Path, wheel: Path, library: str, dtype: str, implementation: str
) -> None:
    """The first gemm as below; its kernel comes from a wheel, and the cache stays empty."""
    pytest.importorskip(library)
    arguments = gemm_arguments(library, dtype, implementation)
    samples = [run_fresh(tmp_path, *arguments, path=wheel) for _ in range(UNCOUNTED + ROUNDS)]
    problem = {"dtype": dtype, "implementation": implementation, "m": SIZE, "n": SIZE, "k": SIZE}
    step = "first call, wheels" + (f", {library}" if library != "cupy" else "")
    report(benchmark, step, samples[UNCOUNTED:], **problem)
    assert not samples[-1]["loaded"] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("implementation", FIRST_CALLS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", ["warm", "cold"])
def bench_first_call(
    benchmark: Any, tmp_path: Path, cache: str, dtype: str, implementation: str
) -> None:
    """`import dxgemm` and the first gemm, after CuPy, its context and the operands."""
    caches = (tmp_path / (str(index) if cache == "cold" else "warm") for index in count())
    arguments = gemm_arguments("numpy" if SMOKE else "cupy", dtype, implementation)
    samples = [run_fresh(next(caches), *arguments) for _ in range(UNCOUNTED + ROUNDS)]
    problem = {"dtype": dtype, "implementation": implementation, "m": SIZE, "n": SIZE, "k": SIZE}
    report(benchmark, f"first call, {cache} cache", samples[UNCOUNTED:], **problem)
    if cache == "warm" and not SMOKE:
        assert not samples[-1]["loaded"]


def build_pipeline_kernel(cache: Path, epilogue: str = "") -> dict[str, Any]:
    """One sample; the smoke run takes a quick kernel instead."""
    implementation, dtype = PIPELINE
    arguments = [f"--implementation={implementation}", f"--dtype={dtype}", "--arch=sm_90a"]
    arguments += [f"--epilogue={epilogue}"] if epilogue else []
    return run_fresh(cache, "kernel", *arguments, simulator=False)


def report_pipeline_kernel(benchmark: Any, state: str, samples: list[dict[str, Any]]) -> None:
    implementation, dtype = PIPELINE
    kernel = {"dtype": dtype, "implementation": implementation, "kernel": samples[0]["returned"]}
    report(benchmark, f"pipeline kernel, {state}", samples, **kernel)


@pytest.fixture(scope="module")
def cold_build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache that holds one pipeline kernel, and the sample of its build."""
    if not SMOKE:
        from dxgemm.cublasdx.library import library

        try:
            library()
        except errors.MissingPackageError as error:
            pytest.skip(str(error))
    cache = tmp_path_factory.mktemp("pipeline")
    return cache, build_pipeline_kernel(cache)


def bench_pipeline_kernel(benchmark: Any, cold_build: tuple[Path, dict[str, Any]]) -> None:
    """A kernel over cuBLASDx and its device functions, from an empty cache."""
    _, sample = cold_build
    report_pipeline_kernel(benchmark, "cold cache", [sample])


def bench_pipeline_epilogue(benchmark: Any, cold_build: tuple[Path, dict[str, Any]]) -> None:
    """The same kernel with epilogues it never had: NVRTC has nothing to do."""
    cache, _ = cold_build
    samples = [build_pipeline_kernel(cache, epilogue) for epilogue in EPILOGUES]
    report_pipeline_kernel(benchmark, "new epilogue", samples)
    assert not any("mathdx" in library for library in samples[-1]["loaded"])


def bench_nvmath_device(benchmark: Any, tmp_path: Path) -> None:
    """A pipeline of nvmath.device and its first result; another shape takes as long again."""
    if SMOKE:
        pytest.skip("nvmath.device needs a GPU")
    problem = {"dtype": "float64", "m": SIZE, "n": SIZE, "k": SIZE}
    sample = run_fresh(tmp_path, "nvmath.device", "--dtype=float64", f"--size={SIZE}")
    if "unavailable" in sample:
        pytest.skip(sample["unavailable"])
    implementation = "nvmath.device"
    step = "nvmath.device pipeline, one shape"
    report(benchmark, step, [sample], implementation=implementation, **problem)


def bench_build(benchmark: Any, tmp_path: Path) -> None:
    """`dxgemm build` of one implementation's float32 kernels for this GPU: some two hundred."""
    implementation = "coalesced" if SMOKE else "tuned"
    arguments = ["--dtype=float32", f"--implementation={implementation}"]
    arguments += ["--arch=sm_90a"] if SMOKE else []
    sample = run_fresh(tmp_path, "build", *arguments, simulator=False)
    kernels = {"dtype": "float32", "kernels": sample["returned"]}
    report(benchmark, "build ahead", [sample], implementation=implementation, **kernels)


@pytest.fixture(scope="module")
def demo_seconds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Seconds that `dxgemm demo` takes with an empty cache, to its first result and to its end."""
    if SMOKE:
        pytest.skip("the simulator builds no kernels")
    command = [sys.executable, "-m", "dxgemm", "demo"]
    environment = environment_with(tmp_path_factory.mktemp("demo"))
    start = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert "digits right" in demo.stdout.readline()
        first_s = time.perf_counter() - start
        demo.stdout.read()
    assert demo.returncode == 0
    return {"demo, first result": first_s, "demo, cold cache": time.perf_counter() - start}


@pytest.mark.parametrize("step", ["demo, first result", "demo, cold cache"])
def bench_demo(benchmark: Any, demo_seconds: dict[str, float], step: str) -> None:
    """`dxgemm demo` with an empty cache."""
    report(benchmark, step, [{"seconds": demo_seconds[step], "loaded": []}])
