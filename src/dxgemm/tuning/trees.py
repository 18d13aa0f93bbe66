"""Growing the decision trees that the automatic choice looks up: what the model answers, learned.

Random problems are asked of the model, which gives the time of each way to compute them. A tree is
grown that tells apart problems whose ways lose unlike parts of the time against the best; of a leaf
the way that loses least in all is taken. A split that saves its leaves next to nothing is undone.
Source: Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees", 1984: trees of
several outputs, and cost-complexity pruning.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from dxgemm._decision_tree import (
    FEATURES,
    LEAF,
    PACKED,
    DecisionTree,
    TreePair,
    Way,
    features_of,
    tree_key,
)
from dxgemm._dispatch import predicted_us
from dxgemm._errors import MissingPackageError
from dxgemm._fusion import FusedReduction, Fusion
from dxgemm._problem import (
    ITEM_SIZES,
    MAX_ALIGNMENT,
    PRECISIONS,
    RESULT_DTYPES,
    Problem,
    Strides,
    oriented,
    used_strides,
)
from dxgemm._registry import IMPLEMENTATIONS, find_implementation
from dxgemm.epilogues import relu
from dxgemm.epilogues.function import bound_epilogue
from dxgemm.runtime.device import DeviceFacts

# Extents of the problems: most are usual, all are possible. An extent is a multiple of one number
# out of these, the same for all of a problem.
USUAL, POSSIBLE, USUAL_SHARE = (16, 16384), (1, 65536), 0.9
MULTIPLES = (1, 1, 1, 2, 4, 16, 16, 16, 64, 128)
MOST_ELEMENTS = 2**29  # of a matrix
# That is not what people ask for. Beside one part of so many there is a typical one: most sizes are
# powers of two, or three times these; some problems are cubes, some have a vector, some an extent
# that is long.
TYPICAL_PARTS = 8
ROUND = tuple(sorted([1 << power for power in range(19)] + [3 << power for power in range(17)]))
ROUND_SHARE, CUBES, VECTORS, LONG_ONES = 0.6, 0.25, 0.2, 0.15
LONG, MOST_LONG_ELEMENTS = (2**14, 2**18), 2**32
# Half of the problems are of contiguous rows, which are only written; of the others, so many have
# rows of a, rows of b, rows without padding, a result that c is added to.
A_ROWS, B_ROWS, UNPADDED, READS_C = 0.75, 0.75, 0.85, 0.15
PADDINGS = (1, 2, 4, 8, 16, 32)

# Of the problems that are no single product, stored as it is, so many are batches, have an
# epilogue, or both. Matrices of batches are small mostly; in some m = n = k, in some they have a
# size that a config is compiled for.
BATCHES_ALONE, EPILOGUES_ALONE = 0.45, 0.4
SMALL_IN_BATCH, SMALL_SHARE, MATRICES = (4, 256), 0.75, (2, 2**17)
ONLY_SHAPES = 0.03
MOST_IN_BATCH = 2**29  # elements of all matrices
# Of the epilogues so many end in a reduction, which may come without functions.
REDUCTIONS, REDUCTIONS_ALONE, STORED = 0.5, 0.6, 0.15

# Problems of the tree for single products and of that for varied ones, for each problem that is
# asked for: of dtypes whose kernels have speeds, of others, and where a precision is permitted.
SHARES, UNTUNED_SHARES, PRECISION_SHARES = (1.0, 0.7), (0.6, 0.8), (0.1, 0.3)

# m and n are told apart at powers of four first, the middle one at first: a look-up begins behind
# these nodes.
SIZES_APART = tuple(4**power - 1 for power in (5, 3, 7, 2, 4, 6, 8, 1))
# Of the time, against the best: what loses more than a tenth is not told apart, and counts as if it
# lost a fifth, so that trees keep away from it.
MOST_LOSS, BEYOND = 0.1, 0.2
# What is added up is a power of a loss. Beside what loses most of its time small losses would count
# for nothing; so trees lose a tenth less than by the losses themselves.
POWER = 0.7
FEWEST = 2  # problems of a leaf
# Of the numbers between those of two children a node asks for the roundest. Not so here: alignment
# to 8 elements, unseen, is taken for what 16 is, not for what 4 is. Kernels that need more refuse.
ALIGNMENTS = [place for place, name in enumerate(FEATURES) if name.startswith("alignment")]
# Of these the quickest kernels need rows of whole 16 bytes, for the copy engine, and int8's need
# operands that lie along k as well; others may take many times as long. Which problems have all of
# it is told apart behind sizes.
COPIED = ("float16", "bfloat16", "int8", "float32 tf32")
# What a leaf has to save, of these powers added up over its problems: so much at least, and a part
# of the number of all problems, because a walk down a tree of too many nodes takes longer; of
# varied problems more, since of these a look-up reads more as it is.
WORTH, WORTH_SHARES = 0.3, (2.2e-7, 4.4e-7)
AT_ONCE = 5000  # problems


class Part(NamedTuple):
    """Of the problems of a tree.

    Attributes:
        is_varied: whether they are batches and have epilogues, some of them both.
        number: parts of different numbers have different problems.
        size: how many.
        is_typical: of what people ask for.
    """

    dtype: str
    precision: str | None
    is_varied: bool
    number: int
    size: int = AT_ONCE
    is_typical: bool = False

    @property
    def problems(self) -> Iterator[Problem]:
        words = (self.dtype, self.precision, "varied" if self.is_varied else None, self.number)
        numbers = random.Random(" ".join(str(word) for word in words if word is not None))
        draw = varied_problems if self.is_varied else random_problems
        return islice(draw(self.dtype, self.precision, numbers, self.is_typical), self.size)


_device: DeviceFacts | None = None  # of a process that asks


class Answers(NamedTuple):
    """Of the model, to so many random problems.

    Attributes:
        features: a row for each problem, as `features_of` gives them.
        losses: for each way that was near the best of a problem, an array of the problems' numbers,
            and one of the parts of the time that it loses against the best.
    """

    features: Any
    losses: dict[Way, tuple[Any, Any]]


class Bound(NamedTuple):
    """What tells problems apart before anything is learned, since it matters for sure.

    Attributes:
        feature: what is asked, at its place.
        most: what the lower ones have of it at most.
        ends: which of the two, "lower" or "upper", other bounds are not asked of.
    """

    feature: int
    most: int
    ends: str | None = None


def parts_of(device: DeviceFacts, problems: int) -> list[Part]:
    """What the trees of a device are grown from."""
    tuned = {dtype for dtype, _ in device.speeds}
    parts = []
    for dtype in RESULT_DTYPES:
        for precision in (None, *PRECISIONS.get(dtype, ())):
            shares = SHARES if dtype in tuned else UNTUNED_SHARES
            if precision is not None:
                shares = PRECISION_SHARES
            for is_varied, share in zip((False, True), shares, strict=True):
                count = math.ceil(share * problems)
                for number, first in enumerate(range(0, count, AT_ONCE)):
                    size = min(AT_ONCE, count - first)
                    part = Part(dtype, precision, is_varied, number, size)
                    parts.append(part)
                    if number % TYPICAL_PARTS == TYPICAL_PARTS // 4:
                        parts.append(part._replace(is_typical=True))
    return parts


def grow_trees(
    device: DeviceFacts,
    problems: int,
    jobs: int | None = None,
    report: Callable[[int, int, str], None] | None = None,
) -> dict[str, TreePair]:
    """Trees for each dtype and precision, by `tree_key`.

    Args:
        device: with what its kernels were measured to reach.
        problems: to ask the model, single products of each dtype that has speeds; of everything
            else as many as the shares say, and an eighth more typical ones.
        jobs: processes; None for one a CPU.
        report: called as `dxgemm.build` calls its progress.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    tree_learner()
    parts = parts_of(device, problems)
    answers: dict[Part, Answers] = {}
    device = replace(device, trees={})  # with trees goes what choices made of them
    # Not forked: the process may have used CUDA.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (device,)) as pool:
        asking = {pool.submit(_ask, part): part for part in parts}
        for done, asked in enumerate(as_completed(asking), start=1):
            answers[asking[asked]] = asked.result()
            if report:
                report(done, len(parts), f"{asking[asked].dtype} problems asked of the model")
    return grow_all(answers)


