"""Write what is generated into docs/ladder.md: figures, code, arithmetic, measurements.

    python docs/ladder/build.py            # rewrite docs/ladder.md
    python docs/ladder/build.py --check    # exit 1 if it is out of date

Between `<!-- NAME:begin -->` and `<!-- NAME:end -->` the text is this script's, from the kernel
files and `benchmarks/results/`; everything else is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import excerpts
import model
from measured import REPOSITORY, SIZE, Measured, commits, kernel_file, load_measured, load_rows

import dxgemm
from dxgemm.cli.counters import STALLS, busiest_pipe, top_stall
from dxgemm.gpu.occupancy import Occupancy, occupancy, sm_limits

PAGE = REPOSITORY / "docs" / "ladder.md"
KERNELS = REPOSITORY / "handwritten"
ARCH = "sm_90a"
SHORT = [(m, n, k) for m in (2048, 4096) for n in (2048, 4096) for k in (512, 1024)]
SHORT_RUNGS = ("shared_tile", "thread_tile_2d", "conflict_free", "async_copy", "tuned", "cublas")
NO_RESULTS = "Not measured yet: `python benchmarks/run.py --suite ladder`, on an NVIDIA H200."


@dataclass(frozen=True)
class Quantity:
    """A line of a rung's table: its name and its text for each arithmetic."""

    name: str
    texts: list[str]


def figure(value: float) -> str:
    """Three significant digits, or all of a whole number above 100."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def code(name: str) -> str:
    """The lines of a kernel file that are the rung's idea."""
    texts = []
    for excerpt in excerpts.EXCERPTS.get(name, ()):
        own = Path(kernel_file(name).__file__).resolve()
        path = KERNELS / excerpt.file if excerpt.file else own
        lines = path.read_text().splitlines()
        first = find_line(path, lines, excerpt.first, 0)
        last = find_line(path, lines, excerpt.last, first)
        body = textwrap.dedent("\n".join(lines[first : last + 1]))
        link = f"[{path.name}](../handwritten/{path.relative_to(KERNELS)}):"
        texts.append(f"{link}\n\n```python\n{body}\n```")
    return "\n\n".join(texts)


def find_line(path: Path, lines: list[str], text: str, start: int) -> int:
    """Index of the first line from `start` on that contains a text.

    Raises:
        ValueError: the kernel file has changed under an excerpt.
    """
    for index in range(start, len(lines)):
        if text in lines[index]:
            return index
    raise ValueError(f"{path.name} has no line with {text!r} any more: correct excerpts.py")


def quantities(points: list[Measured]) -> list[Quantity]:
    """Arithmetic, prediction and measurement of one rung, a text for each arithmetic."""

    def line(name: str, texts: list[str]) -> list[Quantity]:
        return [Quantity(name, texts)] if any(texts) else []

    predictions = [model.predict(p.name, p.rung, p.config, p.kind) for p in points]
    occupancies = [occupancy_of(p) for p in points]
    shared = [model.shared_intensity(p.config, p.kind) for p in points]
    rows = [p.row for p in points]
    return [
        *line("config, the fastest", [row["config"] for row in rows]),
        *line(
            "FLOP per byte of global memory",
            [figure(model.global_intensity(p.config, p.kind)) for p in points],
        ),
        *line("FLOP per byte of shared memory", [figure(x) if x else "" for x in shared]),
        *line("predicted at most, TFLOP/s", [figure(p.tflops) for p in predictions]),
        *line("what limits the prediction", [p.limit for p in predictions]),
        *line("**measured, TFLOP/s**", [f"**{figure(row['tflops'])}**" for row in rows]),
        *line(
            "measured / predicted",
            [f"{r['tflops'] / p.tflops:.2f}" for r, p in zip(rows, predictions, strict=True)],
        ),
        *line("x cuBLAS", [f"{r['vs_cublas']:.2f}" if r["vs_cublas"] else "" for r in rows]),
        *line(
            "x CUDA C++",
            [
                f"{r['vs_twin']:.2f} of {figure(r['twin_tflops'])}" if r["vs_twin"] else ""
                for r in rows
            ],
        ),
        *line("threads per block", [str(row["threads"]) for row in rows]),
        *line("registers per thread", [str(row["registers"]) for row in rows]),
        *line("shared memory per block, bytes", [str(row["smem_bytes"]) for row in rows]),
        *line("blocks per SM", [str(o.blocks) if o else "" for o in occupancies]),
        *line(
            "occupancy",
            [f"{o.fraction:.0%}, by {' and '.join(o.limiters)}" if o else "" for o in occupancies],
        ),
        *counter_lines(points),
    ]


def occupancy_of(point: Measured) -> Occupancy | None:
    limits = sm_limits(ARCH)
    row = point.row
    if limits is None or row["registers"] is None:
        return None
    return occupancy(limits, row["threads"], row["registers"], row["smem_bytes"])


