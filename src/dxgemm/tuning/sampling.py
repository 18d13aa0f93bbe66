"""Samples of several calls each, of all that is compared in turn.

Two things measured one after the other also compare two clock and temperature states of the GPU. So
everything that is compared is sampled together, and consecutive calls take different operands.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

SAMPLE_S = 1e-3  # a sample is a batch of as many calls as fit in this time ...
MOST_CALLS = 20  # ... but at least one and at most so many

Name = TypeVar("Name", bound=Hashable)


def calls_in_sample(call_s: float, sample_s: float = SAMPLE_S, most: int = MOST_CALLS) -> int:
    """Calls of so many seconds that fit in a sample; at least 1."""
    return min(most, max(1, int(sample_s / call_s)))


def sets_of_operands(set_bytes: int, l2_bytes: int, calls: int) -> int:
    """As many as the L2 cache holds twice over, or one for each call."""
    return min(calls, 1 + 2 * l2_bytes // set_bytes)


def interleave(
    variants: Mapping[Name, Callable[[], float]], rounds: int
) -> dict[Name, list[float]]:
    """Measure every variant once a round, starting with another one each round.

    Args:
        variants: name -> function that measures one sample and returns it in seconds.

    Returns:
        name -> its samples in seconds.
    """
    samples: dict[Name, list[float]] = {name: [] for name in variants}
    order = deque(variants.items())
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, take_sample in order:
                samples[name].append(take_sample())
            order.rotate(-1)
    finally:
        gc.enable()
    return samples
