"""What the results say, as tables: short ones of each suite for README, and full ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from precision_chart import chart_file, error_charts
from precision_forecast import DEPTHS, bits_rows, forecast_rows
from result_files import (
    OTHERS,
    Extra,
    Results,
    arithmetic,
    arithmetic_to,
    asked_arithmetic,
    distinct,
    extras,
    is_plain,
    is_reduction,
    size_of,
)

import dxgemm

README_GEMM_SIZES = (64, 256, 1024, 2048, 4096, 8192)
README_HOST_SIZE = 64
LADDER_SIZE = 4096
LADDER_MEAN_SIZES = (1024, 2048, 4096, 8192, 16384)
PIPELINES = ("pipeline", "pipeline_tma")
PIPELINE_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
# What computes an epilogue otherwise, by the name of its rows.
BASELINES = {
    "cublas_cupy": "cuBLAS and a kernel of cupy.fuse",
    "cublas_torch": "cuBLAS and torch's operations",
    "cublaslt": "cuBLASLt's own epilogue",
}
WAYS = ("fused", "split")  # in which a reduction of dxgemm's is computed
# What reduces a result otherwise, likewise.
REDUCING_BASELINES = {
    "cublas_cupy_reduction": "cuBLAS and CuPy",
    "cublas_torch_reduction": "cuBLAS and torch",
}


@dataclass(frozen=True)
class Table:
    """Rows of texts, which may hold links and code as Markdown has them.

    Attributes:
        text_columns: how many columns, the first ones, are text; the others are figures.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


Part = Table | str  # a table, or a paragraph


def figure(value: float) -> str:
    """Three significant digits, or all of a whole number above 100."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def verdict(value: float, target: float | None) -> str:
    if target is None:
        return ""
    return f"{target:g}, {'met' if value <= target else 'missed'}"


def host_overhead_table(rows: list[Extra]) -> Table:
    """One row a call, one column for each dtype and size; the worst of them is judged."""
    columns = sorted({(row["dtype"], row["m"]) for row in rows})
    times = {(row["library"], row["call"], row["dtype"], row["m"]): row["host_us"] for row in rows}
    targets = {(row["library"], row["call"]): row["target_us"] for row in rows}
    lines = []
    for (library, call), target in targets.items():
        cells = [times[library, call, dtype, size] for dtype, size in columns]
        lines.append([library, f"`{call}`", *map(figure, cells), verdict(max(cells), target)])
    names = [f"{dtype}, {size} x {size}" for dtype, size in columns]
    header = ["library", "call", *names, "target"]
    return Table("Host time of a call, microseconds:", header, lines, text_columns=2)


def host_overhead_short(results: Results) -> list[Part]:
    return [host_overhead_table([r for r in extras(results) if r["m"] == README_HOST_SIZE])]


def host_overhead_full(results: Results) -> list[Part]:
    return [host_overhead_table(extras(results))]


def build_time_short(results: Results) -> list[Part]:
    """One row a step: the slowest of its dtypes and implementations."""
    lines = []
    for step in distinct(row["step"] for row in extras(results)):
        of_step = [row for row in extras(results) if row["step"] == step]
        slowest = max(of_step, key=lambda row: row["seconds"])
        target = verdict(slowest["seconds"], slowest["target_s"])
        lines.append([step, figure(slowest["seconds"]), target])
    title = "Start of a process, seconds; of several dtypes and kernels the slowest:"
    return [Table(title, ["step", "median", "target"], lines)]


def build_time_full(results: Results) -> list[Part]:
    lines = []
    for benchmark in results["benchmarks"]:
        row, stats = benchmark["extra_info"], benchmark["stats"]
        what = [row["step"], row.get("dtype", ""), row.get("implementation", "")]
        times = map(figure, (row["seconds"], stats["min"], stats["max"]))
        loaded = ", ".join(row["loaded"]) or "nothing"
        lines.append([*what, *times, verdict(row["seconds"], row["target_s"]), loaded])
    header = ["step", "dtype", "implementation", "median", "min", "max", "target", "compilers"]
    return [Table("Start of a process, seconds:", header, lines, text_columns=3)]


def gemm_short(results: Results) -> list[Part]:
    """A table a dtype: on squares, the best of dxgemm's kernels against cuBLAS; then pipelines."""
    parts: list[Part] = []
    measured = {row["implementation"] for row in extras(results)}
    libraries = [name for name in OTHERS if name in measured]
    for dtype in distinct(row["dtype"] for row in extras(results) if is_plain(row)):
        lines = []
        for size in README_GEMM_SIZES:
            squares = [
                row
                for row in extras(results)
                if row["dtype"] == dtype
                and is_plain(row)
                and row["m"] == row["n"] == row["k"] == size
                and row["batch"] == 1
                and row["arrangement"] == "row_row_row"
            ]
            others = {row["implementation"]: row for row in squares}
            own = [row for row in squares if row["implementation"] not in OTHERS]
            best = max(own, key=lambda row: row["tflops"], default=None)
            if best:
                cells = [str(size), best["implementation"], figure(best["tflops"])]
                cells += [figure(others[n]["tflops"]) if n in others else "" for n in libraries]
                lines.append([*cells, ratio(best["vs_cublas"])])
        header = ["m = n = k", "best kernel", "its rate", *libraries, "best / cublas"]
        title = f"GPU rate, {dtype}, TFLOP/s:"
        parts.append(Table(title, header, lines, text_columns=2))
    return parts + pipeline_squares(results)


