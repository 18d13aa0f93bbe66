"""The acceptance rule: how far a result may lie from the reference, elementwise.

With eps the spacing of the type at 1, Ref and magnitude from `reference`:

    |C - Ref| <= eps/2 |Ref| + eps (8 + 1.5 sqrt(k)) magnitude + (k + 2) tiny

tiny is the smallest subnormal: each of the k + 2 operations may lose half of it to underflow.
The ratio of error to tolerance is 0 for an exact result and above 1 for a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxgemm.testing.reference import Reference


@dataclass(frozen=True)
class Comparison:
    """The verdict on one result.

    Attributes:
        ratio: the largest error over its tolerance; infinite where NaN, infinities or zeros of
            the reference are missing, misplaced or of the wrong sign.
        failures: how many elements exceed the limit.
        message: the worst element and the region of the failures, for a person.
    """

    ratio: float
    failures: int
    message: str


def error_growth(k: int) -> float:
    """Returns f(k), the growth of the rounding error with the length of a sum.

    Sequential FP32 stays below half of it up to k = 16384, TF32 exceeds it up to k = 4096.
    """
    return 8 + 1.5 * float(np.sqrt(k))


def compare(actual: np.ndarray, reference: Reference, limit: float = 1.0) -> Comparison:
    """Compares a result with its reference.

    Args:
        actual: float32 or float64, the shape of the reference.
        reference: what it should be.
        limit: the ratio above which an element fails: 1 for the rule, 0 for bit-exact data.
    """
    if actual.shape != reference.value.shape:
        message = f"the result is {actual.shape}, expected {reference.value.shape}"
        return Comparison(np.inf, actual.size, message)
    ratios = _ratios(actual, reference)
    failures = np.argwhere(ratios > limit)
    ratio = float(ratios.max(initial=0.0))
    if not len(failures):
        return Comparison(ratio, 0, f"all elements within {limit} of their tolerance")
    worst = np.unravel_index(ratios.argmax(), ratios.shape)
    index = tuple(int(place) for place in worst)
    region = ", ".join(
        f"{low}..{high}" for low, high in zip(failures.min(0).tolist(), failures.max(0).tolist())
    )
    return Comparison(
        ratio,
        len(failures),
        f"{len(failures)} of {actual.size} elements wrong, within [{region}]; worst at "
        f"{list(index)}: got {actual[index]!r}, expected {reference.value[index]!r}, "
        f"{ratio:.3g} times the tolerance",
    )


def _ratios(actual: np.ndarray, reference: Reference) -> np.ndarray:
    """Returns error over tolerance, 0 where both are 0 and inf where the classes differ."""
    limits = np.finfo(actual.dtype)
    with np.errstate(all="ignore"):
        expected = reference.value.astype(actual.dtype)
        error = np.abs(actual.astype(reference.value.dtype) - reference.value)
        tolerance = (
            limits.eps / 2 * np.abs(reference.value)
            + limits.eps * error_growth(reference.k) * reference.magnitude
        )
        underflow = (reference.k + 2) * limits.smallest_subnormal
        tolerance += underflow * (reference.magnitude > 0)
        ratios = np.where(error == 0, 0.0, error / tolerance)
        ratios = np.where(np.isfinite(expected), ratios, 0.0)
    same_class = (np.isnan(actual) == np.isnan(expected)) & (np.isinf(actual) == np.isinf(expected))
    same_infinity = ~np.isinf(expected) | (actual == expected)
    return np.where(same_class & same_infinity, ratios, np.inf)
