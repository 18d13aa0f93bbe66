"""Fit a table of speeds to a file of observations, as `dxgemm tune` does; no GPU is needed.

    python benchmarks/fit_table.py benchmarks/results/nvidia-h200/tuning.jsonl \\
        src/dxgemm/tables/nvidia-h200.json --jobs 8

Of a table that was there, when and with what was measured is kept: observations do not tell. Its
decision trees are not: `grow_trees.py` grows new ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from gpus import TUNED_FACTS

from dxgemm._speeds import Table, write_table
from dxgemm.runtime.device import DeviceFacts
from dxgemm.tuning.fit import Fit, Point, fit_group, group_points
from dxgemm.tuning.observations import by_shape, read

Key = tuple[str, str]  # dtype and config

groups: dict[Key, list[Point]] = {}  # of a process


def read_groups(path: Path) -> int:
    """Fill `groups`, and return how many problems were measured."""
    known = by_shape(read(path))
    groups.update(group_points(known.values()))
    return len(known)


def fit_one(key: Key, device: DeviceFacts) -> Fit:
    return fit_group(groups[key], device)


def fit_all(path: Path, device: DeviceFacts, jobs: int | None) -> Iterator[tuple[Key, Fit]]:
    """In so many processes, those first that take longest; each reads the observations itself."""
    largest_first = sorted(groups, key=lambda key: -len(groups[key]))
    with ProcessPoolExecutor(jobs, initializer=read_groups, initargs=(path,)) as pool:
        fitting = {pool.submit(fit_one, key, device): key for key in largest_first}
        for fitted in as_completed(fitting):
            yield fitting[fitted], fitted.result()


def kept_header(table: Path) -> dict[str, Any]:
    """When and with what a table's GPU was measured."""
    if not table.exists():
        return {}
    header = json.loads(table.read_text())
    return {name: header[name] for name in ("measured", "packages") if name in header}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("observations", type=Path, help="as `dxgemm tune` keeps them")
    parser.add_argument("table", type=Path, help="to write, or to replace")
    parser.add_argument("--gpu", choices=TUNED_FACTS, default="NVIDIA H200")
    parser.add_argument("--measured", help="a date; default: that of the table that was there")
    parser.add_argument("--jobs", type=int, help="processes; default: the CPUs")
    given = parser.parse_args()
    device = TUNED_FACTS[given.gpu]
    shapes = read_groups(given.observations)
    if not groups:
        parser.error(f"no config was measured often enough in {given.observations}")
    speeds = {}
    for key, fit in fit_all(given.observations, device, given.jobs):
        speeds[key] = fit.speed
        print(f"{' '.join(key)}: {fit.observations} observations, error {fit.error:.1%}")
    about = kept_header(given.table)
    if given.measured:
        about["measured"] = given.measured
    about["shapes"] = shapes
    write_table(given.table, device.name, device.arch, Table(speeds), about)


if __name__ == "__main__":
    main()
