"""Committed runs of the sanitizer, the soak test and the tests of other libraries as tables."""

import json
import re
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from result_files import RESULTS, Extra
from tables import Column, Part, pivot

from dxgemm.cli.counters import busiest_pipe

TESTED = ("torch", "cupy-cuda12x", "cupy-cuda13x", "numpy")  # libraries of the tests, and CuPy
ERROR = re.compile("an error of .*, more than .*")  # and no other than that of a sample
WHEN: list[Column] = [
    ("date", lambda rows: rows[0]["date"]),
    ("commit", lambda rows: rows[0]["commit"][:12]),
]


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


def behind_tables(root: Path = RESULTS) -> list[Part]:
    """Counters of the cases in which a rival is faster: dxgemm's figure before the rival's."""
    parts: list[Part] = []
    for path in sorted(root.glob("*/behind_counters.json")):
        found = json.loads(path.read_text())
        for case, entry in found["cases"].items():
            own, rival = (max(entry[who], key=itemgetter("time_ns")) for who in ("own", "rival"))
            entry |= {"case": case, "main": (own, rival)}
        title = f"{found['gpu']['name']}, commit {found['commit_info']['id'][:12]}: dxgemm / rival"
        parts += pivot(title, found["cases"].values(), ["case", "why"], BEHIND)
    return parts


def both(header: str, text: Callable[[Extra], str]) -> Column:
    """Figures of the longest kernels of both calls."""
    return header, lambda rows: " / ".join(map(text, rows[0]["main"]))


BEHIND: list[Column] = [
    ("us", lambda rows: f"{rows[0]['own_us']:.1f} / {rows[0]['rival_us']:.1f}"),
    both("DRAM, % of peak", lambda kernel: f"{kernel['dram_percent']:.0f}"),
    both("from L2, MB", lambda kernel: f"{kernel['l2_read_bytes'] / 1e6:.0f}"),
    both("busiest unit, %", lambda kernel: "{} {:.0f}".format(*busiest_pipe(kernel))),
    both("waves", lambda kernel: f"{kernel['waves']:.1f}"),
]


def subjects(run: dict[str, Any], groups: str) -> list[Extra]:
    """A row a subject of each group, which is named in `group`."""
    return [
        {**outcome, "group": name, "subject": subject, "date": of["date"], "commit": of["commit"]}
        for name, of in run[groups].items()
        for subject, outcome in of["subjects"].items()
    ]


def total(header: str, field: str) -> Column:
    """Sum of a field: of numbers, lengths of lists, counts by reason; or of what is not empty."""

    def size(value: Any) -> int:
        if isinstance(value, dict):
            return sum(value.values())
        return value if isinstance(value, int) else len(value)

    return header, lambda rows: f"{sum(size(row.get(field, 0)) for row in rows):,}"


def driver(run: dict[str, Any]) -> str:
    gpu = run["machine_info"]["gpu"]
    return f"{gpu['name']}, driver {gpu['driver']}"


def drop_in(run: dict[str, Any]) -> list[Part]:
    """One row a suite; then why tests were skipped, and what failed."""
    rows = subjects(run, "suites")
    gpu, packages = run["machine_info"]["gpu"], run["machine_info"].get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in packages if name in TESTED)
    fields = {name: name for name in ("passed", "skipped", "failed")}
    fields |= {"calls by dxgemm": "routed", "calls that fell through": "fell_through"}
    columns = [*(total(header, field) for header, field in fields.items()), *WHEN]
    title = ", ".join(filter(None, (gpu.get("name"), versions))) + ":"
    parts = pivot(title, rows, [("tests of", lambda row: row["group"])], columns)
    skipped: Counter[str] = Counter()
    failed: dict[str, list[str]] = {}
    for row in rows:
        for why, count in row["skipped"].items():
            skipped[f"{row['group']}: {ERROR.sub('an error beyond the bound', why)}"] += count
        for text in row["failed"]:
            reasons = [why for part, why in run["explained"].items() if part in text]
            failed.setdefault(" ".join(reasons) or text, []).append(text)
    if skipped:
        parts.append("\n".join(f"- Skipped, {why}: {n:,}" for why, n in skipped.most_common(12)))
    for why, texts in failed.items():
        more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
        parts.append(f"Failed: {texts[0]}{more}. {why if why != texts[0] else ''}".rstrip())
    return parts


def sanitizer(run: dict[str, Any]) -> list[Part]:
    """One row a lane, and what failed."""
    rows = [{**row, "failed": int(bool(row["failure"]))} for row in subjects(run, "lanes")]
    names = ("cases", "refused", "reports", "failed")
    columns: list[Column] = [("subjects", lambda rows: f"{len(rows):,}")]
    columns += [*(total(name, name) for name in names), *WHEN]
    return [
        *pivot(f"{driver(run)}:", rows, [("lane", lambda row: row["group"])], columns),
        *(f"Failed in {r['group']}: {r['subject']}, {r['failure']}." for r in rows if r["failure"]),
    ]


def soak(run: Extra) -> list[Part]:
    row = {"seed": run["seed"], "minutes": f"{run['seconds'] / 60:.1f}"}
    row |= {name: f"{run[name]:,}" for name in ("problems", "calls")}
    row |= {"listed kernels": run["kernels"], "threads": run["threads"], "streams": run["streams"]}
    for header, when in (("GPU memory, MiB: start", "start"), ("most", "most"), ("end", "end")):
        row[header] = f"{run['memory_bytes'][when] / 2**20:.0f}"
    row["wrong"] = run["failure"].partition("\n")[0] or "none"
    title = f"{driver(run)}, {run['date']}, commit {run['commit_info']['id'][:12]}:"
    return pivot(title, [row], list(row), text_columns=1)