def counter_lines(points: list[Measured]) -> list[Quantity]:
    """Counters of one launch, by ncu."""
    names = ("units busy", "issue slots busy", "shared memory's path busy")
    names = (*names, "its passes lost to conflicts", "top stall")
    columns = []
    for point in points:
        values = point.counters
        busiest, stall = busiest_pipe(values), top_stall(values)
        wavefronts = values.get("smem_wavefronts", 0)
        columns.append(
            [
                f"{busiest[0]} {busiest[1]:.0f} %" if busiest else "",
                f"{values['issue_percent']:.0f} %" if "issue_percent" in values else "",
                f"{values['smem_percent']:.0f} %" if "smem_percent" in values else "",
                f"{values['smem_conflicts'] / wavefronts:.0%}" if wavefronts else "",
                f"{stall}, {values[f'stall_{stall}']:.2f} cycles" if stall else "",
            ]
        )
    lines = [
        Quantity(f"ncu: {name}", list(texts))
        for name, texts in zip(names, zip(*columns, strict=True), strict=True)
    ]
    return [line for line in lines if any(line.texts)]


def rung_text(name: str, measured: list[Measured]) -> str:
    """Everything generated of one rung."""
    parts = [f"![{name}](ladder/{name}.svg)"]
    if name in excerpts.EXCERPTS:
        parts.append(code(name))
    points = [point for point in measured if point.name == name]
    if points:
        lines = [[quantity.name, *quantity.texts] for quantity in quantities(points)]
        parts.append(table([f"m = n = k = {SIZE}", *(p.kind for p in points)], lines))
        stalls = {top_stall(point.counters) for point in points} - {None}
        for stall in sorted(str(stall) for stall in stalls):
            parts.append(f"*{stall}*: warps wait for {STALLS[stall]}.")
    else:
        parts.append(NO_RESULTS)
    return "\n\n".join(parts)


def summary_text(measured: list[Measured]) -> str:
    """Table of all rungs."""
    if not measured:
        return NO_RESULTS
    lines = []
    names = dict.fromkeys((point.rung, point.name) for point in measured)
    for number, name in names:
        of_name = {point.kind: point for point in measured if point.name == name}
        cells = [str(number), f"[{name}](#{number}-{name.removesuffix('_tf32')})"]
        for kind in ("float32", "float64"):
            point = of_name.get(kind)
            cells += (
                [figure(point.tflops), f"{point.row['vs_cublas'] or 0:.2f}"] if point else ["", ""]
            )
        single = of_name.get("float32") or of_name.get("tf32")
        twin = single.row["vs_twin"] if single else None
        cells.append(f"{twin:.2f}" if twin else "")
        others = [p for kind, p in of_name.items() if kind not in ("float32", "float64")]
        cells.append(
            ", ".join(
                f"{p.kind} {figure(p.tflops)} ({p.row['vs_cublas'] or 0:.2f})" for p in others
            )
        )
        lines.append(cells)
    header = ["rung", "kernel", "float32", "x cuBLAS", "float64", "x cuBLAS", "x CUDA C++"]
    header.append("tensor cores (x cuBLAS)")
    parts = [
        f"TFLOP/s on an NVIDIA H200, m = n = k = {SIZE}, standard normal operands:",
        table(header, lines),
        commits(),
    ]
    return "\n\n".join(parts)


def short_text() -> str:
    """Table of products of few k: rungs against cuBLAS."""
    rows: dict[tuple[int, int, int], dict[str, dict[str, Any]]] = {}
    for row in load_rows():
        if (shape := (row["m"], row["n"], row["k"])) in SHORT and row["dtype"] == "float32":
            rows.setdefault(shape, {})[row["implementation"]] = row
    if not rows:
        return NO_RESULTS
    lines = [
        [
            " x ".join(map(str, shape)),
            *(figure(of[name]["tflops"]) for name in SHORT_RUNGS),
            f"{of[SHORT_RUNGS[-2]]['vs_cublas']:.2f}",
        ]
        for shape, of in sorted(rows.items())
    ]
    return table(
        ["m x n x k, float32, TFLOP/s", *SHORT_RUNGS, f"{SHORT_RUNGS[-2]} x cuBLAS"], lines
    )


def rooflines_text(measured: list[Measured]) -> str:
    """Figures of all rungs under the limits of memory and arithmetic."""
    if not measured:
        return NO_RESULTS
    parts = [
        "![Roofline, float32](ladder/roofline_float32.svg)",
        "![Roofline, float64](ladder/roofline_float64.svg)",
    ]
    if any(point.kind not in ("float32", "float64") for point in measured):
        parts.append("![Roofline, reduced precision](ladder/roofline_reduced.svg)")
    return "\n\n".join(parts)


def render(page: str) -> str:
    """The page with everything between its markers made anew.

    Raises:
        ValueError: a marker is missing, or an excerpt's lines are.
    """
    measured = load_measured()
    texts = {"summary": summary_text(measured), "rooflines": rooflines_text(measured)}
    texts["short"] = short_text()
    for implementation in dxgemm.implementations():
        if implementation.rung is not None:
            texts[implementation.name] = rung_text(implementation.name, measured)
    for name, text in texts.items():
        pattern = rf"(<!-- {name}:begin -->\n).*?(\n?<!-- {name}:end -->)"
        if not re.search(pattern, page, re.DOTALL):
            raise ValueError(f"{PAGE.name} has no markers <!-- {name}:begin --> and end")
        page = re.sub(
            pattern,
            lambda match, text=text: f"{match[1]}{text}\n<!-- {name}:end -->",  # noqa: B023
            page,
            flags=re.DOTALL,
        )
    return page


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if outdated")
    check = parser.parse_args().check
    page = PAGE.read_text()
    text = render(page)
    if check and text != page:
        print("docs/ladder.md is out of date: run python docs/ladder/build.py", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
