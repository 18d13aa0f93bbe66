"""Tuning without a GPU: what is asked, what is kept, what is made of it."""

from __future__ import annotations

import json
import math
import sys
from base64 import b64encode
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from zlib import compress

import numpy as np
import pytest
from known_devices import H200, TUNED_H200
from typer.testing import CliRunner

from dxgemm import errors
from dxgemm._correction import FEATURES, MOST, Correction, features_of
from dxgemm._dispatch import LOOKED_UP, choose, rank
from dxgemm._gpu import GpuStatus, simulator_enabled
from dxgemm._model import BATCH_MEMORY_SHARE, predict_us, schedule
from dxgemm._problem import contiguous_problem
from dxgemm._registry import find_implementation
from dxgemm._speeds import (
    IN_BATCHES,
    OF_THIN,
    PACKAGED,
    THIN,
    USUAL,
    Speed,
    Table,
    group_of,
    load_table,
    name_of,
    read_table,
    table_file,
    without_group,
    write_table,
)
from dxgemm.cli.app import app
from dxgemm.tuning.observations import Measured, Observation, append, by_shape, read
from dxgemm.tuning.shapes import (
    ALIGNED,
    FEWEST_MATRICES,
    LARGEST,
    LARGEST_IN_BATCH,
    MOST_IN_BATCH,
    SMALLEST,
    SMALLEST_IN_BATCH,
    Shape,
    log_uniform_batches,
    log_uniform_shapes,
    log_uniform_thin_shapes,
    read_shapes,
    shapes_to_tune,
    unmeasured,
)

OBSERVED = Path(__file__).parents[1] / "benchmarks" / "results" / "nvidia-h200" / "tuning.jsonl"
KERNEL = find_implementation("tuned")
SLOPES = (0.5,) * (1 + FEATURES)


def test_shapes_spread_over_the_octaves_and_every_other_one_is_aligned():
    shapes = list(islice(log_uniform_shapes(("float32", "float64"), 0), 400))
    assert shapes == list(islice(log_uniform_shapes(("float32", "float64"), 0), 400))
    assert {shape.dtype for shape in shapes[:2]} == {"float32", "float64"}
    assert {shape.batch for shape in shapes} == {1}
    sizes = [size for shape in shapes for size in shape[1:4]]
    assert min(sizes) >= SMALLEST and max(sizes) <= LARGEST
    small = sum(size < 512 for size in sizes)
    assert 0.4 < small / len(sizes) < 0.6
    aligned = [all(size % ALIGNED == 0 for size in shape[1:4]) for shape in shapes]
    assert all(aligned[0::4]) and all(aligned[1::4]) and sum(aligned) < 210


def test_batches_are_of_small_matrices_and_every_other_one_of_squares():
    shapes = list(islice(log_uniform_batches(("float32", "float64"), 0), 400))
    assert shapes == list(islice(log_uniform_batches(("float32", "float64"), 0), 400))
    assert {shape.dtype for shape in shapes[:2]} == {"float32", "float64"}
    sizes = [size for shape in shapes for size in shape[1:4]]
    assert min(sizes) == SMALLEST_IN_BATCH and max(sizes) == LARGEST_IN_BATCH
    batches = [shape.batch for shape in shapes]
    assert min(batches) >= FEWEST_MATRICES and max(batches) > 50_000
    squares = [shape.m == shape.n == shape.k for shape in shapes]
    assert all(squares[0::4]) and all(squares[1::4]) and sum(squares) < 210
    for _, m, n, k, batch in shapes:
        assert batch * max(m * n, m * k, k * n) <= MOST_IN_BATCH


def test_thin_shapes_have_a_small_extent_and_every_other_one_is_aligned_else():
    shapes = list(islice(log_uniform_thin_shapes(("float32", "float64"), 0), 400))
    assert shapes == list(islice(log_uniform_thin_shapes(("float32", "float64"), 0), 400))
    assert {shape.dtype for shape in shapes[:2]} == {"float32", "float64"}
    assert {shape.batch for shape in shapes} == {1}
    assert {group_of(contiguous_problem(*shape)) for shape in shapes} == {OF_THIN}
    sizes = [size for shape in shapes for size in shape[1:4]]
    assert min(sizes) == 1 and 10_000 < max(sizes) <= LARGEST
    for place in (1, 2, 3):
        assert 0.3 < sum(shape[place] < THIN for shape in shapes) / len(shapes) < 0.6
    aligned = [all(s < THIN or s % ALIGNED == 0 for s in shape[1:4]) for shape in shapes]
    assert all(aligned[0::4]) and all(aligned[1::4]) and sum(aligned) < 300