def grow_all(answers: Mapping[Part, Answers]) -> dict[str, TreePair]:
    """From the answers to all parts."""
    of_trees: dict[str, tuple[list[Part], list[Part]]] = {}
    for part in sorted(answers, key=lambda part: (part.number, part.is_typical)):
        of_pair = of_trees.setdefault(tree_key(part.dtype, part.precision), ([], []))
        of_pair[part.is_varied].append(part)
    return {
        key: TreePair(*(grow(join(answers[part] for part in parts), parts[0]) for parts in of_pair))
        for key, of_pair in of_trees.items()
    }


def tree_learner() -> Any:
    """scikit-learn's class.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        from sklearn.tree import DecisionTreeRegressor
    except ImportError as error:
        raise MissingPackageError(
            f"growing decision trees needs scikit-learn ({error}); pip install 'dxgemm[tune]'."
        ) from error
    return DecisionTreeRegressor


def _begin(device: DeviceFacts) -> None:
    """Begin a process, one of as many as there are CPUs."""
    global _device
    _device = device
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


def _ask(part: Part) -> Answers:
    assert _device is not None
    return ask(part, _device)


def random_problems(
    dtype: str, precision: str | None, numbers: random.Random, are_typical: bool
) -> Iterator[Problem]:
    """Without end, single products of log-uniform sizes, or of typical ones."""
    most = MOST_LONG_ELEMENTS if are_typical else MOST_ELEMENTS
    while True:
        m, n, k = _sizes(numbers, numbers.choice(MULTIPLES), USUAL, are_typical)
        if max(m * n, m * k, n * k) <= most:
            yield _random_problem(dtype, precision, numbers, m, n, k)


def varied_problems(
    dtype: str, precision: str | None, numbers: random.Random, are_typical: bool
) -> Iterator[Problem]:
    """Without end, batches and epilogues."""
    singles = random_problems(dtype, precision, numbers, are_typical)
    batches = _random_batches(dtype, precision, numbers, are_typical)
    while True:
        kind = numbers.random()
        if EPILOGUES_ALONE < kind < EPILOGUES_ALONE + BATCHES_ALONE:
            yield next(batches)
            continue
        problem = next(singles)
        if kind > EPILOGUES_ALONE:
            problem = next(batches)
        yield replace(problem, epilogue=_random_fusion(numbers))


def _random_batches(
    dtype: str, precision: str | None, numbers: random.Random, are_typical: bool
) -> Iterator[Problem]:
    only_shapes = [
        config.only_shape
        for implementation in IMPLEMENTATIONS
        for config in implementation.configs(dtype)
        if getattr(config, "only_shape", None)
    ]
    while True:
        multiple = numbers.choice(MULTIPLES)
        usual = SMALL_IN_BATCH if numbers.random() < SMALL_SHARE else USUAL
        m, n, k = _sizes(numbers, multiple, usual, are_typical)
        if numbers.random() < CUBES:
            m = n = k
        if only_shapes and numbers.random() < ONLY_SHAPES:
            m, n, k = numbers.choice(only_shapes)
        batch = _log_uniform(numbers, MATRICES)
        if batch * max(m * n, m * k, n * k) <= MOST_IN_BATCH:
            yield _random_problem(dtype, precision, numbers, m, n, k, batch)


def _random_fusion(numbers: random.Random) -> Fusion:
    """As much of an epilogue as the model wants to know."""
    stages = bound_epilogue(relu).shape.functions
    if numbers.random() >= REDUCTIONS:
        return Fusion(stages, ())
    reduction = FusedReduction(
        "sum",
        numbers.choice((0, 1, 1, None)),
        ("float64",),
        is_stored=numbers.random() < STORED,
    )
    return Fusion(() if numbers.random() < REDUCTIONS_ALONE else stages, (), False, reduction)


def _random_problem(
    dtype: str,
    precision: str | None,
    numbers: random.Random,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
) -> Problem:
    a, b, out = Strides(0, k, 1), Strides(0, n, 1), Strides(0, n, 1)
    reads_c = False
    if numbers.random() < 0.5:
        a = _strides(numbers, m, k, A_ROWS)
        b = _strides(numbers, k, n, B_ROWS)
        out = _strides(numbers, m, n, 1)
        reads_c = numbers.random() < READS_C
    a, b, out = (
        used_strides((batch, rows, cols), of._replace(batch=max(of.row * rows, of.col * cols)))
        for of, rows, cols in ((a, m, k), (b, k, n), (out, m, n))
    )
    results = RESULT_DTYPES[dtype]
    out_dtype = numbers.choice(results) if len(results) > 1 else results[0]
    return oriented(
        Problem(
            dtype, m, n, k, batch, a, b, out, out, out_dtype, precision=precision, reads_c=reads_c
        )
    )


def _sizes(
    numbers: random.Random, multiple: int, usual: tuple[int, int], are_typical: bool
) -> list[int]:
    """m, n and k."""
    if not are_typical:
        return [_extent(numbers, multiple, usual) for _ in range(3)]
    is_round = numbers.random() < ROUND_SHARE
    sizes = [
        _round(numbers, usual) if is_round else _extent(numbers, multiple, usual) for _ in "mnk"
    ]
    kind, which = numbers.random(), numbers.randrange(3)
    if kind < CUBES:
        sizes = sizes[:1] * 3
    elif kind < CUBES + VECTORS:
        sizes[which] = 1
    elif kind < CUBES + VECTORS + LONG_ONES:
        sizes[which] = (
            _round(numbers, LONG) if is_round else _log_uniform(numbers, LONG, multiple) * multiple
        )
    return sizes


def _round(numbers: random.Random, between: tuple[int, int]) -> int:
    least, most = between if numbers.random() < USUAL_SHARE else POSSIBLE
    return numbers.choice([size for size in ROUND if least <= size <= most])


def _extent(numbers: random.Random, multiple: int, usual: tuple[int, int]) -> int:
    extents = usual if numbers.random() < USUAL_SHARE else POSSIBLE
    return max(_log_uniform(numbers, extents, multiple), 1) * multiple


def _log_uniform(numbers: random.Random, between: tuple[int, int], unit: int = 1) -> int:
    least, most = between
    return round(least * (most / least) ** numbers.random() / unit)


def _strides(numbers: random.Random, rows: int, cols: int, share_of_rows: float) -> Strides:
    padding = 0 if numbers.random() < UNPADDED else numbers.choice(PADDINGS)
    if numbers.random() < share_of_rows:
        return Strides(0, cols + padding, 1)
    return Strides(0, 1, rows + padding)


def ask(part: Part, device: DeviceFacts) -> Answers:
    """The model about the problems of a part."""
    features = []
    found: dict[Way, list[tuple[int, float]]] = {}
    for index, problem in enumerate(part.problems):
        features.append(features_of(problem))
        times = predicted_us(problem, device, 1 + MOST_LOSS)
        best_us = min(times.values())
        for way, us in times.items():
            if us < (1 + MOST_LOSS) * best_us:
                found.setdefault(way, []).append((index, us / best_us - 1))
    losses = {
        way: (np.array([i for i, _ in of], np.int32), np.array([x for _, x in of], np.float32))
        for way, of in found.items()
    }
    return Answers(np.array(features, np.float32), losses)


def join(answers: Iterable[Answers]) -> Answers:
    """Of several parts, one."""
    features = []
    losses: dict[Way, list[tuple[Any, Any]]] = {}
    start = 0
    for part in answers:
        features.append(part.features)
        for way, (indices, lost) in part.losses.items():
            losses.setdefault(way, []).append((indices + start, lost))
        start += len(part.features)
    joined = {way: tuple(map(np.concatenate, zip(*of))) for way, of in losses.items()}
    return Answers(np.concatenate(features), joined)  # type: ignore[arg-type]


def grow(answers: Answers, part: Part) -> DecisionTree:
    """A tree that gives for each problem a way that loses little.

    Args:
        part: one of those that were answered.
    """
    ways = sorted(answers.losses)
    losses = np.full((len(answers.features), len(ways)), BEYOND**POWER, np.float32)
    for column, way in enumerate(ways):
        indices, lost = answers.losses[way]
        losses[indices, column] = lost**POWER
    worth = max(WORTH, WORTH_SHARES[part.is_varied] * len(answers.features))
    growing = _Growing([], worth)
    growing.split_at(known_bounds(part), answers.features, losses)
    return DecisionTree(tuple(ways), np.array(growing.nodes, PACKED).tobytes())


def known_bounds(part: Part) -> list[Bound]:
    """Of a part's problems, in the order in which they are asked for."""
    place = {name: index for index, name in enumerate(FEATURES)}
    bounds = [Bound(place[size], most) for size in "mn" for most in SIZES_APART]
    pipeline = find_implementation("pipeline")
    for config in pipeline.configs(part.dtype) if pipeline.is_automatic(part.dtype) else ():
        for size, least in config.least_sizes.items():
            bounds.append(Bound(place[size], least - 1))
    if part.dtype == "int8":
        bounds.append(Bound(place["columns of a"], 1, "upper"))
        bounds.append(Bound(place["columns of b"], 1, "lower"))
    if tree_key(part.dtype, part.precision) in COPIED:
        misaligned = MAX_ALIGNMENT // ITEM_SIZES[part.dtype] - 1
        bounds.append(Bound(place["alignment of a"], misaligned, "lower"))
        bounds.append(Bound(place["alignment of b"], misaligned, "lower"))
    return bounds


