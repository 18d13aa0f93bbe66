"""Charts as SVG: for an HTML page, whose style sheet holds `COLORS`, or for files of their own.

Colours are CSS variables, so that one picture serves light and dark; what a point stands for is its
tooltip, which browsers show without a script.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import dxgemm
from dxgemm.choice.implementation import Role

WIDTH = 720
LINE_HEIGHT = 14  # between labels, so that they do not meet
LONGEST_LABEL = 38  # characters beside a bar
LEAST_DRAWN = 1e-6  # on a logarithmic scale, smaller values are drawn here
# Of each series on a light and on a dark page.
# After Okabe and Ito, "Color Universal Design", darkened or lightened for the page.
COLORS = {
    "tuned": ("#0072b2", "#56a8e0"),
    "tensor_core": ("#d55e00", "#ff8a3d"),
    "tensor_core_tf32": ("#d55e00", "#ff8a3d"),
    "wgmma": ("#009e73", "#2fc79b"),
    "emulated_float32": ("#00777e", "#3cc4cc"),
    "emulated_float32_tile": ("#2f8f96", "#6fd8df"),
    "emulated_float64": ("#5a4fcf", "#a39bff"),
    "emulated_float64_tile": ("#7d5fd0", "#bda8ff"),
    "pipeline": ("#b57b00", "#e6b23c"),
    "pipeline_tma": ("#a8558a", "#d98cbc"),
    "thread_tile_2d": ("#4a9cc9", "#8fd0f5"),
    "naive": ("#b03030", "#f07070"),
    "coalesced": ("#8a8a00", "#d6cf4a"),
    "small_batch": ("#c2477f", "#f08ab8"),
    "tensor_batch": ("#8f3fa8", "#cf8ae6"),
    "half_batch": ("#5c7f8f", "#9fc3d4"),
    "complex_batch": ("#6b7f2e", "#b3c76f"),
    "complex_tile": ("#3d6b8c", "#86b8d9"),
    "complex_tensor_core": ("#9c4a1a", "#e08a58"),
    "widening_tile": ("#7a5c3e", "#c29a72"),
    "tensor_tile": ("#1f7a6d", "#5cc4b5"),
    "shifted_tile": ("#b5651d", "#e09a5c"),
    "skinny_wgmma": ("#7a5ba6", "#b49bd6"),
    "skinny_shifted": ("#a65b8f", "#d99bc6"),
    "skinny_fma": ("#4f6d9e", "#93aedb"),
    "gemv": ("#3f7d54", "#7fc096"),
    # Precisions; those that are not here are drawn in the ink of the page.
    "emulated": ("#009e73", "#2fc79b"),
    "emulated14": ("#b57b00", "#e6b23c"),
    "emulated13": ("#8f3fa8", "#cf8ae6"),
    "float32": ("#0072b2", "#56a8e0"),
    "float64": ("#d55e00", "#ff8a3d"),
    "tf32": ("#b03030", "#f07070"),
    "cublas": ("#6b7177", "#9aa3ab"),
}
# A kernel that is not here has the colours of another one.
_PAIRS = [*COLORS.values()]
COLORS = {
    i.name: _PAIRS[zlib.crc32(i.name.encode()) % len(_PAIRS)]
    for i in dxgemm.implementations()
    if i.role is not Role.RUNG
} | COLORS
FILE_STYLE = """
svg { --ink: #20262b; --soft: #5b6770; --rule: #dfe4e8; %s }
@media (prefers-color-scheme: dark) {
svg { --ink: #e3e7ea; --soft: #9aa3ab; --rule: #333b41; %s } }
text { font: 12px system-ui, sans-serif; fill: var(--soft); } text.name { fill: var(--c); }
.mark { fill: var(--c); } .path { fill: none; stroke: var(--c); stroke-width: 1.8; }
.roof, .reference { fill: none; stroke: var(--ink); stroke-dasharray: 5 4; }
.grid { stroke: var(--rule); }
"""


@dataclass(frozen=True)
class Series:
    """A line; `is_roof` of one that bounds the others, `color` if its name has none."""

    name: str
    points: Sequence[tuple[float, float]]
    is_roof: bool = False
    color: str = ""


@dataclass(frozen=True)
class Bar:
    """One line of a bar chart: label, length, text behind the bar, series that has its colour."""

    label: str
    value: float
    text: str
    series: str


@dataclass(frozen=True)
class Cell:
    """One field of a map; `series` gives its colour."""

    series: str
    text: str
    hint: str


def line_chart(
    title: str, series: Sequence[Series], x_label: str, y_label: str, log_y: bool = False
) -> str:
    """Lines over a logarithmic x and a linear or logarithmic y; each has its name at its end."""
    height, left, right, top, bottom = 360, 52, 150, 12, 44
    xs = sorted({x for line in series for x, _ in line.points})
    ticks = y_ticks([y for line in series for _, y in line.points], log_y)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log(x) - math.log(xs[0])) / (math.log(xs[-1] / xs[0]) or 1)
        up = y / ticks[-1]
        if log_y:
            up = math.log(max(y, ticks[0]) / ticks[0]) / math.log(ticks[-1] / ticks[0])
        drawn = left + share * (WIDTH - left - right)
        return drawn, height - bottom - up * (height - top - bottom)

    parts = []
    for tick in ticks:
        _, y = place(xs[0], tick)
        parts.append(_line(left, y, WIDTH - right, y, "grid"))
        parts.append(_text(left - 6, y + 4, f"{tick:g}", "end"))
    for power in range(math.ceil(math.log2(xs[0])), math.floor(math.log2(xs[-1])) + 1):
        x, y = place(2**power, 0)
        parts.append(_text(x, y + 16, str(2**power), "middle"))
    parts.append(_text((left + WIDTH - right) / 2, height - 6, x_label, "middle"))
    parts.append(_text(left, top - 2, y_label, "start"))
    for line in series:
        places = [place(*point) for point in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        kind = "roof" if line.is_roof else "path"
        parts.append(f'<polyline class="{kind}" style="{_color(line)}" points="{path}"/>')
        if not line.is_roof:
            for (x, y), (size, rate) in zip(places, line.points, strict=True):
                hint = f"{line.name}, {size:g}: {rate:.3g} {y_label}"
                parts.append(
                    f'<circle class="mark" style="{_color(line)}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
                    f"<title>{escape(hint)}</title></circle>"
                )
    ends = sorted(series, key=lambda line: -line.points[-1][1])
    heights = spread([place(*line.points[-1])[1] + 4 for line in ends], lowest=height - bottom)
    for line, y in zip(ends, heights, strict=True):
        x, _ = place(*line.points[-1])
        parts.append(_text(x + 10, y, line.name, "start", "name", _color(line)))
    return _svg(title, height, parts)


def bar_chart(title: str, bars: Sequence[Bar], unit: str, reference: float | None = None) -> str:
    """Bars to the right, one a line; a vertical line marks the reference."""
    left, right, row, top = 250, 150, 19, 6
    height = top + row * len(bars) + 20
    most = max([bar.value for bar in bars] + ([reference] if reference else []))
    scale = (WIDTH - left - right) / most
    parts = []
    for index, bar in enumerate(bars):
        y = top + index * row
        parts.append(_text(left - 8, y + 13, shorten(bar.label), "end"))
        parts.append(
            f'<rect class="mark" style="--c:var(--{bar.series})" x="{left}" y="{y + 3}" '
            f'width="{max(bar.value * scale, 1):.1f}" height="{row - 6}"/>'
        )
    if reference:
        x = left + reference * scale
        parts.append(_line(x, top, x, height - 18, "reference"))
    for index, bar in enumerate(bars):
        x = left + max(bar.value, reference or 0) * scale + 6
        parts.append(_text(x, top + index * row + 13, bar.text, "start", "value"))
    parts.append(_text(left, height - 4, unit, "start"))
    return _svg(title, height, parts)


def heat_map(
    title: str,
    rows: Sequence[int],
    columns: Sequence[int],
    cells: Mapping[tuple[int, int], Cell],
    row_label: str,
    column_label: str,
) -> str:
    """A field for each (row, column), the first row at the bottom, and a legend."""
    left, bottom, top, cell_height = 60, 62, 6, 28
    cell_width = (WIDTH - left - 10) / len(columns)
    height = top + cell_height * len(rows) + bottom
    base = height - bottom
    parts = []
    for i, row in enumerate(rows):
        y = base - (i + 1) * cell_height
        parts.append(_text(left - 6, y + 18, str(row), "end"))
        for j, column in enumerate(columns):
            cell, x = cells[row, column], left + j * cell_width
            parts.append(
                f'<g><title>{escape(cell.hint)}</title><rect class="field" '
                f'style="--c:var(--{cell.series})" x="{x:.1f}" y="{y}" '
                f'width="{cell_width - 1:.1f}" height="{cell_height - 1}"/>'
                f"{_text(x + cell_width / 2, y + 18, cell.text, 'middle', 'small')}</g>"
            )
    for j, column in enumerate(columns):
        parts.append(_text(left + (j + 0.5) * cell_width, base + 16, str(column), "middle"))
    parts.append(
        _text(left, base + 34, f"{column_label} to the right, {row_label} upwards", "start")
    )
    x = left
    for name in dict.fromkeys(cell.series for cell in cells.values()):
        style = f"--c:var(--{name})"
        parts.append(
            f'<rect class="field" style="{style}" x="{x}" y="{base + 42}" width="14" height="14"/>'
        )
        parts.append(_text(x + 20, base + 54, name, "start"))
        x += 40 + 8 * len(name)
    return _svg(title, height, parts)


def color_variables(figure: str = "") -> tuple[str, str]:
    """CSS for a light and a dark page; only what a figure uses, if one is given."""
    used = {name: pair for name, pair in COLORS.items() if not figure or f"var(--{name})" in figure}
    light, dark = (" ".join(f"--{name}: {pair[i]};" for name, pair in used.items()) for i in (0, 1))
    return light, dark


def svg_file(figure: str) -> str:
    """A chart of this module as a file of its own, for a light page and a dark one."""
    start, end = figure.index("<svg "), figure.index("</figure>")
    opening, body = figure[start:end].split(">", 1)
    opening += ' xmlns="http://www.w3.org/2000/svg"'
    return f"{opening}>\n<style>{FILE_STYLE % color_variables(figure)}</style>{body}\n"


def spread(heights: Sequence[float], lowest: float) -> list[float]:
    """Places for labels, given from top to bottom, a line apart and none below the lowest."""
    placed: list[float] = []
    for y in heights:
        placed.append(max(y, placed[-1] + LINE_HEIGHT) if placed else y)
    for index in range(len(placed) - 1, -1, -1):
        placed[index] = min(placed[index], lowest)
        lowest = placed[index] - LINE_HEIGHT
    return placed


def shorten(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 3]}..."


def y_ticks(values: Sequence[float], log_y: bool) -> list[float]:
    """Places of the horizontal lines, the last one at or above all values."""
    most = max(values)
    if not log_y:
        step = nice_step(most)
        return [step * count for count in range(math.ceil(most / step) + 1)]
    least = max(min(values), LEAST_DRAWN)
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def nice_step(most: float) -> float:
    """A distance of 1, 2 or 5 times a power of ten, at most eight of which reach the most."""
    power = 10.0 ** math.floor(math.log10(most / 8))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 8 >= most)


def _color(line: Series) -> str:
    return "" if line.is_roof else f"--c:var(--{line.color or line.name})"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label", style: str = "") -> str:
    return (
        f'<text class="{kind}" style="{style}" x="{x:.1f}" y="{y:.1f}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg role="img" '
        f'aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {height}">\n{body}\n</svg></figure>'
    )
