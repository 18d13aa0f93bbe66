"""`einsum` and `tensordot` contract what NumPy's do, in place where the strides merge."""

from __future__ import annotations

import string
from itertools import pairwise

import numpy as np
import pytest
from oracle.libraries import DlpackOnly

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.call import einsum
from dxgemm.gpu.status import simulator_enabled

SIZES = {"a": 3, "b": 2, "c": 4, "d": 2, "e": 3, "i": 4, "j": 3, "k": 5, "s": 1}


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return lambda shape, dtype="float32": rng.integers(-3, 4, shape).astype(dtype)


@pytest.fixture
def operands(values):
    """Arrays for the labels of subscripts."""

    def operands(subscripts, dtype="float32"):
        terms = subscripts.partition("->")[0].split(",")
        shapes = [[SIZES[label] for label in term.replace("...", "ab")] for term in terms]
        return [values(shape, dtype) for shape in shapes]

    return operands


# Without a copy, in one product.
IN_PLACE = [
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ki", "ij,jk", "bij,bjk->bik", "ibj,bjk->ibk", "bij,kj->bik",
    "abij,jk->abik", "aib,bj->ija", "akb,kc->abc", "akb,kc->cab", "abij,abjk->abik",
    "abij,abjk->ikab", "abcd,cde->eab", "i,i->", "i,j->ij", "ij,ij->", "ij,ij->ij", "sij,sjk->sik",
    "isj,jk->ik", "...ij,...jk->...ik", "...ij,jk", "iij,jk->ik", "aiaj,jk->aik", "i,ij->j",
    "ij,j->i", ",ij->ij",
]  # fmt: skip
OTHERS = [
    "ii->i", "ii", "ij->ji", "ij->j", "ij->", "ijk->j", "iji->j", "ij,ik->i", "ij,k->i", "ij,k->",
    "ijb,jk->ik", "abij,cbjk->acik", "bicd,bkcd->bcik", "abc,bad->dc", "ab,bc,cd,de->ae",
    "i,i,i->i", "i,j,k->kji", "ab,ab,ab,ab->b", "aij,bij,cij->abc", "i...,j...->ij...",
    "...i,...j->...", "s,ij,jk->ik", "ij,kj,ka->ia",
]  # fmt: skip


@pytest.mark.parametrize("subscripts", IN_PLACE + OTHERS)
def test_subscripts(home, operands, subscripts):
    given = operands(subscripts)
    expected = np.einsum(subscripts, *given)
    sent = [home.send(array) for array in given]
    result = dxgemm.einsum(subscripts, *sent)
    assert result.shape == expected.shape and result.dtype == "float32"
    np.testing.assert_array_equal(home.fetch(result), expected)
    steps = dxgemm.explain_einsum(subscripts, *sent)
    assert steps.shape == expected.shape
    if subscripts in IN_PLACE:
        assert len(steps.steps) == 1 and not steps.copied, str(steps)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "complex64", "complex128"])
@pytest.mark.parametrize("subscripts", ["aib,bj->ija", "ijk->j", "abij,cbjk->acik"])
def test_dtypes(home, operands, subscripts, dtype):
    given = operands(subscripts, dtype)
    if np.dtype(dtype).kind == "c":
        given = [array * (1 + 2j) for array in given]
    sent = [home.send(array.astype(dtype)) for array in given]
    if dtype == "int8" and subscripts == "ijk->j":
        with pytest.raises(errors.DtypeError, match="int32, which are not multiplied again"):
            dxgemm.einsum(subscripts, *sent)
        return
    result = dxgemm.einsum(subscripts, *sent)
    assert result.dtype.name == {"int8": "int32"}.get(dtype, dtype)
    wide = [array.astype("int64") if dtype == "int8" else array for array in given]
    np.testing.assert_array_equal(home.fetch(result), np.einsum(subscripts, *wide))


COUNT, LONGEST = (60, 4) if simulator_enabled() else (300, 12)


