"""Replay of interleaved measurements to pytest-benchmark.

All variants of a case are measured together, in turn (`dxgemm.tuning.sampling`), and the samples
are replayed to pytest-benchmark afterwards: `replay` runs one `pedantic` round a sample against
`replay_clock`, a clock that only moves by measured times. Every statistic in the JSON is therefore
pytest-benchmark's own, of times that were measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
