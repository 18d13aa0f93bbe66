"""Share of the SMs' area that is result, with dxgemm's tiles and with cuBLAS's.

    python benchmarks/tile_shares.py                      # on a GPU
    python benchmarks/tile_shares.py --out /tmp/results

This writes `results/<gpu>/cublas_tiles.json`: names of cuBLAS's kernels, which tell their tiles, by
torch's profiler. The products are those of the suite `half` with both operands contiguous along k.
`report.py` draws the shares.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from provenance import commit_info, gpu_info, gpu_slug, package_versions
from result_files import RESULTS, Results, extras, gpu_name, size_of

from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import time_candidates
from dxgemm.gpu.cards import CARDS
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Strides

NAME, DTYPE, LAYOUT = "cublas_tiles.json", "bfloat16", "row_col_row"
CARD = CARDS["H200 SXM"]
# n and m of a tile; then of a cluster, in tiles.
KERNEL = re.compile(r"nvjet_\w+?_(\d+)x(\d+)_64x\d+_(\d+)x(\d+)_")
CONFIGS: dict[str, WgmmaConfig] = {str(c): c for c in find_implementation("wgmma").kernel.configs}


class Shares(NamedTuple):
    """Shares for one product.

    Attributes:
        label: its size.
        plain: of the chosen one of the tiles with 64 or 128 rows and multiples of 64 columns.
        chosen: of the chosen tile.
        cublas: of cuBLAS's.
    """

    label: str
    plain: float
    chosen: float
    cublas: float


def share(m: int, n: int, tile: tuple[int, int], blocks: int) -> float:
    """Share of the area of all waves of tiles that is result.

    Args:
        m, n: sizes of the result.
        tile: rows and columns that a cluster computes at a time.
        blocks: blocks of the cluster, each on an SM.
    """
    rows, cols = tile
    clusters = CARD.facts.sm_count // blocks
    waves = math.ceil(math.ceil(m / rows) * math.ceil(n / cols) / clusters)
    return m * n / (waves * clusters * rows * cols)


def own_share(m: int, n: int, config: WgmmaConfig) -> float:
    tile = config.tile_m * config.pair[0], config.tile_n * config.pair[1]
    return share(m, n, tile[::-1] if config.is_turned else tile, config.cluster)


def plain_config(m: int, n: int, k: int) -> WgmmaConfig:
    """Config that is chosen of those which other dtypes take, too."""
    problem = replace(contiguous_problem(DTYPE, m, n, k), b=Strides(0, 1, k))
    (times,) = time_candidates(problem, CARD.facts, [find_implementation("wgmma")])
    plain = [
        (us, row.config)
        for row, us in zip(times.columns.rows, times.us, strict=True)
        if row.config.takes("int8") and not row.fill
    ]
    return min(plain, key=lambda found: found[0])[1]


def shares(gpus: list[dict[str, Results]]) -> list[Shares]:
    """Shares of the products of which the suite `half` and cuBLAS's kernels are known."""
    path = RESULTS / gpu_slug(CARD.name) / NAME
    named = json.loads(path.read_text())["rows"] if path.exists() else []
    chosen = {
        (row["m"], row["n"], row["k"]): CONFIGS.get(row["config"])
        for suites in gpus
        if "half" in suites and gpu_slug(gpu_name(suites)) == path.parent.name
        for row in extras(suites["half"])
        if (row["family"], row["dtype"], row["arrangement"]) == ("plain", DTYPE, LAYOUT)
    }
    found = []
    for row in named:
        m, n, k = size = row["m"], row["n"], row["k"]
        tile = next(filter(None, map(KERNEL.search, row["kernels"])), None)
        config = chosen.get(size)
        if tile and config:
            cols, rows, along_n, along_m = map(int, tile.groups())
            theirs = share(m, n, (rows * along_m, cols * along_n), along_m * along_n)
            plain = own_share(m, n, plain_config(m, n, k))
            found.append(Shares(size_of(row), plain, own_share(m, n, config), theirs))
    return found


def kernels_of(m: int, n: int, k: int) -> list[str]:
    """Names of the kernels of torch.mm."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    a, b = (torch.randn(size, k, dtype=getattr(torch, DTYPE), device="cuda") for size in (m, n))
    torch.mm(a, b.T)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        torch.mm(a, b.T)
        torch.cuda.synchronize()
    return [event.name for event in found.events() if "CUDA" in str(event.device_type)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    from bench_half import TILED  # which asks for the GPU

    gpu = gpu_info()
    rows = [{"m": m, "n": n, "k": k, "kernels": kernels_of(m, n, k)} for m, n, k in TILED]
    file: dict[str, Any] = {
        "gpu": gpu, "packages": package_versions(), "commit_info": commit_info(), "rows": rows,
    }  # fmt: skip
    path = arguments.out / gpu_slug(gpu["name"]) / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(file, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
