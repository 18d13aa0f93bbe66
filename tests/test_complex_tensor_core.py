"""Complex128 on tensor cores as it lies: `complex_tensor_core`, by name."""

from dataclasses import replace

import numpy as np
import pytest
from complex_operands import CALLS, IS_SIMULATED, check, check_errors, integers
from test_complex_batch import LAYOUTS

import dxgemm
from dxgemm.handwritten.kernels.complex_tensor_core import KERNEL, Config
from dxgemm.handwritten.parts.complex_mma import smem_offset
from dxgemm.problem.complex_form import direct_form
from dxgemm.problem.define import contiguous_problem

NAME, DTYPE = "complex_tensor_core", "complex128"
CONFIGS = KERNEL.simulator_configs if IS_SIMULATED else KERNEL.configs
CONFIG = Config(32, 32, 8, warp_m=16, warp_n=16, stages=4)


@pytest.fixture
def tensor_home(home_of):
    return home_of(NAME)


@pytest.mark.parametrize("layouts", LAYOUTS, ids="".join)
def test_products_of_integers_are_exact(tensor_home, layouts):
    sizes = [(17, 6, 9), (1, 9, 2)] if IS_SIMULATED else [(130, 67, 33), (1, 300, 257), (8, 8, 8)]
    for size in sizes:
        check(tensor_home, DTYPE, size, layouts, CALLS[:: 3 if IS_SIMULATED else 1], NAME, batch=2)


@pytest.mark.parametrize("k", [0, 1, 7, 8, 9, 40])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_config_at_the_edges_of_its_tile(tensor_home, config, k):
    """Short k leaves blocks of a cluster without a share, and stages without a tile."""
    m, n = config.tile_m + k % 3 - 1, config.tile_n - k % 2
    call = CALLS[(k + CONFIGS.index(config)) % len(CALLS)]
    check(tensor_home, DTYPE, (m, n, k), ("C", "F", "C")[k % 2 :] + ("F",) * (k % 2), [call],
          (NAME, config), batch=1 + k % 2)  # fmt: skip


def test_operands_may_be_broadcast_and_run_backwards(tensor_home):
    a, b = (integers(s, DTYPE) for s in ((17, 9), (3, 9, 10)))
    sent_a, sent_b = tensor_home.send(a), tensor_home.send(b)
    options = {"implementation": NAME}
    found = dxgemm.gemm(sent_a, sent_b, **options)
    np.testing.assert_array_equal(tensor_home.fetch(found), a @ b)
    found = dxgemm.gemm(sent_a[::-1, ::-1], sent_b[:, ::-1], **options)
    np.testing.assert_array_equal(tensor_home.fetch(found), a[::-1, ::-1] @ b[:, ::-1])


def test_errors_are_within_the_rule(tensor_home):
    for config in CONFIGS:
        sizes = (17, 9, 20) if IS_SIMULATED else (65, 70, 1000)
        check_errors(tensor_home, DTYPE, sizes, implementation=(NAME, config))


@pytest.mark.parametrize("line", [8, 16, 64])
def test_eight_lanes_find_different_banks(line):
    """Of reads of fragments, by either layout of a tile, and of copies."""
    fragment = [(x, k) for x in (1, 5) for k in range(4)]
    second_half = [(x, k + 4) for x, k in fragment]
    along = [(3, place) for place in range(8)]
    for lanes in (fragment, second_half, [(k, x) for x, k in fragment], along):
        banks = {smem_offset(*lane, 16 * line) % 128 // 16 for lane in lanes}
        assert len(banks) == 8


def test_a_kernel_is_made_for_layouts_and_conjugates():
    def variant(conjugates="", **changes):
        problem = replace(contiguous_problem(DTYPE, 9, 9, 9), **changes)
        return KERNEL.variant(CONFIG, direct_form(problem, conjugates).product)

    rows = contiguous_problem(DTYPE, 9, 9, 9)
    assert variant() == ("", "row", "row") == variant(a=rows.a._replace(batch=0))
    assert variant("ba", a=rows.a.transposed()) == ("ab", "col", "row")
    assert variant("b", b=rows.b.transposed()) == ("b", "row", "col")
