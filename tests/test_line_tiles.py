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
    ("strides", "alignment", "expected"),
    [
        (Strides(0, 96, 1), 16, "k16"),
        (Strides(0, 96, 1), 8, "k"),
        (Strides(0, 97, 1), 16, "k"),
        (Strides(0, -96, 1), 16, "k16"),
        (Strides(4, 96, 1), 16, "k"),
        (Strides(0, 1, 64), 16, "x16"),
        (Strides(0, 1, 65), 16, "x"),
        (Strides(0, 192, 2), 16, "any"),
        (Strides(0, 96, -1), 16, "any"),
    ],
)
def test_the_layout_of_an_operand(strides, alignment, expected):
    problem = replace(ALIGNED, a=strides, a_alignment=alignment)
    assert layout(problem, "a") == expected


@pytest.mark.parametrize(
    ("m", "k", "strides", "expected"),
    [
        (1, 96, Strides(0, 97, 1), "k16"),
        (1, 96, Strides(0, 0, 8), "x16_ragged"),
        (64, 1, Strides(0, 1, 0), "x16"),
        (64, 1, Strides(0, 8, 0), "k16_ragged"),
        (1, 1, Strides(0, 0, 0), "x16_ragged"),
    ],
)
def test_a_stride_that_is_never_taken_does_not_matter(m, k, strides, expected):
    problem = replace(contiguous_problem("float16", m, 128, k), a=strides)
    assert layout(problem, "a") == expected


@pytest.mark.parametrize(
    ("strides", "expected"),
    [
        (Strides(0, 112, 1), "k16"),
        (Strides(0, 97, 1), "k"),
        (Strides(0, 1, 68), "x4"),
        (Strides(0, 1, 66), "any"),
        (Strides(0, 192, 2), "any"),
    ],
)
def test_the_layout_of_int8(strides, expected):
    problem = replace(contiguous_problem("int8", 64, 128, 96), a=strides)
    assert layout(problem, "a") == expected


def test_lines_may_end_within_a_vector():
    problem = replace(contiguous_problem("float16", 64, 128, 95), a=Strides(0, 96, 1))
    assert layout(problem, "a") == "k16_ragged"
    assert layout(replace(problem, padded="a"), "a") == "k16"


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