def array_of(rng, home, shape, dtype="float32"):
    """Small integers, and a copy of them with the dimensions in any order, some reversed."""
    values = rng.integers(-2, 3, shape).astype(dtype)
    order = rng.permutation(len(shape)) if rng.random() < 0.5 else np.arange(len(shape))
    turned = tuple(slice(None, None, int(rng.choice([1, 1, 1, -1]))) for _ in shape)
    sent = home.send(np.array(values[(*turned, ...)].transpose(order), order="C"))
    return values, sent.transpose(np.argsort(order))[(*turned, ...)]


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_contractions(home, seed):
    rng = np.random.default_rng(seed)
    labels = string.ascii_lowercase[: rng.integers(2, 7)]
    sizes = {label: int(rng.integers(1, LONGEST + 1)) for label in labels}
    terms = ["".join(rng.choice([*labels], rng.integers(1, 5))) for _ in range(rng.integers(1, 4))]
    found = sorted({label for term in terms for label in term})
    result = "".join(rng.permutation([label for label in found if rng.random() < 0.5]))
    subscripts = f"{','.join(terms)}->{result}"
    pairs = [array_of(rng, home, [sizes[label] for label in term]) for term in terms]
    given, sent = zip(*pairs)
    expected = np.einsum(subscripts, *given)
    np.testing.assert_array_equal(
        home.fetch(dxgemm.einsum(subscripts, *sent)), expected, subscripts
    )
    before, out = array_of(rng, home, expected.shape)
    beta = float(rng.choice([0, 2]))
    assert dxgemm.einsum(subscripts, *sent, out=out, alpha=-2.0, beta=beta) is out
    np.testing.assert_array_equal(home.fetch(out), beta * before - 2 * expected, subscripts)


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "axes"),
    [
        ((3, 4), (4, 2), 1), ((3, 4), (2, 5), 0), ((3, 4, 2), (4, 2, 5), 2),
        ((3, 4, 2), (4, 5, 2), ([1, 2], [0, 2])), ((3, 4, 2), (4, 5, 2), ([2, 1], [2, 0])),
        ((3, 4), (3, 4), ((-2, -1), (-2, -1))), ((3, 4), (5, 3), (0, 1)), ((3, 0), (0, 2), 1),
        ((0, 3), (3, 2), 1),
    ],
)  # fmt: skip
def test_tensordot(home, values, a_shape, b_shape, axes):
    a, b = values(a_shape), values(b_shape)
    result = dxgemm.tensordot(home.send(a), home.send(b), axes)
    np.testing.assert_array_equal(home.fetch(result), np.tensordot(a, b, axes), strict=True)


def test_what_the_steps_say(values):
    a, b = values((4, 3, 5)), values((5, 2))
    steps = dxgemm.explain_einsum("bij,jk->bik", a, b)
    assert str(steps) == "einsum bij,jk->bik float32\n  product  bij,jk->bik: 12 x 2 x 5"
    steps = dxgemm.explain_einsum("iaj,jba->ib", a, values((5, 2, 3)))
    assert str(steps).splitlines()[1:] == [
        "  copy     jba to ajb: 30 elements",
        f"  {steps.products[0]}",
    ]
    assert dxgemm.explain_einsum("ab,bc,cd->ad", *(values((3, 3)) for _ in range(3))).products
    assert isinstance(steps, dxgemm.Contraction)


def test_the_smaller_operand_is_copied(values):
    large, small = values((9, 7, 8, 2)), values((2, 3, 8))
    steps = dxgemm.explain_einsum("ikjl,laj->ika", large, small)
    assert steps.copied == small.size, str(steps)


def test_an_operand_without_contiguous_lines_is_copied_where_it_is_read_often(values):
    scattered = values((8, 10))[::2, ::2]
    for cols, copied in ((4, 0), (64, scattered.size)):
        steps = dxgemm.explain_einsum("ij,jk->ik", scattered, values((5, cols)))
        assert steps.copied == copied, str(steps)


def test_sums_are_products_with_ones(values):
    steps = dxgemm.explain_einsum("ijk,jl->il", values((2, 3, 4)), values((3, 5)))
    found = [" ".join(str(step).split(":")[0].split()) for step in steps.steps]
    assert found == ["ones for sums", "product ijk,1->ij", "product ij,jl->il"]


def test_a_short_dimension_is_looped_over_instead_of_large_copies(values):
    query, key = (np.broadcast_to(np.float32(1), (2, 1024, 4, 256)).copy() for _ in range(2))
    steps = dxgemm.explain_einsum("bqhd,bkhd->bhqk", query, key)
    assert not steps.copied and str(steps).endswith("4 of 1024 x 1024 x 256, 2 launches")


@pytest.mark.parametrize("subscripts", ["bij,bjk->bik", "aib,bj->ija", "abij,cbjk->acik", "i,i->"])
def test_arrays_that_are_copied_to_the_gpu_are_viewed(operands, monkeypatch, subscripts):
    given = operands(subscripts)
    monkeypatch.setattr(einsum, "simulator_enabled", lambda: False)
    monkeypatch.setattr(einsum, "plans", {})
    result = dxgemm.einsum(subscripts, *given)
    np.testing.assert_array_equal(result, np.einsum(subscripts, *given))