def pipeline_rows(results: Results) -> list[Extra]:
    return [
        row
        for row in extras(results)
        if row["implementation"] in PIPELINES and row["batch"] == 1 and row["vs_cublas"]
    ]


def pipeline_squares(results: Results) -> list[Part]:
    """One row a kind of arithmetic and an arrangement; empty if there are none."""
    rates: dict[tuple[str, str], dict[int, Extra]] = {}
    for row in pipeline_rows(results):
        if row["m"] == row["n"] == row["k"]:
            kind = arithmetic(row)
            if row.get("result_dtype"):
                kind += f" to {row['result_dtype']}"
            by_size = rates.setdefault((kind, row["arrangement"]), {})
            # Where TF32 is permitted, either pipeline may serve: the faster one is shown.
            rivals = (by_size.get(row["m"], row), row)
            by_size[row["m"]] = max(rivals, key=lambda rival: rival["tflops"])
    lines = []
    for (kind, arrangement), by_size in rates.items():
        cells = [
            f"{figure(row['tflops'])} ({ratio(row['vs_cublas'])})" if row else ""
            for row in map(by_size.get, PIPELINE_SIZES)
        ]
        ratios = [by_size[size]["vs_cublas"] for size in LADDER_MEAN_SIZES if size in by_size]
        is_complete = len(ratios) == len(LADDER_MEAN_SIZES)
        mean = statistics.geometric_mean(ratios) if is_complete else None
        lines.append([kind, arrangement, *cells, ratio(mean)])
    if not lines:
        return []
    header = ["arithmetic", "a_b_out", *map(str, PIPELINE_SIZES), "mean"]
    title = (
        "cuBLASDx pipelines on m = n = k, TFLOP/s (times cuBLAS; its geometric mean from 1024 on):"
    )
    return [Table(title, header, lines, text_columns=2)]


def pipeline_rectangles(results: Results) -> list[Part]:
    """Every other shape of rows: the pipeline and the best hand-written kernel against cuBLAS."""
    lines = []
    for row in pipeline_rows(results):
        shape = row["m"], row["n"], row["k"]
        is_square = len(set(shape)) == 1 and row["m"] in PIPELINE_SIZES
        if is_square or row["arrangement"] != "row_row_row":
            continue
        others = [
            other
            for other in extras(results)
            if (other["m"], other["n"], other["k"]) == shape
            and (other["dtype"], other["arrangement"]) == (row["dtype"], row["arrangement"])
            and other["batch"] == 1
            and other["implementation"] not in (*PIPELINES, *OTHERS)
        ]
        best = max(others, key=lambda other: other["tflops"], default=None)
        by_hand = [best["implementation"], ratio(best["vs_cublas"])] if best else ["", ""]
        text = [row["dtype"], " x ".join(map(str, shape)), row["config"] or ""]
        text += [figure(row["tflops"]), ratio(row["vs_cublas"])]
        lines.append([*text, *by_hand])
    header = ["dtype", "m x n x k", "config", "TFLOP/s", "x cuBLAS", "best by hand", "x cuBLAS"]
    title = "Other shapes, row-major:"
    return [Table(title, header, lines, text_columns=3)]


