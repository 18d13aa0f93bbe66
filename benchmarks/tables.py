"""The results as tables, each a pivot of a suite's rows: `TABLES` by suite, and README's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from result_files import (
    OTHERS,
    Extra,
    Results,
    accuracy_text,
    arithmetic,
    distinct,
    extras,
    gpu_name,
    is_square,
    kind_of,
    size_of,
)

import dxgemm
from dxgemm.handwritten.parts.moduli import LOST_BITS, moduli_count, operand_bits
from dxgemm.problem.define import contiguous_problem

SPEED_SIZES = (1024, 4096)  # of the table in README
SPEED_KINDS = (
    "float64",
    "emulated float64",
    "float32",
    "emulated float32",
    "float16",
    "bfloat16",
    "int8",
)
LADDER_SIZES = (4096, 8192)
# What computes an epilogue or a reduction otherwise, by the name of its rows.
BASELINES = {
    "cublas_cupy": "cuBLAS and a kernel of cupy.fuse",
    "cublas_torch": "cuBLAS and torch's operations",
    "cublaslt": "cuBLASLt's own epilogue",
    "cublas_cupy_reduction": "cuBLAS and CuPy",
    "cublas_torch_reduction": "cuBLAS and torch",
}
INTEGER_SIZES, COMPARED_SIZE = (256, 1024, 4096, 8192), 4096
MODULI, DEPTHS = range(12, 19), (64, 256, 1024, 4096, 16384, 65536)
PREPARED = "emulated, b prepared"


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
Cell = Callable[[Rows], str]
Label = tuple[str, Callable[[Extra], Any]]  # header, text of a row
Column = tuple[str, Cell]  # header, cell of the rows of a line


def pivot(
    title: str,
    rows: Iterable[Extra],
    labels: Sequence[Label],
    columns: Iterable[Column],
    text_columns: int | None = None,
) -> list[Part]:
    """A line for all rows with the same labels; no table if there are no rows."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(str(text(row)) for _, text in labels), []).append(row)
    columns = list(columns)
    lines = [[*label, *(cell(of) for _, cell in columns)] for label, of in groups.items()]
    header = [header for header, _ in (*labels, *columns)]
    return [Table(title, header, lines, text_columns or len(labels))] if lines else []


def markdown(parts: Iterable[Part]) -> str:
    return "\n\n".join(part if isinstance(part, str) else table(part) for part in parts)


def table(part: Table) -> str:
    """Markdown of a table: its title and its rows; figures are aligned right."""
    columns = range(len(part.header))
    rule = ["---" if column < part.text_columns else "---:" for column in columns]
    lines = ["| " + " | ".join(line) + " |" for line in [part.header, rule, *part.rows]]
    return "\n".join([part.title, "", *lines]).lstrip("\n")


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


def cell(
    name: str,
    of: Condition = always,
    text: Callable[[Any], str] = figure,
    pick: Callable[[list[Any]], Any] = first,
) -> Cell:
    """The cell of a field: of its values where a condition holds, the one that is picked."""

    def cell_of(rows: Rows) -> str:
        found = [row[name] for row in rows if of(row) and row.get(name) is not None]
        return text(pick(found)) if found else ""

    return cell_of


def times(name: str, of: Condition = always, pick: Callable[[list[Any]], Any] = first) -> Cell:
    """The same for a ratio."""
    return cell(name, of, ratio, pick)


def across(rows: Rows, name: str, cell_where: Callable[[Condition], Cell]) -> list[Column]:
    """A column for each value of a field."""
    found = distinct(row[name] for row in rows)
    ordered = sorted(found) if all(isinstance(value, int) for value in found) else found
    return [(str(value), cell_where(where(**{name: value}))) for value in ordered]


def quickest(of: Condition, text: Callable[[Extra], str]) -> Cell:
    """The cell of the quickest of the rows where a condition holds."""

    def cell_of(rows: Rows) -> str:
        found = [row for row in rows if of(row)]
        return text(min(found, key=lambda row: row["gpu_us"])) if found else ""

    return cell_of


def count(rows: Rows) -> str:
    return str(len(rows))


def get(name: str) -> Callable[[Extra], Any]:
    return lambda row: row.get(name, "")


mean = statistics.geometric_mean
KIND, SIZE, DTYPE = ("arithmetic", kind_of), ("m x n x k", size_of), ("dtype", get("dtype"))
LAYOUT = ("layout", get("arrangement"))


