"""The results as tables, each a pivot of a suite's rows: `TABLES` by suite, and README's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    is_square,
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
LADDER_SIZE, REDUCED_SIZES = 4096, (4096, 8192)
FULL_PRECISION = ("float32", "float64")
# Tiles by multiples of 64, each of a block; a share that leaves little to gain.
FEW_TILES = (
    (128, 256, 1), (128, 192, 1), (128, 128, 1), (128, 64, 1), (64, 128, 1), (64, 64, 1),
)  # fmt: skip
FULL_SHARE = 0.9
PIPELINES = ("pipeline", "pipeline_tma")
PIPELINE_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
PIPELINE_MEAN_SIZES = PIPELINE_SIZES[1:]
SM80_SQUARES = (4096, 8192)
# What computes an epilogue otherwise, by the name of its rows.
BASELINES = {
    "cublas_cupy": "cuBLAS and a kernel of cupy.fuse",
    "cublas_torch": "cuBLAS and torch's operations",
    "cublaslt": "cuBLASLt's own epilogue",
    "cublas_cupy_reduction": "cuBLAS and CuPy",
    "cublas_torch_reduction": "cuBLAS and torch",
}
MODULI, DEPTHS = range(12, 19), (64, 256, 1024, 4096, 16384, 65536)
PREPARED = "emulated, b prepared"
PRECISION_RATES = {
    "float32": ("cublas", "float32", "emulated", PREPARED, "tf32"),
    "float64": (
        *("cublas", "float64", "emulated", PREPARED),
        *("emulated17", "emulated15", "emulated14", "emulated13"),
    ),
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
Rows = list[Extra]
Condition = Callable[[Extra], bool]
Label = tuple[str, Callable[[Extra], Any]]  # header, text of a row
Column = tuple[str, Callable[[Rows], str]]  # header, cell of the rows of a line


def pivot(
    title: str,
    rows: Iterable[Extra],
    labels: Sequence[Label],
    columns: Sequence[Column],
    text_columns: int | None = None,
) -> list[Part]:
    """A line for all rows with the same labels; no table if there are no rows."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(str(text(row)) for _, text in labels), []).append(row)
    lines = [[*label, *(cell(of) for _, cell in columns)] for label, of in groups.items()]
    header = [header for header, _ in (*labels, *columns)]
    return [Table(title, header, lines, text_columns or len(labels))] if lines else []


