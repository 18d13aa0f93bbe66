"""Properties of `half_batch` that the contract does not see: lines, addresses, whole batches."""

from dataclasses import replace

import numpy as np
import pytest
from oracle.kinds import numpy_dtype

import dxgemm
from dxgemm.handwritten.kernels import half_batch
from dxgemm.handwritten.kernels.half_batch import supports, variant
from dxgemm.handwritten.parts.batch_lines import LONGEST_LINE, line_bytes
from dxgemm.handwritten.parts.batch_store import rounded_line_bytes, sum_line_bytes
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Strides

CONFIGS = half_batch.KERNEL.configs
SMALLEST = CONFIGS[-1]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_lines_that_are_accessed_together_lie_in_different_banks(config):
    for items in (config.tile_m, config.tile_n, config.tile_k):
        assert line_bytes(items) % 16 == 0
        assert len({row * line_bytes(items) % 128 for row in range(8)}) == 8
    words = [(row, word) for row in range(8) for word in range(4)]
    line = rounded_line_bytes(config.tile_n)
    assert len({(row * line + 4 * word) % 128 for row, word in words}) == 32
    pairs = [(row, pair) for row in range(4) for pair in range(4)]
    line = sum_line_bytes(config.tile_n)
    assert len({(row * line + 8 * pair) % 128 for row, pair in pairs}) == 16


def test_chunks_go_straight_to_shared_memory_where_lines_are_aligned_and_whole():
    def modes(problem):
        return variant(SMALLEST, problem)

    rows = contiguous_problem("float16", 8, 16, 24, 100)
    assert modes(rows) == ("k16", "x16", "float16")
    assert modes(replace(rows, a=Strides(8 * 24, 1, 8))) == ("x16", "x16", "float16")
    assert modes(replace(rows, b=rows.b.transposed()._replace(row=1, col=24)))[1] == "k16"
    assert modes(replace(rows, a_alignment=2)) == ("k", "x16", "float16")
    assert modes(replace(rows, a=Strides(8 * 32, 32, 1), k=20))[0] == "k8"
    assert modes(contiguous_problem("float16", 6, 6, 6, 100)) == ("k4", "x4", "float16")
    assert modes(contiguous_problem("float16", 5, 5, 5, 100)) == ("k", "x", "float16")


def test_operands_without_lines_are_left_to_other_kernels():
    rows = contiguous_problem("bfloat16", 8, 8, 8, 100)
    assert supports(rows) is None
    reason = supports(replace(rows, a=Strides(256, 32, 2)))
    assert reason == "neither rows nor columns of a are contiguous"
    assert "apart" in supports(replace(rows, b=rows.b._replace(row=LONGEST_LINE + 8)))


def inside_nan(cupy, values, offset):
    """A copy between NaN, so many elements behind an aligned address, and all that surrounds it."""
    held = np.full(values.size + 64, np.nan, values.dtype)
    held[offset : offset + values.size] = values.ravel()
    sent = cupy.asarray(held)
    return sent[offset : offset + values.size].reshape(values.shape), sent


@pytest.mark.gpu
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_batch_is_one_run_of_memory_at_any_address(cupy, config):
    """Lines of odd length, of which none, or each at its own residue, is aligned."""
    rng = np.random.default_rng(0)
    tile = config.tile_m
    for offset, size in enumerate((tile, tile - 1, tile - 2, tile - 4, tile - 7, tile + 3)):
        for batch in (1, 2 * config.matrices + 1):
            shape = (batch, size, size)
            a, b = (rng.integers(-2, 3, shape).astype("float16") for _ in range(2))
            out, around = inside_nan(cupy, np.zeros(shape, "float16"), 7 - offset)
            dxgemm.gemm(
                inside_nan(cupy, a, offset)[0],
                inside_nan(cupy, b, 3 * offset % 8)[0],
                out=out,
                implementation=("half_batch", config),
            )
            assert (out.get() == a.astype(float) @ b.astype(float)).all()
            assert int(cupy.isnan(around).sum()) == 64


@pytest.mark.gpu
@pytest.mark.parametrize("size", range(1, 20))
def test_tiny_matrices_share_vectors(cupy, size):
    """A vector across the end of the operand holds several lines, or several matrices."""
    rng = np.random.default_rng(size)
    for batch in (1, 2, 5, 33):
        a, b = (rng.integers(-2, 3, (batch, size, size)).astype("float16") for _ in range(2))
        exact = a.astype(float) @ b.astype(float)
        for offset in (0, 1, 6):
            for config in CONFIGS[-3:]:
                operands = [inside_nan(cupy, x, offset)[0] for x in (a, b)]
                result = dxgemm.gemm(*operands, implementation=("half_batch", config))
                assert (result.get() == exact).all()


@pytest.mark.gpu
def test_one_matrix_for_all_and_windows_that_overlap(cupy):
    rng = np.random.default_rng(0)
    line = cupy.asarray(rng.integers(-2, 3, 200).astype("float16"))
    windows = cupy.lib.stride_tricks.as_strided(line, (31, 7, 9), (6, 18, 2))
    other = cupy.asarray(rng.integers(-2, 3, (9, 11)).astype("float16"))
    exact = windows.get().astype(float) @ other.get().astype(float)
    for config in CONFIGS:
        result = dxgemm.gemm(windows, other, implementation=("half_batch", config))
        assert (result.get() == exact).all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_sums_are_added_to_c_and_rounded_once(home, kind):
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-2, 3, (5, 21, 21)).astype(numpy_dtype(kind)) for _ in range(3))
    exact = 2 * a.astype(float) @ b.astype(float) - c.astype(float)
    for config in CONFIGS:
        sent = home.send(c)
        dxgemm.gemm(
            home.send(a), home.send(b), sent, 2.0, -1.0, implementation=("half_batch", config)
        )
        assert (home.fetch(sent).astype(float) == exact).all()
