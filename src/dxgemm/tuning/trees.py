"""Growing the decision trees that the automatic choice looks up: what the model answers, learned.

Random problems are asked of the model, which gives the time of each way to compute them. A tree is
grown that tells apart problems whose ways lose unlike parts of the time against the best; of a leaf
the way that loses least in all is taken. A split that saves its leaves next to nothing is undone.
Source: Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees", 1984: trees of
several outputs, and cost-complexity pruning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from dxgemm._decision_tree import LEAF, PACKED, DecisionTree, Way, features_of
from dxgemm._dispatch import predicted_us
from dxgemm._errors import MissingPackageError
from dxgemm._problem import Problem, Strides
from dxgemm.runtime.device import DeviceFacts

# Extents of the problems: most are usual, all are possible. An extent is a multiple of one number
# out of these, the same for all of a problem.
USUAL, POSSIBLE, USUAL_SHARE = (16, 16384), (1, 65536), 0.9
MULTIPLES = (1, 1, 1, 2, 4, 16, 16, 16, 64, 128)
MOST_ELEMENTS = 2**29  # of a matrix
# Half of the problems are of contiguous rows, which are only written; of the others, so many have
# rows of a, rows of b, rows without padding, a result that c is added to.
A_ROWS, B_ROWS, UNPADDED, READS_C = 0.75, 0.75, 0.85, 0.15
PADDINGS = (1, 2, 4, 8, 16, 32)

MOST_LOSS = 0.1  # of the time, against the best: what loses more is no worse than this
FEWEST = 2  # problems of a leaf
WORTH = 0.03  # what a leaf has to save, in losses added up over its problems
AT_ONCE = 5000  # problems


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


def grow_trees(
    device: DeviceFacts,
    problems: int,
    jobs: int | None = None,
    report: Callable[[int, int, str], None] | None = None,
) -> dict[str, DecisionTree]:
    """A tree for each dtype that the device has speeds of.

    Args:
        device: with what its kernels were measured to reach.
        problems: to ask the model, of each dtype: AT_ONCE at a time.
        jobs: processes; None for one a CPU.
        report: called as `dxgemm.build` calls its progress.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    tree_learner()
    dtypes = sorted({dtype for dtype, _ in device.speeds})
    tasks = [(dtype, part) for dtype in dtypes for part in range(-(-problems // AT_ONCE))]
    answers: dict[str, dict[int, Answers]] = {dtype: {} for dtype, _ in tasks}
    # Not forked: the process may have used CUDA.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (device,)) as pool:
        asking = {pool.submit(_ask, *task): task for task in tasks}
        for done, asked in enumerate(as_completed(asking), start=1):
            dtype, part = asking[asked]
            answers[dtype][part] = asked.result()
            if report:
                report(done, len(tasks), f"{dtype} problems asked of the model")
    return {
        dtype: grow(join(of_dtype[part] for part in sorted(of_dtype)))
        for dtype, of_dtype in answers.items()
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


def _ask(dtype: str, part: int) -> Answers:
    assert _device is not None
    return ask(dtype, _device, part)


def random_problems(dtype: str, numbers: random.Random) -> Iterator[Problem]:
    """Without end, plain ones of log-uniform sizes."""
    while True:
        multiple = numbers.choice(MULTIPLES)
        m, n, k = (_extent(numbers, multiple) for _ in range(3))
        if max(m * n, m * k, n * k) > MOST_ELEMENTS:
            continue
        a, b, out = Strides(0, k, 1), Strides(0, n, 1), Strides(0, n, 1)
        reads_c = False
        if numbers.random() < 0.5:
            a = _strides(numbers, m, k, A_ROWS)
            b = _strides(numbers, k, n, B_ROWS)
            out = _strides(numbers, m, n, 1)
            reads_c = numbers.random() < READS_C
        yield Problem(dtype, m, n, k, 1, a, b, out, out, dtype, reads_c=reads_c)


def _extent(numbers: random.Random, multiple: int) -> int:
    least, most = USUAL if numbers.random() < USUAL_SHARE else POSSIBLE
    return max(round(least * (most / least) ** numbers.random() / multiple), 1) * multiple


def _strides(numbers: random.Random, rows: int, cols: int, share_of_rows: float) -> Strides:
    padding = 0 if numbers.random() < UNPADDED else numbers.choice(PADDINGS)
    if numbers.random() < share_of_rows:
        return Strides(0, cols + padding, 1)
    return Strides(0, 1, rows + padding)


def ask(dtype: str, device: DeviceFacts, part: int) -> Answers:
    """The model about AT_ONCE random problems, others for each part."""
    numbers = random.Random(f"{dtype} {part}")
    features = []
    found: dict[Way, list[tuple[int, float]]] = {}
    for index, problem in enumerate(islice(random_problems(dtype, numbers), AT_ONCE)):
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


def grow(answers: Answers) -> DecisionTree:
    """A tree that gives for each problem a way that loses little."""
    ways = sorted(answers.losses)
    losses = np.full((len(answers.features), len(ways)), MOST_LOSS, np.float32)
    for column, way in enumerate(ways):
        indices, lost = answers.losses[way]
        losses[indices, column] = lost
    learner = tree_learner()(min_samples_leaf=FEWEST, random_state=0)
    grown = learner.fit(answers.features, losses).tree_
    lost = grown.value[:, :, 0] * grown.n_node_samples[:, None]  # by node and way, added up
    return _prune(grown, lost.argmin(axis=1), lost.min(axis=1), tuple(ways))


def _prune(grown: Any, best: Any, least: Any, ways: tuple[Way, ...]) -> DecisionTree:
    """Undo the splits that are not WORTH their leaves.

    Args:
        grown: scikit-learn's tree, whose nodes are in front of their children.
        best, least: of each node, the way that loses least, and what that loses.
    """
    lefts, rights = grown.children_left, grown.children_right
    lost, leaves = least.copy(), np.ones(grown.node_count, int)
    is_leaf = lefts < 0
    for node in reversed(range(grown.node_count)):
        if is_leaf[node]:
            continue
        left, right = lefts[node], rights[node]
        split_lost, split_leaves = lost[left] + lost[right], leaves[left] + leaves[right]
        if least[node] - split_lost <= WORTH * (split_leaves - 1):
            is_leaf[node] = True
        else:
            lost[node], leaves[node] = split_lost, split_leaves
    nodes: list[tuple[int, int, int]] = []
    # Depth first, the left child at once; a right one is entered in its parent when it comes.
    waiting: list[tuple[int, int | None]] = [(0, None)]
    while waiting:
        node, parent = waiting.pop()
        if parent is not None:
            feature, most, _ = nodes[parent]
            nodes[parent] = feature, most, len(nodes)
        if is_leaf[node]:
            nodes.append((LEAF, 0, best[node]))
            continue
        waiting += [(rights[node], len(nodes)), (lefts[node], None)]
        nodes.append((grown.feature[node], int(grown.threshold[node]), 0))
    return DecisionTree(ways, np.array(nodes, PACKED).tobytes())