def figure(value: float) -> str:
    """Three significant digits, or all of a whole number above 100."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def where(**fields: Any) -> Condition:
    """The condition that a row has these values."""
    return lambda row: all(row.get(name) == value for name, value in fields.items())


always = where()


def first(found: list[Any]) -> Any:
    return found[0]


def values(rows: Rows, name: str, of: Condition = always) -> list[Any]:
    return [row[name] for row in rows if of(row) and row.get(name) is not None]


def cell(
    name: str,
    of: Condition = always,
    text: Callable[[Any], str] = figure,
    pick: Callable[[list[Any]], Any] = first,
) -> Callable[[Rows], str]:
    """The cell of a field: of its values where a condition holds, the one that is picked."""

    def cell_of(rows: Rows) -> str:
        found = values(rows, name, of)
        return text(pick(found)) if found else ""

    return cell_of


def times(
    name: str, of: Condition = always, pick: Callable[[list[Any]], Any] = first
) -> Callable[[Rows], str]:
    """The same for a ratio."""
    return cell(name, of, ratio, pick)


mean = statistics.geometric_mean


def least_size(name: str) -> Callable[[Rows], str]:
    """The cell that names the problem with the least of a field."""
    return lambda rows: size_of(min(rows, key=lambda row: row[name]))


def count(rows: Rows) -> str:
    return str(len(rows))


def get(name: str) -> Callable[[Extra], Any]:
    return lambda row: row[name]


KIND, SIZE, DTYPE = ("arithmetic", kind_of), ("m x n x k", size_of), ("dtype", get("dtype"))


def host_overhead(results: Results) -> list[Part]:
    """One row a call, one column for each dtype and size."""
    rows = extras(results)
    columns = sorted({(row["dtype"], row["m"]) for row in rows})
    labels = [("library", get("library")), ("call", lambda row: f"`{row['call']}`")]
    return pivot(
        "Host time of a call, microseconds:",
        rows,
        labels,
        [(f"{t}, {n} x {n}", cell("host_us", where(dtype=t, m=n))) for t, n in columns],
    )


def all_rows(results: Results) -> list[Part]:
    """Every benchmark with every field in which benchmarks differ; of any suite."""
    rows = [row_fields(row) for row in extras(results)]
    names = distinct(name for row in rows for name in row)
    differ = [n for n in names if len(rows) == 1 or len({str(row.get(n)) for row in rows}) > 1]
    is_figure = {
        name: all(isinstance(row.get(name), int | float | None) for row in rows) for name in differ
    }
    order = {name: place for place, name in enumerate(COLUMNS)}
    shown = sorted(differ, key=lambda name: (is_figure[name], order.get(name, len(order)), name))
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


def cell_text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return ratio(value) if name.startswith("vs_") or name == "regret" else figure(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).replace("|", "\\|")


def speed_table(gpus: list[dict[str, Results]]) -> list[Part]:
    """One row a kind of arithmetic: x cuBLAS on squares, and on random problems, of each GPU."""
    rows: Rows = []
    for suites in gpus:
        gpu = gpu_name(suites).split()[1]
        rows += [{**row, "column": f"{gpu}, {row['m']}"} for row in square_rows(suites)]
        regret = extras(suites["choice_regret"]) if "choice_regret" in suites else []
        rows += [{**row, "column": f"{gpu}, random"} for row in regret if row["vs_cublas"]]
    kinds = {kind: place for place, kind in enumerate(SPEED_KINDS)}
    shown = [row for row in rows if (row["dtype"], row["precision"]) in kinds]
    columns: list[Column] = []
    for name in distinct(row["column"] for row in shown):
        pick: Any = mean if name.endswith("random") else max
        columns.append((name, times("vs_cublas", where(column=name), pick)))
    shown.sort(key=lambda row: kinds[row["dtype"], row["precision"]])
    label = ("x cuBLAS", lambda row: kind_text(row["dtype"], row["precision"]))
    return pivot("", shown, [label], columns)


def square_rows(suites: dict[str, Results]) -> Rows:
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
        if is_square(row, *SPEED_SIZES)
        and (row["batch"], row["arrangement"]) == (1, "row_row_row")
        and not row["result_dtype"]
        and row["vs_cublas"]
    ]


def pipeline_squares(results: Results) -> list[Part]:
    """One row a kind of arithmetic and an arrangement; empty if there are none."""
    rows = [
        row
        for row in extras(results)
        if row["implementation"] in PIPELINES
        and row["precision"] in (None, "tf32")
        and row["batch"] == 1
        and row["vs_cublas"]
        and is_square(row)
    ]

    def best(rows: Rows, size: int) -> Extra | None:
        """Where TF32 is permitted, either pipeline may serve: the faster one is shown."""
        of_size = [row for row in rows if row["m"] == size]
        return max(of_size, key=lambda row: row["tflops"], default=None)

    def rate(size: int) -> Column:
        def text(rows: Rows) -> str:
            row = best(rows, size)
            return f"{figure(row['tflops'])} ({ratio(row['vs_cublas'])})" if row else ""

        return str(size), text

    def mean_of_all(rows: Rows) -> str:
        found = [best(rows, size) for size in PIPELINE_MEAN_SIZES]
        return ratio(mean([row["vs_cublas"] for row in found if row])) if all(found) else ""

    return pivot(
        "cuBLASDx pipelines on m = n = k, TFLOP/s (times cuBLAS; its geometric mean from 1024 on):",
        rows,
        [KIND, ("layout", get("arrangement"))],
        [*map(rate, PIPELINE_SIZES), ("mean", mean_of_all)],
    )


def rungs() -> list[Any]:
    """The implementations on the ladder, first rung first."""
    on_ladder = [i for i in dxgemm.implementations() if i.rung is not None]
    return sorted(on_ladder, key=lambda implementation: implementation.rung)


def kernel_path(rung: Any) -> str:
    """Path of a rung's file in handwritten/."""
    return rung.module.removeprefix("dxgemm.handwritten.").replace(".", "/") + ".py"


