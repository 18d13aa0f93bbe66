"""Properties of the ladder that the contract does not see: bank conflicts, reads of copies."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dxgemm.handwritten.parts.configs import min_blocks
from dxgemm.handwritten.parts.mma_operands import choose_sides
from dxgemm.handwritten.parts.tiles import padded_layout, plain_layout, swizzled_layout
from dxgemm.problem.define import contiguous_problem

BANKS, BANK_BYTES = 32, 4
TILE = 128
LAYOUTS = {
    "plain": lambda tile_k, dtype: plain_layout(TILE),
    "padded": lambda tile_k, dtype: padded_layout(TILE, dtype),
    "swizzled": lambda tile_k, dtype: swizzled_layout(TILE, tile_k, dtype),
}


def position(layout, k, outer, dtype):
    """Offset in shared memory, in elements, where `make_tile_copy` puts an element."""
    width = 16 // np.dtype(dtype).itemsize
    return k * layout.row + (outer ^ (k // width % layout.groups * layout.xor))


def most_conflicts(layout, tile_k, dtype):
    """Most words of one bank that a single store of a transposed tile asks for."""
    item_size = np.dtype(dtype).itemsize
    width, lanes = 16 // item_size, 128 // item_size  # lanes that are served together
    worst = 0
    for first in range(0, TILE * tile_k // width, lanes):
        for element in range(width):
            banks = Counter()
            for unit in range(first, first + lanes):
                outer, k = unit // (tile_k // width), unit % (tile_k // width) * width + element
                place = position(layout, k, outer, dtype) * item_size // BANK_BYTES
                banks.update((place + word) % BANKS for word in range(item_size // BANK_BYTES))
            worst = max(worst, *banks.values())
    return worst


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "tile_k", "worst"),
    [("plain", 8, "conflicts"), ("padded", 8, 1), ("swizzled", 8, 1), ("swizzled", 16, 1)],
)
def test_padding_and_swizzling_keep_stores_apart(name, tile_k, worst, dtype):
    conflicts = most_conflicts(LAYOUTS[name](tile_k, dtype), tile_k, dtype)
    expected = 2 * np.dtype(dtype).itemsize // 4 if worst == "conflicts" else worst
    assert conflicts == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_a_layout_is_a_permutation_that_keeps_vectors_whole(name, dtype):
    layout, width = LAYOUTS[name](8, dtype), 16 // np.dtype(dtype).itemsize
    places = [position(layout, k, outer, dtype) for k in range(8) for outer in range(TILE)]
    assert len(set(places)) == len(places)
    assert max(places) < 8 * layout.row
    for first in range(0, len(places), width):
        assert places[first] % width == 0
        assert places[first : first + width] == list(range(places[first], places[first] + width))


def test_registers_leave_room_for_the_blocks_that_are_asked_for():
    assert min_blocks(256, 64, "float32") == 2  # 128 registers a thread
    assert min_blocks(128, 128, "float32") == 2
    assert min_blocks(256, 64, "float64") == 1
    assert min_blocks(1024, 128, "float64") == 1


def test_tensor_cores_copy_16_bytes_only_if_every_row_ends_with_them():
    whole = contiguous_problem("float64", 130, 266, 44)
    assert choose_sides(whole) == ("a right", "vector", "vector")
    # The same rows, 16 bytes apart, of which the last 8 are not a's.
    assert choose_sides(replace(whole, k=43)) == ("a right", "vector", "along")
    assert choose_sides(replace(whole, n=265)) == ("a right", "along", "vector")


def test_the_lower_triangle_that_tensor_cores_compute_is_that_of_the_result():
    """Not its mirror image, which has another sign in a product that is antisymmetric."""
    problem = contiguous_problem("float64", 130, 130, 44)
    assert choose_sides(problem)[0] == "a right"
    assert choose_sides(replace(problem, triangle="lower"))[0] == "a left"
