"""The quickest way to compute a problem, looked up instead of predicted.

`dxgemm._model` predicts every config and every slicing of k: milliseconds of host time. What it
answers over all problems is learned once, by a binary decision tree for each dtype and precision
(`dxgemm.tuning.trees` grows them), and a problem walks down its tree in a microsecond or two.
Source: Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees", 1984.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dxgemm._fusion import Fusion
from dxgemm._problem import ITEM_SIZES, MAX_ALIGNMENT, Problem

LINE = 128  # elements, which are a cache line at least


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
    "m", "n", "k", "tiles of 32 x 64", "tiles of 64 x 32", "tiles of 64 x 64", "tiles of 128 x 128",
    "alignment of a", "alignment of b", "alignment of out", "columns of a", "columns of b",
    "reads c", "matrices", "bytes of a result", "epilogue",
)  # fmt: skip

# What an epilogue has, added up.
FUNCTIONS, REDUCTION, OF_COLUMNS, STORED = 1, 2, 4, 8


def features_of(problem: Problem) -> tuple[int, ...]:
    """What a tree asks of a problem.

    Tiles, of all matrices, count because the multiprocessors share them out whole. An alignment is
    the largest power of two that divides the elements from one row (or column) to the next, or 1
    where the first one is misaligned; columns of a are 1 where rows are contiguous.
    """
    m, n, batch, fusion = problem.m, problem.n, problem.batch, problem.epilogue
    a, b = problem.a, problem.b
    a_col, b_col, out_step = a.col, b.col, problem.out.row
    a_step, b_step = a.row * a_col, b.row * b_col  # one of the two is 1, but for strided operands
    rows_32, cols_32 = (m + 31) >> 5, (n + 31) >> 5
    rows_64, cols_64 = (rows_32 + 1) >> 1, (cols_32 + 1) >> 1
    rows_128, cols_128 = (rows_64 + 1) >> 1, (cols_64 + 1) >> 1
    return (
        m,
        n,
        problem.k,
        batch * rows_32 * cols_64,
        batch * rows_64 * cols_32,
        batch * rows_64 * cols_64,
        batch * rows_128 * cols_128,
        a_step & -a_step or LINE if problem.a_alignment == MAX_ALIGNMENT else 1,
        b_step & -b_step or LINE if problem.b_alignment == MAX_ALIGNMENT else 1,
        out_step & -out_step or LINE,
        a_col,
        b_col,
        problem.reads_c,
        batch,
        ITEM_SIZES[problem.out_dtype],
        0 if fusion is None else _kind(fusion),
    )


def _kind(fusion: Fusion) -> int:
    """Of an epilogue."""
    functions, reduction = FUNCTIONS * bool(fusion.stages), fusion.reduction
    if reduction is None:
        return functions
    of_columns, stored = OF_COLUMNS * (reduction.axis == 0), STORED * reduction.is_stored
    return functions + REDUCTION + of_columns + stored


# A node of a tree: the feature it asks for, the most that problems of its left child have of that,
# and the place of its right child; the left one is behind it. Of a leaf, the index of its way.
COLUMNS = ("feature", "most", "right")
PACKED = np.dtype(list(zip(COLUMNS, ("u1", "<u4", "<u4"))))
LEAF = len(FEATURES)  # in place of a feature


@dataclass(frozen=True)
class DecisionTree:
    """Of one dtype and precision on one GPU.

    Attributes:
        ways: that its leaves name.
        nodes: `PACKED`, from the root.
    """

    ways: tuple[Way, ...]
    nodes: bytes

    def find(self, features: Sequence[int]) -> Way:
        """Of the leaf into which a problem falls."""
        node = self._root
        while type(node) is tuple:
            feature, most, left, right = node
            node = left if features[feature] <= most else right
        return node

    @cached_property
    def _root(self) -> Any:
        """A `Way`, or a tuple of feature, most, left and right child: the quickest for Python."""
        packed = np.frombuffer(self.nodes, PACKED)
        feature, most, right = (packed[name].tolist() for name in COLUMNS)
        nodes: list[Any] = [None] * len(packed)
        for node in reversed(range(len(nodes))):  # children are behind their parents
            child = right[node]
            if feature[node] == LEAF:
                nodes[node] = self.ways[child]
            else:
                nodes[node] = feature[node], most[node], nodes[node + 1], nodes[child]
        return nodes[0]


Trees = Mapping[tuple[str, str | None], DecisionTree]  # by dtype and precision


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
    leads_on = np.where(feature == LEAF, right < len(ways), (behind < right) & (right < count))
    if rest or not count or not leads_on.all() or (feature > LEAF).any():
        raise ValueError("no decision tree")
    return DecisionTree(ways, nodes.tobytes())
