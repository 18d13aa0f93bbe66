"""Choice of a kernel: its legality, the model's predictions, and the tables of speeds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import islice, product
from operator import attrgetter

import numpy as np
import pytest
from known_devices import A100, H100, H200
from oracle.kinds import KINDS

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.call.explain import explain_shape
from dxgemm.choice import legality, selection, tables
from dxgemm.choice.columns import COPYING_SHARE, Columns, Row
from dxgemm.choice.implementation import MOST_SLICES, Implementation
from dxgemm.choice.legality import can_slice, exclusion, legal_kernels, refusal
from dxgemm.choice.model import (
    ADDING_BYTES_PER_US,
    ADDING_US,
    COPYING_US,
    UNFILLED,
    predict,
    schedule,
)
from dxgemm.choice.problem_facts import LEAST_COPIED_BYTES, ProblemFacts
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.choice.residual import MOST, UNIT, candidate_features, problem_features
from dxgemm.choice.selection import (
    all_rows,
    choose,
    rank,
    speed_of,
    speeds_from,
)
from dxgemm.choice.tables import Chip, Speed, Table, read_table, table_for, write_table
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.gpu.facts import SIMULATED_DEVICE
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import PRECISIONS
from dxgemm.problem.fusion import FusedReduction, Fusion
from dxgemm.problem.layout import NO_STRIDES
from dxgemm.problem.problem import flattened
from dxgemm.tuning.workloads import ARITHMETICS, Workload, random_workloads

PACKAGED = tables.PACKAGED  # fixtures put others in its place
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8")
RELU = Fusion(bound_epilogue(epilogues.relu).stages, ())
ARGMIN = Fusion((), (), reduction=FusedReduction("smallest", 1, ("float32", "int64")))
KEY = "float32", "coalesced", str(find_implementation("coalesced").configs("float32")[0])


def random_problems(count, seed=3):
    """Yield problems of every arithmetic; some in float32 are reduced, fused, unfused or either."""
    workloads = random_workloads((*ARITHMETICS, ("bfloat16", None)), seed)
    for number, workload in enumerate(islice(workloads, count)):
        problem = workload.problem()
        yield problem
        if problem.dtype == "float32" and problem.epilogue is None and problem.batch == 1:
            yield replace(problem, epilogue=ARGMIN, must_fuse=(None, True, False)[number % 3])


def problem(m, n, k, dtype="float32", batch=1, **changes):
    return replace(contiguous_problem(dtype, m, n, k, batch), **changes)


def columns_of(rows, dtype, device=H200, speed=None, table=None):
    speeds = [speed or speed_of(row, dtype, table) for row in rows]
    return Columns.of(rows, speeds, dtype, device)


def predict_us(rows, asked, device=H200, slices=None, **known):
    """Times of rows for one problem, by the model alone."""
    columns, facts = columns_of(rows, asked.dtype, device, **known), ProblemFacts.of(asked)
    return predict(facts, schedule(columns, facts, slices))


def whole_rows(dtype):
    return [row for row in all_rows(dtype, H200) if not row.fill]


# What is legal.


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)
def test_legal_is_what_has_no_reason_against_it(configs_of_a_gpu, device):
    for asked in random_problems(150):
        legal = legal_kernels(asked, device)
        reasons = {i.name: exclusion(i, asked, device) for i in IMPLEMENTATIONS}
        able = [i for i in IMPLEMENTATIONS if not reasons[i.name] and i.configs(asked.dtype)]
        assert legal == able and legal
        assert all(i.is_own and i.supports(asked) is None for i in legal if not asked.reduction)


def test_without_the_precision_that_it_needs_a_kernel_refuses(configs_of_a_gpu):
    needing = [(i, dtype, name) for i in IMPLEMENTATIONS for dtype, name in i.needs.items()]
    assert needing
    for implementation, dtype, name in needing:
        others = {None, *PRECISIONS[dtype]} - {name}
        for precision in others:
            asked = contiguous_problem(dtype, 512, 512, 512, layout="row_col", precision=precision)
            reason = implementation.supports(asked)
            assert reason and name in reason
        permitted = contiguous_problem(dtype, 512, 512, 512, layout="row_col", precision=name)
        assert implementation.supports(permitted) is None


def test_reasons_name_what_is_in_the_way(configs_of_a_gpu):
    large = problem(512, 512, 512)
    for name, asked, device, reason in (
        ("cublas", large, H200, "baseline"),
        ("vectorized", large, H200, "used only when named"),
        ("tensor_core", large, H200, "computes float64, not float32"),
        ("wgmma", replace(large, precision="tf32"), A100, "compute capability"),
        ("coalesced", replace(large, epilogue=ARGMIN, must_fuse=True), H200, "reduce nothing"),
    ):
        assert reason in exclusion(find_implementation(name), asked, device)
    assert refusal(find_implementation("vectorized"), large, H200) is None


def test_a_named_one_that_cannot_says_why(configs_of_a_gpu):
    large, tuned = problem(512, 512, 512), find_implementation("tuned")
    config, *_, other = tuned.configs("float32")
    with pytest.raises(errors.UnsupportedProblemError, match=r"'tensor_core'.*not float32"):
        choose(large, H200, "tensor_core")
    with pytest.raises(errors.UnknownImplementationError, match=r"'magic' is unknown"):
        choose(large, H200, "magic")
    with pytest.raises(errors.UnsupportedProblemError, match=f"no config 7.*{other}"):
        choose(large, H200, ("tuned", 7))
    for wrong in (("tuned",), ("tuned", config, 0), ("tuned", config, 1.5)):
        with pytest.raises(errors.UnknownImplementationError, match="number of split-K slices"):
            choose(large, H200, wrong)
    with pytest.raises(errors.UnsupportedProblemError, match="cannot cut this k into 500"):
        choose(large, H200, ("tuned", config, 500))


def test_a_name_means_exactly_that(configs_of_a_gpu):
    asked = problem(300, 200, 1000)
    for implementation in IMPLEMENTATIONS:
        if refusal(implementation, asked, H200) or not implementation.is_own:
            continue
        name = implementation.name
        for named in (name, *((name, config) for config in implementation.configs("float32"))):
            (found,) = rank(asked, H200, named).candidates
            assert found == choose(asked, H200, named)
            assert found.implementation is implementation and found.us > 0
            assert named == name or (found.config, found.slices) == (named[1], 1)
            if named != name:
                assert choose(asked, H200, (name, str(named[1]))) == found
    with pytest.raises(errors.UnsupportedProblemError, match="has no config '1x1x1'"):
        choose(asked, H200, ("tuned", "1x1x1"))


def test_slices_are_neither_too_many_nor_of_what_cannot_be_added(configs_of_a_gpu):
    tuned = find_implementation("tuned")
    config = next(config for config in tuned.configs("float32") if config.split_k == 1)
    long = problem(64, 64, 10**6)
    assert choose(long, H200, ("tuned", config, 5)).slices == 5
    assert can_slice(tuned, config, long, MOST_SLICES)
    assert not can_slice(tuned, config, long, MOST_SLICES + 1)
    assert not can_slice(tuned, config, problem(64, 64, config.tile_k), 2)
    assert not can_slice(tuned, config, replace(long, epilogue=ARGMIN), 2)
    assert not can_slice(find_implementation("coalesced"), config, long, 2)


@dataclass(frozen=True)
class Tired(Implementation):
    """An implementation that declines everything."""

    def supports(self, problem):
        return f"{self.name} is tired"

    def configs(self, dtype=None, arch=None):
        return find_implementation("naive").configs(dtype, arch)

    def bind(self, problem, config, arch, ordinal):
        raise AssertionError("never bound")


def test_when_none_fits_all_reasons_are_listed(give_table, monkeypatch):
    tired = tuple(Tired(name, "test") for name in ("left", "right"))
    for module in (legality, selection):
        monkeypatch.setattr(module, "IMPLEMENTATIONS", tired)
    give_table(H200, {})
    for function in (choose, rank):
        with pytest.raises(errors.UnsupportedProblemError, match=r"left is tired.*right is tired"):
            function(problem(1, 1, 1), H200)


# The choice is the shortest time.


@pytest.fixture
def made_up_table(give_table):
    """A table of random speeds and corrections, of every dtype."""
    rng = np.random.default_rng(7)
    rows = {dtype: all_rows(dtype, H200) for dtype in DTYPES}
    speeds = {
        (dtype, row.implementation.name, str(row.config)): Speed(rng.uniform(0.2, 0.9))
        for dtype in DTYPES
        for row in rows[dtype]
    }
    corrections = {
        (dtype, row.name): rng.normal(0, 0.05, len(tables.FEATURES))
        for dtype in DTYPES
        for row in rows[dtype]
    }
    give_table(H200, speeds, corrections)


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
def test_the_choice_is_the_first_of_the_ranking(made_up_table, device):
    for asked in random_problems(300):
        best, ranking = choose(asked, device), rank(asked, device)
        first = ranking.candidates[0]
        # The sums of a matrix product may differ in the last bit with the number of candidates.
        assert first._replace(us=best.us) == best and first.us == pytest.approx(best.us, 1e-12)
        times = [candidate.us for candidate in ranking.candidates]
        assert times == sorted(times) and times[0] > 0 and math.isfinite(times[-1])
        own = [candidate.implementation for candidate in ranking.candidates]
        assert len(set(own)) == len(own) and set(own) == set(legal_kernels(asked, device))
        others = {i.name for i in IMPLEMENTATIONS} - {best.implementation.name}
        assert set(ranking.rejected) == others and all(ranking.rejected.values())
        assert best.slices == 1 or can_slice(best.implementation, best.config, asked, best.slices)
        assert asked.must_fuse is None or best.stores_matrix is not asked.must_fuse


def test_a_reduction_is_fused_or_not_as_takes_less_time(configs_of_a_gpu):
    for m, n, k in ((64, 64, 16), (8192, 8192, 64), (100_000, 512, 128), (512, 512, 16_384)):
        asked = problem(m, n, k, epilogue=ARGMIN)
        either, fused, stored = (
            choose(replace(asked, must_fuse=must_fuse), H200) for must_fuse in (None, True, False)
        )
        assert either.us == min(fused.us, stored.us) and fused.us != stored.us
        assert either.stores_matrix is (stored.us < fused.us)
        assert (fused.stores_matrix, stored.stores_matrix) == (False, True)


def test_without_corrections_the_choice_is_the_least_of_all_predictions(give_table):
    give_table(H200, {KEY: Speed(0.4)})
    table = table_for(H200)
    for asked in random_problems(200):
        if asked.reduction is None:
            legal = legal_kernels(asked, H200)
            rows = [row for row in all_rows(asked.dtype, H200) if row.implementation in legal]
            if not legality.is_sliceable(asked):
                rows = [row for row in rows if not row.fill]
            least_us = min(predict_us([row], asked, table=table)[0] for row in rows)
            assert choose(asked, H200).us == pytest.approx(least_us, rel=1e-12)


def test_explain_shows_the_numbers_of_the_choice(made_up_table, monkeypatch):
    monkeypatch.setattr("dxgemm.call.explain.device_facts", lambda ordinal: H200)
    for dtype in DTYPES:
        for m, n, k, batch in ((4096, 4096, 4096, 1), (64, 64, 20_000, 1), (33, 33, 33, 500)):
            explained = explain_shape(m, n, k, dtype, batch=batch)
            best = choose(contiguous_problem(dtype, m, n, k, batch), H200)
            assert explained.implementation == best.implementation.name
            assert (explained.config, explained.choice.slices) == (
                str(best.config),
                best.slices,
            )
            assert explained.choice.candidates[0] == (str(best), best.us)
            assert explained.prediction.us == min(us for _, us in explained.choice.candidates)
            assert explained.prediction.speeds in explained.full()
            several = explained.choice.candidates if len(explained.choice.candidates) > 1 else ()
            assert all(f"{name} " in explained.full() for name, _ in several)


EMPTY = [(0, 5, 5, 1), (5, 0, 5, 1), (5, 5, 0, 1), (0, 0, 0, 1), (5, 5, 5, 0), (0, 5, 5, 3)]


def ordered(kind, a_is_col, b_is_col, *sizes):
    options = {"out_dtype": kind.out_dtype, "precision": kind.precision}
    rows = contiguous_problem(kind.dtype, *sizes, **options)
    a, b = (x.transposed() if t else x for x, t in ((rows.a, a_is_col), (rows.b, b_is_col)))
    return replace(rows, a=a, b=b)


@pytest.mark.parametrize("implementation", dxgemm.implementations(), ids=attrgetter("name"))
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kernel_takes_empty_operands_as_it_takes_others(implementation, kind):
    for is_col in product((False, True), repeat=2):
        if implementation.supports(ordered(kind, *is_col, 64, 64, 64)) is not None:
            continue
        for sizes in EMPTY:
            empty = ordered(kind, *is_col, *sizes)
            for problem in (empty, replace(empty, a=NO_STRIDES, b=NO_STRIDES)):
                assert implementation.supports(problem) is None, (is_col, sizes)


@pytest.mark.parametrize("m, n, k, batch", EMPTY)
def test_a_problem_may_be_empty(configs_of_a_gpu, m, n, k, batch):
    for dtype in DTYPES:
        candidates = rank(problem(m, n, k, dtype, batch), H200).candidates
        assert all(math.isfinite(candidate.us) for candidate in candidates)
    # What a kernel computes does not depend on whether there is anything to compute.
    assert choose(problem(m, n, k, "int8", batch), H200, "pipeline_tma").config


def test_rows_of_all_matrices_are_never_predicted_to_take_longer(configs_of_a_gpu):
    for dtype in ("float32", "float64", "float16", "int8"):
        for batch, m, n, k in ((32, 1, 4096, 4096), (8, 16, 1024, 4096), (1000, 33, 64, 64)):
            shared = problem(m, n, k, dtype, batch)
            shared = replace(shared, b=shared.b._replace(batch=0))
            flat = flattened(shared)
            assert flat == problem(batch * m, n, k, dtype)
            assert choose(flat, H200).us <= choose(shared, H200).us


def test_in_the_simulator_nothing_waits_at_barriers():
    if not simulator_enabled():
        pytest.skip("about the simulator")
    for m, n, k, batch in ((9, 9, 9, 1), *EMPTY):
        best = choose(problem(m, n, k, batch=batch), SIMULATED_DEVICE)
        assert best.config.smem_bytes("float32") == 0
    explained = dxgemm.explain(np.eye(3), np.eye(3))
    assert (
        explained.choice.candidates == ()
        and explained.prediction.us is explained.prediction.speeds is None
    )


# The model.


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_work_is_never_predicted_to_take_less_time(configs_of_a_gpu, dtype):
    rows, precisions = whole_rows(dtype), {"float64": (None, "emulated")}.get(dtype, (None,))
    sizes = (512, 768, 1024, 4096, 12288)
    for precision in precisions:
        for changed in ("m", "n", "k", "batch"):
            before_us = np.zeros(len(rows))
            for size in sizes:
                shape = {"m": 512, "n": 768, "k": 1024, "batch": 3} | {changed: size}
                asked = problem(**shape, dtype=dtype, precision=precision)
                us = predict_us(rows, asked)
                assert (us >= before_us).all(), (changed, size)
                before_us = us
            assert (before_us > 2 * predict_us(rows, problem(512, 768, 1024, dtype))).any()


def test_tiles_of_wgmma_take_what_tensor_cores_and_memories_take(configs_of_a_gpu):
    def times(m, n, k, layout="row_col"):
        asked = Workload("float16", m, n, k, 1, None, layout).problem()
        us = predict_us(rows, asked, speed=Speed(1.0))
        return {str(row.config): us[place] for place, row in enumerate(rows)}

    rows = [row for row in whole_rows("float16") if row.implementation.name == "wgmma"]
    name = "128x192 stages 5"
    # A wave that is not full takes less than a full one, and one tile more much more.
    counts = (11, 6), (11, 12), (7, 19)  # of tiles along m and n: 66, 132 and 133
    half, whole, more = (times(128 * m, 192 * n, 8192)[name] for m, n in counts)
    assert half < 0.95 * whole and 1.3 * whole < more < 1.95 * whole
    # Rows that begin at no cache line are fetched in pieces; a pair of blocks fetches less of them.
    aligned, shifted = times(4096, 4096, 8192), times(4096, 4096, 8200)
    assert all(shifted[config] > 1.04 * us for config, us in aligned.items())
    single, pair = "128x176 stages 5 pingpong", "128x176 stages 5 pingpong paired"
    assert shifted[pair] < 0.9 * shifted[single] and aligned[pair] > 0.99 * aligned[single]
    # Panels of an MN-major b are fetched whole, from where a tile begins.
    across = times(4096, 4096, 8192, "row_row")
    assert across[name] == aligned[name]
    cut = "128x168 stages 5 pingpong"
    assert across[cut] > 1.2 * aligned[cut]
    # While a pingpong config stores a tile, it multiplies the next one.
    squares = times(8192, 8192, 512)
    assert squares["128x128 stages 6 pingpong"] < 0.95 * squares["128x128 stages 6"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_lesser_gpu_is_never_predicted_to_be_faster(configs_of_a_gpu, dtype):
    rows = whole_rows(dtype)
    half = replace(
        H200,
        sm_count=66,
        peak_tflops={name: peak / 2 for name, peak in H200.peak_tflops.items()},
        tensor_tflops={name: peak / 2 for name, peak in H200.tensor_tflops.items()},
    )
    narrow = replace(H200, memory_gbytes_per_s=2400.0)
    for asked in (problem(4096, 4096, 1, dtype), problem(4096, 4096, 4096, dtype)):
        us, half_us, narrow_us = (predict_us(rows, asked, d) for d in (H200, half, narrow))
        assert (half_us >= us).all() and (narrow_us >= us).all()
    assert (half_us > 1.5 * us).any()
    flat = problem(16384, 16384, 1, dtype)
    assert predict_us(rows, flat, narrow).min() > 1.2 * predict_us(rows, flat).min()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_cost_their_addition(configs_of_a_gpu, monkeypatch, dtype):
    rows = [row._replace(fill=0) for row in all_rows(dtype, H200) if row.fill == 1]
    asked = problem(512, 512, 8192, dtype)
    sliced_us = {count: predict_us(rows, asked, slices=count) for count in (1, 2, 8)}
    monkeypatch.setattr("dxgemm.choice.model.ADDING_US", 0.0)
    monkeypatch.setattr("dxgemm.choice.model.ADDING_BYTES_PER_US", math.inf)
    item_bytes = 4 if dtype == "float32" else 8
    for count, us in sliced_us.items():
        added_us = ADDING_US + count * 512 * 512 * item_bytes / ADDING_BYTES_PER_US
        free_us = predict_us(rows, asked, slices=count)
        assert us - free_us == pytest.approx(added_us if count > 1 else 0, abs=1e-9)


SPEED = Speed(0.5)
ALIGNED = problem(1024, 1024, 1024)
TERMS = {
    "misaligned": {"odd a", "odd b"},
    "a_col": {"a in columns"},
    "b_col": {"b in columns"},
    "misaligned_writes": {"odd out"},
    "epilogue_ns": {"epilogue"},
}
CASES = {
    "plain": ALIGNED,
    "odd a": replace(ALIGNED, a_alignment=4),
    "odd b": replace(ALIGNED, b_alignment=4),
    "odd out": replace(ALIGNED, out=ALIGNED.out._replace(row=1025)),
    "a in columns": replace(ALIGNED, a=ALIGNED.a.transposed()),
    "b in columns": replace(ALIGNED, b=ALIGNED.b.transposed()),
    "epilogue": replace(ALIGNED, epilogue=RELU),
}


@pytest.mark.parametrize("term", TERMS)
def test_a_term_raises_the_times_of_what_it_is_about(configs_of_a_gpu, term):
    raised = replace(SPEED, **{term: 4.0})
    # Those that copy misaligned operands first have a test of their own.
    rows = [row for row in whole_rows("float32") if not row.implementation.kernel.copies_operands]
    for name, asked in CASES.items():
        before_us, after_us = (predict_us(rows, asked, speed=speed) for speed in (SPEED, raised))
        assert (
            (after_us > before_us).all() if name in TERMS[term] else (after_us == before_us).all()
        ), name


def test_aligned_copies_take_time(configs_of_a_gpu):
    rows = [row for row in whole_rows("float16") if row.implementation.kernel.copies_operands]
    aligned = problem(1024, 1024, 1024, dtype="float16")
    odd_a, odd_b = replace(aligned, a_alignment=4), replace(aligned, b_alignment=4)
    times = [predict_us(rows, asked) for asked in (aligned, odd_a, odd_b)]
    both = predict_us(rows, replace(odd_a, b_alignment=4))
    copied_us = COPYING_US + 2 * 2 * 1024**2 / (H200.memory_gbytes_per_s * 1e3 * COPYING_SHARE)
    assert rows
    for us in times[1:]:
        np.testing.assert_allclose(us - times[0], copied_us)
    np.testing.assert_allclose(both - times[0], 2 * copied_us)


def test_copies_of_small_matrices_take_a_block_each(configs_of_a_gpu):
    one = ProblemFacts.of(problem(9 * 6000, 11, 11, dtype="float16"))
    many = ProblemFacts.of(problem(9, 11, 11, batch=6000, dtype="float16"))
    assert one.copies == many.copies == 2
    assert many.copied_bytes == 6000 * 2 * LEAST_COPIED_BYTES > 5 * one.copied_bytes
    whole = ProblemFacts.of(problem(32, 11, 11, batch=6000, dtype="float16"))
    assert whole.copied_bytes == many.copied_bytes, "up to 32 rows of 512 bytes are one block"


@pytest.mark.parametrize("layout", ["row_row", "row_col", "col_row", "col_col"])
def test_tf32_tiles_lie_as_wgmma_computes_them(configs_of_a_gpu, layout):
    asked = Workload("float32", 176, 4416, 64, 3, "tf32", layout).problem()
    wgmma = find_implementation("wgmma")
    rows = [row for row in all_rows("float32", H200) if row.implementation is wgmma]
    columns = columns_of(rows, "float32")
    plan = schedule(columns, ProblemFacts.of(asked))
    together = schedule(columns, ProblemFacts.of_all([asked]))
    np.testing.assert_array_equal(together.mean_tiles_per_sm[0], plan.mean_tiles_per_sm)
    tiles = [wgmma.kernel.block_count(row.config, asked.aligned) for row in rows]
    np.testing.assert_allclose(plan.mean_tiles_per_sm * H200.sm_count, tiles)


@pytest.mark.parametrize("dtype", DTYPES)
def test_problems_are_predicted_together_as_they_are_one_by_one(configs_of_a_gpu, dtype):
    problems = [asked for asked in random_problems(300) if asked.dtype == dtype]
    columns = columns_of(all_rows(dtype, H200), dtype)
    together = ProblemFacts.of_all(problems)
    us = predict(together, schedule(columns, together))
    assert us.shape == (len(problems), len(columns.rows))
    for found, asked in zip(us, problems, strict=True):
        alone = ProblemFacts.of(asked)
        np.testing.assert_allclose(found, predict(alone, schedule(columns, alone)), 1e-12)


def test_a_pipeline_that_is_not_filled_is_avoided(configs_of_a_gpu):
    pipeline = find_implementation("pipeline")
    for config in pipeline.configs("float64"):
        least, row = config.least_sizes, Row(pipeline, config)
        full_us = predict_us([row], problem(*least.values(), "float64"))
        for name in least:
            short = problem(**{**least, name: least[name] - 1}, dtype="float64")
            assert predict_us([row], short) > UNFILLED / 2 * full_us


# Corrections and tables.


def weights_of(**of_features):
    """A correction's weights, by the names of features; 0 for all others."""
    return np.array([of_features.get(name, 0.0) for name in tables.FEATURES])


