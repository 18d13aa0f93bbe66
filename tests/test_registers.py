"""Kernels that no contract case compiles ahead keep their sums in registers."""

import pytest

PROGRAM = """
import re, sys
from dataclasses import replace
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import KernelSpec, compile_kernel, toolkit_text
from dxgemm.handwritten.kernels import grouped, grouped_tensor_tile, reduce_tiles, tensor_batch
from dxgemm.lower.group_wgmma import wgmma_specs
from dxgemm.lower.grouped import DTYPES, alike_step, table_step
from dxgemm.lower.indexed_rows import indexed_specs
from dxgemm.lower.product import lower_sums
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import FusedReduction, Fusion
from dxgemm.problem.problem import sliced_problem
from dxgemm.runtime.program import Program

def slices():
    for name, dtype in (("tuned", "float32"), ("tensor_core", "float64"), ("wgmma", "float16")):
        implementation, problem = find_implementation(name), contiguous_problem(dtype, 64, 64, 8192)
        config = implementation.configs(dtype)[2]
        yield implementation.spec_for(config, sliced_problem(problem, 8)), "sm_90a", 0
        for count in (2, 64):
            for spec in lower_sums(problem, sliced_problem(problem, count), Program(())).specs:
                yield spec, "sm_90a", 0

def groups():
    largest, *_, smallest = grouped.KERNEL.configs
    core, table = grouped.TENSOR_CONFIGS[0], ("row16", "row16", "table")
    yield table_step(largest, "float32", ("row", "col", "table"), 1, 1, 1).spec, "sm_90a", 0
    yield table_step(smallest, "float64", (*table, "far"), 1, 1, 1).spec, "sm_90a", 0
    yield table_step(core, "float64", table, 1, 1, 1).spec, "sm_90a", 0
    alike = contiguous_problem("float64", 96, 96, 96, layout="col_col")
    config = next(config for config in tensor_batch.KERNEL.configs if config.tile_m == 96)
    yield alike_step(config, alike).spec, "sm_90a", 56  # addresses

def groups_of_half_precision():
    for dtype, variant in (
        ("float16", ("k16_ragged", "x16_ragged", "float32")), ("bfloat16", ("k", "k", "float32")),
    ):
        largest = grouped_tensor_tile.table_configs(dtype, 80, variant)[0]
        yield table_step(largest, dtype, variant, 1, 1, 1).spec, "sm_80", 0

def offsets():
    specs = wgmma_specs(("bfloat16",), "sm_90a")
    for name in ("grouped_wgmma", "grouped_wgmma_k"):
        spec = next(s for s in specs if s.implementation == name and s.config.tile_n == 256)
        yield spec, "sm_90a", 8  # an address
    for spec in indexed_specs(DTYPES[::2]):
        yield spec, "sm_80", 0

def logsumexp():
    reduction = FusedReduction("exponentials", 1, ("float64",), 2)
    fusion = Fusion((), reduction.buffers, reduction=reduction)
    for name, dtype, arch in (("tuned", "float32", "sm_90a"), ("tensor_core", "float64", "sm_80")):
        implementation = find_implementation(name)
        problem = replace(contiguous_problem(dtype, 64, 64, 64), epilogue=fusion, must_fuse=True)
        yield implementation.spec_for(implementation.configs(dtype)[0], problem), arch, 0
    config = reduce_tiles.KERNEL.configs[0]
    module = reduce_tiles.__name__
    yield KernelSpec("reduce_tiles", module, config, "float64", epilogue=fusion), "sm_80", 0

def operands_read_by_elements():
    for name, place, most in (("small_batch", 4, 16), ("tensor_batch", 0, 48)):  # of 192 of sums
        implementation = find_implementation(name)
        config = implementation.configs("float64")[place]
        yield implementation.spec(config, "float64", ("row", "col")), "sm_90a", most

def tiles_of_a_warp():
    implementation = find_implementation("small_batch")
    for config in implementation.configs("float32"):
        if config.tile_threads == 32:
            yield implementation.spec(config, "float32", ("row16", "row16")), "sm_80", 0

for spec, arch, most in globals()[sys.argv[1]]():
    record = compile_kernel(spec, arch).record
    # nvJitLink 13.0 spills a few addresses more.
    spills = 32 if most and re.search(r"nvjitlink\\S* 13\\.0", toolkit_text()) else 0
    assert record.stack_bytes <= most + spills, (spec, record)
    blocks = spec.config.min_blocks(spec.dtype) if sys.argv[1] == "tiles_of_a_warp" else 1
    assert blocks * record.registers * record.threads <= 65536, (spec, record)
    print(spec)
"""


@pytest.mark.long_build
@pytest.mark.parametrize(
    "kind, count",
    [
        ("slices", 9),
        ("groups", 4),
        ("groups_of_half_precision", 2),
        ("offsets", 4),
        ("logsumexp", 3),
        ("operands_read_by_elements", 2),
        ("tiles_of_a_warp", 1),
    ],
)
def test_sums_stay_in_registers(run_python, kind, count):
    assert len({*run_python(PROGRAM, kind).splitlines()}) >= count
