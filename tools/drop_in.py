"""Tests of torch and of NumPy, which nobody wrote for dxgemm, on its kernels by `patch(only=None)`.

    python tools/drop_in.py                    # on a GPU, with torch and CuPy
    python tools/drop_in.py --out FILE         # for docs/reliability.md
    python tools/drop_in.py --cupy-tests DIR   # with tests/cupy_tests of CuPy's source package

torch's samples of its products (torch_samples.py), and NumPy's and CuPy's tests of matmul, einsum
and linalg with CuPy's arrays (numpy_tests.py). What the library's own kernels do not pass is
skipped, so that a failure is one of dxgemm. Subjects are divided among processes, which build
kernels side by side.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import numpy_tests
import torch_samples
from recorded_runs import run_info, write_run

EXPLAINED: dict[str, str] = {}  # by a part of a failure's text: why it is none of dxgemm


def compute(suite: str, *subject: str) -> dict[str, Any]:
    """Run one subject of a suite."""
    if suite == "torch":
        return torch_samples.run(*subject)
    if suite == "numpy":
        return numpy_tests.run(*subject)
    folder, path, chosen = subject
    return numpy_tests.compare(Path(folder, path), chosen)


def list_subjects(suites: list[str], cupy_tests: str | None) -> list[tuple[str, ...]]:
    """Subjects of suites, those that take long first."""
    found: dict[str, Iterable[tuple[str, ...]]] = {
        "numpy": numpy_tests.SUBJECTS,
        "cupy": [(cupy_tests, *of) for of in numpy_tests.CUPY_SUBJECTS if cupy_tests],
        "torch": itertools.product(torch_samples.OPERATORS, torch_samples.DTYPES),
    }
    return [(suite, *subject) for suite in found if suite in suites for subject in found[suite]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--suite", action="append", choices=("torch", "numpy", "cupy"), help="default: all"
    )
    parser.add_argument("--cupy-tests", metavar="DIR", help="folder of CuPy's tests")
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="subjects whose name has this text")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    suites = arguments.suite or ["torch", "numpy", "cupy"]
    begin = time.perf_counter()
    subjects = list_subjects(suites, arguments.cupy_tests)
    subjects = [subject for subject in subjects if arguments.only in " ".join(subject)]
    pool = ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn"))
    outcomes: dict[str, dict[str, Any]] = {}
    with pool:
        futures = {pool.submit(compute, *subject): subject for subject in subjects}
        for future in as_completed(futures):
            suite, *subject = futures[future]
            try:
                found = future.result()
            except Exception as error:
                found = {"passed": 0, "skipped": {}, "failed": [f"{subject}: {error!r}"]}
            outcomes.setdefault(suite, {})[" ".join(subject[-2:])] = found
            if arguments.out is not None:
                keep(arguments.out, outcomes)  # a run that is cut leaves what it has
    failed = [text for of in outcomes.values() for one in of.values() for text in one["failed"]]
    for suite, of in outcomes.items():
        totals = {name: sum(_count(one[name]) for one in of.values()) for name in COUNTED}
        print(f"{suite}: {totals}")
    print("\n".join(failed), f"{time.perf_counter() - begin:.0f} s", sep="\n")
    unexplained = [text for text in failed if not any(part in text for part in EXPLAINED)]
    return 1 if unexplained else 0


def keep(path: Path, outcomes: Mapping[str, Any]) -> None:
    """Write the outcomes of suites, and keep those of others."""
    info = dict(_run_info())
    done = {"date": info.pop("date"), "commit": info.pop("commit_info")["id"]}
    suites = json.loads(path.read_text())["suites"] if path.exists() else {}
    suites |= {suite: done | {"subjects": subjects} for suite, subjects in outcomes.items()}
    write_run(path, info | {"suites": suites, "explained": EXPLAINED})


COUNTED = ("passed", "skipped", "failed")
_run_info = cache(run_info)


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return sum(value.values())
    return len(value) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
