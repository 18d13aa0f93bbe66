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
    "precision",
    "accuracy",
)
OTHERS = ("cublas", "torch", "nvmath", "nvmath.device")  # of suite gemm, besides dxgemm's own
NAMED_PACKAGES = ("numba-cuda", "cuda-core", "cupy-cuda12x", "cupy-cuda13x", "torch")

Results = dict[str, Any]  # pytest-benchmark's JSON
Extra = dict[str, Any]  # extra_info of one benchmark


def load_results(root: Path = RESULTS) -> list[dict[str, Results]]:
    """The files of each GPU, by suite."""
    gpus = []
    for folder in sorted(root.glob("*/")):
        files = {suite: folder / f"{suite}.json" for suite in SUITES}
        gpus.append({s: json.loads(f.read_text()) for s, f in files.items() if f.exists()})
    return [suites for suites in gpus if suites]


def extras(results: Results) -> list[Extra]:
    return [benchmark["extra_info"] for benchmark in results["benchmarks"]]


def distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def gpu_name(suites: dict[str, Results]) -> str:
    name: str = next(iter(suites.values()))["machine_info"]["gpu"]["name"]
    return name


def source(results: Results) -> str:
    """What one file was measured with: driver, CPU, versions and commit."""
    machine = results["machine_info"]
    packages = machine["packages"]
    facts = [f"Driver {machine['gpu']['driver']}", machine["cpu"]["brand_raw"]]
    facts += [f"Python {machine['python_version']}"]
    facts += [f"{name} {packages[name]}" for name in NAMED_PACKAGES if name in packages]
    commit = results["commit_info"]
    facts += [f"commit {commit['id'][:12]}{' with changes' if commit.get('dirty') else ''}"]
    return ", ".join(facts) + "."


def sources(suites: dict[str, Results]) -> list[str]:
    """The same of a GPU's suites: one text where all agree, else one for those that do."""
    suites_of: dict[str, list[str]] = {}
    for suite, results in suites.items():
        suites_of.setdefault(source(results), []).append(suite)
    if len(suites_of) == 1:
        return list(suites_of)
    return [f"{', '.join(names)}: {text}" for text, names in suites_of.items()]


def is_plain(row: Extra) -> bool:
    """Whether a dtype was computed in its own arithmetic, to the dtype that goes with it."""
    return not (row.get("precision") or row.get("result_dtype"))


def arithmetic(row: Extra) -> str:
    """What products are computed in: `"float32"`, or `"tf32"` where that was permitted."""
    return row["precision"] or row["dtype"]


def size_of(row: Extra) -> str:
    return f"{row['m']} x {row['n']} x {row['k']}"


def arithmetic_to(row: Extra) -> str:
    """The dtype, and that of the result where it is another."""
    return f"{row['dtype']} to {row['result_dtype']}" if row["result_dtype"] else row["dtype"]


def asked_arithmetic(row: Extra) -> str:
    """The dtype, and the precision if one was asked for."""
    precision = row.get("precision")
    return f'{row["dtype"]}, precision="{precision}"' if precision else str(row["dtype"])


def is_reduction(row: Extra) -> bool:
    return "way" in row
