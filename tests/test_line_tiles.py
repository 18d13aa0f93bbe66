"""Tiles of lines: the layouts of operands, and places in shared memory without bank conflicts."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dxgemm.handwritten.parts.line_tiles import (
    CHUNK_BYTES,
    LINE_BYTES,
    STEPS,
    common_layout,
    layout,
)
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Strides

ALIGNED = contiguous_problem("float16", 64, 128, 96)


@pytest.mark.parametrize(
    ("sizes", "strides", "changes", "expected"),
    [
        ((64, 96), Strides(0, 96, 1), {}, "k16"),
        ((64, 96), Strides(0, 96, 1), {"a_alignment": 8}, "k"),
        ((64, 96), Strides(0, 97, 1), {}, "k"),
        ((64, 96), Strides(0, -96, 1), {}, "k16"),
        ((64, 96), Strides(4, 96, 1), {}, "k"),
        ((64, 96), Strides(0, 1, 64), {}, "x16"),
        ((64, 96), Strides(0, 1, 65), {}, "x"),
        ((64, 96), Strides(0, 192, 2), {}, "any"),
        ((64, 96), Strides(0, 96, -1), {}, "any"),
        # Lines may end within a vector.
        ((64, 95), Strides(0, 96, 1), {}, "k16_ragged"),
        ((64, 95), Strides(0, 96, 1), {"padded": "a"}, "k16"),
        # A stride that is never taken does not matter.
        ((1, 96), Strides(0, 97, 1), {}, "k16"),
        ((1, 96), Strides(0, 0, 8), {}, "x16_ragged"),
        ((64, 1), Strides(0, 1, 0), {}, "x16"),
        ((64, 1), Strides(0, 8, 0), {}, "k16_ragged"),
        ((1, 1), Strides(0, 0, 0), {}, "x16_ragged"),
        ((64, 96), Strides(0, 112, 1), {"dtype": "int8"}, "k16"),
        ((64, 96), Strides(0, 97, 1), {"dtype": "int8"}, "k"),
        ((64, 96), Strides(0, 1, 68), {"dtype": "int8"}, "x4"),
        ((64, 96), Strides(0, 1, 66), {"dtype": "int8"}, "any"),
        ((64, 96), Strides(0, 192, 2), {"dtype": "int8"}, "any"),
    ],
)
def test_the_layout_of_an_operand(sizes, strides, changes, expected):
    m, k = sizes
    problem = contiguous_problem(changes.get("dtype", "float16"), m, 128, k)
    assert layout(replace(problem, a=strides, **changes), "a") == expected


@pytest.mark.parametrize(
    ("a_strides", "expected"),
    [
        ([Strides(0, 96, 1), Strides(0, 104, 1)], "k16"),
        ([Strides(0, 96, 1), Strides(0, 97, 1)], "k"),
        ([Strides(0, 1, 64), Strides(0, 1, 65)], "x"),
        ([Strides(0, 1, 64), Strides(0, 96, 1)], "any"),
        ([Strides(0, 97, 1), Strides(0, 192, 2)], "any"),
    ],
)
def test_the_common_layout_of_operands(a_strides, expected):
    problems = [replace(ALIGNED, a=strides) for strides in a_strides]
    assert common_layout(problems, "a") == expected


PLACES = """
import itertools, json
from dxgemm.handwritten.parts.line_tiles import make_line_tile
layouts = ("k16", 2), ("x16_ragged", 2), ("k", 1), ("x4", 1)
for (layout, item_bytes), side in itertools.product(layouts, ("left", "right")):
    tile = make_line_tile(layout, side, 128, 64, 128, item_bytes)
    place, lane, first = tile.place.py_func, tile.lane.py_func, tile.first.py_func
    print(json.dumps({
        "item_bytes": item_bytes,
        "places": [[int(place(x, k)) for k in range(128 // item_bytes)] for x in range(128)],
        "lanes": [list(map(int, lane(number))) for number in range(32)],
        "firsts": [list(map(int, first(number))) for number in range(128)],
        "xor": tile.xor, "add": tile.add,
    }))
"""


def test_places_in_shared_memory(run_python):
    """Every element has its own; eight lines read at a time lie in different banks; the tables lead
    from the first fragments to all others."""
    tiles = list(map(json.loads, run_python(PLACES).splitlines()))
    assert len(tiles) == 8
    for tile in tiles:
        assert_places(**tile)


def assert_places(item_bytes, places, lanes, firsts, xor, add):
    places = np.array(places)
    assert sorted(places.ravel()) == list(range(0, 128 * LINE_BYTES, item_bytes))
    addresses = [places[x][k] for x, k in lanes]
    for first in range(0, 32, 8):
        chunks = {address % LINE_BYTES // CHUNK_BYTES for address in addresses[first : first + 8]}
        assert len(chunks) == 8
    for step in range(STEPS):
        for number in range(4):
            moved = [(a ^ xor[step][number]) + add[step][number] for a in addresses]
            k_step = LINE_BYTES // STEPS // item_bytes * step
            assert moved == [places[x + 16 * number][k + k_step] for x, k in lanes]
    # Vectors that eight threads store at a time lie in different banks, too.
    for first in range(0, 128, 8):
        stored = [places[x][k] for x, k in firsts[first : first + 8]]
        assert len({place % LINE_BYTES // CHUNK_BYTES for place in stored}) == 8
