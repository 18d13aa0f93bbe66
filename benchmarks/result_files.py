"""The committed results: pytest-benchmark's JSON, by GPU and suite, and what its rows say."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
SUITES = (
    "ladder",
    "host_overhead",
    "build_time",
    "gemm",
    "epilogue",
    "batched",
    "choice_regret",
    "sm80",
    "half",
    "skinny",
    "symmetric",
    "triangular",
    "patch",
    "complex",
    "integers",
    "einsum",
    "inner",
    "fp8",
    "fp8_layers",
    "fp8_accuracy",
    "device",
    "precision",
    "accuracy",
)
DEPTH_LINES = 256  # m and n where the suite `precision` varies k
OTHERS = ("cublas", "torch", "nvmath", "nvmath.device")  # of suite gemm, besides dxgemm's own
# Of each benchmark, and of its `stats`.
KEPT = ("extra_info", "fullname", "stats")
KEPT_STATS = ("max", "median", "min", "rounds")
NAMED_PACKAGES = ("numba-cuda", "cuda-core", "cupy-cuda12x", "cupy-cuda13x", "torch")

Results = dict[str, Any]  # pytest-benchmark's JSON
Extra = dict[str, Any]  # extra_info of one benchmark


def load_results(root: Path = RESULTS) -> list[dict[str, Results]]:
    """The results of each GPU by suite, in the order of `SUITES`; others follow."""
    gpus = []
    for folder in sorted(root.glob("*/")):
        files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
        suites = {name: results for name, results in files.items() if "benchmarks" in results}
        known = [suite for suite in SUITES if suite in suites]
        gpus.append({suite: suites[suite] for suite in distinct([*known, *suites])})
    return [suites for suites in gpus if suites]


def pruned(results: Results) -> Results:
    """The results without raw rounds, options and repeated names; figures are unchanged."""
    benchmarks = []
    for benchmark in results["benchmarks"]:
        kept = {key: benchmark[key] for key in KEPT}
        stats = benchmark["stats"]
        kept["stats"] = {key: stats[key] for key in KEPT_STATS if key in stats}
        benchmarks.append(kept)
    return {**results, "benchmarks": benchmarks}


def result_text(results: Results) -> str:
    """JSON with a line for each benchmark, so that a diff shows which of them changed."""
    rows = [json.dumps(row, sort_keys=True) for row in results["benchmarks"]]
    head = {key: value for key, value in sorted(results.items()) if key != "benchmarks"}
    opening = json.dumps(head, indent=1).removesuffix("\n}")
    return f'{opening},\n "benchmarks": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def extras(results: Results) -> list[Extra]:
    return [benchmark["extra_info"] for benchmark in results["benchmarks"]]


def distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def gpu_name(suites: dict[str, Results]) -> str:
    name: str = next(iter(suites.values()))["machine_info"]["gpu"]["name"]
    return name


def source(results: Results) -> str:
    """Driver, CPU, versions and commit of one file."""
    machine = results["machine_info"]
    packages = machine["packages"]
    facts = [f"Driver {machine['gpu']['driver']}", machine["cpu"]["brand_raw"]]
    facts += [f"Python {machine['python_version']}"]
    facts += [f"{name} {packages[name]}" for name in NAMED_PACKAGES if name in packages]
    commit = results["commit_info"]
    facts += [f"commit {commit['id'][:12]}{' with changes' if commit.get('dirty') else ''}"]
    return ", ".join(facts) + "."


def arithmetic(row: Extra) -> str:
    """The precision that was permitted, else the dtype."""
    return row["precision"] or row["dtype"]


def size_of(row: Extra) -> str:
    return f"{row['m']} x {row['n']} x {row['k']}"


def is_square(row: Extra, *sizes: int) -> bool:
    """Tell whether m = n = k, of one of the sizes if some are given."""
    return row["m"] == row["n"] == row["k"] and (not sizes or row["m"] in sizes)


def kind_text(dtype: str, precision: str | None) -> str:
    """Name of an arithmetic: `"float32"`, `"tf32"`, `"emulated float64, 14 moduli"`."""
    if precision in (None, "tf32"):
        return precision or dtype
    if precision == "3m":
        return f"{dtype} by three products"
    count = precision.removeprefix("emulated")
    return f"emulated {dtype}" + (f", {count} moduli" if count else "")


def kind_of(row: Extra) -> str:
    """The arithmetic of a row, and the dtype of the result where it is another."""
    result = row.get("result_dtype")
    text = kind_text(row["dtype"], row.get("precision"))
    return f"{text} to {result}" if result else text


ACCURACY_KINDS = {"emulated": "emulated float32", "emulated_float64": "emulated float64"}


def accuracy_text(kind: str) -> str:
    """Name of an arithmetic of the suite `accuracy`."""
    return ACCURACY_KINDS.get(kind, kind.replace("_", " "))
