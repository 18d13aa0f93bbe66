"""Split-K with a workspace: sums of slices, added by a kernel of its own."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from contract import misfit
from counted_builds import made_up_kernel
from known_devices import H200
from oracle.abilities import inability
from oracle.cases import Case
from oracle.check import assert_right
from oracle.inputs import operands, planted_zeros, scaled_circulants
from oracle.kinds import KINDS, limits

import dxgemm
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import choose
from dxgemm.epilogues import bias, relu
from dxgemm.problem.define import contiguous_problem

SLICING = [
    pytest.param(implementation, config, kind, id=f"{implementation.name}-{config}-{kind}")
    for implementation in dxgemm.implementations()
    if implementation.kernel.slices_k
    for kind in ("float32", "float64", "float16", "float16_to_float32", "bfloat16", "tf32")
    if not inability(implementation, kind, "sm_90a")
    for config in implementation.configs(kind)
    if config.split_k == 1 and config.takes_slices
]

IN_FULL_PRECISION = [param for param in SLICING if param.values[2] in ("float32", "float64")]


def sizes(config, slices):
    """Results of one element, of a ragged tile and more; each slice of one k tile and of more."""
    depth = config.tile_k * slices
    for m, n in ((1, 1), (config.tile_m + 1, 5), (3, config.tile_n - 1), (70, 2 * config.tile_n)):
        for k in (depth, depth - config.tile_k + 1, 3 * depth + 2):
            yield m, n, k


@pytest.mark.gpu
@pytest.mark.parametrize("slices", [2, 5, 19])
@pytest.mark.parametrize("implementation, config, kind", SLICING)
def test_slices(contract, implementation, config, kind, slices):
    orders = ("row", "col")
    groups = [
        tuple(
            Case(kind, m, n, k, (a + padding, b + padding, c), *KINDS[kind].factors)
            for (a, b, c), padding in product(product(orders, orders, orders), ("", "_aligned"))
        )
        for m, n, k in sizes(config, slices)
    ]
    contract(groups, config=config, slices=slices)


@pytest.mark.gpu
@pytest.mark.parametrize("implementation, config, kind", IN_FULL_PRECISION)
def test_slices_are_conventional_arithmetic(home, implementation, config, kind):
    if reason := misfit(implementation, config, kind):
        pytest.skip(reason)

    def multiply(a, b):
        pinned = (implementation.name, config, 5)
        return home.fetch(dxgemm.gemm(home.send(a), home.send(b), implementation=pinned))

    a, b, is_zero = planted_zeros(200, 201, 1000, kind)
    assert ((multiply(a, b) == 0) == is_zero).all()
    exponents = limits(kind).minexp // -2 - 3
    plain, scaled = (multiply(*scaled_circulants(200, spread, kind)) for spread in (0, exponents))
    assert plain.tobytes() == scaled.tobytes()


def five_slices(name, kind):
    return name, find_implementation(name).configs(kind)[0], 5


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "name"),
    [("float32", "tuned"), ("float64", "tensor_core"), ("float16", "tensor_tile")],
)
def test_a_sliced_batch_with_an_epilogue(make, home, kind, name):
    (a, padded_a), (b, padded_b) = make((3, 30, 4000), kind), make((4000, 50), kind)
    (c, padded_c), (v, padded_v) = make((3, 30, 50), kind), make((1, 50), kind)
    plan = dxgemm.plan(
        padded_a.array, padded_b.array, padded_c.array, 2, -1,
        epilogue=bias(padded_v.array[0]) | relu, implementation=five_slices(name, kind),
    )  # fmt: skip
    assert plan.explain().choice.slices == 5
    plan()
    assert (padded_c.fetch() == np.maximum(2 * (a @ b) - c + v, 0)).all()


@pytest.mark.gpu
def test_a_graph_of_a_sliced_product(cupy):
    shapes = Case("float32", 40, 24, 2000).shapes
    first, second = (operands(data, *shapes, "float32") for data in ("random", "canary"))
    arrays = [cupy.asarray(values) for values in first]
    sliced = five_slices("tuned", "float32")
    plan = dxgemm.plan(*arrays, 0.7, 1.3, implementation=sliced)
    assert plan.explain().choice.slices == 5
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        plan()
        dxgemm.gemm(*arrays[:2], out=arrays[2], beta=0, implementation=sliced)
        plan()
        graph = stream.end_capture()
        for values in (first, second):
            for array, new in zip(arrays, values):
                array.set(new)
            graph.launch(stream)
            stream.synchronize()
            a, b, _ = values
            assert_right(arrays[2].get(), a, b, a @ b, 0.7, 1.3)


@pytest.mark.gpu
def test_the_same_bits_every_time(home):
    a, b, _ = operands("random", *Case("float32", 33, 65, 9000).shapes, "float32")
    x, y = home.send(a), home.send(b)
    results = [home.fetch(dxgemm.gemm(x, y)) for _ in range(20)]
    assert all((result == results[0]).all() for result in results)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_tiles_of_long_k_are_sliced_and_others_are_not(configs_of_a_gpu, dtype):
    for m, n, k, batch, is_sliced in (
        (64, 64, 20_000, 1, True),
        (64, 64, 20_000, 4096, False),
        (4096, 4096, 4096, 1, False),
        (64, 64, 64, 1, False),
    ):
        chosen = choose(contiguous_problem(dtype, m, n, k, batch), H200)
        assert (chosen.slices > 1) is is_sliced
        assert (f"in {chosen.slices} slices" in str(chosen)) is is_sliced


COMPILE_SUMS = """
from dxgemm.compiler import compile_kernel
from dxgemm.lower.product import lower_sums
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.problem import sliced_problem
from dxgemm.runtime.program import Program

problem = contiguous_problem("float32", 64, 64, 8192)
(spec,) = lower_sums(problem, sliced_problem(problem, 4), Program(())).specs
for arch in ("sm_80", "sm_90a"):
    kernel = compile_kernel(spec, arch)
    waits, reads = (kernel.ptx.find(text) for text in ("griddepcontrol.wait", "ld.global.f32"))
    print(arch, kernel.record.begins_early, 0 < waits < reads)
"""


def test_sums_are_added_by_a_kernel_that_begins_early_on_hopper_and_waits(run_python):
    assert run_python(COMPILE_SUMS).splitlines() == ["sm_80 False False", "sm_90a True True"]


@pytest.mark.gpu
def test_only_a_kernel_that_waits_is_launched_early(hopper):
    from dxgemm.runtime.launch import launch_config

    attributes = []
    for begins_early in (False, True):
        kernel = made_up_kernel(b"", "add_slices", "", "sm_90a")
        record = replace(kernel.record, begins_early=begins_early)
        config, fields = launch_config(replace(kernel, record=record))
        attributes.append((fields.attribute_count, len(config.attrs)))
    assert attributes == [(0, 0), (1, 1)]
