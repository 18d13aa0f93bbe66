"""A block of cuBLASDx a matrix: what it takes, when it is chosen, what it compiles to, its results.

The contract's sizes are none of its own, so that it has cases here.
"""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import product

import numpy as np
import pytest
from known_devices import H200
from ptx_flow import c_loads
from stored_functions import counted_builds, forget

import dxgemm
from dxgemm import errors
from dxgemm.choice.implementation import MOST_ACCUMULATOR_BYTES
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import choose, rank
from dxgemm.choice.tables import Speed
from dxgemm.cublasdx import block_batch, function_store, library
from dxgemm.cublasdx.mathdx import BlockDescriptor, BlockFunctions, Storage
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import Fusion
from dxgemm.testing.cases import Case
from dxgemm.testing.check import check
from dxgemm.testing.inputs import planted_zeros, scaled_circulants
from dxgemm.testing.padded import Padded

NAME, SIZE = "block_batch", 96
(CONFIG,) = block_batch.KERNEL.configs
DESCRIPTOR = block_batch.KERNEL.descriptor(CONFIG, "float32", arch="sm_90a")
FUNCTIONS = BlockFunctions(
    ltoir=b"code" * 1000,
    symbols={"execute": "cublasdx_execute_1"},
    a_smem=Storage(36864, 16),
    b_smem=Storage(36864, 16),
    fragment=Storage(144, 16),
    fragment_size=36,
)


def problem(batch=1000, **changes):
    rows = contiguous_problem("float32", SIZE, SIZE, SIZE, batch)
    return dataclasses.replace(rows, **changes)


ROWS = problem()
SUPPORTED = {
    "one matrix": problem(1),
    "the same a for all": problem(a=ROWS.a._replace(batch=0)),
    "padded rows": problem(a=ROWS.a._replace(row=100), b=ROWS.b._replace(row=104)),
    "odd rows of c and out": problem(
        c=ROWS.c._replace(row=97), out=ROWS.out._replace(row=99), reads_c=True
    ),
    "columns of a c that is not read": problem(c=ROWS.c.transposed()),
    "tf32 permitted": problem(precision="tf32"),
}
REFUSED = {
    "another m": (problem(m=95), "96 x 96 x 96, not 95 x 96 x 96"),
    "another n": (problem(n=97), "not 96 x 97 x 96"),
    "another k": (problem(k=0), "not 96 x 96 x 0"),
    "an epilogue": (problem(epilogue=Fusion((), ())), "epilogue"),
    "a column-major": (problem(a=ROWS.a.transposed()), "of a do not lie along its rows"),
    "b column-major": (problem(b=ROWS.b.transposed()), "of b do not lie along its rows"),
    "every other column of b": (problem(b=ROWS.b._replace(row=192, col=2)), "of b"),
    "odd rows of a": (problem(a=ROWS.a._replace(row=98)), "16 bytes"),
    "odd matrices of b": (problem(b=ROWS.b._replace(batch=SIZE * SIZE + 2)), "16 bytes"),
    "an odd address of a": (problem(a_alignment=8), "16 bytes"),
    "out column-major": (problem(out=ROWS.out.transposed()), "of out do not lie"),
    "c column-major": (problem(c=ROWS.c.transposed(), reads_c=True), "of c do not lie"),
}


@pytest.mark.parametrize("asked", SUPPORTED.values(), ids=SUPPORTED)
def test_what_it_takes(asked):
    assert block_batch.KERNEL.supports(asked) is None
    assert block_batch.KERNEL.block_count(CONFIG, asked) == asked.batch


@pytest.mark.parametrize("asked, reason", REFUSED.values(), ids=REFUSED)
def test_what_it_declines_it_declines_with_a_reason(asked, reason):
    assert reason in block_batch.KERNEL.supports(asked)


def test_other_dtypes_and_gpus_are_refused(configs_of_a_gpu):
    implementation = find_implementation(NAME)
    assert implementation.configs("float32") == (CONFIG,)
    assert CONFIG.accumulator_bytes("float32") <= MOST_ACCUMULATOR_BYTES
    assert implementation.configs("float64") == ()
    double = contiguous_problem("float64", SIZE, SIZE, SIZE)
    assert "not float64" in implementation.supports(double)
    assert "8.0 or later" in implementation.runs_on("sm_75")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"threads": 100}, "whole warps"),
        ({"threads": 2048}, "whole warps"),
        ({"thread_m": 5}, "evenly, in pairs"),
        ({"threads": 512, "thread_m": 6}, "evenly, in pairs"),
        ({"tile_k": 192}, "2 blocks leave 115712"),
    ],
)
def test_configs_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_each_sum_of_a_thread_is_in_one_pair():
    indices = [index for pair in CONFIG.pairs for index in pair]
    assert sorted(indices) == list(range(CONFIG.fragment_size))
    assert CONFIG.pairs[:2] == ((0, 6), (12, 18)), "along a row"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dtype": "float8"}, "float8"),
        ({"tile_k": 0}, "positive"),
        ({"threads": 100}, "whole warps"),
    ],
)
def test_descriptors_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(DESCRIPTOR, **change)


