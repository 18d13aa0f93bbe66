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

from dxgemm.choice.columns import Columns
from dxgemm.choice.model import Schedule
from dxgemm.choice.problem_facts import ProblemFacts
from dxgemm.choice.tables import CANDIDATE_FEATURES, FEATURES, PROBLEM_FEATURES

# Limits of what was measured: features are clipped to them, and the correction to exp(MOST).
# Those of arrays are arrays themselves, of no dimensions, with which NumPy computes quicker.
LARGEST, MOST = 16384, 0.4
MOST_TILES_PER_SM, LONGEST_TAIL = np.array(2048.0), np.array(4.0)
LEAST_EXPONENT, MOST_EXPONENT = np.array(-MOST), np.array(MOST)
ONES = np.ones(len(CANDIDATE_FEATURES))

# Sizes and alignments count as powers of two, in units that make features about as large as 1.
UNIT, PER_UNIT = 8.0, np.array(1 / 8.0)


def problem_features(facts: ProblemFacts) -> np.ndarray:
    """Features of one problem that all candidates share, in the order of `PROBLEM_FEATURES`."""
    kind, batch = facts.kind, log2(facts.batch) / UNIT
    m, n, k = [log2(min(max(size, 1.0), LARGEST)) / UNIT for size in facts[:3]]
    return np.array(
        (
            *(1.0, m, n, k, batch, m * m, n * n, k * k, batch * batch),
            *(log2(facts.moduli), kind.misaligned, kind.a_is_col, kind.b_is_col),
            *(kind.has_epilogue, log2(kind.a_alignment) / UNIT, log2(kind.b_alignment) / UNIT),
        )
    )


def candidate_features(plan: Schedule) -> np.ndarray:
    """Features of each candidate, in the order of `CANDIDATE_FEATURES`, as arrays like `predict`'s.

    They are base-2 logarithms of the tiles of the busiest SM, of the cost of an uneven distribution
    of tiles, and of the cost of a last wave that is not full; then their squares.
    """
    tiles_per_sm = plan.tiles_per_sm
    features = np.empty((len(CANDIDATE_FEATURES), *tiles_per_sm.shape))
    rounds, tail, wave_tail, *_ = features
    np.minimum(tiles_per_sm, MOST_TILES_PER_SM, out=rounds)
    np.minimum(tiles_per_sm / plan.mean_tiles_per_sm, LONGEST_TAIL, out=tail)
    np.divide(plan.waves * plan.columns.resident, tiles_per_sm, out=wave_tail)
    own, squares = features[:3], features[3:]
    np.log2(own, out=own)
    np.multiply(rounds, PER_UNIT, out=rounds)
    np.square(own, out=squares)
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

    def factors(self, facts: ProblemFacts, plan: Schedule) -> np.ndarray:
        """Factors that correct the predicted time of each candidate for a problem."""
        exponents = self.shared.dot(problem_features(facts))
        exponents += ONES.dot(self.own * candidate_features(plan))
        return np.exp(np.minimum(np.maximum(exponents, LEAST_EXPONENT), MOST_EXPONENT))
