"""The pages agree with the sources: links, names, quoted messages, figures; the site builds."""

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import SOURCES

import dxgemm
from dxgemm import epilogues, reductions
from dxgemm.epilogues import Epilogue

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "ladder"
MADE_WITH_THE_SITE = {"results.md"}
SHORTEST_MESSAGE = 20  # characters: of less, any text would be a match


def test_every_figure_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib: dxgemm[docs]")
    path = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, str(DOCS / "ladder" / "draw.py"), "--out", str(tmp_path)]
    subprocess.run(program, env={**os.environ, "PYTHONPATH": path}, check=True)
    rungs = {i.name for i in dxgemm.implementations() if i.rung is not None}
    assert rungs <= {path.stem for path in tmp_path.iterdir()}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    for link in links:
        assert link in MADE_WITH_THE_SITE or (page.parent / link).exists(), link


def test_every_public_name_is_documented():
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    names = {name for name, value in vars(epilogues).items() if isinstance(value, Epilogue)}
    names |= {*dxgemm.__all__, *filter(str.islower, reductions.__all__)}
    assert not names - set(re.findall(r"\w+", pages))


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
    first = (tmp_path / "index.html").read_text()
    assert f"dxgemm {dxgemm.__version__}" in first and "iframe-worker.js" in first
    assert not re.findall(
        r'(?:src|href)="https?://[^"]*\.(?:js|css)', first
    )  # nothing from elsewhere
    assert (tmp_path / "search" / "search_index.js").exists()  # of the search from disk
    half = (tmp_path / "results" / "half.html").read_text()
    assert half.count("<table>") == half.count('src="half.svg"') == 1 and '.csv"' in half
    assert (tmp_path / "results" / "half-nvidia-h200.csv").exists()
    assert 'data-label="x cuBLAS"' in (tmp_path / "ladder.html").read_text()
    notebook = (tmp_path / "source" / "examples" / "quickstart.ipynb.html").read_text()
    assert "ndarray (24, 20) float32" in notebook  # what a cell put out
