"""One HTML page from the results, whole in itself: charts, what would be chosen, all tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from charts import (
    COLORS,
    Bar,
    Cell,
    Series,
    bar_chart,
    color_variables,
    heat_map,
    line_chart,
)
from error_charts import accuracy_charts, precision_charts
from result_files import (
    OTHERS,
    Extra,
    Results,
    arithmetic,
    distinct,
    extras,
    gpu_name,
    kind_of,
    kind_text,
    sources,
)
from tables import Part, Table, figure, ratio, tables_of

from dxgemm.choice.selection import choose
from dxgemm.errors import UnsupportedProblemError
from dxgemm.gpu.cards import CARDS
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.roofline import Roofline
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import ITEM_SIZES, RESULT_DTYPES

FEWEST_POINTS = 3  # of a line
# Of m = n = k in the charts of rates. Below it launches are what counts; sizes that are no multiple
# would be dents in the lines.
SMALLEST_SIZE, SIZE_UNIT = 256, 128
MAP_SIZES = tuple(2**power for power in range(5, 15))
MAP_KINDS = (*((dtype, None) for dtype in RESULT_DTYPES), ("float32", "tf32"))
BASELINE = "cublas"

RATE_TEXT = (
    "Square matrices, the config that is chosen for each kernel. The dashed line is "
    "the roofline at the highest clock, which no GPU holds under load."
)
SPEEDUP_TEXT = (
    "Time of cuBLAS over that of dxgemm's best kernel, from the same run: beyond the dashed line "
    "dxgemm is faster."
)
CHOICE_TEXT = (
    "The kernel that implementation=None takes for row-major operands, with its tile, in this "
    "version. A field's tooltip has the reason."
)
ACCURACY_TEXT = (
    "The largest error of an element of a 256 x 256 result, in units of eps |A| |B|, with the eps "
    "of the type of sums."
)
PRECISION_TEXT = (
    "The largest error of emulated and native products against k, by kind of operands, in units "
    "of eps |A| |B|. Both axes are logarithmic."
)

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #20262b; --soft: #5b6770; --rule: #dfe4e8;
%s }
@media (prefers-color-scheme: dark) {
:root { --page: #14181b; --ink: #e3e7ea; --soft: #9aa3ab; --rule: #333b41;
%s } }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--page);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.5rem; font-size: 1.3rem; }
p, li, figcaption, summary { max-width: 60rem; }
.source { color: var(--soft); font-size: 0.85rem; }
.charts { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(32rem, 100%%), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: 0.3rem; }
svg { width: 100%%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg text.value { paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
svg text.name { fill: var(--c, var(--soft)); } svg text.small { font-size: 9px; fill: var(--ink); }
.mark { fill: var(--c); } .field { fill: var(--c); fill-opacity: 0.4; }
.path { fill: none; stroke: var(--c); stroke-width: 1.8; }
.roof, .reference { fill: none; stroke: var(--ink); stroke-dasharray: 5 4; }
.grid { stroke: var(--rule); }
.table { overflow-x: auto; margin: 0.5rem 0 1.5rem; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--rule); text-align: left; }
th.figure, td.figure { text-align: right; font-variant-numeric: tabular-nums; }
"""


def html_page(gpus: list[dict[str, Results]]) -> str:
    """The whole document; nothing of it comes from the network."""
    body = "\n".join(gpu_section(suites) for suites in gpus) or "<p>No results.</p>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>dxgemm, measured</title>\n<style>{STYLE % color_variables()}</style>\n</head>\n"
        f"<body>\n<h1>dxgemm, measured</h1>\n{body}\n</body>\n</html>\n"
    )


def gpu_section(suites: dict[str, Results]) -> str:
    name = gpu_name(suites)
    facts = next((card.facts for card in CARDS.values() if card.name == name), None)
    said = "".join(f"<li>{escape(text)}</li>" for text in sources(suites))
    parts = [f'<h2>{escape(name)}</h2>\n<ul class="source">{said}</ul>']
    if "gemm" in suites:
        rows = extras(suites["gemm"])
        parts.append(heading("Rate", RATE_TEXT) + grid(rate_charts(rows, facts)))
        parts.append(heading("Against cuBLAS", SPEEDUP_TEXT) + grid(speedup_charts(rows)))
    if facts is not None and not simulator_enabled():
        parts.append(heading("The automatic choice", CHOICE_TEXT) + grid(choice_maps(facts)))
    for suite, title, text, draw in (
        ("accuracy", "Accuracy", ACCURACY_TEXT, accuracy_charts),
        ("precision", "Precision", PRECISION_TEXT, precision_charts),
        ("host_overhead", "Host time of a call", "", host_charts),
        ("build_time", "Start of a process", "", build_charts),
    ):
        if suite in suites:
            parts.append(heading(title, text) + grid(draw(suites[suite]).values()))
    parts.append(heading("All figures"))
    for suite, results in suites.items():
        tables = "\n".join(map(part_html, tables_of(suite, results)))
        parts.append(f"<details><summary>Suite {escape(suite)}</summary>\n{tables}\n</details>")
    return "\n".join(parts)


def heading(title: str, text: str = "") -> str:
    paragraph = f"<p>{escape(text)}</p>\n" if text else ""
    return f"<h3>{escape(title)}</h3>\n{paragraph}"


def grid(charts: Iterable[str]) -> str:
    return '<div class="charts">\n' + "\n".join(charts) + "\n</div>"