def rung_rows(results: Results, *sizes: int) -> Rows:
    """Rows of squares of the rungs in their order, then of cuBLAS."""
    order = {name: place for place, name in enumerate([*(i.name for i in rungs()), "cublas"])}
    rows = [r for r in extras(results) if is_square(r, *sizes) and r["implementation"] in order]
    return sorted(rows, key=lambda row: order[row["implementation"]])


def rate_columns(header: str, of: Condition) -> list[Column]:
    return [(header, cell("tflops", of)), ("x cuBLAS", times("vs_cublas", of))]


def ladder_table(results: Results, folder: str = "../handwritten/") -> list[Part]:
    """One row a rung, at one size, in both dtypes; `folder` leads from the page to the kernels."""
    known = {rung.name: rung for rung in rungs()}

    def number(row: Extra) -> Any:
        return known[row["implementation"]].rung if row["implementation"] in known else ""

    def link(row: Extra) -> str:
        name = row["implementation"]
        return f"[{name}]({folder}{kernel_path(known[name])})" if name in known else "cuBLAS"

    single, double = (where(dtype=dtype) for dtype in FULL_PRECISION)
    return pivot(
        f"The ladder, m = n = k = {LADDER_SIZE}, TFLOP/s:",
        (row for row in rung_rows(results, LADDER_SIZE) if arithmetic(row) in FULL_PRECISION),
        [("rung", number), ("kernel", link)],
        [
            *rate_columns("float32", single),
            ("CUDA C++", cell("twin_tflops", single)),
            ("x CUDA C++", times("vs_twin", single)),
            *rate_columns("float64", double),
        ],
    )


def ladder_reduced_table(results: Results) -> list[Part]:
    """The rungs that compute in TF32 and half precision; empty where there are none."""
    rows = [r for r in rung_rows(results, *REDUCED_SIZES) if arithmetic(r) not in FULL_PRECISION]
    kinds = distinct(arithmetic(row) for row in extras(results))
    rows.sort(key=lambda row: kinds.index(arithmetic(row)))
    small, large = (where(m=size) for size in REDUCED_SIZES)
    kernel = ("kernel", lambda row: row["implementation"].replace("cublas", "cuBLAS"))
    return pivot(
        "Tensor cores on reduced precision, float32 sums, TFLOP/s:",
        rows,
        [("arithmetic", arithmetic), kernel],
        [
            *rate_columns("4096", small),
            ("x CUDA C++", times("vs_twin", small)),
            *rate_columns("8192", large),
        ],
    )


def epilogue_text(row: Extra) -> str:
    """Code of an epilogue, with the bars escaped that a table would take for its own."""
    return f"`{row['epilogue']}`".replace("|", "\\|")


def is_own(row: Extra) -> bool:
    return row["implementation"] not in BASELINES


def kernel_text(row: Extra) -> str:
    return f"{row['implementation']} {row['config'] or ''}".rstrip()


def quickest(of: Condition, text: Callable[[Extra], str]) -> Callable[[Rows], str]:
    """The cell of the quickest of the rows where a condition holds."""

    def cell_of(rows: Rows) -> str:
        found = [row for row in rows if of(row)]
        return text(min(found, key=lambda row: row["gpu_us"])) if found else ""

    return cell_of


def is_other(row: Extra) -> bool:
    return not is_own(row)