def test_a_correction_is_bounded_and_goes_by_features(give_table):
    tuned = find_implementation("tuned")
    first, other = (Row(tuned, config) for config in tuned.configs("float32")[2:4])
    problems = [problem(size, size, size) for size in (1024, 2048, 8192)]

    def logs(row, **weights):
        """Logarithms of the factors by which weights for the first row change a row's times."""
        named = "tuned", row.config, 1
        give_table(H200, {})
        plain_us = [choose(asked, H200, named).us for asked in problems]
        give_table(H200, {}, {("float32", first.name): weights_of(**weights)})
        return np.log([choose(asked, H200, named).us for asked in problems]) - np.log(plain_us)

    for weight in (0.2, -0.2, 9.0, -9.0):
        bounded = math.copysign(min(abs(weight), MOST), weight)
        np.testing.assert_allclose(logs(first, one=weight), bounded, 1e-9)
        np.testing.assert_array_equal(logs(other, one=weight), 0)
    sizes = np.log2([1024, 2048, 8192]) / UNIT
    np.testing.assert_allclose(logs(first, m=0.1, n2=0.05), 0.1 * sizes + 0.05 * sizes**2, 1e-9)


def test_each_feature_is_of_what_it_is_named_after(configs_of_a_gpu):
    plain = problem(1024, 1024, 1024)
    rows = whole_rows("float32")
    columns = columns_of(rows, "float32")

    def features(asked):
        numbers = ProblemFacts.of(asked)
        own = candidate_features(schedule(columns, numbers))
        return dict(zip(tables.PROBLEM_FEATURES, problem_features(numbers), strict=True)), own

    known, own = features(plain)
    assert known["one"] == 1.0 and own.shape == (len(tables.CANDIDATE_FEATURES), len(rows))
    assert (own[1:3] >= 0).all(), "rounding up costs nothing or more"
    np.testing.assert_allclose(own[3:], own[:3] ** 2)
    for changed, names in (
        (problem(2048, 1024, 1024), {"m", "m2"}),
        (problem(1024, 2048, 1024), {"n", "n2"}),
        (problem(1024, 1024, 2048), {"k", "k2"}),
        (problem(1024, 1024, 1024, batch=4), {"batch", "batch2"}),
        (replace(plain, a=plain.a.transposed()), {"a_col"}),
        (replace(plain, b=plain.b.transposed()), {"b_col"}),
        (replace(plain, a_alignment=4), {"misaligned"}),
    ):
        other, _ = features(changed)
        assert {name for name in known if known[name] != other[name]} == names


