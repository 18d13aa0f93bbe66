"""Acceptance rule: the elementwise tolerance of a result against the reference.

With eps the spacing of a type at 1, and Ref, magnitude and input error from `reference`:

    |C - Ref| <= out_eps/2 |Ref| + sum_eps (8 + 1.5 sqrt(k)) magnitude + input error
                 + (k + 2) tiny + out_tiny

out_eps is the eps of the result's type, whose rounding comes last. sum_eps is the eps of the type
of sums: float64 for float64, float32 for everything else, half precision included, whose operands
are exact in it. The input error is zero unless operands may be rounded before the product.
tiny is the smallest subnormal of the sums: each of the k + 2 operations may lose half of it to
underflow; out_tiny is that of the result, if it is narrower. The ratio of error to tolerance is 0
for a correctly rounded result and above 1 for a wrong one. Integers are right to the last bit of
the reference modulo 2**32, or their ratio is infinite.
"""

from dataclasses import dataclass

import numpy as np

from oracle.kinds import limits, round_to_dtype
from oracle.reference import Reference


@dataclass(frozen=True)
class Comparison:
    """Comparison of one result with its reference."""

    # the largest error over its tolerance; infinite if NaN, infinities or zeros of the
    # reference are missing, misplaced or of the wrong sign
    ratio: float
    failures: int  # number of elements that exceed the limit
    message: str  # the worst element and the region of the failures, in words


def error_growth(k: int) -> float:
    """Returns f(k), the growth of the rounding error with the length of a sum.

    Sequential FP32 stays below half of it up to k = 16384, TF32 exceeds it up to k = 4096.
    """
    return 8 + 1.5 * float(np.sqrt(k))


def compare(actual: np.ndarray, reference: Reference, limit: float = 1.0) -> Comparison:
    """Compares a result with its reference."""
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
    """Returns error over tolerance, 0 where correctly rounded and inf where the classes differ."""
    if actual.dtype.kind == "i":
        return np.where(actual == round_to_dtype(reference.value, actual.dtype), 0.0, np.inf)
    out = limits(actual.dtype)
    sums = limits("float64" if actual.dtype == np.float64 else "float32")
    expected = round_to_dtype(reference.value, actual.dtype)
    with np.errstate(all="ignore"):
        error = np.abs(actual.astype(reference.value.dtype) - reference.value)
        tolerance = (
            out.eps / 2 * np.abs(reference.value)
            + sums.eps * error_growth(reference.k) * reference.magnitude
            + reference.input_error
        )
        underflow = (reference.k + 2) * sums.smallest_subnormal
        if out.smallest_subnormal > sums.smallest_subnormal:
            underflow += out.smallest_subnormal
        tolerance += underflow * (reference.magnitude > 0)
        ratios = np.where(actual == expected, 0.0, error / tolerance)
        ratios = np.where(np.isfinite(expected), ratios, 0.0)
    same_class = (np.isnan(actual) == np.isnan(expected)) & (np.isinf(actual) == np.isinf(expected))
    same_infinity = ~np.isinf(expected) | (actual == expected)
    return np.where(same_class & same_infinity, ratios, np.inf)
