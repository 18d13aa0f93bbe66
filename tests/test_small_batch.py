"""Properties of `small_batch`, `tensor_batch` and `complex_batch` that the contract does not see.

The matrices of a block, the layouts of tiles, the variants of kernels, and their registers.
"""

import re
from dataclasses import replace

import pytest

from dxgemm.handwritten.kernels import complex_batch, small_batch, tensor_batch
from dxgemm.handwritten.kernels.small_batch import Config, block_count, variant
from dxgemm.problem.define import contiguous_problem

CONFIGS = small_batch.KERNEL.configs
SIZES = [config.tile_m for config in CONFIGS]
CONFIGS_AND_DTYPES = [(config, dtype) for config in CONFIGS for dtype in ("float32", "float64")]
CONFIGS_AND_DTYPES += [(config, "float64") for config in tensor_batch.KERNEL.configs]
CONFIGS_AND_DTYPES += [
    (config, dtype)
    for config in complex_batch.KERNEL.configs
    for dtype in complex_batch.KERNEL.dtypes
]


def test_a_block_has_threads_enough_for_its_matrices():
    for config in (*CONFIGS, *tensor_batch.KERNEL.configs, *complex_batch.KERNEL.configs):
        assert config.threads == config.matrices * config.tile_threads >= 64


@pytest.mark.parametrize(
    "batch, shape, size, blocks",
    [(1, (4, 4), 4, 1), (33, (4, 4), 4, 3), (10, (9, 3), 8, 3), (5, (33, 32), 32, 10)],
)
def test_the_last_block_may_have_fewer_matrices(batch, shape, size, blocks):
    config = CONFIGS[SIZES.index(size)]
    problem = contiguous_problem("float32", *shape, 4, batch)
    assert block_count(config, problem) == blocks


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


@pytest.mark.parametrize("config, dtype", CONFIGS_AND_DTYPES, ids=str)
def test_lines_and_matrices_begin_at_multiples_of_16_bytes(config, dtype):
    if isinstance(config, Config):
        lengths = config.tile_m, config.tile_n, config.tile_k
        lines = [config.line_bytes(length, dtype) for length in lengths]
    else:
        lines = [config.k_line_bytes(1), config.k_line_bytes(2), config.line_bytes(config.tile_n)]
    assert all(line % 16 == 0 for line in lines)
    assert config.tile_bytes(dtype) % 16 == 0
    assert config.smem_bytes(dtype) <= 227 << 10


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_rows_are_read_one_two_or_four_at_a_time(config):
    for dtype, most in (("float32", 4), ("float64", 2)):
        rows = config.rows_together(dtype)
        assert rows in (1, 2, 4) and rows <= most and config.thread_m % rows == 0


@pytest.mark.parametrize("config, dtype", CONFIGS_AND_DTYPES, ids=str)
def test_a_multiprocessor_holds_the_blocks_that_registers_are_spared_for(config, dtype):
    blocks = config.min_blocks(dtype)
    assert blocks * config.threads <= 1024
    assert blocks * (config.smem_bytes(dtype) + 1024) <= 228 << 10


SCALAR = Config(tile_m=8, tile_n=8, tile_k=8, thread_m=2, thread_n=4, matrices=16)
COMPLEX = complex_batch.Config(8, 8, 8, thread_m=2, thread_n=2, matrices=16, parts=2)
TENSOR = tensor_batch.Config(tile_m=32, tile_n=32, tile_k=32, warp_m=16, warp_n=16)


@pytest.mark.parametrize(
    "config, changes, message",
    [
        (SCALAR, {"thread_m": 3}, "thread tiles must fill the tile"),
        (SCALAR, {"thread_n": 2}, "vectors of 4"),
        (SCALAR, {"tile_k": 6}, "vectors of 4"),
        (SCALAR, {"matrices": 1000}, "1 to 1024 threads"),
        (COMPLEX, {"thread_m": 3}, "thread tiles must fill the tile"),
        (COMPLEX, {"thread_n": 1}, "vectors of 2"),
        (COMPLEX, {"parts": 3}, "vectors of 2"),
        (TENSOR, {"warp_m": 24}, "warp tiles must fill the tile"),
        (TENSOR, {"warp_n": 8}, "an instruction computes 8 x 16"),
        (TENSOR, {"parts": 3}, "instructions of 8"),
        (TENSOR, {"matrices": 16}, "32 to 1024 threads"),
    ],
)
def test_a_config_that_cannot_be_is_refused(config, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(config, **changes)


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


COMPILE = """
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
for name, dtype, place, most in (
    ("small_batch", "float64", 4, 16),  # of 192 that the sums take
    ("tensor_batch", "float64", 0, 48),
):
    implementation = find_implementation(name)
    config = implementation.configs(dtype)[place]
    record = compile_kernel(implementation.spec(config, dtype, ("row", "col")), "sm_90a").record
    assert record.stack_bytes <= most, (name, config, record.stack_bytes)
"""


@pytest.mark.long_build
def test_operands_that_are_read_by_elements_keep_the_sums_in_registers(run_python):
    run_python(COMPILE)


COMPILE_WARPS = """
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
implementation, dtype = find_implementation("small_batch"), "float32"
for config in implementation.configs(dtype):
    if config.tile_threads == 32:
        spec = implementation.spec(config, dtype, ("row16", "row16"))
        record = compile_kernel(spec, "sm_80").record
        most = 65536 // (config.threads * config.min_blocks(dtype))
        assert record.registers <= most, (config, record.registers)
"""


@pytest.mark.long_build
def test_as_many_blocks_with_a_tile_a_warp_fit_as_are_asked_for(run_python):
    run_python(COMPILE_WARPS)
