"""The results as tables, each a pivot of a suite's rows: `TABLES` by suite, and README's."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from result_files import OTHERS, Extra, Results, distinct, extras, is_square, short_name

import dxgemm
from dxgemm.handwritten.parts.moduli import LOST_BITS, moduli_count, operand_bits
from dxgemm.problem.define import contiguous_problem

SPEED_SIZES = (1024, 4096)  # of the table in README
SPEED_KINDS = (
    "float64", "emulated float64", "float32", "emulated float32", "float16", "bfloat16", "int8",
)  # fmt: skip
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


ACCURACY_KINDS = {"emulated": "emulated float32", "emulated_float64": "emulated float64"}
NOT_OWN = {*OTHERS, *BASELINES}


@dataclass(frozen=True)
class Table:
    """Rows of texts, which may hold links and code; columns after `text_columns` are figures."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


Part = Table | str  # a table, or a paragraph
Rows = list[Extra]
Label = str | tuple[str, Callable[[Extra], Any]]  # header, text of a row
Column = tuple[str, Callable[[Rows], str]]  # header, cell of the rows of a line


def size_of(row: Extra) -> str:
    return f"{row['m']} x {row['n']} x {row['k']}"


def kind_of(row: Extra) -> str:
    """The arithmetic, such as `tf32`, `int8 to float32`, `emulated float64, 14 moduli`."""
    dtype, precision, result = (row.get(name) for name in ("dtype", "precision", "result_dtype"))
    if precision in (None, "tf32"):
        text = precision or dtype
    elif precision == "3m":
        text = f"{dtype} by three products"
    else:
        count = precision.removeprefix("emulated")
        text = f"emulated {dtype}" + (f", {count} moduli" if count else "")
    return f"{text} to {result}" if result else text


def accuracy_text(row: Extra) -> str:
    """Name of an arithmetic of the suite `accuracy`."""
    return ACCURACY_KINDS.get(row["kind"], row["kind"].replace("_", " "))


def epilogue_text(row: Extra) -> str:
    """Code of an epilogue, with the bars escaped that a table would take for its own."""
    return f"`{row['epilogue']}`".replace("|", "\\|")


# Labels that are not the field of their name.
LABELS: dict[str, Callable[[Extra], Any]] = {
    "arithmetic": kind_of,
    "m x n x k": size_of,
    "layout": lambda row: row["arrangement"],
    "epilogue": epilogue_text,
    "kernel": lambda row: row.get("implementation", ""),
}


def text_of(label: Label, row: Extra) -> str:
    name, text = label if isinstance(label, tuple) else (label, LABELS.get(label))
    return str(text(row) if text else row.get(name, ""))


