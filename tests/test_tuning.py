"""Tuning without a GPU: what is asked, what is kept, what is made of it."""

import math
import sys
from dataclasses import replace
from itertools import islice
from types import ModuleType

import numpy as np
import pytest
from known_devices import H200
from typer.testing import CliRunner

import dxgemm
from dxgemm import errors
from dxgemm.choice.columns import Columns, Row
from dxgemm.choice.legality import legal_kernels
from dxgemm.choice.model import predict, schedule
from dxgemm.choice.problem_facts import ProblemFacts
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import all_rows, choose, time_candidates
from dxgemm.choice.tables import FEATURES, Speed, read_table
from dxgemm.cli.app import app
from dxgemm.gpu.facts import SIMULATED_DEVICE
from dxgemm.gpu.status import GpuStatus, simulator_enabled
from dxgemm.problem.define import contiguous_problem
from dxgemm.tuning import measure
from dxgemm.tuning.observations import Observation, append, read
from dxgemm.tuning.workloads import (
    ALIGNED,
    ARITHMETICS,
    COMPLEX_ARITHMETICS,
    LARGE,
    MOST_ELEMENTS,
    SQUARES,
    THIN,
    TINY,
    USUAL,
    Workload,
    random_workloads,
    read_workloads,
    square_workloads,
)

KERNEL = find_implementation("tuned")
TRUE = Speed(0.7, 0.8, launch_us=3.0, fill_us=1.5, tile_us=0.4, misaligned=1.3)
needs_simulator = pytest.mark.skipif(
    not simulator_enabled(), reason="the same on a GPU is `dxgemm tune`"
)


# Workloads.


def test_workloads_are_the_same_for_a_seed():
    first, again, other = (list(islice(random_workloads(ARITHMETICS, s), 700)) for s in (0, 0, 1))
    assert first == again and first != other
    assert len(set(first)) > 690
    kinds = [(workload.dtype, workload.precision) for workload in first]
    assert kinds == 100 * list(ARITHMETICS)


def test_squares_come_in_every_layout():
    found = square_workloads(ARITHMETICS)
    tiny, others = found[: len(ARITHMETICS)], found[len(ARITHMETICS) :]
    assert len(set(found)) == len(found) and len(others) == len(SQUARES) * 4 * len(ARITHMETICS)
    assert {(w.n, w.layout) for w in tiny} == {(TINY, "row_row")}
    assert all(w.m == w.n == w.k and w.batch == 1 and not w.epilogue for w in found)
    assert {w.layout for w in found} == {"row_row", "row_col", "col_row", "col_col"}


SMALL = [
    Workload(dtype, 5, 6, 7, batch, precision, layout, epilogue)
    for dtype, precision in (*ARITHMETICS, ("float64", "emulated14"))
    for batch, layout, epilogue in (
        (1, "row_row", False),
        (3, "row_col", True),
        (1, "col_row", True),
        (3, "col_col", False),
    )
]


COMPLEX = [Workload(dtype, 5, 6, 7, 3) for dtype, _ in COMPLEX_ARITHMETICS]


@needs_simulator
def test_a_workload_is_the_problem_that_gemm_makes_of_its_arrays():
    for workload in SMALL + COMPLEX:
        bench = measure.Bench(workload, lambda calls: 1.0)
        for operands in (bench._exact, *bench.operands):
            assert bench._plan(operands, None).route.problem == workload.problem(), workload


def test_complex_workloads_have_no_epilogue():
    found = list(islice(random_workloads(COMPLEX_ARITHMETICS, 5), 200))
    assert {w.dtype for w in found} == {"complex64", "complex128"}
    assert not any(w.epilogue for w in found)
    assert all(w.problem().dtype == w.dtype for w in found)


def test_workloads_from_a_file(tmp_path):
    file = tmp_path / "shapes"
    file.write_text("# ours\n64 32, 16\n\n4 5 6 100  # a batch\n")
    assert read_workloads(file, [("float32", None), ("float32", "tf32")]) == [
        Workload("float32", 64, 32, 16),
        Workload("float32", 64, 32, 16, precision="tf32"),
        Workload("float32", 4, 5, 6, 100),
        Workload("float32", 4, 5, 6, 100, "tf32"),
    ]
    for wrong in ("1 2", "1 2 x", "0 1 2", "1 2 3 0", "1 2 3 4 5", "-1 2 3", "1.5 2 3"):
        file.write_text(f"4 4 4\n{wrong}\n")
        with pytest.raises(errors.ShapeError, match=r":2: .* is not m, n and k"):
            read_workloads(file, [("float32", None)])


