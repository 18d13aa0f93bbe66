"""Random numbers from a counter: the same on every machine, in any order of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

# Salmon et al., table 2 and section 3.2: multipliers, and what a round adds to the key.
MULTIPLIER_0 = np.uint64(0xD2511F53)
MULTIPLIER_1 = np.uint64(0xCD9E8D57)
WEYL_0 = np.uint64(0x9E3779B9)
WEYL_1 = np.uint64(0xBB67AE85)
WORD_BITS = np.uint64(32)
WORD_MASK = np.uint64(0xFFFFFFFF)


def philox_4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Four random words of 32 bits, from a counter and a key: Philox4x32-10.

    Words are held in uint64, where a product of two is exact and no type changes from round to
    round, in NumPy as in numba.

    Args:
        c0, c1, c2, c3: words of the counter, uint64 below 2**32.
        k0, k1: words of the key, uint64 below 2**32.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    """
    for _ in range(10):
        product_0 = MULTIPLIER_0 * c0
        product_1 = MULTIPLIER_1 * c2
        c0 = (product_1 >> WORD_BITS) ^ c1 ^ k0
        c1 = product_1 & WORD_MASK
        c2 = (product_0 >> WORD_BITS) ^ c3 ^ k1
        c3 = product_0 & WORD_MASK
        k0 = (k0 + WEYL_0) & WORD_MASK
        k1 = (k1 + WEYL_1) & WORD_MASK
    return c0, c1, c2, c3