@pytest.fixture
def store(monkeypatch, tmp_path):
    with counted_builds(monkeypatch, tmp_path, "build_block_functions", FUNCTIONS) as built:
        yield built


def test_device_functions_are_built_once_and_kept(store):
    for _ in range(2):
        assert block_batch.KERNEL.device_functions(CONFIG, "float32", arch="sm_90a") == FUNCTIONS
        forget()
    assert store == [BlockDescriptor(SIZE, SIZE, SIZE, 256, "float32", "sm_90a")]


@pytest.mark.parametrize(
    "change", [{"a_smem": Storage(40000, 16)}, {"b_smem": Storage(1, 16)}, {"fragment_size": 40}]
)
def test_functions_of_another_layout_are_refused(store, monkeypatch, change):
    other = dataclasses.replace(FUNCTIONS, **change)
    monkeypatch.setattr(function_store, "build_block_functions", lambda descriptor: other)
    with pytest.raises(errors.BuildError, match="36864, 36864 and 36 were expected"):
        block_batch.KERNEL.device_functions(CONFIG, "float32", arch="sm_90a")


def test_it_is_chosen_where_the_gpus_table_has_it_and_it_can_run(give_table):
    quick = Speed(0.75, launch_us=2.0, read_share=1.0, write_share=1.0)
    give_table(H200, {("float32", NAME, str(CONFIG)): quick})
    assert choose(ROWS, H200).implementation.name == NAME
    for asked, other in (
        (REFUSED["odd rows of a"][0], H200),
        (ROWS, dataclasses.replace(H200, arch="sm_75")),
    ):
        ranking = rank(asked, other)
        assert NAME in ranking.rejected
        assert NAME not in [candidate.implementation.name for candidate in ranking.candidates]


def test_it_is_not_chosen_where_it_was_measured_to_be_slow(give_table):
    give_table(H200, {("float32", NAME, str(CONFIG)): Speed(0.01, read_share=0.02)})
    ranking = rank(ROWS, H200)
    assert ranking.candidates[0].implementation.name != NAME
    assert ranking.rejected[NAME].startswith("slower")


def test_it_is_a_slow_build_and_built_ahead_for_its_size(configs_of_a_gpu, store):
    implementation = find_implementation(NAME)
    (spec,) = implementation.common_specs(("float32",))
    assert spec == implementation.slow_build(CONFIG, ROWS, "sm_90a")


COMPILE = """
import dataclasses, json
from importlib import import_module
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import build, compile_kernel
from dxgemm.cublasdx import block_batch

def linked(config):
    functions = block_batch.KERNEL.device_functions(config, "float32", arch="sm_90a")
    def make():
        return block_batch.KERNEL.make_kernel(config, "float32", functions=functions)
    spec = find_implementation("block_batch").spec(config, "float32")
    code = build._compile(spec, "sm_90a", make, output="ltoir")
    ptx = build._link(spec, "sm_90a", code, functions.ltoir, output="ptx")
    return ptx.rstrip(b"\\0").decode()

(config,) = block_batch.KERNEL.configs
kernel = compile_kernel(find_implementation("block_batch").spec(config, "float32"), "sm_90a")
other = dataclasses.replace(config, thread_m=3)
print(json.dumps([dataclasses.asdict(kernel.record), linked(config), linked(other)]))
"""


@pytest.fixture(scope="module")
def kernels(run_python, once):
    """The kernel's record, its PTX, and that of one that expects other neighbours."""
    try:
        library.library()
    except errors.MissingPackageError as error:
        pytest.skip(str(error))
    return json.loads(once("block_batch.json", lambda: run_python(COMPILE)))


def test_two_blocks_share_a_multiprocessor_with_their_sums_in_registers(kernels):
    record, *_ = kernels
    assert record["registers"] <= 128
    assert record["stack_bytes"] == 0
    assert 2 * (record["dynamic_smem_bytes"] + 1024) <= 228 * 1024


def test_pairs_are_stored_together_and_nothing_is_left_of_their_coordinates(kernels):
    _, ptx, _ = kernels
    pairs, elements = len(CONFIG.pairs), CONFIG.fragment_size
    assert stores(ptx, "v2") == 2 * pairs, "with c and without"
    assert stores(ptx) == 2 * elements, "where addresses are odd"
    # Threads that copy, beta, and addresses.
    assert len(re.findall(r"^\s*@!?%p\d+\s+bra", ptx, re.M)) == 4


def test_sums_that_are_no_neighbours_are_stored_one_by_one(kernels):
    _, _, ptx = kernels
    assert stores(ptx, "v2") == 0
    assert stores(ptx) == 2 * CONFIG.fragment_size


