"""Interleaved measurements, and how they reach pytest-benchmark.

Two implementations measured one after the other also compare two clock and temperature states
of the GPU. So all variants of a case are measured together, one sample each in turn, and the
samples are replayed to pytest-benchmark afterwards: `replay` runs one `pedantic` round a sample
against `replay_clock`, a clock that only moves by measured times. Every statistic in the JSON
is therefore pytest-benchmark's own, of times that were measured here.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)

_replayed_s = 0.0


def replay_clock() -> float:
    """The timer of every suite: `pytest.mark.benchmark(timer=replay_clock)`."""
    return _replayed_s


def replay(benchmark: Any, samples_s: Sequence[float]) -> None:
    """Give pytest-benchmark one round for each of `samples_s` (seconds a call)."""
    remaining = iter(samples_s)

    def start_at_zero() -> None:
        global _replayed_s
        _replayed_s = 0.0

    def take_one_sample() -> None:
        global _replayed_s
        _replayed_s = next(remaining)

    benchmark.pedantic(take_one_sample, setup=start_at_zero, rounds=len(samples_s))


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
