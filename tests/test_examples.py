"""The programs of examples/ run from start to end, at their smallest sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dxgemm

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_mlp_agrees_with_numpy_and_is_plotted(tmp_path):
    for package in ("sklearn", "matplotlib"):
        pytest.importorskip(package, reason=f"mlp.py needs {package}: dxgemm[examples]")
    plot = tmp_path / "mlp.svg"
    sources = Path(dxgemm.__file__).parents[1]
    path = os.pathsep.join([str(sources), os.environ.get("PYTHONPATH", "")])
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / "mlp.py"), str(plot), "--batch-sizes", "1"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert "Every score agrees with NumPy's" in finished.stdout
    assert finished.stdout.count("float") >= 3  # a line for each dtype
    assert "<svg" in plot.read_text()
