"""The results as tables: `TABLES` of each suite, and `speed_table`, which README shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precision_forecast import DEPTHS, bits_rows, forecast_rows
from result_files import (
    OTHERS,
    Extra,
    Results,
    accuracy_sections,
    accuracy_text,
    arithmetic,
    distinct,
    extras,
    gpu_name,
    is_reduction,
    kind_of,
    kind_text,
    size_of,
)

import dxgemm

SPEED_SIZES = (1024, 4096, 8192)  # of the table in README
SPEED_KINDS = (
    ("float64", None),
    ("float64", "split"),
    ("float32", None),
    ("float32", "split"),
    ("float16", None),
    ("bfloat16", None),
    ("int8", None),
)
LADDER_SIZE = 4096
PIPELINES = ("pipeline", "pipeline_tma")
PIPELINE_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
PIPELINE_MEAN_SIZES = PIPELINE_SIZES[1:]
# What computes an epilogue otherwise, by the name of its rows.
BASELINES = {
    "cublas_cupy": "cuBLAS and a kernel of cupy.fuse",
    "cublas_torch": "cuBLAS and torch's operations",
    "cublaslt": "cuBLASLt's own epilogue",
}
WAYS = ("fused", "split")  # of reductions: in the product's kernel, and in one of its own
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


def host_overhead(results: Results) -> list[Part]:
    """One row a call, one column for each dtype and size."""
    rows = extras(results)
    columns = sorted({(row["dtype"], row["m"]) for row in rows})
    times = {(row["library"], row["call"], row["dtype"], row["m"]): row["host_us"] for row in rows}
    lines = [
        [library, f"`{call}`", *(figure(times[library, call, *column]) for column in columns)]
        for library, call in distinct((row["library"], row["call"]) for row in rows)
    ]
    header = ["library", "call", *(f"{dtype}, {size} x {size}" for dtype, size in columns)]
    return [Table("Host time of a call, microseconds:", header, lines, text_columns=2)]


def build_time(results: Results) -> list[Part]:
    """One row a step, dtype and implementation."""
    lines = []
    for benchmark in results["benchmarks"]:
        row, stats = benchmark["extra_info"], benchmark["stats"]
        what = [row["step"], row.get("dtype", ""), row.get("implementation", "")]
        times = map(figure, (row["seconds"], stats["min"], stats["max"]))
        lines.append([*what, *times, ", ".join(row["loaded"]) or "nothing"])
    header = ["step", "dtype", "implementation", "median", "min", "max", "compilers"]
    return [Table("Start of a process, seconds:", header, lines, text_columns=3)]


def speed_table(gpus: list[dict[str, Results]]) -> Table:
    """One row a kind of arithmetic: x cuBLAS on squares, and on random problems, of each GPU."""
    columns: dict[str, dict[tuple[str, str | None], float]] = {}
    for suites in gpus:
        gpu = gpu_name(suites).split()[1]
        for row in square_rows(suites):
            found = columns.setdefault(f"{gpu}, {row['m']}", {})
            kind = row["dtype"], row["precision"]
            found[kind] = max(found.get(kind, 0.0), row["vs_cublas"])
        rows = extras(suites["choice_regret"]) if "choice_regret" in suites else []
        for kind in SPEED_KINDS:
            of_kind = [r for r in rows if (r["dtype"], r["precision"]) == kind and r["vs_cublas"]]
            if of_kind:
                mean = statistics.geometric_mean(row["vs_cublas"] for row in of_kind)
                columns.setdefault(f"{gpu}, random", {})[kind] = mean
    lines = [
        [kind_text(*kind), *(ratio(found.get(kind)) for found in columns.values())]
        for kind in SPEED_KINDS
        if any(kind in found for found in columns.values())
    ]
    return Table("", ["x cuBLAS", *columns], lines)


def square_rows(suites: dict[str, Results]) -> list[Extra]:
    """Own kernels on row-major squares: of the suite `gemm`, else of the suite `precision`."""
    rows = [
        row
        for row in (extras(suites["gemm"]) if "gemm" in suites else [])
        if row["implementation"] not in (*OTHERS, "deterministic", "batch_invariant")
    ]
    kinds = set(SPEED_KINDS) - {(row["dtype"], row["precision"]) for row in rows}
    rows += [
        {**row, "precision": row["way"]}
        for row in (extras(suites["precision"]) if "precision" in suites else [])
        if (row["dtype"], row["way"]) in kinds and row["data"] == "normal"
    ]
    return [
        row
        for row in rows
        if row["m"] == row["n"] == row["k"] in SPEED_SIZES
        and (row["batch"], row["arrangement"]) == (1, "row_row_row")
        and not row["result_dtype"]
        and (row["dtype"], row["precision"]) in SPEED_KINDS
        and row["vs_cublas"]
    ]


def pipeline_rows(results: Results) -> list[Extra]:
    return [
        row
        for row in extras(results)
        if row["implementation"] in PIPELINES
        and row["precision"] in (None, "tf32")
        and row["batch"] == 1
        and row["vs_cublas"]
    ]


def pipeline_squares(results: Results) -> list[Part]:
    """One row a kind of arithmetic and an arrangement; empty if there are none."""
    rates: dict[tuple[str, str], dict[int, Extra]] = {}
    for row in pipeline_rows(results):
        if row["m"] == row["n"] == row["k"]:
            kind = kind_of(row)
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
        ratios = [by_size[size]["vs_cublas"] for size in PIPELINE_MEAN_SIZES if size in by_size]
        is_complete = len(ratios) == len(PIPELINE_MEAN_SIZES)
        mean = statistics.geometric_mean(ratios) if is_complete else None
        lines.append([kind, arrangement, *cells, ratio(mean)])
    if not lines:
        return []
    header = ["arithmetic", "layout", *map(str, PIPELINE_SIZES), "mean"]
    title = (
        "cuBLASDx pipelines on m = n = k, TFLOP/s (times cuBLAS; its geometric mean from 1024 on):"
    )
    return [Table(title, header, lines, text_columns=2)]


def gemm(results: Results) -> list[Part]:
    parts: list[Part] = []
    for dtype in distinct(row["dtype"] for row in extras(results)):
        lines = []
        for row in extras(results):
            if row["dtype"] != dtype:
                continue
            batch = f"{row['batch']} x " if row["batch"] > 1 else ""
            size = f"{batch}{row['m']} x {row['n']} x {row['k']}"
            text = [kind_of(row), size, row["arrangement"], row["implementation"]]
            text.append(row["config"] or "")
            figures = map(figure, (row["gpu_us"], row["tflops"], row["gbytes_per_s"]))
            lines.append([*text, *figures, ratio(row["vs_cublas"])])
        header = ["arithmetic", "m x n x k", "layout", "implementation", "config"]
        header += ["us", "TFLOP/s", "GB/s", "x cuBLAS"]
        parts.append(Table(f"GPU time, {dtype}:", header, lines, text_columns=5))
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


def ladder(results: Results) -> list[Part]:
    """The rungs at one size, then every case."""
    return [*ladder_table(results), *ladder_reduced_table(results), *ladder_cases(results)]


def ladder_table(results: Results, folder: str = "../handwritten/") -> list[Part]:
    """One row a rung, at one size, in both dtypes; `folder` leads from the page to the kernels."""
    squares = ladder_squares(results)
    lines = []
    for rung in rungs():
        single = squares.get((rung.name, "float32", LADDER_SIZE))
        double = squares.get((rung.name, "float64", LADDER_SIZE))
        if not (single or double):
            continue
        cells = [str(rung.rung), f"[{rung.name}]({folder}{rung.name}.py)"]
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
    title = f"The ladder, m = n = k = {LADDER_SIZE}, TFLOP/s:"
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


def ladder_cases(results: Results) -> list[Part]:
    parts: list[Part] = []
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


def epilogue(results: Results) -> list[Part]:
    """Epilogues and what they cost, then reductions."""
    return epilogue_best(results) + epilogue_costs(results) + reduction_rows(results)


def reduction_rows(results: Results) -> list[Part]:
    """One row a case: dxgemm fused and unfused, and the best other; empty where there are none."""
    cases: dict[tuple[str, ...], list[Extra]] = {}
    for row in filter(is_reduction, extras(results)):
        key = kind_of(row), epilogue_text(row), size_of(row)
        cases.setdefault(key, []).append(row)
    lines = []
    for key, rows in cases.items():
        others = [row for row in rows if row["way"] is None]
        other = min(others, key=lambda row: row["gpu_us"], default=None)
        fused, unfused = (next((row for row in rows if row["way"] == way), None) for way in WAYS)
        automatic = next((row for row in rows if row["is_automatic"]), None)
        kernel = fused or unfused
        lines.append(
            [
                *key,
                f"{kernel['implementation']} {kernel['config'] or ''}".rstrip() if kernel else "",
                REDUCING_BASELINES[other["implementation"]] if other else "",
                *(figure(row["gpu_us"]) if row else "" for row in (fused, unfused, other)),
                *(ratio(row["vs_cublas"]) if row else "" for row in (fused, unfused, automatic)),
                ratio(fused["vs_plain"]) if fused else "",
            ]
        )
    if not lines:
        return []
    header = ["dtype", "reduction", "m x n x k", "kernel", "best other"]
    header += ["fused, us", "unfused, us", "other, us", "fused x other", "unfused x other"]
    header += ["automatic x other", "fused x product alone"]
    title = "Reductions; a fused one does not store the matrix:"
    return [Table(title, header, lines, text_columns=5)]


def epilogue_best(results: Results) -> list[Part]:
    """One row a case that others compute too: the best kernel of dxgemm against the best other."""
    cases: dict[tuple[str, ...], list[Extra]] = {}
    for row in epilogue_rows(results):
        key = kind_of(row), epilogue_text(row), size_of(row), row["arrangement"]
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
    header = ["dtype", "epilogue", "m x n x k", "layout", "best kernel", "best other"]
    header += ["TFLOP/s", "other", "x other", "automatic choice", "x no epilogue"]
    title = "Fused epilogues against the fastest other method:"
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
    title = "Time that an epilogue adds to its kernel, m = n = k = 4096, percent:"
    return [Table(title, ["epilogue", *dtypes], lines)]


def own_batches(results: Results) -> list[Extra]:
    return [row for row in extras(results) if row["implementation"] == "automatic"]


def batched(results: Results) -> list[Part]:
    """Squares of each dtype against cuBLAS, then every case."""
    return batched_squares(results) + batched_cases(results)


def batched_squares(results: Results) -> list[Part]:
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
        title = f"Batches of small matrices, {dtype}, x the quicker of cuBLAS and torch:"
        parts.append(Table(title, header, lines))
        if rows:
            mean = statistics.geometric_mean(row["vs_cublas"] for row in rows)
            parts.append(f"Geometric mean over these, broadcast batches and lists: {mean:.2f}.")
    return parts


def batched_cases(results: Results) -> list[Part]:
    """A row for each case and what computed it."""
    lines = []
    for row in extras(results):
        sizes = ", ".join(" x ".join(map(str, size)) for size in row["sizes"])
        what = [row["dtype"], row["way"], f"{row['batch']:,}", sizes]
        figures = map(figure, (row["gpu_us"], row["tflops"], row["gbytes_per_s"]))
        how = row["implementation"], row["config"] or ""
        lines.append([*what, *how, *figures, ratio(row["vs_cublas"])])
    header = ["dtype", "operands", "batch", "m x n x k", "computed by", "config"]
    header += ["us", "TFLOP/s", "GB/s", "x cuBLAS"]
    return [Table("Batches and lists of small matrices:", header, lines, text_columns=6)]


def choice_summary(results: Results) -> list[Part]:
    """How near the choice comes to the best of dxgemm's candidates, by arithmetic."""
    lines = []
    for kind in sorted(distinct(map(kind_of, extras(results)))):
        rows = [row for row in extras(results) if kind_of(row) == kind]
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
    header = ["arithmetic", "problems", "batches", "mean", "worst"]
    header.append("geometric mean, x cuBLAS")
    title = (
        "Time of the chosen kernel over that of the best one, on random problems that no table was "
        "made from, with all layouts, thin matrices, batches and epilogues:"
    )
    return [Table(title, header, lines)]


