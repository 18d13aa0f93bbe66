"""The choice is a pure function of problem and device: tried on made-up devices and kernels."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dxgemm import _dispatch, errors
from dxgemm._dispatch import choose
from dxgemm._problem import contiguous_problem
from dxgemm._registry import IMPLEMENTATIONS, Implementation
from dxgemm.runtime.device import DeviceFacts

DEVICE = DeviceFacts(
    name="made up",
    arch="sm_90a",
    sm_count=4,
    peak_tflops={"float32": 60.0, "float64": 30.0},
    memory_gbytes_per_s=4000.0,
)
SHAPES = [(1, 1, 1), (3, 4, 5), (64, 64, 64), (1, 8192, 8192), (8192, 1, 3), (4096, 4096, 4096)]
OWN = [
    implementation
    for implementation in IMPLEMENTATIONS
    if implementation.is_own
    and implementation.supports(contiguous_problem("float32", 64, 64, 64)) is None
]


@dataclass(frozen=True)
class Able(Implementation):
    """An implementation that accepts everything."""

    def supports(self, problem):
        return None

    def configs(self, dtype=None):
        return (None,)

    def bind(self, problem, config, arch, ordinal):
        raise AssertionError("never bound")


@dataclass(frozen=True)
class Unable(Able):
    """An implementation that declines everything."""

    reason: str = "declines"

    def supports(self, problem):
        return self.reason


def problem(m, n, k, dtype="float32"):
    return contiguous_problem(dtype, m, n, k)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_automatic_choice_is_among_own_kernels_and_explains_the_others(shape, dtype):
    decision = choose(problem(*shape, dtype), DEVICE)
    first = decision.candidates[0]
    assert first.implementation.is_own and first.reason
    assert first.config in first.implementation.configs(dtype)
    others = {i.name for i in IMPLEMENTATIONS} - {first.implementation.name}
    assert set(decision.rejected) == others and all(decision.rejected.values())


def test_the_same_problem_gives_the_same_choice():
    assert choose(problem(300, 200, 100), DEVICE) == choose(problem(300, 200, 100), DEVICE)


def test_tiny_problems_take_one_thread_an_element_and_large_ones_a_tile():
    assert choose(problem(3, 4, 5), DEVICE).candidates[0].implementation.name == "coalesced"
    assert (
        choose(problem(2048, 2048, 2048), DEVICE).candidates[0].implementation.name
        == "thread_tile_2d"
    )


@pytest.mark.parametrize("implementation", OWN, ids=lambda implementation: implementation.name)
def test_a_name_means_exactly_that_one(implementation):
    for shape in SHAPES:
        decision = choose(problem(*shape), DEVICE, implementation.name)
        assert [c.implementation for c in decision.candidates] == [implementation]


@pytest.mark.parametrize("implementation", OWN, ids=lambda implementation: implementation.name)
def test_a_config_means_exactly_that_one(implementation):
    for config in implementation.configs():
        decision = choose(problem(64, 64, 64), DEVICE, (implementation.name, config))
        assert [c.config for c in decision.candidates] == [config]


def test_a_named_implementation_that_cannot_says_why(monkeypatch):
    unable = Unable("unable", "test", reason="it has no hands")
    monkeypatch.setattr(_dispatch, "find_implementation", lambda name: unable)
    with pytest.raises(errors.UnsupportedProblemError, match=r"'unable'.*it has no hands"):
        choose(problem(1, 1, 1), DEVICE, "unable")


def test_a_baseline_is_never_the_automatic_choice(monkeypatch):
    baseline, own = Able("baseline", "test", is_own=False), Able("own", "test")
    monkeypatch.setattr(_dispatch, "IMPLEMENTATIONS", (baseline, own))
    decision = choose(problem(1, 1, 1), DEVICE)
    assert [candidate.implementation for candidate in decision.candidates] == [own]
    assert "named" in decision.rejected["baseline"]


def test_when_none_fits_all_reasons_are_listed(monkeypatch):
    unable = tuple(Unable(name, "test", reason=f"{name} is tired") for name in ("left", "right"))
    monkeypatch.setattr(_dispatch, "IMPLEMENTATIONS", unable)
    with pytest.raises(errors.UnsupportedProblemError, match=r"left is tired.*right is tired"):
        choose(problem(1, 1, 1), DEVICE)


@dataclass(frozen=True)
class Tile:
    tile_m: int
    tile_n: int


@dataclass(frozen=True)
class Tiles(Able):
    """An implementation with three tiles, the largest first."""

    def configs(self, dtype=None):
        return (Tile(64, 64), Tile(32, 32), Tile(8, 8))

    def block_count(self, config, problem):
        return problem.batch * -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)


@pytest.mark.parametrize(
    "shape, batch, tile",
    [
        ((128, 64, 9), 1, 64),  # 2 blocks for 4 SMs: half is enough
        ((64, 64, 9), 1, 32),  # 1 block of 64 x 64 would leave 3 SMs idle
        ((32, 32, 9), 100, 32),  # many matrices, but each fills a quarter of the largest tile
        ((96, 96, 9), 100, 32),  # 44 % of 64 x 64 tiles would lie outside
        ((120, 120, 9), 100, 64),  # 12 % would
        ((5, 5, 9), 1, 8),  # nothing fits: the smallest
    ],
)
def test_the_largest_tile_that_fits_and_fills_half_the_device(monkeypatch, shape, batch, tile):
    monkeypatch.setattr(_dispatch, "IMPLEMENTATIONS", (Tiles("tiles", "test"),))
    m, n, k = shape
    decision = choose(contiguous_problem("float32", m, n, k, batch), DEVICE)
    assert decision.candidates[0].config == Tile(tile, tile)