def other_text(row: Extra) -> str:
    return BASELINES[row["implementation"]]


def is_automatic(row: Extra) -> bool:
    return is_own(row) and row["is_automatic"]


def epilogue(results: Results) -> list[Part]:
    """Epilogues and what they cost, then reductions."""
    return epilogue_best(results) + epilogue_costs(results) + reductions(results)


def epilogue_best(results: Results) -> list[Part]:
    """One row a case that others compute too: the best kernel of dxgemm against the best other."""
    rows = [row for row in extras(results) if "way" not in row]
    labels = [("dtype", kind_of), ("epilogue", epilogue_text), SIZE, ("layout", get("arrangement"))]
    compared = {tuple(text(row) for _, text in labels) for row in rows if is_other(row)}
    return pivot(
        "Fused epilogues against the fastest other method:",
        [row for row in rows if tuple(text(row) for _, text in labels) in compared],
        labels,
        [
            ("best kernel", quickest(is_own, kernel_text)),
            ("best other", quickest(is_other, other_text)),
            ("TFLOP/s", quickest(is_own, lambda row: figure(row["tflops"]))),
            ("other", quickest(is_other, lambda row: figure(row["tflops"]))),
            ("x other", quickest(is_own, lambda row: ratio(row["vs_cublas"]))),
            ("automatic choice", times("vs_cublas", is_automatic)),
            ("x no epilogue", quickest(is_own, lambda row: ratio(row["vs_plain"]))),
        ],
        text_columns=6,
    )


def epilogue_costs(results: Results) -> list[Part]:
    """Time that each epilogue of the catalogue adds to the automatic choice, in percent.

    Of several arrangements the dearest.
    """
    rows = [
        {**row, "cost": 100 * (1 / row["vs_plain"] - 1)}
        for row in extras(results)
        if "way" not in row
        and " | " not in row["epilogue"]
        and row["vs_plain"]
        and row["is_automatic"]
    ]
    columns: list[Column] = [
        (dtype, cell("cost", where(dtype=dtype), "{:.1f}".format, max))
        for dtype in distinct(row["dtype"] for row in rows)
    ]
    title = "Time that an epilogue adds to its kernel, m = n = k = 4096, percent:"
    return pivot(title, rows, [("epilogue", epilogue_text)], columns)


def reductions(results: Results) -> list[Part]:
    """One row a case: dxgemm fused and unfused, and the best other; empty where there are none."""
    fused, unfused = where(way="fused"), where(way="unfused")
    return pivot(
        "Reductions; a fused one does not store the matrix:",
        [row for row in extras(results) if "way" in row],
        [("dtype", kind_of), ("reduction", epilogue_text), SIZE],
        [
            ("kernel", lambda rows: kernel_text(min(filter(is_own, rows), key=get("way")))),
            ("best other", quickest(is_other, other_text)),
            ("fused, us", cell("gpu_us", fused)),
            ("unfused, us", cell("gpu_us", unfused)),
            ("other, us", cell("gpu_us", is_other, pick=min)),
            ("fused x other", times("vs_cublas", fused)),
            ("unfused x other", times("vs_cublas", unfused)),
            ("automatic x other", times("vs_cublas", is_automatic)),
            ("fused x product alone", times("vs_plain", fused)),
        ],
        text_columns=5,
    )


def batched_squares(results: Results) -> list[Part]:
    """A table a dtype: batches of squares, times cuBLAS, and the mean over all cases."""
    parts: list[Part] = []
    own = [r for r in extras(results) if r["implementation"] == "automatic" and r["vs_cublas"]]
    for dtype in distinct(row["dtype"] for row in own):
        rows = [row for row in own if row["dtype"] == dtype]
        squares = [row for row in rows if row["way"] == "strided"]
        columns: list[Column] = [
            (f"{batch:,}", times("vs_cublas", where(batch=batch)))
            for batch in distinct(row["batch"] for row in squares)
        ]
        title = f"Batches of small matrices, {dtype}, x the quicker of cuBLAS and torch:"
        parts += pivot(title, squares, [("m = n = k", get("m"))], columns)
        total = mean(row["vs_cublas"] for row in rows)
        parts.append(f"Geometric mean over these, broadcast batches and lists: {total:.2f}.")
    return parts


