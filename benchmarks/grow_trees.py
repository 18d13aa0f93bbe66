"""Grow the decision trees of a table of speeds, as `dxgemm tune` does; no GPU is needed.

    python benchmarks/grow_trees.py src/dxgemm/tables/nvidia-h200.json --jobs 8

The same problems give the same trees. The default takes two cores about five hours.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from gpus import TUNED_FACTS

from dxgemm._speeds import read_table, write_table
from dxgemm.tuning.trees import grow_trees

ABOUT = ("measured", "packages", "shapes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="to read, and to write anew")
    parser.add_argument(
        "--problems", type=int, default=3_600_000, help="of a dtype that has speeds"
    )
    parser.add_argument("--jobs", type=int, help="processes; default: the CPUs")
    given = parser.parse_args()
    header = json.loads(given.table.read_text())
    table = read_table(given.table)
    device = replace(TUNED_FACTS[header["gpu"]], speeds=table.speeds)
    trees = grow_trees(device, given.problems, given.jobs)
    about = {name: header[name] for name in ABOUT if name in header}
    write_table(given.table, device.name, device.arch, replace(table, trees=trees), about)


if __name__ == "__main__":
    main()