def choice_regret(results: Results) -> list[Part]:
    """The summary, then a row for each problem."""
    lines = []
    for row in extras(results):
        how = row["layout"] + ("" if row["epilogue"] == "none" else f", {row['epilogue']}")
        kernels = [f"{row['implementation']} {row['config']}", row["best"]]
        figures = [figure(row["gpu_us"]), ratio(row["regret"]), ratio(row["vs_cublas"])]
        lines.append([kind_of(row), size_of(row), how, *kernels, *figures])
    header = ["arithmetic", "m x n x k", "layout", "chosen", "best", "us", "x best's time"]
    header.append("x cuBLAS")
    return [*choice_summary(results), Table("Each problem:", header, lines, text_columns=5)]


PREPARED = "split, b prepared"
# The columns of a dtype: what rates are compared of, and what errors.
PRECISION_RATES = {
    "float32": ("cublas", "float32", "split", PREPARED, "tf32"),
    "float64": ("cublas", "float64", "split", PREPARED, "split17", "split15", "split14", "split13"),
}
PRECISION_ERRORS = {
    "float32": ("split", "cublas", "float32", "tf32"),
    "float64": ("split", "split14", "split13", "cublas", "float64"),
}
PRECISION_UNITS = {"float32": "`2**-23 |A| |B|`", "float64": "`2**-52 |A| |B|`"}


