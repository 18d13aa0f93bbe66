"""Properties of `small_batch`, `tensor_batch` and `complex_batch` that the contract does not see.

The layouts of tiles and the variants of kernels.
"""

from dataclasses import replace

import pytest

from dxgemm.handwritten.kernels import small_batch, tensor_batch
from dxgemm.handwritten.kernels.small_batch import variant
from dxgemm.problem.define import contiguous_problem

CONFIGS = small_batch.KERNEL.configs


def test_b_is_transposed_element_by_element():
    rows = contiguous_problem("float32", 8, 8, 8, 100)
    assert variant(CONFIGS[-1], rows) == ("row16", "row16")
    assert variant(CONFIGS[-1], replace(rows, b=rows.b.transposed())) == ("row16", "col")
    assert variant(CONFIGS[-1], replace(rows, a=rows.a.transposed())) == ("col16", "row16")
    assert variant(CONFIGS[-1], contiguous_problem("float32", 5, 5, 5, 100)) == ("row", "row")


def test_a_kernel_knows_of_an_a_for_all_and_of_rows_far_apart():
    rows = contiguous_problem("float64", 8, 8, 8, 100)
    for file in (small_batch, tensor_batch):
        config = file.KERNEL.configs[-1]
        same = replace(rows, a=rows.a._replace(batch=0))
        assert file.KERNEL.variant(config, same) == ("row16", "row16", "shared a")
        assert file.KERNEL.variant(config, replace(same, batch=1)) == ("row16", "row16")
        far = replace(rows, b=rows.b._replace(row=1 << 28))
        assert file.KERNEL.variant(config, far) == ("row16", "row16", "far")


@pytest.mark.parametrize("config", tensor_batch.KERNEL.configs, ids=str)
def test_lanes_that_are_served_together_read_different_banks(config):
    """Eight lanes, two groups of four members, each 16 bytes of which are 4 banks."""
    lanes = [(group, member) for group in range(2) for member in range(4)]
    for places in (
        [group * config.k_line_bytes(1) + member * 16 for group, member in lanes],
        [2 * group * config.k_line_bytes(2) + member * 16 for group, member in lanes],
        [2 * member * config.line_bytes(config.tile_n) + group * 16 for group, member in lanes],
    ):
        assert len({place % 128 // 16 for place in places}) == len(lanes)