# What is kept.


def test_observations_survive_an_interruption(tmp_path):
    file = tmp_path / "kept.jsonl"
    first = Observation(Workload("float32", 1, 2, 3), {"tuned a": 4.5, "tuned a fill 1": 5.0})
    second = Observation(Workload("float64", 4, 5, 6, 7, "emulated", "col_row", True), {"x": 7.0})
    assert read(file) == {}
    for one in (first, second):
        append(file, one)
    assert read(file) == {first.workload: first, second.workload: second}
    whole = file.read_text()
    for length in (1, 30, len(whole.splitlines()[0])):
        file.write_text(whole + whole[:length])
        assert read(file) == {first.workload: first, second.workload: second}
    newer = replace(first, us={"tuned a": 4.0})
    file.write_text(whole)
    append(file, newer)
    assert read(file)[first.workload] == newer
    for foreign in ("something else\n", "[1]\n", '{"workload": 3, "us": {}}\n', '{"us": {}}\n'):
        file.write_text(whole + foreign)
        with pytest.raises(errors.SettingError, match=r"kept.jsonl holds no measurements"):
            read(file)


# What is measured.


def test_candidates_are_named_after_rows_of_the_table(configs_of_a_gpu):
    for workload in islice(random_workloads(ARITHMETICS, 7), 140):
        if (workload.m, workload.n, workload.k, workload.batch) == (TINY, TINY, TINY, 1):
            continue  # all of its candidates are measured
        problem = workload.problem()
        rows = {row.name: row for row in all_rows(problem.dtype, H200)}
        found, few = measure.candidates(problem, H200), measure.candidates(problem, H200, 1.0)
        assert few.keys() <= found.keys() <= rows.keys()
        least_us = min(candidate.us for candidate in found.values())
        assert {c.us for c in few.values()} == {least_us} == {choose(problem, H200).us}
        for name, candidate in found.items():
            row = rows[name]
            assert candidate.us <= measure.HOPELESS * least_us
            assert (candidate.implementation, candidate.config) == row[:2]
            assert (candidate.slices > 1) == (row.fill > 0)


@pytest.mark.parametrize(("dtype", "precision"), ARITHMETICS)
def test_all_candidates_of_the_tiny_square_are_measured(configs_of_a_gpu, dtype, precision):
    problem = Workload(dtype, TINY, TINY, TINY, 1, precision).problem()
    (times,) = time_candidates(problem, H200, legal_kernels(problem, H200))
    names = {row.name for row, us in zip(times.columns.rows, times.us) if us < math.inf}
    assert measure.candidates(problem, H200).keys() == names
    most_us = max(times.us[times.us < math.inf])
    assert most_us > 2 * measure.HOPELESS * times.us.min()  # some look hopeless


def test_the_kernels_of_a_candidate_are_all_that_it_launches(configs_of_a_gpu):
    long = contiguous_problem("float32", 64, 64, 8192)
    sliced = choose(long, H200)
    assert sliced.slices > 1
    names = [spec.implementation for spec in measure.candidate_specs(long, sliced)]
    assert sorted(names) == sorted(["add_slices", sliced.implementation.name])
    large = contiguous_problem("float32", 4096, 4096, 4096, precision="emulated")
    split = choose(large, H200, "emulated_float32")
    assert len(measure.candidate_specs(large, split)) > 1


def count_calls(calls):
    for call in calls:
        call()
    return 1e-3 * len(calls)


@needs_simulator
@pytest.mark.parametrize("workload", SMALL[::6] + COMPLEX[:1], ids=str)
def test_measuring_checks_and_times_every_candidate(workload):
    observed = measure.measure(workload, SIMULATED_DEVICE, count_calls)
    assert observed.workload == workload
    assert observed.us.keys() == measure.candidates(workload.problem(), SIMULATED_DEVICE).keys()
    assert set(observed.us.values()) == {1000.0}


