"""What the contract does not see of `small_batch`: how blocks share matrices, and its registers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dxgemm._problem import contiguous_problem
from dxgemm.handwritten.small_batch import (
    CONFIGS,
    Config,
    block_count,
    lone_share,
    tile_count,
    variant,
)

SIZES = [config.tile_m for config in CONFIGS]


def test_a_block_has_threads_enough_for_its_matrices():
    for config in CONFIGS:
        assert config.threads == config.matrices * config.tile_threads >= 64


@pytest.mark.parametrize(
    "batch, shape, size, blocks",
    [(1, (4, 4), 4, 1), (33, (4, 4), 4, 3), (10, (9, 3), 8, 3), (5, (33, 32), 32, 10)],
)
def test_the_last_block_may_have_fewer_matrices(batch, shape, size, blocks):
    config = CONFIGS[SIZES.index(size)]
    problem = contiguous_problem("float32", *shape, 4, batch)
    assert block_count(config, problem) == blocks
    assert tile_count(config, problem) <= blocks * config.matrices


def test_b_is_transposed_element_by_element():
    rows = contiguous_problem("float32", 8, 8, 8, 100)
    assert variant(CONFIGS[-1], rows) == ("row16", "row16")
    assert variant(CONFIGS[-1], replace(rows, b=rows.b.transposed())) == ("row16", "col")
    assert variant(CONFIGS[-1], replace(rows, a=rows.a.transposed())) == ("col16", "row16")
    assert variant(CONFIGS[-1], contiguous_problem("float32", 5, 5, 5, 100)) == ("row", "row")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_lines_and_matrices_begin_at_multiples_of_16_bytes(config, dtype):
    for length in (config.tile_m, config.tile_n, config.tile_k):
        assert config.line_bytes(length, dtype) % 16 == 0
    assert config.tile_bytes(dtype) % 16 == 0
    assert config.smem_bytes(dtype) <= 227 << 10


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"thread_m": 3}, "thread tiles must fill the tile"),
        ({"thread_n": 2}, "vectors of 4"),
        ({"tile_k": 24}, "k in steps of 16"),
        ({"matrices": 1000}, "1 to 1024 threads"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes, message):
    sizes = {"tile_m": 8, "tile_n": 8, "tile_k": 8, "thread_m": 2, "thread_n": 4, "matrices": 16}
    with pytest.raises(ValueError, match=re.escape(message)):
        Config(**{**sizes, **changes})


def test_a_tile_alone_leaves_most_of_a_multiprocessor_idle():
    for config in CONFIGS:
        assert 0 < lone_share(config) < 1


COMPILE = """
from dxgemm._registry import find_implementation
from dxgemm.compiler import compile_kernel
implementation = find_implementation("small_batch")
for dtype, place in (("float32", 0), ("float64", 1)):
    spec = implementation.spec(implementation.configs(dtype)[place], dtype, ("row", "col"))
    record = compile_kernel(spec, "sm_90a").record
    assert record.stack_bytes == 0, (spec, record.stack_bytes)
"""


def test_operands_that_are_read_by_elements_keep_the_sums_in_registers(run_python):
    run_python(COMPILE)
