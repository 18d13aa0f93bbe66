"""Interleaved sampling of variants, several calls per sample.

Variants that are measured one after the other meet different clocks and temperatures of the GPU. So
all variants are sampled in turn, and consecutive calls take different operands.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

SAMPLE_S = 1e-3  # seconds of a sample, which is a batch of as many calls as fit
MOST_CALLS = 20  # most calls of a sample; it has at least one

Name = TypeVar("Name", bound=Hashable)


def calls_in_sample(call_s: float, sample_s: float = SAMPLE_S, most: int = MOST_CALLS) -> int:
    """Number of calls of a duration that fit in a sample; at least 1."""
    return min(most, max(1, int(sample_s / call_s)))


def sets_of_operands(set_bytes: int, l2_bytes: int, calls: int) -> int:
    """Number of sets of operands: enough to fill the L2 cache twice, at most one per call."""
    return min(calls, 1 + 2 * l2_bytes // set_bytes)


def interleave(
    variants: Mapping[Name, Callable[[], float]], rounds: int
) -> dict[Name, list[float]]:
    """Measure every variant once per round, starting with another one each round.

    Args:
        variants: name -> function that measures one sample and returns it in seconds.
        rounds: number of samples of each variant.

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