def choice_summary(results: Results) -> list[Part]:
    """Time of the choice over that of the best candidate, by arithmetic."""
    return pivot(
        "Time of the chosen kernel over that of the best one, on random problems that no table was "
        "made from, with all layouts, thin matrices, batches and epilogues:",
        sorted(extras(results), key=kind_of),
        [KIND],
        [
            ("problems", count),
            ("batches", lambda rows: str(sum(row["batch"] > 1 for row in rows))),
            ("mean", cell("regret", text="{:.3f}".format, pick=statistics.mean)),
            ("worst", times("regret", pick=max)),
            ("geometric mean, x cuBLAS", times("vs_cublas", pick=mean)),
        ],
    )


def sm80(results: Results) -> list[Part]:
    """Kernels over `mma.sync` against cuBLAS: large squares, and means over all sizes."""
    columns: list[Column] = []
    for size in SM80_SQUARES:
        square = where(m=size, n=size, k=size)
        columns += [
            (f"{size}, TFLOP/s", cell("tflops", square, pick=max)),
            ("x cuBLAS", quickest(square, lambda row: ratio(row["vs_cublas"]))),
        ]
    columns += [
        (header, times("vs_cublas", where(is_odd=is_odd), mean))
        for header, is_odd in (("multiples of 8, x cuBLAS", False), ("odd sizes, x cuBLAS", True))
    ]
    rows = [
        {**row, "is_odd": any(row[name] % 8 for name in "mnk")}
        for row in extras(results)
        if row["vs_cublas"]
    ]
    return pivot("Squares, then geometric means over all measured sizes:", rows, [KIND], columns)


def variant_text(variant: str) -> str:
    """The name of a column."""
    number = variant.removeprefix("emulated")
    if variant.startswith("emulated") and number.isdigit():
        return f"{number} moduli"
    return variant.replace("cublas", "cuBLAS")


def precision_rates(results: Results) -> list[Part]:
    """TFLOP/s of each precision on large problems of normal values."""
    parts: list[Part] = []
    for dtype in distinct(row["dtype"] for row in extras(results)):
        rows = [r for r in extras(results) if (r["dtype"], r["data"]) == (dtype, "normal")]
        timed = {size_of(row) for row in rows if row["way"] == PREPARED}
        columns: list[Column] = [
            (variant_text(variant), cell("tflops", where(way=variant)))
            for variant in PRECISION_RATES[dtype]
        ]
        columns += [
            ("emulated x cuBLAS", times("vs_cublas", where(way="emulated"))),
            ("b prepared x cuBLAS", times("vs_cublas", where(way=PREPARED))),
        ]
        shown = [row for row in rows if size_of(row) in timed]
        parts += pivot(f"{dtype} products by precision, TFLOP/s:", shown, [SIZE], columns)
    return parts


def precision_refusals(results: Results) -> list[Part]:
    """Times of calls whose operands fail the validity check, against the native product."""
    parts: list[Part] = []
    for dtype in FULL_PRECISION:
        rows = [row for row in extras(results) if row["dtype"] == dtype]
        refused = {
            (row["data"], size_of(row))
            for row in rows
            if row["way"] == "emulated" and row["is_native"]
        }

        def over(rows: Rows, dtype: str = dtype) -> str:
            emulated, native = (values(rows, "gpu_us", where(way=w)) for w in ("emulated", dtype))
            return ratio(emulated[0] / native[0])

        parts += pivot(
            f"Calls whose operands fail the validity check, so that {dtype} answers:",
            [row for row in rows if (row["data"], size_of(row)) in refused],
            [("operands", get("data")), SIZE],
            [
                ("emulated, us", cell("gpu_us", where(way="emulated"))),
                (f"{dtype}, us", cell("gpu_us", where(way=dtype))),
                (f"emulated / {dtype}", over),
            ],
        )
    return parts