@pytest.mark.parametrize(
    ("subscripts", "shapes", "copied"),
    [
        ("bhqd,bhkd->bhqk", [(4, 16, 1024, 64), (4, 16, 1024, 64)], []),
        ("bqhd,bkhd->bhqk", [(4, 1024, 16, 64), (4, 1024, 16, 64)], ["bqhd", "bkhd"]),
        ("bhqk,bkhd->bqhd", [(4, 16, 1024, 1024), (4, 1024, 16, 64)], ["bkhd"]),
        ("becd,edf->becf", [(4, 8, 512, 512), (8, 512, 1024)], ["becd"]),
    ],
)
def test_operands_of_attention_are_copied_for_one_launch(subscripts, shapes, copied):
    given = [np.broadcast_to(np.float16(1), shape).copy() for shape in shapes]
    *copies, product = dxgemm.explain_einsum(subscripts, *given).steps
    assert [step.text.split()[0] for step in copies] == copied
    assert "launches" not in str(product)


def test_a_repeated_contraction_is_planned_once(home, operands, monkeypatch):
    sent = [home.send(array) for array in operands("bij,jk->bik")]
    first = home.fetch(dxgemm.einsum("bij,jk->bik", *sent))
    monkeypatch.setattr(einsum, "plan_steps", None)
    np.testing.assert_array_equal(home.fetch(dxgemm.einsum("bij,jk->bik", *sent)), first)


def test_looped_products(home, operands, monkeypatch):
    monkeypatch.setattr("dxgemm.call.contraction.PRODUCT_US", 0.0)
    for subscripts in ("bicd,bjcd->bcij", "bicd,bjcd->icjb"):
        einsum.plans.clear()
        given = operands(subscripts)
        sent = [home.send(array) for array in given]
        expected = np.einsum(subscripts, *given)
        assert "launches" in str(dxgemm.explain_einsum(subscripts, *sent))
        np.testing.assert_array_equal(home.fetch(dxgemm.einsum(subscripts, *sent)), expected)
        out = home.send(np.ones_like(expected))
        dxgemm.einsum(subscripts, *sent, out=out, beta=3.0)
        np.testing.assert_array_equal(home.fetch(out), expected + 3)
        result = dxgemm.einsum(subscripts, *map(DlpackOnly, given))
        np.testing.assert_array_equal(result, expected)
    einsum.plans.clear()


def test_epilogue(home, values):
    x, weight, bias = values((2, 3, 5)), values((5, 4)), values(4)
    expected = np.maximum(np.einsum("bsd,dh->bsh", x, weight) + bias, 0)
    sent = home.send(x), home.send(weight)
    chain = epilogues.bias(home.send(bias)) | epilogues.relu
    result = dxgemm.einsum("bsd,dh->bsh", *sent, epilogue=chain)
    np.testing.assert_array_equal(home.fetch(result), expected)
    result = dxgemm.tensordot(*sent, 1, epilogue=chain, alpha=2.0)
    expected = np.maximum(2 * np.tensordot(x, weight, 1) + bias, 0)
    np.testing.assert_array_equal(home.fetch(result), expected)
    # Rows whose order in memory is another one are copied, so that the epilogue sees theirs.
    turned = home.send(np.ascontiguousarray(x.swapaxes(0, 1))).swapaxes(0, 1)
    column = values(6)
    chain = epilogues.bias_column(home.send(column))
    result = dxgemm.einsum("bsd,dh->bsh", turned, sent[1], epilogue=chain)
    expected = np.einsum("bsd,dh->bsh", x, weight) + column.reshape(2, 3, 1)
    np.testing.assert_array_equal(home.fetch(result), expected)
    with pytest.raises(errors.UnsupportedProblemError, match="einsum: the epilogue sum"):
        dxgemm.einsum("ij,jk->ik", sent[1], sent[1].T, epilogue=reductions.sum(axis=1))


