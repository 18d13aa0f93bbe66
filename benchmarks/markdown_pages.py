"""Markdown from the results: parts of README.md, docs/ and handwritten/README.md, and a page."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from charts import share_chart, speed_chart
from reliability_tables import reliability_tables
from result_files import REPOSITORY, Results, gpu_name, source
from tables import (
    LADDER_SIZES,
    TABLES,
    Part,
    Table,
    accuracy_summary,
    kernel_path,
    ladder,
    markdown,
    pipelines,
    precision_bits,
    rungs,
    speed_table,
)
from tile_shares import shares

DOCS = REPOSITORY / "docs"
SPEED_CHART, SHARE_CHART = DOCS / "speed.svg", DOCS / "shares.svg"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NO_RESULTS = "No results are committed yet; `python benchmarks/run.py` measures them on a GPU."
SPEED_TEXT = """\
Above 1 is faster than cuBLAS in the same dtype, timed in turn in one run. The sizes are square
row-major matrices, with the fastest candidate. cuBLAS is slow for row-major int8. *Random* is the
geometric mean of the automatic choice over random problems with all layouts, thin matrices, batches
and epilogues."""
GPUs = list[dict[str, Results]]


def pages(gpus: GPUs) -> dict[Path, str]:
    """Every generated page that is committed, with what it keeps of its present text."""
    parts = {
        REPOSITORY / "README.md": front_text(gpus, "docs/"),
        DOCS / "index.md": front_text(gpus, ""),
        DOCS / "cache.md": suite_text(gpus, "build_time"),
        DOCS / "cublasdx.md": suite_text(gpus, "gemm", pipelines),
        DOCS / "drop-in.md": suite_text(gpus, "patch"),
        DOCS / "epilogues.md": suite_text(gpus, "epilogue"),
        DOCS / "fp8.md": markdown(suite_text(gpus, name) for name in ("fp8", "fp8_layers")),
        DOCS / "integers.md": suite_text(gpus, "integers"),
        DOCS / "device.md": suite_text(gpus, "device"),
        DOCS / "inner.md": suite_text(gpus, "inner"),
        DOCS / "distributed.md": suite_text(gpus, "distributed"),
        DOCS / "gpus.md": suite_text(gpus, "sm80"),
        DOCS / "precision.md": markdown([*precision_bits(), suite_text(gpus, "precision")]),
        DOCS / "accuracy.md": markdown(
            [suite_text(gpus, "accuracy", accuracy_summary), suite_text(gpus, "fp8_accuracy")]
        ),
        DOCS / "reliability.md": markdown(reliability_tables()),
        REPOSITORY / "handwritten" / "README.md": handwritten_readme(gpus),
    }
    return {path: replace_between_markers(path.read_text(), of) for path, of in parts.items()}


def front_text(gpus: GPUs, folder: str) -> str:
    """The chart and the table of README and of the site's first page."""
    speeds = speed_table(gpus)
    if not speeds:
        return NO_RESULTS
    texts = [markdown(speeds), SPEED_TEXT]
    measured = ladder_of(gpus)
    if measured is not None:
        title = speed_title(measured)
        texts.insert(0, f"![{title}]({folder}{SPEED_CHART.name})\n\n*{title}.*")
    return "\n\n".join(texts)


def ladder_of(gpus: GPUs) -> Results | None:
    """The results that the chart shows: of the first GPU whose ladder was measured."""
    return next((suites["ladder"] for suites in gpus if "ladder" in suites), None)


def speed_title(measured: Results) -> str:
    name = gpu_name({"ladder": measured})
    return f"Every rung of the ladder against cuBLAS, m = n = k = {LADDER_SIZES[0]}, {name}"


def page_charts(gpus: GPUs) -> dict[Path, str]:
    """SVG of every chart that is committed, as far as its results are."""
    measured, found = ladder_of(gpus), shares(gpus)
    charts = {}
    if measured is not None:
        charts[SPEED_CHART] = speed_chart(speed_title(measured), measured)
    if found:
        charts[SHARE_CHART] = share_chart(found)
    return charts


def suite_text(gpus: GPUs, suite: str, *tables: Callable[[Results], list[Part]]) -> str:
    """Tables of one suite, for each GPU that it was measured on; if none are named, all."""
    texts = []
    for results in (suites[suite] for suites in gpus if suite in suites):
        parts = [part for each in tables or TABLES[suite] for part in each(results)]
        if parts:
            texts.append(markdown([f"### {gpu_name({suite: results})}", source(results), *parts]))
    return "\n\n".join(texts) or NO_RESULTS


def handwritten_readme(gpus: GPUs) -> str:
    """The text of handwritten/README.md: the kernel files, and their rates on each GPU."""
    lines = [
        [str(rung.rung), f"[{rung.name}.py]({path})", first_sentence(path)]
        for rung in rungs()
        for path in [kernel_path(rung)]
    ]
    names = {rung.name for rung in rungs()}
    others = [
        [f"[{path.stem}.py](kernels/{path.name})", first_sentence(f"kernels/{path.name}")]
        for path in sorted((REPOSITORY / "handwritten" / "kernels").glob("[!_]*.py"))
        if path.stem not in names
    ]
    parts: list[Part] = [
        Table("", ["rung", "file", "idea"], lines, text_columns=3),
        Table("## Beside the ladder", ["file of kernels/", "idea"], others, text_columns=2),
    ]
    for results in (suites["ladder"] for suites in gpus if "ladder" in suites):
        parts += [f"## {gpu_name({'ladder': results})}", source(results)]
        parts += ladder(results, folder="")
    return markdown(parts)


def first_sentence(path: str) -> str:
    """The first line of a kernel file's docstring, which names the technique."""
    text = (REPOSITORY / "handwritten" / path).read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ")


def replace_between_markers(text: str, content: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the markers {BEGIN} and {END} are missing")
    return f"{before}{begin}\n{content}\n{end}{after}"
