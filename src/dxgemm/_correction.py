"""What the model leaves over, config by config: a quadratic function of the problem's logarithms.

`dxgemm._model` explains a time by what the GPU does; copies, caches and stores have more to them.
What is left of ln(measured / predicted) is fitted to the shapes of a table, so that a choice among
kernels that are close to each other does not go by the model's bias.
Source: Box and Wilson, "On the experimental attainment of optimum conditions", Journal of the Royal
Statistical Society B 13, 1951, for response surfaces; Hoerl and Kennard, "Ridge regression",
Technometrics 12, 1970, for the fit (`dxgemm.tuning.fit`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from dxgemm._problem import Problem

# Beyond what was measured a quadratic goes astray. So far it is believed: in extents and rounds,
# in the logarithm of how far a round may be from full, and in its own result.
SMALLEST, LARGEST, MOST_ROUNDS = 16, 16384, 2048
LONGEST_TAIL = 1.5
MOST = 0.4


class Schedule(NamedTuple):
    """How a launch's blocks spread over multiprocessors.

    Attributes:
        blocks: of all tiles, slices and clusters.
        sms: multiprocessors that they run on.
        rounds: blocks of the multiprocessor that has the most.
        resident: blocks that share a multiprocessor.
        split_k: blocks of a cluster.
        k: of a block.
        tile_k, k_tiles: steps along k, the last one perhaps in part.
        fills: times that a block waits for its first copies.
    """

    blocks: int
    sms: int
    rounds: int
    resident: int
    split_k: int
    k: int
    tile_k: int
    k_tiles: int
    fills: int


def terms(config: Any, problem: Problem, work: Schedule) -> list[float]:
    """What a time may depend on, in the order of the coefficients.

    A constant; sizes as logarithms; what rounding up to whole rounds, generations of resident
    blocks, tiles and steps costs, as logarithms; misalignment of a and b; products of these.
    """
    extents = (min(max(extent, SMALLEST), LARGEST) for extent in (problem.m, problem.n, problem.k))
    sizes = [
        *(math.log2(extent) / 3 - 3 for extent in extents),  # 0 at 512
        math.log2(problem.slices) / 3,
        math.log2(min(work.rounds, MOST_ROUNDS)) / 3,
    ]
    generations = -(-work.rounds // work.resident)
    tile_rows, tile_cols = -(-problem.m // config.tile_m), -(-problem.n // config.tile_n)
    padding = [
        min(math.log(work.rounds * work.sms / work.blocks), LONGEST_TAIL),
        math.log(generations * work.resident / work.rounds),
        math.log(tile_rows * config.tile_m / max(problem.m, 1)),
        math.log(tile_cols * config.tile_n / max(problem.n, 1)),
        math.log(work.k_tiles * work.tile_k / work.k) if work.k else 0.0,
    ]
    a, b = float(not problem.a_is_aligned), float(not problem.b_is_aligned)
    squares = [one * other for one, other in combinations_with_replacement(sizes, 2)]
    misaligned = [flag * size for flag in (a, b) for size in sizes]
    return [1.0, *sizes, *padding, a, b, a * b, *squares, *misaligned]


def correction(coefficients: Sequence[float], values: Sequence[float]) -> float:
    """What a predicted time is to be multiplied by."""
    exponent = sum(c * v for c, v in zip(coefficients, values, strict=True))
    return math.exp(max(-MOST, min(exponent, MOST)))
