"""The results as tables: `TABLES` of each suite, and `speed_table`, which README shows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from dxgemm.choice.registry import find_implementation
from dxgemm.handwritten.parts.moduli import LOST_BITS, moduli_count, operand_bits
from dxgemm.problem.define import contiguous_problem

SPEED_SIZES = (1024, 4096)  # of the table in README
SPEED_KINDS = (
    ("float64", None),
    ("float64", "emulated"),
    ("float32", None),
    ("float32", "emulated"),
    ("float16", None),
    ("bfloat16", None),
    ("int8", None),
)
LADDER_SIZE = 4096
# Tiles by multiples of 64, each of a block; a share that leaves little to gain.
FEW_TILES = (
    (128, 256, 1), (128, 192, 1), (128, 128, 1), (128, 64, 1), (64, 128, 1), (64, 64, 1),
)  # fmt: skip
FULL_SHARE = 0.9
PIPELINES = ("pipeline", "pipeline_tma")
PIPELINE_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
PIPELINE_MEAN_SIZES = PIPELINE_SIZES[1:]
# What computes an epilogue otherwise, by the name of its rows.
BASELINES = {
    "cublas_cupy": "cuBLAS and a kernel of cupy.fuse",
    "cublas_torch": "cuBLAS and torch's operations",
    "cublaslt": "cuBLASLt's own epilogue",
}
PATHS = ("fused", "unfused")  # of reductions: in the product's kernel, and in one of its own
# What reduces a result otherwise, likewise.
REDUCING_BASELINES = {
    "cublas_cupy_reduction": "cuBLAS and CuPy",
    "cublas_torch_reduction": "cuBLAS and torch",
}
# Fields of a benchmark in the order of columns, with their headers.
COLUMNS = {
    "step": "step",
    "dtype": "arithmetic",
    "size": "m x n x k",
    "arrangement": "layout",
    "layout": "layout",
    "batch": "batch",
    "way": "method",
    "epilogue": "epilogue",
    "rung": "rung",
    "implementation": "implementation",
    "config": "config",
    "gpu_us": "us",
    "tflops": "TFLOP/s",
    "gbytes_per_s": "GB/s",
    "vs_cublas": "x cuBLAS",
    "vs_rival": "x rival",
    "vs_twin": "x CUDA C++",
    "twin_tflops": "CUDA C++ TFLOP/s",
    "regret": "x time of the best",
    "loaded": "compilers",
    "smem_bytes": "shared bytes",
    "blocks_per_sm": "blocks an SM",
}


@dataclass(frozen=True)
class Table:
    """Rows of texts, which may hold links and code as Markdown has them.

    Attributes:
        text_columns: number of leading columns that are text; the others are figures.
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


def all_rows(results: Results) -> list[Part]:
    """Every benchmark with every field in which benchmarks differ; of any suite."""
    rows = [row_fields(row) for row in extras(results)]
    names = distinct(name for row in rows for name in row)
    differ = [n for n in names if len(rows) == 1 or len({str(row.get(n)) for row in rows}) > 1]
    is_figure = {
        name: all(isinstance(row.get(name), int | float | None) for row in rows) for name in differ
    }
    shown = sorted(differ, key=lambda name: (is_figure[name], *column_place(name)))
    lines = [[cell_text(name, row.get(name)) for name in shown] for row in rows]
    header = [COLUMNS.get(name, name.replace("_", " ")) for name in shown]
    text_columns = len(shown) - sum(is_figure[name] for name in shown)
    return [Table("Every benchmark:", header, lines, text_columns)]


def row_fields(row: Extra) -> Extra:
    """A row with its sizes in one field, and its dtypes and precision in another."""
    fields = {key: value for key, value in row.items() if not isinstance(value, dict)}
    if "dtype" in row:
        fields["dtype"] = kind_of(row)
    if "k" in row:
        fields["size"] = size_of(row)
    for merged in ("m", "n", "k", "precision", "result_dtype"):
        fields.pop(merged, None)
    return fields


def column_place(name: str) -> tuple[int, str]:
    """Place of a column: those of `COLUMNS` in their order, then the others."""
    order = list(COLUMNS)
    return (order.index(name) if name in order else len(order)), name


def cell_text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return ratio(value) if name.startswith("vs_") or name == "regret" else figure(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).replace("|", "\\|")


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
        if row["implementation"] not in (*OTHERS, "batch_invariant")
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


def ladder_squares(results: Results) -> dict[tuple[str, str, int], Extra]:
    """Rows of squares, by implementation, arithmetic and size."""
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
    return [*ladder_table(results), *ladder_reduced_table(results), *all_rows(results)]


def kernel_path(rung: Any) -> str:
    """Path of a rung's file in handwritten/."""
    return rung.module.removeprefix("dxgemm.handwritten.").replace(".", "/") + ".py"


