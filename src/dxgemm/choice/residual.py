"""What measurements say against the model, for the few candidates that it finds best.

ln(measured / predicted) of a candidate is taken for a Gaussian process over features of a problem:
its mean at a new problem is a sum over the measured ones, each with a weight, less the farther away
it is. Likeness is exp(-distance): a time has kinks, where another wave of blocks begins or an
operand no longer fits in a cache, and so has this likeness.
Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press, 2006, chapter
2 (`dxgemm.tuning.fit` finds the weights).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.choice.model import Asked, Columns, Schedule, schedule
from dxgemm.choice.tables import POINT, Measured

# How far apart problems may be to be alike still: in powers of two of sizes, of rounds, of what
# rounding up costs and of alignment, and from yes to no. Found by leaving problems out on the H200;
# all may be half or twice as much.
SIZE_LENGTH, ROUNDS_LENGTH, PADDING_LENGTH = 15.0, 6.0, 3.5
ALIGNMENT_LENGTH, FLAG_LENGTH = 20.0, 4.0
# Beyond what was measured nothing is known: so far features are believed, and the correction.
LARGEST, MOST_ROUNDS, LONGEST_TAIL = 16384, 2048, 4.0
MOST = 0.4

# By feature of a problem: sizes, yes or no, alignments.
_LIMITS = np.array([LARGEST] * 3 + [np.inf] * 8, np.float32)
_OWN_LENGTHS = np.array([ROUNDS_LENGTH, PADDING_LENGTH, PADDING_LENGTH], np.float32)
_LENGTHS = np.array([SIZE_LENGTH] * 5 + [FLAG_LENGTH] * 4 + [ALIGNMENT_LENGTH] * 2, np.float32)


def problem_features(asked: Asked) -> np.ndarray:
    """Features that all candidates share: (features, problems), or (features,) of one problem."""
    numbers = np.array(
        [
            *(asked.m, asked.n, asked.k, asked.batch, asked.moduli),
            *(1 + asked.is_misaligned, 1 + asked.a_is_col, 1 + asked.b_is_col),
            *(1 + asked.has_epilogue, asked.a_alignment, asked.b_alignment),
        ],
        np.float32,
    )
    limits, lengths = _LIMITS, _LENGTHS
    if numbers.ndim == 3:  # of many problems, a row each
        numbers, limits, lengths = numbers[:, :, 0], limits[:, None], lengths[:, None]
    return np.log2(np.minimum(np.maximum(numbers, 1), limits)) / lengths


def candidate_features(columns: Columns, plan: Schedule) -> np.ndarray:
    """Features of each candidate: (problems, candidates, features), or those of one problem.

    Rounds, and what rounding up to whole rounds and to whole waves costs, as powers of two.
    """
    features = np.empty((*plan.rounds.shape, 3), np.float32)
    features[..., 0] = np.minimum(plan.rounds, MOST_ROUNDS)
    features[..., 1] = np.minimum(plan.rounds / plan.share, LONGEST_TAIL)
    features[..., 2] = plan.waves * columns.resident / plan.rounds
    return np.log2(features) / _OWN_LENGTHS


@dataclass(frozen=True)
class Residual:
    """The correction for all candidates of a dtype.

    Attributes:
        shared: `problem_features` of the measured problems.
        own: `candidate_features` of them: (candidates, features, problems).
        weights: (candidates, problems).
        points: the measured problems, by `POINT`.
    """

    shared: np.ndarray
    own: np.ndarray
    weights: np.ndarray
    points: np.ndarray

    @classmethod
    def of(cls, measured: Measured, columns: Columns) -> Residual:
        """From a table; candidates that are no longer there, or new, have no correction."""
        points = asked_of_points(measured.points)
        places = {name: place for place, name in enumerate(measured.candidates)}
        weights = np.zeros((len(columns.rows), len(measured.points)), np.float32)
        for number, row in enumerate(columns.rows):
            if row.name in places:
                weights[number] = measured.weights[:, places[row.name]]
        own = candidate_features(columns, schedule(columns, points)).transpose(1, 2, 0)
        return cls(problem_features(points), np.ascontiguousarray(own), weights, measured.points)

    def factors(self, asked: Asked, features: np.ndarray, places: np.ndarray) -> Any:
        """What the predicted times of some candidates are to be multiplied by.

        Args:
            asked: a problem.
            features: `candidate_features` of the problem for these candidates, a row each.
            places: of these candidates among all.
        """
        apart = self._apart(asked)
        apart = apart + np.abs(self.own[places] - features[:, :, None]).sum(axis=1)
        exponents = (np.exp(-apart) * self.weights[places]).sum(axis=1)
        return np.exp(np.maximum(np.minimum(exponents, MOST), -MOST))

    def nearest(self, asked: Asked) -> str:
        """The measured problem that is most like another one, in words."""
        m, n, k, batch, *_ = map(int, self.points[self._apart(asked).argmin()])
        return f"{batch} of {m} x {n} x {k}" if batch > 1 else f"{m} x {n} x {k}"

    def _apart(self, asked: Asked) -> np.ndarray:
        """How unlike a problem each measured one is, for every candidate."""
        return np.abs(self.shared - problem_features(asked)[:, None]).sum(axis=0)


def asked_of_points(points: np.ndarray) -> Asked:
    """Measured problems of a table, as the model asks for them."""
    numbers = dict(zip(POINT, points.T[:, :, None], strict=True))
    a_alignment, b_alignment = numbers["a_alignment"], numbers["b_alignment"]
    unknown = dict.fromkeys(
        ("read_bytes", "written_bytes", "out_bytes", "out_is_misaligned", "is_reduced"), 0.0
    )
    is_misaligned = (a_alignment < 16) | (b_alignment < 16)
    return Asked(**numbers, **unknown, is_misaligned=is_misaligned)