def pivot(
    title: str,
    rows: Iterable[Extra],
    labels: Sequence[Label],
    columns: Iterable[Column] = (),
    text_columns: int | None = None,
) -> list[Part]:
    """A line for all rows with the same labels; no table if there are no rows."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(text_of(label, row) for label in labels), []).append(row)
    columns = list(columns)
    lines = [[*label, *(cell(of) for _, cell in columns)] for label, of in groups.items()]
    names = [label if isinstance(label, str) else label[0] for label in labels]
    header = [*names, *(name for name, _ in columns)]
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


def ratio(value: float) -> str:
    return f"{value:.2f}"


def first(found: list[Any]) -> Any:
    return found[0]


mean = statistics.geometric_mean


def col(
    header: str,
    field: str,
    pick: Callable[[list[Any]], Any] = first,
    text: Callable[[Any], str] | None = None,
    quickest: bool = False,
    **equal: Any,
) -> Column:
    """Column of a field: of the rows with these values the one that is picked.

    Args:
        text: text of a value; of ratios and other figures by default.
        quickest: True for the value of the quickest of the rows.
    """
    text = text or (ratio if "vs_" in field or field == "over" else figure)

    def cell(rows: Rows) -> str:
        found = [row for row in rows if all(row.get(name) == v for name, v in equal.items())]
        if quickest:
            found.sort(key=lambda row: row["gpu_us"])
        values = [row[field] for row in found if row.get(field) is not None]
        return text(pick(values)) if values else ""

    return header, cell


def across(rows: Rows, name: str, field: str, *how: Any) -> list[Column]:
    """A column for each value of a field."""
    found = distinct(row[name] for row in rows)
    ordered = sorted(found) if all(isinstance(value, int) for value in found) else found
    return [col(str(value), field, *how, **{name: value}) for value in ordered]


COUNT: Column = ("rows", lambda rows: str(len(rows)))


@dataclass(frozen=True)
class View:
    """A table of a suite.

    Attributes:
        title, columns: functions of the rows where these decide.
        of: condition for a row to count.
        more: fields to add to a row.
        text_columns: number of leading columns of text, if not that of the labels.
    """

    title: Any
    labels: Sequence[Label]
    columns: Any
    of: Callable[[Extra], Any] = lambda row: True
    more: Callable[[Extra], Extra] = lambda row: {}
    text_columns: int | None = None

    def __call__(self, results: Results) -> list[Part]:
        rows = [{**row, **self.more(row)} for row in extras(results) if self.of(row)]
        title, columns = (f(rows) if callable(f) else f for f in (self.title, self.columns))
        return pivot(title, rows, self.labels, columns, self.text_columns)


def speed_table(gpus: list[dict[str, Results]]) -> list[Part]:
    """One row a kind of arithmetic: x cuBLAS on squares, and on random problems, of each GPU."""
    rows: Rows = []
    for suites in gpus:
        gpu = short_name(next(iter(suites.values())))
        names = ("choice_regret", "choice_regret_half")
        random = [row for name in names for row in extras(suites.get(name))]
        rows += [{**row, "column": f"{gpu}, {row['m']}"} for row in square_rows(suites)]
        rows += [{**row, "column": f"{gpu}, random"} for row in random]
    shown = [row for row in rows if kind_of(row) in SPEED_KINDS and row["vs_cublas"]]
    columns = [
        col(name, "vs_cublas", mean if name.endswith("random") else max, column=name)
        for name in distinct(row["column"] for row in shown)
    ]
    shown.sort(key=lambda row: SPEED_KINDS.index(kind_of(row)))
    return pivot("", shown, [("x cuBLAS", kind_of)], columns)


def square_rows(suites: dict[str, Results]) -> Rows:
    """Own kernels on row-major squares: of the suite `gemm`, else of the suite `precision`."""
    others = (*OTHERS, "batch_invariant")
    rows = [row for row in extras(suites.get("gemm")) if row["implementation"] not in others]
    known = {kind_of(row) for row in rows}
    named = [{**row, "precision": row["way"]} for row in extras(suites.get("precision"))]
    rows += [row for row in named if row["data"] == "normal" and kind_of(row) not in known]
    rows = [row for row in rows if (row["batch"], row["arrangement"]) == (1, "row_row_row")]
    return [row for row in rows if is_square(row, *SPEED_SIZES)]


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
    numbers = {rung.name: rung.rung for rung in rungs()}
    links = {rung.name: f"[{rung.name}]({folder}{kernel_path(rung)})" for rung in rungs()}
    columns: list[Column] = []
    for size in LADDER_SIZES:
        columns.append(col(f"{size}, TFLOP/s", "tflops", m=size))
        columns.append(col("x cuBLAS", "vs_cublas", m=size))
    labels: list[Label] = [
        ("rung", lambda row: numbers.get(row["implementation"], "")),
        ("kernel", lambda row: links.get(row["implementation"], "cuBLAS")),
        ("arithmetic", lambda row: row["precision"] or row["dtype"]),
    ]
    columns.append(col("x CUDA C++", "vs_twin"))
    rows = rung_rows(results, *LADDER_SIZES)
    return pivot("The ladder on m = n = k:", rows, labels, columns)


CASE: list[Label] = [("dtype", kind_of), "epilogue", "m x n x k", "layout"]


def named(row: Extra) -> Extra:
    parts = row["implementation"], row["config"], row.get("way")
    other = BASELINES.get(row["implementation"])
    return {"kernel": " ".join(filter(None, parts)), "other": other, "own": other is None}


def epilogue_best(results: Results) -> list[Part]:
    """One row a case that others compute too: the best kernel of dxgemm against the best other."""

    def case(row: Extra) -> tuple[str, ...]:
        return tuple(text_of(label, row) for label in CASE)

    compared = {case(row) for row in extras(results) if row["implementation"] in BASELINES}
    columns = [
        col("best kernel", "kernel", text=str, quickest=True, own=True),
        col("best other", "other", text=str, quickest=True, own=False),
        col("TFLOP/s", "tflops", quickest=True, own=True),
        col("other", "tflops", quickest=True, own=False),
        col("x other", "vs_cublas", quickest=True, own=True),
        col("automatic choice", "vs_cublas", is_automatic=True),
        col("x no epilogue", "vs_plain", quickest=True, own=True),
    ]
    title = "Fused epilogues and reductions against the fastest other method:"
    return View(title, CASE, columns, lambda row: case(row) in compared, named, 6)(results)


def variant_text(row: Extra) -> str:
    """Name of a precision of the suite `precision`."""
    number = row["way"].removeprefix("emulated")
    is_count = row["way"] != number and number.isdigit()
    return f"{number} moduli" if is_count else row["way"].replace("cublas", "cuBLAS")


def precision_rates(results: Results) -> list[Part]:
    """TFLOP/s of each precision on large problems of normal values."""
    parts: list[Part] = []
    for dtype in distinct(row["dtype"] for row in extras(results)):
        rows = [r for r in extras(results) if (r["dtype"], r["data"]) == (dtype, "normal")]
        timed = {size_of(row) for row in rows if row["way"] == PREPARED}
        rows = [{**row, "name": variant_text(row)} for row in rows if size_of(row) in timed]
        columns = [
            *across(rows, "name", "tflops"),
            col("emulated x cuBLAS", "vs_cublas", way="emulated"),
            col("b prepared x cuBLAS", "vs_cublas", way=PREPARED),
        ]
        title = f"{dtype} products by precision, TFLOP/s:"
        parts += pivot(title, rows, ["m x n x k"], columns)
    return parts


def precision_refusals(results: Results) -> list[Part]:
    """Times of calls whose operands fail the validity check, against the native product."""

    def problem(row: Extra) -> tuple[str, ...]:
        return row["dtype"], row["data"], size_of(row)

    native = {problem(r): r["gpu_us"] for r in extras(results) if r["way"] == r["dtype"]}
    return View(
        "Calls whose operands fail the validity check, so that native arithmetic answers:",
        ["dtype", ("operands", lambda row: row["data"]), "m x n x k"],
        [
            col("emulated, us", "gpu_us"),
            ("native, us", lambda rows: figure(native[problem(rows[0])])),
            ("emulated / native", lambda rows: ratio(rows[0]["gpu_us"] / native[problem(rows[0])])),
        ],
        lambda row: row["way"] == "emulated" and row["is_native"] and problem(row) in native,
    )(results)


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


def distributed_columns(rows: Rows) -> list[Column]:
    """Time beside that of its parts and of its rivals, then hosts' times."""
    columns = [col("us", "us"), col("arithmetic", "gemm_us"), col("moves", "comm_us")]
    columns += [col("NCCL, cuBLAS", "nccl_us"), col("async-TP", "async_tp_us")]
    if all("host_us" in row for row in rows):
        columns += [col("host", "host_us"), col("host, NCCL", "nccl_host_us")]
        columns += [col("host, async-TP", "async_tp_host_us")]
    return [*columns, col("x rival", "vs_rival")]


