"""Errors over k as charts: of the suite `accuracy` by kernel, of `precision` by precision."""

from __future__ import annotations

from charts import COLORS, Series, line_chart
from result_files import DEPTH_LINES, Results, accuracy_sections, distinct, extras
from tables import PRECISION_ERRORS, variant_text


def accuracy_charts(results: Results) -> dict[str, str]:
    """A chart for each arithmetic and kind of data, with the kernels that have a colour."""
    charts = {}
    for title, rows in accuracy_sections(results):
        names = [n for n in distinct(row["implementation"] for row in rows) if n in COLORS]
        points = {
            name: sorted((r["k"], r["max_error"]) for r in rows if r["implementation"] == name)
            for name in names
        }
        lines = [Series(name, points[name]) for name in names]
        charts[title] = line_chart(title, lines, "k", "largest error, eps |A| |B|")
    return charts


def precision_charts(results: Results) -> dict[str, str]:
    """A chart for each dtype and kind of operands, with a line for each precision."""
    charts = {}
    of_depth = [row for row in extras(results) if row["m"] == row["n"] == DEPTH_LINES]
    for dtype, data in distinct((row["dtype"], row["data"]) for row in of_depth):
        rows = [row for row in of_depth if (row["dtype"], row["data"]) == (dtype, data)]
        lines = []
        for variant in PRECISION_ERRORS[dtype]:
            points = sorted((row["k"], row["max_error"]) for row in rows if row["way"] == variant)
            if points:
                lines.append(Series(variant_text(variant), points, color=variant))
        title = f"{dtype}, {data}"
        if lines:
            charts[title] = line_chart(title, lines, "k", "largest error, eps |A| |B|", log_y=True)
    return charts