def ladder_table(results: Results, folder: str = "../handwritten/") -> list[Part]:
    """One row a rung, at one size, in both dtypes; `folder` leads from the page to the kernels."""
    squares = ladder_squares(results)
    lines = []
    for rung in rungs():
        single = squares.get((rung.name, "float32", LADDER_SIZE))
        double = squares.get((rung.name, "float64", LADDER_SIZE))
        if not (single or double):
            continue
        cells = [str(rung.rung), f"[{rung.name}]({folder}{kernel_path(rung)})"]
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


def epilogue_text(row: Extra) -> str:
    """Code of an epilogue, with the bars escaped that a table would take for its own."""
    return f"`{row['epilogue']}`".replace("|", "\\|")


def epilogue_rows(results: Results) -> list[Extra]:
    """Rows of the suite `epilogue` whose result is stored."""
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
        fused, unfused = (next((row for row in rows if row["way"] == path), None) for path in PATHS)
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
    """Time that each epilogue of the catalogue adds to the automatic choice, in percent."""
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
    return batched_squares(results) + all_rows(results)


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


def choice_summary(results: Results) -> list[Part]:
    """Time of the choice over that of the best candidate, by arithmetic."""
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
    """The summary, then every problem."""
    return choice_summary(results) + all_rows(results)


def sm80(results: Results) -> list[Part]:
    """Kernels over `mma.sync` against cuBLAS: large squares, and means over all sizes."""
    lines = []
    for kind in distinct(map(kind_of, extras(results))):
        rows = [row for row in extras(results) if kind_of(row) == kind and row["vs_cublas"]]
        line = [kind]
        for size in SM80_SQUARES:
            squares = [row for row in rows if row["m"] == row["n"] == row["k"] == size]
            best = max(squares, key=lambda row: row["tflops"])
            line += [figure(best["tflops"]), ratio(best["vs_cublas"])]
        odd = [row["vs_cublas"] for row in rows if any(row[name] % 8 for name in "mnk")]
        even = [row["vs_cublas"] for row in rows if not any(row[name] % 8 for name in "mnk")]
        means = [statistics.geometric_mean(some) if some else None for some in (even, odd)]
        lines.append([*line, *map(ratio, means)])
    header = ["arithmetic"]
    for size in SM80_SQUARES:
        header += [f"{size}, TFLOP/s", "x cuBLAS"]
    header += ["multiples of 8, x cuBLAS", "odd sizes, x cuBLAS"]
    title = "Squares, then geometric means over all measured sizes:"
    return [Table(title, header, lines)]


SM80_SQUARES = (4096, 8192)
MODULI, DEPTHS = range(12, 19), (64, 256, 1024, 4096, 16384, 65536)
PREPARED = "emulated, b prepared"
# The columns of a dtype: what rates are compared of, and what errors.
PRECISION_RATES = {
    "float32": ("cublas", "float32", "emulated", PREPARED, "tf32"),
    "float64": (
        "cublas",
        "float64",
        "emulated",
        PREPARED,
        "emulated17",
        "emulated15",
        "emulated14",
        "emulated13",
    ),
}
PRECISION_ERRORS = {
    "float32": ("emulated", "cublas", "float32", "tf32"),
    "float64": ("emulated", "emulated14", "emulated13", "cublas", "float64"),
}


def variant_text(variant: str) -> str:
    """The name of a column."""
    count = variant.removeprefix("emulated")
    if variant.startswith("emulated") and count.isdigit():
        return f"{count} moduli"
    return variant.replace("cublas", "cuBLAS")


def precision_cases(
    results: Results, dtype: str, data: Sequence[str] = ()
) -> dict[tuple[str, str], dict[str, Extra]]:
    """Rows of each case by variant, for operands of these kinds of data; of all kinds if none."""
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
        for (_, size), variants in precision_cases(results, dtype, ["normal"]).items():
            if PREPARED in variants:
                rates = [figure(variants[w]["tflops"]) if w in variants else "" for w in columns]
                compared = [ratio(variants[w]["vs_cublas"]) for w in ("emulated", PREPARED)]
                lines.append([size, *rates, *compared])
        header = ["m x n x k", *map(variant_text, columns)]
        header += ["emulated x cuBLAS", "b prepared x cuBLAS"]
        parts.append(Table(f"{dtype} products by precision, TFLOP/s:", header, lines))
    return parts


