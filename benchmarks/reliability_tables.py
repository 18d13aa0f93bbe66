"""Committed runs of the sanitizer and the soak test as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from result_files import RESULTS
from tables import Part, Table

SANITIZER_COUNTS = ("cases", "refused", "reports")
NO_SANITIZER = "No run is committed yet; `make sanitize` makes one on a GPU."
NO_SOAK = "No run is committed yet; `make soak` makes one on a GPU."


def load_runs(name: str, root: Path = RESULTS) -> list[dict[str, Any]]:
    """The committed runs of that name, one for each GPU."""
    return [json.loads(path.read_text()) for path in sorted(root.glob(f"*/{name}.json"))]


def machine(run: dict[str, Any]) -> str:
    """GPU, driver, date and commit of a run."""
    gpu, commit = run["machine_info"]["gpu"], run["commit_info"]["id"][:12]
    return f"{gpu['name']}, driver {gpu['driver']}, {run['date']}, commit {commit}"


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
    """A table a run."""
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
    return parts or [NO_SOAK]
