"""One HTML page from the results, whole in itself: the charts and all tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from charts import charts_of
from result_files import Results, gpu_name, sources
from tables import Part, tables_of

STYLE = """
:root { color-scheme: light dark; --rule: #7f8a9340; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; font: 15px/1.45 system-ui, sans-serif; }
.charts { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(32rem, 100%), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
.table { overflow-x: auto; margin: 0.5rem 0 1.5rem; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--rule); text-align: left; }
.figure { text-align: right; font-variant-numeric: tabular-nums; }
"""


def html_page(gpus: list[dict[str, Results]]) -> str:
    """The whole document; nothing of it comes from the network."""
    body = "\n".join(map(gpu_section, gpus)) or "<p>No results.</p>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>dxgemm, measured</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<h1>dxgemm, measured</h1>\n{body}\n</body>\n</html>\n"
    )


def gpu_section(suites: dict[str, Results]) -> str:
    said = "".join(f"<li>{escape(text)}</li>" for text in sources(suites))
    parts = [f"<h2>{escape(gpu_name(suites))}</h2>\n<ul>{said}</ul>"]
    for suite, results in suites.items():
        charts = "\n".join(
            f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
            for title, svg in charts_of(suite, results).items()
        )
        tables = "\n".join(map(part_html, tables_of(suite, results)))
        parts.append(f'<h3>{escape(suite)}</h3>\n<div class="charts">{charts}</div>')
        parts.append(f"<details><summary>Tables</summary>\n{tables}\n</details>")
    return "\n".join(parts)


def part_html(part: Part) -> str:
    if isinstance(part, str):
        return f"<p>{inline(part)}</p>"

    def line(tag: str, cells: Iterable[str]) -> str:
        kinds = (
            "" if i < part.text_columns else ' class="figure"' for i in range(len(part.header))
        )
        texts = (f"<{tag}{kind}>{inline(cell)}</{tag}>" for kind, cell in zip(kinds, cells))
        return f"<tr>{''.join(texts)}</tr>"

    lines = [line("th", part.header), *(line("td", row) for row in part.rows)]
    title = f"<p>{inline(part.title)}</p>\n"
    return f'{title}<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"


def inline(text: str) -> str:
    """Code and the texts of links, of what Markdown a table holds."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("\\|", "|")
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(plain, quote=False))
