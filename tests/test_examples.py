"""The programs of examples/ run from start to end, at their smallest sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dxgemm

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.mark.parametrize(
    "name, arguments, agreement",
    [
        ("mlp", ["--batch-sizes", "1"], "Every score agrees with NumPy's"),
        ("knn", ["--queries", "1"], "Every neighbour is as near as NumPy's"),
    ],
)
def test_an_example_agrees_with_numpy_and_is_plotted(tmp_path, name, arguments, agreement):
    for package in ("sklearn", "matplotlib"):
        pytest.importorskip(package, reason=f"{name}.py needs {package}: dxgemm[examples]")
    plot = tmp_path / f"{name}.svg"
    sources = Path(dxgemm.__file__).parents[1]
    path = os.pathsep.join([str(sources), os.environ.get("PYTHONPATH", "")])
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(plot), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert agreement in finished.stdout
    for dtype in ("float32", "float64"):
        assert dtype in finished.stdout
    assert "<svg" in plot.read_text()