def speed_table(gpus: list[dict[str, Results]]) -> list[Part]:
    """One row a kind of arithmetic: x cuBLAS on squares, and on random problems, of each GPU."""
    rows: Rows = []
    for suites in gpus:
        gpu = gpu_name(suites).split()[1]
        rows += [{**row, "column": f"{gpu}, {row['m']}"} for row in square_rows(suites)]
        rows += [{**row, "column": f"{gpu}, random"} for row in suite_rows(suites, "choice_regret")]
    shown = [row for row in rows if kind_of(row) in SPEED_KINDS and row["vs_cublas"]]
    columns: list[Column] = []
    for name in distinct(row["column"] for row in shown):
        pick: Any = mean if name.endswith("random") else max
        columns.append((name, times("vs_cublas", where(column=name), pick)))
    shown.sort(key=lambda row: SPEED_KINDS.index(kind_of(row)))
    return pivot("", shown, [("x cuBLAS", kind_of)], columns)


def square_rows(suites: dict[str, Results]) -> Rows:
    """Own kernels on row-major squares: of the suite `gemm`, else of the suite `precision`."""
    others = (*OTHERS, "batch_invariant")
    rows = [row for row in suite_rows(suites, "gemm") if row["implementation"] not in others]
    known = {kind_of(row) for row in rows}
    named = [{**row, "precision": row["way"]} for row in suite_rows(suites, "precision")]
    rows += [row for row in named if row["data"] == "normal" and kind_of(row) not in known]
    plain = where(batch=1, arrangement="row_row_row")
    return [row for row in rows if is_square(row, *SPEED_SIZES) and plain(row)]


def suite_rows(suites: dict[str, Results], suite: str) -> Rows:
    return extras(suites[suite]) if suite in suites else []


def pipelines(results: Results) -> list[Part]:
    """One row a kind of arithmetic and a layout; where TF32 is permitted, the faster pipeline."""
    rows = [
        row
        for row in extras(results)
        if row["implementation"] in ("pipeline", "pipeline_tma")
        and row["precision"] in (None, "tf32")
        and row["batch"] == 1
        and row["vs_cublas"]
        and is_square(row)
        and row["m"] >= 512
        and row["m"] & (row["m"] - 1) == 0
    ]
    columns = across(rows, "m", lambda of: times("vs_cublas", of, max))
    title = "cuBLASDx pipelines on m = n = k, times cuBLAS:"
    return pivot(title, rows, [KIND, LAYOUT], columns)


def rungs() -> list[Any]:
    """The implementations on the ladder, first rung first."""
    on_ladder = [i for i in dxgemm.implementations() if i.rung is not None]
    return sorted(on_ladder, key=lambda implementation: implementation.rung)


def kernel_path(rung: Any) -> str:
    """Path of a rung's file in handwritten/."""
    return rung.module.removeprefix("dxgemm.handwritten.").replace(".", "/") + ".py"


def rung_rows(results: Results, *sizes: int) -> Rows:
    """Rows of squares of the rungs in their order, then of cuBLAS."""
    order = [*(rung.name for rung in rungs()), "cublas"]
    rows = [r for r in extras(results) if is_square(r, *sizes) and r["implementation"] in order]
    return sorted(rows, key=lambda row: order.index(row["implementation"]))


def ladder(results: Results, folder: str = "../handwritten/") -> list[Part]:
    """One row a rung and an arithmetic; `folder` leads from the page to the kernels."""
    known = {rung.name: rung for rung in rungs()}
    links = {name: f"[{name}]({folder}{kernel_path(rung)})" for name, rung in known.items()}
    links["cublas"] = "cuBLAS"
    columns: list[Column] = []
    for size in LADDER_SIZES:
        columns += [
            (f"{size}, TFLOP/s", cell("tflops", where(m=size))),
            ("x cuBLAS", times("vs_cublas", where(m=size))),
        ]
    return pivot(
        "The ladder on m = n = k:",
        rung_rows(results, *LADDER_SIZES),
        [
            ("rung", lambda row: getattr(known.get(row["implementation"]), "rung", "")),
            ("kernel", lambda row: links[row["implementation"]]),
            ("arithmetic", arithmetic),
        ],
        [*columns, ("x CUDA C++", times("vs_twin"))],
    )