def precision_bits() -> list[Part]:
    """Bits p of the operands, with the error bound, by the number of moduli and k."""
    lines = []
    for number in MODULI:
        bits = [operand_bits(number, k) for k in DEPTHS]
        lines.append([str(number), *(f"{p}, 2**{LOST_BITS - p}" for p in bits)])
    automatic = [moduli_count(contiguous_problem("float64", 1, 1, k)) for k in DEPTHS]
    lines.append(["automatic", *map(str, automatic)])
    header = ["moduli", *(f"k = {k}" for k in DEPTHS)]
    title = "Emulated float64: bits p of the operands, and the error bound over |A| |B|:"
    return [Table(title, header, lines)]


def accuracy_summary(results: Results) -> list[Part]:
    """One row a kind of arithmetic: the worst error of the choice, of cuBLAS, of any kernel."""
    own = where(is_own=True)
    rows = [{**row, "is_own": row["implementation"] != "cublas"} for row in extras(results)]
    deepest = max(row["k"] for row in extras(results))
    return pivot(
        f"Largest error of an element up to k = {deepest}, in eps |A| |B|, and the largest share "
        "of what the tests allow:",
        rows,
        [("arithmetic", lambda row: accuracy_text(row["kind"]))],
        [
            ("automatic choice", cell("max_error", where(implementation="automatic"), pick=max)),
            ("cuBLAS", cell("max_error", where(implementation="cublas"), pick=max)),
            ("any kernel", cell("max_error", own, pick=max)),
            ("of what is allowed", cell("ratio", own, pick=max)),
        ],
    )


def accuracy(results: Results) -> list[Part]:
    """The summary, then the errors at each k of each arithmetic and each kind of data."""
    parts = accuracy_summary(results)
    for title, rows in accuracy_sections(results):
        columns: list[Column] = [
            (str(k), cell("max_error", where(k=k))) for k in sorted({row["k"] for row in rows})
        ]
        title = f"{title}, largest error in eps |A| |B|:"
        parts += pivot(title, rows, [("k", get("implementation"))], columns)
    return parts


def half(results: Results) -> list[Part]:
    """Half precision against the fastest rival: one row a family and dtype."""
    return pivot(
        "Geometric means over the fastest of cuBLAS, cuBLASLt and torch:",
        [row for row in extras(results) if row["vs_rival"]],
        [("family", get("family")), DTYPE],
        [
            ("problems", count),
            ("x rival", times("vs_rival", pick=mean)),
            ("least", times("vs_rival", pick=min)),
            ("m x n x k of the least", least_size("vs_rival")),
        ],
    )


def tile_shares(results: Results) -> list[Part]:
    """Share of the tiles of whole waves that is result: by the chosen tile, by one of few."""
    kernel = find_implementation("wgmma").kernel
    tiles = {str(config): result_tile(config) for config in kernel.configs}
    sms = results["machine_info"]["gpu"]["multiprocessors"]
    rows = []
    for row in extras(results):
        is_plain = (row["family"], row["dtype"]) == ("plain", "bfloat16")
        if is_plain and row["arrangement"] == "row_col_row" and row["config"] in tiles:
            own = wave_share(row, tiles[row["config"]], sms)
            most = max(wave_share(row, tile, sms) for tile in FEW_TILES)
            if own > most and most < FULL_SHARE:
                rows.append({**row, "share": own, "most": most})
    return pivot(
        f"Results that {len(FEW_TILES)} tiles share out to {sms} SMs worse than the chosen one:",
        rows,
        [SIZE, ("tile", get("config"))],
        [
            ("share by few", times("most")),
            ("share", times("share")),
            ("x rival", times("vs_rival")),
        ],
    )


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
    rows = [row for row in extras(results) if row["vs_cublas"]]
    return pivot(
        "Geometric means over cuBLAS, and over a read of as many bytes:",
        [{**row, "vs_read": row["gbs"] / row["read_gbs"]} for row in rows],
        [("arithmetic", get("dtype")), ("rows", get("m"))],
        [
            ("problems", count),
            ("x cuBLAS", times("vs_cublas", pick=mean)),
            ("least", times("vs_cublas", pick=min)),
            ("x reading", times("vs_read", pick=mean)),
            ("m x n x k of the least", least_size("vs_cublas")),
        ],
        text_columns=1,
    )


