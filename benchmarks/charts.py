"""Charts of suites as SVG, by matplotlib, for the HTML page and for the site."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from result_files import (
    DEPTH_LINES,
    OTHERS,
    Extra,
    Results,
    accuracy_sections,
    distinct,
    extras,
    is_square,
    kind_of,
    size_of,
)
from tables import LADDER_SIZES, figure, ratio, rung_rows, variant_text
from tile_shares import Shares

import dxgemm
from dxgemm.choice.implementation import Role

INK = "#7f8a93"  # reads on light pages and on dark ones
WIDTH, LINE_CHART_HEIGHT, BAR_HEIGHT = 7.2, 3.6, 0.2  # inches
LONGEST_LABEL = 38  # characters beside a bar
FEWEST_POINTS = 3  # of a line
# Of m = n = k in the charts of rates. Below it launches are what counts; sizes that are no multiple
# would be dents in the lines.
SMALLEST_SIZE, SIZE_UNIT = 256, 128
ERROR_LABEL = "largest error, eps |A| |B|"
PRECISIONS = ("cublas", "float32", "float64", "tf32", "emulated", "emulated14", "emulated13")

SHARE_NAMES = {"multiples of 64 columns": "plain", "chosen tile": "chosen", "cuBLAS": "cublas"}
DOTS = (("x", 5, "full"), ("o", 4, "full"), ("o", 9, "none"))  # marker, size, fill of a series

Charts = dict[str, str]  # SVG by title
Lines = dict[str, list[tuple[float, float]]]  # points by name


def draw(title: str, height: float, paint: Callable[[Any], None]) -> str:
    """SVG of what is painted on axes: the same for the same input, its text as text."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9}
    style |= dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with rc_context(style | {"text.color": INK}):
        axes = Figure(figsize=(WIDTH, height)).add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        paint(axes)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        axes.figure.savefig(
            file, format="svg", transparent=True, bbox_inches="tight", metadata=nothing
        )
    svg = file.getvalue()
    return svg[svg.index("<svg") :]


def line_chart(title: str, lines: Lines, x_label: str, y_label: str, log_y: bool = False) -> str:
    """Lines over a logarithmic x."""

    def paint(axes: Any) -> None:
        for name, points in lines.items():
            axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1.3, label=name)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        if log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)

    return draw(title, LINE_CHART_HEIGHT, paint)


def bar_chart(
    title: str, bars: Sequence[tuple[str, float, str]], unit: str, reference: float | None = None
) -> str:
    """Bars of (label, length, text) to the right; a vertical line marks the reference."""

    def paint(axes: Any) -> None:
        labels, lengths, texts = zip(*bars)
        drawn = axes.barh(range(len(bars)), lengths, height=0.7)
        axes.bar_label(drawn, texts, padding=4)
        axes.set_yticks(range(len(bars)), [label[:LONGEST_LABEL] for label in labels])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlabel(unit)
        if reference:
            axes.axvline(reference, linestyle="--", color=INK, zorder=0)

    return draw(title, BAR_HEIGHT * len(bars) + 0.6, paint)


def dot_chart(title: str, series: Lines, labels: Sequence[str], unit: str) -> str:
    """Dots of each series, a line of them for each label; points are (value, line)."""

    def paint(axes: Any) -> None:
        lines = range(len(labels))
        axes.hlines(lines, 0, 1, linewidth=0.5, color=INK, alpha=0.3)
        for (name, points), (marker, size, fill) in zip(series.items(), DOTS):
            axes.plot(*zip(*points), marker, label=name, markersize=size, fillstyle=fill)
        axes.set_yticks(lines, labels)
        axes.set(xlabel=unit, xlim=(0.5, 1.01), ylim=(len(labels) - 0.4, -0.6))
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(series), frameon=False)

    return draw(title, BAR_HEIGHT * len(labels) + 0.8, paint)


