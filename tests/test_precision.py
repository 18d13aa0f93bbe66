"""Narrow dtypes and TF32 through the public calls: dtypes, decisions, limits of each."""

from itertools import product as combinations

import numpy as np
import pytest
from contract import inability
from oracle.check import assert_right
from oracle.inputs import operands
from oracle.kinds import KINDS, numpy_dtype
from oracle.libraries import LIBRARIES, is_installed
from oracle.padded import Padded

import dxgemm
from dxgemm import errors
from dxgemm.gpu.status import simulator_enabled

SIZE = (5, 3, 8) if simulator_enabled() else (129, 65, 48)
HALF = ("float16", "bfloat16")
OWN = (*HALF, "int8")  # whose results are in the dtype that goes with them
WIDE = ("float16_to_float32", "bfloat16_to_float32", "int8")
NARROW = (*HALF, *WIDE)
BFLOAT16_LIBRARIES = ("numpy", "cupy", "torch")
USABLE = [
    library
    for library in LIBRARIES.values()
    if library.name in ("numpy", "host_dlpack")
    or (not simulator_enabled() and is_installed(library))
]


def values_of(kind):
    m, n, k = SIZE
    return operands("random", (m, k), (k, n), (m, n), kind)


def libraries_of(kind):
    """Libraries that have the dtype of a kind."""
    return [x for x in USABLE if not kind.startswith("bf") or x.name in BFLOAT16_LIBRARIES]


@pytest.mark.parametrize("kind", OWN)
def test_a_new_result_is_of_the_library_of_a(kind):
    a, b, c = values_of(kind)
    for library in libraries_of(kind):
        result = dxgemm.gemm(library.send(a), library.send(b))
        assert KINDS[kind].out_dtype in str(result.dtype)
        assert_right(library.fetch(result), a, b, c)


@pytest.mark.parametrize("kind", NARROW)
def test_c_and_out_may_be_of_either_dtype(home, kind):
    a, b, c = values_of(kind)
    sent, factors = [home.send(value) for value in (a, b, c)], KINDS[kind].factors
    out = home.send(np.full_like(c, -7 if KINDS[kind].is_integer else np.nan))
    assert dxgemm.gemm(*sent, *factors, out=out) is out
    assert_right(home.fetch(out), a, b, c, *factors)
    assert home.fetch(sent[2]).tobytes() == c.tobytes()
    assert dxgemm.gemm(*sent, *factors) is sent[2]
    assert_right(home.fetch(sent[2]), a, b, c, *factors)


@pytest.mark.parametrize("dtype", HALF)
def test_alpha_and_beta_are_float32(home, dtype):
    a, b, c = (home.send(np.zeros_like(value)) for value in values_of(f"{dtype}_to_float32"))
    c.fill(1)
    dxgemm.gemm(a, b, c, 0.0, 1e-30)
    assert (home.fetch(c) == np.float32(1e-30)).all()
    c.fill(1)
    dxgemm.gemm(a, b, c, 1e30, 1e30)
    assert (home.fetch(c) == np.float32(1e30)).all()
    with pytest.raises(errors.ScalarError, match="overflows float32"):
        dxgemm.gemm(a, b, c, 1e39)


def test_sums_beyond_float16_are_finite_in_float32_and_infinite_in_float16(home):
    a, b = np.full((2, 8), 200, np.float16), np.full((8, 3), 200, np.float16)
    a[1] *= -1
    out = home.send(np.empty((2, 3), np.float32))
    dxgemm.gemm(home.send(a), home.send(b), out=out)
    assert home.fetch(out).tolist() == [[320000.0] * 3, [-320000.0] * 3]
    result = home.fetch(dxgemm.gemm(home.send(a), home.send(b)))
    assert result.tolist() == [[np.inf] * 3, [-np.inf] * 3]


def test_sums_of_half_precision_are_not_rounded_on_the_way(home):
    for dtype, terms in (("float16", 4096), ("bfloat16", 512)):
        terms = 512 if simulator_enabled() else terms
        a = np.ones((1, terms), numpy_dtype(dtype))
        a[0, 0] = 2048
        out = home.send(np.empty((1, 1), np.float32))
        dxgemm.gemm(home.send(a), home.send(np.ones((terms, 1), a.dtype)), out=out)
        assert home.fetch(out)[0, 0] == 2048 + terms - 1


@pytest.mark.parametrize("kind", NARROW)
def test_a_column_major_result_is_computed_transposed(home, kind):
    a, b, c = values_of(kind)
    out = home.send(np.empty(c.shape[::-1], c.dtype)).T
    sent = home.send(a), home.send(b)
    explanation = dxgemm.explain(*sent, out=out)
    assert explanation.work.is_transposed
    assert (explanation.work.dtype, explanation.work.out_dtype) == (
        KINDS[kind].dtype,
        KINDS[kind].out_dtype,
    )
    result = dxgemm.gemm(*sent, out=out)
    assert_right(np.ascontiguousarray(home.fetch(result)), a, b, c)


