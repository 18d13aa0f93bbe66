"""Markdown from the results: parts of README.md, docs/ and handwritten/README.md, and a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from charts import Bar, bar_chart, svg_file
from error_charts import accuracy_charts, precision_charts
from provenance import gpu_slug
from reliability_tables import load_runs, sanitizer_text, soak_text
from result_files import REPOSITORY, Extra, Results, gpu_name, kind_of, source, sources
from tables import (
    LADDER_SIZE,
    Part,
    Table,
    accuracy_summary,
    build_time,
    distributed,
    epilogue,
    figure,
    kernel_path,
    ladder_reduced_table,
    ladder_squares,
    ladder_table,
    pipeline_squares,
    precision_bits,
    precision_rates,
    precision_refusals,
    ratio,
    rungs,
    sm80,
    speed_table,
    tables_of,
    tile_shares,
)

DOCS = REPOSITORY / "docs"
SPEED_CHART = DOCS / "speed.svg"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NO_RESULTS = "No results are committed yet; `python benchmarks/run.py` measures them on a GPU."
SPEED_TEXT = """\
Above 1 is faster than cuBLAS in the same dtype, timed in turn in one run. The sizes are square
row-major matrices, with the fastest candidate. cuBLAS is slow for row-major int8; where a and b are
both contiguous along k, the two are about equal. *Random* is the geometric mean of the automatic
choice over random problems with all layouts, thin matrices, batches and epilogues."""
SITE_INTRODUCTION = """# Results

This page is generated from the JSON files in `benchmarks/results/`, which also hold the spread of
every figure. [How it is measured](benchmarking.md) explains the suites."""

GPUs = list[dict[str, Results]]


def pages(gpus: GPUs) -> dict[Path, str]:
    """Every generated file that is committed, with what it keeps of its present text."""
    parts: dict[Path, str] = {
        REPOSITORY / "README.md": front_text(gpus, "docs/"),
        DOCS / "index.md": front_text(gpus, ""),
        DOCS / "cache.md": suite_text(gpus, "build_time", build_time),
        DOCS / "choosing.md": suite_text(gpus, "half", tile_shares),
        DOCS / "cublasdx.md": suite_text(gpus, "gemm", pipeline_squares),
        DOCS / "epilogues.md": suite_text(gpus, "epilogue", epilogue),
        DOCS / "distributed.md": suite_text(gpus, "distributed", distributed),
        DOCS / "gpus.md": suite_text(gpus, "sm80", sm80),
        DOCS / "precision.md": precision_text(gpus),
        DOCS / "accuracy.md": suite_text(gpus, "accuracy", accuracy_summary),
        DOCS / "reliability.md": reliability_text(),
        REPOSITORY / "handwritten" / "README.md": handwritten_readme(gpus),
    }
    texts = {
        path: replace_between_markers(path.read_text(), content) for path, content in parts.items()
    }
    chart = speed_chart(gpus)
    charts = {SPEED_CHART: chart} if chart else {}
    return {**texts, **charts}


def site_pages(gpus: GPUs) -> dict[str, str]:
    """Every generated file that only the site has, by its path in docs/: results, and charts."""
    texts, charts = [SITE_INTRODUCTION], {}
    for suites in gpus:
        name = gpu_name(suites)
        texts.append(f"## {name}\n\n{provenance_list(suites)}")
        for suite, results in suites.items():
            texts.append(f"### {suite}")
            for title, chart in chart_makers(suite)(results).items():
                path = f"results/{gpu_slug(name)}-{suite}-{re.sub('[^a-z0-9]+', '-', title)}.svg"
                charts[path] = svg_file(chart)
                texts.append(f"![{title}]({path})\n\n*{title}*")
            texts.append(markdown(tables_of(suite, results)))
    return {"results.md": "\n\n".join(texts if gpus else [*texts, NO_RESULTS]) + "\n", **charts}


def chart_makers(suite: str) -> Callable[[Results], dict[str, str]]:
    makers = {"accuracy": accuracy_charts, "precision": precision_charts}
    return makers.get(suite, lambda _: {})


def provenance_list(suites: Mapping[str, Results]) -> str:
    """Driver, packages and commit; said once where all suites agree."""
    said = sources(dict(suites))
    return said[0] if len(said) == 1 else "\n".join(f"- {text}" for text in said)


def markdown(parts: Iterable[Part]) -> str:
    return "\n\n".join(part if isinstance(part, str) else table(part) for part in parts)


def table(part: Table) -> str:
    """Markdown of a table: its title and its rows; figures are aligned right."""
    columns = range(len(part.header))
    rule = ["---" if column < part.text_columns else "---:" for column in columns]
    lines = ["| " + " | ".join(line) + " |" for line in [part.header, rule, *part.rows]]
    return "\n".join([part.title, "", *lines])


def front_text(gpus: GPUs, folder: str) -> str:
    """The chart and the table of README and of the site's first page."""
    speeds = speed_table(gpus)
    if not speeds.rows:
        return NO_RESULTS
    texts = [table(speeds).lstrip(), SPEED_TEXT]
    first = ladder_of(gpus)
    if first is not None:
        title = speed_title(first)
        texts.insert(0, f"![{title}]({folder}{SPEED_CHART.name})\n\n*{title}.*")
    return "\n\n".join(texts)


