"""Model of emulated float64 (Ozaki scheme II) in NumPy and Python's integers."""

from dataclasses import dataclass
from math import prod

import numpy as np

MODULI = (
    256, 255, 253, 251, 247, 241, 239, 233, 229, 227,
    223, 217, 211, 199, 197, 193, 191, 181, 179, 173,
)  # fmt: skip
MOST_BITS = 62
LARGEST = 400  # a row is split if the exponent of its largest element is in [-LARGEST, LARGEST)
LAX_BITS, WEAK_BITS, LOST_BITS = 12, 5, 13


def operand_bits(count: int, k: int) -> int:
    """Largest bits of operands whose sums of k products the moduli represent."""
    product = prod(MODULI[:count])
    bits = MOST_BITS
    while bits >= 0 and 2 * k * 4**bits >= product - product // 2**32:
        bits -= 1
    return bits


@dataclass(frozen=True)
class ScaledRows:
    """Rows as integers times powers of two."""

    integers: np.ndarray  # (rows, k), int64
    exponents: np.ndarray  # (rows,), exponents of the powers of two
    # number of elements below 2**(bits - 5) in each row; 0 if all are zeros, None if the row
    # cannot be split
    weak: list[int | None]
    is_lax: bool  # True if any element below 2**(bits - 12) was rounded


def scale_rows(x: np.ndarray, bits: int) -> ScaledRows:
    """Scale the rows of (rows, k) float64 to integers."""
    largest = np.abs(x).max(axis=1, initial=0)
    tops = np.frexp(np.where(np.isfinite(largest), largest, 1))[1] - 1
    is_fit = np.isfinite(largest) & (largest > 0) & (tops >= -LARGEST) & (tops < LARGEST)
    shifts = np.where(is_fit, bits - 1 - tops, 0)
    y = np.ldexp(np.where(is_fit[:, None], x, 0), shifts[:, None])
    integers = np.rint(y)
    size = np.abs(y)
    counts = (size < 2.0 ** (bits - WEAK_BITS)).sum(axis=1)
    weak = [
        0 if top == 0 else int(count) if fit else None
        for top, count, fit in zip(largest, counts, is_fit, strict=True)
    ]
    is_lax = bool(((size < 2.0 ** (bits - LAX_BITS)) & (integers != y)).any())
    return ScaledRows(integers.astype(np.int64), -shifts, weak, is_lax)


def is_accepted(a: ScaledRows, b: ScaledRows) -> bool:
    """True if the operands pass the validity check, so that the integers are multiplied."""
    if None in a.weak or None in b.weak:
        return False
    weak = sum(max((w for w in rows.weak if w), default=0) for rows in (a, b))
    return 8 * weak <= 7 * a.integers.shape[1] or not (a.is_lax or b.is_lax)


def residues_of(integers: np.ndarray, count: int) -> np.ndarray:
    """Residues nearest to 0 by so many moduli: (moduli, ...), int8."""
    half = [modulus // 2 for modulus in MODULI[:count]]
    nearest = [
        (integers % modulus + h) % modulus - h for modulus, h in zip(MODULI, half, strict=False)
    ]
    return np.array(nearest).astype(np.int8)


def combine(residues: list[int]) -> int:
    """Integer nearest to 0 that has these residues."""
    moduli = MODULI[: len(residues)]
    product = prod(moduli)
    total = 0
    for modulus, residue in zip(moduli, residues, strict=True):
        others = product // modulus
        total += residue * others * pow(others, -1, modulus)
    return (total + product // 2) % product - product // 2


def residue_product(a: ScaledRows, b: ScaledRows, count: int) -> np.ndarray:
    """Compute a @ b.T in float64, rounded once, from the residues of all sums."""
    result = np.empty((len(a.integers), len(b.integers)))
    by_modulus = [
        x.astype(np.int64) @ y.astype(np.int64).T % modulus
        for x, y, modulus in zip(
            residues_of(a.integers, count), residues_of(b.integers, count), MODULI, strict=False
        )
    ]
    for place in np.ndindex(result.shape):
        integer = combine([int(sums[place]) for sums in by_modulus])
        exponent = a.exponents[place[0]] + b.exponents[place[1]]
        result[place] = np.ldexp(float(integer), exponent)
    return result
