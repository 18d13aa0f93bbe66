"""Rows of a result as float8 with scales: what `reductions.quantise_rows` makes of products."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from oracle.kinds import numpy_dtype
from oracle.libraries import LIBRARIES
from test_float8 import E4M3, E5M2, empty, fetch, powers, send, whole

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.operands import LEAST_LARGEST
from dxgemm.reductions import Quantised, abs_max, argmax, quantise_rows

M, N, K = (3, 130, 5) if simulator_enabled() else (67, 1000, 64)
LARGEST = {E4M3: 448, E5M2: 57344}


def wanted(values, dtype, block):
    """Elements as float64, and scales, of a matrix in float32."""
    m, n = values.shape
    width = block or n
    padded = np.zeros((m, -(-n // width) * width), np.float32)
    padded[:, :n] = values
    sizes = abs(padded.reshape(m, -1, width)).max(2)
    sizes = np.where(sizes < LEAST_LARGEST, np.float32(LEAST_LARGEST), sizes)
    most = np.float32(LARGEST[dtype])
    with np.errstate(invalid="ignore"):
        scaled = values * np.repeat(most / sizes, width, 1)[:, :n]
    return np.clip(scaled, -most, most).astype(dtype).astype(float), sizes / most


@pytest.mark.parametrize("operands", ["bfloat16", "float16", "float32", "float8_e4m3fn"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("block", [None, 128])
def test_elements_and_scales(operands, dtype, block):
    rng, kind = np.random.default_rng(0), np.dtype(getattr(ml_dtypes, operands, operands))
    a, b = whole(rng, (M, K), kind), whole(rng, (K, N), kind, "col")
    bias = powers(rng, N) / 3
    end = quantise_rows(dtype, block)
    found = dxgemm.gemm(
        send(a), send(b), epilogue=epilogues.bias(send(bias)) | epilogues.relu | end
    )
    assert isinstance(found, Quantised)
    assert str(found.values.dtype).removeprefix("torch.") == dtype.name
    product = np.float32(a.astype(float) @ b.astype(float))
    result = np.maximum(product + bias, np.float32(0))
    left = {"float8_e4m3fn": ml_dtypes.bfloat16}.get(operands, kind)  # as `gemm` returns it
    values, scales = wanted(result.astype(left).astype(np.float32), dtype, block)
    np.testing.assert_array_equal(fetch(found.values).astype(float), values)
    np.testing.assert_array_equal(fetch(found.scales), scales)


@pytest.mark.parametrize("order", ["C", "F", "odd"])
@pytest.mark.parametrize("is_kept", [False, True])
def test_arrays_that_are_passed(order, is_kept):
    rng = np.random.default_rng(1)
    a, b = whole(rng, (2, M, K), E4M3), whole(rng, (2, K, N), E4M3)
    shape = {"C": (2, M, N), "F": (2, N, M), "odd": (2, M, N + 1)}[order]
    values, scales = send(np.zeros(shape, E5M2)), empty((2, M, 1))
    out = empty((2, N, M) if order == "F" else (2, M, N))
    values, out = (x.swapaxes(1, 2) if order == "F" else x[:, :, -N:] for x in (values, out))
    plan = dxgemm.plan(
        send(a), send(b), out=out if is_kept else None, scale_a=0.5,
        epilogue=quantise_rows("e5m2", out=(values, scales)),
    )  # fmt: skip
    found = plan()
    assert found.values is values and found.scales is scales
    for matrix in range(2):
        product = 0.5 * (a[matrix].astype(float) @ b[matrix].astype(float))
        left = product if is_kept else product.astype(ml_dtypes.bfloat16)
        right, right_scales = wanted(np.float32(left), E5M2, None)
        np.testing.assert_array_equal(fetch(values)[matrix].astype(float), right)
        np.testing.assert_array_equal(fetch(scales)[matrix], right_scales)
        if is_kept:
            np.testing.assert_array_equal(fetch(out)[matrix], product)


def test_zeros_infinities_nan_and_what_is_small():
    rows = np.float32([0, np.nan, np.inf, 1e-38, -(2.0**100), -0.0])
    a = np.zeros((6, 16), np.float32)
    b = np.zeros((16, N), np.float32)
    column = epilogues.bias_column(send(rows))
    found = dxgemm.gemm(send(a), send(b), epilogue=column | quantise_rows())
    values, scales = wanted(np.broadcast_to(rows[:, None], (6, N)), E4M3, None)
    np.testing.assert_array_equal(fetch(found.values).astype(float), values)
    np.testing.assert_array_equal(fetch(found.scales), scales)
    assert np.isnan(scales[1]) and np.isinf(scales[2]) and np.isnan(values[2]).all()
    assert (values[4] == -448).all() and scales[0] == np.float32(LEAST_LARGEST / 448)


@pytest.mark.parametrize("m, n, k", [(0, 5, 4), (3, 0, 4), (3, 5, 0)])
def test_empty_results(m, n, k):
    found = dxgemm.gemm(
        send(np.ones((m, k), E4M3)), send(np.ones((k, n), E4M3)), epilogue=quantise_rows(block=128)
    )
    assert found.values.shape == (m, n) and found.scales.shape == (m, -(-n // 128))
    assert (fetch(found.values).astype(float) == 0).all()
    assert (fetch(found.scales) == np.float32(LEAST_LARGEST / 448)).all()


def test_two_layers_stay_in_float8():
    """What one product leaves is what the next one takes, with scales of rows and of blocks."""
    rng = np.random.default_rng(2)
    a, b, c = whole(rng, (M, K), E4M3), whole(rng, (K, N), E4M3, "col"), whole(rng, (N, 7), E4M3)
    hidden = np.float32(a.astype(float) @ b.astype(float))
    for block in (None, 128):
        values, scales = dxgemm.gemm(send(a), send(b), epilogue=quantise_rows(block=block))
        of_c = powers(rng, 1 if block is None else -(-N // 128), 7)
        found = dxgemm.gemm(values, send(c), out=empty((M, 7)), scale_a=scales, scale_b=send(of_c))
        wide, of_rows = wanted(hidden.astype(ml_dtypes.bfloat16).astype(np.float32), E4M3, block)
        left = wide * np.repeat(of_rows, block or N, 1)[:, :N]
        right = c.astype(float) * np.repeat(of_c, block or N, 0)[:N]
        bound = 2.0**-9 * (abs(left) @ abs(right))
        assert (abs(fetch(found) - left @ right) <= bound).all()


def test_scales_of_blocks_and_reductions_of_the_stored_matrix():
    rng = np.random.default_rng(3)
    a, b = whole(rng, (M, 260), E4M3), whole(rng, (260, N), E4M3, "col")
    x, y = powers(rng, M, 3), powers(rng, 3, N)
    left = a.astype(float) * np.repeat(x, 128, 1)[:, :260]
    exact = np.float32(left @ (b.astype(float) * np.repeat(y, 128, 0)[:260]))
    product = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    scales = {"scale_a": send(x), "scale_b": send(y)}
    found = dxgemm.gemm(send(a), send(b), epilogue=quantise_rows(block=128), **scales)
    values, of_rows = wanted(product, E4M3, 128)
    np.testing.assert_array_equal(fetch(found.values).astype(float), values)
    np.testing.assert_array_equal(fetch(found.scales), of_rows)
    largest = dxgemm.gemm(send(a), send(b), epilogue=abs_max(axis=1), **scales)
    np.testing.assert_array_equal(fetch(largest), abs(exact).max(1))
    with pytest.raises(errors.UnsupportedProblemError, match="scales of blocks"):
        dxgemm.gemm(send(a), send(b), epilogue=argmax(fused=True), **scales)


def test_a_numpy_array_is_quantised_alike():
    values = np.random.default_rng(4).standard_normal((2, 5, 300)).astype(np.float32)
    for dtype, block in ((E4M3, None), (E5M2, 128)):
        found = quantise_rows(dtype, block).on_host(values)
        for matrix in range(2):
            right, scales = wanted(values[matrix], dtype, block)
            np.testing.assert_array_equal(found.values[matrix].astype(float), right)
            np.testing.assert_array_equal(found.scales[matrix], scales)
    assert str(quantise_rows(block=128)) == "quantise_rows(float8_e4m3fn, block=128)"


def test_wrong_arguments():
    ones = LIBRARIES["numpy"].send(np.ones((4, 4), numpy_dtype("float64")))
    for error, text, call in (
        (errors.DtypeError, "dtype is 'int8'; pass", lambda: quantise_rows("int8")),
        (errors.EpilogueError, "block is 64; pass 128", lambda: quantise_rows(block=64)),
        (errors.EpilogueError, "out has 1 arrays", lambda: quantise_rows(out=ones)),
        (errors.UnsupportedProblemError, "not float64",
         lambda: dxgemm.gemm(ones, ones, epilogue=quantise_rows())),
        (errors.EpilogueError, "nothing follows", lambda: quantise_rows() | epilogues.relu),
        (errors.UnsupportedProblemError, "does not go with scale_out",
         lambda: dxgemm.gemm(ones.astype(E4M3), ones.astype(E4M3), out=ones.astype(E4M3),
                             scale_out=2.0, epilogue=quantise_rows())),
        (errors.DtypeError, "must be float8_e4m3fn",
         lambda: dxgemm.gemm(ones.astype("float32"), ones.astype("float32"),
                             epilogue=quantise_rows(out=(ones, ones[:, :1])))),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            call()