def gemm_full(results: Results) -> list[Part]:
    parts: list[Part] = []
    for dtype in distinct(row["dtype"] for row in extras(results)):
        lines = []
        for row in extras(results):
            if row["dtype"] != dtype:
                continue
            batch = f"{row['batch']} x " if row["batch"] > 1 else ""
            size = f"{batch}{row['m']} x {row['n']} x {row['k']}"
            kind = [row["arrangement"], row.get("precision"), row.get("result_dtype")]
            text = [size, " ".join(filter(None, kind)), row["implementation"], row["config"] or ""]
            figures = map(figure, (row["gpu_us"], row["tflops"], row["gbytes_per_s"]))
            lines.append([*text, *figures, ratio(row["vs_cublas"])])
        header = ["m x n x k", "a_b_out", "implementation", "config"]
        header += ["us", "TFLOP/s", "GB/s", "x cuBLAS"]
        parts.append(Table(f"GPU time, {dtype}:", header, lines, text_columns=4))
    return parts


def ladder_squares(results: Results) -> dict[tuple[str, str, int], Extra]:
    """By implementation, arithmetic and size."""
    return {
        (row["implementation"], arithmetic(row), row["m"]): row
        for row in extras(results)
        if row["m"] == row["n"] == row["k"]
    }


def rungs() -> list[Any]:
    """The implementations on the ladder, first rung first."""
    on_ladder = [i for i in dxgemm.implementations() if i.rung is not None]
    return sorted(on_ladder, key=lambda implementation: implementation.rung)


def ladder_short(results: Results) -> list[Part]:
    return [
        *ladder_table(results),
        *ladder_reduced_table(results),
        *ladder_best_table(results),
        *ladder_means(results),
    ]


def ladder_table(results: Results) -> list[Part]:
    """One row a rung, at one size, in both dtypes; the CUDA C++ kernels are float32."""
    squares = ladder_squares(results)
    lines = []
    for rung in rungs():
        single = squares.get((rung.name, "float32", LADDER_SIZE))
        double = squares.get((rung.name, "float64", LADDER_SIZE))
        if not (single or double):
            continue
        cells = [str(rung.rung), f"[{rung.name}](handwritten/{rung.name}.py)"]
        cells += rate_cells(single)
        cells += [
            figure(single["twin_tflops"]) if single and single["twin_tflops"] else "",
            ratio(single["vs_twin"]) if single else "",
        ]
        lines.append(cells + rate_cells(double))
    cublas = [squares.get(("cublas", dtype, LADDER_SIZE)) for dtype in ("float32", "float64")]
    lines.append(["", "cuBLAS", *rate_cells(cublas[0]), "", "", *rate_cells(cublas[1])])
    header = ["rung", "kernel", "float32", "x cuBLAS", "CUDA C++", "x CUDA C++"]
    header += ["float64", "x cuBLAS"]
    title = f"The ladder, m = n = k = {LADDER_SIZE}, TFLOP/s ([the story](docs/ladder.md)):"
    return [Table(title, header, lines, text_columns=2)]


def rate_cells(row: Extra | None) -> list[str]:
    return [figure(row["tflops"]), ratio(row["vs_cublas"])] if row else ["", ""]


def ladder_reduced_table(results: Results) -> list[Part]:
    """The rungs that compute in TF32 and half precision; empty where there are none."""
    squares = ladder_squares(results)
    kinds = distinct(kind for _, kind, _ in squares if kind not in ("float32", "float64"))
    lines = []
    for kind in kinds:
        for rung in rungs():
            cells = [rate_cells(squares.get((rung.name, kind, size))) for size in (4096, 8192)]
            at_twin = squares.get((rung.name, kind, LADDER_SIZE))
            twin = ratio(at_twin["vs_twin"]) if at_twin else ""
            if any(map(any, cells)):
                lines.append([kind, rung.name, *cells[0], twin, *cells[1]])
        cublas = [rate_cells(squares.get(("cublas", kind, size))) for size in (4096, 8192)]
        lines.append([kind, "cuBLAS", *cublas[0], "", *cublas[1]])
    if not lines:
        return []
    header = ["arithmetic", "kernel", "4096", "x cuBLAS", "x CUDA C++", "8192", "x cuBLAS"]
    title = "Tensor cores on reduced precision, float32 sums, TFLOP/s:"
    return [Table(title, header, lines, text_columns=2)]