@needs_simulator
@pytest.mark.parametrize("epilogue", [False, True])
def test_a_wrong_kernel_stops_the_search(monkeypatch, epilogue):
    workload, make_plan = Workload("float32", 3, 4, 5, epilogue=epilogue), dxgemm.plan

    def plan(a, b, *, out, **options):
        right = make_plan(a, b, out=out, **options)

        def wrong():
            right()
            out[-1, -1] += 0.25

        return wrong

    monkeypatch.setattr("dxgemm.plan", plan)
    with pytest.raises(errors.WrongResultError, match=r"is wrong by 0\.25"):
        measure.measure(workload, SIMULATED_DEVICE, count_calls)


@needs_simulator
def test_what_cannot_be_built_is_not_timed(monkeypatch):
    bench = measure.Bench(Workload("float32", 3, 4, 5), count_calls)
    assert bench.sampler("naive").first_s == 1e-3
    assert bench.sampler("wgmma") is None

    def fail(*arguments, **options):
        raise errors.BuildError("no")

    monkeypatch.setattr("dxgemm.plan", fail)
    assert bench.sampler("naive") is None


# What is made of it.


def observe(workloads, config, disturb=lambda workload: 1.0, speed=TRUE):
    """Times that a config would take with a known speed; a few with split-K slices."""
    rows = [row for row in all_rows("float32", H200) if row[:2] == (KERNEL, config)]
    columns = Columns.of(rows, [speed] * len(rows), "float32", H200)
    observed = []
    for workload in workloads:
        asked = ProblemFacts.of(workload.problem())
        plan = schedule(columns, asked)
        us = predict(asked, plan) * disturb(workload)
        known = np.broadcast_to((columns.fill == 0) | (plan.slices > 1), us.shape)
        named = {row.name: u for row, u, is_known in zip(rows, us, known, strict=True) if is_known}
        observed.append(Observation(workload, named))
    return observed


def some_workloads(count):
    return list(islice(random_workloads([("float32", None)], 5), count))


@pytest.fixture
def config(configs_of_a_gpu):
    pytest.importorskip("scipy")
    return KERNEL.configs("float32")[2]


def test_the_fit_finds_what_the_times_were_made_with(config):
    from dxgemm.tuning.fit import FEWEST, fit_dtype

    observed = observe(some_workloads(80), config)
    rare = Row(KERNEL, KERNEL.configs("float32")[3])
    for one in observed[: FEWEST - 1]:
        one.us[rare.name] = 10.0
    observed[0].us["of a former version"] = 5.0
    fit = fit_dtype("float32", observed, H200, None)
    assert fit.speeds.keys() == {("float32", "tuned", str(config))}
    ((speed, count),) = fit.speeds.values()
    assert count == sum(len(one.us) for one in observed) - FEWEST
    assert speed.efficiency == pytest.approx(TRUE.efficiency, rel=0.05)
    assert speed.launch_us == pytest.approx(TRUE.launch_us, rel=0.05)
    assert speed.misaligned == pytest.approx(TRUE.misaligned, rel=0.05)
    assert fit.corrections.keys() <= {row.name for row in all_rows("float32", H200)}
    assert rare.name not in fit.corrections
    alone = fit_dtype("float32", observe(some_workloads(80), config), H200, None)
    assert alone.error < 0.03 and alone.corrected_error < alone.error


def test_a_table_of_a_fit_gives_back_what_was_measured(config, give_table):
    from dxgemm.tuning.fit import fit_dtype

    name, named = Row(KERNEL, config).name, ("tuned", config, 1)

    def error_of_the_choice(observed):
        us = [choose(one.workload.problem(), H200, named).us / one.us[name] for one in observed]
        return np.median(np.abs(np.log(us)))

    # No term of the model knows of it.
    observed = observe(some_workloads(400), config, lambda workload: (workload.n / 512) ** 0.1)
    observed = [replace(one, us={name: one.us[name]}) for one in observed]
    for seen, unseen in ((observed, observed), (observed[::2], observed[1::2])):
        fit = fit_dtype("float32", seen, H200, None)
        assert fit.corrected_error < 0.7 * fit.error
        speeds = {key: speed for key, (speed, _) in fit.speeds.items()}
        give_table(H200, speeds)
        plain = error_of_the_choice(unseen)
        weights = {("float32", name): entry for name, (entry, _) in fit.corrections.items()}
        give_table(H200, speeds, weights)
        assert error_of_the_choice(unseen) < 0.8 * plain


