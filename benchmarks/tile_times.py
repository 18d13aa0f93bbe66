"""Times of wgmma's tiles in half precision beside torch.mm, for the table and for its choice.

    python benchmarks/tile_times.py times.jsonl --seconds 150 --tiles 192x 256x 64x96
    python benchmarks/tile_times.py times.jsonl --summary
    python benchmarks/tile_times.py times.jsonl --add-to results/nvidia-h200/tuning.jsonl.gz

Candidates that may be best by the model are checked and timed in turn, on problems of the suite
`half` first, then on random ones where a tile whose name begins like one of `--tiles` is near the
best. Lines are those that `dxgemm tune` keeps, which `fit_table.py` reads, with torch's time added.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from dxgemm.choice.legality import legal_kernels
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import time_candidates
from dxgemm.errors import BuildError
from dxgemm.gpu.cards import CARDS
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.tuning.observations import Observation, append, read
from dxgemm.tuning.workloads import Workload, random_workloads

DTYPE, TORCH = "float16", "torch"
# Losing shapes first; then those that no table has seen.
FIRST = [
    (9000, 712, 2008), (1100, 4200, 3400), (900, 10240, 4096), (840, 840, 8400),
    (8192, 1280, 8192), (4608, 2304, 2304), (50176, 64, 576), (16384, 4096, 1024),
    (1576, 3072, 768), (5200, 2600, 1300), (2752, 2752, 5504), (7168, 2048, 1792),
    (14000, 1536, 1024), (640, 5120, 2048), (1152, 4608, 1536), (3584, 3584, 896),
]  # fmt: skip
LAYOUTS, HOPELESS, NEAR, LEAST_FLOPS = ("row_row", "row_col", "col_row"), 1.2, 1.03, 4e9
SEED, RANDOM, ROUNDS = 3, 20, 5


def workloads(device: DeviceFacts, tiles: list[str]) -> Iterator[Workload]:
    for layout in LAYOUTS:
        for m, n, k in FIRST:
            yield Workload(DTYPE, m, n, k, 1, None, layout)
    near = (one for one in random_workloads([(DTYPE, None)], SEED) if is_near(one, device, tiles))
    yield from islice(near, RANDOM)


def is_near(workload: Workload, device: DeviceFacts, tiles: list[str]) -> bool:
    """True for a single product of some size, of which one of the tiles may be the best."""
    w = workload
    is_aligned = not any(extent % 8 for extent in (w.m, w.n, w.k))  # else it is copied
    if w.batch > 1 or w.epilogue or not is_aligned or 2 * w.m * w.n * w.k < LEAST_FLOPS:
        return False
    problem = w.problem()
    (times,) = time_candidates(problem, device, legal_kernels(problem, device))
    limit_us, names = NEAR * times.us.min(), [f"wgmma {tile}" for tile in tiles]
    near = [row.name for row, us in zip(times.columns.rows, times.us) if us <= limit_us]
    return any(name.startswith(beginning) for name in near for beginning in names)


def measured(workload: Workload, device: DeviceFacts, timer: Any) -> Observation:
    """Times of the candidates and of torch.mm, interleaved."""
    import torch

    from dxgemm.tuning.measure import Bench, Sampler, candidates, near_best
    from dxgemm.tuning.sampling import interleave

    bench = Bench(workload, timer)
    samplers: dict[str, Any] = bench.samplers(candidates(workload.problem(), device, HOPELESS))

    def product(operands: Any) -> Any:
        a, b, out = (torch.from_dlpack(one) for one in operands)
        return lambda: torch.mm(a, b, out=out)

    rival = Sampler([product(operands) for operands in bench.operands], timer)
    samples = interleave({**near_best(samplers), TORCH: rival}, ROUNDS)
    seconds = {name: sampler.first_s for name, sampler in samplers.items()}
    seconds |= {name: median(of) for name, of in samples.items()}
    return Observation(workload, {name: round(1e6 * s, 3) for name, s in seconds.items()})


def measure_all(path: Path, tiles: list[str], seconds: float, jobs: int) -> None:
    from dxgemm.runtime.device import device_facts
    from dxgemm.tuning.measure import build_candidates
    from dxgemm.tuning.timing import EventTimer, l2_bytes

    begin, device = time.monotonic(), device_facts(0)
    known = read(path)
    waiting = [one for one in workloads(device, tiles) if one not in known]
    try:
        build_candidates(waiting, device, jobs, HOPELESS)
    except BuildError as error:
        print(error)
    print(f"{time.monotonic() - begin:.0f} s for kernels of {len(waiting)} problems", flush=True)
    timer = EventTimer(l2_bytes())
    for workload in waiting:
        if time.monotonic() - begin > seconds:
            break
        append(path, measured(workload, device, timer))
    print(f"{time.monotonic() - begin:.0f} s")


def summarise(path: Path) -> None:
    """Print the choice, the best candidate and torch for each problem; the cost of lacking a tile.

    The cost is the geometric mean, and the greatest, of the best time without it over the best.
    """
    device, found, times_of = CARDS["H200 SXM"].facts, read(path), {}
    ratios = []
    for workload, one in found.items():
        problem = workload.problem()
        (times,) = time_candidates(problem, device, legal_kernels(problem, device))
        us = {row.name: one.us.get(row.name, math.inf) for row in times.columns.rows}
        chosen, best = times.columns.rows[int(times.us.argmin())].name, min(us, key=us.__getitem__)
        rival, times_of[workload] = one.us[TORCH], us
        ratios.append((rival / us[chosen], rival / us[best], us[best] / us[chosen]))
        print(
            f"{workload!s:42} torch {rival:7.1f}  best {us[best]:7.1f} ({rival / us[best]:.2f}) "
            f"{best:44} chosen {us[chosen]:7.1f} {chosen}"
        )
    for name, column in zip(("chosen", "best", "best over chosen"), zip(*ratios)):
        measured_ones = [ratio for ratio in column if ratio > 0]
        print(f"{name}: {geometric_mean(measured_ones):.3f}, least {min(measured_ones):.2f}")
    for config in find_implementation("wgmma").kernel.configs:
        costs = []
        for us in times_of.values():
            own = f"wgmma {config}"
            others = [t for name, t in us.items() if name.split(" fill")[0] != own]
            costs.append(min(others) / min(us.values()))
        print(f"without {config!s:36} {geometric_mean(costs):.4f}, at most {max(costs):.2f}")


def add_to(packed: Path, path: Path) -> None:
    """Add the times to those of a packed file, without torch's; those of another day stay."""
    with tempfile.NamedTemporaryFile() as unpacked:
        unpacked.write(gzip.decompress(packed.read_bytes()))
        unpacked.flush()
        known = read(Path(unpacked.name))
    for workload, one in read(path).items():
        us = {name: time_us for name, time_us in one.us.items() if name != TORCH}
        earlier = known[workload].us if workload in known else {}
        known[workload] = Observation(workload, {**earlier, **us})
    lines = [
        json.dumps({"workload": w, "us": one.us}, separators=(",", ":")) + "\n"
        for w, one in known.items()
    ]
    packed.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("times", type=Path)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--tiles", nargs="*", default=["192x", "256x"])
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--add-to", type=Path, help="observations in gzip, as fit_table.py takes")
    given = parser.parse_args()
    if given.summary:
        summarise(given.times)
    elif given.add_to:
        add_to(given.add_to, given.times)
    else:
        measure_all(given.times, given.tiles, given.seconds, given.jobs)


if __name__ == "__main__":
    main()
