"""mkdocs hooks: pages of the measurements, and of files outside docs/ that the pages link to."""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parent.parent
for folder in ("benchmarks", "src"):
    sys.path.insert(0, str(REPOSITORY / folder))

from markdown_pages import site_pages  # noqa: E402
from result_files import load_results  # noqa: E402

LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:\s]+)(?=[)#])")
SOURCES = "source"  # folder of the site
ALWAYS = ("CONTRIBUTING.md",)  # mkdocs.yml lists it


def on_files(files: Files, config: Any) -> Files:
    """Add the results, and a page for every file that is linked to and is no page yet."""
    for path, content in site_pages(load_results()).items():
        files.append(File.generated(config, path, content=content))
    pending = list(ALWAYS)
    for page in REPOSITORY.glob("docs/*.md"):
        pending += linked_files(page.relative_to(REPOSITORY).as_posix())
    found: set[str] = set()
    while pending:
        path = pending.pop()
        if path in found or page_of(path) is None:
            continue
        found.add(path)
        if path.endswith(".md"):
            pending += linked_files(path)
        files.append(File.generated(config, str(page_of(path)), content=page_text(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to the pages of the site."""
    own = page.file.src_uri

    def led(match: re.Match[str]) -> str:
        path = repository_path(path_of(own), match["target"])
        target = page_of(path) or path.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(own) or ".")

    return LINK.sub(led, markdown)


def linked_files(path: str) -> Iterable[str]:
    """Targets of the links of a Markdown file, by paths in the repository."""
    text = (REPOSITORY / path).read_text()
    return [repository_path(path, match["target"]) for match in LINK.finditer(text)]


def repository_path(path: str, target: str) -> str:
    """The path of a link's target; a folder stands for its README."""
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return f"{joined}/README.md" if (REPOSITORY / joined).is_dir() else joined


def page_of(path: str) -> str | None:
    """The page that a file gets here; None for what mkdocs takes from docs/ itself."""
    if path.startswith("docs/") and not path.endswith(".py"):
        return None
    return f"{SOURCES}/{path}" if path.endswith(".md") else f"{SOURCES}/{path}.md"


def path_of(page: str) -> str:
    """The file in the repository that a page shows."""
    if not page.startswith(f"{SOURCES}/"):
        return f"docs/{page}"
    path = page.removeprefix(f"{SOURCES}/")
    return path if (REPOSITORY / path).exists() else path.removesuffix(".md")


def page_text(path: str) -> str:
    text = (REPOSITORY / path).read_text()
    if path.endswith(".md"):
        return text
    if path.endswith(".ipynb"):
        return "\n\n".join(map(cell_text, json.loads(text)["cells"]))
    return f"# {posixpath.basename(path)}\n\n```python\n{text}```\n"


def cell_text(cell: dict[str, Any]) -> str:
    """A notebook's cell, without its outputs."""
    source = "".join(cell["source"])
    return source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