def epilogue_text(row: Extra) -> str:
    """Code of an epilogue, with the bars escaped that a table would take for its own."""
    return f"`{row['epilogue']}`".replace("|", "\\|")


def is_own(row: Extra) -> bool:
    return row["implementation"] not in BASELINES


def is_other(row: Extra) -> bool:
    return not is_own(row)


def kernel_text(row: Extra) -> str:
    parts = row["implementation"], row["config"], row.get("way")
    return " ".join(part for part in parts if part)


def epilogue_best(results: Results) -> list[Part]:
    """One row a case that others compute too: the best kernel of dxgemm against the best other."""
    labels = [("dtype", kind_of), ("epilogue", epilogue_text), SIZE, LAYOUT]
    compared = {tuple(text(row) for _, text in labels) for row in extras(results) if is_other(row)}
    return pivot(
        "Fused epilogues and reductions against the fastest other method:",
        [row for row in extras(results) if tuple(text(row) for _, text in labels) in compared],
        labels,
        [
            ("best kernel", quickest(is_own, kernel_text)),
            ("best other", quickest(is_other, lambda row: BASELINES[row["implementation"]])),
            ("TFLOP/s", quickest(is_own, lambda row: figure(row["tflops"]))),
            ("other", quickest(is_other, lambda row: figure(row["tflops"]))),
            ("x other", quickest(is_own, lambda row: ratio(row["vs_cublas"]))),
            ("automatic choice", times("vs_cublas", where(is_automatic=True))),
            ("x no epilogue", quickest(is_own, lambda row: ratio(row["vs_plain"]))),
        ],
        text_columns=6,
    )


def epilogue_costs(results: Results) -> list[Part]:
    """Percent of time that an epilogue adds to the automatic choice; the dearest of layouts."""
    rows = [
        {**row, "cost": 100 * (1 / row["vs_plain"] - 1)}
        for row in extras(results)
        if "way" not in row
        and " | " not in row["epilogue"]
        and row["is_automatic"]
        and row["vs_plain"]
    ]
    columns = across(rows, "dtype", lambda of: cell("cost", of, "{:.1f}".format, max))
    title = "Time that an epilogue adds to its kernel, m = n = k = 4096, percent:"
    return pivot(title, rows, [("epilogue", epilogue_text)], columns)


def sm80(results: Results) -> list[Part]:
    """Kernels over `mma.sync` against cuBLAS: large squares, and means over all sizes."""
    columns: list[Column] = []
    for size in (4096, 8192):
        square = where(m=size, n=size, k=size)
        columns += [
            (f"{size}, TFLOP/s", cell("tflops", square, pick=max)),
            ("x cuBLAS", quickest(square, lambda row: ratio(row["vs_cublas"]))),
        ]
    for header, is_odd in (("multiples of 8, x cuBLAS", False), ("odd sizes, x cuBLAS", True)):
        columns.append((header, times("vs_cublas", where(is_odd=is_odd), mean)))
    rows = [
        {**row, "is_odd": any(row[name] % 8 for name in "mnk")}
        for row in extras(results)
        if row["vs_cublas"]
    ]
    title = "Squares, then geometric means over all measured sizes:"
    return pivot(title, rows, [KIND], columns)


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
        shown = [r for r in rows if size_of(r) in timed and "promoted" not in r["way"]]
        columns = [
            *across(shown, "way", lambda of: cell("tflops", of)),
            ("emulated x cuBLAS", times("vs_cublas", where(way="emulated"))),
            ("b prepared x cuBLAS", times("vs_cublas", where(way=PREPARED))),
        ]
        named = [(variant_text(header), cell_of) for header, cell_of in columns]
        parts += pivot(f"{dtype} products by precision, TFLOP/s:", shown, [SIZE], named)
    return parts


