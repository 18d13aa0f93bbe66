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


@pytest.mark.parametrize(
    "name, arguments, agreement",
    [
        ("mlp", ["--batch-sizes", "1"], "Every score agrees with NumPy's"),
        ("gram", ["--counts", "16"], "Every matrix is symmetric bit for bit"),
        ("muon", ["--widths", "6"], "Every result agrees with NumPy's"),
        ("inner_functions", [], "Every walk agrees with SciPy's"),
        ("spin_chain", ["--spins", "2"], "every magnetisation agrees with NumPy's"),
    ],
)
def test_an_example_agrees_with_numpy_and_is_plotted(tmp_path, name, arguments, agreement):
    for package in ("sklearn", "matplotlib"):
        pytest.importorskip(package, reason=f"{name}.py needs {package}: dxgemm[examples]")
    plot = tmp_path / f"{name}.svg"
    printed = run_example(name, str(plot), *arguments)
    assert agreement in printed
    dtypes = ("complex64", "complex128") if name == "spin_chain" else ("float32", "float64")
    for dtype in dtypes:
        assert dtype in printed
    assert "<svg" in plot.read_text()


def test_digits_in_float8(tmp_path):
    for package in ("sklearn", "matplotlib", *([] if simulator_enabled() else ["torch"])):
        pytest.importorskip(package, reason=f"float8_mlp.py needs {package}: dxgemm[examples]")
    plot = tmp_path / "float8_mlp.svg"
    printed = run_example("float8_mlp", str(plot), *(["--digits", "1"] * simulator_enabled()))
    assert "Every score agrees with NumPy's" in printed
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        assert dtype in printed
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize(
    "name, agreement",
    [("fused_mlp", "Every result agrees with NumPy's"), ("close_pairs", "both lists agree")],
)
def test_kernels_with_tiles(name, agreement):
    if not simulator_enabled() and name == "fused_mlp":
        pytest.importorskip("torch", reason="bfloat16 arrays are torch's")
    assert agreement in run_example(name)


def test_the_pipeline_of_nvmath_wants_a_gpu():
    if not simulator_enabled():
        pytest.skip("there is a GPU")
    assert "Nothing was multiplied: " in run_example("nvmath_pipeline")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, size", [("float64", "128"), ("float16", "256")])
def test_the_pipeline_of_nvmath_agrees_with_numpy(dtype, size):
    pytest.importorskip("nvmath", reason="it needs nvmath-python: dxgemm[cu13]")
    pytest.importorskip("cupy", reason="it needs CuPy: dxgemm[cu13]")
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