def fp8_columns(rows: Rows) -> list[Column]:
    """TFLOP/s by kind of scales, and of sums of whole operands."""
    columns, measured = [], {(row["scales"], row["precision"]) for row in rows}
    for scales, text in (("tensor", "one"), ("row", "rows"), ("block", "blocks")):
        for precision, name in ((None, text), ("fast", f"{text}, fast")):
            if (scales, precision) in measured:
                of = {"scales": scales, "precision": precision}
                columns.append(col(f"{name}, TFLOP/s", "tflops", **of))
                columns.append(col("x cuBLASLt", "vs_rival", **of))
    return columns


LAYER_FIELDS = {"TFLOP/s": "tflops", "x plain": "vs_plain", "x torch": "vs_rival"}
LAYER_ENDS = {"one scale": "bias | gelu_tanh", "scales of rows": "bias | gelu_tanh | quantise_rows"}


def integers_of(row: Extra) -> str:
    return row["dtype"] + (f" modulo {row['modulus']}" if row.get("modulus") else "")


def integers(results: Results) -> list[Part]:
    """TOP/s of squares by operands and modulus, and at one size the rivals and the products."""
    compared = [row for row in extras(results) if is_square(row, COMPARED_SIZE)]
    form_of = {integers_of(row): row["form"] or "1 product" for row in compared}
    columns = [col(f"n = {n}", "tops", n=n) for n in INTEGER_SIZES]
    columns += [col("x CuPy", "vs_cupy", n=COMPARED_SIZE), col("x JAX", "vs_jax", n=COMPARED_SIZE)]
    return View(
        f"TOP/s of n x n matrices; products and rivals for n = {COMPARED_SIZE}:",
        [("operands", integers_of), ("computed as", lambda row: form_of[integers_of(row)])],
        columns,
        lambda row: is_square(row, *INTEGER_SIZES) and row["batch"] == 1,
    )(results)