def ladder_best_table(results: Results) -> list[Part]:
    """The quickest rung at each size."""
    squares = ladder_squares(results)
    lines = []
    for size in sorted({size for _, kind, size in squares if kind in ("float32", "float64")}):
        cells = [str(size)]
        for dtype in ("float32", "float64"):
            rows = [row for (_, kind, n), row in squares.items() if (kind, n) == (dtype, size)]
            own = [row for row in rows if row["implementation"] != "cublas"]
            best = max(own, key=lambda row: row["tflops"], default=None)
            cells.append(f"{best['implementation']} {best['config']}" if best else "")
            cells.append(ratio(best["vs_cublas"]) if best else "")
        lines.append(cells)
    header = ["m = n = k", "float32: best rung", "x cuBLAS", "float64: best rung", "x cuBLAS"]
    return [Table("The best rung, each with its best config:", header, lines)]


def ladder_means(results: Results) -> list[Part]:
    """The top of each dtype against cuBLAS over all large squares; empty unless all are there."""
    squares = ladder_squares(results)
    texts = []
    for dtype in ("float32", "float64"):
        means = {}
        for rung in rungs():
            rows = [squares.get((rung.name, dtype, size)) for size in LADDER_MEAN_SIZES]
            ratios = [row["vs_cublas"] for row in rows if row and row["vs_cublas"]]
            if len(ratios) == len(LADDER_MEAN_SIZES):
                means[rung.name] = statistics.geometric_mean(ratios)
        if means:
            name = max(means, key=lambda name: means[name])
            texts.append(f"{name} {ratio(means[name])} in {dtype}")
    sizes = f"{LADDER_MEAN_SIZES[0]} to {LADDER_MEAN_SIZES[-1]}"
    means_text = ", ".join(texts)
    return [f"Geometric mean over {sizes}, times cuBLAS: {means_text}."] if texts else []


def ladder_full(results: Results) -> list[Part]:
    parts = ladder_means(results)
    for kind in distinct(map(arithmetic, extras(results))):
        lines = []
        for row in extras(results):
            if arithmetic(row) != kind:
                continue
            number = "" if row["rung"] is None else str(row["rung"])
            text = [f"{row['m']} x {row['n']} x {row['k']}", number, row["implementation"]]
            resources = [row[name] for name in ("threads", "registers", "smem_bytes")]
            resources.append(row["blocks_per_sm"])
            lines.append(
                [
                    *text,
                    row["config"] or "",
                    figure(row["gpu_us"]),
                    figure(row["tflops"]),
                    ratio(row["vs_cublas"]),
                    ratio(row["vs_twin"]),
                    *("" if value is None else str(value) for value in resources),
                ]
            )
        header = ["m x n x k", "rung", "kernel", "config", "us", "TFLOP/s", "x cuBLAS"]
        header += ["x CUDA C++", "threads", "registers", "shared bytes", "blocks an SM"]
        parts.append(Table(f"The ladder, {kind}:", header, lines, text_columns=4))
    return parts


def epilogue_text(row: Extra) -> str:
    """As code, in which a table wants bars escaped."""
    return f"`{row['epilogue']}`".replace("|", "\\|")


def epilogue_rows(results: Results) -> list[Extra]:
    """Of the suite `epilogue`, those whose result is stored."""
    return [row for row in extras(results) if not is_reduction(row)]


def epilogue_short(results: Results) -> list[Part]:
    """Epilogues, and reductions if there are any."""
    return epilogue_best(results) + reduction_ways(results)


def reduction_ways(results: Results) -> list[Part]:
    """One row a case: dxgemm fused and split, and the best other; empty where there are none."""
    cases: dict[tuple[str, ...], list[Extra]] = {}
    for row in filter(is_reduction, extras(results)):
        key = asked_arithmetic(row), epilogue_text(row), size_of(row)
        cases.setdefault(key, []).append(row)
    lines = []
    for key, rows in cases.items():
        others = [row for row in rows if row["way"] is None]
        other = min(others, key=lambda row: row["gpu_us"], default=None)
        fused, split = (next((row for row in rows if row["way"] == way), None) for way in WAYS)
        automatic = next((row for row in rows if row["is_automatic"]), None)
        kernel = fused or split
        lines.append(
            [
                *key,
                f"{kernel['implementation']} {kernel['config'] or ''}".rstrip() if kernel else "",
                REDUCING_BASELINES[other["implementation"]] if other else "",
                *(figure(row["gpu_us"]) if row else "" for row in (fused, split, other)),
                *(ratio(row["vs_cublas"]) if row else "" for row in (fused, split, automatic)),
                ratio(fused["vs_plain"]) if fused else "",
            ]
        )
    if not lines:
        return []
    header = ["dtype", "reduction", "m x n x k", "kernel", "best other"]
    header += ["fused, us", "split, us", "other, us", "fused x other", "split x other"]
    header += ["automatic x other", "fused x product alone"]
    title = "Reductions of the result, which is not stored where they are fused:"
    return [Table(title, header, lines, text_columns=5)]


