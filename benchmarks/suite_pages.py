"""Pages of the site: one for each suite, with a chart, a table, and all rows as CSV."""

import ast
import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

import tables
from charts import Range, range_chart
from provenance import REPOSITORY, gpu_slug
from result_files import Extra, Results, distinct, extras, gpu_name, short_name, source
from tables import COUNT, NOT_OWN, Column, Label, Rows, accuracy_text, col, mean, text_of

INTRODUCTION = """# Results

A page for each suite of benchmarks, with a chart, a table, and all rows as CSV. The figures are the
medians of the JSON files in `benchmarks/results/`, which also hold their spread.
[How it is measured](benchmarking.md) explains the suites, and their rules.

| suite | rows |
| --- | ---: |
"""
# The name of each figure for readers; a page shows the first that its suite has.
FIELDS = {
    "vs_rival": "times the fastest rival",
    "vs_cublas": "times cuBLAS",
    "vs_gemm": "times gemm",
    "vs_bound": "share of the rate of its instructions",
    "regret": "time over the best candidate's",
    "max_error": "largest error of an element, eps |A| |B|",
    "host_us": "microseconds of host time",
    "seconds": "seconds",
}
EXPLAINED = "the dot is the geometric mean, the line reaches from the least to the largest."
PROBLEM = ("dtype", "precision", "result_dtype", "m", "n", "k", "batch", "arrangement", "epilogue")


def is_own(row: Extra) -> bool:
    return row.get("implementation") not in NOT_OWN


@dataclass(frozen=True)
class Shown:
    """What the page of a suite shows.

    Attributes:
        labels: what tells the lines of the table apart.
        field: the figure, one of `FIELDS`; by default the first that the suite has.
        of: the rows that count.
        best_by: of rows that agree in these fields, only the one with the largest figure counts.
    """

    labels: tuple[Label, ...] = ("arithmetic",)
    field: str = ""
    of: Callable[[Extra], bool] = is_own
    best_by: tuple[str, ...] = ()


def family(row: Extra) -> str:
    """What of a symmetric or masked result is computed."""
    if row.get("mask"):
        return f"mask: {row['mask']}"
    return "one triangle, mirrored" if "mirrored" in row["symmetry"] else "all tiles"


SHOWN = {
    "ladder": Shown(("kernel", "arithmetic")),
    "gemm": Shown(best_by=PROBLEM),
    "epilogue": Shown(("epilogue",)),
    "batched": Shown((("form", lambda row: row["way"]), "arithmetic")),
    "choice_regret": Shown(field="regret"),
    "choice_regret_half": Shown(field="regret"),
    "half": Shown(("family", "arithmetic")),
    "triangular": Shown(("triangles", "arithmetic"), "vs_gemm"),
    "einsum": Shown((("contraction", lambda row: f"`{row['subscripts']}`"),)),
    "inner": Shown((("function", lambda row: row["inner"]), "dtype"), "vs_bound"),
    "fp8": Shown(("scales", ("sums", lambda row: row["precision"] or ""))),
    "symmetric": Shown((("result", family),), "vs_gemm"),
    "precision": Shown(
        ("dtype", ("precision", tables.variant_text)),
        of=lambda row: row["data"] == "normal" and is_own(row),
    ),
    "accuracy": Shown(
        (("arithmetic", accuracy_text), ("values", lambda row: row["data"])),
        "max_error",
        lambda row: row["implementation"] == "automatic",
    ),
    "distributed": Shown((("product", lambda row: f"`{row['operation']}`"), "arithmetic")),
    "host_overhead": Shown((("call", lambda row: f"`{row['call']}`"), "library"), "host_us"),
    "build_time": Shown(("step", "kernel"), of=bool),
}