def ladder_of(gpus: GPUs) -> Results | None:
    """The results that the chart shows: of the first GPU whose ladder was measured."""
    return next((suites["ladder"] for suites in gpus if "ladder" in suites), None)


def speed_title(results: Results) -> str:
    name = gpu_name({"ladder": results})
    return f"Every rung of the ladder against cuBLAS, m = n = k = {LADDER_SIZE}, {name}"


def speed_chart(gpus: GPUs) -> str | None:
    """Every rung as a bar, in the arithmetic that it was written for."""
    results = ladder_of(gpus)
    if results is None:
        return None
    bars = []
    for rung in rungs():
        row = best_of(rung.name, results)
        if row is not None:
            text = f"{ratio(row['vs_cublas'])}, {figure(row['tflops'])} TFLOP/s"
            label = f"{rung.rung} {rung.name}, {kind_of(row)}"
            bars.append(Bar(label, row["vs_cublas"], text, "tuned"))
    return svg_file(bar_chart(speed_title(results), bars, "x cuBLAS; the dashed line is 1", 1.0))


def best_of(name: str, results: Results) -> Extra | None:
    """A rung at `LADDER_SIZE`: in float32 if it was measured so, else where it comes closest."""
    rows = [
        row
        for (rung, _, size), row in ladder_squares(results).items()
        if (rung, size) == (name, LADDER_SIZE) and row["vs_cublas"]
    ]
    single = [row for row in rows if kind_of(row) == "float32"]
    return max(single or rows, key=lambda row: row["vs_cublas"], default=None)


def suite_text(gpus: GPUs, suite: str, tables: Callable[[Results], list[Part]]) -> str:
    """Tables of one suite, for each GPU that it was measured on."""
    texts = []
    for results in (suites[suite] for suites in gpus if suite in suites):
        parts = tables(results)
        if parts:
            texts.append(markdown([f"### {gpu_name({suite: results})}", source(results), *parts]))
    return "\n\n".join(texts) or NO_RESULTS


def precision_text(gpus: GPUs) -> str:
    """The bits that are kept, then rates and refused calls of each GPU."""

    def tables(results: Results) -> list[Part]:
        refused = precision_refusals(results, "float32") + precision_refusals(results, "float64")
        return precision_rates(results) + refused

    return f"{markdown(precision_bits())}\n\n{suite_text(gpus, 'precision', tables)}"


def reliability_text() -> str:
    """Committed runs of the sanitizer and of the soak test."""
    sections = {
        "Sanitizer": sanitizer_text(load_runs("sanitizer")),
        "Soak": soak_text(load_runs("soak")),
    }
    return markdown(
        [part for title, parts in sections.items() for part in (f"### {title}", *parts)]
    )


def handwritten_readme(gpus: GPUs) -> str:
    """The text of handwritten/README.md: the kernel files, and their rates on each GPU."""
    lines = [
        [str(rung.rung), f"[{rung.name}.py]({path})", first_sentence(path)]
        for rung in rungs()
        for path in [kernel_path(rung)]
    ]
    files = Table("", ["rung", "file", "idea"], lines, text_columns=3)
    others = [
        [f"[{path.stem}.py](kernels/{path.name})", first_sentence(f"kernels/{path.name}")]
        for path in sorted((REPOSITORY / "handwritten" / "kernels").glob("[!_]*.py"))
        if path.stem not in {rung.name for rung in rungs()}
    ]
    kernels = Table("## Beside the ladder", ["file of kernels/", "idea"], others, text_columns=2)
    texts = [table(files).lstrip(), table(kernels)]
    for results in (suites["ladder"] for suites in gpus if "ladder" in suites):
        tables = [*ladder_table(results, folder=""), *ladder_reduced_table(results)]
        name = gpu_name({"ladder": results})
        texts.append(markdown([f"## {name}", source(results), *tables]))
    return "\n\n".join(texts)


def first_sentence(path: str) -> str:
    """The first line of a kernel file's docstring, which names the technique."""
    source = (REPOSITORY / "handwritten" / path).read_text()
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ")


def replace_between_markers(text: str, content: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the markers {BEGIN} and {END} are missing")
    return f"{before}{begin}\n{content}\n{end}{after}"