def epilogue_best(results: Results) -> list[Part]:
    """One row a case that others compute too: the best kernel of dxgemm against the best other."""
    cases: dict[tuple[str, ...], list[Extra]] = {}
    for row in epilogue_rows(results):
        key = arithmetic_to(row), epilogue_text(row), size_of(row), row["arrangement"]
        cases.setdefault(key, []).append(row)
    lines = []
    for key, rows in cases.items():
        own = [row for row in rows if row["implementation"] not in BASELINES]
        others = [row for row in rows if row["implementation"] in BASELINES]
        if not (own and others):
            continue
        best, other = (min(some, key=lambda row: row["gpu_us"]) for some in (own, others))
        automatic = next((row for row in own if row["is_automatic"]), None)
        lines.append(
            [
                *key,
                f"{best['implementation']} {best['config'] or ''}".rstrip(),
                BASELINES[other["implementation"]],
                *map(figure, (best["tflops"], other["tflops"])),
                ratio(best["vs_cublas"]),
                ratio(automatic["vs_cublas"]) if automatic else "",
                ratio(best["vs_plain"]),
            ]
        )
    header = ["dtype", "epilogue", "m x n x k", "a_b_out", "best kernel", "best other"]
    header += ["TFLOP/s", "other", "x other", "automatic choice", "x no epilogue"]
    title = "Epilogues, fused against the quickest of what computes the same otherwise:"
    return [Table(title, header, lines, text_columns=6)]


def epilogue_costs(results: Results) -> list[Part]:
    """What each epilogue of the catalogue adds to the time of the automatic choice."""
    costs: dict[str, dict[str, float]] = {}
    for row in epilogue_rows(results):
        is_single = " | " not in row["epilogue"]
        if is_single and row["vs_plain"] and row["is_automatic"]:
            cost = 100 * (1 / row["vs_plain"] - 1)
            by_dtype = costs.setdefault(row["epilogue"], {})
            # Of several arrangements the dearest.
            by_dtype[row["dtype"]] = max(cost, by_dtype.get(row["dtype"], cost))
    dtypes = distinct(dtype for by_dtype in costs.values() for dtype in by_dtype)
    lines = [
        [f"`{epilogue}`", *(f"{by_dtype[d]:.1f}" if d in by_dtype else "" for d in dtypes)]
        for epilogue, by_dtype in costs.items()
    ]
    title = "Time that an epilogue adds to the same kernel without it, m = n = k = 4096, percent:"
    return [Table(title, ["epilogue", *dtypes], lines)]


def epilogue_full(results: Results) -> list[Part]:
    lines = []
    for row in epilogue_rows(results):
        text = [epilogue_text(row), arithmetic_to(row), size_of(row), row["arrangement"]]
        text += [row["implementation"], row["config"] or ""]
        figures = map(figure, (row["gpu_us"], row["tflops"], row["gbytes_per_s"]))
        lines.append([*text, *figures, ratio(row["vs_cublas"]), ratio(row["vs_plain"])])
    header = ["epilogue", "dtype", "m x n x k", "a_b_out", "implementation", "config"]
    header += ["us", "TFLOP/s", "GB/s", "x best other", "x no epilogue"]
    full = Table("GPU time with an epilogue:", header, lines, text_columns=6)
    return [full, *epilogue_costs(results), *reduction_full(results)]


def reduction_full(results: Results) -> list[Part]:
    """Every row of reductions; empty where there are none."""
    lines = []
    for row in filter(is_reduction, extras(results)):
        text = [epilogue_text(row), asked_arithmetic(row), size_of(row)]
        text += [row["implementation"], row["config"] or "", row["way"] or ""]
        figures = map(figure, (row["gpu_us"], row["tflops"]))
        lines.append([*text, *figures, ratio(row["vs_cublas"]), ratio(row["vs_plain"])])
    if not lines:
        return []
    header = ["reduction", "dtype", "m x n x k", "implementation", "config", "way"]
    header += ["us", "TFLOP/s", "x best other", "x product alone"]
    return [Table("GPU time with a reduction:", header, lines, text_columns=6)]


def own_batches(results: Results) -> list[Extra]:
    return [row for row in extras(results) if row["implementation"] == "automatic"]


