"""Pages of the site: one for each suite, with a chart, a table, and all rows as CSV."""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

from charts import Range, range_chart
from provenance import gpu_slug
from result_files import (
    OTHERS,
    REPOSITORY,
    Extra,
    Results,
    accuracy_text,
    distinct,
    extras,
    gpu_name,
    source,
)
from tables import (
    BASELINES,
    KIND,
    Column,
    Condition,
    Label,
    Rows,
    count,
    epilogue_text,
    figure,
    get,
    markdown,
    mean,
    pivot,
    ratio,
    variant_text,
    where,
)

INTRODUCTION = """# Results

A page for each suite of benchmarks, with a chart, a table, and all rows as CSV. The figures are the
medians of the JSON files in `benchmarks/results/`, which also hold their spread.
[How it is measured](benchmarking.md) explains the suites, and their rules.

| suite | rows |
| --- | ---: |
"""
# The name of each figure for readers.
FIELDS = {
    "vs_rival": "times the fastest rival",
    "vs_cublas": "times cuBLAS",
    "vs_gemm": "times gemm",
    "regret": "time over the best candidate's",
    "max_error": "largest error of an element, eps |A| |B|",
    "host_us": "microseconds of host time",
    "seconds": "seconds",
}
NOT_OWN = {*OTHERS, *BASELINES}


def always(row: Extra) -> bool:
    return True


def is_own(row: Extra) -> bool:
    return row.get("implementation") not in NOT_OWN


@dataclass(frozen=True)
class Shown:
    """What the page of a suite shows.

    Attributes:
        field: the figure, one of `FIELDS`.
        labels: what tells the lines of the table apart.
        of: the rows that count.
        best_by: of rows that agree in these fields, only the one with the largest figure counts.
    """

    field: str
    labels: tuple[Label, ...] = (KIND,)
    of: Condition = is_own
    best_by: tuple[str, ...] = ()


def family(row: Extra) -> str:
    """What of a symmetric or masked result is computed."""
    if row.get("mask"):
        return f"mask: {row['mask']}"
    return "one triangle, mirrored" if "mirrored" in row["symmetry"] else "all tiles"


PROBLEM = ("dtype", "precision", "result_dtype", "m", "n", "k", "batch", "arrangement", "epilogue")
SHOWN = {
    "ladder": Shown("vs_cublas", (("kernel", get("implementation")), KIND)),
    "gemm": Shown("vs_cublas", best_by=PROBLEM),
    "epilogue": Shown("vs_cublas", (("epilogue", epilogue_text),)),
    "batched": Shown("vs_cublas", (("form", get("way")), KIND)),
    "choice_regret": Shown("regret"),
    "half": Shown("vs_rival", (("family", get("family")), KIND)),
    "triangular": Shown("vs_gemm", (("triangles", get("triangles")), KIND)),
    "integers": Shown("vs_rival"),
    "einsum": Shown("vs_rival", (("contraction", lambda row: f"`{row['subscripts']}`"),)),
    "inner": Shown("vs_rival", (("function", get("function")),)),
    "fp8": Shown("vs_rival", (("scales", get("scales")), ("sums", lambda r: r["precision"] or ""))),
    "device": Shown("vs_gemm"),
    "symmetric": Shown("vs_gemm", (("result", family),)),
    "precision": Shown(
        "vs_cublas",
        (("dtype", get("dtype")), ("precision", lambda row: variant_text(row["way"]))),
        lambda row: row["data"] == "normal" and "promoted" not in row["way"] and is_own(row),
    ),
    "accuracy": Shown(
        "max_error",
        (("arithmetic", lambda row: accuracy_text(row["kind"])), ("values", get("data"))),
        where(implementation="automatic"),
    ),
    "distributed": Shown("vs_rival", (("product", lambda row: f"`{row['operation']}`"), KIND)),
    "host_overhead": Shown(
        "host_us", (("call", lambda row: f"`{row['call']}`"), ("library", get("library"))), always
    ),
    "build_time": Shown(
        "seconds", (("step", get("step")), ("kernel", get("implementation"))), always
    ),
}