def test_a_correction_decides(give_table):
    asked = problem(1000, 1000, 1000)
    give_table(H200, {})
    first, second = rank(asked, H200).candidates[:2]
    slow = Row(first.implementation, first.config)
    give_table(H200, {}, {("float32", slow.name): weights_of(one=0.4)})
    assert choose(asked, H200, (first.implementation.name, first.config)).us > 1.4 * first.us
    assert choose(asked, H200).us <= second.us
    assert (choose(asked, H200).config, choose(asked, H200).slices) != (first.config, 1)


def test_names_of_candidates_are_told_apart(configs_of_a_gpu):
    for dtype in DTYPES:
        names = [row.name for row in all_rows(dtype, H200)]
        assert len(set(names)) == len(names) and not any("," in name for name in names)


def test_a_table_is_read_as_it_was_written(tmp_path):
    speeds = {KEY: (Speed(0.5, misaligned=1.5), 7), ("int8", "x", "y z"): (Speed(1.25), 0)}
    weights = weights_of(one=-0.125, tail2=0.5)
    folder, chip = tmp_path / "new" / "gpu", Chip.of(H200)
    corrections = {("float32", "left c"): (weights, 9)}
    write_table(folder, chip, speeds, corrections, {"measured": "today", "workloads": 12})
    table = read_table(folder)
    assert (table.chip, table.workloads) == (chip, 12)
    assert table.speeds == {key: speed for key, (speed, _) in speeds.items()}
    ((dtype, by_name),) = table.corrections.items()
    ((name, found),) = by_name.items()
    assert (dtype, name) == ("float32", "left c")
    np.testing.assert_array_equal(found, weights)
    assert json.loads((folder / "chip.json").read_text())["measured"] == "today"
    assert {path.name for path in folder.iterdir()} == {
        "chip.json", "speeds.csv", "corrections.csv",
    }  # fmt: skip


