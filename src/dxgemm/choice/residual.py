"""What measurements say against the model: a correction of each candidate's predicted time.

ln(measured / predicted) is taken for a weighted sum of a few features, of the problem and of how a
candidate's blocks spread over SMs. Each candidate has weights of its own, which `dxgemm.tuning.fit`
finds by ridge regression; a candidate that was not measured has none, and is not corrected.
Source: Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", 2009, section 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2

import numpy as np

from dxgemm.choice.model import Asked, Columns, Schedule
from dxgemm.choice.tables import CANDIDATE_FEATURES, FEATURES, PROBLEM_FEATURES

# Beyond what was measured nothing is known: so far sizes are believed, and the correction.
LARGEST, MOST_ROUNDS, LONGEST_TAIL = 16384, 2048, 4.0
MOST = 0.4

# Sizes and alignments count as powers of two, in units that make features about as large as 1.
UNIT = 8.0


def problem_features(asked: Asked) -> np.ndarray:
    """Features that all candidates share, of one problem, by `PROBLEM_FEATURES`."""
    m, n, k = (log2(min(max(size, 1), LARGEST)) / UNIT for size in (asked.m, asked.n, asked.k))
    batch = log2(asked.batch) / UNIT
    return np.array(
        (
            *(1.0, m, n, k, batch, m * m, n * n, k * k, batch * batch),
            *(log2(asked.moduli), asked.is_misaligned, asked.a_is_col, asked.b_is_col),
            *(asked.has_epilogue, log2(asked.a_alignment) / UNIT, log2(asked.b_alignment) / UNIT),
        )
    )


def candidate_features(columns: Columns, plan: Schedule) -> np.ndarray:
    """Features by `CANDIDATE_FEATURES`, each an array as of `predict`: one for each candidate.

    Rounds, and what rounding up to whole rounds and to whole waves costs, as powers of two; and
    their squares.
    """
    features = np.empty((len(CANDIDATE_FEATURES), *plan.rounds.shape))
    features[0] = np.minimum(plan.rounds, MOST_ROUNDS)
    features[1] = np.minimum(plan.rounds / plan.share, LONGEST_TAIL)
    features[2] = plan.waves * columns.resident / plan.rounds
    np.log2(features[:3], out=features[:3])
    features[0] /= UNIT
    np.square(features[:3], out=features[3:])
    return features


@dataclass(frozen=True)
class Residual:
    """The weights of some candidates.

    Attributes:
        shared: a row a candidate, of `PROBLEM_FEATURES`.
        own: a column a candidate, of `CANDIDATE_FEATURES`.
    """

    shared: np.ndarray
    own: np.ndarray

    @classmethod
    def of(cls, weights: Mapping[str, np.ndarray], columns: Columns) -> Residual:
        """The weights of candidates, from a table's, which are by name; 0 if it has none."""
        none = np.zeros(len(FEATURES))
        rows = np.array([weights.get(row.name, none) for row in columns.rows])
        rows = rows.reshape(len(columns.rows), len(FEATURES))
        shared, own = np.split(rows, [len(PROBLEM_FEATURES)], axis=1)
        return cls(shared.copy(), own.T.copy())

    def take(self, places: list[int]) -> Residual:
        """The weights of some of the candidates."""
        return Residual(self.shared[places], self.own[:, places])

    def factors(self, asked: Asked, columns: Columns, plan: Schedule) -> np.ndarray:
        """What the predicted time of each candidate for a problem is to be multiplied by."""
        exponents = self.shared @ problem_features(asked)
        exponents += np.add.reduce(self.own * candidate_features(columns, plan), axis=0)
        return np.exp(np.minimum(np.maximum(exponents, -MOST), MOST))