def at(size: int) -> dict[str, int]:
    return dict.fromkeys("mnk", size)


# Tables of a suite on the pages of docs/ that concern it.
TABLES: dict[str, Sequence[Callable[[Results], list[Part]]]] = {
    "build_time": [View("Seconds:", ["step", "kernel"], [col("seconds", "seconds", max)])],
    "gemm": [View(
        "cuBLASDx pipelines on m = n = k, times cuBLAS:", ["arithmetic", "layout"],
        lambda rows: across(rows, "m", "vs_cublas", max),
        lambda row: row["implementation"] in ("pipeline", "pipeline_tma") and row["vs_cublas"]
        and row["precision"] in (None, "tf32") and row["batch"] == 1
        and is_square(row, *(2**power for power in range(9, 20))),
    )],
    "epilogue": [epilogue_best, View(
        "Time that an epilogue adds to its kernel, m = n = k = 4096, percent:", ["epilogue"],
        lambda rows: across(rows, "dtype", "cost", max, "{:.1f}".format),  # the dearest of layouts
        lambda row: "way" not in row and " | " not in row["epilogue"]
        and row["is_automatic"] and row["vs_plain"],
        lambda row: {"cost": 100 * (1 / row["vs_plain"] - 1)},
    )],
    "sm80": [View(
        "Squares, then geometric means over all measured sizes:", ["arithmetic"],
        [
            col("4096, TFLOP/s", "tflops", max, **at(4096)),
            col("x cuBLAS", "vs_cublas", quickest=True, **at(4096)),
            col("8192, TFLOP/s", "tflops", max, **at(8192)),
            col("x cuBLAS", "vs_cublas", quickest=True, **at(8192)),
            col("multiples of 8, x cuBLAS", "vs_cublas", mean, is_odd=False),
            col("odd sizes, x cuBLAS", "vs_cublas", mean, is_odd=True),
        ],
        lambda row: row["vs_cublas"],
        lambda row: {"is_odd": any(row[name] % 8 for name in "mnk")},
    )],
    "patch": [View(
        "Random products of torch:", ["arithmetic"],
        [
            ("products", COUNT[1]), col("x torch", "vs_rival", mean), col("least", "vs_rival", min),
            col("on the GPU alone", "gpu_vs_rival", mean), col("least", "gpu_vs_rival", min),
            col("by dxgemm", "routed", sum, str),
        ],
        lambda row: row["family"] == "random",
    ), View(
        "scikit-learn on patches of its photographs:", [("", lambda row: row["task"])],
        [col("ms", "before_ms"), col("patched", "ms"), col("calls by dxgemm", "routed", text=str)],
        lambda row: row["family"] != "random",
    )],
    "distributed": [View(
        lambda rows: f"Microseconds on {rows[0]['ranks']} GPUs of one host:",
        [("product", lambda row: f"`{row['operation']}`"), "dtype", "m x n x k", "method"],
        distributed_columns,
    )],
    "fp8": [View(
        "By scales:",
        ["m x n x k", ("layout", lambda row: " ".join(row["arrangement"].split("_")[:2]))],
        fp8_columns,
    )],
    "fp8_layers": [View(
        "Bias and gelu_tanh, with a result of float8:", ["m x n x k"],
        [
            col(f"{text}, {name}", field, epilogue=epilogue)
            for text, epilogue in LAYER_ENDS.items() for name, field in LAYER_FIELDS.items()
        ],
        lambda row: "groups" not in row,
    ), View(
        "Groups of rows, by scales:", ["groups", "m x n x k"],
        [
            col(f"{text}, {name}", LAYER_FIELDS[name], scales=scales)
            for scales, text in (("row", "rows"), ("block", "blocks"))
            for name in ("TFLOP/s", "x torch")
        ],
        lambda row: "groups" in row,
    )],
    "fp8_accuracy": [View(
        "float8: bits of |a| |b| that are right in every element of 64 x 128:", ["k"],
        [
            col(f"{d}, {text}{name}", "kept_bits", data=d, precision=p, implementation=made)
            for d in ("normal", "uniform") for p, text in ((None, "promoted"), ("fast", "fast"))
            for made, name in (("automatic", ""), ("torch._scaled_mm", ", cuBLASLt"))
        ],
    )],
    "accuracy": [View(
        lambda rows: f"Largest error of an element up to k = {max(row['k'] for row in rows)}, in "
        "eps |A| |B|, and the largest share of what the tests allow:",
        [("arithmetic", accuracy_text)],
        [
            col("automatic choice", "max_error", max, implementation="automatic"),
            col("cuBLAS", "max_error", max, implementation="cublas"),
            col("any kernel", "max_error", max, is_own=True),
            col("of what is allowed", "ratio", max, is_own=True),
        ],
        more=lambda row: {"is_own": row["implementation"] != "cublas"},
    )],
    "integers": [integers],
    "device": [View(
        "One product:",
        [
            "dtype", "m x n x k", ("tile", lambda row: f"{row['tile_m']} x {row['tile_n']}"),
            ("instruction", lambda row: row["instruction"] or ""),
        ],
        [
            col("us", "gpu_us"), col("x gemm", "vs_gemm"),
            col("in turn, x gemm", "vs_gemm", implementation="tiles in turn"),
        ],
        lambda row: "tile_m" in row,
    ), View(
        "Two products, x two calls:",
        ["m", ("k and n", lambda row: row["n"]), ("columns between", lambda row: row["k1"])],
        lambda rows: across(rows, "implementation", "vs_two_calls"),
        lambda row: row.get("vs_two_calls") is not None,
    )],
    "inner": [View(
        "Other times over dxgemm's:",
        [
            ("function", lambda row: row["inner"]), "dtype", "m x n x k",
            ("layout, batch", lambda row: f"{row['arrangement']}, {row['batch']}"),
        ],
        [
            col("us", "gpu_us"), col("10^12 pairs/s", "tpairs_per_s"), col("x bound", "vs_bound"),
            col("x torch.cdist", "vs_cdist"), col("x torch.compile", "vs_compiled"),
            col("x float32", "vs_float32"), col("x with argmin", "vs_plain"),
        ],
    )],
    "precision": [precision_rates, precision_refusals],
}  # fmt: skip