def site_files(gpus: list[dict[str, Results]]) -> dict[str, str]:
    """Every file that only the site has, by its path in docs/: pages, charts, CSV."""
    files, lines = {}, []
    for suite in distinct(suite for suites in gpus for suite in suites):
        measured = [suites[suite] for suites in gpus if suite in suites]
        number = sum(len(extras(results)) for results in measured)
        lines.append(f"| [{suite}](results/{suite}.md) | {number} |\n")
        files |= suite_page(suite, measured)
    return {"results.md": INTRODUCTION + "".join(lines), **files}


def suite_page(suite: str, measured: list[Results]) -> dict[str, str]:
    """The page of a suite, its chart, and its rows; `measured` has its results on each GPU."""
    shown = SHOWN.get(suite, Shown())
    field = shown.field or next(
        field for field in FIELDS if any(row.get(field) for r in measured for row in extras(r))
    )
    rows = [
        {**row, "gpu": short_name(results)}
        for results in measured
        for row in best(shown, [r for r in extras(results) if r.get(field) and shown.of(r)], field)
    ]
    title = FIELDS[field]
    is_times = title.startswith("times")
    texts = [f"# {suite}", what_it_times(suite)]
    chart = range_chart(f"{suite}, {title}", ranges(shown, rows, field), title, is_times)
    if chart:
        meaning = EXPLAINED + " Above 1 dxgemm is faster." * is_times
        texts.append(f"![{title}]({suite}.svg)")
        texts.append(f"*{title[0].upper()}{title[1:]}: {meaning}*")
    texts.append(tables.markdown(tables.pivot("", rows, shown.labels, columns(field, rows))))
    files = {f"results/{suite}.svg": chart} if chart else {}
    for results in measured:
        name = f"{suite}-{gpu_slug(gpu_name(results))}.csv"
        link = f"[All {len(extras(results))} rows]({name}) as CSV"
        texts.append(f"**{gpu_name(results)}.** {link}. {source(results)}")
        files[f"results/{name}"] = csv_text(results)
    return files | {f"results/{suite}.md": "\n\n".join(texts) + "\n"}


def best(shown: Shown, rows: Rows, field: str) -> Rows:
    """Of rows that agree in `best_by`, the one with the largest figure."""
    kept: dict[object, Extra] = {}
    for number, row in enumerate(rows):
        key = tuple(row.get(name) for name in shown.best_by) or number
        kept[key] = max(kept.get(key, row), row, key=lambda row: row[field])
    return list(kept.values())


def columns(field: str, rows: Rows) -> list[Column]:
    """Number of rows; of each GPU the mean, and the least or the largest: whichever is worse."""
    is_ratio = field.startswith("vs_")
    text: Callable[[float], str] = tables.ratio if is_ratio or field == "regret" else tables.figure
    found: list[Column] = [COUNT]
    for gpu in distinct(row["gpu"] for row in rows):
        found.append(col(gpu, field, mean, text, gpu=gpu))
        worst, header = (min, "least") if is_ratio else (max, "most")
        found.append(col(header, field, worst, text, gpu=gpu))
    return found


def ranges(shown: Shown, rows: Rows, field: str) -> list[Range]:
    """Mean, least and largest figure of each line of the table, by GPU."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        label = " ".join(filter(None, (text_of(label, row) for label in shown.labels)))
        label = label.replace("`", "").replace("\\", "")
        groups.setdefault((label, row["gpu"]), []).append(row[field])
    return [Range(*key, mean(of), min(of), max(of)) for key, of in groups.items()]


def what_it_times(suite: str) -> str:
    """The first paragraph of the docstring of a suite's program."""
    path = REPOSITORY / "benchmarks" / f"bench_{suite}.py"
    path = path if path.exists() else path.with_name(f"{suite}_times.py")
    docstring = ast.get_docstring(ast.parse(path.read_text())) if path.exists() else None
    return (docstring or "").partition("\n\n")[0].replace("\n", " ")


def csv_text(results: Results) -> str:
    """All rows, with their fields in the order in which they first occur."""
    rows = [
        {name: value for name, value in row.items() if not isinstance(value, dict)}
        for row in extras(results)
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, distinct(name for row in rows for name in row))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
