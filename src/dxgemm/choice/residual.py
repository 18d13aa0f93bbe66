"""Corrections of the predicted times by measurements.

ln(measured / predicted) is modelled as a weighted sum of a few features of the problem and of the
distribution of a candidate's blocks over SMs. Each candidate has weights of its own, which
`dxgemm.tuning.fit` finds by ridge regression; a candidate that was not measured is not corrected.
Source: Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", 2009, section 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2

import numpy as np

from dxgemm.choice.model import Asked, Columns, Schedule
from dxgemm.choice.tables import CANDIDATE_FEATURES, FEATURES, PROBLEM_FEATURES

# Limits of what was measured: features are clipped to them, and the correction to exp(MOST).
LARGEST, MOST_TILES_PER_SM, LONGEST_TAIL = 16384, 2048, 4.0
MOST = 0.4

# Sizes and alignments count as powers of two, in units that make features about as large as 1.
UNIT = 8.0


def problem_features(asked: Asked) -> np.ndarray:
    """Features of one problem that all candidates share, in the order of `PROBLEM_FEATURES`."""
    m, n, k = (log2(min(max(size, 1), LARGEST)) / UNIT for size in (asked.m, asked.n, asked.k))
    batch = log2(asked.batch) / UNIT
    return np.array(
        (
            *(1.0, m, n, k, batch, m * m, n * n, k * k, batch * batch),
            *(log2(asked.moduli), asked.misaligned, asked.a_is_col, asked.b_is_col),
            *(asked.has_epilogue, log2(asked.a_alignment) / UNIT, log2(asked.b_alignment) / UNIT),
        )
    )


def candidate_features(columns: Columns, plan: Schedule) -> np.ndarray:
    """Features of each candidate, in the order of `CANDIDATE_FEATURES`, as arrays like `predict`'s.

    They are base-2 logarithms of the tiles of the busiest SM, of the cost of an uneven distribution
    of tiles, and of the cost of a last wave that is not full; then their squares.
    """
    tiles_per_sm = plan.tiles_per_sm
    features = np.empty((len(CANDIDATE_FEATURES), *tiles_per_sm.shape))
    features[0] = np.minimum(tiles_per_sm, MOST_TILES_PER_SM)
    features[1] = np.minimum(tiles_per_sm / plan.mean_tiles_per_sm, LONGEST_TAIL)
    features[2] = plan.waves * columns.resident / tiles_per_sm
    np.log2(features[:3], out=features[:3])
    features[0] /= UNIT
    np.square(features[:3], out=features[3:])
    return features


@dataclass(frozen=True)
class Residual:
    """Weights of some candidates.

    Attributes:
        shared: weights of `PROBLEM_FEATURES`, a row per candidate.
        own: weights of `CANDIDATE_FEATURES`, a column per candidate.
    """

    shared: np.ndarray
    own: np.ndarray

    @classmethod
    def of(cls, weights: Mapping[str, np.ndarray], columns: Columns) -> Residual:
        """Weights of candidates, from those of a table by name; 0 for a candidate without any."""
        none = np.zeros(len(FEATURES))
        rows = np.array([weights.get(row.name, none) for row in columns.rows])
        rows = rows.reshape(len(columns.rows), len(FEATURES))
        shared, own = np.split(rows, [len(PROBLEM_FEATURES)], axis=1)
        return cls(shared.copy(), own.T.copy())

    def take(self, places: list[int]) -> Residual:
        """Weights of some of the candidates."""
        return Residual(self.shared[places], self.own[:, places])

    def factors(self, asked: Asked, columns: Columns, plan: Schedule) -> np.ndarray:
        """Factors that correct the predicted time of each candidate for a problem."""
        exponents = self.shared @ problem_features(asked)
        exponents += np.add.reduce(self.own * candidate_features(columns, plan), axis=0)
        return np.exp(np.minimum(np.maximum(exponents, -MOST), MOST))
