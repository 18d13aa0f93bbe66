"""The rungs as the suite `ladder` measured them at m = n = k = 4096, with their configs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import dxgemm
from dxgemm.choice.registry import find_implementation

REPOSITORY = Path(__file__).resolve().parent.parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "nvidia-h200"
SIZE = 4096


@dataclass(frozen=True)
class Measured:
    """One rung in one arithmetic.

    Attributes:
        name, rung: of the implementation.
        kind: the arithmetic: the dtype, or "tf32".
        config: the kernel file's own Config.
        row: extra_info of the benchmark.
        counters: of the GPU; empty where there are none.
    """

    name: str
    rung: int
    kind: str
    config: Any
    row: dict[str, Any]
    counters: dict[str, float]

    @property
    def tflops(self) -> float:
        rate: float = self.row["tflops"]
        return rate


def load_rows() -> list[dict[str, Any]]:
    """Rows of the suite; empty until results are committed."""
    path = RESULTS / "ladder.json"
    return (
        [b["extra_info"] for b in json.loads(path.read_text())["benchmarks"]]
        if path.exists()
        else []
    )


def load_measured() -> list[Measured]:
    """In order of rung and arithmetic."""
    rungs = {i.name: i for i in dxgemm.implementations() if i.rung is not None}
    counters = load_counters()
    found = []
    for row in load_rows():
        if (row["m"], row["n"], row["k"]) != (SIZE, SIZE, SIZE):
            continue
        rung = rungs.get(row["implementation"])
        if rung is None:
            continue
        configs = {str(config): config for config in kernel_file(rung.name).KERNEL.configs}
        if row["config"] not in configs:
            raise ValueError(
                f"{rung.name} was measured with a config it no longer has: {row['config']}; run "
                "python benchmarks/run.py --suite ladder"
            )
        kind = row["precision"] or row["dtype"]
        key = f"{rung.name} {kind}"
        config = configs[row["config"]]
        number = rung.rung
        found.append(Measured(rung.name, number, kind, config, row, counters.get(key, {})))
    return sorted(found, key=lambda point: point.rung)


def kernel_file(name: str) -> Any:
    return import_module(find_implementation(name).module)


def load_counters() -> dict[str, dict[str, float]]:
    """Counters by rung and arithmetic."""
    path = RESULTS / "ladder_counters.json"
    if not path.exists():
        return {}
    counters: dict[str, dict[str, float]] = json.loads(path.read_text())["counters"]
    return counters


def commits() -> str:
    """Sentence that names the measured commits."""
    names = {"times": "ladder.json", "counters of ncu": "ladder_counters.json"}
    paths = {what: RESULTS / name for what, name in names.items()}
    found = {
        what: json.loads(path.read_text())["commit_info"]["id"][:12]
        for what, path in paths.items()
        if path.exists()
    }
    return "Measured: " + ", ".join(f"{what} of commit {of}" for what, of in found.items()) + "."
