"""The pages agree with the sources: generated text, links, tables, quoted messages; the site."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import dxgemm
from dxgemm import epilogues, reductions
from dxgemm._problem import RESULT_DTYPES

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "ladder"
MADE_WITH_THE_SITE = {"results.md"}
SHORTEST_MESSAGE = 20  # characters: of less, any text would be a match


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
        assert link in MADE_WITH_THE_SITE or (page.parent / link).exists(), link


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


def test_the_table_of_the_choice_names_what_it_is_among():
    page = (DOCS / "choosing.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (`.*) \|$", page, re.MULTILINE)
    listed = {}
    for operands, kernels in rows:
        for dtype in re.findall(r"\w+", operands.partition(" with ")[0]):
            listed.setdefault(dtype, set()).update(re.findall(r"`(\w+)`", kernels))
    assert listed.keys() == RESULT_DTYPES.keys()
    for dtype, kernels in listed.items():
        among = {
            i.name
            for i in dxgemm.implementations()
            if i.is_automatic(dtype) and dtype in getattr(i, "dtypes", ())
        }
        assert kernels == among, dtype


def test_every_public_name_is_on_the_page_of_the_api():
    documented = re.findall(r"\bdxgemm\.(\w+)", (DOCS / "api.md").read_text())
    assert not set(dxgemm.__all__) - set(documented)


def messages_of_the_source():
    """Patterns of the texts in the package, anything where a value is filled in."""
    for path in Path(dxgemm.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            values = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [
                part.value if isinstance(part, ast.Constant) else None
                for part in values
                if isinstance(part, ast.FormattedValue)
                or (isinstance(part, ast.Constant) and isinstance(part.value, str))
            ]
            if sum(len(text or "") for text in texts) >= SHORTEST_MESSAGE:
                yield re.compile("".join(".+" if t is None else re.escape(t) for t in texts))


def test_quoted_messages_are_those_of_the_source():
    quoted = re.findall(r"^> (.+)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    patterns = list(messages_of_the_source())
    assert quoted
    for message in quoted:
        assert any(pattern.fullmatch(message) for pattern in patterns), message


@pytest.mark.skipif(
    not (find_spec("mkdocs") and find_spec("material") and find_spec("mkdocstrings")),
    reason="the site needs mkdocs: dxgemm[docs]",
)
def test_the_site_builds(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=DOCS.parent,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    api = (tmp_path / "api.html").read_text()
    for name in ("gemm", "Plan", "Explanation", "epilogues.catalogue.bias", "torch.linear"):
        assert f'id="dxgemm.{name}"' in api
    assert (tmp_path / "source" / "handwritten" / "naive.py.html").exists()
    assert "NVIDIA H200" in (tmp_path / "results.html").read_text()