def gemm_charts(results: Results) -> Charts:
    """Rates on squares by arithmetic and layout, then times cuBLAS by arithmetic."""
    rows = [row for row in extras(results) if row["implementation"] not in OTHERS[1:]]
    charts = {}
    squares = [
        row
        for row in rows
        if is_square(row)
        and row["m"] >= SMALLEST_SIZE
        and row["m"] % SIZE_UNIT == 0
        and row["batch"] == 1
    ]
    for kind, layout in distinct((kind_of(row), row["arrangement"]) for row in squares):
        shown = [r for r in squares if (kind_of(r), r["arrangement"]) == (kind, layout)]
        lines = lines_of(shown, "implementation", "m", "tflops")
        lines = {name: line for name, line in lines.items() if len(line) >= FEWEST_POINTS}
        if lines:
            title = f"{kind}, {layout}"
            charts[title] = line_chart(title, lines, "m = n = k", "TFLOP/s")
    own = [row for row in rows if row["implementation"] not in OTHERS and row["vs_cublas"]]
    for kind in distinct(map(kind_of, own)):
        best: dict[str, Extra] = {}
        for row in (row for row in own if kind_of(row) == kind):
            label = shape_text(row)
            best[label] = max(best.get(label, row), row, key=lambda row: row["tflops"])
        bars = [
            (label, row["vs_cublas"], f"{ratio(row['vs_cublas'])} {row['implementation']}")
            for label, row in best.items()
        ]
        title = f"{kind}, the fastest kernel against cuBLAS"
        charts[title] = bar_chart(title, bars, "times cuBLAS", reference=1.0)
    return charts


def shape_text(row: Extra) -> str:
    batch = f"{row['batch']} x " if row["batch"] > 1 else ""
    layout = "" if row["arrangement"] == "row_row_row" else f", {row['arrangement']}"
    return f"{batch}{size_of(row)}{layout}"


def lines_of(rows: list[Extra], name: str, x: str, y: str) -> Lines:
    lines: Lines = {}
    for row in rows:
        lines.setdefault(row[name], []).append((row[x], row[y]))
    return {key: sorted(points) for key, points in lines.items()}


def accuracy_charts(results: Results) -> Charts:
    """Errors over k by kernel, for each arithmetic and kind of data; of rungs only those chosen."""
    charts, steps = {}, {i.name for i in dxgemm.implementations() if i.role is Role.RUNG}
    for title, rows in accuracy_sections(results):
        shown = [row for row in rows if row["implementation"] not in steps]
        lines = lines_of(shown, "implementation", "k", "max_error")
        charts[title] = line_chart(title, lines, "k", ERROR_LABEL)
    return charts


def precision_charts(results: Results) -> Charts:
    """Errors over k by precision, for each dtype and kind of operands."""
    charts = {}
    rows = [
        {**row, "way": variant_text(row["way"])}
        for row in extras(results)
        if row["m"] == row["n"] == DEPTH_LINES and row["way"] in PRECISIONS
    ]
    for dtype, data in distinct((row["dtype"], row["data"]) for row in rows):
        of_data = [row for row in rows if (row["dtype"], row["data"]) == (dtype, data)]
        title, lines = f"{dtype}, {data}", lines_of(of_data, "way", "k", "max_error")
        charts[title] = line_chart(title, lines, "k", ERROR_LABEL, log_y=True)
    return charts


def speed_chart(title: str, ladder: Results) -> str:
    """Every rung as a bar: in float32 if it was measured so, else where it comes closest."""
    by_rung: dict[str, list[Extra]] = {}
    for row in rung_rows(ladder, LADDER_SIZES[0]):
        if row["vs_cublas"] and row["implementation"] != "cublas":
            by_rung.setdefault(row["implementation"], []).append(row)
    bars = []
    for name, rows in by_rung.items():
        single = [row for row in rows if kind_of(row) == "float32"]
        row = max(single or rows, key=lambda row: row["vs_cublas"])
        text = f"{ratio(row['vs_cublas'])}, {figure(row['tflops'])} TFLOP/s"
        bars.append((f"{row['rung']} {name}, {kind_of(row)}", row["vs_cublas"], text))
    return bar_chart(title, bars, "x cuBLAS; the dashed line is 1", 1.0)


def share_chart(found: Sequence[Shares]) -> str:
    """Shares of the SMs' area that are result, the least with multiples of 64 columns first."""
    ordered = sorted(found, key=lambda one: one.plain)
    series = {
        name: [(getattr(one, field), float(line)) for line, one in enumerate(ordered)]
        for name, field in SHARE_NAMES.items()
    }
    return dot_chart("shares", series, [one.label for one in ordered], "share that is result")


CHARTS: dict[str, Callable[[Results], Charts]] = {
    "gemm": gemm_charts,
    "accuracy": accuracy_charts,
    "precision": precision_charts,
}


def charts_of(suite: str, results: Results) -> Charts:
    """The charts of a suite by title; none where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return {}
    return CHARTS[suite](results) if suite in CHARTS else {}
