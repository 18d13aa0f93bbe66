"""The quickest way to compute a problem, looked up instead of predicted.

`dxgemm._model` predicts every config and every slicing of k: milliseconds of host time. What it
answers over all problems is learned once, by two binary decision trees for each dtype and precision
(`dxgemm.tuning.trees` grows them), and a problem walks down its tree in a microsecond or two.
Source: Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees", 1984.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dxgemm._problem import ITEM_SIZES, MAX_ALIGNMENT, Problem

LINE = 128  # elements, which are a cache line at least
# The largest power of two, up to a line, that divides so many elements modulo a line.
STEP_ALIGNMENTS = tuple(step & -step or LINE for step in range(LINE))


class Way(NamedTuple):
    """To compute a problem, whatever its size.

    Attributes:
        implementation, config: by name.
        fill: blocks a multiprocessor that slices of k give it; 0 for k in one piece.
        stores_matrix: whether another kernel reduces what this one stores.
    """

    implementation: str
    config: str
    fill: int = 0
    stores_matrix: bool = False


# What `features_of` gives, in its order.
FEATURES = (
    "m", "n", "k", "tiles of 32 x 64", "tiles of 64 x 32", "tiles of 128 x 128",
    "alignment of a", "alignment of b", "alignment of out", "columns of a", "columns of b",
    "reads c", "matrices", "bytes of a result", "epilogue",
)  # fmt: skip

# What an epilogue is. Some kernels reduce only what is neither stored nor reduced down its columns.
NO_EPILOGUE, FUNCTIONS, REDUCTION_OF_ROWS, OTHER_REDUCTION = range(4)


def features_of(problem: Problem) -> tuple[int, ...]:
    """What a tree asks of a problem.

    Tiles, of all matrices, count because the multiprocessors share them out whole. An alignment is
    the largest power of two, up to a line, that divides the elements from one row (or column) to
    the next, or 1 where the first one is misaligned; columns of a are 1 where rows are contiguous.
    """
    m, n, batch, fusion = problem.m, problem.n, problem.batch, problem.epilogue
    a, b = problem.a, problem.b
    a_col, b_col = a.col, b.col
    a_step, b_step = a.row * a_col, b.row * b_col  # one of the two is 1, but for strided operands
    rows_32, cols_32 = (m + 31) >> 5, (n + 31) >> 5
    rows_64, cols_64 = (rows_32 + 1) >> 1, (cols_32 + 1) >> 1
    wide, tall = rows_32 * cols_64, rows_64 * cols_32
    large = ((rows_64 + 1) >> 1) * ((cols_64 + 1) >> 1)
    if batch != 1:
        wide, tall, large = batch * wide, batch * tall, batch * large
    if fusion is None:
        epilogue = NO_EPILOGUE
    elif (reduction := fusion.reduction) is None:
        epilogue = FUNCTIONS
    elif reduction.axis == 0 or reduction.is_stored:
        epilogue = OTHER_REDUCTION
    else:
        epilogue = REDUCTION_OF_ROWS
    return (
        m,
        n,
        problem.k,
        wide,
        tall,
        large,
        STEP_ALIGNMENTS[a_step % LINE] if problem.a_alignment == MAX_ALIGNMENT else 1,
        STEP_ALIGNMENTS[b_step % LINE] if problem.b_alignment == MAX_ALIGNMENT else 1,
        STEP_ALIGNMENTS[problem.out.row % LINE],
        a_col,
        b_col,
        problem.reads_c,
        batch,
        ITEM_SIZES[problem.out_dtype],
        epilogue,
    )


# A node of a tree: the feature it asks for, the most that problems of its left child have of that,
# and the place of its right child; the left one is behind it. Of a leaf, the index of its way.
COLUMNS = ("feature", "most", "right")
PACKED = np.dtype(list(zip(COLUMNS, ("u1", "<u4", "<u4"))))
LEAF = len(FEATURES)  # in place of a feature
BITS = 64  # of an extent


@dataclass(slots=True)
class DecisionTree:
    """Of one dtype and precision on one GPU: for single products, or for all other problems.

    Attributes:
        ways: that its leaves name.
        nodes: `PACKED`, from the root.
        ready: by way, what `dxgemm._dispatch` makes of it when it is first found; None before.
    """

    ways: tuple[Way, ...]
    nodes: bytes
    ready: list[Any] = field(init=False, compare=False, repr=False)
    _starts: tuple[tuple[Any, ...], ...] = field(init=False, compare=False, repr=False, default=())

    def __post_init__(self) -> None:
        self.ready = [None] * len(self.ways)

    def find(self, features: Sequence[int]) -> int:
        """The index of the way of the leaf into which a problem falls.

        For Python this is the quickest: it begins behind the nodes that powers of two tell apart,
        and one tuple has what two levels of the tree ask.
        """
        starts = self._starts or self._make_starts()
        node = starts[features[0].bit_length()][features[1].bit_length()]
        while type(node) is tuple:
            if features[node[0]] <= node[1]:
                node = node[4] if features[node[2]] <= node[3] else node[5]
            else:
                node = node[8] if features[node[6]] <= node[7] else node[9]
        return node

    def _make_starts(self) -> tuple[tuple[Any, ...], ...]:
        """By the bits of m and of n, what is left of the tree for all problems of so many."""
        packed = np.frombuffer(self.nodes, PACKED)
        # One object for each number, and these side by side: a walk reads less memory.
        one_of = {most: most for most in np.unique(packed["most"]).tolist()}
        asked, mosts, rights = (packed[name].tolist() for name in COLUMNS)
        columns = asked, [one_of[most] for most in mosts], rights
        rows: dict[int, tuple[Any, ...]] = {}
        starts = []
        for row in range(BITS):
            of_m = _descend(columns, 0, 0, row)
            if of_m not in rows:
                nodes = [_descend(columns, of_m, 1, col) for col in range(BITS)]
                pairs = {node: _pair(columns, node) for node in set(nodes)}
                rows[of_m] = tuple(pairs[node] for node in nodes)
            starts.append(rows[of_m])
        self._starts = tuple(starts)  # whole: other threads may look up
        return self._starts


def _descend(columns: Sequence[list[int]], node: int, feature: int, bits: int) -> int:
    """As far as nodes ask for one feature alone, and its number of bits decides."""
    asked, mosts, rights = columns
    least, most = 1 << bits >> 1, (1 << bits) - 1
    while asked[node] == feature and not least <= mosts[node] < most:
        node = node + 1 if most <= mosts[node] else rights[node]
    return node


def _pair(columns: Sequence[list[int]], node: int) -> Any:
    """A node as `DecisionTree.find` wants it: itself and both children, or a leaf's way."""
    asked, mosts, rights = columns
    if asked[node] == LEAF:
        return rights[node]
    pair = [asked[node], mosts[node]]
    for child in (node + 1, rights[node]):
        if asked[child] == LEAF:
            pair += 0, 0, rights[child], rights[child]
        else:
            pair += asked[child], mosts[child]
            pair += _pair(columns, child + 1), _pair(columns, rights[child])
    return tuple(pair)


