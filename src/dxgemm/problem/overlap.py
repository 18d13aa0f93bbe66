"""Arrays of one call that share elements, found in n log n steps for n arrays.

Arrays whose extents meet form a cluster. In a cluster, addresses are cut into lines as long as the
greatest common divisor of all strides. Arrays in different columns of these lines share nothing,
and arrays in the same columns are told apart by their lines alone: so parts of elements, columns
and blocks come apart. What is left, such as staggered tiles, becomes rectangles on lines as long as
the stride from row to row, and a sweep over the lines finds whether two of them meet. Only arrays
that would be too many rectangles are compared in pairs.
Source: M. I. Shamos, D. Hoey, "Geometric intersection problems", 1976, for the sweep.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from dxgemm.problem.layout import Layout, byte_extent, share_elements

PAIR_COST = 4  # rectangles that are swept while two arrays are compared element by element
MOST_PAIRS = 2**20  # that are compared, in seconds; beyond, arrays count as overlapping


# Bare tuples: a call has thousands of arrays.
Use = tuple[int, Layout, bool]  # an array's address and layout, and True if it is written
_Extent = tuple[int, int, int]  # first byte, end, and index of an array


class _Rectangle(NamedTuple):
    """Bytes `left` to `right` of each line from `first` to `end`, which is beyond the last."""

    first: int
    left: int
    end: int
    right: int
    array: int


class _Lattice(NamedTuple):
    """Bytes of its extent that an array touches: runs, and (stride, count) of each step between.

    In a cluster that was divided, lines take the place of bytes.
    """

    run: int
    steps: tuple[tuple[int, int], ...]


_Lattices = Mapping[int, _Lattice]  # by the index of the array


def find_overlap(uses: Sequence[Use]) -> tuple[int, int] | None:
    """Find two arrays that share an element and of which one is written; None without such two.

    No array that is written may overlap itself. Those too interleaved to tell count as sharing one.
    """
    known: dict[int, tuple[int, int, _Lattice]] = {}  # by identity: a layout's hash takes longer
    read: set[tuple[int, int]] = set()
    extents: list[_Extent] = []
    lattices: dict[int, _Lattice] = {}
    for index, (pointer, layout, is_written) in enumerate(uses):
        key = id(layout)
        if not is_written:
            if (pointer, key) in read:
                continue
            read.add((pointer, key))
        first, end, lattice = known.get(key) or known.setdefault(key, _touched(layout))
        if first < end:
            extents.append((pointer + first, pointer + end, index))
            lattices[index] = lattice
    for cluster, lines in _divided(uses, extents, lattices):
        found = _overlap_in(uses, cluster, lines)
        if found is not None:
            return found
    return None


def _divided(
    uses: Sequence[Use], extents: list[_Extent], lattices: _Lattices
) -> Iterator[tuple[list[_Extent], _Lattices]]:
    """Divide arrays into clusters that share nothing with each other."""
    for cluster in _clusters(uses, extents):
        stride = gcd(*{s for *_, array in cluster for s, _ in lattices[array].steps})
        parts = _columns(cluster, lattices, stride) if stride > 1 else [(None, cluster)]
        if len(parts) == 1 and parts[0][0] is None:
            yield cluster, lattices
            continue
        for left, part in parts:
            if left is None or len(part) == 1:
                yield from _divided(uses, part, lattices)
            else:
                yield from _divided(uses, *_lines(part, lattices, left, stride))


def _clusters(uses: Sequence[Use], extents: list[_Extent]) -> Iterator[list[_Extent]]:
    """Arrays whose extents form one range, in its order, if one of several is written."""
    extents.sort()
    cluster: list[_Extent] = []
    reach, has_written = 0, False
    for extent in extents:
        start, stop, index = extent
        if start >= reach:
            if has_written and len(cluster) > 1:
                yield cluster
            cluster, reach, has_written = [], stop, False
        cluster.append(extent)
        reach, has_written = max(reach, stop), has_written or uses[index][2]
    if has_written and len(cluster) > 1:
        yield cluster


def _columns(
    cluster: list[_Extent], lattices: _Lattices, stride: int
) -> list[tuple[int | None, list[_Extent]]]:
    """Divide a cluster into arrays that share no column of lines as long as `stride`.

    Returns:
        The first byte of a line of each part if its arrays touch the same columns, else None; and
        its arrays. There is one part if an array crosses the end of a line.
    """
    begin = cluster[0][0]
    placed = sorted(((x[0] - begin) % stride, lattices[x[2]].run, x) for x in cluster)
    parts: list[tuple[int | None, list[_Extent]]] = []
    right = 0
    for left, run, extent in placed:
        if left + run > stride:
            return [(None, cluster)]
        if left >= right:
            parts.append((begin + left, []))
            columns = left, run
        parts[-1][1].append(extent)
        if columns != (left, run):
            parts[-1] = None, parts[-1][1]
        right = max(right, left + run)
    return parts


def _lines(
    part: list[_Extent], lattices: _Lattices, left: int, stride: int
) -> tuple[list[_Extent], _Lattices]:
    """Lines of arrays that touch the same columns, the first of which begins at `left`."""
    extents, lines = [], {}
    for first, _, array in part:
        first = (first - left) // stride
        length, lines[array] = _compact(
            1, tuple((each // stride, count) for each, count in lattices[array].steps)
        )
        extents.append((first, first + length, array))
    return extents, lines


@lru_cache(maxsize=4096)
def _touched(layout: Layout) -> tuple[int, int, _Lattice]:
    """Extent of a layout relative to the pointer, and what it touches of it."""
    first, end = byte_extent(layout)
    if first == end:
        return 0, 0, _Lattice(0, ())
    steps = tuple(sorted((abs(s), n) for s, n in zip(layout.strides, layout.shape)))
    return first, end, _compact(layout.item_size, steps)[1]


@lru_cache(maxsize=4096)
def _compact(run: int, steps: tuple[tuple[int, int], ...]) -> tuple[int, _Lattice]:
    """Length and lattice of runs, repeated from the smallest stride to the largest."""
    length = run + sum(stride * (count - 1) for stride, count in steps)
    rest: list[tuple[int, int]] = []
    for stride, count in steps:
        if stride <= run:  # continues the run, or repeats it
            run += stride * (count - 1)
        elif rest and stride == prod(rest[-1]):
            rest[-1] = rest[-1][0], rest[-1][1] * count
        elif count > 1:
            rest.append((stride, count))
    return length, _Lattice(run, tuple(rest))


def _overlap_in(
    uses: Sequence[Use], cluster: list[_Extent], lattices: _Lattices
) -> tuple[int, int] | None:
    """Find two arrays of a cluster as `find_overlap` does."""
    kinds = Counter(lattices[array].steps for *_, array in cluster)
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
        return _overlap_of_pairs(uses, cluster)
    begin = cluster[0][0]
    rectangles: list[_Rectangle] = []
    for first, _, array in cluster:
        rectangles += _rectangles(array, first - begin, lattices[array], period)
    found = _sweep(uses, rectangles)
    if found is not None and not share_elements(*uses[found[0]][:2], *uses[found[1]][:2]):
        return _overlap_of_pairs(uses, cluster)  # windows over one array count too much
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


def _overlap_of_pairs(uses: Sequence[Use], cluster: list[_Extent]) -> tuple[int, int] | None:
    """Compare the arrays of a cluster in pairs."""
    compared = 0
    for place, (first, _, index) in enumerate(cluster):
        pointer, layout, is_written = uses[index]
        for _, other_end, other_index in cluster[:place]:
            other_pointer, other, other_is_written = uses[other_index]
            if other_end > first and (is_written or other_is_written):
                compared += 1
                if compared > MOST_PAIRS or share_elements(pointer, layout, other_pointer, other):
                    return other_index, index
    return None
