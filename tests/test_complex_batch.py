"""Batches of small complex matrices, which `complex_batch` reads as they lie, in one launch."""

from dataclasses import replace
from itertools import product
from threading import current_thread

import numpy as np
import pytest
from complex_operands import (
    CALLS,
    DTYPES,
    IS_SIMULATED,
    ORDERS,
    assert_around,
    check,
    check_errors,
    check_plan,
    check_unread,
    conjugated,
    integers,
    put,
)
from known_devices import H200

import dxgemm
from dxgemm.call.complex_call import LARGE, form_of_problem
from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.handwritten.kernels import complex_batch
from dxgemm.handwritten.parts import intrinsics
from dxgemm.problem.complex_form import MOST_SMALL, direct_form
from dxgemm.problem.define import contiguous_problem
from dxgemm.runtime.launch import KernelLaunch
from dxgemm.runtime.simulator import SimulatedLaunch

NAME = "complex_batch"
KERNEL = complex_batch.KERNEL
CONFIGS = KERNEL.simulator_configs if IS_SIMULATED else KERNEL.configs
# Of a, b, and c: each kernel is compiled, or simulated.
LAYOUTS = ORDERS[:: 13 if IS_SIMULATED else 5]
SIZES = [(8, 6, 9), (1, 7, 2), (6, 3, 0)]
if not IS_SIMULATED:
    SIZES += [(3, 5, 4), (4, 4, 4)]


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
    """Nor does NaN in the next matrix of the batch."""
    check_unread(home, dtype, layout, (3, 5, 5))
    a, b = (integers((3, 5, 5), dtype, seed) for seed in range(2))
    a[1], b[2] = complex(np.nan, np.nan), 0
    found = home.fetch(dxgemm.gemm(put(home, a, layout)[0], put(home, b, layout)[0]))
    np.testing.assert_array_equal(found[0], a[0] @ b[0])
    assert np.isnan(found[1].real).all() and np.isnan(found[1].imag).all()
    assert (found[2] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_are_within_the_rule(home, dtype):
    check_errors(home, dtype, [6 if IS_SIMULATED else 61] * 3, (5,))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_call_is_one_launch(home, dtype, monkeypatch):
    Launched = SimulatedLaunch if IS_SIMULATED else KernelLaunch
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_reads_its_arrays_anew(home, dtype):
    explained = check_plan(home, dtype, (3,)).explain()
    assert "in place" in explained.work.complex_form
    assert explained.work.dtype == dtype and explained.work.flops == 8 * 3 * 4 * 3 * 5
    assert "in place" in dxgemm.explain_shape(4, 5, 3, dtype, batch=3).work.complex_form


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
