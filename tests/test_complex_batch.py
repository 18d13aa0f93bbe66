"""Batches of small complex matrices, which `complex_batch` reads as they lie, in one launch."""

from dataclasses import replace
from itertools import product
from threading import current_thread

import numpy as np
import pytest
from known_devices import H200
from test_complex import CALLS, DTYPES, conjugated, integers

import dxgemm
from dxgemm import errors
from dxgemm.call.complex_call import LARGE, form_of_problem
from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import complex_batch
from dxgemm.handwritten.parts import intrinsics
from dxgemm.problem.complex_form import MOST_SMALL, direct_form
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS

NAME = "complex_batch"
IS_SIMULATED = simulator_enabled()
KERNEL = complex_batch.KERNEL
CONFIGS = KERNEL.simulator_configs if IS_SIMULATED else KERNEL.configs
# Of a, b, and c: each kernel is compiled, or simulated.
LAYOUTS = [*product("CFs", repeat=3)][:: 13 if IS_SIMULATED else 5]
SIZES = [(8, 6, 9), (1, 7, 2), (6, 3, 0)]
if not IS_SIMULATED:
    SIZES += [(3, 5, 4), (4, 4, 4)]


def put(home, array, layout):
    """A batch on the device, and what holds it: rows, columns, or nothing contiguous.

    Elements around a strided one are 9.
    """
    if layout == "C":
        sent = home.send(array.copy())
        return sent, sent
    if layout == "F":
        sent = home.send(np.ascontiguousarray(array.swapaxes(-1, -2)))
        return sent.swapaxes(-1, -2), sent
    batch, m, n = array.shape
    around = np.full((batch + 1, 2 * m + 1, 3 * n + 1), 9, array.dtype)
    around[1:, 1 : 2 * m : 2, 1 : 3 * n : 3] = array
    sent = home.send(around)
    return sent[1:, 1 : 2 * m : 2, 1 : 3 * n : 3], sent


def assert_around(home, holder, layout, shape):
    """Assert that nothing was written between the elements of a strided batch."""
    if layout == "s":
        _, m, n = shape
        around = home.fetch(holder).copy()
        around[1:, 1 : 2 * m : 2, 1 : 3 * n : 3] = 9
        assert (around == 9).all()


