"""Overlaps among many arrays: exact, and found without comparing all pairs."""

import numpy as np
import pytest

import dxgemm
from dxgemm import errors
from dxgemm.problem import overlap
from dxgemm.problem.layout import Layout, byte_extent, overlaps_itself, share_elements

ITEM = 4  # bytes of a float32
BASE = 1 << 40


def use(start, shape, strides, is_written=True):
    """Array that begins at an element of a buffer, with strides in elements."""
    steps = tuple(stride * ITEM for stride in strides)
    return BASE + start * ITEM, Layout(shape, steps, "float32", 0, False), is_written


@pytest.fixture
def pairs(monkeypatch):
    """Pairs of arrays that are compared element by element."""
    pairs = []

    def compare(*places):
        pairs.append(places)
        return share_elements(*places)

    monkeypatch.setattr(overlap, "share_elements", compare)
    return pairs


def tiles(count):
    side = int(count**0.5)
    return [
        use(i * 8 * side * 8 + j * 8, (8, 8), (side * 8, 1))
        for i in range(side)
        for j in range(side)
    ]


def staggered_real_parts(count):
    side = int(count**0.5)
    row = side * 18
    return [
        use(i * 8 * row + j * 16 + 2 * i, (8, 8), (row, 2))
        for i in range(side)
        for j in range(side)
    ]


