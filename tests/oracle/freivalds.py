"""Checks a product too large to recompute, in O(n**2): random signs, and exact rows and columns."""

from typing import Any

import numpy as np

from oracle.compare import compare, error_growth
from oracle.kinds import limits
from oracle.reference import TF32_CONFIDENCE, TF32_EPS, product

VECTORS = 4
LINES = 64
CONFIDENCE = 6.0  # Hoeffding: a right result exceeds it in fewer than 3 of 10**8 rows


def freivalds_ratio(
    a: np.ndarray, b: np.ndarray, actual: np.ndarray, precision: str | None = None, seed: int = 0
) -> float:
    """Returns the largest |actual x - a (b x)| over its tolerance, for x of random signs.

    The errors of one row enter with random signs, so their sum is judged against the root of the
    sum of squared tolerances, with Cauchy-Schwarz in place of |a| |b|. A wrong row passes one
    vector with probability at most 1/2, unless its error drowns in the rounding of n elements;
    `lines_ratio` detects such errors. Integers, below 2**31 in every sum of a row, have no
    tolerance.
    """
    wide: Any = np.longdouble if actual.dtype == np.float64 else np.float64
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], (actual.shape[1], VECTORS)).astype(wide)
    a_wide, b_wide = a.astype(wide), b.astype(wide)
    error = np.abs(actual.astype(wide) @ signs - a_wide @ (b_wide @ signs))
    if actual.dtype.kind == "i":
        return float(np.where(error == 0, 0.0, np.inf).max(initial=0.0))
    row_norms = np.sqrt(np.square(a_wide).sum(1)) * np.sqrt(np.square(b_wide).sum())
    sum_eps = limits("float64" if actual.dtype == np.float64 else "float32").eps
    rounding = limits(actual.dtype).eps / 2 + sum_eps * error_growth(a.shape[1])
    tolerance = CONFIDENCE * rounding * row_norms
    if precision == "tf32":
        # The root of the sum over a row of squares of `reference.tf32_input_error`, at most.
        spread = np.sqrt(np.square(a_wide) @ np.square(b_wide).sum(1))
        values = np.sqrt(np.square(actual.astype(wide)).sum(1))
        tolerance += CONFIDENCE * TF32_EPS * (TF32_CONFIDENCE * spread + 2 * values)
    ratios = np.where(error == 0, 0.0, error / tolerance[:, None])
    return float(np.nan_to_num(ratios, nan=np.inf).max(initial=0.0))


def lines_ratio(
    a: np.ndarray,
    b: np.ndarray,
    actual: np.ndarray,
    precision: str | None = None,
    tile: int = 64,
    seed: int = 0,
) -> float:
    """Returns the ratio of the acceptance rule over random rows and columns and every tile edge."""
    rng = np.random.default_rng(seed)
    rows = _lines(rng, actual.shape[0], tile)
    columns = _lines(rng, actual.shape[1], LINES * tile)
    return max(
        compare(actual[rows], product(a[rows], b, precision)).ratio,
        compare(actual[:, columns], product(a, b[:, columns], precision)).ratio,
    )


def _lines(rng: np.random.Generator, extent: int, tile: int) -> np.ndarray:
    """Chooses indices below `extent`: random ones, the last, and those at multiples of `tile`."""
    edges = np.arange(0, extent, tile)
    chosen = np.concatenate([rng.integers(0, extent, LINES), edges, edges[1:] - 1, [extent - 1]])
    return np.unique(chosen)
