"""The choice is a pure function of problem and device: tried on made-up devices and kernels."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from known_devices import H200, TUNED_H200

from dxgemm import _dispatch, _model, epilogues, errors
from dxgemm._dispatch import FEWEST_SLICED_TILES, choose, rank, slice_counts
from dxgemm._fusion import FusedReduction, Fusion
from dxgemm._model import ADDING_US, UNTUNED, adding_us, edge_share, predict_us
from dxgemm._problem import Strides, contiguous_problem, sliced_problem, stored_problem
from dxgemm._registry import IMPLEMENTATIONS, MOST_SLICES, Implementation, find_implementation
from dxgemm._speeds import THIN, Speed
from dxgemm.epilogues.function import bound_epilogue
from dxgemm.handwritten import tuned as kernel_file
from dxgemm.runtime.device import DeviceFacts

DEVICE = DeviceFacts(
    name="made up",
    arch="sm_90a",
    sm_count=4,
    peak_tflops={"float32": 60.0, "float64": 30.0},
    memory_gbytes_per_s=4000.0,
)
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "nvidia-h200"
RELU = Fusion(bound_epilogue(epilogues.relu).shape.functions, ())
ARGMIN = Fusion((), (), reduction=FusedReduction("smallest", 1, ("float32", "int64")))
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
class Reducing(Able):
    """An implementation that reduces what it computes."""

    def fuses_reduction(self, problem):
        return True


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
    ranking = rank(problem(*shape, dtype), DEVICE)
    first = ranking.candidates[0]
    assert first.implementation.is_own and first.reason
    assert first.config in first.implementation.configs(dtype)
    others = {i.name for i in IMPLEMENTATIONS} - {first.implementation.name}
    assert set(ranking.rejected) == others and all(ranking.rejected.values())


def test_the_same_problem_gives_the_same_choice():
    assert choose(problem(300, 200, 100), DEVICE) == choose(problem(300, 200, 100), DEVICE)


def test_tiny_problems_and_large_ones(configs_of_a_gpu):
    """One thread an element, and the top of the ladder."""
    assert choose(problem(3, 4, 5), H200).implementation.name == "coalesced"
    assert choose(problem(2048, 2048, 2048), H200).implementation.name == "tuned"


# What is within a twentieth of the best that was measured on the H200, by m = n = k and batch.
MEASURED_BATCHES = [
    ("float32", 4, 100, "small_batch 4x4x4"),
    ("float32", 4, 100_000, "small_batch 4x4x4"),
    ("float32", 8, 1000, "small_batch 8x8x8"),
    ("float32", 12, 5000, "small_batch 12x12x12"),
    ("float32", 16, 10_000, "small_batch 16x16x16 thread 2x4"),
    ("float32", 20, 5000, "small_batch 20x20x20"),
    ("float32", 24, 1000, "small_batch 24x24x24"),
    ("float32", 32, 100, "small_batch 32x32x32 thread 2x4"),
    ("float32", 32, 10_000, "small_batch 32x32x32 thread 4x4"),
    ("float32", 32, 100_000, "small_batch 32x32x32 thread 4x4"),
    ("float32", 40, 1000, "small_batch 40x40x40"),
    ("float32", 48, 100, "small_batch 48x48x48 thread 3x4"),
    ("float32", 48, 1000, "small_batch 48x48x48 thread 6x4"),
    ("float32", 48, 10_000, "small_batch 48x48x48 thread 6x4"),
    ("float32", 56, 5000, "small_batch 56x56x56"),
    ("float32", 64, 10_000, "small_batch 64x64x64"),
    ("float32", 72, 5000, "small_batch 72x72x72"),
    ("float32", 80, 5000, "small_batch 80x80x80"),
    ("float32", 96, 100, "small_batch 32x32x32"),
    ("float32", 96, 300, "small_batch"),
    ("float32", 96, 1000, "block_batch 96x96x96"),
    ("float32", 96, 10_000, "block_batch 96x96x96"),
    ("float32", 128, 3000, "tuned 128x"),
    ("float32", 128, 10_000, "tuned 128x"),
    ("float64", 4, 10_000, "small_batch 4x4x4"),
    ("float64", 12, 100_000, "small_batch 12x12x12"),
    ("float64", 16, 100, "tensor_batch 16x16x16"),
    ("float64", 24, 50_000, "small_batch 24x24x24"),
    ("float64", 32, 100, "tensor_batch 32x32x32"),
    ("float64", 40, 1000, "small_batch 40x40x40"),
    ("float64", 48, 1000, "small_batch 48x48x48"),
    ("float64", 64, 100, "tensor_core 32x64x16"),
    ("float64", 80, 5000, "tensor_batch 80x80x80"),
    ("float64", 96, 100, "tensor_batch 32x32x32"),
    ("float64", 96, 1000, "tensor_batch 96x96x48"),
    ("float64", 128, 100, "tensor_core 128x64x16"),
    ("float64", 128, 10_000, "tensor_core 128x64x16"),
]


@pytest.mark.parametrize("dtype, size, batch, best", MEASURED_BATCHES)
def test_a_batch_takes_what_was_measured_to_be_best(configs_of_a_gpu, dtype, size, batch, best):
    chosen = choose(contiguous_problem(dtype, size, size, size, batch), TUNED_H200)
    assert str(chosen).startswith(best)


@cache
def observations():
    """What the shipped table is fitted to."""
    lines = (RESULTS / "tuning.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def regrets_of_batches(dtype, device):
    """Times the best of the observations that the shipped table is fitted to."""
    measured = [found for found in observations() if found["shape"][0] == dtype]
    batches = [found for found in measured if found["shape"][4] > 1]
    assert len(batches) > 200
    for found in batches:
        times = {tuple(way): us for *way, us in found["us"] if way[0] != "cublas"}
        chosen = choose(contiguous_problem(*found["shape"]), device)
        way = chosen.implementation.name, str(chosen.config), chosen.slices
        yield times.get(way, math.inf) / min(times.values())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_model_knows_every_measured_batch(configs_of_a_gpu, dtype):
    assert max(regrets_of_batches(dtype, replace(TUNED_H200, trees={}))) <= 1.05


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_measured_batches_take_what_is_near_the_best(configs_of_a_gpu, dtype):
    regrets = list(regrets_of_batches(dtype, TUNED_H200))
    assert sum(regret <= 1.05 for regret in regrets) >= 0.92 * len(regrets)


@cache
def unseen_rows():
    """Choices that were measured on shapes that nothing was tuned on."""
    results = json.loads((RESULTS / "choice_regret.json").read_text())
    return [benchmark["extra_info"] for benchmark in results["benchmarks"]]


def shape_of(row):
    return row["dtype"], row["m"], row["n"], row["k"], row["batch"]


def regret_of_choice(row):
    """By what was measured; infinite if what is chosen now was not, which is far from the best."""
    chosen = choose(contiguous_problem(*shape_of(row)), TUNED_H200)
    way = f"{chosen.implementation.name} {chosen.config} {chosen.slices}"
    if way == f"{row['implementation']} {row['config']} {row['slices']}":
        return row["regret"]
    return row["first_us"].get(way, math.inf) / row["first_us"][row["best"]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_unseen_shapes_the_choice_is_what_was_measured_to_be_near_the_best(
    configs_of_a_gpu, dtype
):
    rows = [row for row in unseen_rows() if row["dtype"] == dtype]
    rows = [row for row in rows if min(row["m"], row["n"], row["k"]) >= THIN]
    assert len(rows) >= 120
    regrets = [regret_of_choice(row) for row in rows]
    assert sum(regret <= 1.05 for regret in regrets) >= 0.95 * len(rows)
    assert max(regrets) <= 1.3 and max(row["regret"] for row in rows) <= 1.3
    assert sum(math.log(row["vs_cublas"]) for row in rows) >= 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_unseen_thin_shapes_the_choice_is_seldom_far_from_the_best(configs_of_a_gpu, dtype):
    rows = [row for row in unseen_rows() if row["dtype"] == dtype]
    rows = [row for row in rows if min(row["m"], row["n"], row["k"]) < THIN]
    assert len(rows) >= 100
    regrets = [regret_of_choice(row) for row in rows]
    assert sum(regret <= 1.05 for regret in regrets) >= 0.9 * len(rows)
    assert max(regrets) <= 1.3 and max(row["regret"] for row in rows) <= 1.3
    assert sum(math.log(row["vs_cublas"]) for row in rows) >= 0
    assert "naive" in {row["best"].split()[0] for row in rows}
    assert "naive" in {row["implementation"] for row in rows}


def test_nothing_was_tuned_on_the_unseen_shapes():
    tuned = {tuple(found["shape"]) for found in observations()}
    drawn_by_both = {("float32", 1, 7, 3, 1)}  # so small that chance met it twice
    assert tuned.intersection(map(shape_of, unseen_rows())) == drawn_by_both


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [128, 256, 1024])
def test_one_matrix_of_several_tiles_is_not_taken_for_a_batch(configs_of_a_gpu, dtype, size):
    chosen = choose(problem(size, size, size, dtype), TUNED_H200)
    assert chosen.implementation.name not in ("small_batch", "tensor_batch")


def test_memory_bounds_a_batch():
    tiles, tile = Tiles("tiles", "test"), Tile(64, 64)
    batch = contiguous_problem("float32", 64, 64, 4, 1000)
    memory_us = batch.bytes_moved / (DEVICE.memory_gbytes_per_s * 1e3)
    assert predict_us(tiles, tile, batch, DEVICE) > memory_us


def test_operands_are_split_where_that_pays(configs_of_a_gpu):
    split = replace(problem(4096, 4096, 4096), precision="split")
    assert choose(split, H200).implementation.name == "split_wgmma"
    medium = replace(problem(1024, 1024, 1024), precision="split")
    best = choose(medium, H200)
    assert best.implementation.name == "split_wgmma"
    assert (best.config.tile_m, best.config.tile_n) == (128, 64)
    small = replace(problem(64, 64, 64), precision="split")
    assert choose(small, H200).implementation.name != "split_wgmma"


@pytest.mark.parametrize("precision", ["split", "split14"])
@pytest.mark.parametrize("size, pays", [(64, False), (2048, False), (4096, True), (8192, True)])
def test_remainders_are_multiplied_where_that_pays(configs_of_a_gpu, size, pays, precision):
    plain = problem(size, size, size, "float64")
    permitted = replace(plain, precision=precision)
    best = choose(permitted, H200).implementation.name
    assert (best == "split_int8") == pays
    assert choose(permitted, H200, "split_int8").implementation.name == "split_int8"
    assert "precision='split'" in rank(plain, H200).rejected["split_int8"]
    too_deep = replace(plain, k=2**18, precision=precision)
    assert choose(too_deep, H200).implementation.name != "split_int8"


def test_an_epilogue_after_a_short_k_wants_several_blocks_on_an_sm(configs_of_a_gpu):
    plain = problem(8192, 8192, 128)
    fused = replace(plain, epilogue=RELU)
    alone, shared = (choose(p, H200).config for p in (plain, fused))
    assert alone.min_blocks("float32") == 1 < shared.min_blocks("float32")
    deep = replace(problem(4096, 4096, 4096), epilogue=RELU)
    assert choose(deep, H200).config == alone


@pytest.mark.parametrize(
    ("dtype", "best"), [("float32", "128x64x8 thread"), ("float64", "64x64x16 warp 32x32")]
)
def test_after_a_short_k_the_config_is_the_measured_best(configs_of_a_gpu, dtype, best):
    fused = replace(problem(8192, 8192, 128, dtype), epilogue=RELU)
    assert str(choose(fused, TUNED_H200).config).startswith(best)
    nearest = replace(problem(65536, 16384, 64), epilogue=ARGMIN)
    assert str(choose(nearest, TUNED_H200).config).startswith("128x64x8")


@pytest.mark.parametrize("implementation", OWN, ids=lambda implementation: implementation.name)
def test_a_name_means_exactly_that_one(implementation):
    for shape in SHAPES:
        ranking = rank(problem(*shape), DEVICE, implementation.name)
        assert [c.implementation for c in ranking.candidates] == [implementation]


@pytest.mark.parametrize("implementation", OWN, ids=lambda implementation: implementation.name)
def test_a_config_means_exactly_that_one(implementation):
    for config in implementation.configs("float32"):
        ranking = rank(problem(64, 64, 64), DEVICE, (implementation.name, config))
        assert [c.config for c in ranking.candidates] == [config]


def test_a_named_implementation_that_cannot_says_why(monkeypatch):
    unable = Unable("unable", "test", reason="it has no hands")
    monkeypatch.setattr(_dispatch, "find_implementation", lambda name: unable)
    with pytest.raises(errors.UnsupportedProblemError, match=r"'unable'.*it has no hands"):
        choose(problem(1, 1, 1), DEVICE, "unable")


def test_a_baseline_is_never_the_automatic_choice(monkeypatch):
    baseline, own = Able("baseline", "test", is_own=False), Able("own", "test")
    monkeypatch.setattr(_dispatch, "IMPLEMENTATIONS", (baseline, own))
    ranking = rank(problem(1, 1, 1), DEVICE)
    assert [candidate.implementation for candidate in ranking.candidates] == [own]
    assert "named" in ranking.rejected["baseline"]


def test_when_none_fits_all_reasons_are_listed(monkeypatch):
    unable = tuple(Unable(name, "test", reason=f"{name} is tired") for name in ("left", "right"))
    monkeypatch.setattr(_dispatch, "IMPLEMENTATIONS", unable)
    with pytest.raises(errors.UnsupportedProblemError, match=r"left is tired.*right is tired"):
        choose(problem(1, 1, 1), DEVICE)


def test_where_a_reduction_has_to_be_fused_others_reduce_nothing(monkeypatch):
    plain, reducing = Able("plain", "test"), Reducing("reducing", "test")
    monkeypatch.setattr(_dispatch, "IMPLEMENTATIONS", (plain, reducing))
    nearest = replace(problem(64, 64, 64), epilogue=ARGMIN)
    assert len(rank(nearest, DEVICE).candidates) == 2
    ranking = rank(replace(nearest, must_fuse=True), DEVICE)
    assert [candidate.implementation for candidate in ranking.candidates] == [reducing]
    assert ranking.rejected == {"plain": "its kernels reduce nothing"}
    monkeypatch.setattr(_dispatch, "find_implementation", lambda name: plain)
    with pytest.raises(errors.UnsupportedProblemError, match=r"'plain'.*reduce nothing"):
        choose(replace(nearest, must_fuse=True), DEVICE, "plain")


def test_a_reduction_is_fused_where_the_matrix_takes_long_to_read(configs_of_a_gpu):
    nearest = replace(problem(8192, 8192, 512), epilogue=ARGMIN)
    fast = replace(H200, memory_gbytes_per_s=100 * H200.memory_gbytes_per_s)
    for device, is_fused in ((H200, True), (fast, False)):
        for must_fuse in (None, True, False):
            asked = replace(nearest, must_fuse=must_fuse)
            chosen = choose(asked, device).part_of(asked)
            fused = is_fused if must_fuse is None else must_fuse
            assert (chosen == asked) == (chosen.reduction is not None) == fused
    # The product by itself is quicker with the matrix stored.
    best = choose(nearest, H200)
    stored_us, fused_us = (
        predict_us(best.implementation, best.config, way, H200)
        for way in (stored_problem(nearest), nearest)
    )
    assert stored_us < fused_us


def test_slices_of_k_are_neither_too_many_nor_too_short(configs_of_a_gpu):
    kernel = find_implementation("tuned")
    config = kernel.configs("float32")[0]
    endless = replace(H200, sm_count=1_000_000)

    def most(k):
        return max(slice_counts(kernel, config, problem(64, 64, k), endless))

    shortest = FEWEST_SLICED_TILES * config.tile_k
    assert [most(shortest * count) for count in (1, 2, 10)] == [1, 2, 10]
    assert most(2 * shortest - 1) == 1
    assert most(shortest * MOST_SLICES) == most(1_000_000) == MOST_SLICES


@dataclass(frozen=True)
class Tile:
    tile_m: int
    tile_n: int
    split_k: int = 1


@dataclass(frozen=True)
class Tiles(Able):
    """An implementation with three tiles, the smallest of which is slow."""

    def configs(self, dtype=None):
        return (Tile(64, 64), Tile(64, 64, split_k=4), Tile(8, 8))

    def block_count(self, config, problem):
        tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
        return problem.batch * tiles * config.split_k

    def efficiency(self, config, problem):
        return 0.5 if config.tile_m == 64 else 0.1


@pytest.mark.parametrize(
    "shape, batch, tile",
    [
        ((128, 128, 9999), 1, Tile(64, 64)),  # a tile for each of the 4 SMs
        ((64, 64, 9999), 1, Tile(64, 64, split_k=4)),  # otherwise 3 SMs were idle
        ((64, 64, 1), 1, Tile(64, 64)),  # too little to share
        ((8, 8, 9999), 100, Tile(8, 8)),  # most of the larger tiles would lie outside
        ((64, 64, 9999), 100, Tile(64, 64)),  # enough matrices to fill every SM
    ],
)
def test_the_tile_of_the_shortest_predicted_time(monkeypatch, shape, batch, tile):
    monkeypatch.setattr(_dispatch, "IMPLEMENTATIONS", (Tiles("tiles", "test"),))
    m, n, k = shape
    ranking = rank(contiguous_problem("float32", m, n, k, batch), DEVICE)
    assert ranking.candidates[0].config == tile


def test_the_prediction_grows_by_whole_rounds_of_tiles():
    tiles, tile = Tiles("tiles", "test"), Tile(64, 64)
    times = [predict_us(tiles, tile, problem(64 * t, 64, 999), DEVICE) for t in (1, 4, 5, 8, 9)]
    assert times[0] < times[2] < times[4]
    # Within a round there is more for memory alone.
    assert times[1] - times[0] < 0.05 * times[0] and times[3] - times[2] < 0.05 * times[2]


WHOLE = problem(1024, 1024, 1024)
CASES = {
    "whole": (Tile(64, 64), WHOLE),
    "a misaligned": (Tile(64, 64), replace(WHOLE, a_alignment=4)),
    "b misaligned": (Tile(64, 64), replace(WHOLE, b_alignment=4)),
    "result misaligned": (Tile(64, 64), replace(WHOLE, out=Strides(0, 1025, 1))),
    "edges": (Tile(64, 64), problem(1040, 1024, 1024)),
    "clusters": (Tile(64, 64, split_k=4), WHOLE),
}


@pytest.mark.parametrize(
    "term, value, cases",
    [
        ("misaligned", 1.5, {"a misaligned", "b misaligned"}),
        ("misaligned_tile_us", 2.0, {"b misaligned"}),
        ("misaligned_writes", 3.0, {"result misaligned"}),
        ("guarded", 1.5, {"edges"}),
        ("cluster_block_us", 1.0, {"clusters"}),
    ],
)
def test_a_term_raises_the_times_of_what_it_is_about(term, value, cases):
    tiles, plain = Tiles("tiles", "test"), Speed(0.5)
    raised = replace(plain, **{term: value})
    for name, of in CASES.items():
        before_us, after_us = (predict_us(tiles, *of, DEVICE, speed) for speed in (plain, raised))
        assert after_us > before_us if name in cases else after_us == before_us, name


@pytest.mark.parametrize(
    "m, n, share", [(128, 128, 0), (96, 128, 1 / 2), (96, 96, 3 / 4), (160, 64, 1 / 3), (9, 9, 1)]
)
def test_edges_are_the_tiles_that_reach_beyond_the_result(m, n, share):
    assert edge_share(Tile(64, 64), problem(m, n, 64)) == pytest.approx(share)


def test_adding_the_sums_of_slices_takes_time(monkeypatch):
    slices = [sliced_problem(WHOLE, count) for count in (2, 4)]
    assert adding_us(WHOLE) == 0
    assert ADDING_US < adding_us(slices[0]) < adding_us(slices[1])
    tiles, tile = Tiles("tiles", "test"), Tile(64, 64)
    whole_us, sliced_us = (predict_us(tiles, tile, p, DEVICE) for p in (WHOLE, slices[0]))
    monkeypatch.setattr(_model, "adding_us", lambda problem: 0.0)
    assert predict_us(tiles, tile, WHOLE, DEVICE) == whole_us
    added_us = sliced_us - predict_us(tiles, tile, slices[0], DEVICE)
    assert added_us == pytest.approx(adding_us(slices[0]))


def test_what_the_table_of_its_kernel_leaves_out_is_taken_to_be_slower(configs_of_a_gpu):
    kernel, other = find_implementation("tuned"), find_implementation("coalesced")
    listed, left_out = kernel.configs("float32")[:2]
    tuned = replace(H200, speeds={("float32", f"tuned {listed}"): Speed(0.7)})

    def ratio(implementation, config, problem):
        stated_us, us = (predict_us(implementation, config, problem, d) for d in (H200, tuned))
        return us / stated_us

    assert ratio(kernel, left_out, WHOLE) == pytest.approx(1 / UNTUNED)
    assert ratio(kernel, left_out, contiguous_problem("float32", 64, 64, 64, 1000)) == 1
    assert ratio(kernel, left_out, problem(1024, 1024, 1024, "float64")) == 1
    assert ratio(other, other.configs("float32")[0], WHOLE) == 1


# Medians on the H200, microseconds: m = n = k, config of `tuned`, measured.
MEASURED_US = [
    (256, (64, 64, 1), 9.95), (512, (32, 64, 1), 11.8), (512, (64, 64, 2), 12.0),
    (768, (64, 64, 4), 29.4), (1024, (128, 128, 2), 50.5), (1024, (64, 64, 1), 53.3),
    (1536, (64, 64, 2), 170.6), (1536, (128, 256, 1), 244.3), (2048, (128, 256, 1), 326.4),
]  # fmt: skip


@pytest.mark.parametrize("size, tile, measured_us", MEASURED_US)
def test_the_model_agrees_with_measurements(size, tile, measured_us):
    configs = (c for c in kernel_file.CONFIGS if (c.tile_m, c.tile_n, c.split_k) == tile)
    predicted_us = predict_us(
        find_implementation("tuned"), next(configs), problem(size, size, size), H200
    )
    assert abs(predicted_us / measured_us - 1) < 1 / 7