# Results of a group in one matrix, each by the number of results.
PATTERNS = {
    "row blocks": lambda count: [use(i * 8 * 96, (8, 96), (96, 1)) for i in range(count)],
    "column blocks": lambda count: [use(i * 8, (64, 8), (count * 8, 1)) for i in range(count)],
    "column blocks with gaps": lambda count: [
        use(i * 9, (64, 8), (count * 9 + 5, 1)) for i in range(count)
    ],
    "columns of a column-major matrix": lambda count: [
        use(i * 8 * 64, (64, 8), (1, 64)) for i in range(count)
    ],
    "row blocks of a column-major matrix": lambda count: [
        use(i * 8, (8, 64), (1, count * 8)) for i in range(count)
    ],
    "tiles": tiles,
    "tiles, reversed": lambda count: [
        (p + 7 * layout.strides[0], layout._replace(strides=(-layout.strides[0], ITEM)), w)
        for p, layout, w in tiles(count)
    ],
    "every so many rows": lambda count: [
        use(i * 96, (8, 96), (count * 96, 1)) for i in range(count)
    ],
    "every so many columns": lambda count: [
        use(i, (64, 4), (count * 4, count)) for i in range(count)
    ],
    "every so many columns, with gaps": lambda count: [
        use(i, (64, 4), (count * 4 + 3, count)) for i in range(count)
    ],
    "columns of two widths": lambda count: [
        use(i // 2 * 16 + i % 2 * 12, (64, 4 if i % 2 else 12), (count * 8, 1))
        for i in range(count)
    ],
    "real parts of column blocks": lambda count: [
        use(i * 16, (64, 8), (count * 16, 2)) for i in range(count)
    ],
    "real and imaginary parts": lambda count: [
        use(i // 2 * 16 + i % 2, (64, 8), (count * 8, 2)) for i in range(count)
    ],
    "real parts of staggered tiles": staggered_real_parts,
}


@pytest.mark.parametrize("count", [512, 4096])
@pytest.mark.parametrize("name", PATTERNS)
def test_blocks_of_one_matrix_are_compared_in_no_pair(pairs, name, count):
    uses = PATTERNS[name](count)
    assert overlap.find_overlap(uses) is None
    rng = np.random.default_rng(0)
    order = rng.permutation(len(uses))
    assert overlap.find_overlap([uses[i] for i in order]) is None
    # Another array that shares a single element with one of them, written or read.
    victim = int(rng.integers(len(uses)))
    pointer, layout, _ = uses[victim]
    last = pointer + sum((n - 1) * s for n, s in zip(layout.shape, layout.strides))
    for is_written in (True, False):
        planted = last, Layout((1, 1), (ITEM, ITEM), "float32", 0, False), is_written
        assert sorted(overlap.find_overlap([*uses, planted])) == [victim, len(uses)]
    # Any array may be read together with another.
    read = [(p, each, False) for p, each, _ in uses]
    assert overlap.find_overlap([*read, (last, layout._replace(shape=(1, 1)), False)]) is None
    assert overlap.find_overlap([*read[:victim], *read[victim + 1 :], uses[victim]]) is None
    assert len(pairs) == 2, "those that were found are confirmed"


@pytest.mark.parametrize("name", PATTERNS)
def test_each_array_takes_a_few_searches(monkeypatch, name):
    steps = []

    def counted(function):
        return lambda *arguments: (steps.append(function), function(*arguments))[1]

    for searched in ("bisect_left", "bisect_right", "insort", "heappush", "heappop"):
        monkeypatch.setattr(overlap, searched, counted(getattr(overlap, searched)))
    for count in (512, 4096):
        steps.clear()
        overlap.find_overlap(PATTERNS[name](count))
        assert len(steps) <= 30 * count


def random_use(rng, scale):
    """Small array of any strides; one that is written does not overlap itself."""
    while True:
        shape = tuple(int(n) for n in rng.integers(1, 7, 2))
        strides = [int(s) for s in rng.choice([0, 1, 2, 3, 5, 6, 8, 12, 13, 24, -1, -4, -12], 2)]
        if rng.integers(2):
            strides = [12, int(rng.choice([1, 2, 3]))]
        strides = [scale * stride for stride in strides]
        found = use(int(rng.integers(0, 300)), shape, strides, bool(rng.integers(3)))
        if not (found[2] and overlaps_itself(found[1])):
            return found


def test_any_arrays_are_told_apart_as_by_comparing_all_pairs():
    rng, found_any, found_none = np.random.default_rng(0), 0, 0
    for number in range(600):
        uses = [random_use(rng, 1 + number % 2) for _ in range(int(rng.integers(2, 6)))]
        shared = {
            (i, j)
            for i, (p, first, w) in enumerate(uses)
            for j, (q, second, v) in enumerate(uses[:i])
            if (w or v) and share_elements(p, first, q, second)
        }
        found = overlap.find_overlap(uses)
        if shared:
            assert tuple(sorted(found, reverse=True)) in shared
            found_any += 1
        else:
            assert found is None, uses
            found_none += 1
    assert min(found_any, found_none) > 100


def test_few_arrays_of_many_rectangles_are_compared_in_pairs(pairs, monkeypatch):
    uses = [use(i, (300, 300), (300 * 8 + 1, 8)) for i in range(3)]
    assert overlap.find_overlap(uses) is None and len(pairs) == 3
    assert overlap.find_overlap([*uses, uses[1]]) == (1, 3)
    monkeypatch.setattr(overlap, "MOST_PAIRS", 2)
    assert overlap.find_overlap(uses) is not None, "what cannot be told counts as an overlap"


def test_empty_arrays_share_nothing():
    empty = use(5, (0, 4), (4, 1))
    assert byte_extent(empty[1]) == (0, 0)
    assert overlap.find_overlap([use(0, (4, 4), (4, 1)), empty, empty]) is None


def test_a_group_into_column_blocks(pairs):
    matrix, a = np.zeros((3, 12), np.float32), [np.eye(3, dtype=np.float32)] * 3
    b = [np.full((3, 4), i, np.float32) for i in range(3)]
    blocks = [matrix[:, 4 * i : 4 * i + 4] for i in range(3)]
    dxgemm.gemm_grouped(a, b, out=blocks)
    np.testing.assert_array_equal(matrix, np.repeat(np.arange(3), 4) * np.ones((3, 1)))
    blocks[2] = matrix[:, 7:11]
    with pytest.raises(errors.OverlapError, match=r"out\[1\] shares memory with out\[2\]"):
        dxgemm.gemm_grouped(a, b, out=blocks)
    assert len(pairs) == 1, "the one that was found is confirmed"


def test_a_window_over_gaps_shares_nothing_with_what_is_between():
    """Its steps are equal, and lead to fewer lines than there are pairs of them."""
    z = np.ones((2, 12), np.complex64)
    out = z.real[:, :5].T
    window = np.lib.stride_tricks.sliding_window_view(z.real[0, 6:], 5)
    ones = [np.ones(shape, np.float32) for shape in ((5, 3), (5, 1), (3, 2))]
    results = [np.zeros((2, 1), np.float32), out]
    dxgemm.gemm_grouped([window, ones[0]], ones[1:], out=results)
    assert (out == 3).all() and (results[0] == 5).all()
