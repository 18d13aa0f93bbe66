"""Products of float8: formats, scales, layouts and errors, by every kernel that computes them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.runtime.device import device_facts

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
CASES = [
    (E4M3, E4M3, ("row", "col")), (E5M2, E5M2, ("row", "col")), (E4M3, E5M2, ("row", "row")),
    (E5M2, E4M3, ("col", "row")), (E5M2, E4M3, ("col", "col")),
]  # fmt: skip
KERNELS = [i for i in IMPLEMENTATIONS if i.is_own and {*FLOAT8} <= {*i.kernel.dtypes}]
SIZES = [(3, 5, 20), (6, 1, 4)]
BLOCKED = (3, 5, 260)
if not simulator_enabled():
    SIZES = [(256, 512, 640), (130, 266, 300), (257, 1, 33), (16, 1024, 4096), (1, 40, 129)]
    BLOCKED = SIZES[1]


@pytest.fixture(params=KERNELS, ids=[entry.name for entry in KERNELS])
def kernel(request):
    """A kernel that runs here, with the precision that it needs."""
    if reason := request.param.runs_on(device_facts(0).arch):
        pytest.skip(reason)
    precision = "fast" if request.param.name == "wgmma" else None
    return {"implementation": request.param.name, "precision": precision}


def skip(kernel, orders=("row", "col"), blocks=False):
    """Skip what a kernel does not compute."""
    if kernel["implementation"] == "wgmma" and orders != ("row", "col"):
        pytest.skip("it reads float8 contiguous along k")
    if blocks and not find_implementation(kernel["implementation"]).kernel.takes_block_scales:
        pytest.skip("its sums are not scaled by blocks")


def send(array):
    """An array where kernels read it: in torch's memory on a GPU, since CuPy has no float8."""
    if simulator_enabled():
        return array
    import torch

    if array.flags.f_contiguous and not array.flags.c_contiguous:
        return send(array.T.copy()).T
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}").copy()
    sent = torch.from_numpy(bits).cuda().view(getattr(torch, str(array.dtype)))
    return sent.reshape(array.shape)


def fetch(array):
    return array if simulator_enabled() else array.float().cpu().numpy()


def empty(shape, dtype="float32"):
    return send(np.full(shape, np.nan, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))


def whole(rng, shape, dtype, order="row", most=3):
    """Small integers, whose sums of 128 products the tensor core keeps exactly."""
    values = rng.integers(-most, most + 1, shape).astype(np.float32)
    return values.astype(dtype) if order == "row" else values.T.astype(dtype).T.copy("F")


def powers(rng, *shape):
    return 2.0 ** rng.integers(-3, 4, shape).astype(np.float32)


def integers(rng, *shape):
    return rng.integers(-9, 10, shape).astype(np.float32)


def gemm(a, b, *more, order="C", **options):
    """`dxgemm.gemm` of arrays that are sent, into float32, as float64."""
    shape = (*a.shape[:-1], b.shape[-1])
    out = empty(shape) if order == "C" else empty(shape[::-1]).T
    is_sent = {n for n, v in options.items() if isinstance(v, np.ndarray) and n != "mask"}
    options = {n: send(v) if n in is_sent else v for n, v in options.items()}
    more = [send(x) if isinstance(x, np.ndarray) else x for x in more]
    return fetch(dxgemm.gemm(send(a), send(b), *more, **{"out": out} | options)).astype(float)


def spread(scales, along, k, axis):
    """Scales of blocks as factors of elements."""
    each = 1 if scales.shape[axis] == along else 128
    repeated = np.repeat(np.repeat(scales, each, axis), 128, 1 - axis)
    return repeated[:along, :k] if axis == 0 else repeated[:k, :along]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("a_dtype", "b_dtype", "orders"), CASES, ids=str)
def test_every_format_size_and_layout(kernel, a_dtype, b_dtype, size, orders):
    (m, n, k), rng = size, np.random.default_rng(0)
    skip(kernel, orders)
    a, b = whole(rng, (m, k), a_dtype, orders[0]), whole(rng, (k, n), b_dtype, orders[1])
    c = integers(rng, m, n)
    wanted = 2 * (a.astype(float) @ b.astype(float)) + 3 * c
    np.testing.assert_array_equal(gemm(a, b, c, 2.0, 3.0, **kernel), wanted)


