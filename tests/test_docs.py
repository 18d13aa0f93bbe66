"""docs/ladder.md is what its scripts make of the kernels and the results; examples are true."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dxgemm
from dxgemm import epilogues, reductions

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


@pytest.mark.parametrize("page", ["batched.md", "epilogues.md"])
def test_the_examples_of_a_page_are_true(page):
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False)
    assert tried > 0
    assert failed == 0


def test_every_epilogue_of_the_catalogue_is_in_the_table():
    listed = re.findall(r"^\| `(\w+)", section_of_epilogues("The catalogue"), re.MULTILINE)
    catalogue = [
        name
        for name in epilogues.__all__
        if isinstance(getattr(epilogues, name), epilogues.Epilogue)
    ]
    assert sorted(listed) == sorted(catalogue)


def test_every_reduction_is_in_the_table():
    rows = re.findall(r"^\| (`\w+\(.*?) \|", section_of_epilogues("Reductions"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)\(", row)]
    assert sorted(listed) == sorted(name for name in reductions.__all__ if name.islower())


def section_of_epilogues(title: str) -> str:
    page = (DOCS / "epilogues.md").read_text()
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