def way_text(way: str) -> str:
    """The name of a column."""
    count = way.removeprefix("split")
    if way.startswith("split") and count.isdigit():
        return f"{count} moduli"
    return way.replace("split", "emulated").replace("cublas", "cuBLAS")


def precision_cases(
    results: Results, dtype: str, data: Sequence[str] = ()
) -> dict[tuple[str, str], dict[str, Extra]]:
    """The rows of each case by way, where the operands are such; of all kinds of data if none."""
    cases: dict[tuple[str, str], dict[str, Extra]] = {}
    for row in extras(results):
        if row["dtype"] == dtype and (not data or row["data"] in data):
            cases.setdefault((row["data"], size_of(row)), {})[row["way"]] = row
    return cases


def precision_rates(results: Results) -> list[Part]:
    """TFLOP/s of each precision on large problems of normal values."""
    parts: list[Part] = []
    for dtype in distinct(row["dtype"] for row in extras(results)):
        columns, lines = PRECISION_RATES[dtype], []
        for (_, size), ways in precision_cases(results, dtype, ["normal"]).items():
            if PREPARED in ways:
                rates = [figure(ways[w]["tflops"]) if w in ways else "" for w in columns]
                compared = [ratio(ways[w]["vs_cublas"]) for w in ("split", PREPARED)]
                lines.append([size, *rates, *compared])
        header = ["m x n x k", *map(way_text, columns)]
        header += ["emulated x cuBLAS", "b prepared x cuBLAS"]
        parts.append(Table(f"{dtype} products by precision, TFLOP/s:", header, lines))
    return parts


