"""Calls of `gemm` and `plan` that differ in what they launch, for tests of graphs and streams."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dxgemm import epilogues, reductions
from dxgemm.choice.registry import find_implementation

ALPHA, BETA = 2.0, -1.0


def sliced() -> dict[str, Any]:
    """Options of split-K through a workspace."""
    configs = find_implementation("tuned").configs("float32")
    config = [c for c in configs if c.split_k == 1 and c.tile_k == 8][-1]  # a small one fits
    return {"implementation": ("tuned", config, 5)}


def row_sums(*, fused: bool) -> dict[str, Any]:
    """A reduction, in the product's kernel or behind it."""
    return {"epilogue": replace(reductions.sum(axis=1), fused=fused), "implementation": "tuned"}


@dataclass(frozen=True)
class Call:
    """Options of `gemm` and `plan`, and their effect on ALPHA * a @ b + BETA * c."""

    options: Callable[[], dict[str, Any]] = dict  # () -> the options
    # matrix on the host -> result; exact for small integers
    finish: Callable[[np.ndarray], np.ndarray] = lambda matrix: matrix

    def expected(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return self.finish(ALPHA * (a @ b) + BETA * c)


CALLS = {
    "one kernel": Call(),
    "split-K slices": Call(sliced),
    "emulated": Call(lambda: {"precision": "emulated", "implementation": "emulated_float32"}),
    "batch_invariant": Call(lambda: {"batch_invariant": True}),
    "epilogue": Call(lambda: {"epilogue": epilogues.relu}, lambda x: np.maximum(x, 0)),
    "fused reduction": Call(lambda: row_sums(fused=True), lambda x: x.sum(1)),
    "reduction": Call(lambda: row_sums(fused=False), lambda x: x.sum(1)),
}
