"""Committed runs of the sanitizer and the soak test as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from result_files import RESULTS, Extra
from tables import Column, Part, get, pivot

SANITIZER_COUNTS = ("cases", "refused", "reports")


def reliability_tables(root: Path = RESULTS) -> list[Part]:
    """The committed runs, one for each GPU."""
    parts: list[Part] = []
    for name, command, tables in (("sanitizer", "sanitize", sanitizer), ("soak", "soak", soak)):
        runs = [json.loads(path.read_text()) for path in sorted(root.glob(f"*/{name}.json"))]
        none = f"No run is committed yet; `make {command}` makes one on a GPU."
        parts += [f"### {name.capitalize()}", *([p for run in runs for p in tables(run)] or [none])]
    return parts


def sanitizer(run: dict[str, Any]) -> list[Part]:
    """One row a lane, and what failed."""
    rows = [
        {**outcome, "lane": lane, "subject": subject, "date": of["date"], "commit": of["commit"]}
        for lane, of in run["lanes"].items()
        for subject, outcome in of["subjects"].items()
    ]
    sums: list[Column] = [
        (name, lambda rows, name=name: f"{sum(row[name] for row in rows):,}")
        for name in SANITIZER_COUNTS
    ]
    gpu = run["machine_info"]["gpu"]
    return [
        *pivot(
            f"{gpu['name']}, driver {gpu['driver']}:",
            rows,
            [("lane", get("lane"))],
            [
                ("subjects", lambda rows: f"{len(rows):,}"),
                *sums,
                ("failed", lambda rows: f"{sum(bool(row['failure']) for row in rows):,}"),
                ("date", lambda rows: rows[0]["date"]),
                ("commit", lambda rows: rows[0]["commit"][:12]),
            ],
        ),
        *(f"Failed in {r['lane']}: {r['subject']}, {r['failure']}." for r in rows if r["failure"]),
    ]


def soak(run: Extra) -> list[Part]:
    gpu, commit = run["machine_info"]["gpu"], run["commit_info"]["id"][:12]
    labels = [
        ("seed", get("seed")),
        ("minutes", lambda run: f"{run['seconds'] / 60:.1f}"),
        ("problems", lambda run: f"{run['problems']:,}"),
        ("calls", lambda run: f"{run['calls']:,}"),
        ("listed kernels", get("kernels")),
        ("threads", get("threads")),
        ("streams", get("streams")),
        *(
            (header, lambda run, when=when: f"{run['memory_bytes'][when] / 2**20:.0f}")
            for header, when in (
                ("GPU memory, MiB: start", "start"),
                ("most", "most"),
                ("end", "end"),
            )
        ),
        ("wrong", lambda run: run["failure"].partition("\n")[0] or "none"),
    ]
    title = f"{gpu['name']}, driver {gpu['driver']}, {run['date']}, commit {commit}:"
    return pivot(title, [run], labels, [], text_columns=1)