def precision_errors(results: Results, dtype: str) -> list[Part]:
    """Largest and root mean square error of each precision, on each kind of data."""
    columns, lines = PRECISION_ERRORS[dtype], []
    for (data, size), rows in precision_cases(results, dtype).items():
        if "split" in rows:
            errors = [error_text(rows.get(way)) for way in columns]
            computed = dtype if rows["split"]["is_native"] else "emulated"
            lines.append([data, size, computed, *errors])
    header = ["operands", "m x n x k", "computed as", *map(way_text, columns)]
    title = f"Errors, largest / root mean square, in units of {PRECISION_UNITS[dtype]}:"
    return [Table(title, header, lines, text_columns=3)]


def error_text(row: Extra | None) -> str:
    return f"{figure(row['max_error'])} / {figure(row['rms_error'])}" if row else ""


def precision_refusals(results: Results, dtype: str) -> list[Part]:
    """Time of a call whose operands fail the validity check, against the native product."""
    lines = []
    for (data, size), rows in precision_cases(results, dtype).items():
        if {"split", dtype} <= rows.keys() and rows["split"]["is_native"]:
            times = rows["split"]["gpu_us"], rows[dtype]["gpu_us"]
            lines.append([data, size, *map(figure, times), ratio(times[0] / times[1])])
    if not lines:
        return []
    header = ["operands", "m x n x k", "emulated, us", f"{dtype}, us", f"emulated / {dtype}"]
    title = f"Calls whose operands fail the validity check, so that {dtype} answers:"
    return [Table(title, header, lines, text_columns=2)]