def test_times_near_the_best_ones_count_more():
    from dxgemm.tuning.fit import ridge

    left = np.repeat((0.2, -0.2), 100)
    (weight,), (even,) = (
        ridge(np.ones((200, 1)), left, np.repeat((1.0, far), 100)) for far in (0.1, 1.0)
    )
    assert weight > 0.1 and even == pytest.approx(0)


def test_a_slice_of_all_k_teaches_nothing(config):
    from dxgemm.tuning.fit import fit_dtype

    observed = observe(some_workloads(80), config)
    sliced = [Row(KERNEL, config, fill).name for fill in (1, 2)]
    tiny = Observation(Workload("float32", 64, 64, 16), dict.fromkeys(sliced, 9.0))
    fit, plain = (fit_dtype("float32", of, H200, None) for of in ([*observed, tiny], observed))
    assert fit.speeds == plain.speeds and fit.workloads == plain.workloads + 1


def test_the_fit_begins_from_what_is_known(config):
    from dxgemm.choice.tables import Chip, Table
    from dxgemm.tuning.fit import fit_dtype

    # Of small products nothing is learned about columns: what was known of these stays.
    known = Table(Chip.of(H200), {("float32", "tuned", str(config)): replace(TRUE, a_col=2.5)})
    few = [Workload("float32", size, size, size) for size in range(64, 1024, 64)]
    fit = fit_dtype("float32", observe(few, config), H200, known)
    ((speed, _),) = fit.speeds.values()
    assert speed.a_col == pytest.approx(2.5, rel=0.01)
    assert fit.error < 0.01


def test_a_table_is_amended_by_times_of_its_choices(config, give_table, monkeypatch, tmp_path):
    from dxgemm.choice.tables import Chip, write_table
    from dxgemm.tuning.amend import amend_table

    both = [Row(KERNEL, which) for which in (config, KERNEL.configs("float32")[3])]
    names = [row.name for row in both]
    workloads = [w for w in some_workloads(300) if w.m * w.n * w.k > 2**24 and w.k < 2000]
    # Of the two one is quicker where b is column-major, which the table does not know.
    observed = observe(workloads, config)
    for one in observed:
        quick = one.us[names[0]]
        us = (quick, 1.25 * quick) if one.workload.layout[-3:] == "col" else (1.25 * quick, quick)
        one.us.clear()
        one.us.update(zip(names, us, strict=True))
    speeds = {("float32", "tuned", str(row.config)): (TRUE, 0) for row in both}
    kept = {("float64", "naive 128x1"): (np.arange(float(len(FEATURES))), 0)}
    write_table(tmp_path, Chip.of(H200), speeds, kept, {})

    def losses(few):
        """Where the choice of the two is the slower one; where no time of the choice is known."""
        table = read_table(tmp_path)
        weights = {(d, n): w for d, of in table.corrections.items() for n, w in of.items()}
        give_table(H200, table.speeds, weights)
        lost = guessed = 0
        for one in few:
            problem = one.workload.problem()
            timed = [choose(problem, H200, ("tuned", row.config, 1)).us for row in both]
            lost += one.us[names[int(np.argmin(timed))]] > min(one.us.values())
            (times,) = time_candidates(problem, H200, [KERNEL])
            guessed += times.columns.rows[int(times.us.argmin())].name not in names
        return lost / len(few), guessed / len(few)

    monkeypatch.setattr("dxgemm.tuning.amend.ANCHORS", 20)
    before = losses(observed[1::2])
    amend_table(tmp_path, observed[::2], H200)
    (of_another,) = read_table(tmp_path).corrections["float64"].values()
    assert of_another.tolist() == list(range(len(FEATURES)))
    seen, unseen = losses(observed[::2]), losses(observed[1::2])
    assert seen[0] < before[0] / 2 and unseen[0] < 0.7 * before[0]
    assert max(seen[1], unseen[1]) < 0.8 * before[1]
    with pytest.warns(RuntimeWarning), pytest.raises(errors.SettingError, match="to amend"):
        amend_table(tmp_path / "none", observed, H200)


# The command.


