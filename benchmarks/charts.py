"""Charts as SVG, by matplotlib: narrow, so that they can be read on a phone."""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

from result_files import Results, distinct, extras, short_name
from tables import LADDER_SIZES, figure, kind_of, ratio, rung_rows, size_of

from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import time_candidates
from dxgemm.gpu.cards import CARDS
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Strides

CARD = CARDS["H200 SXM"]
# n and m of a tile; then of a cluster, in tiles.
KERNEL = re.compile(r"nvjet_\w+?_(\d+)x(\d+)_64x\d+_(\d+)x(\d+)_")
CONFIGS: dict[str, WgmmaConfig] = {str(c): c for c in find_implementation("wgmma").kernel.configs}


class Shares(NamedTuple):
    """Shares for one product.

    Attributes:
        label: its size.
        plain: of the chosen one of the tiles with 64 or 128 rows and multiples of 64 columns.
        chosen, cublas: of the chosen tile, and of cuBLAS's.
    """

    label: str
    plain: float
    chosen: float
    cublas: float


def share(m: int, n: int, tile: tuple[int, int], blocks: int) -> float:
    """Share of the area of all waves of tiles that is result.

    Args:
        m, n: sizes of the result.
        tile: rows and columns that a cluster computes at a time.
        blocks: blocks of the cluster, each on an SM.
    """
    rows, cols = tile
    clusters = CARD.facts.sm_count // blocks
    waves = math.ceil(math.ceil(m / rows) * math.ceil(n / cols) / clusters)
    return m * n / (waves * clusters * rows * cols)


def own_share(m: int, n: int, config: WgmmaConfig) -> float:
    tile = config.tile_m * config.pair[0], config.tile_n * config.pair[1]
    return share(m, n, tile[::-1] if config.is_turned else tile, config.cluster)


def plain_config(dtype: str, m: int, n: int, k: int) -> WgmmaConfig:
    """Config that is chosen of those which other dtypes take, too."""
    problem = replace(contiguous_problem(dtype, m, n, k), b=Strides(0, 1, k))
    (times,) = time_candidates(problem, CARD.facts, [find_implementation("wgmma")])
    plain = [
        (us, row.config)
        for row, us in zip(times.columns.rows, times.us, strict=True)
        if row.config.takes("int8") and not row.fill
    ]
    return min(plain, key=lambda found: found[0])[1]


def shares(gpus: list[dict[str, Results]]) -> list[Shares]:
    """Shares of the products of which the suite `half` knows cuBLAS's kernels."""
    found = []
    suites = [of["half"] for of in gpus if "half" in of and short_name(of["half"]) in CARD.name]
    for row in (row for suite in suites for row in extras(suite) if "torch_kernels" in row):
        m, n, k = row["m"], row["n"], row["k"]
        tile = next(filter(None, map(KERNEL.search, row["torch_kernels"])), None)
        config = CONFIGS.get(row["config"])
        if tile and config:
            cols, rows, along_n, along_m = map(int, tile.groups())
            theirs = share(m, n, (rows * along_m, cols * along_n), along_m * along_n)
            plain = own_share(m, n, plain_config(row["dtype"], m, n, k))
            found.append(Shares(size_of(row), plain, own_share(m, n, config), theirs))
    return found


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
