"""Every tile of wgmma gives the bits of every other: all add an element's products in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dxgemm
from dxgemm import epilogues
from dxgemm.choice.registry import find_implementation
from dxgemm.errors import UnsupportedProblemError

KERNEL = find_implementation("wgmma").kernel
PLAIN = next(config for config in KERNEL.configs if str(config) == "128x128 stages 6")
CONFIGS = [c for c in KERNEL.configs if not c.takes("int8")]  # others are tested with other dtypes
# Tiles at the edges, odd sizes, fewer k than a stage; several tiles of every warpgroup of a block.
SIZES = ((300, 424, 136), (301, 427, 133), (72, 520, 40), (3000, 3400, 72))
LAYOUTS = ("row_row", "row_col", "col_row", "col_col")

pytestmark = pytest.mark.gpu


@epilogues.epilogue
def rounded(value, row, col):
    """A value between -127 and 127."""
    return max(min(value, 127.0), -127.0)


def plain(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    return dxgemm.gemm(a, b, **how)


def with_c(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    return dxgemm.gemm(a, b, c, 1.5, -0.75, **how)


def columns_stored(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    out = x.zeros(c.shape[::-1], c.dtype).T
    return dxgemm.gemm(a, b, c, 2, 1, out=out, **how)


def in_float32(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    return dxgemm.gemm(a, b, out=x.zeros(c.shape, "float32"), **how)


def batch(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    return dxgemm.gemm(x.stack([a, -a, a[::-1]]), b, **how)


def chain(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    fused = epilogues.bias(c[0]) | epilogues.gelu_tanh | epilogues.residual(c)
    return dxgemm.gemm(a, b, epilogue=fused, **how)


def pairs(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    even = b[:, : b.shape[1] // 2 * 2]
    return dxgemm.gemm(a, even, epilogue=epilogues.swiglu, **how)


def quantised(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    return dxgemm.gemm(a, b, out=x.zeros(c.shape, "int8"), epilogue=rounded, **how)


def masked(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    blocks = [-(-size // 128) for size in c.shape]
    mask = (x.arange(blocks[0] * blocks[1]).reshape(blocks) % 3).astype("bool")
    return dxgemm.gemm(a, b, c, 1, 1, out=x.zeros_like(c), mask=mask, **how)


def lower(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    out = x.zeros((len(a), len(a)), a.dtype)
    return dxgemm.gemm_symmetric(a, out=out, triangle="lower", **how)


def sliced(a: Any, b: Any, c: Any, x: Any, **how: Any) -> Any:
    slices = 2 if a.shape[1] > 64 else 1  # of no k that is within one step
    return dxgemm.gemm(a, b, implementation=(*how["implementation"], slices))


CASES = (
    plain, with_c, columns_stored, in_float32, batch, chain, pairs, quantised, masked, lower,
    sliced,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_bits_are_those_of_the_plain_tile(hopper: Any, config: Any, case: Callable[..., Any]):
    x = hopper
    number = CONFIGS.index(config) + CASES.index(case)
    random = x.random.default_rng(number)

    def matrix(rows: int, cols: int, layout: str) -> Any:
        values = random.standard_normal((rows, cols), "float32").astype("float16")
        return x.asarray(values, order="F" if layout == "col" else "C")

    for size, (m, n, k) in enumerate(SIZES):
        a_layout, b_layout = LAYOUTS[(number + size) % 4].split("_")
        a, b, c = matrix(m, k, a_layout), matrix(k, n, b_layout), matrix(m, n, "row")
        expected = case(a, b, c, x, implementation=("wgmma", PLAIN))
        try:
            result = case(a, b, c, x, implementation=("wgmma", config))
        except UnsupportedProblemError as error:
            assert case is masked or (case is sliced and config.is_pingpong), error
            return
        assert expected.any()
        x.testing.assert_array_equal(result, expected)
