"""mkdocs hooks: pages of results, and of files outside docs/ that pages link to; wide tables."""

from __future__ import annotations

import html
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parent.parent
for folder in ("benchmarks", "src", "tools"):
    sys.path.insert(0, str(REPOSITORY / folder))

from result_files import load_results  # noqa: E402
from run_notebooks import output_text  # noqa: E402
from suite_pages import site_files  # noqa: E402

from dxgemm.version import __version__  # noqa: E402

LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:\s]+)(?=[)#])")
CELL = r"<t[hd]\b[^>]*>(.*?)</t[hd]>"
SOURCES = "source"  # folder of the site
# Files that mkdocs.yml lists.
ALWAYS = (
    "CONTRIBUTING.md",
    *(f"examples/{path.name}" for path in REPOSITORY.glob("examples/*.ipynb")),
)
SOURCE_BOOST = 1e-6  # of sources in the search: pages come before them
WIDE = 52  # characters in the longest words of all columns that fit a phone


def on_config(config: Any) -> Any:
    """Name the version, and the clone's origin as the repository."""
    config.site_name = f"{config.site_name} {__version__}"
    asked = ["git", "-C", str(REPOSITORY), "remote", "get-url", "origin"]
    origin = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    address = re.fullmatch(r"(?:https://|ssh://git@|git@)([^/:]+)[/:](.+?)(?:\.git)?", origin)
    if address:
        config.repo_url, config.repo_name = f"https://{address[1]}/{address[2]}", address[2]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the results, and a page for every file that is linked to and is no page yet."""
    for path, content in site_files(load_results()).items():
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
    """Lead links to the pages of the site, and the search to pages before sources."""
    own = page.file.src_uri
    if own.startswith(SOURCES) and ".ipynb" not in own:
        page.meta["search"] = {"boost": SOURCE_BOOST}

    def led(match: re.Match[str]) -> str:
        path = repository_path(path_of(own), match["target"])
        target = page_of(path) or path.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(own) or ".")

    return LINK.sub(led, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Put the header's words into the cells of wide tables, which site.css shows on phones."""
    return re.sub(r"<table>.*?</table>", lambda match: labelled(match[0]), content, flags=re.DOTALL)


def labelled(table: str) -> str:
    table = table.replace("\\|", "|")  # a bar of code: Markdown keeps its backslash
    lines = [
        [html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(CELL, line, re.DOTALL)]
        for line in table.split("<tr>")[1:]
    ]
    longest = [
        max(len(word) for text in column for word in [*text.split(), ""]) for column in zip(*lines)
    ]
    if sum(longest) + len(longest) <= WIDE:
        return table
    labels = cycle(html.escape(label) for label in lines[0])
    filled = re.sub("<td", lambda _: f'<td data-label="{next(labels)}"', table)
    return f'<div class="wide">{filled}</div>'


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
    """A notebook's cell, and what it put out."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    output = output_text({"cells": [cell]})
    return f"```python\n{source}\n```\n\n" + (f"```text\n{output}\n```" if output else "")