CHIP = '{"version": 2, "gpu": "x", "arch": "sm_90a", "sm_count": 132, "memory_gbytes_per_s": 4800}'
SPEEDS_HEADER = ",".join(["dtype", "kernel", "config", *tables.SPEED_NAMES, "measurements"])
WEIGHTS_HEADER = ",".join(["dtype", "candidate", *tables.FEATURES, "measurements"])
ONES = ",1" * (len(tables.FEATURES) - 1)
DAMAGES = {
    "truncated header": ("chip.json", CHIP[:40]),
    "another version": ("chip.json", CHIP.replace('"version": 2', '"version": 99')),
    "no version": ("chip.json", "{}"),
    "a list": ("chip.json", "[1]"),
    "no SMs": ("chip.json", CHIP.replace("132", "0")),
    "SMs in words": ("chip.json", CHIP.replace("132", '"many"')),
    "negative bandwidth": ("chip.json", CHIP.replace("4800", "-1")),
    "a numeric architecture": ("chip.json", CHIP.replace('"sm_90a"', "90")),
    "no columns": ("speeds.csv", "a,b\n1,2\n"),
    "no line": ("speeds.csv", ""),
    "truncated speeds": ("speeds.csv", f"{SPEEDS_HEADER}\nfloat32,tuned,x,0.5,0.7"),
    "a speed in words": ("speeds.csv", f"{SPEEDS_HEADER}\nf,t,x,fast" + 12 * ",1" + ",3\n"),
    "a negative speed": ("speeds.csv", f"{SPEEDS_HEADER}\nf,t,x,-0.5" + 12 * ",1" + ",3\n"),
    "an endless speed": ("speeds.csv", f"{SPEEDS_HEADER}\nf,t,x,inf" + 12 * ",1" + ",3\n"),
    "no speed": ("speeds.csv", f"{SPEEDS_HEADER}\nf,t,x,nan" + 12 * ",1" + ",3\n"),
    "bytes": ("speeds.csv", b"\xff\xfe\x00"),
    "other features": ("corrections.csv", "dtype,candidate,m,n,k,measurements\nf,t x,1,2,3,9\n"),
    "truncated weights": ("corrections.csv", f"{WEIGHTS_HEADER}\nf,t x,0.5,0.5"),
    "a weight in words": ("corrections.csv", f"{WEIGHTS_HEADER}\nf,t x,much{ONES},3\n"),
    "an endless weight": ("corrections.csv", f"{WEIGHTS_HEADER}\nf,t x,inf{ONES},3\n"),
    "no weight": ("corrections.csv", f"{WEIGHTS_HEADER}\nf,t x,nan{ONES},3\n"),
}