def test_a_search_takes_single_products_batches_and_thin_ones():
    shapes = list(islice(shapes_to_tune(("float32", "float64"), 1), 50))
    groups = [group_of(contiguous_problem(*shape)) for shape in shapes]
    assert groups == 5 * (6 * [USUAL] + 2 * [IN_BATCHES] + 2 * [OF_THIN])
    assert len(set(shapes)) == 50


def test_a_search_goes_on_past_what_is_known():
    shapes = list(islice(shapes_to_tune(("float32",), 1), 300))
    endless = unmeasured(shapes_to_tune(("float32",), 1), set(shapes[:100]), 64)
    assert [next(endless), next(endless)] == [shapes[100:164], shapes[164:228]]
    scattered = set(shapes[::2])
    assert next(unmeasured(shapes, scattered, 64)) == shapes[1:129:2]
    assert list(unmeasured(shapes[:180], set(shapes[:100]), 64)) == [
        shapes[100:164],
        shapes[164:180],
    ]
    assert list(unmeasured(shapes, set(shapes), 64)) == []


def test_shapes_from_a_file(tmp_path):
    file = tmp_path / "shapes"
    file.write_text("# ours\n64 32, 16\n\n1 2 3  # small\n4 5 6 100\n")
    assert read_shapes(file, ("float32",)) == [
        Shape("float32", 64, 32, 16),
        Shape("float32", 1, 2, 3),
        Shape("float32", 4, 5, 6, batch=100),
    ]
    for wrong in ("1 2", "1 2 x", "0 1 2", "1 2 3 0", "1 2 3 4 5"):
        file.write_text(f"4 4 4\n{wrong}\n")
        with pytest.raises(errors.ShapeError, match=r":2: .* is not m, n and k"):
            read_shapes(file, ("float32",))


def test_measurements_survive_an_interruption(tmp_path):
    file = tmp_path / "kept.jsonl"
    first = Measured(Shape("float32", 1, 2, 3), (Observation("tuned", "a", 1, 4.5),))
    second = Measured(Shape("float64", 4, 5, 6), (Observation("cublas", "", 1, 7.0),))
    assert read(file) == []
    append(file, first)
    append(file, second)
    assert read(file) == [first, second]
    with file.open("a") as unfinished:
        unfinished.write('{"shape": ["float32", 1,')
    assert by_shape(read(file)) == {first.shape: first, second.shape: second}
    file.write_text("something else\n")
    with pytest.raises(errors.SettingError, match="holds no measurements"):
        read(file)


def test_a_table_is_read_as_it_was_written(tmp_path):
    speeds = {
        ("float32", "tuned x"): Speed(0.5, resident=3),
        ("float64", "y"): Speed(1.25, correction=Correction(SLOPES, bytes(4 * len(SLOPES)))),
        ("float64", "z"): Speed(1.25, correction=Correction(SLOPES)),
    }
    file = tmp_path / "new" / "table.json"
    write_table(file, "GPU", "sm_90a", Table(speeds), {"measured": "today"})
    assert read_table(file) == Table(speeds)
    header = {"gpu": "GPU", "arch": "sm_90a", "measured": "today"}
    assert header.items() <= json.loads(file.read_text()).items()
    assert list(file.parent.iterdir()) == [file]
    wrong_entries = (
        {"speed": 1},
        {"efficiency": "fast"},
        {"efficiency": 1, "slopes": ["a"]},
        {"efficiency": 1, "slopes": 3},
        {"efficiency": 1, "slopes": SLOPES[:-1]},
        {"efficiency": 1, "slopes": SLOPES, "neighbours": "no base 64"},
        {"efficiency": 1, "slopes": SLOPES, "neighbours": b64encode(b"no zlib").decode()},
        {"efficiency": 1, "slopes": SLOPES, "neighbours": b64encode(compress(b"odd")).decode()},
    )
    tables = [json.dumps({"speeds": {"float32": {"x": entry}}}) for entry in wrong_entries]
    for wrong in ("", "{}", '{"speeds": 3}', *tables):
        file.write_text(wrong)
        with pytest.raises(errors.SettingError, match=r"is no table of speeds.*dxgemm tune"):
            read_table(file)