def precision_schemes(results: Results) -> list[Part]:
    """Products without the conversion of operands: schemes, and intervals of promotion."""
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
    title = "Schemes of emulated float32, without the conversion of operands; errors as above:"
    return [Table(title, header, lines, text_columns=3)]


def precision_forecast(results: Results) -> list[Part]:
    """What float64 would reach elsewhere, by the formula of docs/precision.md."""
    lines = forecast_rows(results)
    if not lines:
        return []
    header = ["GPU", "m = n = k", "int8 peak, TOPS", "float64 peak, TFLOP/s", "memory, GB/s"]
    header += ["share e of int8's peak", "TFLOP/s", "x float64's peak"]
    title = "Emulated float64, predicted for GPUs that the kernels do not run on, with the same e:"
    return [Table(title, header, lines)]


def precision_bits() -> list[Part]:
    """The bits and the bound of docs/precision.md."""
    header = ["moduli", *(f"k = {k}" for k in DEPTHS)]
    title = "Emulated float64: bits p of the operands, and the error bound over |A| |B|:"
    return [Table(title, header, bits_rows())]


def precision(results: Results) -> list[Part]:
    """Rates, errors and times of refused calls, then schemes and the forecast."""
    parts = precision_rates(results)
    for dtype in distinct(row["dtype"] for row in extras(results)):
        parts += precision_errors(results, dtype) + precision_refusals(results, dtype)
    return parts + precision_schemes(results) + precision_forecast(results)


def accuracy_summary(results: Results) -> list[Part]:
    """One row a kind of arithmetic: the worst error of the choice, of cuBLAS, of any kernel."""
    lines = []
    for kind in distinct(row["kind"] for row in extras(results)):
        rows = [row for row in extras(results) if row["kind"] == kind]
        own = [row for row in rows if row["implementation"] != "cublas"]
        chosen = [row for row in own if row["implementation"] == "automatic"]
        cublas = [row for row in rows if row["implementation"] == "cublas"]
        errors = ([row["max_error"] for row in some] for some in (chosen, cublas, own))
        share = max(row["ratio"] for row in own)
        lines.append(
            [accuracy_text(kind), *(figure(max(e)) if e else "" for e in errors), figure(share)]
        )
    deepest = max(row["k"] for row in extras(results))
    header = ["arithmetic", "automatic choice", "cuBLAS", "any kernel", "of what is allowed"]
    title = (
        f"Largest error of an element up to k = {deepest}, in eps |A| |B|, and the largest share "
        "of what the tests allow:"
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


def accuracy(results: Results) -> list[Part]:
    """The summary, then the errors at each k of each arithmetic and each kind of data."""
    parts = accuracy_summary(results)
    for title, rows in accuracy_sections(results):
        by_k = accuracy_by_k(rows)
        parts.append(replace(by_k, title=f"{title}, largest error in eps |A| |B|:"))
    return parts


TABLES: dict[str, Callable[[Results], list[Part]]] = {
    "ladder": ladder,
    "host_overhead": host_overhead,
    "build_time": build_time,
    "gemm": gemm,
    "epilogue": epilogue,
    "batched": batched,
    "choice_regret": choice_regret,
    "precision": precision,
    "accuracy": accuracy,
}
