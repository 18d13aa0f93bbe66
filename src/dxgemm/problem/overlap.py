"""Arrays of one call that share elements, found in n log n steps for n arrays.

Arrays whose extents meet form a cluster. In a cluster, addresses are cut into lines as long as the
stride from row to row, so that blocks, columns and slices of one matrix become rectangles. A sweep
over the lines finds whether two of them meet. Only arrays that would be too many rectangles are
compared in pairs.
Source: M. I. Shamos, D. Hoey, "Geometric intersection problems", 1976, for the sweep.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import product
from math import prod
from typing import NamedTuple

from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.layout import Layout, byte_extent, share_elements

PAIR_COST = 4  # rectangles that are swept while two arrays are compared element by element
MOST_PAIRS = 2**20  # that are compared, in seconds; beyond, arrays count as overlapping


# Array of a call: its address, its layout, and True if it is written, False if it is only read.
# A bare tuple: a call has thousands.
Use = tuple[int, Layout, bool]


class _Rectangle(NamedTuple):
    """Bytes `left` to `right` of each line from `first` to `end`, which is beyond the last."""

    first: int
    left: int
    end: int
    right: int
    array: int


class _Lattice(NamedTuple):
    """Bytes that an array touches: runs without gaps, and (stride, count) of each step between."""

    first: int
    end: int
    run: int
    steps: tuple[tuple[int, int], ...]


def find_overlap(uses: Sequence[Use]) -> tuple[int, int] | None:
    """Find two arrays that share an element and of which one is written; None without such two.

    No array that is written may overlap itself. Those too interleaved to tell count as sharing one.
    """
    known: dict[int, _Lattice] = {}  # by identity: a layout's hash takes longer than all else here
    lattices = [
        known.get(id(layout)) or known.setdefault(id(layout), _lattice(layout))
        for _, layout, _ in uses
    ]
    for cluster in _clusters(uses, lattices):
        found = _overlap_in(uses, lattices, cluster)
        if found is not None:
            return found
    return None


def _clusters(uses: Sequence[Use], lattices: Sequence[_Lattice]) -> Iterator[list[int]]:
    """Indices of the arrays whose extents form one range of bytes, if one of several is written."""
    extents: list[tuple[int, int, int]] = []
    read: set[tuple[int, int]] = set()
    for index, (pointer, layout, is_written) in enumerate(uses):
        if not is_written:
            if (pointer, id(layout)) in read:
                continue
            read.add((pointer, id(layout)))
        first, end = lattices[index][:2]
        if first < end:
            extents.append((pointer + first, pointer + end, index))
    extents.sort()
    cluster: list[int] = []
    reach, has_written = 0, False
    for start, stop, index in extents:
        if start >= reach:
            if has_written and len(cluster) > 1:
                yield cluster
            cluster, has_written = [], False
        cluster.append(index)
        reach, has_written = max(reach, stop), has_written or uses[index][2]
    if has_written and len(cluster) > 1:
        yield cluster


@lru_cache(maxsize=4096)
def _lattice(layout: Layout) -> _Lattice:
    """Bytes that a layout touches, relative to the pointer."""
    first, end = byte_extent(layout)
    if first == end:
        return _Lattice(0, 0, 0, ())
    run = ITEM_SIZES[layout.dtype]
    steps: list[tuple[int, int]] = []
    for stride, count in sorted((abs(s), n) for s, n in zip(layout.strides, layout.shape)):
        if stride <= run:  # continues the run, or repeats it
            run += stride * (count - 1)
        elif steps and stride == prod(steps[-1]):
            steps[-1] = steps[-1][0], steps[-1][1] * count
        elif count > 1:
            steps.append((stride, count))
    return _Lattice(first, end, run, tuple(steps))


def _overlap_in(
    uses: Sequence[Use], lattices: Sequence[_Lattice], cluster: list[int]
) -> tuple[int, int] | None:
    """Find two arrays of a cluster as `find_overlap` does."""
    kinds = Counter(lattices[index].steps for index in cluster)
    strides = Counter(stride for steps in kinds.elements() for stride, _ in steps)
    counts = {
        period: sum(
            times * prod(n for s, n in steps if s != period) for steps, times in kinds.items()
        )
        for period, _ in strides.most_common(3)
    }
    period = min(counts, key=lambda each: counts[each], default=1 << 62)
    pairs = len(cluster) * (len(cluster) - 1) // 2
    if counts and counts[period] > PAIR_COST * min(pairs, MOST_PAIRS):
        return _overlap_of_pairs(uses, lattices, cluster)
    begin = uses[cluster[0]][0] + lattices[cluster[0]].first
    rectangles: list[_Rectangle] = []
    for index in cluster:
        start = uses[index][0] + lattices[index].first - begin
        rectangles += _rectangles(index, start, lattices[index], period)
    found = _sweep(uses, rectangles)
    if found is not None and not share_elements(*uses[found[0]][:2], *uses[found[1]][:2]):
        return _overlap_of_pairs(uses, lattices, cluster)  # windows over one array count too much
    return found


def _rectangles(array: int, start: int, lattice: _Lattice, period: int) -> Iterator[_Rectangle]:
    """Cut an array that begins `start` bytes after a line into rectangles."""
    lines = prod(count for stride, count in lattice.steps if stride == period)
    others = (range(0, s * n, s) for s, n in lattice.steps if s != period)
    for steps in product(*others):
        line, left = divmod(start + sum(steps), period)
        head = min(lattice.run, period - left)
        yield _Rectangle(line, left, line + lines, left + head, array)
        whole, tail = divmod(lattice.run - head, period)  # of the lines that follow
        if whole:
            yield _Rectangle(line + 1, 0, line + whole + lines, period, array)
        if tail:
            yield _Rectangle(line + 1 + whole, 0, line + 1 + whole + lines, tail, array)


def _sweep(uses: Sequence[Use], rectangles: list[_Rectangle]) -> tuple[int, int] | None:
    """Find two rectangles that meet, one of them written."""
    # Sorted sides of those that the current line crosses, of (read, written) ones.
    lefts: tuple[list[int], list[int]] = ([], [])
    rights: tuple[list[int], list[int]] = ([], [])
    crossed: list[tuple[int, _Rectangle]] = []  # by their ends
    rectangles.sort()
    for rectangle in rectangles:
        first, left, end, right, array = rectangle
        while crossed and crossed[0][0] <= first:
            _, passed = heappop(crossed)
            was_written = uses[passed.array][2]
            del lefts[was_written][bisect_left(lefts[was_written], passed.left)]
            del rights[was_written][bisect_left(rights[was_written], passed.right)]
        is_written = uses[array][2]
        for kind in (0, 1) if is_written else (1,):
            # Those that begin before this one ends, without those that end before it begins.
            if bisect_left(lefts[kind], right) > bisect_right(rights[kind], left):
                return array, _partner(uses, rectangle, crossed)
        insort(lefts[is_written], left)
        insort(rights[is_written], right)
        heappush(crossed, (end, rectangle))
    return None


def _partner(
    uses: Sequence[Use], rectangle: _Rectangle, crossed: list[tuple[int, _Rectangle]]
) -> int:
    """Array of a crossed rectangle that meets another one, one of the two written."""
    return next(
        other.array
        for _, other in crossed
        if (uses[rectangle.array][2] or uses[other.array][2])
        and other.left < rectangle.right
        and rectangle.left < other.right
    )


def _overlap_of_pairs(
    uses: Sequence[Use], lattices: Sequence[_Lattice], cluster: list[int]
) -> tuple[int, int] | None:
    """Compare the arrays of a cluster, which are in the order of their first bytes, in pairs."""
    compared = 0
    for place, index in enumerate(cluster):
        pointer, layout, is_written = uses[index]
        for other_index in cluster[:place]:
            other_pointer, other, other_is_written = uses[other_index]
            meets = other_pointer + lattices[other_index].end > pointer + lattices[index].first
            if meets and (is_written or other_is_written):
                compared += 1
                if compared > MOST_PAIRS or share_elements(pointer, layout, other_pointer, other):
                    return other_index, index
    return None
