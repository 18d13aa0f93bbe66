"""Counter-based random numbers: the same on every machine, whatever the order of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from dxgemm.epilogues.elementary import wide_product

# Salmon et al., table 2 and section 3.2: multipliers, and what a round adds to the key.
MULTIPLIER_0 = np.uint32(0xD2511F53)
MULTIPLIER_1 = np.uint32(0xCD9E8D57)
WEYL_0 = np.uint64(0x9E3779B9)
WEYL_1 = np.uint64(0xBB67AE85)
WORD_BITS = np.uint64(32)

ROUNDS = 7  # the fewest that pass BigCrush: Salmon et al., table 2


def philox_4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Four random words of 32 bits, from a counter and a key: Philox4x32-7.

    Args:
        c0, c1, c2, c3: words of the counter, uint32.
        k0, k1: words of the key, uint32.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    """
    for _ in range(ROUNDS):
        product_0 = wide_product(MULTIPLIER_0, c0)
        product_1 = wide_product(MULTIPLIER_1, c2)
        c0 = np.uint32((product_1 >> WORD_BITS) ^ c1 ^ k0)
        c1 = np.uint32(product_1)
        c2 = np.uint32((product_0 >> WORD_BITS) ^ c3 ^ k1)
        c3 = np.uint32(product_0)
        k0 = np.uint32(k0 + WEYL_0)
        k1 = np.uint32(k1 + WEYL_1)
    return c0, c1, c2, c3