@pytest.mark.parametrize("sizes", [(2, 9, 3, 4), (4, 3, 9, 2)])  # whose paths differ
def test_the_epilogue_of_a_chain_has_the_rows_of_the_result(home, values, sizes):
    chain = [values(shape) for shape in pairwise(sizes)]
    sent, plain = [home.send(x) for x in chain], np.linalg.multi_dot(chain)
    for subscripts, expected in (("ij,jk,kl->il", plain), ("ij,jk,kl->li", plain.T)):
        bias = values(expected.shape[1])
        epilogue = epilogues.bias(home.send(bias))
        result = dxgemm.einsum(subscripts, *sent, epilogue=epilogue)
        np.testing.assert_array_equal(home.fetch(result), expected + bias)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "words"),
    [
        ("ij,jk->ik", [(2, 3), (4, 4)], "Size of label 'j' for operand 1"),
        ("ij,jk->iz", [(2, 3), (3, 4)], "Output character z did not appear in the input"),
        ("i!,jk", [(2, 3), (3, 4)], "Character ! is not a valid symbol"),
        ("ij,jk", [(2, 3)], "Number of einsum subscripts must be equal"),
        ("ijk->i", [(2, 3)], "does not contain the correct number of indices"),
        ("ij->ii", [(2, 3)], "appeared more than once in the output"),
        ("...i->i", [(2, 3)], "no '...' ellipsis provided to broadcast"),
        ("ii->i", [(1, 3)], "collapsing index 'i' don't match"),
        ("ij->i->j", [(2, 3)], "only contain one '->'"),
        ("ij", [], "must provide at least an operand"),
    ],
)
def test_bad_subscripts(home, values, subscripts, shapes, words):
    with pytest.raises(errors.ShapeError, match=f"^einsum: .*{words}"):
        dxgemm.einsum(subscripts, *(home.send(values(shape)) for shape in shapes))


def test_bad_arguments(home, values):
    a, b = home.send(values((2, 3))), home.send(values((3, 4)))
    out = home.send(np.full((2, 4), 77, "float32"))
    for error, words, call in (
        (errors.SettingError, "subscripts are 3", lambda: dxgemm.einsum(3, a)),
        (errors.ArrayTypeError, "einsum: a is None", lambda: dxgemm.einsum("ij,jk", None, b)),
        (errors.DtypeError, "einsum: a is float32, b is float64; convert",
         lambda: dxgemm.einsum("ij,jk", a, b.astype("float64"), out=out)),
        (errors.ShapeError, r"out is \(2, 4\), but the result is \(4, 2\)",
         lambda: dxgemm.einsum("ij,jk->ki", a, b, out=out)),
        (errors.MissingOperandError, "no out", lambda: dxgemm.einsum("ij,jk", a, b, beta=1.0)),
        (errors.PrecisionError, "bogus",
         lambda: dxgemm.einsum("ij,jk", a, b, out=out, precision="bogus")),
        (errors.OverlapError, "einsum: out overlaps itself|shares memory",
         lambda: dxgemm.einsum("ij,jk", b.T[:3], b, out=b[:3])),
        (errors.ShapeError, "shape-mismatch for sum", lambda: dxgemm.tensordot(a, b, 2)),
        (errors.ShapeError, "axes are 3", lambda: dxgemm.tensordot(a, b, 3)),
        (errors.ShapeError, "axes are", lambda: dxgemm.tensordot(a, b, ([2], [0]))),
        (errors.ShapeError, "shape-mismatch", lambda: dxgemm.tensordot(a, a, ([0, 0], [0, 0]))),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()
        assert (home.fetch(out) == 77).all()


@pytest.mark.parametrize("library", ["DLPack", "jax"])
def test_exports(values, library):
    """Results of exports are row-major arrays of their library."""
    kind = DlpackOnly if library == "DLPack" else pytest.importorskip("jax").numpy.asarray
    a, b = values((2, 3, 4)), values((3, 4, 2))
    for subscripts, other in (("aij,ijb->ba", b), ("aij,jib->ba", b.swapaxes(0, 1))):
        result = dxgemm.einsum(subscripts, kind(a), kind(other))
        assert library == "DLPack" or isinstance(result, type(kind(a)))
        np.testing.assert_array_equal(np.asarray(result), np.einsum("aij,ijb->ba", a, b))


def test_opt_einsum_finds_a_backend(home, values):
    opt_einsum = pytest.importorskip("opt_einsum")
    shapes = ((3, 4), (4, 5), (5, 2), (2, 6))
    given = [values(shape) for shape in shapes]
    sent = [home.send(array) for array in given]
    for subscripts in ("ab,bc,cd,de->ea", "ab,bc,cd,de->"):
        result = opt_einsum.contract(subscripts, *sent, backend="dxgemm")
        np.testing.assert_array_equal(home.fetch(result), np.einsum(subscripts, *given))


@pytest.mark.parametrize("subscripts", ["aib,bj->ija", "abij,cbjk->acik", "ii->i", "ij->j"])
def test_tensors(operands, subscripts):
    torch = pytest.importorskip("torch")
    device = "cpu" if simulator_enabled() else "cuda"
    given = [torch.from_numpy(array).to(device) for array in operands(subscripts)]
    result = dxgemm.einsum(subscripts, *given)
    assert torch.equal(result, torch.einsum(subscripts, *given))
    given[0].requires_grad_()
    with pytest.raises(errors.ArrayTypeError, match="requires grad"):
        dxgemm.einsum(subscripts, *given)