def precision_refusals(results: Results) -> list[Part]:
    """Times of calls whose operands fail the validity check, against the native product."""
    native = {
        (row["dtype"], row["data"], size_of(row)): row["gpu_us"]
        for row in extras(results)
        if row["way"] == row["dtype"]
    }
    rows = []
    for row in filter(where(way="emulated", is_native=True), extras(results)):
        native_us = native.get((row["dtype"], row["data"], size_of(row)))
        if native_us:
            rows.append({**row, "native_us": native_us, "over": row["gpu_us"] / native_us})
    return pivot(
        "Calls whose operands fail the validity check, so that native arithmetic answers:",
        rows,
        [DTYPE, ("operands", get("data")), SIZE],
        [
            ("emulated, us", cell("gpu_us")),
            ("native, us", cell("native_us")),
            ("emulated / native", times("over")),
        ],
    )


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
    return pivot(
        f"Largest error of an element up to k = {max(row['k'] for row in rows)}, in eps |A| |B|, "
        "and the largest share of what the tests allow:",
        rows,
        [("arithmetic", lambda row: accuracy_text(row["kind"]))],
        [
            *(
                (header, cell("max_error", where(implementation=name), pick=max))
                for header, name in (("automatic choice", "automatic"), ("cuBLAS", "cublas"))
            ),
            ("any kernel", cell("max_error", own, pick=max)),
            ("of what is allowed", cell("ratio", own, pick=max)),
        ],
    )


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
    ranks = ", ".join(map(str, distinct(row["ranks"] for row in extras(results))))
    return pivot(
        f"Microseconds on {ranks} GPUs of one host:",
        extras(results),
        [("product", lambda r: f"`{r['operation']}`"), DTYPE, SIZE, ("method", get("method"))],
        [*((name, cell(field)) for field, name in columns.items()), ("x rival", times("vs_rival"))],
    )


def fp8(results: Results) -> list[Part]:
    """TFLOP/s by kind of scales, and of sums of whole operands."""
    kinds = {"tensor": "one", "row": "rows", "block": "blocks"}
    labels = [
        SIZE,
        ("layout", lambda row: " ".join(row["layout"].split("_")[:2])),
    ]
    columns = []
    for scales, text in kinds.items():
        for precision in (None, "fast"):
            of = where(scales=scales, precision=precision)
            if any(map(of, extras(results))):
                name = f"{text}, {precision}" if precision else text
                columns.append((f"{name}, TFLOP/s", cell("tflops", of)))
                columns.append(("x cuBLASLt", times("vs_rival", of)))
    return pivot("By scales:", extras(results), labels, columns)


def fp8_layers(results: Results) -> list[Part]:
    """Epilogues with results of float8, and groups."""
    rows = extras(results)
    layers = [row for row in rows if "groups" not in row]
    groups = [row for row in rows if "groups" in row]
    ends = {"one scale": "bias | gelu_tanh", "scales of rows": "bias | gelu_tanh | quantise_rows"}
    columns = [
        (f"{text}, {name}", of(where(epilogue=epilogue)))
        for text, epilogue in ends.items()
        for name, of in (
            ("TFLOP/s", lambda fits: cell("tflops", fits)),
            ("x plain", lambda fits: times("vs_plain", fits)),
            ("x torch", lambda fits: times("vs_rival", fits)),
        )
    ]
    by_scales = [
        (f"{text}, {name}", of(where(scales=scales)))
        for scales, text in (("row", "rows"), ("block", "blocks"))
        for name, of in (
            ("TFLOP/s", lambda fits: cell("tflops", fits)),
            ("x torch", lambda fits: times("vs_rival", fits)),
        )
    ]
    return [
        *pivot("Bias and gelu_tanh, with a result of float8:", layers, [SIZE], columns),
        *pivot("Groups of rows, by scales:", groups, [("groups", get("groups")), SIZE], by_scales),
    ]


def fp8_accuracy(results: Results) -> list[Part]:
    """Bits of |a| |b| that are right in every element, over k."""
    columns = [
        (f"{data}, {text}{name}", cell("kept_bits", where(
            data=data, precision=precision, implementation=implementation
        )))
        for data in ("normal", "uniform")
        for precision, text in ((None, "promoted"), ("fast", "fast"))
        for implementation, name in (("automatic", ""), ("torch._scaled_mm", ", cuBLASLt"))
    ]  # fmt: skip
    title = "float8: bits of |a| |b| that are right in every element of 64 x 128:"
    return pivot(title, extras(results), [("k", get("k"))], columns)