def batched_short(results: Results) -> list[Part]:
    """A table a dtype: batches of squares, times cuBLAS, and the mean over all cases."""
    parts: list[Part] = []
    for dtype in distinct(row["dtype"] for row in own_batches(results)):
        rows = [row for row in own_batches(results) if row["dtype"] == dtype and row["vs_cublas"]]
        squares = [row for row in rows if row["way"] == "strided"]
        batches = distinct(row["batch"] for row in squares)
        found = {(row["m"], row["batch"]): ratio(row["vs_cublas"]) for row in squares}
        lines = [
            [str(size), *(found.get((size, batch), "") for batch in batches)]
            for size in distinct(row["m"] for row in squares)
        ]
        header = ["m = n = k", *(f"{batch:,}" for batch in batches)]
        title = f"Batches of small matrices, {dtype}, times the quicker of cuBLAS and torch:"
        parts.append(Table(title, header, lines))
        if rows:
            mean = statistics.geometric_mean(row["vs_cublas"] for row in rows)
            parts.append(f"Geometric mean over these, broadcast batches and lists: {mean:.2f}.")
    return parts


def batched_full(results: Results) -> list[Part]:
    """A row for each way of computing each case."""
    lines = []
    for row in extras(results):
        sizes = ", ".join(" x ".join(map(str, size)) for size in row["sizes"])
        what = [row["dtype"], row["way"], f"{row['batch']:,}", sizes]
        figures = map(figure, (row["gpu_us"], row["tflops"], row["gbytes_per_s"]))
        how = row["implementation"], row["config"] or ""
        lines.append([*what, *how, *figures, ratio(row["vs_cublas"])])
    header = ["dtype", "way", "batch", "m x n x k", "computed by", "config"]
    header += ["us", "TFLOP/s", "GB/s", "x cuBLAS"]
    return [Table("Batches and lists of small matrices:", header, lines, text_columns=6)]


def choice_kind(row: Extra) -> str:
    """The arithmetic of a row."""
    return f"{row['dtype']} {row['precision']}" if row["precision"] else row["dtype"]


def choice_short(results: Results) -> list[Part]:
    """How near the choice comes to the best of dxgemm's candidates, by arithmetic."""
    lines = []
    for kind in sorted(distinct(map(choice_kind, extras(results)))):
        rows = [row for row in extras(results) if choice_kind(row) == kind]
        regrets = [row["regret"] for row in rows]
        against = [row["vs_cublas"] for row in rows if row["vs_cublas"]]
        batches = sum(row["batch"] > 1 for row in rows)
        lines.append(
            [
                kind,
                str(len(rows)),
                str(batches),
                f"{statistics.mean(regrets):.3f}",
                ratio(max(regrets)),
                ratio(statistics.geometric_mean(against)) if against else "",
            ]
        )
    header = ["arithmetic", "problems", "of them batches", "mean", "worst"]
    header.append("geometric mean, x cuBLAS")
    title = (
        "The choice on random problems that no table was made from, of all layouts, thin ones, "
        "batches and epilogues among them. Its time over that of the best of dxgemm's candidates:"
    )
    return [Table(title, header, lines)]


def choice_full(results: Results) -> list[Part]:
    """The summary, then a row for each problem."""
    lines = []
    for row in extras(results):
        how = row["layout"] + ("" if row["epilogue"] == "none" else f", {row['epilogue']}")
        kernels = [f"{row['implementation']} {row['config']}", row["best"]]
        figures = [figure(row["gpu_us"]), ratio(row["regret"]), ratio(row["vs_cublas"])]
        lines.append([choice_kind(row), size_of(row), how, *kernels, *figures])
    header = ["arithmetic", "m x n x k", "layout", "chosen", "best", "us", "x best's time"]
    header.append("x cuBLAS")
    return [*choice_short(results), Table("Each problem:", header, lines, text_columns=5)]


PREPARED = "split, b prepared"
# The ways of a dtype by which large products are compared, and by which errors are.
PRECISION_RATES = {
    "float32": ("cublas", "float32", "split", PREPARED, "tf32"),
    "float64": ("cublas", "float64", "split", PREPARED, "split17", "split15", "split14", "split13"),
}
PRECISION_ERRORS = {
    "float32": ("split", "cublas", "float32", "tf32"),
    "float64": ("split", "split14", "split13", "cublas", "float64"),
}
PRECISION_UNITS = {"float32": "`2**-23 |A| |B|`", "float64": "`2**-52 |A| |B|`"}
WAY_NAMES = {"cublas": "cuBLAS", PREPARED: "b prepared"}