class TreePair(NamedTuple):
    """Of one dtype and precision: each of the two is smaller than one for all would be.

    Attributes:
        products: for single products, stored as they are.
        varied: for batches and epilogues.
    """

    products: DecisionTree
    varied: DecisionTree


Trees = Mapping[str, TreePair]  # by `tree_key`


def tree_key(dtype: str, precision: str | None) -> str:
    """Such as "float32" or "float32 split"."""
    return dtype if precision is None else f"{dtype} {precision}"


def tree_entry(tree: DecisionTree) -> dict[str, Any]:
    """For a table."""
    nodes = np.frombuffer(tree.nodes, PACKED)
    columns = b"".join(nodes[name].tobytes() for name in COLUMNS)
    packed = base64.b64encode(zlib.compress(columns, 9)).decode("ascii")
    return {"ways": [list(way) for way in tree.ways], "nodes": packed}


def read_tree(entry: Mapping[str, Any]) -> DecisionTree:
    """From a table.

    Raises:
        ValueError, KeyError, TypeError, zlib.error: it is none, or one whose paths do not end.
    """
    ways = tuple(Way(*way) for way in entry["ways"])
    columns = zlib.decompress(base64.b64decode(entry["nodes"], validate=True))
    count, rest = divmod(len(columns), PACKED.itemsize)
    nodes = np.empty(count, PACKED)
    start = 0
    for name in COLUMNS:
        dtype = PACKED[name]
        nodes[name] = np.frombuffer(columns, dtype, count, start)
        start += count * dtype.itemsize
    feature, right, behind = nodes["feature"], nodes["right"], np.arange(count) + 1
    is_leaf = feature == LEAF
    leads_on = np.where(is_leaf, right < len(ways), (behind < right) & (right < count))
    if rest or not count or not leads_on.all() or (feature > LEAF).any():
        raise ValueError("no decision tree")
    children = np.concatenate([behind[~is_leaf], right[~is_leaf]])
    if not np.array_equal(np.sort(children), np.arange(1, count)):
        raise ValueError("a node of a decision tree with no parent, or two")
    return DecisionTree(ways, nodes.tobytes())
