"""Decision trees: walked, written and read, grown, and what the automatic choice makes of them."""

from __future__ import annotations

import json
import random
import sys
import zlib
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from known_devices import H200, TABLE, TUNED_H200

from dxgemm import _dispatch, epilogues, errors
from dxgemm._decision_tree import (
    FEATURES,
    LEAF,
    PACKED,
    DecisionTree,
    Way,
    features_of,
    read_tree,
    tree_entry,
)
from dxgemm._dispatch import LOOKED_UP, choose, predicted_us, slice_counts, slices_that_fill
from dxgemm._fusion import Fusion
from dxgemm._model import predict_us
from dxgemm._problem import Strides, contiguous_problem, sliced_problem
from dxgemm._registry import find_config, find_implementation
from dxgemm._speeds import Table, read_table, write_table
from dxgemm.epilogues.function import bound_epilogue
from dxgemm.tuning import trees
from dxgemm.tuning.shapes import log_uniform_shapes

TUNED = find_implementation("tuned")
FEW, DEEP = 100, 5000
RELU = Fusion(bound_epilogue(epilogues.relu).shape.functions, ())


def way(index, fill=0):
    return Way("tuned", str(TUNED.configs("float32")[index]), fill)


def packed(*nodes):
    return np.array(list(nodes), PACKED).tobytes()


def small_tree(*ways):
    """Few rows take the first way; of the others a short k the second, a long one the third."""
    m, k = FEATURES.index("m"), FEATURES.index("k")
    nodes = packed((m, FEW, 2), (LEAF, 0, 0), (k, DEEP, 4), (LEAF, 0, 1), (LEAF, 0, 2))
    return DecisionTree(ways, nodes)


@pytest.fixture
def tree(configs_of_a_gpu):
    return small_tree(way(0), way(1), way(1, fill=2))


@pytest.fixture
def device(tree):
    return replace(H200, trees={"float32": tree})


def problem(m, n, k, dtype="float32"):
    return contiguous_problem(dtype, m, n, k)


PATHS = {(FEW, 500, 7): 0, (FEW + 1, 7, DEEP): 1, (FEW + 1, 500, DEEP + 1): 2}


def test_a_problem_walks_down_to_its_leaf(tree):
    for size, index in PATHS.items():
        assert tree.find(features_of(problem(*size))) == index


