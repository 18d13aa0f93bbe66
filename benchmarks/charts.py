"""Charts as SVG, by matplotlib: narrow, so that they can be read on a phone."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from result_files import Results, distinct
from tables import LADDER_SIZES, figure, kind_of, ratio, rung_rows
from tile_shares import Shares

INK = "#7f8a93"  # reads on light pages and on dark ones
WIDTH, MARGIN, LABEL_HEIGHT, LINE_HEIGHT = 4.6, 0.7, 0.2, 0.13  # inches
SHARE_NAMES = {"multiples of 64 columns": "plain", "chosen tile": "chosen", "cuBLAS": "cublas"}
DOTS = (("x", 5, "full"), ("o", 4, "full"), ("o", 9, "none"))  # marker, size, fill of a series


class Range(NamedTuple):
    """A line of a chart, on one GPU."""

    label: str
    gpu: str
    mean: float
    least: float
    most: float
    text: str = ""


def draw(title: str, height: float, paint: Callable[[Any], None]) -> str:
    """SVG of what is painted on axes: the same for the same input, its text as text."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9.5}
    style |= dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with rc_context(style | {"text.color": INK}):
        axes = Figure(figsize=(WIDTH, height)).add_axes((0.02, 0.0, 0.96, 1.0))
        axes.spines[["top", "right", "left"]].set_visible(False)
        paint(axes)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        axes.figure.savefig(
            file, format="svg", transparent=True, bbox_inches="tight", metadata=nothing
        )
    svg = file.getvalue()
    return svg[svg.index("<svg") :]


def range_chart(title: str, ranges: Sequence[Range], unit: str, is_ratio: bool) -> str | None:
    """A dot at each mean and a line from the least to the largest, on a logarithmic axis.

    Labels stand above their lines. Ratios are marked at 1. None where matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.ticker import LogLocator

    labels, gpus = distinct(r.label for r in ranges), distinct(r.gpu for r in ranges)
    step = LABEL_HEIGHT + LINE_HEIGHT * len(gpus)

    def paint(axes: Any) -> None:
        if is_ratio:
            axes.plot([1.0, 1.0], [0, step * len(labels)], "--", color=INK, alpha=0.5, zorder=0)
        for index, gpu in enumerate(gpus):
            own = [r for r in ranges if r.gpu == gpu]
            heights = [
                labels.index(r.label) * step + LABEL_HEIGHT + LINE_HEIGHT * index for r in own
            ]
            color = f"C{len(gpus) - 1 - index}"
            axes.hlines(heights, [r.least for r in own], [r.most for r in own], color, linewidth=3)
            axes.plot([r.mean for r in own], heights, "o", color=color, markersize=6, label=gpu)
            for r, height in zip(own, heights):
                beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
                axes.annotate(r.text, (r.mean, height), **beside)
        for index, label in enumerate(labels):
            place = (0, index * step + 0.35 * LABEL_HEIGHT)
            axes.text(*place, label, transform=axes.get_yaxis_transform(), va="center")
        axes.set(xscale="log", xlabel=unit, yticks=[], ylim=(len(labels) * step, 0))
        axes.xaxis.set_major_formatter("{x:g}")
        is_wide = max(r.most for r in ranges) > 1000 * min(r.least for r in ranges)
        axes.xaxis.set_minor_locator(LogLocator(subs=() if is_wide else (2, 5)))
        axes.xaxis.set_minor_formatter("{x:g}")
        if len(gpus) > 1:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(gpus), frameon=False)

    return draw(title, step * len(labels), paint)


def speed_chart(title: str, ladder: Results) -> str | None:
    """Every rung as a dot: in float32 if it was measured so, else where it comes closest."""
    rows = [r for r in rung_rows(ladder, LADDER_SIZES[0]) if r["vs_cublas"]]
    ranges = []
    for name in distinct(r["implementation"] for r in rows if r["implementation"] != "cublas"):
        own = [row for row in rows if row["implementation"] == name]
        single = [row for row in own if kind_of(row) == "float32"]
        row = max(single or own, key=lambda row: row["vs_cublas"])
        text = f"{ratio(row['vs_cublas'])}, {figure(row['tflops'])} TFLOP/s"
        label = f"{row['rung']} {name}, {kind_of(row)}"
        ranges.append(Range(label, "", *[row["vs_cublas"]] * 3, text))
    return range_chart(title, ranges, "times cuBLAS; the dashed line is 1", True)


def share_chart(found: Sequence[Shares]) -> str:
    """Shares of the SMs' area that are result, the least with multiples of 64 columns first."""
    ordered = sorted(found, key=lambda one: one.plain)
    lines = range(len(ordered))

    def paint(axes: Any) -> None:
        axes.hlines(lines, 0, 1, linewidth=0.5, color=INK, alpha=0.3)
        for (name, field), (marker, size, fill) in zip(SHARE_NAMES.items(), DOTS):
            points = [getattr(one, field) for one in ordered]
            axes.plot(points, lines, marker, label=name, markersize=size, fillstyle=fill)
        axes.set_yticks(lines, [one.label for one in ordered])
        axes.set(xlabel="share that is result", xlim=(0.5, 1.01), ylim=(len(lines) - 0.4, -0.6))
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(DOTS), frameon=False)

    return draw("shares", LABEL_HEIGHT * len(lines) + 0.8, paint)
