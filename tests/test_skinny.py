"""Properties of the skinny kernels that the contract does not see: each config, each way round."""

from dataclasses import replace

import numpy as np
import pytest
from oracle.kinds import numpy_dtype

import dxgemm
from dxgemm.choice.registry import find_implementation
from dxgemm.handwritten.kernels import skinny_shifted, skinny_wgmma
from dxgemm.handwritten.parts.skinny_layouts import block_count, result_tile, tensor_maps
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Strides

CONFIGS, supports = skinny_wgmma.KERNEL.configs, skinny_wgmma.KERNEL.supports
WIDEST = CONFIGS[0]
NAMED = [
    (name, config)
    for name in ("skinny_wgmma", "skinny_fma", "skinny_shifted", "gemv")
    for config in find_implementation(name).kernel.configs
]


def test_the_larger_operand_is_the_left_factor():
    rows, columns = (contiguous_problem("float16", *s, 64) for s in ((8, 200), (200, 8)))
    assert result_tile(WIDEST, rows) == (64, 64) and result_tile(CONFIGS[-1], columns) == (64, 8)
    split = CONFIGS[-1]
    assert block_count(split, rows) == block_count(split, columns) == 4 * 8


def test_a_box_of_few_columns_is_as_wide_as_they_are():
    problem = contiguous_problem("float16", 8, 200, 64)
    problem = replace(problem, a=Strides(0, 1, 8))
    a_map, b_map = tensor_maps(CONFIGS[-1], problem)
    assert a_map.box == (8, 64, 1) and b_map.box == (64, 64, 1)


def test_int8_must_be_k_major():
    problem = contiguous_problem("int8", 16, 64, 32)
    assert supports(problem) == "wgmma of integers needs b contiguous along k"
    assert supports(replace(problem, b=Strides(0, 1, 32))) is None


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_stages_and_panels_begin_where_swizzles_repeat(config):
    assert config.stage_bytes % 1024 == 0
    assert config.few * 128 % 1024 == 0
    assert (config.stages * (config.stage_bytes + 16)) % 16 == 0


def test_the_larger_operand_is_read_in_lines_the_other_one_as_it_lies():
    problem = contiguous_problem("float16", 8, 201, 65)
    assert skinny_shifted.variant(skinny_shifted.KERNEL.configs[0], problem) == ("b", "k", "mn")
    across = replace(problem, a=Strides(0, 1, 8))
    assert skinny_shifted.variant(skinny_shifted.KERNEL.configs[0], across) == ("b", "any", "mn")
    assert skinny_shifted.supports(across) is None
    apart = replace(problem, b=Strides(0, 402, 2))
    assert "not contiguous along its rows or columns" in skinny_shifted.supports(apart)
    bytes_across = contiguous_problem("int8", 8, 201, 65)
    assert "not contiguous along k" in skinny_shifted.supports(bytes_across)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "config"), NAMED, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float32", "float64"])
def test_every_config_is_exact_in_every_layout(hopper, home, dtype, name, config):
    """Shares of k of all lengths, also none; edges of tiles; few rows and columns; odd widths."""
    if dtype not in find_implementation(name).kernel.dtypes:
        pytest.skip(f"{name} does not compute it")
    sizes = [(1, 64, 16), (config.few, 200, 1040), (8, 1000, 4096), (24, 136, 4112)]
    if name in ("skinny_shifted", "gemv"):
        sizes += [(1, 65, 1), (config.few, 201, 1041), (7, 999, 4097), (67, 131, 513)]
    rng, rounded = np.random.default_rng(0), numpy_dtype("int32" if dtype == "int8" else dtype)
    for few, many, k in sizes:
        for m, n in ((few, many), (many, few)):
            a, b = (
                rng.integers(-2, 3, size).astype(numpy_dtype(dtype)) for size in ((m, k), (k, n))
            )
            exact = (a.astype(float) @ b.astype(float)).astype(rounded)
            for a_sent in (home.send(a), home.send(a.T.copy()).T):
                for b_sent in (home.send(b), home.send(b.T.copy()).T):
                    try:
                        result = dxgemm.gemm(a_sent, b_sent, implementation=(name, config))
                    except dxgemm.errors.UnsupportedProblemError:
                        assert (name, dtype) == ("skinny_shifted", "int8")
                        continue
                    assert (home.fetch(result) == exact).all(), (m, n, k)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "config"), NAMED, ids=str)
def test_batches_are_scaled_and_added_to_c(hopper, home, name, config):
    rng = np.random.default_rng(0)
    dtype = find_implementation(name).kernel.dtypes[0]
    a, c = (rng.integers(-2, 3, (3, 5, size)).astype(dtype) for size in (528, 72))
    for b_shape in ((528, 72), (3, 528, 72)):
        b, sent = rng.integers(-2, 3, b_shape).astype(dtype), home.send(c)
        exact = 2 * a.astype(float) @ b.astype(float) - c.astype(float)
        dxgemm.gemm(home.send(a), home.send(b), sent, 2.0, -1.0, implementation=(name, config))
        assert (home.fetch(sent).astype(float) == exact).all()