def test_features_are_what_they_are_called():
    odd = problem(321, 1000, 77)
    found = dict(zip(FEATURES, features_of(odd), strict=True))
    assert (found["m"], found["n"], found["k"]) == (321, 1000, 77)
    for m, n in ((32, 64), (64, 32), (64, 64), (128, 128)):
        assert found[f"tiles of {m} x {n}"] == -(-321 // m) * -(-1000 // n)
    assert [found[f"alignment of {name}"] for name in ("a", "b", "out")] == [1, 8, 8]
    assert (found["columns of a"], found["columns of b"], found["reads c"]) == (1, 1, False)


@pytest.mark.parametrize(
    "strides, alignment", [((0, 48, 1), 16), ((0, 1, 40), 8), ((0, 0, 1), 128), ((0, 1, 7), 1)]
)
def test_rows_or_columns_are_aligned(strides, alignment):
    asked = replace(problem(64, 64, 64), a=Strides(*strides), b=Strides(*strides))
    for name in "ab":
        at = FEATURES.index(f"alignment of {name}")
        assert features_of(asked)[at] == alignment
        assert features_of(replace(asked, **{f"{name}_alignment": 8}))[at] == 1


def test_a_tree_is_read_as_it_was_written(tree, tmp_path):
    file = tmp_path / "table.json"
    write_table(file, "GPU", "sm_90a", Table(trees={"float32": tree}), {})
    assert read_table(file) == Table(trees={"float32": tree})


BROKEN = {
    "empty": (),
    "a feature that there is not": ((LEAF + 1, 0, 0),),
    "a way that there is not": ((LEAF, 0, 3),),
    "a node that there is not": ((0, 1, 3), (LEAF, 0, 0), (LEAF, 0, 0)),
    "a circle": ((0, 1, 0), (LEAF, 0, 0), (LEAF, 0, 0)),
    "no end": ((LEAF, 0, 0), (0, 1, 2)),
    "one child twice": ((0, 1, 1), (LEAF, 0, 0)),
}


@pytest.mark.parametrize("nodes", BROKEN.values(), ids=BROKEN)
def test_what_is_no_tree_is_refused(tree, tmp_path, nodes):
    file = tmp_path / "table.json"
    broken = DecisionTree(tree.ways, packed(*nodes))
    write_table(file, "GPU", "sm_90a", Table(trees={"float32": broken}), {})
    with pytest.raises(errors.SettingError, match="is no table of speeds"):
        read_table(file)


def test_a_tree_that_was_cut_off_is_refused(tree):
    entry = tree_entry(tree)
    with pytest.raises((ValueError, zlib.error)):
        read_tree({**entry, "nodes": entry["nodes"][:-4]})
    with pytest.raises(KeyError):
        read_tree({"ways": entry["ways"]})
    with pytest.raises(TypeError):
        read_tree({**entry, "ways": [["tuned"]]})


def test_the_choice_is_looked_up(device):
    for size, index in list(PATHS.items())[:2]:
        best = choose(problem(*size), device).best
        assert (best.implementation, best.config) == (TUNED, TUNED.configs("float32")[index])
        assert (best.slices, best.reason) == (1, LOOKED_UP)


def test_slices_fill_the_gpu(device):
    m, n = FEW + 28, 512
    config = TUNED.configs("float32")[1]
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
    best = choose(problem(m, n, 10**6), device).best
    assert (best.config, best.slices) == (config, 2 * H200.sm_count // tiles)
    part = best.part_of(problem(m, n, 10**6))
    assert part == sliced_problem(problem(m, n, 10**6), best.slices)
    assert choose(problem(2**15, 2**15, DEEP + 1), device).best.slices == 1


def test_the_others_are_ranked_when_asked_for(device, monkeypatch):
    ranked = []
    rank = _dispatch._rank
    monkeypatch.setattr(_dispatch, "_rank", lambda *of: ranked.append(of) or rank(*of))
    decision = choose(problem(FEW, 64, 64), device)
    assert next(decision.in_turn()) is decision.best and not ranked
    first, *others = decision.candidates
    assert first is decision.best and others and len(ranked) == 1
    assert TUNED not in [other.implementation for other in others]
    assert list(decision.in_turn()) == [first, *others]
    assert "tuned" not in decision.rejected and "cublas" in decision.rejected
    for other in others:
        assert other.reason in decision.rejected[other.implementation.name]
    assert len(ranked) == 1


NOT_PLAIN = {
    "a batch": contiguous_problem("float32", FEW, 64, 64, 3),
    "an epilogue": replace(problem(FEW, 64, 64), epilogue=RELU),
    "a precision": replace(problem(FEW, 64, 64), precision="tf32"),
    "another dtype": problem(FEW, 64, 64, "float64"),
}


@pytest.mark.parametrize("asked", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_trees_do_not_know_is_ranked_by_the_model(device, asked):
    assert choose(asked, device) == choose(asked, H200)


def test_what_is_named_is_not_looked_up(device):
    decision = choose(problem(FEW, 64, 64), device, "coalesced")
    assert decision.best.implementation.name == "coalesced"


def test_a_config_of_another_version_is_passed_over(configs_of_a_gpu):
    gone = Way("tuned", "of a former version", 0)
    device = replace(H200, trees={"float32": small_tree(gone, gone, gone)})
    assert choose(problem(FEW, 64, 64), device) == choose(problem(FEW, 64, 64), H200)


def test_what_cannot_compute_the_problem_is_passed_over(configs_of_a_gpu):
    (config,) = find_implementation("block_batch").configs("float32")
    block = Way("block_batch", str(config), 0)
    device = replace(H200, trees={"float32": small_tree(block, block, block)})
    fitting, other = problem(96, 96, 96), problem(97, 96, 96)
    assert choose(fitting, device).best.implementation.name == "block_batch"
    assert choose(other, device) == choose(other, H200)


def test_random_problems_are_the_same_each_time_and_of_all_kinds():
    def problems(seed):
        return list(islice(trees.random_problems("float64", random.Random(seed)), 300))

    found = problems(1)
    assert found == problems(1) != problems(2)
    assert {p.reads_c for p in found} == {True, False}
    assert {(p.a.arrangement, p.b.arrangement) for p in found} == {
        (a, b) for a in ("row_major", "col_major") for b in ("row_major", "col_major")
    }
    for p in found:
        assert p.a.row + p.a.col > (p.k if p.a.col == 1 else p.m)
        assert p.b.row + p.b.col > (p.n if p.b.col == 1 else p.k)
        assert p.out.row >= p.n and p.out.col == 1
        assert max(p.m * p.n, p.m * p.k, p.n * p.k) <= trees.MOST_ELEMENTS


def test_the_model_is_asked_of_each_problem(configs_of_a_gpu, monkeypatch):
    monkeypatch.setattr(trees, "AT_ONCE", 20)
    answers = trees.ask("float32", TUNED_H200, 3)
    problems = list(islice(trees.random_problems("float32", random.Random("float32 3")), 20))
    assert answers.features.tolist() == [list(map(float, features_of(p))) for p in problems]
    for index, asked in enumerate(problems):
        times = predicted_us(asked, TUNED_H200, 2.0)
        best_us = min(times.values())
        expected = {
            way: us / best_us - 1
            for way, us in times.items()
            if us < (1 + trees.MOST_LOSS) * best_us
        }
        found = {
            way: lost[list(indices).index(index)]
            for way, (indices, lost) in answers.losses.items()
            if index in indices
        }
        assert found == pytest.approx(expected, abs=1e-6) and 0 in found.values()


def test_answers_are_joined_in_order():
    one, other = Way("one", "", 0), Way("other", "", 0)

    def part(value, losses):
        features = np.full((2, len(FEATURES)), value, np.float32)
        return trees.Answers(
            features, {w: (np.array([index]), np.array([lost])) for w, index, lost in losses}
        )

    joined = trees.join([part(1, [(one, 0, 0.5)]), part(2, [(one, 1, 0.25), (other, 0, 0.0)])])
    assert joined.features[:, 0].tolist() == [1, 1, 2, 2]
    found = {w: (indices.tolist(), lost.tolist()) for w, (indices, lost) in joined.losses.items()}
    assert found == {one: ([0, 3], [0.5, 0.25]), other: ([2], [0.0])}


def made_up_answers(count, losses_of):
    """Of problems of growing m; a function gives what the ways lose at an m."""
    pytest.importorskip("sklearn")
    features = np.zeros((count, len(FEATURES)), np.float32)
    features[:, 0] = np.arange(count)
    names = losses_of(0)
    losses = {
        Way(name, "", 0): (
            np.arange(count),
            np.array([losses_of(m)[name] for m in range(count)], np.float32),
        )
        for name in names
    }
    return trees.Answers(features, losses)


def leaves(tree, count):
    return [tree.ways[tree.find([m] + [0] * (LEAF - 1))].implementation for m in range(count)]


def test_a_tree_learns_where_one_way_becomes_better_than_another():
    def losses(m):
        return {"first": 0.0 if m <= 30 else 0.08, "second": 0.1 if m <= 30 else 0.0}

    tree = trees.grow(made_up_answers(100, losses))
    assert leaves(tree, 100) == ["first"] * 31 + ["second"] * 69
    assert np.frombuffer(tree.nodes, PACKED).tolist() == [(0, 30, 2), (LEAF, 0, 0), (LEAF, 0, 1)]
    assert read_tree(json.loads(json.dumps(tree_entry(tree)))).nodes == tree.nodes


def test_a_split_that_saves_next_to_nothing_is_undone():
    def losses(m):
        return {"first": 0.0 if m <= 30 else 1e-5, "second": 1e-5 if m <= 30 else 0.0}

    tree = trees.grow(made_up_answers(100, losses))
    assert np.frombuffer(tree.nodes, PACKED).tolist() == [(LEAF, 0, 1)]


def test_a_way_that_is_never_the_best_may_lose_least():
    def losses(m):
        return {"odd": 0.1 * (m % 2 == 0), "even": 0.1 * (m % 2 == 1), "both": 0.01}

    tree = trees.grow(made_up_answers(101, losses))
    assert set(leaves(tree, 101)) == {"both"}


def test_processes_share_the_questions():
    pytest.importorskip("sklearn")
    reports = []
    few = {k: v for k, v in TABLE.speeds.items() if k[0] == "float32" and "tuned" in k[1]}
    small = replace(TUNED_H200, speeds=few)
    found = trees.grow_trees(small, 1, 1, lambda *of: reports.append(of))
    assert found.keys() == {"float32"} and len(reports) == 1
    problems = islice(trees.random_problems("float32", random.Random("float32 0")), 50)
    assert all(choose(p, replace(small, trees=found)).best.reason == LOOKED_UP for p in problems)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    with pytest.raises(errors.MissingPackageError, match=r"dxgemm\[tune\]"):
        trees.grow_trees(TUNED_H200, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_packaged_trees_answer_as_the_model_does(configs_of_a_gpu, dtype):
    """At most a twentieth slower, by the model, on nearly all of what they were not grown from."""
    lost = []
    for shape in islice(log_uniform_shapes((dtype,), 12345), 300):
        asked = contiguous_problem(*shape)
        times = predicted_us(asked, TUNED_H200, 2.0)
        tree = TUNED_H200.trees[dtype]
        found = tree.ways[tree.find(features_of(asked))]
        lost.append(times.get(found, 2.0 * min(times.values())) / min(times.values()) - 1)
    assert sum(x <= 0.05 for x in lost) >= 0.95 * len(lost)
    assert sum(lost) <= 0.01 * len(lost)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_packaged_trees_name_configs_that_exist(configs_of_a_gpu, dtype):
    for found in TABLE.trees[dtype].ways:
        implementation = find_implementation(found.implementation)
        assert find_config(implementation, dtype, found.config) is not None
        assert implementation.is_own and implementation.is_automatic(dtype)


def test_a_prediction_may_end_where_it_is_certainly_too_long(configs_of_a_gpu):
    """What is not infinite is the same; what is not longer than the limit is not infinite."""
    ended = 0
    for asked in islice(trees.random_problems("float32", random.Random(4)), 50):
        for config in TUNED.configs("float32"):
            us = predict_us(TUNED, config, asked, TUNED_H200)
            for limit_us in (0.3 * us, 0.9 * us, us, 2 * us):
                limited_us = predict_us(TUNED, config, asked, TUNED_H200, limit_us=limit_us)
                assert limited_us == us or us > limit_us
                ended += limited_us != us
    assert ended


def test_slices_are_counted_by_what_they_fill(configs_of_a_gpu):
    config = TUNED.configs("float32")[1]
    asked = problem(64, 64, 10**5)
    counts = slice_counts(TUNED, config, asked, H200)
    assert counts.pop(1) == 0 and counts
    for count, fill in counts.items():
        assert count == slices_that_fill(config, asked, H200, fill)
