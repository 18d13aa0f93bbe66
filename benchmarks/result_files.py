"""The committed results: pytest-benchmark's JSON, by GPU and suite, and what its rows say."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from provenance import REPOSITORY, gpu_slug

RESULTS = REPOSITORY / "benchmarks" / "results"
SUITES = (
    "ladder", "host_overhead", "build_time", "gemm", "epilogue", "batched", "choice_regret",
    "choice_regret_half", "sm80", "half", "skinny", "symmetric", "triangular", "patch", "complex",
    "integers", "einsum", "inner", "fp8", "fp8_layers", "fp8_accuracy", "device", "precision",
    "accuracy",
)  # fmt: skip
OTHERS = ("cublas", "torch", "nvmath", "nvmath.device")  # of suite gemm, besides dxgemm's own
# Of each benchmark, and of its `stats`.
KEPT, KEPT_STATS = ("extra_info", "fullname", "stats"), ("max", "median", "min", "rounds")
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


def save(suite: str, results: Results, root: Path = RESULTS) -> Path:
    """Write a suite's JSON into the folder of the GPU it names; returns the file."""
    path = root / gpu_slug(results["machine_info"]["gpu"]["name"]) / f"{suite}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result_text(results))
    return path


def result_text(results: Results) -> str:
    """JSON with a line for each benchmark, without what nobody reads: raw rounds, options."""
    rows = []
    for benchmark in results["benchmarks"]:
        kept, stats = {key: benchmark[key] for key in KEPT}, benchmark["stats"]
        kept["stats"] = {key: stats[key] for key in KEPT_STATS if key in stats}
        rows.append(json.dumps(kept, sort_keys=True))
    head = {key: value for key, value in sorted(results.items()) if key != "benchmarks"}
    opening = json.dumps(head, indent=1).removesuffix("\n}")
    return f'{opening},\n "benchmarks": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def extras(results: Results | None) -> list[Extra]:
    return [benchmark["extra_info"] for benchmark in results["benchmarks"]] if results else []


def distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def gpu_name(results: Results) -> str:
    name: str = results["machine_info"]["gpu"]["name"]
    return name


def short_name(results: Results) -> str:
    """`NVIDIA H100 80GB HBM3` -> `H100`."""
    return gpu_name(results).split()[1]


def source(results: Results) -> str:
    """Driver, CPU, versions and commit of one file."""
    machine, commit = results["machine_info"], results["commit_info"]
    packages = machine["packages"]
    facts = [f"Driver {machine['gpu']['driver']}", machine["cpu"]["brand_raw"]]
    facts += [f"Python {machine['python_version']}"]
    facts += [f"{name} {packages[name]}" for name in NAMED_PACKAGES if name in packages]
    facts += [f"commit {commit['id'][:12]}{' with changes' if commit.get('dirty') else ''}"]
    return ", ".join(facts) + "."


def is_square(row: Extra, *sizes: int) -> bool:
    """Tell whether m = n = k, of one of the sizes if some are given."""
    return row["m"] == row["n"] == row["k"] and (not sizes or row["m"] in sizes)
