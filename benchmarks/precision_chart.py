"""Errors against the depth of a product as an SVG for docs/precision.md: a panel a kind of data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from provenance import gpu_slug
from result_files import Extra, Results, distinct, extras

DEPTH_LINES = 256  # m and n of the products whose k is varied
COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 240, 190  # without their margins
LEFT, TOP, GAP_X, GAP_Y, LEGEND = 44, 24, 40, 46, 30
# On white, so that they read on dark pages too; told apart without colour by their dashes.
LINE, INK = "#5b6770", "#2b3137"
COLORS = ("#d1495b", "#1b6ca8", "#3f8f5f", "#b57b00", "#7a4fa3")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2")
LEAST_ERROR = 1e-6  # what is less is drawn as this

Points = list[tuple[int, float]]


def error_charts(results: Results) -> dict[str, str]:
    """By dtype, the largest error of each way against k; of dtypes that were measured so."""
    charts = {}
    for dtype in distinct(row["dtype"] for row in extras(results)):
        panels = _panels(row for row in extras(results) if row["dtype"] == dtype)
        if panels:
            charts[dtype] = _draw(dtype, panels)
    return charts


def chart_file(results: Results, dtype: str) -> str:
    """Where the chart of a dtype is, from docs/."""
    return f"precision/{gpu_slug(results['machine_info']['gpu']['name'])}-{dtype}.svg"


def _panels(rows: Iterable[Extra]) -> dict[str, dict[str, Points]]:
    """By kind of data and way, (k, error) of each depth; of ways measured for all kinds."""
    panels: dict[str, dict[str, Points]] = {}
    for row in rows:
        if row["m"] == row["n"] == DEPTH_LINES:
            points = panels.setdefault(row["data"], {}).setdefault(row["way"], [])
            points.append((row["k"], max(row["max_error"], LEAST_ERROR)))
    common = set.intersection(*(set(lines) for lines in panels.values())) if panels else set()
    return {
        data: {way: points for way, points in lines.items() if way in common}
        for data, lines in panels.items()
    }


@dataclass(frozen=True)
class Scales:
    """What all panels share: the depths, and the powers of ten between which all errors are."""

    depths: Sequence[int]
    lowest: int
    highest: int

    def place(self, k: int, error: float) -> tuple[float, float]:
        """From the upper left corner of a panel, both logarithmic."""
        along = math.log(k / self.depths[0]) / (math.log(self.depths[-1] / self.depths[0]) or 1)
        up = (math.log10(error) - self.lowest) / ((self.highest - self.lowest) or 1)
        return along * PANEL_WIDTH, (1 - up) * PANEL_HEIGHT


def _scales(points: Sequence[tuple[int, float]]) -> Scales:
    exponents = [math.log10(error) for _, error in points]
    depths = sorted({k for k, _ in points})
    return Scales(depths, math.floor(min(exponents)), math.ceil(max(exponents)))


def _draw(dtype: str, panels: Mapping[str, Mapping[str, Points]]) -> str:
    ways = list(next(iter(panels.values())))
    scales = _scales([p for lines in panels.values() for points in lines.values() for p in points])
    width = LEFT + COLUMNS * (PANEL_WIDTH + GAP_X)
    height = TOP + -(-len(panels) // COLUMNS) * (PANEL_HEIGHT + GAP_Y) + LEGEND
    parts = []
    for index, (data, lines) in enumerate(panels.items()):
        row, column = divmod(index, COLUMNS)
        x, y = LEFT + column * (PANEL_WIDTH + GAP_X), TOP + row * (PANEL_HEIGHT + GAP_Y)
        panel = _panel(data, lines, scales, has_scale=column == 0)
        parts += [f'<g transform="translate({x} {y})">', *panel, "</g>"]
    x, y = LEFT, height - LEGEND // 2
    for number, way in enumerate(ways):
        parts.append(f'<polyline {_stroke(number)} points="{x},{y} {x + 30},{y}"/>')
        parts.append(_text(x + 36, y + 4, way, "start"))
        x += 60 + 8 * len(way)
    label = "largest error, units of the last place of |A| |B|, against k"
    parts.append(_text(width - GAP_X, y + 4, label, "end"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{dtype}: {escape(label)}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def _panel(title: str, lines: Mapping[str, Points], scales: Scales, has_scale: bool) -> list[str]:
    parts = [_text(PANEL_WIDTH / 2, -8, title, "middle")]
    for exponent in range(scales.lowest, scales.highest + 1):
        _, y = scales.place(scales.depths[0], 10.0**exponent)
        stroke = f'stroke="{LINE}" stroke-width="{1 if exponent == 0 else 0.3}"'
        parts.append(f'<line x1="0" y1="{y:.1f}" x2="{PANEL_WIDTH}" y2="{y:.1f}" {stroke}/>')
        if has_scale:
            parts.append(_text(-6, y + 4, f"1e{exponent}", "end"))
    for k in scales.depths:
        parts.append(_text(scales.place(k, 1.0)[0], PANEL_HEIGHT + 16, str(k), "middle"))
    for number, points in enumerate(lines.values()):
        path = " ".join(
            f"{x:.1f},{y:.1f}" for x, y in map(scales.place, *zip(*points, strict=True))
        )
        parts.append(f'<polyline {_stroke(number)} points="{path}"/>')
    return parts


def _stroke(number: int) -> str:
    color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
    return f'fill="none" stroke="{color}" stroke-width="1.8" stroke-dasharray="{dash}"'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" text-anchor="{anchor}">{escape(text)}</text>'
    )
