"""Model of emulated float32 (fp16x2) in NumPy, including the truncation of tensor cores."""

from dataclasses import dataclass

import numpy as np

TOP = 14  # exponent of the largest element of a scaled row
LO_SHIFT = 12
LARGEST = 80  # a row is split if the exponent of its largest element is in [-LARGEST, LARGEST)
STRICT, STRONG = 2.0**-14, 2.0**4
WGMMA_K, STAGE_K = 16, 64
SUM_BITS = 24


@dataclass(frozen=True)
class SplitRows:
    """Rows as hi + lo / 2**12, times factors."""

    hi: np.ndarray  # (rows, k), float16
    lo: np.ndarray
    factors: np.ndarray  # (rows,), float32, powers of two
    # number of elements below 2**4 in each row; 0 if all are zeros, None if the row cannot be
    # split
    weak: list[int | None]
    is_lax: bool  # True if any element is between 0 and 2**-14


def split_rows(x: np.ndarray) -> SplitRows:
    """Split the rows of (rows, k) float32 into parts."""
    largest = np.abs(x).max(axis=1, initial=0)
    is_fit = np.isfinite(largest)
    exponents = np.frexp(np.where(is_fit & (largest > 0), largest, 1))[1] - 1
    is_fit &= (exponents >= -LARGEST) & (exponents < LARGEST)
    exponents = np.where(is_fit, exponents, 0)
    with np.errstate(all="ignore"):  # rows that are not split
        y = np.ldexp(x.astype(np.float64), (TOP - exponents)[:, None])
        hi = y.astype(np.float16)
        lo = np.ldexp(y - hi, LO_SHIFT).astype(np.float16)
    counts = np.where(largest > 0, (np.abs(y) < STRONG).sum(axis=1), 0)
    weak = [int(count) if fit else None for count, fit in zip(counts, is_fit, strict=True)]
    is_lax = bool(((np.abs(y) < STRICT) & (y != 0)).any())
    factors = np.ldexp(np.float32(1), exponents - TOP).astype(np.float32)
    return SplitRows(hi, lo, factors, weak, is_lax)


def is_accepted(a: SplitRows, b: SplitRows) -> bool:
    """True if the operands pass the validity check, so that the parts are multiplied."""
    if None in a.weak or None in b.weak:
        return False
    weak = sum(max((w for w in rows.weak if w), default=0) for rows in (a, b))
    return 8 * weak <= 7 * a.hi.shape[1] or not (a.is_lax or b.is_lax)


def split_product(
    a: SplitRows, b: SplitRows, promote: int, section: int, extra_bits: int = 2
) -> np.ndarray:
    """Compute a @ b.T in float32."""
    k = a.hi.shape[1]
    total = np.zeros((len(a.hi), len(b.hi)), np.float32)
    for first in range(0, k, section):
        last = min(first + section, k)
        total += _section(a, b, first, last, promote, extra_bits)
    return total * a.factors[:, None] * b.factors


def _section(
    a: SplitRows, b: SplitRows, start: int, end: int, promote: int, extra_bits: int
) -> np.ndarray:
    """Sum of scaled products from `start` to `end`."""
    total = np.zeros((len(a.hi), len(b.hi)), np.float32)
    for first in range(start, end, promote):
        if first % STAGE_K == 0:
            steps = _steps(first, max(promote, STAGE_K), end)
            small = np.zeros(total.shape)
            for x, y in ((a.hi, b.lo), (a.lo, b.hi)):
                for step in steps:
                    small = _wgmma(small, x[:, step], y[:, step], extra_bits)
            total = (total + np.ldexp(small, -LO_SHIFT)).astype(np.float32)
        large = np.zeros(total.shape)
        for step in _steps(first, promote, end):
            large = _wgmma(large, a.hi[:, step], b.hi[:, step], extra_bits)
        total += large.astype(np.float32)
    return total


def _steps(first: int, count: int, k: int) -> list[slice]:
    """Slices of k for wgmma, from `first` on, of up to `count` k in total."""
    last = min(first + count, k)
    return [slice(start, start + WGMMA_K) for start in range(first, last, WGMMA_K)]


def _wgmma(acc: np.ndarray, a: np.ndarray, b: np.ndarray, extra_bits: int) -> np.ndarray:
    """Compute acc + a @ b.T with all terms cut to the unit of the largest, the sum to 24 bits."""
    terms = a.astype(np.float64)[:, None] * b.astype(np.float64)[None]
    terms = np.concatenate([terms, acc[..., None]], axis=2)
    exponents = np.frexp(np.abs(terms).max(axis=2))[1][..., None]
    unit = exponents - SUM_BITS - extra_bits
    return _cut(np.ldexp(np.trunc(np.ldexp(terms, -unit)), unit).sum(axis=2))


def _cut(x: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, SUM_BITS)), exponent - SUM_BITS)
