"""Committed runs of the sanitizer, the soak test and the tests of other libraries as tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from result_files import RESULTS, Extra
from tables import Column, Part, get, pivot

TESTED = ("torch", "cupy-cuda12x", "cupy-cuda13x", "numpy")  # libraries of the tests, and CuPy
ERROR = re.compile("an error of .*, more than .*")  # and no other than that of a sample
SANITIZER_COUNTS = ("cases", "refused", "reports")


def reliability_tables(root: Path = RESULTS) -> list[Part]:
    """The committed runs, one for each GPU."""
    parts: list[Part] = []
    for title, name, command, tables in (
        ("Sanitizer", "sanitizer", "sanitize", sanitizer),
        ("Soak", "soak", "soak", soak),
        ("Tests of torch, NumPy and CuPy", "drop_in", "drop-in", drop_in),
    ):
        runs = [json.loads(path.read_text()) for path in sorted(root.glob(f"*/{name}.json"))]
        none = f"No run is committed yet; `make {command}` makes one on a GPU."
        parts += [f"### {title}", *([p for run in runs for p in tables(run)] or [none])]
    return parts


def drop_in(run: dict[str, Any]) -> list[Part]:
    """One row a suite; then why tests were skipped, and what failed."""

    def total(field: str) -> Any:
        return lambda rows: f"{sum(_size(row.get(field, 0)) for row in rows):,}"

    rows = [
        {**outcome, "suite": suite, "date": of["date"], "commit": of["commit"]}
        for suite, of in run["suites"].items()
        for outcome in of["subjects"].values()
    ]
    gpu, packages = run["machine_info"]["gpu"], run["machine_info"].get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in packages if name in TESTED)
    labels = {"passed": "passed", "skipped": "skipped", "failed": "failed"}
    labels |= {"routed": "calls by dxgemm", "fell_through": "calls that fell through"}
    columns: list[Column] = [(label, total(field)) for field, label in labels.items()]
    columns += [("date", lambda rows: rows[0]["date"])]
    columns += [("commit", lambda rows: rows[0]["commit"][:12])]
    title = ", ".join(filter(None, (gpu.get("name"), versions))) + ":"
    parts = pivot(title, rows, [("tests of", get("suite"))], columns)
    skipped: Counter[str] = Counter()
    for row in rows:
        for why, count in row["skipped"].items():
            skipped[f"{row['suite']}: {ERROR.sub('an error beyond the bound', why)}"] += count
    if skipped:
        parts.append("\n".join(f"- Skipped, {why}: {n:,}" for why, n in skipped.most_common(12)))
    failed: dict[str, list[str]] = {}
    for text in (text for row in rows for text in row["failed"]):
        reasons = [why for part, why in run["explained"].items() if part in text]
        failed.setdefault(" ".join(reasons) or text, []).append(text)
    for why, texts in failed.items():
        more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
        parts.append(f"Failed: {texts[0]}{more}. {why if why != texts[0] else ''}".rstrip())
    return parts


def _size(value: Any) -> int:
    """Number of tests: a number, a list of them, or their counts by reason."""
    if isinstance(value, dict):
        return sum(value.values())
    return len(value) if isinstance(value, list) else value


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