def symmetric(results: Results) -> list[Part]:
    """Time of the full product over that of the symmetric one: one row a kind and k."""
    whole = [row for row in extras(results) if "mask" not in row]
    depths = {row["k"] for row in whole if row["k"] != row["n"]}
    rows = [{**row, "depth": row["k"]} for row in whole if row["k"] in depths]
    rows += [{**row, "depth": "n"} for row in whole if row["k"] == row["n"]]
    kinds = distinct(map(kind_of, whole))
    rows.sort(key=lambda row: (kinds.index(kind_of(row)), row["depth"] == "n", row["k"]))
    columns: list[Column] = [
        (str(n), times("vs_gemm", where(n=n))) for n in sorted({row["n"] for row in rows})
    ]
    return [
        *pivot(
            "Time of gemm over that of gemm_symmetric, by n:",
            rows,
            [("dtype", kind_of), ("k", get("depth"))],
            columns,
        ),
        *masked(results),
    ]


def masked(results: Results) -> list[Part]:
    """Time of the plain product over that of a masked one: one row a kind and k."""
    rows = [row for row in extras(results) if "mask" in row]
    columns: list[Column] = [
        (f"{mask}, {live:.0%} live", times("vs_gemm", where(mask=mask)))
        for mask, live in {row["mask"]: row["live"] for row in rows}.items()
    ]
    size = rows[0]["n"] if rows else 0
    title = f"Time of gemm over that of gemm with a mask, {size} x {size} x k:"
    return pivot(title, rows, [("dtype", arithmetic), ("k", get("k"))], columns)


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
    ranks = distinct(row["ranks"] for row in extras(results))
    return pivot(
        f"Microseconds on {', '.join(map(str, ranks))} GPUs of one host:",
        extras(results),
        [("product", lambda r: f"`{r['operation']}`"), DTYPE, SIZE, ("method", get("method"))],
        [
            *((header, cell(name)) for name, header in columns.items()),
            ("x rival", times("vs_rival")),
        ],
    )


def build_time(results: Results) -> list[Part]:
    """Seconds of each step of a process, of several dtypes and kernels the most."""
    labels = [("step", get("step")), ("kernel", lambda row: row.get("implementation", ""))]
    return pivot("Seconds:", extras(results), labels, [("seconds", cell("seconds", pick=max))])


# Tables of a suite on the page of results; `all_rows` follows, but for suites of WHOLE.
TABLES: dict[str, Sequence[Callable[[Results], list[Part]]]] = {
    "ladder": [ladder_table, ladder_reduced_table],
    "host_overhead": [host_overhead],
    "epilogue": [epilogue],
    "batched": [batched_squares],
    "choice_regret": [choice_summary],
    "precision": [precision_rates, precision_refusals],
    "accuracy": [accuracy],
    "build_time": [build_time],
    "sm80": [sm80],
    "half": [half],
    "skinny": [skinny],
    "symmetric": [symmetric],
    "distributed": [distributed],
}
WHOLE = ("host_overhead", "epilogue", "accuracy")


def tables_of(suite: str, results: Results) -> list[Part]:
    """The tables of a suite on the page of results."""
    tables = [part for table in TABLES.get(suite, ()) for part in table(results)]
    return tables if suite in WHOLE else tables + all_rows(results)