def integers(results: Results) -> list[Part]:
    """TOP/s of squares by operands and modulus, and at one size the rivals and the products."""
    squares = [row for row in extras(results) if is_square(row) and row["batch"] == 1]
    squares = [row for row in squares if row["n"] in INTEGER_SIZES]
    form_of = {_integers_of(row): row["form"] for row in squares if row["n"] == COMPARED_SIZE}
    at = where(n=COMPARED_SIZE)
    return pivot(
        f"TOP/s of n x n matrices; products and rivals for n = {COMPARED_SIZE}:",
        squares,
        [
            ("operands", _integers_of),
            ("computed as", lambda row: form_of.get(_integers_of(row)) or "1 product"),
        ],
        [
            *((f"n = {n}", cell("tops", where(n=n))) for n in INTEGER_SIZES),
            ("x CuPy", times("vs_cupy", at)),
            ("x JAX", times("vs_jax", at)),
        ],
    )


def _integers_of(row: Extra) -> str:
    return row["dtype"] + (f" modulo {row['modulus']}" if row.get("modulus") else "")


def device(results: Results) -> list[Part]:
    """Products of tiles against `gemm`, and chains of two products against two calls."""
    chains = [row for row in extras(results) if "k1" in row]
    tiles = [row for row in extras(results) if "tile_m" in row]
    labels = [
        DTYPE, SIZE, ("tile", lambda row: f"{row['tile_m']} x {row['tile_n']}"),
        ("instruction", lambda row: row["instruction"] or ""),
    ]  # fmt: skip
    in_turn = where(implementation="tiles in turn")
    columns = [
        ("us", cell("gpu_us")), ("x gemm", times("vs_gemm")),
        ("in turn, x gemm", times("vs_gemm", in_turn)),
    ]  # fmt: skip
    sizes = [("m", get("m")), ("k and n", get("n")), ("columns between", get("k1"))]
    own = [row for row in chains if row["vs_two_calls"] is not None]
    by_kernel = across(own, "implementation", lambda of: times("vs_two_calls", of))
    return [
        *pivot("One product:", tiles, labels, columns),
        *pivot("Two products, x two calls:", own, sizes, by_kernel),
    ]


def patched(results: Results) -> list[Part]:
    """Random products against torch's own, and scikit-learn before and after."""
    random = [row for row in extras(results) if row["family"] == "random"]
    tasks = [row for row in extras(results) if row["family"] != "random"]
    columns: list[Column] = [("products", count)]
    for header, name in (("x torch", "vs_rival"), ("on the GPU alone", "gpu_vs_rival")):
        columns += [(header, times(name, pick=mean)), ("least", times(name, pick=min))]
    columns += [("by dxgemm", lambda rows: str(sum(row["routed"] for row in rows)))]
    ms = [
        ("ms", cell("before_ms")),
        ("patched", cell("ms")),
        ("calls by dxgemm", cell("routed", text=str)),
    ]
    return [
        *pivot("Random products of torch:", random, [KIND], columns),
        *pivot("scikit-learn on patches of its photographs:", tasks, [("", get("task"))], ms),
    ]


def inner(results: Results) -> list[Part]:
    """Products by inner functions against their instructions, torch, and themselves with argmin."""
    labels = [
        ("function", get("inner")), DTYPE, SIZE,
        ("layout, batch", lambda row: f"{row['arrangement']}, {row['batch']}"),
    ]  # fmt: skip
    columns = [
        ("us", cell("gpu_us")), ("10^12 pairs/s", cell("tpairs_per_s")),
        ("x bound", times("vs_bound")), ("x torch.cdist", times("vs_cdist")),
        ("x torch.compile", times("vs_compiled")), ("x with argmin", times("vs_plain")),
    ]  # fmt: skip
    return pivot("Other times over dxgemm's:", extras(results), labels, columns)


def build_time(results: Results) -> list[Part]:
    """Seconds of each step of a process, of several dtypes and kernels the most."""
    labels = [("step", get("step")), ("kernel", get("implementation"))]
    return pivot("Seconds:", extras(results), labels, [("seconds", cell("seconds", pick=max))])


# Tables of a suite on the pages of docs/ that concern it.
TABLES: dict[str, Sequence[Callable[[Results], list[Part]]]] = {
    "build_time": [build_time],
    "epilogue": [epilogue_best, epilogue_costs],
    "sm80": [sm80],
    "patch": [patched],
    "distributed": [distributed],
    "fp8": [fp8],
    "fp8_layers": [fp8_layers],
    "fp8_accuracy": [fp8_accuracy],
    "integers": [integers],
    "device": [device],
    "inner": [inner],
    "precision": [precision_rates, precision_refusals],
}
