"""What docs/reliability.md shows of committed runs: tests by group, sanitizer, soak test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from result_files import RESULTS
from tables import Part, Table

# Test files by what they try; what is in none of them is tooling.
GROUPS = {
    "every implementation, against the contract": (
        "small_shapes", "tile_edges", "layouts", "real_sizes", "huge", "empty", "aliasing",
        "alignment", "libraries", "adapters", "errors", "plan", "hopper", "small_batch", "slices",
        "grouped",
    ),
    "numbers: exact data, grading, special values": (
        "oracle", "exactness", "special_values", "integers", "precision", "emulation",
        "emulated_float32", "emulated_float64", "elementary",
    ),
    "epilogues and reductions": ("epilogue_functions", "epilogues", "reductions", "torch"),
    "determinism, several GPUs": ("deterministic", "devices"),
    "streams and CUDA graphs": ("streams", "graphs"),
    "faults of the driver": ("driver_errors", "gpu_status"),
    "builds, processes, fallbacks": ("builds", "fallback", "compiler", "cublasdx"),
    "the cache and its security": ("cache", "cache_security"),
}  # fmt: skip
OUTCOMES = ("passed", "failed", "error", "skipped")
SANITIZER_COUNTS = ("cases", "refused", "reports")
SORTS = {
    "kind": "arithmetic",
    "implementation": "kernel",
    "extra": "epilogue or reduction",
}  # of problems
NO_TESTS = "No run of the tests is committed yet; `pytest --counts FILE` makes one."
NO_SANITIZER = "No run is committed yet; `make sanitize` makes one on a GPU."
NO_SOAK = "No run is committed yet; `make soak` makes one on a GPU."


def load_runs(name: str, root: Path = RESULTS) -> list[dict[str, Any]]:
    """The committed runs of that name, one for each GPU, and one for the simulator."""
    return [json.loads(path.read_text()) for path in sorted(root.glob(f"*/{name}.json"))]


def machine(run: dict[str, Any]) -> str:
    """Where, when and of what: as a sentence."""
    gpu = run["machine_info"]["gpu"]
    where = f"{gpu['name']}, driver {gpu['driver']}" if gpu else "No GPU, numba's simulator"
    commit = run["commit_info"]
    changed = " with changes" if commit.get("dirty") else ""
    return f"{where}, {run['date']}, commit {commit['id'][:12]}{changed}"


def tests_text(runs: list[dict[str, Any]]) -> list[Part]:
    """A table a run, one row a group.

    What a later run replaced is named: `run_again` has such files by commit.
    """
    parts: list[Part] = []
    for run in runs:
        lines = []
        for group, names in GROUPS.items():
            counts = [run["files"].get(f"test_{name}.py", {}) for name in names]
            lines.append([group, *(str(sum(c.get(o, 0) for c in counts)) for o in OUTCOMES)])
        again = "".join(
            f", {', '.join(files)} of commit {commit[:12]}"
            for commit, files in run.get("run_again", {}).items()
        )
        title = f"{machine(run)}{again}; {run['contract_cases']:,} cases of the contract:"
        parts.append(Table(title, ["tests of", *OUTCOMES], lines))
    return parts or [NO_TESTS]


def sanitizer_text(runs: list[dict[str, Any]]) -> list[Part]:
    """A table a run, one row a lane."""
    parts: list[Part] = []
    for run in runs:
        lines = []
        for lane, done in run["lanes"].items():
            outcomes = done["subjects"].values()
            counts = [sum(outcome[key] for outcome in outcomes) for key in SANITIZER_COUNTS]
            failed = sum(bool(outcome["failure"]) for outcome in outcomes)
            figures = [f"{count:,}" for count in (len(outcomes), *counts, failed)]
            lines.append([lane, *figures, done["date"], done["commit"][:12]])
        header = ["lane", "subjects", *SANITIZER_COUNTS, "failed", "date", "commit"]
        gpu = run["machine_info"]["gpu"]
        parts.append(Table(f"{gpu['name']}, driver {gpu['driver']}:", header, lines))
        parts += [
            f"Failed in {lane}: {subject}, {outcome['failure']}."
            for lane, done in run["lanes"].items()
            for subject, outcome in done["subjects"].items()
            if outcome["failure"]
        ]
    return parts or [NO_SANITIZER]


def soak_text(runs: list[dict[str, Any]]) -> list[Part]:
    """A summary of each run, and how many problems of each sort there were."""
    parts: list[Part] = []
    for run in runs:
        memory = run["memory_bytes"]
        mebibytes = (f"{memory[when] / 2**20:.0f}" for when in ("start", "most", "end"))
        failure = run["failure"].partition("\n")[0]
        figures = [
            f"{run['seconds'] / 60:.1f}",
            f"{run['problems']:,}",
            f"{run['calls']:,}",
            str(run["kernels"]),
            str(run["threads"]),
            str(run["streams"]),
            *mebibytes,
        ]
        header = ["seed", "minutes", "problems", "calls", "listed kernels", "threads", "streams"]
        header += ["GPU memory, MiB: start", "most", "end", "wrong"]
        line = [str(run["seed"]), *figures, failure or "none"]
        parts.append(Table(f"{machine(run)}:", header, [line]))
        for key, title in SORTS.items():
            lines = [[name, f"{count:,}"] for name, count in run[f"by_{key}"].items()]
            parts.append(Table(f"By {title}:", [title, "problems"], lines))
    return parts or [NO_SOAK]