def site_files(gpus: list[dict[str, Results]]) -> dict[str, str]:
    """Every file that only the site has, by its path in docs/: pages, charts, CSV."""
    files, lines = {}, []
    for suite in distinct(suite for suites in gpus for suite in suites):
        measured = [suites[suite] for suites in gpus if suite in suites]
        number = sum(len(extras(results)) for results in measured)
        lines.append(f"| [{suite}](results/{suite}.md) | {number} |\n")
        for results in measured:
            files[f"results/{csv_name(suite, results)}"] = csv_text(results)
        files |= suite_page(suite, measured)
    return {"results.md": INTRODUCTION + "".join(lines), **files}


def suite_page(suite: str, measured: list[Results]) -> dict[str, str]:
    """The page of a suite, and its chart; `measured` has its results on each GPU."""
    shown = SHOWN.get(suite) or Shown(first_field(measured))
    rows = [{**row, "gpu": short_name(r)} for r in measured for row in rows_of(shown, r)]
    title = FIELDS[shown.field]
    texts = [f"# {suite}", what_it_times(suite)]
    chart = range_chart(f"{suite}, {title}", ranges(shown, rows), title, title.startswith("times"))
    if chart:
        texts.append(f"![{title}]({suite}.svg)")
        texts.append(f"*{title[0].upper()}{title[1:]}: {EXPLAINED[title.startswith('times')]}*")
    texts.append(markdown(pivot("", rows, shown.labels, columns(shown, rows))))
    for results in measured:
        link = f"[All {len(extras(results))} rows]({csv_name(suite, results)}) as CSV"
        texts.append(f"**{gpu_name({suite: results})}.** {link}. {source(results)}")
    files = {f"results/{suite}.md": "\n\n".join(texts) + "\n"}
    return files | ({f"results/{suite}.svg": chart} if chart else {})


EXPLAINED = {
    True: "the dot is the geometric mean, the line reaches from the least to the largest. "
    "Above 1 dxgemm is faster.",
    False: "the dot is the geometric mean, the line reaches from the least to the largest.",
}


def first_field(measured: list[Results]) -> str:
    """The first of `FIELDS` that a suite has, where `SHOWN` does not say one."""
    rows = [row for results in measured for row in extras(results)]
    return next(field for field in FIELDS if any(row.get(field) for row in rows))


def rows_of(shown: Shown, results: Results) -> Rows:
    """The rows that count, each with a figure."""
    rows = [row for row in extras(results) if row.get(shown.field) and shown.of(row)]
    if not shown.best_by:
        return rows
    best: dict[tuple[object, ...], Extra] = {}
    for row in rows:
        problem = tuple(row.get(name) for name in shown.best_by)
        best[problem] = max(best.get(problem, row), row, key=lambda row: row[shown.field])
    return list(best.values())


def columns(shown: Shown, rows: Rows) -> list[Column]:
    """Number of rows; of each GPU the mean, and the least or the largest: whichever is worse."""
    is_ratio = shown.field.startswith("vs_")
    text: Callable[[float], str] = ratio if is_ratio or shown.field == "regret" else figure
    worst, header = (min, "least") if is_ratio else (max, "most")
    found: list[Column] = [("rows", count)]
    for gpu in distinct(row["gpu"] for row in rows):
        for name, pick in ((gpu, mean), (header, worst)):

            def cell(of: Rows, gpu: str = gpu, pick: Callable[..., float] = pick) -> str:
                values = [row[shown.field] for row in of if row["gpu"] == gpu]
                return text(pick(values)) if values else ""

            found.append((name, cell))
    return found


def ranges(shown: Shown, rows: Rows) -> list[Range]:
    """Mean, least and largest figure of each line of the table, by GPU."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        label = " ".join(filter(None, (str(text(row)) for _, text in shown.labels)))
        label = label.replace("`", "").replace("\\", "")
        groups.setdefault((label, row["gpu"]), []).append(row[shown.field])
    return [Range(*key, mean(of), min(of), max(of)) for key, of in groups.items()]


def what_it_times(suite: str) -> str:
    """The first line of the docstring of a suite's program."""
    path = REPOSITORY / "benchmarks" / f"bench_{suite}.py"
    path = path if path.exists() else path.with_name(f"{suite}_times.py")
    docstring = ast.get_docstring(ast.parse(path.read_text())) if path.exists() else None
    return (docstring or "").partition("\n\n")[0].replace("\n", " ")


def short_name(results: Results) -> str:
    """`NVIDIA H100 80GB HBM3` -> `H100`."""
    return gpu_name({"": results}).split()[1]


def csv_name(suite: str, results: Results) -> str:
    return f"{suite}-{gpu_slug(gpu_name({suite: results}))}.csv"


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
