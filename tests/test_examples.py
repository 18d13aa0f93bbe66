"""The programs of examples/ run from start to end, at their smallest sizes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dxgemm
from dxgemm.gpu.status import probe, simulator_enabled

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run_example(name, *arguments):
    """The output of a program that succeeds."""
    sources = Path(dxgemm.__file__).parents[1]
    path = os.pathsep.join([str(sources), os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ)
    if probe().problem:  # examples enable the simulator by themselves
        environment.pop("NUMBA_ENABLE_CUDASIM", None)
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def packages(*names):
    for package in names:
        pytest.importorskip(package, reason=f"the example needs {package}: dxgemm[examples]")


# Arguments of the programs that plot, what they print at their end, and dtypes that they name.
REALS, TORCH = ("float32", "float64"), () if simulator_enabled() else ("torch",)
PLOTTED = {
    "mlp": (("--batch-sizes", "1"), "Every score agrees with NumPy's", REALS),
    "gram": (("--counts", "16"), "Every matrix is symmetric bit for bit", REALS),
    "muon": (("--widths", "6"), "Every result agrees with NumPy's", REALS),
    "inner_functions": ((), "Every walk agrees with SciPy's", REALS),
    "spin_chain": (
        ("--spins", "2"), "every magnetisation agrees with NumPy's", ("complex64", "complex128")
    ),
    "float8_mlp": (
        ("--digits", "1") if simulator_enabled() else (), "Every score agrees with NumPy's",
        ("bfloat16", "float8_e4m3fn", "float8_e5m2"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLOTTED)
def test_an_example_agrees_with_numpy_and_is_plotted(tmp_path, name):
    arguments, agreement, dtypes = PLOTTED[name]
    packages("sklearn", "matplotlib", *(TORCH if name == "float8_mlp" else ()))
    plot = tmp_path / f"{name}.svg"
    printed = run_example(name, str(plot), *arguments)
    assert agreement in printed and all(dtype in printed for dtype in dtypes)
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize(
    "name, agreement",
    [("fused_mlp", "Every result agrees with NumPy's"), ("close_pairs", "both lists agree")],
)
def test_kernels_with_tiles(name, agreement):
    packages(*(TORCH if name == "fused_mlp" else ()))  # bfloat16 arrays are torch's
    assert agreement in run_example(name)


def test_the_pipeline_of_nvmath_wants_a_gpu():
    if not simulator_enabled():
        pytest.skip("there is a GPU")
    assert "Nothing was multiplied: " in run_example("nvmath_pipeline")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, size", [("float64", "128"), ("float16", "256")])
def test_the_pipeline_of_nvmath_agrees_with_numpy(dtype, size):
    packages("nvmath", "cupy")
    printed = run_example("nvmath_pipeline", "--dtype", dtype, "--sizes", size)
    assert "Every product equals NumPy's" in printed
    assert "nvmath.device" in printed and "dxgemm pipeline" in printed


@pytest.mark.parametrize("m, n, k", [(100, 64, 64), (128, 65, 64), (128, 64, 48)])
def test_the_pipeline_of_nvmath_takes_whole_tiles_only(monkeypatch, m, n, k):
    monkeypatch.syspath_prepend(EXAMPLES)
    from nvmath_pipeline import nvmath_pipeline

    with pytest.raises(ValueError, match=rf"m={m}, n={n}, k={k}"):
        nvmath_pipeline(np.ones((m, k)), np.ones((k, n)), np.ones((m, n)))


def test_integers_agree_with_those_of_python():
    printed = run_example("integers", "--size", "9" if simulator_enabled() else "120")
    symbols = 6 if simulator_enabled() else 32
    assert "triangles" in printed and f"messages of {symbols} symbols" in printed
    assert "Every result agrees with Python's integers" in printed


def test_examples_import_public_names_alone():
    public = {"torch", "distributed", *dxgemm.__all__}
    for path in EXAMPLES.glob("*.py"):
        imported = re.findall(r"(?:from|import) dxgemm\.(\w+)", path.read_text())
        assert set(imported) <= public, path.name