@pytest.mark.parametrize("name, content", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_table_is_warned_of_and_left_out(give_table, name, content):
    asked = [problem(512, 512, 512), problem(33, 5, 7), problem(8, 8, 8, batch=99)]
    folder = give_table(H200, {KEY: Speed(0.5)}, {})
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    selection.forget_candidates()
    with pytest.warns(RuntimeWarning, match=f"{path} is no table of speeds"):
        found = [choose(one, H200) for one in asked]
    assert all(math.isfinite(candidate.us) and candidate.us > 0 for candidate in found)


def test_what_a_table_says_of_others_is_ignored(give_table, recwarn):
    asked = problem(512, 512, 512)
    give_table(H200, {KEY: Speed(0.5)})
    plain = rank(asked, H200)
    gone = Row(Tired("gone", ""), "8x8")
    give_table(
        H200,
        {KEY: Speed(0.5), ("float32", "gone", "8x8"): Speed(9.0), ("int4", "a", "b"): Speed(9.0)},
        {("float32", gone.name): weights_of(one=0.3)},
    )
    assert rank(asked, H200) == plain and not recwarn.list


def test_without_any_table_the_choice_still_works(give_table):
    give_table(H200, {})
    folder = tables.own_folder(H200)
    (folder / "chip.json").unlink()
    selection.forget_candidates()
    assert table_for(H200) is None and "no table" in speeds_from(H200, "float32")
    for asked in random_problems(50):
        assert choose(asked, H200).us > 0


def test_a_config_without_measurements_takes_the_speed_of_the_nearest_tile(configs_of_a_gpu):
    kernel, other = find_implementation("tuned"), find_implementation("coalesced")
    area = {config: config.tile_m * config.tile_n for config in kernel.configs("float32")}
    small, large = min(area, key=area.get), max(area, key=area.get)
    speeds = {("float32", "tuned", str(c)): Speed(s) for c, s in ((small, 0.25), (large, 0.75))}
    table = Table(Chip.of(H200), speeds)
    for config, size in area.items():
        near = abs(math.log(size / area[small])) <= abs(math.log(size / area[large]))
        if config not in (small, large) and size**2 != area[small] * area[large]:
            expected = 0.25 if near else 0.75
            assert speed_of(Row(kernel, config), "float32", table).efficiency == expected
    unknown = Row(other, other.configs("float32")[0])
    assert speed_of(unknown, "float32", table) == speed_of(unknown, "float32", None)


def test_a_gpu_takes_the_table_of_the_nearest_chip(give_table):
    def known(device):
        return table_for(device).speeds[KEY].efficiency

    give_table(H200, {KEY: Speed(0.5)})
    assert known(H200) == known(H100) == known(A100) == 0.5
    assert speeds_from(H200, "float32") == "measured on NVIDIA H200, 0 problems"
    assert "no speeds of complex64" in speeds_from(H200, "complex64")
    for part in ("measured on NVIDIA H200", "nearest chip", "132 SMs", "3352 GB/s"):
        assert part in speeds_from(H100, "float32")
    give_table(A100, {KEY: Speed(0.25)})
    assert [known(device) for device in (H200, H100, A100)] == [0.5, 0.5, 0.25]
    # A small GPU of the architecture is nearer than a large one of another.
    assert known(replace(H200, name="small", sm_count=20, memory_gbytes_per_s=300.0)) == 0.5
    give_table(H100, {KEY: Speed(0.75)})
    assert [known(device) for device in (H200, H100, A100)] == [0.5, 0.75, 0.25]
    assert speeds_from(H100, "float32") == "measured on NVIDIA H100 80GB HBM3, 0 problems"


def test_the_users_table_takes_the_place_of_the_packaged_one_of_its_chip(give_table):
    give_table(H100, {KEY: Speed(0.75)})
    write_table(tables.PACKAGED / "gpu", Chip.of(H200), {KEY: (Speed(0.25), 1)}, {}, {})
    assert table_for(H200).speeds[KEY] == Speed(0.25)
    folder = give_table(H200, {KEY: Speed(0.5)})
    assert table_for(H200).speeds[KEY] == Speed(0.5)
    (folder / "chip.json").write_text("{")
    selection.forget_candidates()
    with pytest.warns(RuntimeWarning, match="no table of speeds"):
        assert table_for(H200).speeds[KEY] == Speed(0.25)


def test_packaged_tables_can_be_read(configs_of_a_gpu, recwarn):
    folders = [path.parent for path in PACKAGED.glob("*/chip.json")]
    assert folders
    for folder in folders:
        table = read_table(folder)
        assert table.speeds and table.corrections and table.workloads
    assert not recwarn.list