@pytest.mark.parametrize("kind", WIDE)
def test_operands_of_different_libraries(kind):
    values, factors = values_of(kind), KINDS[kind].factors
    for libraries in combinations(libraries_of(kind), repeat=3):
        a, b, c = map(Padded, libraries, values)
        assert dxgemm.gemm(a.array, b.array, c.array, *factors) is c.array
        assert_right(c.fetch(), *values, *factors)
        a.assert_unchanged()
        b.assert_unchanged()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", OWN)
def test_tensors_on_the_host_are_copied_and_updated(kind):
    torch = pytest.importorskip("torch")
    torch_library, dtype = LIBRARIES["torch"], getattr(torch, KINDS[kind].out_dtype)
    values, factors = values_of(kind), KINDS[kind].factors
    tensors = [torch_library.send(value).cpu() for value in values]
    assert dxgemm.gemm(*tensors, *factors) is tensors[2]
    assert tensors[2].dtype is dxgemm.gemm(*tensors[:2]).dtype is dtype
    assert_right(torch_library.fetch(tensors[2]), *values, *factors)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF)
def test_host_operands_are_decided_on_as_the_copies_they_become(dtype):
    m, n, k = 64, 48, 32
    a, b, _ = operands("random", (k, m), (n, k), (m, n), dtype)
    wide = np.zeros((2 * k, m + 1), a.dtype)
    wide[::2, 1:] = a
    strided = wide[::2, 1:].T  # no row and no column of it is aligned
    explanation = dxgemm.explain(strided, b.T)
    contiguous = dxgemm.explain_shape(m, n, k, dtype)
    assert explanation.work.copied == ("a", "b")
    assert explanation.implementation == contiguous.implementation
    assert explanation.work.arrangements["a"] == "row_major"
    assert_right(dxgemm.gemm(strided, b.T), a.T, b.T, np.zeros((m, n), a.dtype))


@pytest.mark.parametrize("dtype", HALF)
def test_a_float32_result_over_the_memory_of_a_is_refused(home, dtype):
    memory = home.send(np.ones(64, numpy_dtype(dtype)))
    a, b = memory[:16].reshape(4, 4), home.send(np.ones((4, 4), numpy_dtype(dtype)))
    for first in (0, 8, 14):
        out = memory[first : first + 32].view("float32").reshape(4, 4)
        with pytest.raises(errors.OverlapError, match="shares memory with a"):
            dxgemm.gemm(a, b, out=out)
    out = memory[16:48].view("float32").reshape(4, 4)
    dxgemm.gemm(a, b, out=out)
    assert (home.fetch(out) == 4).all()


def test_tf32_is_right_by_its_own_rule(home):
    values = values_of("tf32")
    a, b, c = (home.send(value) for value in values)
    dxgemm.gemm(a, b, c, 0.7, 1.3, precision="tf32")
    assert_right(home.fetch(c), *values, 0.7, 1.3, precision="tf32")


def test_precision_is_part_of_the_route(home):
    a, b, _ = (home.send(value) for value in values_of("float32"))
    plain, tf32 = dxgemm.plan(a, b), dxgemm.plan(a, b, precision="tf32")
    assert plain.route is not tf32.route
    assert dxgemm.plan(a, b).route is plain.route
    assert dxgemm.plan(a, b, precision="tf32").route is tf32.route
    assert (plain.explain().work.precision, tf32.explain().work.precision) == (None, "tf32")
    tf32_title, plain_title = (str(p.explain()).splitlines()[0] for p in (tf32, plain))
    assert "tf32 permitted" in tf32_title and "tf32" not in plain_title


def test_without_precision_float32_stays_float32(home):
    m, n, k = SIZE
    a, b, _ = operands("canary", (m, k), (k, n), (m, n), "float32")
    dxgemm.gemm(home.send(a), home.send(b), precision="tf32")
    result = home.fetch(dxgemm.gemm(home.send(a), home.send(b)))
    assert (result == a.astype(float) @ b.astype(float)).all()


def test_explain_shape_takes_dtypes_and_precision():
    half = dxgemm.explain_shape(512, 256, 128, "float16", out_dtype="float32").work
    assert (half.dtype, half.out_dtype, half.precision) == ("float16", "float32", None)
    assert half.bytes_moved == 2 * 512 * 128 + 2 * 128 * 256 + 4 * 512 * 256
    assert "float16 to float32" in str(half)
    assert dxgemm.explain_shape(512, 256, 128, precision="tf32").work.precision == "tf32"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].is_reduced])
def test_a_kind_is_computed_or_declined_with_a_reason(kind):
    reasons = {i.name: inability(i, kind) for i in dxgemm.implementations()}
    assert None in reasons.values() or kind.startswith(("tf32", "emulated"))
    for name, reason in reasons.items():
        assert reason is None or len(reason) > 10, name


def test_only_an_own_implementation_is_skipped_for_what_it_does_not_compute():
    coalesced = next(i for i in dxgemm.implementations() if i.name == "coalesced")
    assert inability(coalesced, "float32") is None
    assert "float16" in inability(coalesced, "float16")
    assert "as float32" in inability(coalesced, "tf32")
