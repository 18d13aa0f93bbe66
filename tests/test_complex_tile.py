"""Complex products of any size as they lie, by the kernels with tiles of complex sums."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from complex_operands import CALLS, IS_SIMULATED, check, check_rows, check_special_values, integers
from test_complex_batch import CONFIGS, LAYOUTS, direct

import dxgemm
from dxgemm import errors
from dxgemm.call.complex_call import LARGE, SMALL
from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.choice.legality import fitting_configs
from dxgemm.choice.registry import find_implementation
from dxgemm.handwritten.kernels import complex_tile
from dxgemm.problem.complex_form import MOST_FEW_ROWS, direct_form
from dxgemm.problem.define import contiguous_problem
from dxgemm.runtime.device import device_facts

# Each kernel with its dtype and its configs. The simulator takes seconds for a warp's mma, and
# complex_tensor_core has tests of its own.
CASES = [
    pytest.param(name, dtype, config, id=f"{name}-{config}")
    for dtype, name in LARGE.items()
    if name != "complex_tensor_core" or not IS_SIMULATED
    for config in (
        import_module(find_implementation(name).module).KERNEL.simulator_configs
        if IS_SIMULATED
        else find_implementation(name).configs(dtype)
    )
]


KERNELS = [*LARGE.items(), *((dtype, SMALL) for dtype in LARGE)]


@pytest.fixture(autouse=True)
def fitting(request):
    """Skip kernels and configs that this device does not run."""
    asked = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if "name" in asked:
        implementation, device = find_implementation(asked["name"]), device_facts(0)
        if reason := implementation.runs_on(device.arch):
            pytest.skip(reason)
        configs = fitting_configs(implementation, asked["dtype"], device)
        if asked.get("config", configs[0]) not in configs:
            pytest.skip(f"the config does not fit {device.name}")


@pytest.mark.parametrize(("name", "dtype", "config"), CASES)
@pytest.mark.parametrize("below", [-1, 2] if IS_SIMULATED else [-1, 0, 1, 2])
def test_every_config_at_the_edges_of_its_tile(home, name, dtype, config, below):
    """One tile and several, whole ones too; k of some stages, of parts of one, and of none."""
    m, n, k = config.tile_m - below, config.tile_n + below, 4 * config.tile_k - below
    layouts = ("C", "F", "C") if below % 2 else ("F", "C", "F")
    call = CALLS[below:][:1]
    for sizes in ((m, n, k), (n, m + 2, 1 + below % 2), (2 * m, n, k + 8 * config.tile_k)):
        check(home, dtype, sizes, layouts, call, (name, config), batch=1 + below % 2)


@pytest.mark.parametrize(("name", "dtype", "config"), CASES)
@pytest.mark.parametrize("layouts", LAYOUTS, ids="".join)
def test_every_layout_and_conjugate(home, name, dtype, config, layouts):
    if config not in [case.values[2] for case in CASES if case.values[0] == name][::4]:
        pytest.skip("the kernels of other configs copy operands in the same way")
    for sizes in ((16, 32, 8), (17, 5, 9)) if IS_SIMULATED else ((128, 192, 48), (131, 67, 33)):
        check(home, dtype, sizes, layouts, CALLS[:: 3 if IS_SIMULATED else 1], (name, config))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype", "config"), CASES)
@pytest.mark.parametrize("k", [0, 1, 2, 7, 8, 9, 31, 65, 1000])
def test_every_depth(home, name, dtype, config, k):
    """Blocks of a cluster may have no tile of k, or one that ends early."""
    for size in (70, 128):
        check(home, dtype, (size, size, k), "CCC", CALLS[1:2], (name, config), batch=2)


@pytest.mark.parametrize(("name", "dtype", "config"), CASES)
def test_slices_of_k_are_added(home, name, dtype, config):
    """Into c and beside it, in its layout; the last slice may be shorter, or empty."""
    if config.split_k > 1 or not find_implementation(name).kernel.slices_k:
        pytest.skip("its blocks share out k otherwise")
    m, n, k = config.tile_m + 1, config.tile_n - 1, 5 * config.tile_k - 1
    for slices, layouts in ((2, "CFC"), (4, "FCF"), (5, "CCs")):
        check(home, dtype, (m, n, k), layouts, CALLS[1:4:2], (name, config, slices), batch=2)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "name"), LARGE.items())
def test_rows_far_apart(home, name, dtype):
    """The last row of a begins more than 2**31 bytes behind the first one."""
    m, n, k = 70, 33, 40
    a, b = integers((m, k), dtype, 1), integers((k, n), dtype, 2)
    around = np.zeros((m, 2**22), dtype)
    around[:, 5 : 5 + k] = a
    sent = home.send(around)[:, 5 : 5 + k]
    found = dxgemm.gemm(sent, home.send(b), implementation=name)
    np.testing.assert_array_equal(home.fetch(found), a @ b)


@pytest.mark.parametrize(("dtype", "name"), KERNELS)
@pytest.mark.parametrize("conjugate", ["", "a", "b", "ab"])
def test_special_values_stay_in_their_components(home, name, dtype, conjugate):
    options = {"conjugate": conjugate, "implementation": name}
    for layouts in ("CCC", "FFC", "sCC"):
        check_special_values(home, dtype, layouts, 3, (2,), **options)


@pytest.mark.parametrize(("dtype", "name"), KERNELS)
def test_a_name_means_this_kernel_or_an_error(home, name, dtype):
    a, real = home.send(integers((5, 5), dtype)), home.send(np.ones((2, 5, 5), "float32"))
    for options in ({}, {"precision": "3m"}, {"batch_invariant": True}):
        assert dxgemm.explain(a, a, implementation=name, **options).implementation == name
    refused = errors.UnsupportedProblemError
    with pytest.raises(refused, match=f"{dtype}.*, not float32"):
        dxgemm.gemm(real, real, implementation=name)
    with pytest.raises(refused, match=f"{name!r}.* Hermitian"):
        dxgemm.gemm_symmetric(a, implementation=name)
    with pytest.raises(refused, match="has no config"):
        dxgemm.gemm(a, a, implementation=(name, "7x7x7"))
    if name == SMALL:
        with pytest.raises(refused, match="cannot cut this k"):
            dxgemm.gemm(a, a, implementation=(name, CONFIGS[0], 2))


@pytest.mark.parametrize(("dtype", "name"), KERNELS)
def test_batch_invariant_rows_have_the_same_bits(home, name, dtype):
    sizes = (6, 5, 9) if IS_SIMULATED else (130, 67, 1000)
    check_rows(home, dtype, sizes, implementation=name)


@pytest.mark.gpu
def test_the_automatic_choice_is_a_direct_kernel(home):
    for dtype in LARGE:
        a = home.send(integers((300, 300), dtype, 1))
        explained = dxgemm.explain(a, a)
        assert explained.implementation == LARGE[dtype]
        assert "in place" in explained.work.complex_form


@pytest.mark.parametrize("dtype", LARGE)
def test_large_products_are_computed_as_they_lie(dtype):
    large = contiguous_problem(dtype, 512, 512, 512)
    assert direct(large) and direct(replace(large, k=0)) and direct(replace(large, batch=9))
    for name in ("m", "n"):
        few = replace(large, **{name: MOST_FEW_ROWS})
        assert direct(few) == (dtype == "complex128") and not direct(few, arch="sm_80")
    assert not direct(contiguous_problem(dtype, 2048, 2048, 2048, precision="3m"))
    thin = contiguous_problem(dtype, 5000, 5000, 50, precision="3m")
    assert direct(thin), "copies and sums of parts take longer than the fourth product"
    for other in ("cublas", "tuned", BatchInvariant(None)):
        assert not direct(large, other)
    assert not direct(large, arch="sm_75")


def test_a_kernel_is_made_for_layouts_and_conjugates():
    config = complex_tile.KERNEL.configs[0]

    def variant(conjugates="", size=8, **changes):
        problem = replace(contiguous_problem("complex64", size, size, size), **changes)
        return complex_tile.variant(config, direct_form(problem, conjugates).product)

    rows = contiguous_problem("complex64", 8, 8, 8)
    assert variant() == ("", "k", "outer16")
    assert variant("ba", b=rows.b.transposed()) == ("ab", "k", "k")
    assert variant("a", a=rows.a.transposed()) == ("a", "outer16", "outer16")
    assert variant(size=5) == ("", "k", "outer")
