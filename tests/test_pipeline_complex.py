"""cuBLASDx pipelines of complex elements: `pipeline_complex`, by name.

The simulator runs the kernel with a stand-in for cuBLASDx's product of a tile.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from known_devices import H200
from test_complex import CALLS, conjugated, integers
from test_complex_batch import check

import dxgemm
from dxgemm import errors
from dxgemm.api import build_tasks
from dxgemm.call.complex_call import DIRECT, form_of_problem
from dxgemm.choice.registry import find_implementation
from dxgemm.cublasdx.pipeline_complex import KERNEL, descriptor
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.tile_store import tile_bytes
from dxgemm.problem.complex_form import direct_form
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS

NAME = "pipeline_complex"
DTYPES = tuple(COMPLEX_PARTS)
IS_SIMULATED = simulator_enabled()
CONFIGS = KERNEL.simulator_configs if IS_SIMULATED else KERNEL.configs
EACH_CONFIG = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.dtype)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES)
# For tests of many blocks: the simulator, which is slow at them, takes one dtype.
DTYPE = pytest.mark.parametrize("dtype", DTYPES[:1] if IS_SIMULATED else DTYPES)
CONFIG = pytest.mark.parametrize("config", CONFIGS[1:] if IS_SIMULATED else CONFIGS, ids=str)
DIRECTIONS = ("row", "col")
CONJUGATES = ("", "a", "b", "ab")


@pytest.fixture
def pipeline_home(home_of):
    return home_of(NAME)


def config_for(dtype):
    return next(config for config in CONFIGS if config.dtype == dtype)


def depth_of(config):
    """Smallest k that fills the pipeline."""
    return config.stages * config.tile_k


@EACH_CONFIG
@pytest.mark.parametrize("below", [-1, 2] if IS_SIMULATED else [-1, 0, 1, 2])
def test_every_config_at_the_edges_of_its_tile(pipeline_home, config, below):
    """Less than a tile, one and several, whole ones too; k with a rest after the last whole tile.

    The tile at an edge begins further inwards, at odd rows or columns.
    """
    m, n, k = config.tile_m - below, config.tile_n + abs(below), depth_of(config) - below
    layouts = ("C", "F", "C") if below % 2 else ("F", "C", "F")
    call = CALLS[below:][:1]
    cases = (m, n, k), (n, n + 2, 1 + below % 2), (n, 2 * n, k + 8 * config.tile_k)
    for sizes in cases[: 2 if IS_SIMULATED else 3]:
        check(pipeline_home, config.dtype, sizes, layouts, call, NAME, batch=1 + below % 2)


@DTYPE
@pytest.mark.parametrize("conjugate", ["", "ab"] if IS_SIMULATED else CONJUGATES)
@pytest.mark.parametrize("layouts", ["CC", "CF", "FC", "FF"])
def test_every_layout_and_conjugate(pipeline_home, dtype, layouts, conjugate):
    """By copies of 16 bytes, and by elements where complex64 lies at odd places."""
    config = config_for(dtype)
    tile, depth = config.tile_m, depth_of(config)
    calls = [(2 - 1j, 1j, conjugate)]
    cases = (tile + 1, 2 * tile + 3, depth + 1), (tile + 2, tile + 4, depth + 2)
    for sizes in cases[: 1 if IS_SIMULATED else 2]:
        check(pipeline_home, dtype, sizes, (*layouts, "C"), calls, NAME, batch=1)


@DTYPE
@pytest.mark.parametrize(
    "layouts", ["CsC", "sFF", "FFs", "ssC", "CCs", "FCF"][: 3 if IS_SIMULATED else 6]
)
def test_operands_and_results_of_any_strides(pipeline_home, dtype, layouts):
    config = config_for(dtype)
    calls = CALLS[1:2] if IS_SIMULATED else CALLS
    sizes = config.tile_m + 1, config.tile_n + 2, depth_of(config) + 1
    check(pipeline_home, dtype, sizes, layouts, calls, NAME, batch=1 if IS_SIMULATED else 2)


@DTYPE
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 9, 2), (5, 1, 8), (7, 6, 0)], ids=str)
def test_small_matrices_are_computed_by_plain_loads(pipeline_home, dtype, sizes):
    check(pipeline_home, dtype, sizes, "CFC", CALLS[:: 2 if IS_SIMULATED else 1], NAME)


@CONFIG
@pytest.mark.parametrize("more", [-1, 0, 1] if IS_SIMULATED else [-2, -1, 0, 1, 8])
def test_every_depth(pipeline_home, config, more):
    """The pipeline takes k from as many tiles as stages on."""
    tiles = config.stages + more
    for rest in (0, config.tile_k - 1) if IS_SIMULATED else (0, 1, config.tile_k - 1):
        sizes = config.tile_m, config.tile_n, tiles * config.tile_k + rest
        check(pipeline_home, config.dtype, sizes, "CCC", CALLS[3:4], NAME, batch=1)


@EACH_CONFIG
def test_slices_of_k_are_added(pipeline_home, config):
    """Into c and beside it, in its layout; short slices are summed by the last one."""
    m, n = config.tile_m + 1, config.tile_n + 2
    calls, batch = (CALLS[3:4], 1) if IS_SIMULATED else (CALLS[1:4:2], 2)
    cases = (2, "FCF", 2), (3, "CFC", 4), (5, "CCs", 2)
    for slices, layouts, stages in cases[: 1 if IS_SIMULATED else 3]:
        k = stages * depth_of(config) + 1
        name = NAME, config, slices
        check(pipeline_home, config.dtype, (m, n, k), layouts, calls, name, batch=batch)


@CONFIG
def test_operands_may_be_broadcast_and_run_backwards(pipeline_home, config):
    m, n, k = config.tile_m + 1, config.tile_n + 2, depth_of(config) + 3
    a, b = integers((m, k), config.dtype, 1), integers((2, k, n), config.dtype, 2)
    row = integers((1, k), config.dtype, 3)
    sent_a, sent_b, sent_row = map(pipeline_home.send, (a, b, row))
    cases = (
        (sent_a, sent_b, a, b),
        (sent_a[::-1], sent_b[:, ::-1], a[::-1], b[:, ::-1]),  # rows backwards
        (sent_a[::-1, ::-1], sent_b[:, ::-1, ::-1], a[::-1, ::-1], b[:, ::-1, ::-1]),
    )
    for sent_left, sent_right, left, right in cases:
        found = dxgemm.gemm(sent_left, sent_right, implementation=NAME)
        np.testing.assert_array_equal(pipeline_home.fetch(found), left @ right)
    namespace = np if IS_SIMULATED else pytest.importorskip("cupy")
    same = namespace.broadcast_to(sent_row, (m, k))
    found = dxgemm.gemm(same, sent_b, implementation=NAME, conjugate="a")
    wanted = np.broadcast_to(row.conj(), (m, k)) @ b
    np.testing.assert_array_equal(pipeline_home.fetch(found), wanted)


@EACH_CONFIG
def test_what_is_not_read_does_not_leak(pipeline_home, config):
    """NaN in c with beta 0, in a and b with alpha 0, and in the next matrix of the batch."""
    dtype = config.dtype
    m, n, k = config.tile_m + 1, config.tile_n, depth_of(config)
    a, b, c = (integers((2, *s), dtype, i) for i, s in enumerate(((m, k), (k, n), (m, n))))
    options = {"implementation": NAME}
    nan = complex(np.nan, np.nan)
    sent = [pipeline_home.send(array) for array in (a, b, np.full_like(c, nan))]
    found = dxgemm.gemm(*sent, 1j, **options)
    np.testing.assert_array_equal(pipeline_home.fetch(found), 1j * (a @ b))
    unread = [pipeline_home.send(np.full_like(array, nan)) for array in (a, b)]
    found = dxgemm.gemm(*unread, pipeline_home.send(c), 0, 2 - 1j, **options)
    np.testing.assert_array_equal(pipeline_home.fetch(found), (2 - 1j) * c)
    a[1] = nan
    found = pipeline_home.fetch(dxgemm.gemm(pipeline_home.send(a), sent[1], **options))
    np.testing.assert_array_equal(found[0], a[0] @ b[0])
    assert np.isnan(found[1].real).all() and np.isnan(found[1].imag).all()


@EACH_CONFIG
@pytest.mark.parametrize("conjugate", CONJUGATES)
def test_special_values_stay_in_their_components(pipeline_home, config, conjugate):
    """Each component is a sum of products of components; real factors multiply them alone."""
    m, n, k = config.tile_m, config.tile_n, depth_of(config)
    a, b = integers((m, k), config.dtype, 1), integers((k, n), config.dtype, 2)
    a[1, 2], a[3, 0], b[k - 1, 3] = complex(np.inf, 1), complex(1, np.nan), complex(2, -np.inf)
    left, right = conjugated(a, b, conjugate)
    with np.errstate(invalid="ignore"):
        re = left.real @ right.real - left.imag @ right.imag
        im = left.real @ right.imag + left.imag @ right.real
    sent = pipeline_home.send(a), pipeline_home.send(b)
    found = pipeline_home.fetch(
        dxgemm.gemm(*sent, None, 2, conjugate=conjugate, implementation=NAME)
    )
    np.testing.assert_array_equal(found.real, (2 * re).astype(found.real.dtype))
    np.testing.assert_array_equal(found.imag, (2 * im).astype(found.imag.dtype))


@EACH_CONFIG
def test_errors_are_within_the_rule(pipeline_home, config):
    """Each component against |A| |B| of the components, of the pipeline and of plain loads."""
    dtype = config.dtype
    m, n, k = config.tile_m + 1, config.tile_n + 2, depth_of(config) + 3
    rng = np.random.default_rng(0)
    a, b = (
        (rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(dtype)
        for s in ((m, k if IS_SIMULATED else 999), (k if IS_SIMULATED else 999, n))
    )
    found = pipeline_home.fetch(
        dxgemm.gemm(pipeline_home.send(a), pipeline_home.send(b), implementation=NAME)
    )
    exact = a.astype("clongdouble") @ b.astype("clongdouble")
    real = abs(a.real) @ abs(b.real) + abs(a.imag) @ abs(b.imag)
    imaginary = abs(a.real) @ abs(b.imag) + abs(a.imag) @ abs(b.real)
    bound = 2 * a.shape[1] * np.finfo(COMPLEX_PARTS[dtype]).eps
    for part, scale in (("real", real), ("imag", imaginary)):
        assert (abs(getattr(found - exact, part)) <= bound * scale).all()


@CONFIG
def test_planted_products_are_found(pipeline_home, config):
    """Of matrices with one element that is not 0 each, the result has one, in its place."""
    m, n, k = config.tile_m + 3, 2 * config.tile_n - 5, depth_of(config) + 3
    rng = np.random.default_rng(1)
    a, b = np.zeros((4, m, k), config.dtype), np.zeros((4, k, n), config.dtype)
    wanted = np.zeros((4, m, n), config.dtype)
    for i in range(4):
        row, col, step = (int(rng.integers(size)) for size in (m, n, k))
        a[i, row, step], b[i, step, col] = 1 + 2j, 3 - 1j
        wanted[i, row, col] = (1 + 2j) * (3 - 1j)
    sent = pipeline_home.send(a), pipeline_home.send(b)
    found = pipeline_home.fetch(dxgemm.gemm(*sent, implementation=NAME))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.gpu
@EACH_DTYPE
def test_rows_far_apart(home, dtype):
    """The last row of a begins more than 2**31 bytes behind the first one."""
    m, n, k = 70, 67, 80
    a, b = integers((m, k), dtype, 1), integers((k, n), dtype, 2)
    around = np.zeros((m, 2**22), dtype)
    around[:, 5 : 5 + k] = a
    sent = home.send(around)[:, 5 : 5 + k]
    found = dxgemm.gemm(sent, home.send(b), implementation=NAME)
    np.testing.assert_array_equal(home.fetch(found), a @ b)


@EACH_DTYPE
def test_plans_and_explanations(pipeline_home, dtype):
    a = pipeline_home.send(integers((9, 9), dtype))
    plan = dxgemm.plan(a, a, implementation=NAME, conjugate="a")
    explained = plan.explain()
    assert explained.implementation == NAME and "as they lie" in explained.complex_form
    values = pipeline_home.fetch(a)
    np.testing.assert_array_equal(pipeline_home.fetch(plan()), values.conj() @ values)


def test_a_name_means_this_kernel_or_an_error(home):
    a = home.send(integers((5, 5), "complex64"))
    real = home.send(np.ones((5, 5), "float32"))
    refused = errors.UnsupportedProblemError
    with pytest.raises(refused, match="complex64 and complex128, not float32"):
        dxgemm.gemm(real, real, implementation=NAME)
    with pytest.raises(refused, match="Hermitian"):
        dxgemm.gemm_symmetric(a, implementation=NAME)
    with pytest.raises(refused, match="not batch invariant"):
        dxgemm.gemm(a, a, implementation=NAME, batch_invariant=True)


@EACH_DTYPE
def test_it_is_used_only_when_named(configs_of_a_gpu, dtype):
    implementation = find_implementation(NAME)
    assert NAME in DIRECT and not implementation.is_automatic(dtype, H200.arch)
    assert all(spec.implementation != NAME for spec, _ in build_tasks([H200.arch], (dtype,), None))
    problem = contiguous_problem(dtype, 9, 9, 9)
    assert form_of_problem(problem, "a", NAME, H200.arch).is_direct
    built = {spec.variant for spec in implementation.common_specs((COMPLEX_PARTS[dtype],))}
    plain = {variant[1:] for variant in built if variant[0] == "" and variant[-1] != "sliced"}
    copies = ("16", "item") if dtype == "complex64" else ("16",)
    assert plain == {*product(DIRECTIONS, DIRECTIONS, copies)}


def test_a_kernel_is_made_for_layouts_and_conjugates():
    def variant(dtype, conjugates="", size=8, **changes):
        problem = replace(contiguous_problem(dtype, size, size, size), **changes)
        return KERNEL.variant(config_for(dtype), direct_form(problem, conjugates).product)

    rows = contiguous_problem("complex64", 8, 8, 8)
    assert variant("complex64") == ("", "row", "row", "16")
    assert variant("complex64", "ba", size=9) == ("ab", "row", "row", "item")
    sliced = replace(contiguous_problem("complex64", 8, 8, 8), slices=2)
    config = config_for("complex64")
    assert KERNEL.variant(config, sliced) == ("", "row", "row", "16", "sliced")
    both = KERNEL.configs[0], "complex64", "ab", "row", "col", "16"
    asked = descriptor(*both, arch="sm_90a")
    assert asked == descriptor(*both[:2], "", *both[3:], "sliced", arch="sm_90a")
    assert (asked.dtype, asked.accumulator) == ("complex64", "complex64")
    assert variant("complex64", a=rows.a.transposed(), m=7) == ("", "col", "row", "item")
    assert variant("complex128", "b", size=9, b=rows.b.transposed()) == ("b", "row", "col", "16")
    assert variant("complex128", k=0, b=rows.b.transposed()) == ("", "row", "row", "16")


@EACH_DTYPE
@pytest.mark.parametrize("name", "ab")
def test_one_conjugated_operand_is_copied(dtype, name):
    """Its copy is row-major; of two, neither is."""
    problem = contiguous_problem(dtype, 9, 7, 5, layout="col_col")
    form = form_of_problem(problem, name, NAME, "sm_90a")
    other = "b" if name == "a" else "a"
    rows, columns = (9, 5) if name == "a" else (5, 7)
    assert form.copies[name].conjugates and form.conjugates == name
    assert form.product.conjugates == "" and f"copy: {name} conjugated" in str(form)
    copied = getattr(form.product, name)
    assert copied.col == 1 and copied.row >= columns
    assert form.copies[name].size == 2 * rows * copied.row
    assert getattr(form.product, other) == getattr(problem, other)
    assert not form_of_problem(problem, "ab", NAME, "sm_90a").copies
    assert not form_of_problem(replace(problem, k=0), name, NAME, "sm_90a").copies
    assert not form_of_problem(problem, name, "complex_batch", "sm_90a").copies


@pytest.mark.parametrize("config", KERNEL.configs + KERNEL.simulator_configs, ids=str)
def test_threads_share_out_the_tile(config):
    """Each element of a tile belongs to one thread; barriers lie behind the tile."""
    dtype = config.dtype
    tile = config.thread_tile(dtype)
    width = 16 // np.dtype(dtype).itemsize  # elements of 16 bytes
    lanes = tile.col_group // width
    taken = np.zeros((config.tile_m, config.tile_n), int)
    for thread, i, j in np.ndindex(config.threads, tile.rows, tile.cols):
        row = thread // lanes + i * tile.row_group
        taken[row, thread % lanes * width + j // width * tile.col_group + j % width] += 1
    assert (taken == 1).all()
    stages = config.stages * config.stage_bytes(dtype)
    barriers = config.pipeline_start(dtype) + stages
    assert barriers >= tile_bytes(config.tile_m, config.tile_n, dtype)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split_k": 2}, "no clusters"),
        ({"stages": 1}, "2 or more"),
        ({"tile_m": 48, "tile_n": 48}, "multiples of 32"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(KERNEL.configs[0], **changes)
