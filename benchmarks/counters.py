"""Counters of the GPU for each rung, by ncu: `results/<gpu>/ladder_counters.json`.

    python benchmarks/counters.py                     # on a GPU, with ncu on the PATH
    python benchmarks/counters.py --rung tuned --out /tmp/results

One launch of each rung, with the config that was quickest in `ladder.json`, at m = n = k = 4096.
docs/ladder.md is generated from the file.
"""

import json
import shutil
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from provenance import commit_info, gpu_info, gpu_slug
from result_files import RESULTS, extras, is_square

import dxgemm
from dxgemm.cli.counters import Launch, ncu_command
from dxgemm.cli.profile import launch_once, profiled_launches
from dxgemm.cli.rungs import Arithmetic, is_made_for, rungs

SIZE = 4096


def launches_of(arguments: Any, ladder: Path) -> list[tuple[Any, Arithmetic, str | None]]:
    """(rung, arithmetic, its quickest config if it was measured) of every launch, in order."""
    results = json.loads(ladder.read_text()) if ladder.exists() else None
    configs = {
        (row["implementation"], row["precision"] or row["dtype"]): row["config"]
        for row in extras(results)
        if is_square(row, SIZE) and row["config"]
    }
    return [
        (rung, kind, configs.get((rung.name, kind.value)))
        for rung in rungs()
        for kind in map(Arithmetic, arguments.dtype or Arithmetic)
        if (not arguments.rung or rung.name in arguments.rung) and is_made_for(rung, kind, SIZE)
    ]


def profiled(launches: int | None) -> list[Launch]:
    """Launches of this program with --launch, as `ncu_command` counts them."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit(f"{sys.argv[0]}: ncu is not on the PATH")
    command = ncu_command([*sys.argv, "--launch"], ncu=ncu, launches=launches, as_csv=True)
    return profiled_launches(command)


def write(out: Path, name: str, **content: Any) -> None:
    gpu = gpu_info()
    path = out / gpu_slug(gpu["name"]) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = {"gpu": gpu, "dxgemm": dxgemm.__version__, "commit_info": commit_info(), **content}
    path.write_text(json.dumps(file, indent=1, sort_keys=True) + "\n")
    print(f"counted in {path}")


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rung", action="append", help="name; default: all")
    parser.add_argument("--dtype", action="append", choices=[a.value for a in Arithmetic])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--launch", action="store_true", help="what the profiler runs")
    arguments = parser.parse_args()
    ladder = RESULTS / gpu_slug(gpu_info()["name"]) / "ladder.json"
    launches = launches_of(arguments, ladder)
    if arguments.launch:
        for rung, kind, config in launches:
            launch_once(rung, config, kind, SIZE)
        return 0
    counted = profiled(len(launches))
    if len(counted) != len(launches):
        sys.exit(f"counters.py: {len(launches)} launches, {len(counted)} counted")
    counters = {
        f"{rung.name} {kind.value}": {"config": config, **values}
        for (rung, kind, config), (_, values) in zip(launches, counted, strict=True)
    }
    write(arguments.out, "ladder_counters", size=SIZE, counters=counters)
    return 0


if __name__ == "__main__":
    sys.exit(main())