@pytest.mark.parametrize("dtype", [None, "float16", "float32"])
def test_results_are_rounded_once(kernel, dtype):
    (m, n, k), rng = SIZES[0], np.random.default_rng(1)
    a, b = whole(rng, (m, k), E4M3), whole(rng, (k, n), E4M3, "col")
    out = None if dtype is None else empty((m, n), dtype)
    result = dxgemm.gemm(send(a), send(b), out=out, alpha=3.0, **kernel)
    assert str(result.dtype).removeprefix("torch.") == (dtype or "bfloat16")
    wanted = (3 * (a.astype(float) @ b.astype(float))).astype(dtype or ml_dtypes.bfloat16)
    np.testing.assert_array_equal(fetch(result).astype(float), wanted.astype(float))


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_every_encoding(kernel, dtype):
    """Each of 256 encodings times one: subnormals, the largest, infinities, and each NaN."""
    a = np.zeros((256, 16), dtype)
    a[:, 0] = np.arange(256, dtype=np.uint8).view(dtype)
    found = gemm(a, np.ones((16, 1), dtype), **kernel)
    np.testing.assert_array_equal(found[:, 0], a[:, 0].astype(float))


@pytest.mark.parametrize("kind", ["numbers", "one", "rows", "columns", "both"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_scales_of_whole_operands(kernel, kind, order):
    (m, n, k), rng = SIZES[0], np.random.default_rng(2)
    a, b = whole(rng, (m, k), E4M3), whole(rng, (k, n), E5M2, "col")
    x, y = (np.float32([[0.5]]), np.array(4, "f4")) if kind == "one" else (0.5, 4.0)
    if kind in ("rows", "both"):
        x = powers(rng, m, 1)
    if kind in ("columns", "both"):
        y = powers(rng, n)
    bias = integers(rng, n)
    chain = epilogues.bias(send(bias)) | epilogues.relu
    found = gemm(a, b, alpha=3.0, order=order, scale_a=x, scale_b=y, epilogue=chain, **kernel)
    wanted = 3 * ((a.astype(float) * x) @ (b.astype(float) * y)) + bias
    np.testing.assert_array_equal(found, np.maximum(wanted, 0))


@pytest.mark.parametrize("rows", ["one", "rows", "flat"])
def test_scales_do_not_multiply_c(kernel, rows):
    (m, n, k), rng = SIZES[0], np.random.default_rng(12)
    skip(kernel, blocks=True)
    a, b = whole(rng, (m, k), E4M3), whole(rng, (k, n), E4M3, "col")
    x = {"one": np.float32([[2]]), "rows": powers(rng, m, 1), "flat": powers(rng, m)}[rows]
    y = powers(rng, 1, n) if rows == "rows" else np.float32([0.5])
    c = integers(rng, m, n)
    found = gemm(a, b, c.copy(), 2.0, 3.0, scale_a=x, scale_b=y, out=None, **kernel)
    scaled = (a.astype(float) * x.reshape(-1, 1)) @ (b.astype(float) * y)
    np.testing.assert_array_equal(found, 2 * scaled + 3 * c)


@pytest.mark.parametrize(("a_block", "b_block", "order", "blocks"), [
    (1, 1, "C", 3), (1, 128, "F", 2), (128, 1, "C", 1), (128, 128, "F", 3), (1, 128, "C", 1),
    (128, 128, "C", 2), (1, 1, "F", 4), (128, 1, "F", 9),
])  # fmt: skip
def test_scales_of_blocks(kernel, a_block, b_block, order, blocks):
    (m, n, _), k, rng = BLOCKED, 128 * blocks - 124, np.random.default_rng(3)
    skip(kernel, blocks=True)
    a, b = whole(rng, (m, k), E4M3), whole(rng, (k, n), E4M3, "col")
    x, y = powers(rng, blocks, -(-m // a_block)).T, powers(rng, blocks, -(-n // b_block))
    c = integers(rng, m, n)
    scales = {"scale_a": x, "scale_b": y, "epilogue": epilogues.scale(2.0)}
    found = gemm(a, b, c, 2.0, 3.0, order=order, **scales, **kernel)
    left, right = a.astype(float) * spread(x, m, k, 0), b.astype(float) * spread(y, n, k, 1)
    np.testing.assert_array_equal(found, 2 * (2 * (left @ right) + 3 * c))


@pytest.mark.parametrize("scaled", ["", "rows", "blocks"])
def test_a_batch_has_scales_of_its_own(kernel, scaled):
    (m, n, k), batch, rng = BLOCKED, 2, np.random.default_rng(4)
    skip(kernel, ("row", "row"), scaled == "blocks")
    a, b = (whole(rng, (batch, *shape), E4M3) for shape in ((m, k), (k, n)))
    x, y, scales = 1, 1, {}
    if scaled == "rows":
        x, y = powers(rng, batch, m, 1), powers(rng, 1, 1, n)
        scales = {"scale_a": x, "scale_b": y[0]}
    if scaled == "blocks":
        x, y = powers(rng, batch, m, -(-k // 128)), powers(rng, batch, -(-k // 128), n)
        scales = {"scale_a": x, "scale_b": y}
        x, y = np.repeat(x, 128, 2)[..., :k], np.repeat(y, 128, 1)[:, :k]
    wanted = (a.astype(float) * x) @ (b.astype(float) * y)
    found = gemm(a, b, out=empty((batch, m, n)), **scales, **kernel)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("triangular", [("lower", None), ("unit upper", "unit lower")], ids=str)
def test_triangular_operands(triangular):
    rng = np.random.default_rng(13)
    a, b = whole(rng, (40, 40), E4M3), whole(rng, (40, 40), E5M2, "col")
    left, right = a.astype(float), b.astype(float)
    left = np.tril(left) if triangular[0] == "lower" else np.triu(left, 1) + np.eye(40)
    right = np.tril(right, -1) + np.eye(40) if triangular[1] else right
    found = gemm(a, b, triangular=triangular, scale_a=2.0)
    np.testing.assert_array_equal(found, 2 * left @ right)


def test_a_reduction_sees_scaled_values(kernel):
    (m, n, k), rng = SIZES[0], np.random.default_rng(5)
    a, b, x = whole(rng, (m, k), E4M3), whole(rng, (k, n), E4M3, "col"), powers(rng, m)
    found = gemm(a, b, scale_a=x, out=None, epilogue=reductions.max(axis=1), **kernel)
    wanted = (a.astype(float) * x[:, None]) @ b.astype(float)
    np.testing.assert_array_equal(found, wanted.max(1))


@pytest.mark.gpu
@pytest.mark.parametrize("draw", ["standard_normal", "random"])
@pytest.mark.parametrize("k", [512, 8192, 65536])
def test_sums_of_random_numbers_are_within_their_bound(kernel, k, draw):
    """Of |a| @ |b|: 2**-9 if promoted every 128 of k, 2**-3 if not."""
    rng, (m, n) = np.random.default_rng(6), (64, 128)
    a, b = (getattr(rng, draw)(shape).astype(E4M3) for shape in ((m, k), (n, k)))
    exact, size = a.astype(float) @ b.T.astype(float), abs(a.astype(float)) @ abs(b.T.astype(float))
    worst = (abs(gemm(a, b.T, **kernel) - exact) / size).max()
    assert worst < (2.0**-9 if kernel["precision"] is None else 2.0**-3), worst


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


BLOCKS = {"scale_a": ones(3, 3), "scale_b": ones(3, 5)}
UNSUPPORTED = errors.UnsupportedProblemError
BAD = {
    "another length": ({"scale_a": ones(4)}, errors.ShapeError, r"\(3,\) or"),
    "a row as a column": ({"scale_b": ones(5, 1)}, errors.ShapeError, r"\(1, 5\)"),
    "float64": ({"scale_a": ones(3, dtype=float)}, errors.DtypeError, "float64; scales are float3"),
    "text": ({"scale_a": "two"}, errors.ScalarError, "real number"),
    "a list": ({"scale_a": [1.0]}, errors.ScalarError, "real number"),
    "one of blocks": (BLOCKS | {"scale_b": 2.0}, errors.ShapeError, "scale_b must"),
    "rows and blocks": (BLOCKS | {"scale_a": ones(3)}, errors.ShapeError, "scale_a must"),
    "c": ({"scale_a": ones(3), "beta": 1.0}, UNSUPPORTED, "in pairs"),
    "a reduction": (
        BLOCKS | {"epilogue": reductions.max(fused=True)}, UNSUPPORTED, "leave out fused"
    ),
    "a mask": (BLOCKS | {"mask": ones(1, 1, dtype=bool)}, UNSUPPORTED, "scales of blocks"),
    "fast blocks": (BLOCKS | {"implementation": "wgmma"}, UNSUPPORTED, "not scaled by blocks"),
    "an inner function": (
        {"scale_a": 2.0, "inner": dxgemm.inners.min_plus}, UNSUPPORTED, "factors"
    ),
    "a plain inner function": ({"scale_a": 2.0, "inner": max}, UNSUPPORTED, "factors of products"),
    "an array of beta": ({"scale_a": ones(3), "beta": np.ones(2)}, errors.ScalarError, "beta is"),
    "rows of a batch": ({"scale_a": ones(2, 3, 1)}, errors.ShapeError, r"scale_a is \(2, 3, 1\)"),
    "another batch": (
        BLOCKS | {"scale_a": ones(2, 3, 3)}, errors.ShapeError, r"scale_a is \(2, 3, 3\)"
    ),
    "a precision of others": ({"precision": "tf32"}, errors.PrecisionError, "tf32"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_wrong_scales_are_refused_before_anything_is_written(case):
    options, error, text = BAD[case]
    rng, c = np.random.default_rng(7), send(np.full((3, 5), 7, np.float32))
    with pytest.raises(error, match=text):
        gemm(whole(rng, (3, 260), E4M3), whole(rng, (260, 5), E4M3), c, out=None, **options)
    np.testing.assert_array_equal(fetch(c), 7)


@pytest.mark.parametrize("kind", ["number", "one", "rows"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("triangle", ["both", "lower"])
def test_symmetric_results_have_scales_of_one_operand(kind, transpose, triangle):
    n, k, rng = 5 if simulator_enabled() else 200, 260, np.random.default_rng(14)
    left = whole(rng, (n, k), E4M3)
    scale = {"number": 0.5, "one": np.float32([4]), "rows": powers(rng, n, 1) / 3}[kind]
    wide = left.astype(float) * scale
    c, beta = integers(rng, n, n), 3.0 if kind == "number" else 0.0
    c = np.tril(c) + np.tril(c, -1).T
    a = send(left.T.copy() if transpose else left)
    options = {"transpose": transpose, "triangle": triangle, "out": empty((n, n))}
    options |= {"scale_a": scale if kind == "number" else send(scale)}
    found = fetch(dxgemm.gemm_symmetric(a, send(c), 2.0, beta, **options))
    # Scales that are no powers of 2 round the sum of each 128 of k, whose terms may cancel.
    error, bound = abs(found - 2 * (wide @ wide.T) - beta * c), 2.0**-22 if kind == "rows" else 0.0
    reach = bound * (abs(wide) @ abs(wide).T)
    assert (error <= reach)[np.tril_indices(n)].all(), np.nanmax(error)
    if triangle == "both":
        np.testing.assert_array_equal(found, found.T)
    else:
        assert np.isnan(found[np.triu_indices(n, 1)]).all()
    assert "gemm" in str(dxgemm.explain_symmetric(a, **options))
    for error, text, more in (
        (UNSUPPORTED, "product of one matrix", {"b": a, "scale_a": 2.0}),
        (UNSUPPORTED, "must be a number", {"c": send(c), "beta": 1.0, "scale_a": send(ones(n, 1))}),
        (errors.ShapeError, "gemm_symmetric: scale_a is", {"scale_a": send(ones(n + 1, 1))}),
    ):
        with pytest.raises(error, match=text):
            dxgemm.gemm_symmetric(a, **more)


def test_scales_are_for_float8_alone():
    wide, eights = ones(4, 4), ones(4, 4, dtype=E4M3)
    for error, text, a, b, options in (
        (errors.DtypeError, "is for arrays of float8_e4m3fn", wide, wide, {"scale_a": 2.0}),
        (errors.ShapeError, "1 dimensions", eights[0], eights, {"scale_a": ones(4)}),
        (errors.DtypeError, "a is list", [[1.0]], eights, {"scale_a": 2.0}),
        (errors.DtypeError, "or both float16", eights, eights, {"out": ones(4, 4, dtype=float)}),
    ):
        with pytest.raises(error, match=text):
            dxgemm.gemm(a, b, **options)
    for b in (wide, dxgemm.prepare(send(wide))):  # whose own scale is not passed
        for options in ({}, {"scale_a": 2.0}, {"scale_a": send(ones(1, 1))}):
            with pytest.raises(errors.DtypeError, match="dtypes differ"):
                dxgemm.gemm(send(eights), b, **options)


def test_a_plan_and_an_explanation_take_scales():
    rng = np.random.default_rng(8)
    a, b = (send(whole(rng, shape, E4M3)) for shape in ((3, 260), (260, 5)))
    scale = send(np.float32([2.0]))
    plan = dxgemm.plan(a, b, scale_a=scale, scale_b=4.0, out=empty((3, 5)))
    first = fetch(plan()).copy()
    scale[...] = 1.0
    np.testing.assert_array_equal(fetch(plan()), first / 2)
    assert "float8_e4m3fn" in str(dxgemm.explain(a, b, scale_a=scale))


QUANTISE = [
    i for i in IMPLEMENTATIONS
    if i.is_own and i.kernel.quantises and {*FLOAT8, "bfloat16"} & {*i.kernel.dtypes}
]  # fmt: skip
LARGEST = {E4M3: 448, E5M2: 57344}


def rounded(values, dtype):
    """Values as float8, saturated, in float64."""
    most = LARGEST[dtype]
    return np.clip(np.asarray(values, np.float32), -most, most).astype(dtype).astype(float)


@pytest.mark.parametrize("implementation", QUANTISE, ids=[entry.name for entry in QUANTISE])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("order", ["C", "F", "odd"])
def test_results_of_float8_saturate(implementation, dtype, order):
    if reason := implementation.runs_on(device_facts(0).arch):
        pytest.skip(reason)
    is_skinny = "skinny" in implementation.name
    (m, n, k), rng = (4 if is_skinny else 32, 80, 64), np.random.default_rng(9)
    if simulator_enabled():
        m, n, k = 3, 16, 5
    operands = E4M3 if E4M3.name in implementation.kernel.dtypes else np.dtype(ml_dtypes.bfloat16)
    a, b = whole(rng, (m, k), operands), whole(rng, (k, n), operands, "col")
    factors = 2.0 ** rng.integers(-20, 14, n).astype(np.float32)
    factors[:2] = np.nan, np.inf
    out = send(np.zeros({"C": (m, n), "F": (n, m), "odd": (m, n + 1)}[order], dtype))
    out = {"C": out, "F": out.T, "odd": out[:, 1:]}[order]
    found = gemm(
        a, b, out=out, epilogue=epilogues.scale_columns(send(factors)), scale_out=np.float32([3]),
        implementation=implementation.name,
        precision="fast" if implementation.name == "wgmma" and operands == E4M3 else None,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = rounded(np.float32(a.astype(float) @ b.astype(float)) * factors * 3, dtype)
    np.testing.assert_array_equal(found, wanted)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(wanted)[number])


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_rounding_is_to_nearest_even_and_keeps_subnormals(dtype):
    """Every number of the format, those between, and their neighbours in float32."""
    codes = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = np.unique(codes[np.isfinite(codes)])
    middles = (numbers[1:] + numbers[:-1]) / 2
    close = [np.nextafter(middles, np.float32(end)) for end in (np.inf, -np.inf)]
    others = np.float32([-0.0, 1e30, -1e30, np.inf, -np.inf, np.nan, 1e-30])
    values = np.concatenate([numbers, middles, *close, others])
    row, out = np.zeros((1, values.size), E4M3), send(np.zeros((1, values.size), dtype))
    found = gemm(ones(1, 1, dtype=E4M3), row, out=out, epilogue=epilogues.bias(send(values)))
    np.testing.assert_array_equal(found[0], rounded(values + 0, dtype))


def test_float8_beside_the_result_and_read_again():
    rng = np.random.default_rng(10)
    a, b = whole(rng, (6, 16), E4M3), whole(rng, (16, 32), E4M3, "col")
    kept, matrix = send(np.zeros((6, 32), E5M2)), whole(rng, (6, 32), E4M3)
    chain = epilogues.residual(send(matrix)) | epilogues.keep(kept=kept)
    wanted = a.astype(float) @ b.astype(float) + matrix.astype(float)
    np.testing.assert_array_equal(gemm(a, b, epilogue=chain), wanted)
    np.testing.assert_array_equal(fetch(kept).astype(float), rounded(wanted, E5M2))


def test_wrong_results_of_float8_are_refused():
    a, b = send(ones(4, 16, dtype=E4M3)), send(ones(16, 8, dtype=E4M3))
    out = send(np.zeros((4, 8), E4M3))
    for error, text, options in (
        (UNSUPPORTED, "not added", {"c": out, "beta": 1.0}),
        (errors.DtypeError, "scale_out is for arrays", {"out": empty((4, 8)), "scale_out": 2.0}),
        (errors.DtypeError, "scale_out is for arrays", {"scale_out": 2.0}),
        (errors.ShapeError, "pass one number", {"out": out, "scale_out": send(ones(8))}),
        (UNSUPPORTED, "does not go with scale_out",
         {"out": out, "scale_out": 2.0, "epilogue": reductions.max()}),
        (UNSUPPORTED, "does not reduce", {"out": out, "epilogue": reductions.max()}),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            dxgemm.gemm(a, b, **options)
    np.testing.assert_array_equal(fetch(out).astype(float), 0)