def stores(ptx, vector=""):
    kind = rf"\.{vector}" if vector else ""
    return len(re.findall(rf"\bst\.global{kind}\.(?:f|b|u)32\b", ptx))


def test_no_load_of_c_is_reachable_if_beta_is_zero(kernels):
    for ptx in kernels[1:]:
        assert c_loads(ptx, beta_is_zero=False) > 0
        assert c_loads(ptx, beta_is_zero=True) == 0


FACTORS = [(1.0, 0.0), (0.7, 0.0), (1.0, 1.0), (0.7, 1.3), (-1.0, 0.5)]
BATCH_EXTENTS = {
    "one": (None, None, None),
    "three": (3, 3, 3),
    "257": (257, 257, 257),
    "the same a": (None, 3, 3),
    "the same b": (5, 1, 5),
}
# Rows of c at multiples of 16, 8 and 4 bytes; its address too.
LAYOUTS = [
    ("row", "row", "row"),
    ("row+1000", "row", "row@2"),
    ("row", "row+1000", "row+1"),
    ("row_aligned", "row+1000", "row@1"),
    ("row", "row", "rows_reversed"),
    ("rows_reversed", "row", "row+1000"),
]


def named(a, b, c, alpha, beta, **options):
    return dxgemm.gemm(a, b, c, alpha, beta, implementation=NAME, **options)


@pytest.fixture
def runs():
    """Skips where the GPU cannot run it."""
    reason = find_implementation(NAME).runs_on(dxgemm.runtime.device.device_facts(0).arch)
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("data", ["random", "integers"])
@pytest.mark.parametrize("batch", BATCH_EXTENTS.values(), ids=BATCH_EXTENTS)
def test_results_in_place(home, batch, data):
    """c is full of NaN if beta is 0, as is the memory between and around the operands."""
    layouts = LAYOUTS[:1] if 257 in batch else LAYOUTS
    cases = [
        Case("float32", SIZE, SIZE, SIZE, layout, *factors, data, batch)
        for layout, factors in product(layouts, FACTORS)
    ]
    is_exact = data == "integers"
    exact = [case for case in cases if case.alpha in (1, -1)] if is_exact else cases
    assert check(exact, named, home, limit=0.0 if is_exact else 1.0) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("c_layout, out_layout", [("row", "row+1000"), ("row+1", "row@2")])
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_out_apart_from_c(home, make, beta, c_layout, out_layout):
    shape = 3, SIZE, SIZE
    a_values, a = make(shape, "float32", "row+1000")
    b_values, b = make(shape, "float32")
    c_values, c = make(shape, "float32", c_layout)
    out = Padded(home, np.full(shape, np.nan, np.float32), out_layout)
    result = dxgemm.gemm(a.array, b.array, c.array, 3.0, beta, out=out.array, implementation=NAME)
    assert result is out.array
    assert np.array_equal(out.fetch(), 3 * (a_values @ b_values) + beta * c_values)
    for operand in (a, b, c):
        operand.assert_unchanged()


@pytest.mark.gpu
@pytest.mark.usefixtures("runs")
def test_planted_zeros_stay_zero(home):
    a, b, is_zero = planted_zeros(SIZE, SIZE, SIZE, "float32")
    result = home.fetch(dxgemm.gemm(home.send(a), home.send(b), implementation=NAME))
    assert not result[is_zero].any() and result[~is_zero].all()


@pytest.mark.gpu
@pytest.mark.usefixtures("runs")
def test_inner_scaling_by_powers_of_two_changes_no_bit(home):
    exponents = np.finfo(np.float32).minexp // -2 - 3
    results = []
    for most in (0, exponents):
        a, b = map(home.send, scaled_circulants(SIZE, most, "float32"))
        results.append(home.fetch(dxgemm.gemm(a, b, implementation=NAME)))
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.gpu
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("layouts", [("row+1", "row"), ("row", "row@1"), ("col", "row")])
def test_what_it_refuses_another_computes(home, make, layouts):
    shape = 3, SIZE, SIZE
    (a_values, a), (b_values, b) = (make(shape, "float32", layout) for layout in layouts)
    with pytest.raises(errors.UnsupportedProblemError, match="16 bytes"):
        dxgemm.gemm(a.array, b.array, implementation=NAME)
    assert np.array_equal(home.fetch(dxgemm.gemm(a.array, b.array)), a_values @ b_values)


@pytest.mark.gpu
@pytest.mark.usefixtures("runs")
def test_a_column_major_result_is_that_of_the_transposed_product(home, make):
    shape = 3, SIZE, SIZE
    a_values, a = make(shape, "float32", "col")
    b_values, b = make(shape, "float32", "col_aligned")
    out = Padded(home, np.full(shape, np.nan, np.float32), "col+1")
    dxgemm.gemm(a.array, b.array, out=out.array, implementation=NAME)
    assert np.array_equal(out.fetch(), a_values @ b_values)