def check(home, dtype, sizes, layouts, calls=CALLS, implementation=None, batch=3):
    """Check the products of integers, into c and beside it."""
    m, n, k = sizes
    a, b = integers((batch, m, k), dtype, 1), integers((batch, k, n), dtype, 2)
    c = integers((batch, m, n), dtype, 3)
    (a_sent, _), (b_sent, _) = put(home, a, layouts[0]), put(home, b, layouts[1])
    for alpha, beta, conjugate in calls:
        left, right = conjugated(a, b, conjugate)
        exact = alpha * (left @ right) + beta * c
        options = {"conjugate": conjugate, "implementation": implementation}
        sent, holder = put(home, c, layouts[2])
        assert dxgemm.gemm(a_sent, b_sent, sent, alpha, beta, **options) is sent
        np.testing.assert_array_equal(home.fetch(sent), exact)
        assert_around(home, holder, layouts[2], c.shape)
        kept, _ = put(home, c, layouts[0])
        out, holder = put(home, np.full(c.shape, np.nan, dtype), layouts[2])
        dxgemm.gemm(a_sent, b_sent, kept, alpha, beta, out=out, **options)
        np.testing.assert_array_equal(home.fetch(out), exact)
        np.testing.assert_array_equal(home.fetch(kept), c)
        assert_around(home, holder, layouts[2], c.shape)
    np.testing.assert_array_equal(home.fetch(a_sent), a)
    np.testing.assert_array_equal(home.fetch(b_sent), b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", LAYOUTS, ids="".join)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_of_integers_are_exact(home, dtype, layouts, sizes):
    check(home, dtype, sizes, layouts, CALLS[:: 2 if IS_SIMULATED else 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("below", [-1, 0, 1, 2, 3])
def test_every_config_at_the_edges_of_its_tile(home, dtype, config, below):
    """The sizes have other residues than one another, and those of larger matrices several tiles.

    More matrices than a block takes: the last one has fewer.
    """
    if config not in dxgemm_configs(dtype):
        pytest.skip("its sums do not fit into registers")
    m, n, k = config.tile_m - below, config.tile_n - 3 + below, config.tile_k - (below + 2) % 4
    layouts = ("C", "F", "C") if below % 2 else ("F", "C", "F")
    call = CALLS[CONFIGS.index(config) % 4 :][:1]
    for sizes in ((m, n, k), (max(n, 1), m, k + config.tile_k)):
        check(home, dtype, sizes, layouts, call, (NAME, config), config.matrices + 1)


def dxgemm_configs(dtype):
    (kernel,) = (i for i in dxgemm.implementations() if i.name == NAME)
    return kernel.configs(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", range(1, MOST_SMALL + 2))
def test_squares_of_every_size(home, dtype, size):
    calls = [(1, 0, ""), (1j, 1 - 2j, "")]
    check(home, dtype, (size, size, size), "CCC", calls, batch=size % 7 + 2)


@pytest.mark.skipif(not IS_SIMULATED, reason="needs the simulator")
def test_a_tile_keeps_to_its_part_of_shared_memory(monkeypatch):
    """Its threads wait for each other alone: others may still multiply out of their parts."""
    store_shared, places = intrinsics.store_shared, set()

    def recorded(address, offset, values):
        member = current_thread().threadIdx.x // config.tile_threads
        places.add((member, int(address + offset) // config.tile_bytes("complex64")))
        store_shared(address, offset, values)

    monkeypatch.setattr(intrinsics, "store_shared", recorded)
    config = CONFIGS[-1]
    assert config.matrices == 2
    a, b = integers((2, 4, 4), "complex64", 1), integers((2, 4, 4), "complex64", 2)
    turned = dxgemm.epilogue(lambda value, row, col: 1j * value)
    out = dxgemm.gemm(a, b, epilogue=turned, implementation=(NAME, config))
    np.testing.assert_array_equal(out, 1j * (a @ b))
    assert places == {(0, 0), (1, 1)}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_larger_matrices_go_tile_by_tile(home, dtype):
    for config in dxgemm_configs(dtype):
        check(home, dtype, (101, 90, 133), ("C", "C", "C"), CALLS[4:5], (NAME, config), batch=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shared", ["a", "b"])
def test_one_matrix_for_the_whole_batch(home, dtype, order, shared):
    """Also where its rows, or columns, could not be those of one product."""
    a, b, c = (integers((3, 5, 5), dtype, seed) for seed in range(3))
    a, b = (a[:1], b) if shared == "a" else (a, b[:1])
    for conjugate, dimensions in product(("", "ab"), (2, 3)):
        sent = [put(home, x, order)[0] for x in (a, b)]
        sent = [x[0] if len(x) == 1 and dimensions == 2 else x for x in sent]
        addend, holder = put(home, c, "s")
        dxgemm.gemm(*sent, addend, 1 - 1j, 2j, conjugate=conjugate, implementation=NAME)
        left, right = conjugated(a, b, conjugate)
        np.testing.assert_array_equal(home.fetch(addend), (1 - 1j) * (left @ right) + 2j * c)
        assert_around(home, holder, "s", c.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", "CFs")
def test_what_is_not_read_does_not_leak(home, dtype, layout):
    """NaN in c with beta 0, in a and b with alpha 0, and in the next matrix of the batch."""
    nan = np.full((3, 5, 5), complex(np.nan, np.nan), dtype)
    a, b, c = (integers((3, 5, 5), dtype, seed) for seed in range(3))
    sent, _ = put(home, nan, layout)
    dxgemm.gemm(put(home, a, layout)[0], home.send(b), sent, 1j)
    np.testing.assert_array_equal(home.fetch(sent), 1j * (a @ b))
    sent, _ = put(home, c, layout)
    dxgemm.gemm(put(home, nan, layout)[0], home.send(nan), sent, 0, 2 - 1j)
    np.testing.assert_array_equal(home.fetch(sent), (2 - 1j) * c)
    a[1], b[2] = nan[1], 0
    found = home.fetch(dxgemm.gemm(put(home, a, layout)[0], put(home, b, layout)[0]))
    np.testing.assert_array_equal(found[0], a[0] @ b[0])
    assert np.isnan(found[1].real).all() and np.isnan(found[1].imag).all()
    assert (found[2] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("conjugate", ["", "a", "b", "ab"])
def test_special_values_stay_in_their_components(home, dtype, conjugate):
    """Each component is a sum of products of components; real factors multiply them alone."""
    a, b = integers((2, 6, 5), dtype, 1), integers((2, 5, 7), dtype, 2)
    a[0, 1, 2], a[1, 3, 0], b[1, 4, 3] = complex(np.inf, 1), complex(1, np.nan), complex(2, -np.inf)
    left, right = conjugated(a, b, conjugate)
    with np.errstate(invalid="ignore"):
        re = left.real @ right.real - left.imag @ right.imag
        im = left.real @ right.imag + left.imag @ right.real
    c = integers((2, 6, 7), dtype, 3)
    c[0, 0, 0] = complex(np.inf, 1)
    for layouts in (("C", "C"), ("F", "F"), ("s", "C")):
        sent = [put(home, x, layout)[0] for x, layout in zip((a, b), layouts, strict=True)]
        found = home.fetch(dxgemm.gemm(*sent, home.send(c), 2, 3, conjugate=conjugate))
        np.testing.assert_array_equal(found.real, (2 * re + 3 * c.real).astype(found.real.dtype))
        np.testing.assert_array_equal(found.imag, (2 * im + 3 * c.imag).astype(found.imag.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_planted_products_are_found(home, dtype):
    """Of matrices of zeros with one element each, the result has one element, and its place."""
    for m, n, k in ((5, 7, 6), (8, 4, 9)) if IS_SIMULATED else ((21, 33, 45), (64, 17, 80)):
        batch = 4
        rng = np.random.default_rng(m)
        a, b = np.zeros((batch, m, k), dtype), np.zeros((batch, k, n), dtype)
        wanted = np.zeros((batch, m, n), dtype)
        for i in range(batch):
            row, col, step = (int(rng.integers(size)) for size in (m, n, k))
            a[i, row, step], b[i, step, col] = 1 + 2j, 3 - 1j
            wanted[i, row, col] = (1 + 2j) * (3 - 1j)
        found = home.fetch(dxgemm.gemm(home.send(a), home.send(b)))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_are_within_the_rule(home, dtype):
    """Each component against |A| |B| of the components."""
    size = 6 if IS_SIMULATED else 61
    rng = np.random.default_rng(0)
    a, b = (
        (rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(dtype)
        for s in [(5, size, size)] * 2
    )
    found = home.fetch(dxgemm.gemm(home.send(a), home.send(b)))
    exact = a.astype("clongdouble") @ b.astype("clongdouble")
    real = abs(a.real) @ abs(b.real) + abs(a.imag) @ abs(b.imag)
    imaginary = abs(a.real) @ abs(b.imag) + abs(a.imag) @ abs(b.real)
    bound = 2 * size * np.finfo(COMPLEX_PARTS[dtype]).eps
    for part, scale in (("real", real), ("imag", imaginary)):
        assert (abs(getattr(found - exact, part)) <= bound * scale).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_call_is_one_launch(home, dtype, monkeypatch):
    if IS_SIMULATED:
        from dxgemm.runtime.simulator import SimulatedLaunch as Launched
    else:
        from dxgemm.runtime.launch import KernelLaunch as Launched
    launch, launched = Launched.__call__, []

    def counted(self, *arguments):
        launched.append(self)
        launch(self, *arguments)

    monkeypatch.setattr(Launched, "__call__", counted)
    a, b, c = (integers((4, 5, 5), dtype, seed) for seed in range(3))
    for layouts in LAYOUTS[::3]:
        sent = [put(home, x, layout)[0] for x, layout in zip((a, b, c), layouts, strict=True)]
        launched.clear()
        dxgemm.gemm(*sent, 1j, 2 - 1j, conjugate="ab")
        assert len(launched) == 1
        np.testing.assert_array_equal(
            home.fetch(sent[2]), 1j * (a.conj() @ b.conj()) + (2 - 1j) * c
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_reads_its_arrays_anew(home, dtype):
    a, b = integers((3, 4, 3), dtype, 1), integers((3, 3, 5), dtype, 2)
    a_sent, out = home.send(a), home.send(np.zeros((3, 4, 5), dtype))
    plan = dxgemm.plan(a_sent, home.send(b), None, 1 + 1j, out=out, conjugate="a")
    for seed in (3, 4):
        a = integers((3, 4, 3), dtype, seed)
        a_sent[...] = home.send(a)
        np.testing.assert_array_equal(home.fetch(plan()), (1 + 1j) * (a.conj() @ b))
    explained = plan.explain()
    assert "as they lie" in explained.work.complex_form
    assert explained.work.dtype == dtype and explained.work.flops == 8 * 3 * 4 * 3 * 5
    assert "as they lie" in dxgemm.explain_shape(4, 5, 3, dtype, batch=3).work.complex_form


def direct(problem, implementation=None, arch="sm_90a"):
    return form_of_problem(problem, "", implementation, replace(H200, arch=arch)).is_direct


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_of_small_matrices_are_computed_as_they_lie(dtype):
    small = contiguous_problem(dtype, 80, 80, 80, batch=2)
    assert direct(small) and direct(replace(small, k=0))
    for name in ("m", "n", "k"):
        larger = replace(small, **{name: 81})
        assert direct(larger) == (dtype in LARGE)
    single = contiguous_problem(dtype, 8, 8, 8)
    assert direct(single) == (dtype == "complex128") and not direct(single, arch="sm_80")
    for other in ("cublas", "tuned", ("small_batch", "8x8x8"), BatchInvariant(None)):
        assert not direct(small, other)
    assert not direct(small, arch="sm_75")
    for named in (NAME, (NAME, "any config"), BatchInvariant(NAME)):
        assert direct(single, named) and direct(replace(small, m=1000), named, "sm_75")


def test_a_name_means_this_kernel_or_an_error(home):
    a = home.send(integers((5, 5), "complex64"))
    real = home.send(np.ones((2, 5, 5), "float32"))
    assert dxgemm.explain(a, a, implementation=NAME).implementation == NAME
    for options in ({"precision": "3m"}, {"batch_invariant": True}):
        assert dxgemm.explain(a, a, implementation=NAME, **options).implementation == NAME
    refused = errors.UnsupportedProblemError
    with pytest.raises(refused, match="complex64 and complex128, not float32"):
        dxgemm.gemm(real, real, implementation=NAME)
    with pytest.raises(refused, match="Hermitian"):
        dxgemm.gemm_symmetric(a, implementation=NAME)
    with pytest.raises(refused, match="has no config"):
        dxgemm.gemm(a, a, implementation=(NAME, "7x7x7"))
    with pytest.raises(refused, match="cannot cut this k"):
        dxgemm.gemm(a, a, implementation=(NAME, CONFIGS[0], 2))


def test_a_kernel_is_made_for_layouts_and_conjugates():
    def variant(dtype, conjugates="", size=8, **changes):
        problem = replace(contiguous_problem(dtype, size, size, size, 9), **changes)
        return KERNEL.variant(CONFIGS[0], direct_form(problem, conjugates).product)

    rows = contiguous_problem("complex64", 8, 8, 8, 9)
    assert variant("complex64") == ("", "row16", "row16")
    assert variant("complex64", "ab", b=rows.b.transposed()) == ("ab", "row16", "col")
    assert variant("complex64", "a", size=5) == ("a", "row", "row")
    assert variant("complex128", "b", size=5) == ("b", "row16", "row16")
    assert variant("complex64", a_alignment=8) == ("", "row", "row16")
    assert variant("complex64", a=rows.a._replace(batch=0)) == ("", "row16", "row16", "shared a")
    assert variant("complex128", a=rows.a._replace(row=1 << 27)) == ("", "row16", "row16", "far")
