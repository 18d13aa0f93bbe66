"""Groups of float8, by offsets and by lists: scales of each kind, layouts, results and errors."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from known_devices import A100, H200
from test_float8 import E4M3, E5M2, empty, fetch, powers, rounded, send, spread, whole
from test_wrong_arguments import check_refusals

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.lower.group_offsets import OffsetGroup, lower_group
from dxgemm.problem.define import contiguous_problem
from dxgemm.runtime.device import device_facts

K, N = (130, 5) if simulator_enabled() else (260, 200)
OFFSETS = [0, 3, 3, 8] if simulator_enabled() else [0, 130, 130, 137, 700, 700]
TOTAL = OFFSETS[-1] + 2  # rows, two of them behind the last group
GROUPS = [*zip([0, *OFFSETS], OFFSETS)]
LAYOUTS = [("row", "col"), ("row", "row"), ("col", "row")]


def skip_without_kernel():
    if device_facts(0).arch not in ("simulator", "sm_90a") and not simulator_enabled():
        pytest.skip("groups of float8 by offsets need Hopper")


def make(dtypes=(E4M3, E4M3), orders=("row", "col"), k=K):
    """a and b of groups of rows; the products of groups of columns are the transposed ones."""
    rng = np.random.default_rng(3)
    a = whole(rng, (TOTAL, k), dtypes[0], orders[0])
    b = np.stack([whole(rng, (k, N), dtypes[1]) for _ in OFFSETS])
    if orders[1] == "col":
        b = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
    return a, b


def sent(array):
    """`send` of a batch too, whose matrices may be column-major; of no array, the object itself."""
    if not isinstance(array, np.ndarray):
        return array
    if array.ndim == 3 and not array.flags.c_contiguous:
        return send(np.ascontiguousarray(array.swapaxes(1, 2))).swapaxes(1, 2)
    return send(array)


def grouped(a, b, *more, offsets=OFFSETS, **options):
    """`dxgemm.gemm_grouped` of arrays that are sent; the rows of its groups."""
    options = {name: sent(value) for name, value in options.items()}
    found = dxgemm.gemm_grouped(
        sent(a), sent(b), *map(sent, more), offsets=send(np.int32(offsets)), **options
    )
    return fetch(found)[: offsets[-1]].astype(float)


def scales_of(kind, k=K):
    """Scales of the rows and of the matrices, and the same as factors of elements."""
    rng, count, blocks = np.random.default_rng(4), len(OFFSETS), -(-k // 128)
    if kind == "none":
        return None, None, 1, np.ones(count)
    if kind == "numbers":
        return 0.5, np.float32([4]), 0.5, np.full(count, 4.0)
    if kind == "rows":
        x, y = powers(rng, TOTAL, 1), powers(rng, count, 1, N)
        return x, y, x, y
    x = powers(rng, blocks, TOTAL).T
    y = powers(rng, count, blocks, N if kind == "blocks of columns" else -(-N // 128))
    return x, y, spread(x, TOTAL, k, 0), np.stack([spread(one, N, k, 1) for one in y])


def product_of(a, b, of_a, of_b):
    """Result of groups of rows in float64, without rows of no group."""
    left = a.astype(float) * of_a
    parts = zip(GROUPS, b, of_b)
    return np.concatenate([left[i:j] @ (x.astype(float) * y) for (i, j), x, y in parts])


def turned(array):
    """The transposed scales, for groups of columns."""
    return array.swapaxes(-1, -2) if getattr(array, "ndim", 0) > 1 else array


@pytest.mark.parametrize("kind", ["none", "numbers", "rows", "blocks", "blocks of columns"])
@pytest.mark.parametrize("shared", ["m", "n"])
@pytest.mark.parametrize("orders", LAYOUTS, ids=str)
def test_scales_and_layouts(kind, shared, orders):
    skip_without_kernel()
    a, b = make((E4M3, E5M2), orders)
    x, y, of_a, of_b = scales_of(kind)
    wanted = 2 * product_of(a, b, of_a, of_b)
    out = empty((TOTAL, N))
    out[...] = 7
    a, b, x, y, target = *map(sent, (a, b, x, y)), out
    if shared == "n":
        a, b, x, y, target = b.swapaxes(1, 2), a.T, turned(y), turned(x), out.T
    offsets = send(np.int32(OFFSETS))
    dxgemm.gemm_grouped(a, b, alpha=2.0, out=target, offsets=offsets, scale_a=x, scale_b=y)
    np.testing.assert_array_equal(fetch(out)[: OFFSETS[-1]], wanted)
    np.testing.assert_array_equal(fetch(out)[OFFSETS[-1] :], 7)


@pytest.mark.parametrize("kind", ["rows", "blocks"])
def test_epilogues_c_and_rows_in_any_order(kind):
    skip_without_kernel()
    rng, (a, b) = np.random.default_rng(5), make()
    rows = rng.integers(0, TOTAL, TOTAL).astype(np.int32)
    x, y, of_a, of_b = scales_of(kind)
    bias = rng.integers(-9, 10, (len(OFFSETS), N)).astype(np.float32)
    c = rng.integers(-9, 10, (TOTAL, N)).astype(np.float32)
    found = grouped(
        a, b, c.copy(), 1.0, 3.0, out=empty(c.shape), rows=rows, scale_a=x, scale_b=y,
        epilogue=epilogues.bias(send(bias)) | epilogues.relu,
    )  # fmt: skip
    wanted = product_of(a[rows], b, of_a, of_b) + 3 * c[: OFFSETS[-1]]
    wanted += np.concatenate([np.repeat(v[None], j - i, 0) for (i, j), v in zip(GROUPS, bias)])
    np.testing.assert_array_equal(found, np.maximum(wanted, 0))


@pytest.mark.parametrize("kind", ["rows", "blocks"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_results_of_float8(kind, dtype):
    skip_without_kernel()
    a, b = make()
    x, y, of_a, of_b = scales_of(kind)
    plan = dxgemm.plan_grouped(
        sent(a), sent(b), out=send(np.zeros((TOTAL, N), dtype)), scale_a=sent(x), scale_b=sent(y),
        offsets=send(np.int32(OFFSETS)), scale_out=0.125,
    )  # fmt: skip
    wanted = rounded(product_of(a, b, of_a, of_b) / 8, dtype)
    np.testing.assert_array_equal(fetch(plan())[: OFFSETS[-1]].astype(float), wanted)


def test_a_new_result_is_bfloat16():
    skip_without_kernel()
    a, b = make(k=16)
    result = dxgemm.gemm_grouped(sent(a), sent(b), offsets=send(np.int32(OFFSETS)))
    assert str(result.dtype).removeprefix("torch.") == "bfloat16"
    wanted = product_of(a, b, 1, np.ones(len(OFFSETS))).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(fetch(result)[: OFFSETS[-1]].astype(float), wanted.astype(float))


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_every_encoding(dtype):
    """Subnormals, the largest numbers, infinities and each NaN, in either group."""
    skip_without_kernel()
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    a = np.zeros((256, 16), dtype)
    a[:, 3] = codes
    found = grouped(
        a, np.ones((2, 16, 1), dtype), out=empty((256, 1)), offsets=[100, 256],
        scale_b=np.float32([[[1]], [[2]]]),
    )  # fmt: skip
    wanted = codes.astype(np.float32) * np.repeat(np.float32([1, 2]), [100, 156])
    np.testing.assert_array_equal(found[:, 0], wanted)


@pytest.mark.parametrize("alpha, k", [(0.0, 16), (2.0, 0)])
def test_nothing_is_multiplied(alpha, k):
    skip_without_kernel()
    a, b = make(k=k)
    a = a if k == 0 else np.full_like(a, np.nan)
    np.testing.assert_array_equal(grouped(a, b, np.ones((TOTAL, N), "f4"), alpha, 3.0), 3)


@pytest.mark.parametrize("kind", ["numbers", "lists", "blocks"])
def test_lists(kind):
    rng = np.random.default_rng(6)
    sizes = [(3, 5, 260), (2, 4, 20)] if simulator_enabled() else [(300, 50, 260), (64, 96, 20)]
    a = [whole(rng, (m, k), E4M3) for m, _, k in sizes]
    b = [whole(rng, (k, n), E5M2, "col") for _, n, k in sizes]
    x, y, factors = 0.5, [4.0, 2.0], [(0.5, 4.0), (0.5, 2.0)]
    if kind != "numbers":
        blocks = [1 if kind == "lists" else -(-k // 128) for _, _, k in sizes]
        x = [powers(rng, m, count) for (m, _, _), count in zip(sizes, blocks)]
        y = [powers(rng, count, n) for (_, n, _), count in zip(sizes, blocks)]
        factors = [*zip(x, y)]
        if kind == "blocks":
            factors = [(spread(u, m, k, 0), spread(v, n, k, 1))
                       for u, v, (m, n, k) in zip(x, y, sizes)]  # fmt: skip
        x, y = [send(v) for v in x], tuple(send(v) for v in y)
    found = dxgemm.gemm_grouped(
        [send(v) for v in a], [send(v) for v in b], None, [1.0, 3.0], scale_a=x, scale_b=y,
        out=[empty((m, n)) for m, n, _ in sizes],
    )  # fmt: skip
    for one, alpha, left, right, (u, v) in zip(found, (1, 3), a, b, factors):
        wanted = alpha * ((left.astype(float) * u) @ (right.astype(float) * v))
        np.testing.assert_array_equal(fetch(one), wanted)


@pytest.mark.parametrize("k", [320, 300])
@pytest.mark.parametrize("orders", ["row_col", "row_row", "col_row"])
def test_operands_are_copied_where_hopper_cannot_read_them(orders, k):
    problem = contiguous_problem(E4M3.name, 1000, 512, k, layout=orders)
    problem = replace(problem, b=problem.b._replace(batch=512 * k))
    program = lower_group(OffsetGroup(problem, "m", 8, "int32"), H200)
    names = [step.spec.implementation for step in program.steps]
    is_odd = k % 16 != 0
    copies = [orders.startswith("col") or is_odd, orders.endswith("row") or is_odd]
    assert names == ["align_rows"] * sum(copies) + ["group_offsets", "grouped_wgmma_float8"]


def test_groups_that_no_kernel_computes_are_refused():
    problem = contiguous_problem(E4M3.name, 1000, 512, 320, layout="row_col")
    for shared, device, reason in (("k", H200, "not k of float8"), ("m", A100, "9.0")):
        with pytest.raises(errors.UnsupportedProblemError, match=f"{reason}; pass lists of arrays"):
            lower_group(OffsetGroup(problem, shared, 8, "int32"), device)


def test_wrong_scales_of_groups_are_refused_before_anything_is_written():
    (a, b), count = make(k=128), len(OFFSETS)
    x, y = np.ones((TOTAL, 1), np.float32), np.ones((count, 1, N), np.float32)
    out = send(np.full((TOTAL, N), 7, np.float32))
    for error, text, scales in (
        (errors.ShapeError, r"scale_a is \(3, 1\)", {"scale_a": x[:3]}),
        (errors.ShapeError, rf"scale_a is \({count}, {TOTAL}, 1\)",
         {"scale_a": np.ones((count, TOTAL, 1), np.float32)}),
        (errors.ShapeError, r"scale_b is \(2, 1, ", {"scale_b": y[:2]}),
        (errors.ShapeError, rf"scale_b is \({count}, {N}\)", {"scale_b": y[:, 0]}),
        (errors.DtypeError, "float64; scales are float32", {"scale_a": x.astype(float)}),
        (errors.ScalarError, "scale_b", {"scale_b": "two"}),
        (errors.DtypeError, "scale_out is for arrays", {"scale_out": 2.0}),
    ):  # fmt: skip
        options = {"out": out, "offsets": send(np.int32(OFFSETS))}
        options |= {name: sent(value) for name, value in scales.items()}
        with pytest.raises(error, match=text) as raised:
            dxgemm.gemm_grouped(sent(a), sent(b), **options)
        assert str(raised.value).startswith("gemm_grouped: ")
    np.testing.assert_array_equal(fetch(out), 7)
    lists, floats = ([send(a)], [send(b[0])]), [send(np.ones((4, 4), np.float32))]
    for error, text, operands, scales in (
        (errors.ShapeError, r"<?a\[0\]", lists, [send(x[:3])]),
        (errors.ShapeError, "2 scales for 1 problems", lists, [1.0, 2.0]),
        (errors.DtypeError, "scale_a is for arrays", (floats, floats), 2.0),
    ):
        with pytest.raises(error, match=text):
            dxgemm.gemm_grouped(*operands, scale_a=scales)


def test_the_inner_dimension_is_shared_out_in_host_memory_alone():
    if not simulator_enabled():
        pytest.skip("no kernel computes it")
    rng = np.random.default_rng(8)
    a, b, c = whole(rng, (4, 40), E4M3), whole(rng, (40, N), E5M2), np.ones((2, 4, N), np.float32)
    x, y, offsets = powers(rng, 4, 1), powers(rng, N), np.int32([10, 40])
    found = dxgemm.gemm_grouped(a, b, out=c, offsets=offsets, scale_a=x, scale_b=y)
    for group, part in enumerate((slice(0, 10), slice(10, 40))):
        wanted = (a[:, part].astype(float) * x) @ (b[part].astype(float) * y)
        np.testing.assert_array_equal(found[group], wanted)
    with pytest.raises(errors.UnsupportedProblemError, match="must be numbers"):
        dxgemm.gemm_grouped(a, b, c, beta=1.0, offsets=offsets, scale_a=x, scale_b=y)
    before = c.copy()
    dxgemm.gemm_grouped(a, b, c, beta=1.0, offsets=offsets, scale_a=2.0)
    wanted = before[0] + 2 * (a[:, :10].astype(float) @ b[:10].astype(float))
    np.testing.assert_array_equal(c[0], wanted)


def test_blocks_of_the_inner_dimension_belong_to_no_group():
    inner_a, inner_b = np.ones((4, 256), E4M3), np.ones((256, N), E4M3)
    scales = {"scale_a": np.ones((4, 2), np.float32), "scale_b": np.ones((2, N), np.float32)}
    with pytest.raises(errors.ShapeError, match=r"scale_a is \(4, 2\)"):
        grouped(inner_a, inner_b, offsets=[100, 256], **scales)


@pytest.mark.parametrize("parameter", ["scale_a", "scale_b", "scale_out"])
@pytest.mark.parametrize("call", ["gemm", "gemm_symmetric", "gemm_grouped", "lists"])
def test_nothing_else_is_taken_for_a_scale(call, parameter):
    if call == "gemm_symmetric" and parameter != "scale_a":
        pytest.skip("it has one scale")
    many = call in ("gemm_grouped", "lists")
    operands = {"a": send(np.ones((4, 16), E4M3)), "b": send(np.ones((16, 8), E4M3))}
    out = send(np.zeros((4, 8), E4M3 if parameter == "scale_out" else np.float32))
    if call == "gemm_symmetric":
        operands, out = {"a": operands["a"]}, send(np.zeros((4, 4), np.float32))
    if call == "gemm_grouped":
        operands |= {"b": send(np.ones((1, 16, 8), E4M3)), "offsets": send(np.int32([4]))}
    if call == "lists":
        operands, out = {name: [array] for name, array in operands.items()}, [out]
    function = dxgemm.gemm_grouped if many else getattr(dxgemm, call)
    name = "gemm_grouped" if many else call
    assert check_refusals(name, function, lambda: {**operands, "out": out}, parameter) > 20