def roundest(least: int, most: int) -> int:
    """The number from least to most, neither negative, that the largest power of two divides.

    A tree that asks for few numbers keeps few of Python's integers in the processor's caches.
    """
    if least == 0:
        return 0
    apart = (least - 1) ^ most
    return most >> (apart.bit_length() - 1) << (apart.bit_length() - 1)


class _Growing(NamedTuple):
    """A tree so far.

    Attributes:
        nodes: in their order, to which others are added.
        worth: what a leaf has to save.
    """

    nodes: list[tuple[int, int, int]]
    worth: float

    def split_at(self, bounds: Sequence[Bound], features: Any, losses: Any) -> None:
        """Tell problems apart by bounds, where they do, then by what is learned.

        Args:
            features, losses: of the problems, these to the power.
        """
        if not bounds:
            self.learn(features, losses)
            return
        (feature, most, ends), *others = bounds
        of_lower, of_upper = ([] if ends == side else others for side in ("lower", "upper"))
        is_lower = features[:, feature] <= most
        if is_lower.all() or not is_lower.any():
            self.split_at(of_lower if is_lower.all() else of_upper, features, losses)
            return
        node = len(self.nodes)
        self.nodes.append((LEAF, 0, 0))  # until the place of its right child is known
        self.split_at(of_lower, features[is_lower], losses[is_lower])
        self.nodes[node] = feature, most, len(self.nodes)
        self.split_at(of_upper, features[~is_lower], losses[~is_lower])

    def learn(self, features: Any, losses: Any) -> None:
        """Add what scikit-learn grows, less the splits that are not worth their leaves."""
        near = (losses < BEYOND**POWER).any(axis=0).nonzero()[0]
        learner = tree_learner()(min_samples_leaf=FEWEST, random_state=0)
        grown = learner.fit(features, losses[:, near]).tree_
        lost = grown.value[:, :, 0] * grown.n_node_samples[:, None]  # by node and way, added up
        best, is_leaf = near[lost.argmin(axis=1)], self.prune(grown, lost.min(axis=1))
        # Depth first, the left child at once; a right one is entered in its parent when it comes.
        waiting: list[tuple[int, int | None, Any]] = [(0, None, np.arange(len(features)))]
        while waiting:
            node, parent, rows = waiting.pop()
            if parent is not None:
                feature, most, _ = self.nodes[parent]
                self.nodes[parent] = feature, most, len(self.nodes)
            if is_leaf[node]:
                self.nodes.append((LEAF, 0, best[node]))
                continue
            feature = grown.feature[node]
            asked = features[rows, feature]
            is_left = asked <= grown.threshold[node]
            most = int(asked[is_left].max())
            if feature not in ALIGNMENTS:
                most = roundest(most, int(asked[~is_left].min()) - 1)
            waiting += [
                (grown.children_right[node], len(self.nodes), rows[~is_left]),
                (grown.children_left[node], None, rows[is_left]),
            ]
            self.nodes.append((feature, most, 0))

    def prune(self, grown: Any, least: Any) -> Any:
        """Which nodes of scikit-learn's tree are leaves then.

        Args:
            grown: that tree, whose nodes are in front of their children.
            least: what each node loses as a leaf.
        """
        lefts, rights = grown.children_left, grown.children_right
        lost, leaves = least.copy(), np.ones(grown.node_count, int)
        is_leaf = lefts < 0
        for node in reversed(range(grown.node_count)):
            if is_leaf[node]:
                continue
            left, right = lefts[node], rights[node]
            split_lost, split_leaves = lost[left] + lost[right], leaves[left] + leaves[right]
            if least[node] - split_lost <= self.worth * (split_leaves - 1):
                is_leaf[node] = True
            else:
                lost[node], leaves[node] = split_lost, split_leaves
        return is_leaf
