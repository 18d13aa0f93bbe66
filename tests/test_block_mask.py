"""Block masks: live blocks of the result are computed, dead ones keep every bit."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from contract import inability, misfit
from known_devices import A100, H100, H200, T4, V100
from oracle.kinds import KINDS, numpy_dtype, round_to_dtype

import dxgemm
from dxgemm import errors, reductions
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import rank
from dxgemm.epilogues import bias, relu
from dxgemm.epilogues.block_mask import block_mask
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.problem import Problem

BLOCKS = (128, 64)
# Ragged sizes of several blocks; on the simulator, of blocks of 64 along one side.
SIZES = ((130, 3, 5), (3, 130, 2)) if simulator_enabled() else ((300, 200, 70), (129, 385, 9))
MASKED = [
    pytest.param(implementation, config, kind, id=f"{implementation.name}-{config}-{kind}")
    for implementation in dxgemm.implementations()
    if implementation.is_own and implementation.kernel.takes_masks
    for kind in KINDS
    if inability(implementation, kind) is None
    for config in implementation.configs(KINDS[kind].dtype)
]


def mask_of(m, n, block, seed=0):
    """A mask of live and dead blocks."""
    shape = -(-m // block), -(-n // block)
    return (
        np.random.default_rng(seed)
        .permutation(np.arange(shape[0] * shape[1]) % 2 == 0)
        .reshape(shape)
    )


def spread(mask, block, m, n):
    """True where elements are live."""
    return np.kron(mask, np.ones((block, block)))[:m, :n] != 0


def assert_masked(found, before, exact, live):
    """Assert that live elements are exact, and that the others have the bits that they had."""
    expected = np.where(live, round_to_dtype(exact, before.dtype), before)
    assert (found == expected).all()
    dead = np.broadcast_to(~live, found.shape)
    assert found[dead].tobytes() == before[dead].tobytes()


def masked_problem(kind, m, n, k, block, layout="row_row"):
    wanted = KINDS[kind]
    problem = contiguous_problem(
        wanted.dtype, m, n, k, layout=layout, out_dtype=wanted.out_dtype,
        precision=wanted.precision,
    )  # fmt: skip
    operand = FusedOperand("mask", "uint8", block=block)
    return replace(problem, epilogue=Fusion((block_mask,), (operand,)))


@pytest.mark.parametrize("sizes", [(129, 385, 9), (385, 129, 9), (300, 200, 70)])
def test_each_tile_has_a_block_whichever_operand_is_copied(sizes):
    """TF32 wgmma has m and n exchanged if it reads b MN-major, and a copy of b ends that."""
    wgmma = find_implementation("wgmma")
    problem = masked_problem("tf32", *sizes, 128, layout="col_row")
    computed = wgmma.computed(problem)
    assert computed is not problem
    for config in wgmma.configs("float32", H100.arch):
        expected = wgmma.kernel.block_count(config, computed)
        assert wgmma.block_count(config, problem, 1) == expected


def is_beyond(refusal):
    return "reach beyond a block" in str(refusal)


@pytest.mark.parametrize("implementation, config, kind", MASKED)
def test_every_config(make, home, implementation, config, kind):
    reason = misfit(implementation, config, kind)
    if reason is not None:
        pytest.skip(reason)
    wanted, count = KINDS[kind], 0
    options = {"precision": wanted.precision, "implementation": (implementation.name, config)}
    for (m, n, k), block, order in product(SIZES, BLOCKS, ("row", "col")):
        lies = ("row_aligned", "col_aligned") if order == "row" else ("col_aligned", "row_aligned")
        (a, padded_a), (b, padded_b) = (
            make((m, k), wanted.dtype, lies[0]),
            make((k, n), wanted.dtype, lies[1]),
        )
        c, padded_c = make((m, n), wanted.out_dtype, order)
        mask = mask_of(m, n, block)
        try:
            dxgemm.gemm(
                padded_a.array, padded_b.array, padded_c.array, 2, -1, mask=home.send(mask),
                **options,
            )  # fmt: skip
        except errors.UnsupportedProblemError as refusal:
            if not is_beyond(refusal) and order == "row":
                raise
            continue
        exact = 2 * (a.astype(float) @ b.astype(float)) - c.astype(float)
        assert_masked(padded_c.fetch(), c, exact, spread(mask, block, m, n))
        padded_a.assert_unchanged()
        padded_b.assert_unchanged()
        count += 1
    if count == 0:
        pytest.skip("its tiles reach beyond a block")


@pytest.mark.parametrize("implementation, config, kind", MASKED)
def test_a_mask_of_live_blocks_changes_no_bit(home, implementation, config, kind):
    wanted, (m, n, k) = KINDS[kind], SIZES[0]
    if wanted.is_integer or misfit(implementation, config, kind) is not None:
        pytest.skip("exact in any case, or too large")
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal(shape).astype(numpy_dtype(wanted.dtype)) for shape in ((m, k), (n, k))
    )
    out = [home.send(np.zeros((m, n), numpy_dtype(wanted.out_dtype))) for _ in range(2)]
    a, b = home.send(a), home.send(b).T
    options = {"precision": wanted.precision, "implementation": (implementation.name, config)}
    try:
        dxgemm.gemm(a, b, out=out[0], mask=home.send(np.ones_like(mask_of(m, n, 128))), **options)
    except errors.UnsupportedProblemError as refusal:
        pytest.skip(str(refusal))
    dxgemm.gemm(a, b, out=out[1], **options)
    masked, plain = map(home.fetch, out)
    assert masked.tobytes() == plain.tobytes() and masked.any()


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16", "tf32", "int8"])
def test_the_choice_computes_it(make, home, kind):
    wanted = KINDS[kind]
    for (m, n, k), order, seed in product(SIZES, ("row", "col"), (0, 1)):
        a, padded_a = make((m, k), wanted.dtype, order)
        b, padded_b = make((k, n), wanted.dtype)
        c, padded_c = make((m, n), wanted.out_dtype)
        for live in (mask_of(m, n, 64, seed), np.zeros_like(mask_of(m, n, 64))):
            mask = home.send(live.astype(np.uint8) * (7 if seed else 1))
            arrays = padded_a.array, padded_b.array, padded_c.array, 1, 3
            result = dxgemm.gemm(*arrays, mask=mask, precision=wanted.precision)
            assert result is padded_c.array
            exact = a.astype(float) @ b.astype(float) + 3 * c.astype(float)
            found = padded_c.fetch()
            assert_masked(found, c, exact, spread(live, 64, m, n))
            c = found.copy()


def test_epilogues_k_of_zero_and_out(make, home):
    m, n, k = SIZES[0]
    mask, live = home.send(mask_of(m, n, 64)), spread(mask_of(m, n, 64), 64, m, n)
    (a, padded_a), (b, padded_b) = make((m, k), "float32"), make((k, n), "float32")
    vector = np.arange(n, dtype=np.float32)
    for chain, function in (
        (relu, lambda values: np.maximum(values, 0)),
        (bias(home.send(vector)) | relu, lambda values: np.maximum(values + vector, 0)),
    ):
        before, padded_out = make((m, n), "float32")
        arrays = padded_a.array, padded_b.array
        result = dxgemm.gemm(*arrays, out=padded_out.array, epilogue=chain, mask=mask)
        assert result is padded_out.array
        assert_masked(padded_out.fetch(), before, function(a @ b), live)
    c, padded_c = make((m, n), "float32")
    dxgemm.gemm(padded_a.array, padded_b.array, padded_c.array, 0, 2, mask=mask)
    assert_masked(padded_c.fetch(), c, 2 * c, live)


def test_matrices_of_a_batch_share_it(make, home):
    (a, padded_a), (b, padded_b) = make((2, 3, 4), "float32"), make((4, 130), "float32")
    c, padded_c = make((2, 3, 130), "float32")
    mask = np.array([[True, False, True]])
    dxgemm.gemm(padded_a.array, padded_b.array, padded_c.array, mask=home.send(mask))
    assert_masked(padded_c.fetch(), c, a @ b, spread(mask, 64, 3, 130))
    (a, padded_a), (b, padded_b) = make((2, 66, 2), "float32"), make((2, 2, 3), "float32")
    c, padded_c = make((2, 66, 3), "float32")
    dxgemm.gemm(
        padded_a.array, padded_b.array, padded_c.array, mask=home.send(mask[:, :2].T.copy())
    )
    assert_masked(padded_c.fetch(), c, a @ b, spread(mask[:, :2].T, 64, 66, 3))


def test_a_product_with_its_own_transpose(make, home):
    a, padded = make((66, 3), "float32")
    c, padded_c = make((66, 66), "float32")
    mask = np.array([[1, 0], [1, 1]], bool)
    dxgemm.gemm(padded.array, padded.array.T, out=padded_c.array, mask=home.send(mask))
    assert_masked(padded_c.fetch(), c, a @ a.T, spread(mask, 64, 66, 66))


def test_host_arrays_a_plan_and_an_explanation(make):
    (a, _), (b, _), (c, _) = (make(shape, "float32") for shape in ((66, 3), (3, 66), (66, 66)))
    mask, before = np.array([[True, False], [False, True]]), c.copy()
    plan = dxgemm.plan(a, b, c, mask=mask)
    assert "block_mask" in str(plan.explain()) and (c == before).all()
    plan()
    assert_masked(c, before, a @ b, spread(mask, 64, 66, 66))
    mask[...], c[...] = ~mask, before
    plan()
    assert_masked(c, before, a @ b, spread(mask, 64, 66, 66))
    explained = dxgemm.explain(a, b, mask=mask)
    assert explained.choice.slices == 1 and "block_mask" in str(explained)


def test_bad_input_is_refused_before_anything_is_written(make, home):
    m, n, k = 130, 70, 4
    _, padded_a = make((m, k), "float32")
    _, padded_b = make((k, n), "float32")
    _, padded_c = make((m, n), "float32")
    good = mask_of(m, n, 64)
    sent = home.send(good)
    wide = home.send(np.ones((3, 4), bool))
    for error, text, options in (
        (errors.ShapeError, r"\(2, 1\) .* or \(3, 2\)", {"mask": home.send(good[:2])}),
        (errors.ShapeError, "mask is", {"mask": home.send(good[None])}),
        (errors.DtypeError, "mask has dtype float32", {"mask": home.send(good.astype("f4"))}),
        (errors.LayoutError, "C-contiguous", {"mask": home.send(good.T.copy()).T}),
        (errors.LayoutError, "C-contiguous", {"mask": wide[:, ::2]}),
        (errors.ArrayTypeError, "mask", {"mask": good.tolist()}),
        (errors.UnsupportedProblemError, "batch_invariant", {"batch_invariant": True}),
        (errors.UnsupportedProblemError, "precision='emulated'", {"precision": "emulated"}),
        (errors.UnsupportedProblemError, "a reduction", {"epilogue": reductions.max(axis=1)}),
        (errors.UnsupportedProblemError, "pairs", {"epilogue": dxgemm.epilogues.swiglu, "c": None}),
        (errors.UnsupportedProblemError, "dead blocks", {"implementation": "shared_tile"}),
    ):
        options = {"mask": sent, "c": padded_c.array, **options}
        for call in (dxgemm.gemm, dxgemm.plan, dxgemm.explain):
            with pytest.raises(error, match=text):
                call(padded_a.array, padded_b.array, **options)
        padded_c.assert_unchanged()
    c = home.send(np.ones((64, 64), np.float32))
    with pytest.raises(errors.OverlapError, match="c shares memory with mask"):
        dxgemm.gemm(c[:, :8].copy(), c[:8].copy(), c, mask=c.view(np.uint8)[:1, :1])
    assert (home.fetch(c) == 1).all()


@pytest.mark.gpu
def test_a_mask_on_another_device_is_refused(make):
    (_, a), (_, b), (_, c) = (make(shape, "float32") for shape in ((66, 3), (3, 66), (66, 66)))
    with pytest.raises(errors.DeviceMismatchError, match="mask is in host memory"):
        dxgemm.gemm(a.array, b.array, c.array, mask=np.ones((1, 1), bool))
    c.assert_unchanged()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "tf32"])
def test_a_graph_sees_a_changed_mask(make, cupy, kind):
    wanted, (m, n, k) = KINDS[kind], (1000, 700, 128)
    (a, padded_a), (b, padded_b) = make((m, k), wanted.dtype), make((n, k), wanted.dtype)
    c, padded_c = make((m, n), wanted.out_dtype)
    masks = [mask_of(m, n, 128, seed) for seed in range(3)]
    mask = cupy.asarray(masks[0])
    plan = dxgemm.plan(
        padded_a.array, padded_b.array.T, out=padded_c.array, mask=mask, precision=wanted.precision
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        plan()
        graph = stream.end_capture()
    sent = cupy.asarray(c)
    for given in masks:
        mask.set(given)
        padded_c.array[...] = sent
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        exact = a.astype(float) @ b.astype(float).T
        assert_masked(padded_c.fetch(), c, exact, spread(given, 128, m, n))


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16", "tf32", "int8"])
def test_every_gpu_has_a_kernel_whose_tiles_fit(configs_of_a_gpu, kind):
    sizes = ((1, 1, 1), (64, 4096, 512), (4096, 64, 100), (4000, 4000, 4000))
    for device, size, block in product((H200, H100, A100, T4, V100), sizes, BLOCKS):
        for layout in ("row_row", "row_col", "col_row", "col_col"):
            problem = masked_problem(kind, *size, block, layout)
            for candidate in rank(problem, device).candidates:
                assert candidate.implementation.kernel.takes_masks and candidate.slices == 1
                tile = candidate.implementation.kernel.result_tile(candidate.config, problem)
                assert not any(block % extent for extent in tile)


def test_a_persistent_kernel_has_a_block_for_each_tile():
    (wgmma,) = (i for i in dxgemm.implementations() if i.name == "wgmma")
    config = next(c for c in wgmma.kernel.configs if (c.tile_m, c.tile_n) == (128, 128))
    problem: Problem = masked_problem("float16", 4096, 4096, 512, 128)
    assert wgmma.block_count(config, problem, 132) == 1024
    assert wgmma.block_count(config, replace(problem, epilogue=None), 132) == 132