def rate_charts(rows: list[Extra], facts: DeviceFacts | None) -> Iterable[str]:
    """One chart for each kind of arithmetic and layout of squares."""
    squares = [
        row
        for row in rows
        if row["m"] == row["n"] == row["k"] >= SMALLEST_SIZE
        and row["m"] % SIZE_UNIT == 0
        and row["batch"] == 1
    ]
    for kind, arrangement in distinct((kind_of(row), row["arrangement"]) for row in squares):
        shown = [r for r in squares if (kind_of(r), r["arrangement"]) == (kind, arrangement)]
        lines = []
        for name in distinct(row["implementation"] for row in shown):
            if name not in COLORS:
                continue  # other libraries by way of cuBLAS
            points = sorted((r["m"], r["tflops"]) for r in shown if r["implementation"] == name)
            if len(points) >= FEWEST_POINTS:
                lines.append(Series(name, points))
        if not lines:
            continue
        if facts is not None:
            sizes = distinct(x for line in lines for x, _ in line.points)
            lines.append(roof(shown[0], sorted(sizes), facts))
        yield line_chart(f"{kind}, {arrangement}", lines, "m = n = k", "TFLOP/s")


def roof(row: Extra, sizes: list[int], facts: DeviceFacts) -> Series:
    """The roofline over squares of a row's arithmetic."""
    problem = contiguous_problem(row["dtype"], 1, 1, 1)
    peak = facts.tensor_tflops.get(arithmetic(row), facts.peak_tflops[problem.scalar_dtype])
    out_bytes = ITEM_SIZES[row["result_dtype"] or problem.out_dtype]
    points = []
    for n in sizes:
        moved = n * n * (2 * ITEM_SIZES[row["dtype"]] + out_bytes)
        roofline = Roofline(2 * n**3, moved, peak, facts.memory_gbytes_per_s)
        points.append((n, 2 * n**3 / roofline.time_us / 1e6))
    return Series("roofline", points, is_roof=True)


def speedup_charts(rows: list[Extra]) -> Iterable[str]:
    """One chart a kind of arithmetic: the best own kernel of each shape against cuBLAS."""
    own = [row for row in rows if row["implementation"] not in OTHERS and row["vs_cublas"]]
    for kind in distinct(map(kind_of, own)):
        best: dict[str, Extra] = {}
        for row in (row for row in own if kind_of(row) == kind):
            label = shape_text(row)
            if label not in best or row["tflops"] > best[label]["tflops"]:
                best[label] = row
        bars = [
            Bar(
                label,
                row["vs_cublas"],
                f"{ratio(row['vs_cublas'])} {row['implementation']}",
                row["implementation"],
            )
            for label, row in best.items()
        ]
        yield bar_chart(kind, bars, "times cuBLAS", reference=1.0)


def shape_text(row: Extra) -> str:
    batch = f"{row['batch']} x " if row["batch"] > 1 else ""
    layout = "" if row["arrangement"] == "row_row_row" else f", {row['arrangement']}"
    return f"{batch}{row['m']} x {row['n']} x {row['k']}{layout}"


def choice_maps(facts: DeviceFacts) -> Iterable[str]:
    """A map a kind of arithmetic over m = n and k."""
    for dtype, precision in MAP_KINDS:
        cells = {}
        for k in MAP_SIZES:
            for n in MAP_SIZES:
                problem = contiguous_problem(dtype, n, n, k, precision=precision)
                try:
                    candidate = choose(problem, facts)
                except UnsupportedProblemError:
                    continue
                hint = f"m = n = {n}, k = {k}: {candidate}, {candidate.reason}"
                tile = str(candidate.config).partition(" ")[0]
                cells[k, n] = Cell(candidate.implementation.name, tile, hint)
        if len(cells) == len(MAP_SIZES) ** 2:
            title = kind_text(dtype, precision)
            yield heat_map(title, MAP_SIZES, MAP_SIZES, cells, "k", "m = n")


def host_charts(results: Results) -> dict[str, str]:
    """Every call on the largest of the small matrices, in float32."""
    size = max(row["m"] for row in extras(results))
    bars = [
        Bar(
            f"{row['library']}: {row['call']}",
            row["host_us"],
            figure(row["host_us"]),
            "tuned" if row["call"].startswith(("gemm(", "plan(")) else BASELINE,
        )
        for row in extras(results)
        if row["m"] == size and row["dtype"] == "float32"
    ]
    title = f"float32, {size} x {size}"
    return {title: bar_chart(title, bars, "microseconds")}


def build_charts(results: Results) -> dict[str, str]:
    """The slowest of each step."""
    slowest: dict[str, float] = {}
    for row in extras(results):
        slowest[row["step"]] = max(row["seconds"], slowest.get(row["step"], 0.0))
    bars = [Bar(step, seconds, figure(seconds), "tuned") for step, seconds in slowest.items()]
    title = "of several dtypes and kernels the slowest"
    return {title: bar_chart(title, bars, "seconds")}


def part_html(part: Part) -> str:
    return f"<p>{inline(part)}</p>" if isinstance(part, str) else table_html(part)


def table_html(part: Table) -> str:
    def line(tag: str, cells: Iterable[str]) -> str:
        texts = [
            f"<{tag}>{inline(cell)}</{tag}>"
            if column < part.text_columns
            else f'<{tag} class="figure">{inline(cell)}</{tag}>'
            for column, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(texts)}</tr>"

    lines = [line("th", part.header), *(line("td", row) for row in part.rows)]
    title = f"<p>{inline(part.title)}</p>\n" if part.title else ""
    return f'{title}<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"


def inline(text: str) -> str:
    """Code and the texts of links, of what Markdown a table holds."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("\\|", "|")
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(plain, quote=False))
