"""Decision trees: walked, written and read, grown, and what the automatic choice makes of them."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest
from known_devices import H200, TABLE, TUNED_H200

from dxgemm import _dispatch, epilogues, errors
from dxgemm._decision_tree import (
    BITS,
    COLUMNS,
    FEATURES,
    FUNCTIONS,
    LEAF,
    OTHER_REDUCTION,
    PACKED,
    REDUCTION_OF_ROWS,
    DecisionTree,
    TreePair,
    Way,
    _descend,
    features_of,
    read_tree,
    tree_entry,
    tree_key,
)
from dxgemm._dispatch import LOOKED_UP, choose, predicted_us, rank, slice_counts, slices_that_fill
from dxgemm._fusion import FusedReduction, Fusion
from dxgemm._model import predict, predict_us
from dxgemm._problem import (
    RESULT_DTYPES,
    Strides,
    contiguous_problem,
    oriented,
    sliced_problem,
    used_strides,
)
from dxgemm._registry import find_config, find_implementation
from dxgemm._speeds import Table, read_table, write_table
from dxgemm.epilogues.function import bound_epilogue
from dxgemm.tuning import trees
from dxgemm.tuning.shapes import log_uniform_shapes

TUNED = find_implementation("tuned")
FEW, DEEP = 100, 5000
OF_TREES = list(dict.fromkeys(part[:2] for part in trees.parts_of(TUNED_H200, 1)))
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


def both(tree):
    """For single products, and for all else."""
    return TreePair(tree, tree)


def one_answer(way):
    """A tree that has the same answer to everything."""
    return DecisionTree((way,), packed((LEAF, 0, 0)))


def trees_of(way):
    """Of float32, with the same answer to everything."""
    return {"float32": both(one_answer(way))}


@pytest.fixture
def tree(configs_of_a_gpu):
    return small_tree(way(0), way(1), way(1, fill=2))


@pytest.fixture
def device(tree):
    return replace(H200, trees={"float32": both(tree)})


def problem(m, n, k, dtype="float32"):
    return contiguous_problem(dtype, m, n, k)


PATHS = {(FEW, 500, 7): 0, (FEW + 1, 7, DEEP): 1, (FEW + 1, 500, DEEP + 1): 2}


def test_a_problem_walks_down_to_its_leaf(tree):
    for size, index in PATHS.items():
        assert tree.find(features_of(problem(*size))) == index


def step_by_step(tree, features):
    """From the root, a node at a time."""
    nodes = np.frombuffer(tree.nodes, PACKED).tolist()
    node = 0
    while nodes[node][0] != LEAF:
        feature, most, right = nodes[node]
        node = node + 1 if features[feature] <= most else right
    return nodes[node][2]


def random_nodes(numbers, depth, start=0):
    """Of a tree that asks for m and n first, mostly, at powers of two and beside them."""
    if depth == 0 or numbers.random() < 0.1:
        return [(LEAF, 0, numbers.randrange(3))]
    feature = numbers.choice((0, 1, 0, 1, 2, LEAF - 1))
    most = 2 ** numbers.randrange(18) + numbers.choice((-1, -1, 0, 1))
    left = random_nodes(numbers, depth - 1, start + 1)
    right = start + 1 + len(left)
    return [(feature, most, right), *left, *random_nodes(numbers, depth - 1, right)]


@pytest.mark.parametrize("seed", range(20))
def test_the_quick_walk_comes_to_the_same_leaf(seed):
    numbers = random.Random(seed)
    nodes = random_nodes(numbers, numbers.randrange(9))
    tree = DecisionTree((Way("a", ""), Way("b", ""), Way("c", "")), packed(*nodes))
    assert read_tree(tree_entry(tree)) == tree
    extents = [0, 1, 2**40, *(2**bits + more for bits in range(18) for more in (-1, 0, 1))]
    for _ in range(300):
        features = [numbers.choice(extents) for _ in range(LEAF)]
        assert tree.find(features) == step_by_step(tree, features)


def test_the_packaged_trees_are_entered_behind_the_bounds_of_m_and_n():
    apart = len(trees.SIZES_APART) ** 2
    for tree in itertools.chain(*TABLE.trees.values()):
        for asked in trees.Part("float32", None, True, UNSEEN, 50).problems:
            features = features_of(asked)
            assert tree.find(features) == step_by_step(tree, features)
        columns = [np.frombuffer(tree.nodes, PACKED)[name].tolist() for name in COLUMNS]
        behind_m = {_descend(columns, 0, 0, bits) for bits in range(BITS)}
        starts = {_descend(columns, node, 1, bits) for node in behind_m for bits in range(BITS)}
        assert len(starts) >= apart
    for tree in (*TABLE.trees["float32"], *TABLE.trees["float64"]):
        assert len({id(start) for row in tree._starts for start in row}) >= apart


def test_features_are_what_they_are_called():
    odd = problem(321, 1000, 77)
    found = dict(zip(FEATURES, features_of(odd), strict=True))
    assert (found["m"], found["n"], found["k"]) == (321, 1000, 77)
    for m, n in ((32, 64), (64, 32), (128, 128)):
        assert found[f"tiles of {m} x {n}"] == -(-321 // m) * -(-1000 // n)
    assert [found[f"alignment of {name}"] for name in ("a", "b", "out")] == [1, 8, 8]
    assert (found["columns of a"], found["columns of b"], found["reads c"]) == (1, 1, False)
    assert (found["matrices"], found["bytes of a result"], found["epilogue"]) == (1, 4, 0)


def feature(name, asked):
    return features_of(asked)[FEATURES.index(name)]


def test_tiles_are_those_of_all_matrices():
    for m, n in ((32, 64), (64, 32), (128, 128)):
        tiles = f"tiles of {m} x {n}"
        one, seven = problem(321, 1000, 77), contiguous_problem("float32", 321, 1000, 77, 7)
        assert feature(tiles, seven) == 7 * feature(tiles, one)
    assert feature("matrices", seven) == 7


def test_results_have_bytes():
    for out_dtype, count in (("float16", 2), ("float32", 4)):
        half = contiguous_problem("float16", 64, 64, 64, out_dtype=out_dtype)
        assert feature("bytes of a result", half) == count


REDUCED = [
    (FusedReduction("sum", axis, ("float64",), is_stored=is_stored), code)
    for axis, is_stored, code in [
        (1, False, REDUCTION_OF_ROWS),
        (None, False, REDUCTION_OF_ROWS),
        (0, False, OTHER_REDUCTION),
        (1, True, OTHER_REDUCTION),
        (0, True, OTHER_REDUCTION),
    ]
]


def test_epilogues_are_told_apart():
    codes = {replace(problem(64, 64, 64), epilogue=RELU): FUNCTIONS}
    for reduction, code in REDUCED:
        for stages in ((), RELU.stages):
            fusion = Fusion(stages, (), False, reduction)
            codes[replace(problem(64, 64, 64), epilogue=fusion)] = code
    for asked, code in codes.items():
        assert feature("epilogue", asked) == code


@pytest.mark.parametrize(
    "strides, alignment",
    [
        ((0, 48, 1), 16),
        ((0, 1, 40), 8),
        ((0, 0, 1), 128),
        ((0, 1, 7), 1),
        ((0, 4096, 1), 128),
        ((0, -320, 1), 64),
        ((0, 1, -3), 1),
    ],
)
def test_rows_or_columns_are_aligned(strides, alignment):
    asked = replace(problem(64, 64, 64), a=Strides(*strides), b=Strides(*strides))
    for name in "ab":
        at = FEATURES.index(f"alignment of {name}")
        assert features_of(asked)[at] == alignment
        assert features_of(replace(asked, **{f"{name}_alignment": 8}))[at] == 1


def test_a_tree_is_read_as_it_was_written(tree, tmp_path):
    file = tmp_path / "table.json"
    write_table(file, "GPU", "sm_90a", Table(trees={"float32": both(tree)}), {})
    assert read_table(file) == Table(trees={"float32": both(tree)})


BROKEN = {
    "empty": (),
    "a feature that there is not": ((LEAF + 1, 0, 0),),
    "a way that there is not": ((LEAF, 0, 3),),
    "a node that there is not": ((0, 1, 3), (LEAF, 0, 0), (LEAF, 0, 0)),
    "a circle": ((0, 1, 0), (LEAF, 0, 0), (LEAF, 0, 0)),
    "no end": ((LEAF, 0, 0), (0, 1, 2)),
    "one child twice": ((0, 1, 1), (LEAF, 0, 0)),
    "two parents": ((0, 1, 2), (0, 0, 3), (LEAF, 0, 0), (LEAF, 0, 1)),
    "no parent": ((0, 1, 2), (LEAF, 0, 0), (LEAF, 0, 1), (LEAF, 0, 1)),
}


@pytest.mark.parametrize("nodes", BROKEN.values(), ids=BROKEN)
def test_what_is_no_tree_is_refused(tree, tmp_path, nodes):
    file = tmp_path / "table.json"
    broken = DecisionTree(tree.ways, packed(*nodes))
    write_table(file, "GPU", "sm_90a", Table(trees={"float32": both(broken)}), {})
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
        best = choose(problem(*size), device)
        assert (best.implementation, best.config) == (TUNED, TUNED.configs("float32")[index])
        assert (best.slices, best.reason) == (1, LOOKED_UP)


def test_slices_fill_the_gpu(device):
    m, n = FEW + 28, 512
    config = TUNED.configs("float32")[1]
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
    best = choose(problem(m, n, 10**6), device)
    assert (best.config, best.slices) == (config, 2 * H200.sm_count // tiles)
    part = best.part_of(problem(m, n, 10**6))
    assert part == sliced_problem(problem(m, n, 10**6), best.slices)
    assert choose(problem(2**15, 2**15, DEEP + 1), device).slices == 1


def test_the_others_are_ranked_when_asked_for(device, monkeypatch):
    timed = []
    time_all = _dispatch._time_all
    monkeypatch.setattr(_dispatch, "_time_all", lambda *of: timed.append(of) or time_all(*of))
    best = choose(problem(FEW, 64, 64), device)
    assert best.implementation is TUNED and not timed
    ranking = rank(problem(FEW, 64, 64), device)
    first, *others = ranking.candidates
    assert first is best and others and len(timed) == 1
    assert TUNED not in [other.implementation for other in others]
    assert "tuned" not in ranking.rejected and "cublas" in ranking.rejected
    for other in others:
        assert other.reason in ranking.rejected[other.implementation.name]


OF_NO_TREE = {
    "a precision": replace(problem(FEW, 64, 64), precision="tf32"),
    "another dtype": problem(FEW, 64, 64, "float64"),
}


@pytest.mark.parametrize("asked", OF_NO_TREE.values(), ids=OF_NO_TREE)
def test_what_trees_do_not_know_is_ranked_by_the_model(device, asked):
    assert rank(asked, device) == rank(asked, H200)


NO_SINGLE_PRODUCTS = {
    "a batch": contiguous_problem("float32", FEW, 64, 64, 3),
    "an epilogue": replace(problem(FEW, 64, 64), epilogue=RELU),
}


@pytest.mark.parametrize("asked", NO_SINGLE_PRODUCTS.values(), ids=NO_SINGLE_PRODUCTS)
def test_batches_and_epilogues_are_looked_up_too(device, asked):
    best = choose(asked, device)
    assert (best.config, best.reason) == (TUNED.configs("float32")[0], LOOKED_UP)


@pytest.mark.parametrize("asked", NO_SINGLE_PRODUCTS.values(), ids=NO_SINGLE_PRODUCTS)
def test_single_products_and_all_else_have_a_tree_each(configs_of_a_gpu, asked):
    pair = TreePair(products=one_answer(way(0)), varied=one_answer(way(1)))
    device = replace(H200, trees={"float32": pair})
    first, second = TUNED.configs("float32")[:2]
    assert choose(problem(FEW, 64, 64), device).config == first != second
    assert choose(asked, device).config == second


def test_a_precision_has_a_tree_of_its_own(tree):
    asked = replace(problem(FEW, 64, 64), precision="tf32")
    device = replace(H200, trees={"float32 tf32": both(tree)})
    assert choose(asked, device).reason == LOOKED_UP
    assert rank(problem(FEW, 64, 64), device) == rank(problem(FEW, 64, 64), H200)


@pytest.mark.parametrize("stores_matrix", [False, True])
@pytest.mark.parametrize("must_fuse", [None, False, True])
def test_a_reduction_is_fused_or_split_off_as_the_tree_says_or_the_caller(
    configs_of_a_gpu, stores_matrix, must_fuse
):
    device = replace(H200, trees=trees_of(way(0)._replace(stores_matrix=stores_matrix)))
    fusion = Fusion((), (), False, REDUCED[0][0])
    asked = replace(problem(FEW, 64, 64), epilogue=fusion, must_fuse=must_fuse)
    if must_fuse is stores_matrix:
        assert rank(asked, device) == rank(asked, H200)
    else:
        best = choose(asked, device)
        assert (best.stores_matrix, best.reason) == (stores_matrix, LOOKED_UP)


@pytest.mark.parametrize("stores_matrix", [False, True])
def test_no_slices_are_reduced(configs_of_a_gpu, stores_matrix):
    sliced = way(1, fill=2)._replace(stores_matrix=stores_matrix)
    device = replace(H200, trees=trees_of(sliced))
    asked = replace(problem(64, 64, DEEP), epilogue=Fusion((), (), False, REDUCED[0][0]))
    assert rank(asked, device) == rank(asked, H200)
    relu = replace(asked, epilogue=RELU)
    assert choose(relu, replace(H200, trees=trees_of(way(1, fill=2)))).slices > 1


def test_a_matrix_that_nobody_reduces_is_no_answer(configs_of_a_gpu):
    device = replace(H200, trees=trees_of(way(0)._replace(stores_matrix=True)))
    for asked in (problem(64, 64, 64), replace(problem(64, 64, 64), epilogue=RELU)):
        assert rank(asked, device) == rank(asked, H200)


def test_what_is_named_is_not_looked_up(device):
    ranking = rank(problem(FEW, 64, 64), device, "coalesced")
    assert ranking.candidates[0].implementation.name == "coalesced"


def test_a_config_of_another_version_is_passed_over(configs_of_a_gpu):
    gone = Way("tuned", "of a former version")
    device = replace(H200, trees=trees_of(gone))
    assert rank(problem(FEW, 64, 64), device) == rank(problem(FEW, 64, 64), H200)


def test_what_cannot_compute_the_problem_is_passed_over(configs_of_a_gpu):
    (config,) = find_implementation("block_batch").configs("float32")
    block = Way("block_batch", str(config))
    device = replace(H200, trees=trees_of(block))
    fitting, other = problem(96, 96, 96), problem(97, 96, 96)
    assert choose(fitting, device).implementation.name == "block_batch"
    assert rank(other, device) == rank(other, H200)


@pytest.mark.parametrize("is_varied", [False, True])
def test_some_parts_are_of_typical_sizes(is_varied):
    found = {False: [], True: []}
    for part in trees.parts_of(TUNED_H200, 20 * trees.AT_ONCE):
        if part[:3] == ("float64", None, is_varied):
            found[part.is_typical] += part._replace(size=400).problems

    def share(is_typical, holds):
        sizes = [(p.m, p.n, p.k) for p in found[is_typical]]
        return sum(map(holds, sizes)) / len(sizes)

    def are_round(sizes):
        return set(sizes) <= set(trees.ROUND)

    def are_cube(sizes):
        return len(set(sizes)) == 1

    def has_vector(sizes):
        return 1 in sizes

    def has_long(sizes):
        return max(sizes) > trees.POSSIBLE[1]

    assert share(True, are_round) > 0.5 > 0.3 > share(False, are_round)
    assert share(True, are_cube) > 0.2
    assert share(True, has_vector) > 0.15 > 0.1 > share(False, has_vector)
    assert share(True, has_long) > 0.02 and share(False, has_long) < 0.01


def test_random_problems_are_the_same_each_time_and_of_all_kinds():
    def problems(number):
        return list(trees.Part("float64", None, False, number, 300).problems)

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
        assert p.batch == 1 and p.epilogue is None


def test_random_problems_of_one_row_or_column_are_as_calls_define_them():
    part = trees.Part("float64", None, True, 1, 600, is_typical=True)
    found = [p for p in part.problems if 1 in (p.m, p.n, p.k)]
    assert len(found) > 50
    for p in found:
        assert oriented(p) == p and (p.m == 1 or p.n > 1)
        for strides, rows, cols in ((p.a, p.m, p.k), (p.b, p.k, p.n), (p.out, p.m, p.n)):
            assert strides == used_strides((p.batch, rows, cols), strides)


@pytest.mark.parametrize("dtype, precision", OF_TREES)
def test_varied_problems_are_of_all_kinds_too(configs_of_a_gpu, dtype, precision):
    found = list(trees.Part(dtype, precision, True, 1, 600).problems)
    assert {(p.batch > 1, p.epilogue is not None) for p in found} == {
        (True, False), (False, True), (True, True)
    }  # fmt: skip
    assert {p.out_dtype for p in found} == set(RESULT_DTYPES[dtype])
    fusions = [p.epilogue for p in found if p.epilogue is not None]
    assert len({(bool(fusion.stages), fusion.reduction) for fusion in fusions}) >= 9
    for p in found:
        assert (p.dtype, p.precision) == (dtype, precision)
        assert p.batch * max(p.m * p.n, p.m * p.k, p.n * p.k) <= trees.MOST_IN_BATCH
        if p.batch > 1:
            assert p.a.batch >= p.m * p.k and p.b.batch >= p.k * p.n and p.out.batch >= p.m * p.n
    if (dtype, precision) == ("float32", None):
        (only,) = find_implementation("block_batch").configs(dtype)
        assert only.only_shape in {(p.m, p.n, p.k) for p in found if p.batch > 1}


def test_parts_are_as_many_problems_as_asked_for():
    counts = {}
    for part in trees.parts_of(TUNED_H200, 120_000):
        assert 0 < part.size <= trees.AT_ONCE
        of = (part.dtype, part.precision, part.is_varied, part.is_typical)
        counts[of] = counts.get(of, 0) + part.size
    kinds = set(itertools.product(TABLE.trees, (False, True)))
    assert {(tree_key(*of[:2]), of[2]) for of in counts if not of[3]} == kinds
    assert {(tree_key(*of[:2]), of[2]) for of in counts if of[3]} == kinds
    assert counts["float64", None, False, False] == 120_000
    assert counts["float64", None, True, False] == 84_000
    assert counts["float64", None, False, True] == 3 * trees.AT_ONCE
    assert counts["float64", "split", False, False] == 12_000
    assert counts["float64", "split", False, True] == 2_000
    assert counts["int8", None, True, False] == 96_000


ASKED = {
    "products": trees.Part("float32", None, False, 3, 20),
    "batches and epilogues": trees.Part("float64", None, True, 3, 30),
    "a precision": trees.Part("float32", "split", True, 3, 10),
    "half precision": trees.Part("float16", None, True, 3, 10),
}


@pytest.mark.parametrize("part", ASKED.values(), ids=ASKED)
def test_the_model_is_asked_of_each_problem(configs_of_a_gpu, part):
    answers = trees.ask(part, TUNED_H200)
    problems = list(part.problems)
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
        ranked = choose(asked, replace(TUNED_H200, trees={}))
        text = f"predicted {best_us:.3g} us"
        assert ranked.reason.startswith(text), (ranked, asked)


def test_answers_are_joined_in_order():
    one, other = Way("one", ""), Way("other", "")

    def part(value, losses):
        features = np.full((2, len(FEATURES)), value, np.float32)
        return trees.Answers(
            features, {w: (np.array([index]), np.array([lost])) for w, index, lost in losses}
        )

    joined = trees.join([part(1, [(one, 0, 0.5)]), part(2, [(one, 1, 0.25), (other, 0, 0.0)])])
    assert joined.features[:, 0].tolist() == [1, 1, 2, 2]
    found = {w: (indices.tolist(), lost.tolist()) for w, (indices, lost) in joined.losses.items()}
    assert found == {one: ([0, 3], [0.5, 0.25]), other: ([2], [0.0])}


SOME = trees.Part("float32", None, False, 1)


def made_up_answers(count, losses_of):
    """Of problems of growing m; a function gives what the ways lose at an m."""
    pytest.importorskip("sklearn")
    features = np.zeros((count, len(FEATURES)), np.float32)
    features[:, 0] = np.arange(count)
    names = losses_of(0)
    losses = {
        Way(name, ""): (
            np.arange(count),
            np.array([losses_of(m)[name] for m in range(count)], np.float32),
        )
        for name in names
    }
    return trees.Answers(features, losses)


def leaves(tree, count):
    found = [tree.find([m] + [0] * (LEAF - 1)) for m in range(count)]
    return [tree.ways[index].implementation for index in found]


def test_a_tree_learns_where_one_way_becomes_better_than_another():
    def losses(m):
        return {"first": 0.0 if m <= 30 else 0.08, "second": 0.1 if m <= 30 else 0.0}

    tree = trees.grow(made_up_answers(100, losses), SOME)
    assert leaves(tree, 100) == ["first"] * 31 + ["second"] * 69
    first, second = (LEAF, 0, 0), (LEAF, 0, 1)
    bounds = [(0, 63, 8), (0, 15, 5), (0, 3, 4), first, first, (0, 30, 7), first, second, second]
    assert np.frombuffer(tree.nodes, PACKED).tolist() == bounds
    assert read_tree(json.loads(json.dumps(tree_entry(tree)))).nodes == tree.nodes


@pytest.mark.parametrize("least", [*range(40), 120, 131, 1024])
def test_the_roundest_number_is_what_the_largest_power_of_two_divides(least):
    def power(number):
        return number & -number or 2**64

    for most in range(least, least + 70):
        found = trees.roundest(least, most)
        assert least <= found <= most
        assert power(found) == max(power(number) for number in range(least, most + 1))


def test_a_tree_asks_for_the_roundest_numbers():
    answers = made_up_answers(100, lambda m: {"first": 0.1 * (m > 60), "second": 0.1 * (m <= 60)})
    answers.features[:, 0] *= 16
    tree = trees.grow(answers, SOME)
    assert 960 in [most for _, most, _ in np.frombuffer(tree.nodes, PACKED).tolist()]
    answers.features[:, 0] += 11
    tree = trees.grow(answers, SOME)
    assert 976 in [most for _, most, _ in np.frombuffer(tree.nodes, PACKED).tolist()]


def test_rows_better_aligned_than_misaligned_ones_are_taken_for_aligned():
    """A tree that saw rows aligned to 4 elements and to 16 takes 8 for what it takes 16 for."""
    answers = made_up_answers(100, lambda m: {"plain": 0.1 * (m > 60), "copy": 0.1 * (m <= 60)})
    at = FEATURES.index("alignment of out")
    answers.features[:, at] = np.where(answers.features[:, 0] > 60, 16, 4)
    answers.features[:, 0] = 64
    tree = trees.grow(answers, SOME)
    assert np.frombuffer(tree.nodes, PACKED)[0].tolist() == (at, 4, 2)


def test_where_the_copy_engine_is_needed_alignment_is_told_apart_first():
    answers = made_up_answers(100, lambda m: {"one": 0.0})
    first, second = FEATURES.index("alignment of a"), FEATURES.index("alignment of b")
    answers.features[:, first] = 2 ** (np.arange(100) % 5)
    answers.features[:, second] = 2 ** (np.arange(100) // 20)
    answers.features[:, 0] = 64
    asked = {(second, 7), (first, 7), (LEAF, 0)}
    for dtype, expected in (("float16", asked), ("float32", {(LEAF, 0)})):
        nodes = np.frombuffer(trees.grow(answers, SOME._replace(dtype=dtype)).nodes, PACKED)
        assert {(int(n["feature"]), int(n["most"])) for n in nodes} == expected


def test_of_int8_those_are_told_apart_that_the_copy_engine_takes():
    """Both operands along k, and aligned: where one of it is missing, nothing else is asked."""
    answers = made_up_answers(16, lambda m: {"one": 0.0})
    wanted = "columns of a", "columns of b", "alignment of a", "alignment of b"
    asked = [FEATURES.index(name) for name in wanted]
    for bit, (place, (low, high)) in enumerate(zip(asked, [(1, 64), (1, 64), (8, 16), (8, 16)])):
        answers.features[:, place] = np.where(np.arange(16) >> bit & 1, high, low)
    answers.features[:, 0] = 64
    tree = trees.grow(answers, SOME._replace(dtype="int8"))
    (first, second, third, fourth), leaf = asked, (LEAF, 0, 0)
    assert np.frombuffer(tree.nodes, PACKED).tolist() == [
        (first, 1, 8), (second, 1, 3), leaf, (third, 15, 5), leaf, (fourth, 15, 7), leaf, leaf, leaf
    ]  # fmt: skip


def test_where_a_pipeline_may_be_chosen_its_tile_and_stages_are_told_apart_first(configs_of_a_gpu):
    config = find_implementation("pipeline").configs("int8")[0]
    stages_k = config.stages * config.split_k * config.tile_k
    least = {"m": config.tile_m, "n": config.tile_n, "k": stages_k}
    of_pipeline = {trees.Bound(FEATURES.index(size), most - 1) for size, most in least.items()}
    assert of_pipeline <= set(trees.known_bounds(SOME._replace(dtype="int8")))
    assert not of_pipeline & set(trees.known_bounds(SOME))


def test_a_split_that_saves_next_to_nothing_is_undone():
    def losses(m):
        return {"first": 0.0 if m <= 30 else 1e-7, "second": 1e-7 if m <= 30 else 0.0}

    tree = trees.grow(made_up_answers(100, losses), SOME)
    nodes = np.frombuffer(tree.nodes, PACKED)
    assert set(nodes["most"].tolist()) == {0, 3, 15, 63}  # bounds of m


def test_a_way_that_is_never_the_best_may_lose_least():
    def losses(m):
        return {"odd": 0.1 * (m % 2 == 0), "even": 0.1 * (m % 2 == 1), "both": 0.01}

    tree = trees.grow(made_up_answers(101, losses), SOME)
    assert set(leaves(tree, 101)) == {"both"}


def test_processes_share_the_questions():
    pytest.importorskip("sklearn")
    reports = []
    few = {k: v for k, v in TABLE.speeds.items() if k[0] == "float32" and "tuned" in k[1]}
    earlier = DecisionTree((Way("naive", ""),), b"")
    earlier.ready[0] = trees  # a choice leaves candidates there, of modules: no process is sent one
    small = replace(TUNED_H200, speeds=few, trees={"float32": both(earlier)})
    found = trees.grow_trees(small, 50, 1, lambda *of: reports.append(of))
    parts = trees.parts_of(small, 50)
    assert found.keys() == TABLE.trees.keys() and len(reports) == len(parts)
    answered = {part: trees.ask(part, small) for part in parts if part.dtype == "float32"}
    assert trees.grow_all(answered) == {of: found[of] for of in found if of.startswith("float32")}
    device = replace(small, trees=found)
    (products,) = (p for p in parts if p[:3] == ("float32", None, False))
    assert all(choose(p, device).reason == LOOKED_UP for p in products.problems)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    with pytest.raises(errors.MissingPackageError, match=r"dxgemm\[tune\]"):
        trees.grow_trees(TUNED_H200, 1)


UNSEEN = 10**6  # number of a part that no tree was grown from
# Problems to ask, and how many of them a tree may answer by what takes a twentieth longer than the
# best: fewer where it was grown from more.
ASKED_AND_LOST = {"float32": (300, 0.05), "float64": (300, 0.05)}


def lost_by_lookup(asked, tree):
    """Of the time, by the model, against the best; at most 1. None where the model answers."""
    if choose(asked, TUNED_H200).reason != LOOKED_UP:
        return None
    times = predicted_us(asked, TUNED_H200, 2.0)
    found = tree.ways[tree.find(features_of(asked))]
    return times.get(found, 2.0 * min(times.values())) / min(times.values()) - 1


@pytest.mark.parametrize("is_varied", [False, True], ids=["products", "batches and epilogues"])
@pytest.mark.parametrize("dtype, precision", OF_TREES)
def test_the_packaged_trees_answer_as_the_model_does(configs_of_a_gpu, dtype, precision, is_varied):
    """By the model, on problems that they were not grown from."""
    key = tree_key(dtype, precision)
    count, most = ASKED_AND_LOST.get(key, (150, 0.15))
    problems = list(trees.Part(dtype, precision, is_varied, UNSEEN, count).problems)
    if precision is None and not is_varied:
        shapes = itertools.islice(log_uniform_shapes((dtype,), 12345), count)
        problems = [contiguous_problem(*shape) for shape in shapes]
    tree = TUNED_H200.trees[key][is_varied]
    lost = [x for asked in problems if (x := lost_by_lookup(asked, tree)) is not None]
    assert len(lost) >= 0.97 * len(problems)
    assert sum(x > 0.05 for x in lost) <= most * len(lost)
    assert sum(lost) <= 0.2 * most * len(lost)


FIRST_ASKED = [
    *((size, size, size) for size in (2**power for power in range(4, 16))),
    *((m, n, n) for m in (1, 16, 256) for n in (2048, 4096, 8192)),
    *((n, 1, n) for n in (2048, 4096, 8192)),
    *((m, m, k) for m in (2048, 4096, 8192) for k in (64, 128, 256)),
    *((131072, 256, 256), (256, 131072, 4096), (16, 131072, 4096)),
]
# In half precision these have rows of 16 bytes and no more, which kernels for misaligned ones
# multiply as well, in many times as long.
ROWS_OF_EIGHTS = [
    (65536, 1000, 3000),
    (8192, 128256, 5000),
    (14336, 65536, 200),
    (13824, 200, 13824),
]
# Nor may kernels be taken whose stages such a k does not fill.
SHORT_K = [(65536, 20000, 200), (50257, 4096, 255), (5377, 44526, 244), (3000, 65536, 193)]


@pytest.mark.parametrize(
    "shapes", [FIRST_ASKED, ROWS_OF_EIGHTS, SHORT_K], ids=["first", "eights", "short k"]
)
@pytest.mark.parametrize("is_varied", [False, True], ids=["products", "epilogues"])
@pytest.mark.parametrize("dtype, precision", OF_TREES)
def test_the_packaged_trees_know_what_people_ask_first(
    configs_of_a_gpu, dtype, precision, is_varied, shapes
):
    """By the model: squares of powers of two, few rows, one column, a short k, a long extent."""
    tree, lost = TUNED_H200.trees[tree_key(dtype, precision)][is_varied], {}
    for shape in shapes:
        asked = contiguous_problem(dtype, *shape, precision=precision)
        asked = replace(asked, epilogue=RELU if is_varied else None)
        lost[asked.m, asked.n, asked.k] = lost_by_lookup(asked, tree) or 0.0
    assert max(lost.values()) < 0.15, lost
    assert sum(x > 0.05 for x in lost.values()) <= 1, lost


@pytest.mark.parametrize("is_varied", [False, True], ids=["products", "epilogues"])
@pytest.mark.parametrize("dtype, precision", OF_TREES)
def test_the_packaged_trees_know_linear_layers(configs_of_a_gpu, dtype, precision, is_varied):
    """By the model, x @ weight.T: of int8 other kernels compute it in up to 60 times as long."""
    tree, lost = TUNED_H200.trees[tree_key(dtype, precision)][is_varied], {}
    for m, n, k in (*FIRST_ASKED, (96, 32768, 49152), (96, 262144, 256), (64, 5440, 256)):
        asked = contiguous_problem(dtype, m, n, k, precision=precision)
        along_k = asked.b if n == 1 else Strides(0, 1, k)
        asked = replace(asked, b=along_k, epilogue=RELU if is_varied else None)
        lost[asked.m, asked.n, asked.k] = lost_by_lookup(asked, tree) or 0.0
    assert max(lost.values()) < 0.3, lost
    assert sum(x > 0.05 for x in lost.values()) <= 1, lost


@pytest.mark.parametrize("dtype, precision", OF_TREES)
def test_the_packaged_trees_name_configs_that_exist(configs_of_a_gpu, dtype, precision):
    for found in itertools.chain(*(tree.ways for tree in TABLE.trees[tree_key(dtype, precision)])):
        implementation = find_implementation(found.implementation)
        assert find_config(implementation, dtype, found.config) is not None
        assert implementation.is_own and implementation.is_searched(dtype)


@pytest.mark.parametrize("is_varied", [False, True], ids=["products", "varied"])
def test_what_is_left_uncorrected_is_certainly_too_long(configs_of_a_gpu, is_varied):
    """All that is within a tenth of the shortest is there; what is there is the same."""
    left = 0
    for asked in trees.Part("float32", None, is_varied, 4, 50).problems:
        times, near = (predicted_us(asked, TUNED_H200, within) for within in (math.inf, 1.1))
        limit_us = 1.1 * min(times.values())
        assert near.items() <= times.items()
        assert near.keys() >= {way for way, us in times.items() if us <= limit_us}
        left += len(times) - len(near)
    assert left


def test_no_prediction_is_below_the_least_of_it(configs_of_a_gpu):
    corrected = 0
    for asked in trees.Part("float32", None, False, 4, 50).problems:
        for config in TUNED.configs("float32"):
            prediction = predict(TUNED, config, asked, TUNED_H200)
            assert prediction.least_us <= prediction.us
            assert prediction.us == predict_us(TUNED, config, asked, TUNED_H200)
            corrected += prediction.least_us < prediction.us
    assert corrected


def test_slices_are_counted_by_what_they_fill(configs_of_a_gpu):
    config = TUNED.configs("float32")[1]
    asked = problem(64, 64, 10**5)
    counts = slice_counts(TUNED, config, asked, H200)
    assert counts.pop(1) == 0 and counts
    for count, fill in counts.items():
        assert count == slices_that_fill(config, asked, H200, fill)