def test_the_users_table_takes_the_place_of_the_packaged_one(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_config_dir", lambda name: str(tmp_path / name))
    packaged = load_table.__wrapped__("NVIDIA H200")
    assert packaged.speeds == read_table(PACKAGED / "nvidia-h200.json").speeds and packaged.trees
    own = Table({("float32", "tuned x"): Speed(0.5)})
    write_table(table_file("NVIDIA H200"), "NVIDIA H200", "sm_90a", own, {})
    assert load_table.__wrapped__("NVIDIA H200") == own
    assert load_table.__wrapped__("a GPU nobody has") == Table()


def test_the_packaged_tables_are_of_configs_that_exist(configs_of_a_gpu):
    for path in PACKAGED.glob("*.json"):
        for dtype, text in read_table(path).speeds:
            name, _, config = without_group(text).partition(" ")
            configs = map(str, find_implementation(name).configs(dtype))
            assert config in configs, text


def test_the_fit_finds_what_the_times_were_made_with(configs_of_a_gpu):
    pytest.importorskip("scipy")
    from dxgemm.tuning.fit import FEWEST, SHARPNESS, fit_speeds

    config, rare = KERNEL.configs("float32")[2:4]
    resident = config.min_blocks("float32")
    true = Speed(0.7, 0.8, resident, 3.0, 1.5, 0.3, misaligned=1.3, sharpness=SHARPNESS)
    measured = []
    for index, shape in enumerate(islice(log_uniform_shapes(("float32",), 5), 60)):
        us = predict_us(KERNEL, config, contiguous_problem(*shape), H200, true)
        observed = [Observation("tuned", str(config), 1, us), Observation("cublas", "", 1, 1.0)]
        observed += [Observation("tuned", "of a former version", 1, 5.0)]
        if index < FEWEST - 1:
            observed.append(Observation("tuned", str(rare), 1, us))
        measured.append(Measured(shape, tuple(observed)))
    fits = fit_speeds(measured, H200)
    assert fits.keys() == {("float32", f"tuned {config}")}
    (fit,) = fits.values()
    assert fit.observations == 60 and fit.error < 0.01
    assert math.isclose(fit.speed.efficiency, true.efficiency, rel_tol=0.03)
    assert math.isclose(fit.speed.misaligned, true.misaligned, rel_tol=0.05)
    for one in measured:
        assert abs(math.log(correction_of(fit.speed, config, one.shape))) < 0.02


def test_the_fit_wants_fewer_batches(configs_of_a_gpu):
    pytest.importorskip("scipy")
    from dxgemm.tuning.fit import FEWEST_IN_BATCHES, fit_speeds

    kernel = find_implementation("small_batch")
    config = kernel.configs("float32")[0]
    measured = []
    for shape in islice(log_uniform_batches(("float32",), 5), FEWEST_IN_BATCHES):
        us = predict_us(kernel, config, contiguous_problem(*shape), H200, Speed(0.7))
        measured.append(Measured(shape, (Observation("small_batch", str(config), 1, us),)))
    fits = fit_speeds(measured, H200)
    assert fits.keys() == {("float32", f"small_batch {config}{IN_BATCHES}")}
    assert not fit_speeds(measured[1:], H200)


def test_the_fit_corrects_what_the_model_does_not_know(configs_of_a_gpu):
    pytest.importorskip("scipy")
    from dxgemm.tuning.fit import fit_speeds

    config = KERNEL.configs("float32")[2]
    measured = []
    for index, shape in enumerate(islice(log_uniform_shapes(("float32",), 5), 120)):
        us = predict_us(KERNEL, config, contiguous_problem(*shape), H200, Speed(0.7))
        strange_us = us * (shape.n / 512) ** 0.1  # no term of the model knows of
        if index == 60:
            strange_us *= 1.2  # and this one is slow
            slow = shape, strange_us
        measured.append(Measured(shape, (Observation("tuned", str(config), 1, strange_us),)))
    (fit,) = fit_speeds(measured, H200).values()
    physical = replace(fit.speed, correction=None)
    errors = {True: [], False: []}
    for is_corrected, speed in ((True, fit.speed), (False, physical)):
        for one in measured:
            us = predict_us(KERNEL, config, contiguous_problem(*one.shape), H200, speed)
            errors[is_corrected].append(abs(math.log(us / one.observations[0].us)))
    assert sum(errors[True]) < 0.25 * sum(errors[False])
    shape, slow_us = slow
    us = predict_us(KERNEL, config, contiguous_problem(*shape), H200, fit.speed)
    assert abs(math.log(us / slow_us)) < 0.06


def correction_of(speed, config, shape):
    """What a time on the H200 is multiplied by."""
    problem = contiguous_problem(*shape)
    physical = predict_us(KERNEL, config, problem, H200, replace(speed, correction=None))
    return predict_us(KERNEL, config, problem, H200, speed) / physical


def test_a_correction_is_bounded(configs_of_a_gpu):
    config = KERNEL.configs("float32")[2]
    shape = Shape("float32", 1000, 1000, 1000)
    nothing = (0.0,) * FEATURES
    for constant, factor in ((9.0, math.exp(MOST)), (-9.0, math.exp(-MOST)), (0.0, 1.0)):
        speed = Speed(0.7, correction=Correction((constant, *nothing)))
        assert math.isclose(correction_of(speed, config, shape), factor)


def test_a_correction_goes_by_problems_alike(configs_of_a_gpu):
    config = KERNEL.configs("float32")[2]
    here, near, far = (Shape("float32", n, n, n) for n in (1024, 1280, 8192))
    features = features_on_the_h200(config, here)
    row = np.array([*features, 0.1], np.float16).tobytes()
    speed = Speed(0.7, correction=Correction((0.0,) * (1 + FEATURES), row))
    for shape in (here, near, far):
        others = features_on_the_h200(config, shape)
        apart = sum(abs(one - other) for one, other in zip(features, others, strict=True))
        expected = math.exp(0.1 * math.exp(-apart))
        assert math.isclose(correction_of(speed, config, shape), expected, rel_tol=1e-3)
    assert 1.03 > correction_of(speed, config, far) > 1


def features_on_the_h200(config, shape):
    problem = contiguous_problem(*shape)
    blocks = KERNEL.tile_count(config, problem)
    return features_of(config, problem, schedule(config, problem, blocks, H200, Speed(0.7)))


def test_the_model_goes_by_the_table(configs_of_a_gpu):
    config = KERNEL.configs("float32")[0]
    problem = contiguous_problem("float32", 4096, 4096, 4096)
    guess = predict_us(KERNEL, config, problem, H200)
    slow = Speed(0.1)
    tuned = replace(H200, speeds={("float32", f"tuned {config}"): slow})
    assert predict_us(KERNEL, config, problem, tuned) > 3 * guess
    ragged = contiguous_problem("float32", 4096, 4095, 4096)
    misaligned = replace(slow, misaligned=2.0)
    assert predict_us(KERNEL, config, ragged, H200, misaligned) > 1.9 * predict_us(
        KERNEL, config, ragged, H200, slow
    )


def test_a_batch_goes_by_what_was_measured_of_batches(configs_of_a_gpu):
    small = find_implementation("small_batch")
    batch = contiguous_problem("float32", 64, 64, 64, 1000)
    slow = Speed(0.01, correction=Correction((0.3,) + (0.0,) * FEATURES))

    def predicted_us(implementation, config, *entries):
        speeds = {("float32", f"{implementation.name} {config}{of}"): slow for of in entries}
        return predict_us(implementation, config, batch, replace(H200, speeds=speeds))

    for implementation in (KERNEL, small):
        config = implementation.configs("float32")[0]
        stated_us = predicted_us(implementation, config)
        measured_us = predicted_us(implementation, config, IN_BATCHES)
        assert measured_us > 5 * stated_us
        # Of single products, a batch takes the speed without its correction, or nothing.
        expected_us = stated_us
        if implementation is KERNEL:
            share = BATCH_MEMORY_SHARE
            plain = replace(slow, read_share=share, write_share=share, correction=None)
            expected_us = predict_us(KERNEL, config, batch, H200, plain)
        assert predicted_us(implementation, config, "") == expected_us


def test_a_thin_product_goes_by_what_was_measured_of_thin_ones(configs_of_a_gpu):
    thin = contiguous_problem("float32", 4096, 3, 4096)
    slow, slower = Speed(0.01), Speed(0.001)
    for implementation in (KERNEL, find_implementation("small_batch")):
        config, other = implementation.configs("float32")[:2]

        def predicted_us(problem, speeds, implementation=implementation, config=config):
            named = {
                ("float32", name_of(implementation, *of)): speed for of, speed in speeds.items()
            }
            return predict_us(implementation, config, problem, replace(H200, speeds=named))

        both = {(config, USUAL): slow, (config, OF_THIN): slower}
        for problem, speed in (
            (thin, slower),
            (contiguous_problem("float32", THIN, THIN, THIN), slow),
            (contiguous_problem("float32", THIN, THIN, THIN - 1), slower),
        ):
            alone_us = predict_us(implementation, config, problem, H200, speed)
            assert predicted_us(problem, both) == alone_us
        # Where that is not known, by single products of other sizes.
        assert predicted_us(thin, {(config, USUAL): slow, (other, OF_THIN): slow}) == predict_us(
            implementation, config, thin, H200, slow
        )
        # A config that was left out where others were measured is expected to be slower.
        stated_us = predicted_us(thin, {})
        for group in (USUAL, OF_THIN):
            assert predicted_us(thin, {(other, group): slow}) > 1.2 * stated_us


def test_naive_is_chosen_where_the_table_has_it(configs_of_a_gpu):
    naive = find_implementation("naive")
    assert naive.is_searched("float32") and not naive.is_automatic("float32")
    assert not naive.is_searched("float16")
    config = naive.configs("float32")[1]
    fast = Speed(1.0, launch_us=0.1)
    device = replace(H200, speeds={("float32", name_of(naive, config, OF_THIN)): fast})
    thin = contiguous_problem("float32", 1000, 3, 2)
    best = rank(thin, device).candidates[0]
    assert (best.implementation, best.config) == (naive, config)
    for problem, of in (
        (contiguous_problem("float32", 1000, 16, 16), device),
        (contiguous_problem("float32", 1000, 3, 2, 10), device),
        (contiguous_problem("float64", 1000, 3, 2), device),
        (thin, H200),
    ):
        assert "surpassed by others" in rank(problem, of).rejected["naive"]


def test_naive_wins_where_products_are_thin(configs_of_a_gpu):
    """What docs/choosing.md says of the H200."""
    wins, thin = Counter(), 0
    for one in read(OBSERVED):
        if group_of(contiguous_problem(*one.shape)) == OF_THIN:
            own = [o for o in one.observations if o.implementation != "cublas"]
            wins[min(own, key=lambda o: o.us).implementation] += 1
            thin += 1
    assert thin > 1900
    assert all(thin / 8 < wins[name] < thin / 6 for name in ("naive", "coalesced")), wins
    table = read_table(PACKAGED / "nvidia-h200.json")
    naive = {(dtype, name) for dtype, name in table.speeds if name.startswith("naive")}
    configs = ("naive 128x1", "naive 32x1")
    assert naive == {(d, c + OF_THIN) for d in ("float32", "float64") for c in configs}
    chosen = choose(contiguous_problem("float32", 2048, 5, 4), TUNED_H200)
    assert (chosen.implementation.name, str(chosen.config)) == ("naive", "128x1")


def test_the_table_lets_in_what_the_choice_leaves_out_as_a_rule(configs_of_a_gpu):
    pytest.importorskip("scipy")
    from dxgemm.tuning.fit import FEWEST, FEWEST_WINS, fit_speeds

    left_out = find_implementation("pipeline")
    assert left_out.is_searched("float64") and not left_out.is_automatic("float64")
    config, own = left_out.configs("float64")[0], find_implementation("tensor_core")
    for wins, is_in in ((FEWEST_WINS - 1, False), (FEWEST, True)):
        measured = [
            Measured(
                Shape("float64", 1024, 1024, k),
                (
                    Observation("tensor_core", str(own.configs("float64")[0]), 1, 100.0),
                    Observation("pipeline", str(config), 1, 50.0 if index < wins else 150.0),
                ),
            )
            for index, k in enumerate(range(512, 512 + FEWEST))
        ]
        speeds = {key: fit.speed for key, fit in fit_speeds(measured, H200).items()}
        assert (("float64", f"pipeline {config}") in speeds) == is_in
        device = replace(H200, speeds=speeds)
        ranking = rank(contiguous_problem("float64", 1024, 1024, 512), device)
        assert ("surpassed" in ranking.rejected.get("pipeline", "")) != is_in
        assert (left_out in {c.implementation for c in ranking.candidates}) == is_in


def test_without_a_gpu_it_says_so(monkeypatch):
    no_gpu = GpuStatus(None, 0, "There is none.")
    monkeypatch.setattr("dxgemm.cli.tune.probe", lambda: no_gpu)
    for options in ([], ["--dtypes", "float32", "--dtype", "float64"]):
        result = CliRunner().invoke(app, ["tune", *options])
        assert result.exit_code != 0
        assert "tuning needs a GPU" in result.output


def test_a_search_ends_with_a_table_of_speeds_and_trees(monkeypatch, tmp_path):
    pytest.importorskip("scipy")
    pytest.importorskip("sklearn")
    if not simulator_enabled():
        pytest.skip("the same on a GPU is `dxgemm tune`")
    from dxgemm.tuning.fit import FEWEST

    kernel = find_implementation("coalesced")
    (config,) = kernel.configs("float32")

    def measured(shape, timer):
        us = predict_us(kernel, config, contiguous_problem(*shape), H200, Speed(0.7))
        return Measured(shape, (Observation(kernel.name, str(config), 1, us),))

    timing = ModuleType("dxgemm.tuning.timing")
    timing.EventTimer = timing.l2_bytes = lambda *_: 0
    monkeypatch.setitem(sys.modules, timing.__name__, timing)
    monkeypatch.setattr("dxgemm.cli.tune.probe", lambda: GpuStatus(13000, 1, None))
    monkeypatch.setattr("dxgemm.cli.tune.simulator_enabled", lambda: False)
    monkeypatch.setattr("dxgemm.cli.tune.LEARNED_FROM", 50)
    monkeypatch.setattr("dxgemm.runtime.device.device_facts", lambda ordinal: H200)
    monkeypatch.setattr("dxgemm.tuning.measure.build_candidates", lambda *_: None)
    monkeypatch.setattr("dxgemm.tuning.measure.measure", measured)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    shapes, out = tmp_path / "shapes.txt", tmp_path / "table.json"
    shapes.write_text("".join(f"{16 * m} 100 200\n" for m in range(1, FEWEST + 1)))
    options = ["--dtype", "float32", "--shapes", str(shapes), "--out", str(out), "--jobs", "1"]
    result = CliRunner().invoke(app, ["tune", *options])
    assert result.exit_code == 0, result.output
    table = read_table(out)
    assert table.speeds.keys() == {("float32", f"coalesced {config}")}
    assert table.trees.keys() == read_table(PACKAGED / "nvidia-h200.json").trees.keys()
    device = replace(H200, speeds=table.speeds, trees=table.trees)
    assert choose(contiguous_problem("float32", 500, 500, 500), device).reason == LOOKED_UP


def test_dtypes_without_tables_are_refused():
    result = CliRunner().invoke(app, ["tune", "--dtype", "float16"])
    assert result.exit_code == 2
    assert "float16" in result.output and "float64" in result.output


def test_measuring_checks_and_times_every_candidate():
    from dxgemm.tuning.measure import BASELINE, make_samplers, measure

    if not simulator_enabled():
        pytest.skip("the same on a GPU is `dxgemm tune`")
    shape = Shape("float32", 3, 4, 5)
    samplers = make_samplers(shape, lambda calls: [call() for call in calls] and 1e-3)
    assert "coalesced" in {way.implementation for way in samplers}
    assert BASELINE not in samplers  # the simulator has none
    assert {take_sample() for take_sample in samplers.values()} == {1e-3}
    measured = measure(shape, lambda calls: [call() for call in calls] and 2e-3)
    assert {o.us for o in measured.observations} == {2000.0}
    assert len(measured.observations) == len(samplers)


def test_a_wrong_kernel_stops_the_search(monkeypatch):
    from dxgemm.tuning.measure import measure

    if not simulator_enabled():
        pytest.skip("the same on a GPU is `dxgemm tune`")
    monkeypatch.setattr("dxgemm.gemm", lambda a, b, *, out, implementation: out.fill(0))
    with pytest.raises(errors.WrongResultError, match="is wrong"):
        measure(Shape("float32", 3, 4, 5), lambda calls: 1e-3)