def precision_cases(
    results: Results, dtype: str, data: Sequence[str] = ()
) -> dict[tuple[str, str], dict[str, Extra]]:
    """The rows of each case by way, where the operands are such; of all kinds of data if none."""
    cases: dict[tuple[str, str], dict[str, Extra]] = {}
    for row in extras(results):
        if row["dtype"] == dtype and (not data or row["data"] in data):
            cases.setdefault((row["data"], size_of(row)), {})[row["way"]] = row
    return cases


def precision_short(results: Results) -> list[Part]:
    """TFLOP/s of each precision on large problems of normal values, and how split ones compare."""
    parts: list[Part] = []
    for dtype in distinct(row["dtype"] for row in extras(results)):
        columns, lines = PRECISION_RATES[dtype], []
        for (_, size), ways in precision_cases(results, dtype, ["normal"]).items():
            if PREPARED in ways:
                rates = [figure(ways[w]["tflops"]) if w in ways else "" for w in columns]
                compared = [ratio(ways[w]["vs_cublas"]) for w in ("split", PREPARED)]
                lines.append([size, *rates, *compared])
        header = ["m x n x k", *(WAY_NAMES.get(way, way) for way in columns)]
        header += ["split x cuBLAS", "b prepared x cuBLAS"]
        parts.append(Table(f"{dtype} products by precision, TFLOP/s:", header, lines))
    return parts


def precision_errors(results: Results, dtype: str) -> list[Part]:
    """Largest and root mean square error of each precision, on each kind of data."""
    columns, lines = PRECISION_ERRORS[dtype], []
    for (data, size), rows in precision_cases(results, dtype).items():
        if "split" in rows:
            errors = [error_text(rows.get(way)) for way in columns]
            multiplied = dtype if rows["split"]["is_native"] else "parts"
            lines.append([data, size, multiplied, *errors])
    header = ["operands", "m x n x k", "multiplied", *(WAY_NAMES.get(way, way) for way in columns)]
    title = f"Errors, largest / root mean square, in units of {PRECISION_UNITS[dtype]}:"
    return [Table(title, header, lines, text_columns=3)]


def error_text(row: Extra | None) -> str:
    return f"{figure(row['max_error'])} / {figure(row['rms_error'])}" if row else ""


def precision_refusals(results: Results, dtype: str) -> list[Part]:
    """What a call costs whose operands cannot be split, against the native product at once."""
    lines = []
    for (data, size), rows in precision_cases(results, dtype).items():
        if {"split", dtype} <= rows.keys() and rows["split"]["is_native"]:
            times = rows["split"]["gpu_us"], rows[dtype]["gpu_us"]
            lines.append([data, size, *map(figure, times), ratio(times[0] / times[1])])
    if not lines:
        return []
    header = ["operands", "m x n x k", "split, us", f"{dtype}, us", f"split / {dtype}"]
    title = f"Calls whose operands are multiplied as {dtype} because they cannot be split:"
    return [Table(title, header, lines, text_columns=2)]


def precision_schemes(results: Results) -> list[Part]:
    """Products of parts without the splitting: schemes, and intervals of promotion."""
    lines = [
        [
            row["way"],
            row["data"],
            size_of(row),
            *map(figure, (row["gpu_us"], row["tflops"])),
            ratio(row["vs_cublas"]),
            error_text(row),
        ]
        for row in extras(results)
        if row["way"] not in PRECISION_RATES[row["dtype"]]
    ]
    if not lines:
        return []
    header = ["scheme", "operands", "m x n x k", "us", "TFLOP/s", "x cuBLAS", "error"]
    title = "Products of parts of float32, without their splitting; errors as above:"
    return [Table(title, header, lines, text_columns=3)]


def precision_forecast(results: Results) -> list[Part]:
    """What float64 would reach elsewhere, by the formula of docs/precision.md."""
    lines = forecast_rows(results)
    if not lines:
        return []
    header = ["GPU", "m = n = k", "int8 peak, TOPS", "float64 peak, TFLOP/s", "memory, GB/s"]
    header += ["share e of int8's peak", "TFLOP/s", "x float64's peak"]
    title = "float64 by int8, predicted for GPUs that the kernels do not run on, with the same e:"
    return [Table(title, header, lines)]


def precision_bits() -> list[Part]:
    """The bits and the bound of docs/precision.md."""
    header = ["moduli", *(f"k = {k}" for k in DEPTHS)]
    title = "float64 by int8: bits p of the operands, and the bound over |A| |B|:"
    return [Table(title, header, bits_rows())]