def test_without_a_gpu_it_says_so(monkeypatch):
    no_gpu = GpuStatus(None, 0, "There is none.")
    monkeypatch.setattr("dxgemm.cli.device.probe", lambda: no_gpu)
    for options in ([], ["--dtypes", "float32", "--dtype", "float64"]):
        result = CliRunner().invoke(app, ["tune", *options])
        assert result.exit_code != 0
        assert "tuning needs a GPU" in result.output


def test_a_dtype_that_goes_by_another_is_refused():
    result = CliRunner().invoke(app, ["tune", "--dtype", "bfloat16"])
    assert result.exit_code == 2
    assert "bfloat16" in result.output and "float16" in result.output


def test_a_search_ends_with_a_table_and_is_taken_up_again(monkeypatch, tmp_path, config):
    asked = []

    def measured(workload, device, timer):
        asked.append(workload)
        return observe([workload], config)[0]

    timing = ModuleType("dxgemm.tuning.timing")
    timing.EventTimer = timing.l2_bytes = lambda *_: 0
    monkeypatch.setitem(sys.modules, timing.__name__, timing)
    monkeypatch.setattr("dxgemm.cli.device.probe", lambda: GpuStatus(13000, 1, None))
    monkeypatch.setattr("dxgemm.cli.device.simulator_enabled", lambda: False)
    monkeypatch.setattr("dxgemm.runtime.device.device_facts", lambda ordinal: H200)
    monkeypatch.setattr("dxgemm.tuning.measure.build_candidates", lambda *_: None)
    monkeypatch.setattr("dxgemm.tuning.measure.measure", measured)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    shapes, out = tmp_path / "shapes.txt", tmp_path / "table"
    lines = [f"{16 * m} 100 200\n" for m in range(1, 7)]
    options = ["--dtype", "float32", "--shapes", str(shapes), "--out", str(out), "--jobs", "1"]

    def tune(count, *more):
        shapes.write_text("".join(lines[:count]))
        result = CliRunner().invoke(app, ["tune", *options, *more])
        assert result.exit_code == 0, result.output
        return read_table(out)

    per_shape = len([dtype for dtype, _ in ARITHMETICS if dtype == "float32"])
    table = tune(4)
    assert len(asked) == len(set(asked)) == 4 * per_shape
    assert table.chip.gpu == "NVIDIA H200"
    assert ("float32", "tuned", str(config)) in table.speeds
    assert table.workloads == 4 * per_shape
    tune(6)
    assert len(asked) == len(set(asked)) == 6 * per_shape
    assert read_table(out).workloads == 6 * per_shape
    tune(1, "--fresh")
    assert len(asked) == 7 * per_shape
    result = CliRunner().invoke(app, ["tune", "--shapes", str(tmp_path / "none")])
    assert result.exit_code == 2 and "there is no file" in result.output


def test_workloads_are_of_every_kind():
    found = list(islice(random_workloads((("float32", None), ("int8", None)), 5), 1000))
    singles = [w for w in found if w.batch == 1]
    thin = [w for w in singles if min(w.m, w.n, w.k) <= THIN[1]]
    usual = [w for w in singles if min(w.m, w.n, w.k) > THIN[1]]
    assert len(thin) > 150 and len(found) - len(singles) > 150
    for name in ("m", "n", "k"):
        assert sum(getattr(w, name) <= THIN[1] for w in thin) > 30
        sizes = [getattr(w, name) for w in usual]
        assert min(sizes) < 2 * USUAL[0] and max(sizes) > USUAL[1] / 2
    aligned = [w for w in usual if all(size % ALIGNED == 0 for size in (w.m, w.n, w.k))]
    assert 0.4 < len(aligned) / len(usual) < 0.6
    assert {w.layout for w in found} == {"row_row", "row_col", "col_row", "col_col"}
    assert 50 < sum(w.epilogue for w in found) < 150
    batches = [w for w in found if w.batch > 1]
    assert any(w.m == w.n == w.k for w in batches) and any(w.m != w.n for w in batches)
    assert all(w.batch * max(w.m * w.n, w.m * w.k, w.n * w.k) <= MOST_ELEMENTS for w in found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_emulated_workloads_are_large_and_small(dtype):
    found = list(islice(random_workloads([(dtype, "emulated")], 5), 300))
    least, _ = LARGE[dtype]
    large = [workload for workload in found if min(workload.m, workload.n, workload.k) >= least]
    assert 45 < len(large) < 150