def precision_refusals(results: Results, dtype: str) -> list[Part]:
    """Time of a call whose operands fail the validity check, against the native product."""
    lines = []
    for (data, size), rows in precision_cases(results, dtype).items():
        if {"emulated", dtype} <= rows.keys() and rows["emulated"]["is_native"]:
            times = rows["emulated"]["gpu_us"], rows[dtype]["gpu_us"]
            lines.append([data, size, *map(figure, times), ratio(times[0] / times[1])])
    if not lines:
        return []
    header = ["operands", "m x n x k", "emulated, us", f"{dtype}, us", f"emulated / {dtype}"]
    title = f"Calls whose operands fail the validity check, so that {dtype} answers:"
    return [Table(title, header, lines, text_columns=2)]


def precision_bits() -> list[Part]:
    """Bits p of the operands, with the error bound, by the number of moduli and k."""
    lines = []
    for count in MODULI:
        bits = [operand_bits(count, k) for k in DEPTHS]
        lines.append([str(count), *(f"{p}, 2**{LOST_BITS - p}" for p in bits)])
    automatic = [moduli_count(contiguous_problem("float64", 1, 1, k)) for k in DEPTHS]
    lines.append(["automatic", *map(str, automatic)])
    header = ["moduli", *(f"k = {k}" for k in DEPTHS)]
    title = "Emulated float64: bits p of the operands, and the error bound over |A| |B|:"
    return [Table(title, header, lines)]


def precision(results: Results) -> list[Part]:
    """Rates and times of refused calls, then every benchmark with its errors."""
    refused = precision_refusals(results, "float32") + precision_refusals(results, "float64")
    return precision_rates(results) + refused + all_rows(results)


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


def half(results: Results) -> list[Part]:
    """Half precision against the fastest rival: one row a family and dtype."""
    lines = []
    compared = [row for row in extras(results) if row["vs_rival"]]
    for family, dtype in distinct((row["family"], row["dtype"]) for row in compared):
        rows = [row for row in compared if (row["family"], row["dtype"]) == (family, dtype)]
        ratios = [row["vs_rival"] for row in rows]
        least = min(rows, key=lambda row: row["vs_rival"])
        figures = ratio(statistics.geometric_mean(ratios)), ratio(least["vs_rival"])
        lines.append([family, dtype, str(len(rows)), *figures, size_of(least)])
    header = ["family", "dtype", "problems", "x rival", "least", "m x n x k of the least"]
    title = "Geometric means over the fastest of cuBLAS, cuBLASLt and torch:"
    return [Table(title, header, lines, text_columns=2)]


def tile_shares(results: Results) -> list[Part]:
    """Share of the tiles of whole waves that is result: by the chosen tile, by one of few."""
    kernel = find_implementation("wgmma").kernel
    tiles = {str(config): result_tile(config) for config in kernel.configs}
    sms = results["machine_info"]["gpu"]["multiprocessors"]
    lines = []
    for row in extras(results):
        is_plain = (row["family"], row["dtype"]) == ("plain", "bfloat16")
        if not (is_plain and row["arrangement"] == "row_col_row" and row["config"] in tiles):
            continue
        own = wave_share(row, tiles[row["config"]], sms)
        most = max(wave_share(row, tile, sms) for tile in FEW_TILES)
        if own > most and most < FULL_SHARE:
            figures = ratio(most), ratio(own), ratio(row["vs_rival"])
            lines.append([size_of(row), row["config"], *figures])
    if not lines:
        return []
    header = ["m x n x k", "tile", "share by few", "share", "x rival"]
    title = f"Results that {len(FEW_TILES)} tiles share out to {sms} SMs worse than the chosen one:"
    return [Table(title, header, lines, text_columns=2)]


def result_tile(config: Any) -> tuple[int, int, int]:
    """Rows and columns of the result that a block, or a pair, computes; and the blocks."""
    rows, cols, blocks = config.tile_m * config.cluster, config.tile_n, config.cluster
    return (cols, rows, blocks) if config.is_turned else (rows, cols, blocks)


def wave_share(row: Extra, tile: tuple[int, int, int], sms: int) -> float:
    """Elements of the result over those of all tiles of whole waves."""
    rows, cols, blocks = tile
    tiles = math.ceil(row["m"] / rows) * math.ceil(row["n"] / cols)
    waves = math.ceil(tiles * blocks / sms)
    share: float = row["m"] * row["n"] / (waves * sms * rows * cols / blocks)
    return share


def skinny(results: Results) -> list[Part]:
    """Few rows against cuBLAS and against reading: one row a dtype and number of rows."""
    lines = []
    compared = [row for row in extras(results) if row["vs_cublas"]]
    for dtype, m in distinct((row["dtype"], row["m"]) for row in compared):
        rows = [row for row in compared if (row["dtype"], row["m"]) == (dtype, m)]
        least = min(rows, key=lambda row: row["vs_cublas"])
        shares = [row["gbs"] / row["read_gbs"] for row in rows]
        figures = (
            ratio(statistics.geometric_mean([row["vs_cublas"] for row in rows])),
            ratio(least["vs_cublas"]),
            ratio(statistics.geometric_mean(shares)),
        )
        lines.append([dtype, str(m), str(len(rows)), *figures, size_of(least)])
    header = [
        "arithmetic",
        "rows",
        "problems",
        "x cuBLAS",
        "least",
        "x reading",
        "m x n x k of the least",
    ]
    title = "Geometric means over cuBLAS, and over a read of as many bytes:"
    return [Table(title, header, lines, text_columns=1)]