def precision_page(results: Results) -> list[Part]:
    """What docs/precision.md shows as measured."""
    parts, charts = precision_short(results), error_charts(results)
    for dtype in distinct(row["dtype"] for row in extras(results)):
        if dtype in charts:
            parts.append(f"![Errors of {dtype} products]({chart_file(results, dtype)})")
        parts += precision_errors(results, dtype) + precision_refusals(results, dtype)
    return parts + precision_schemes(results) + precision_forecast(results)


def precision_full(results: Results) -> list[Part]:
    """A table a dtype, with a row for each way of computing each case."""
    parts: list[Part] = []
    for dtype in distinct(row["dtype"] for row in extras(results)):
        lines = []
        for row in (row for row in extras(results) if row["dtype"] == dtype):
            what = [row["data"], size_of(row), row["way"]]
            how = [row["implementation"], row["config"] or ""]
            figures = map(figure, (row["gpu_us"], row["tflops"], row["gbytes_per_s"]))
            lines.append([*what, *how, *figures, ratio(row["vs_cublas"]), error_text(row)])
        header = ["operands", "m x n x k", "way", "implementation", "config"]
        header += ["us", "TFLOP/s", "GB/s", "x cuBLAS", "error"]
        title = f"{dtype} products by precision; errors in units of {PRECISION_UNITS[dtype]}:"
        parts.append(Table(title, header, lines, text_columns=5))
    return parts


def accuracy_short(results: Results) -> list[Part]:
    """One row a kind of arithmetic: the worst error of the choice, of cuBLAS, of any kernel."""
    lines = []
    for kind in distinct(row["kind"] for row in extras(results)):
        rows = [row for row in extras(results) if row["kind"] == kind]
        own = [row for row in rows if row["implementation"] != "cublas"]
        chosen = [row for row in own if row["implementation"] == "automatic"]
        cublas = [row for row in rows if row["implementation"] == "cublas"]
        errors = ([row["max_error"] for row in some] for some in (chosen, cublas, own))
        share = max(row["ratio"] for row in own)
        lines.append([kind, *(figure(max(e)) if e else "" for e in errors), figure(share)])
    deepest = max(row["k"] for row in extras(results))
    header = ["arithmetic", "automatic choice", "cuBLAS", "any kernel", "of what is allowed"]
    title = (
        f"Largest error of an element up to k = {deepest}, in eps |A| |B|, and the largest share "
        "of what the tests allow ([over k](docs/accuracy.md)):"
    )
    return [Table(title, header, lines)]


def accuracy_by_k(rows: list[Extra]) -> Table:
    """One row an implementation: the largest error at each k, of one kind and one sort of data."""
    depths = sorted({row["k"] for row in rows})
    errors = {(row["implementation"], row["k"]): row["max_error"] for row in rows}
    lines = [
        [name, *(figure(errors[name, k]) if (name, k) in errors else "" for k in depths)]
        for name in distinct(row["implementation"] for row in rows)
    ]
    return Table("Largest error, in eps |A| |B|:", ["k", *map(str, depths)], lines)


def accuracy_full(results: Results) -> list[Part]:
    lines = []
    for row in extras(results):
        answer = f"{row['answered_by']} {row['config'] or ''}".rstrip()
        text = [row["kind"], row["data"], size_of(row), row["implementation"], answer]
        figures = map(figure, (row["max_error"], row["rms_error"], row["ratio"]))
        lines.append([*text, *figures])
    header = ["arithmetic", "data", "m x n x k", "implementation", "answered by"]
    header += ["largest error", "root mean square", "of what is allowed"]
    return [Table("Errors, in eps |A| |B|:", header, lines, text_columns=5)]


SHORT: dict[str, Callable[[Results], list[Part]]] = {
    "ladder": ladder_short,
    "host_overhead": host_overhead_short,
    "build_time": build_time_short,
    "gemm": gemm_short,
    "epilogue": epilogue_short,
    "batched": batched_short,
    "choice_regret": choice_short,
    "precision": precision_short,
    "accuracy": accuracy_short,
}
FULL: dict[str, Callable[[Results], list[Part]]] = {
    "ladder": ladder_full,
    "host_overhead": host_overhead_full,
    "build_time": build_time_full,
    "gemm": gemm_full,
    "epilogue": epilogue_full,
    "batched": batched_full,
    "choice_regret": choice_full,
    "precision": precision_full,
    "accuracy": accuracy_full,
}
