"""docs/ladder.md is what its scripts make of the kernels and the results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dxgemm

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "ladder"


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    sources = Path(dxgemm.__file__).parents[1]
    path = os.pathsep.join([str(sources), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(FOLDER / name), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_the_ladder_page_is_up_to_date():
    finished = run_script("build.py", "--check")
    assert finished.returncode == 0, finished.stderr


def test_every_figure_of_the_page_is_there():
    figures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (DOCS / "ladder.md").read_text())
    assert figures
    for figure in figures:
        assert (DOCS / figure).is_file(), figure


def test_every_figure_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib: dxgemm[docs]")
    finished = run_script("draw.py", "--out", tmp_path)
    assert finished.returncode == 0, finished.stderr
    rungs = {i.name for i in dxgemm.implementations() if i.rung is not None}
    drawn = {path.stem for path in tmp_path.iterdir()}
    assert rungs <= drawn
    assert drawn == {path.stem for path in FOLDER.glob("*.svg")}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    for link in links:
        assert (page.parent / link).exists(), link