def symmetric(results: Results) -> list[Part]:
    """Time of the full product over that of the symmetric one: one row a kind and k."""
    rows = [row for row in extras(results) if "mask" not in row]
    sizes = sorted({row["n"] for row in rows})
    lines = []
    for kind in distinct((row["dtype"], row["precision"]) for row in rows):
        own = [row for row in rows if (row["dtype"], row["precision"]) == kind]
        depths = [*sorted({row["k"] for row in own if row["k"] != row["n"]}), None]
        for k in depths:
            found = {row["n"]: row for row in own if row["k"] == (k or row["n"])}
            cells = [ratio(found[n]["vs_gemm"]) if n in found else "" for n in sizes]
            name = " ".join(reversed(kind)) if kind[1] == "emulated" else kind[1] or kind[0]
            lines.append([name, str(k or "n"), *cells])
    header = ["dtype", "k", *map(str, sizes)]
    return [
        Table("Time of gemm over that of gemm_symmetric, by n:", header, lines, 2),
        *masked(results),
    ]


def distributed(results: Results) -> list[Part]:
    """One row a product: its time beside that of its parts and of its rivals, then hosts' times."""
    columns = {
        "us": "us", "gemm_us": "arithmetic", "comm_us": "moves", "nccl_us": "NCCL, cuBLAS",
        "async_tp_us": "async-TP",
    }  # fmt: skip
    if all("host_us" in row for row in extras(results)):
        columns |= {
            "host_us": "host", "nccl_host_us": "host, NCCL", "async_tp_host_us": "host, async-TP",
        }  # fmt: skip
    lines = [
        [
            f"`{row['operation']}`",
            row["dtype"],
            size_of(row),
            row["method"],
            *("" if row[name] is None else figure(row[name]) for name in columns),
            ratio(row["vs_rival"]),
        ]
        for row in extras(results)
    ]
    header = ["product", "dtype", "m x n x k", "method", *columns.values(), "x rival"]
    ranks = distinct(row["ranks"] for row in extras(results))
    title = f"Microseconds on {', '.join(map(str, ranks))} GPUs of one host:"
    return [Table(title, header, lines, 4)]


def masked(results: Results) -> list[Part]:
    """Time of the plain product over that of a masked one: one row a kind and k."""
    rows = [row for row in extras(results) if "mask" in row]
    if not rows:
        return []
    live = {row["mask"]: row["live"] for row in rows}
    by_case: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        cells = by_case.setdefault((row["precision"] or row["dtype"], row["k"]), {})
        cells[row["mask"]] = ratio(row["vs_gemm"])
    lines = [
        [name, str(k), *(cells.get(mask, "") for mask in live)]
        for (name, k), cells in by_case.items()
    ]
    header = ["dtype", "k", *(f"{mask}, {share:.0%} live" for mask, share in live.items())]
    title = f"Time of gemm over that of gemm with a mask, {rows[0]['n']} x {rows[0]['n']} x k:"
    return [Table(title, header, lines, 2)]


def build_time(results: Results) -> list[Part]:
    """Seconds of each step of a process, of several dtypes and kernels the most."""
    most: dict[tuple[str, str], float] = {}
    for row in extras(results):
        key = row["step"], row.get("implementation", "")
        most[key] = max(row["seconds"], most.get(key, 0.0))
    lines = [[*key, figure(seconds)] for key, seconds in most.items()]
    return [Table("Seconds:", ["step", "kernel", "seconds"], lines, 2)]


# Of suites that are not here, `all_rows` is shown.
TABLES: dict[str, Callable[[Results], list[Part]]] = {
    "ladder": ladder,
    "host_overhead": host_overhead,
    "epilogue": epilogue,
    "batched": batched,
    "choice_regret": choice_regret,
    "precision": precision,
    "accuracy": accuracy,
    "build_time": lambda results: build_time(results) + all_rows(results),
    "sm80": lambda results: sm80(results) + all_rows(results),
    "half": lambda results: half(results) + all_rows(results),
    "skinny": lambda results: skinny(results) + all_rows(results),
    "symmetric": lambda results: symmetric(results) + all_rows(results),
    "distributed": lambda results: distributed(results) + all_rows(results),
}


def tables_of(suite: str, results: Results) -> list[Part]:
    """The tables of a suite on the page of results."""
    return TABLES.get(suite, all_rows)(results)
