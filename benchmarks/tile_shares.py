"""Share of the SMs' area that is result, with dxgemm's tiles and with cuBLAS's.

The products are those of the suite `half` with both operands contiguous along k, whose rows name
the kernels that torch launched (`torch_kernels`): these tell cuBLAS's tiles.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import NamedTuple

from result_files import Results, extras, short_name
from tables import size_of

from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import time_candidates
from dxgemm.gpu.cards import CARDS
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Strides

CARD = CARDS["H200 SXM"]
# n and m of a tile; then of a cluster, in tiles.
KERNEL = re.compile(r"nvjet_\w+?_(\d+)x(\d+)_64x\d+_(\d+)x(\d+)_")
CONFIGS: dict[str, WgmmaConfig] = {str(c): c for c in find_implementation("wgmma").kernel.configs}


class Shares(NamedTuple):
    """Shares for one product.

    Attributes:
        label: its size.
        plain: of the chosen one of the tiles with 64 or 128 rows and multiples of 64 columns.
        chosen, cublas: of the chosen tile, and of cuBLAS's.
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


def plain_config(dtype: str, m: int, n: int, k: int) -> WgmmaConfig:
    """Config that is chosen of those which other dtypes take, too."""
    problem = replace(contiguous_problem(dtype, m, n, k), b=Strides(0, 1, k))
    (times,) = time_candidates(problem, CARD.facts, [find_implementation("wgmma")])
    plain = [
        (us, row.config)
        for row, us in zip(times.columns.rows, times.us, strict=True)
        if row.config.takes("int8") and not row.fill
    ]
    return min(plain, key=lambda found: found[0])[1]


def shares(gpus: list[dict[str, Results]]) -> list[Shares]:
    """Shares of the products of which the suite `half` knows cuBLAS's kernels."""
    found = []
    suites = [of["half"] for of in gpus if "half" in of and short_name(of["half"]) in CARD.name]
    for row in (row for suite in suites for row in extras(suite) if "torch_kernels" in row):
        m, n, k = row["m"], row["n"], row["k"]
        tile = next(filter(None, map(KERNEL.search, row["torch_kernels"])), None)
        config = CONFIGS.get(row["config"])
        if tile and config:
            cols, rows, along_n, along_m = map(int, tile.groups())
            theirs = share(m, n, (rows * along_m, cols * along_n), along_m * along_n)
            plain = own_share(m, n, plain_config(row["dtype"], m, n, k))
            found.append(Shares(size_of(row), plain, own_share(m, n, config), theirs))
    return found
