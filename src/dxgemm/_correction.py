"""What the model leaves over, config by config, learned from the problems that were measured.

`dxgemm._model` explains a time by what the GPU does; copies, caches and stores have more to them.
ln(measured / predicted) is taken for a linear function of a problem's features plus one that is
alike where features are alike: a Gaussian process. Its mean at a new problem is a sum over the
measured ones, each with a weight, less the farther away it is. So a choice among kernels that are
close to each other goes by how they did on problems like this one, not by the model's bias.

Likeness is a product over the features, exp(-distance) of each. A time has kinks, where another
round of blocks begins or an operand no longer fits in a cache. So has this likeness; with the usual
exp(-distance**2 / 2) the choice among the H200's kernels for problems left out is worse.
Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press, 2006, chapters
2 and 4 (`dxgemm.tuning.fit` finds the weights).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dxgemm._problem import LINE_BYTES, Problem

# How far apart problems may be to be alike still, feature by feature: in powers of two of sizes, in
# logarithms of what rounding up costs, in powers of two of alignment, and from yes to no. Found by
# leaving some of the H200's problems out; all may be half or twice as much.
SIZE_LENGTH, ROUNDS_LENGTH, PADDING_LENGTH = 15.0, 6.0, 2.5
ALIGNMENT_LENGTH, FLAG_LENGTH = 20.0, 4.0

# Beyond what was measured nothing is known. So far features are believed, in extents, in rounds and
# in the logarithm of how far a round may be from full, and so far the correction.
SMALLEST, SMALLEST_IN_BATCH, LARGEST, MOST_ROUNDS = 1, 4, 16384, 2048
LONGEST_TAIL = 1.5
MOST = 0.4
LEAST_FACTOR = math.exp(-MOST)

FEATURES = 15  # what `features_of` gives


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


@dataclass(frozen=True)
class Correction:
    """Of one config.

    Attributes:
        slopes: of the linear function: its constant, then one for each feature.
        neighbours: float16, a row for each problem that was measured: its features and its weight.
    """

    slopes: tuple[float, ...]
    neighbours: bytes = b""

    def __call__(self, features: Sequence[float]) -> float:
        """What a predicted time is to be multiplied by."""
        here = np.array(features, np.float32)
        exponent = self.slopes[0] + float(np.dot(self._slopes, here))
        points, weights = self._neighbours
        apart = np.abs(points - here[:, None]).sum(axis=0)
        exponent += float(np.dot(np.exp(-apart), weights))
        return math.exp(max(-MOST, min(exponent, MOST)))

    @cached_property
    def _slopes(self) -> Any:
        return np.array(self.slopes[1:], np.float32)

    @cached_property
    def _neighbours(self) -> tuple[Any, Any]:
        """A row for each feature, and the weights."""
        rows = np.frombuffer(self.neighbours, np.float16).reshape(-1, len(self.slopes))
        of_features = np.ascontiguousarray(rows.T, np.float32)
        return of_features[:-1], of_features[-1]


def features_of(config: Any, problem: Problem, work: Schedule) -> tuple[float, ...]:
    """What a time may depend on, each divided by how far apart problems are alike.

    Sizes, slices, matrices and rounds as powers of two; what rounding up to whole rounds,
    generations of resident blocks, tiles and steps costs, as logarithms; whether rows of a and b
    are misaligned, and how much.
    """
    smallest = SMALLEST_IN_BATCH if problem.batch > 1 else SMALLEST
    extents = (min(max(extent, smallest), LARGEST) for extent in (problem.m, problem.n, problem.k))
    generations = -(-work.rounds // work.resident)
    tile_rows, tile_cols = -(-problem.m // config.tile_m), -(-problem.n // config.tile_n)
    paddings = (
        min(math.log(work.rounds * work.sms / work.blocks), LONGEST_TAIL),
        math.log(generations * work.resident / work.rounds),
        math.log(tile_rows * config.tile_m / max(problem.m, 1)),
        math.log(tile_cols * config.tile_n / max(problem.n, 1)),
        math.log(work.k_tiles * work.tile_k / work.k) if work.k else 0.0,
    )
    return (
        *(math.log2(extent) / SIZE_LENGTH for extent in extents),
        math.log2(problem.slices) / SIZE_LENGTH,
        math.log2(problem.batch) / SIZE_LENGTH,
        math.log2(min(work.rounds, MOST_ROUNDS)) / ROUNDS_LENGTH,
        *(padding / PADDING_LENGTH for padding in paddings),
        (not problem.a_is_aligned) / FLAG_LENGTH,
        (not problem.b_is_aligned) / FLAG_LENGTH,
        math.log2(LINE_BYTES / problem.a_row_alignment) / ALIGNMENT_LENGTH,
        math.log2(LINE_BYTES / problem.b_row_alignment) / ALIGNMENT_LENGTH,
    )
