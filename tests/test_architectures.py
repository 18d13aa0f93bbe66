"""Kernels of the automatic choice, compiled for architectures that no kernel was run on.

The last config of every fourth implementation and dtype is compiled for one of the architectures,
in turn. Those do not count that have another dtype that differs little. `dxgemm build --arch sm_89`
compiles all configs.
"""

import json

import pytest

from dxgemm.choice.implementation import EmulatedProduct
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.compiler.build import ptx_arch
from dxgemm.gpu.occupancy import sm_limits

FAMILIES = (("sm_80", "sm_89"), ("sm_100", "sm_120"))  # of the same PTX
# Emulated products are series, most of whose kernels split operands.
ON_TENSOR_CORES = {
    i.name: i.units for i in IMPLEMENTATIONS if i.tensor and not isinstance(i, EmulatedProduct)
}
MOST_REGISTERS = 255
MOST_STACK_BYTES = 64  # some addresses, or the barriers of cuBLASDx, but no sums

COMPILE_IN_TURN = """
import json, sys
from dataclasses import asdict
from dxgemm.lower.ahead import kernel_specs
from dxgemm.compiler import compile_kernel
from dxgemm.errors import MissingPackageError
from dxgemm.problem.dtypes import RESULT_DTYPES

turn, *architectures = sys.argv[1:]
families = [pair.split(",") for pair in architectures]
# The dtype whose kernels take more registers stands for the others.
stands_in = {
    "bfloat16": ("float16",), "int8": ("float16",), "float32": ("float64", "float16"),
    "complex64": ("complex128",),
}
last_specs = {}
for family in families:
    for arch in family:
        for spec in kernel_specs(tuple(RESULT_DTYPES), arch=arch):
            last_specs.setdefault((spec.implementation, spec.dtype), {})[arch] = spec
for name, dtype in [*last_specs]:
    if any((name, other) in last_specs for other in stands_in.get(dtype, ())):
        del last_specs[name, dtype]
turns = 4 * len(families)
for place, specs in enumerate(last_specs.values()):
    if place % turns != int(turn):
        continue
    family = families[int(turn)]
    arch = family[place // turns % len(family)]
    try:
        kernel = compile_kernel(specs[arch], arch)
    except MissingPackageError:
        continue  # cuBLASDx is not installed everywhere
    about = {"name": f"{specs[arch]} for {arch}", "ptx": kernel.ptx or ""}
    print(json.dumps({**asdict(kernel.record), **about}))
"""


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.long_build)])
def test_kernels_that_are_chosen_compile_and_fit(run_python, turn):
    lines = run_python(COMPILE_IN_TURN, str(turn), *map(",".join, FAMILIES)).splitlines()
    kernels = [json.loads(line) for line in lines]
    assert {kernel["arch"] for kernel in kernels} == {*FAMILIES[turn]}
    for kernel in kernels:
        limits, name = sm_limits(kernel["arch"]), kernel["name"]
        assert kernel["registers"] <= MOST_REGISTERS, name
        assert kernel["registers"] * kernel["threads"] <= limits.registers, name
        assert kernel["stack_bytes"] <= MOST_STACK_BYTES, name
        assert kernel["smem_bytes"] <= limits.smem_bytes_per_block, name
        if kernel["ptx"] and kernel["dtype"] in ON_TENSOR_CORES.get(kernel["implementation"], {}):
            assert "mma.sync" in kernel["ptx"], name
        assert f".target {kernel['arch']}" in kernel["ptx"] or not kernel["ptx"], name


FLOAT8_OF = """
import sys
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
from dxgemm.problem.define import contiguous_problem

tile = find_implementation("tensor_tile_float8")
problem = contiguous_problem("float8_e4m3fn float8_e5m2", 512, 512, 512, layout=sys.argv[2])
assert tile.supports(problem) is None
kernel = compile_kernel(tile.spec_for(tile.kernel.configs[0], tile.computed(problem)), sys.argv[1])
print(kernel.record.stack_bytes, "m16n8k32" in kernel.ptx and "e4m3.e5m2" in kernel.ptx)
"""


@pytest.mark.parametrize(("arch", "layout"), [("sm_89", "col_col"), ("sm_120", "row_row")])
def test_float8_is_compiled_for_other_gpus(run_python, arch, layout):
    """One operand is MN-major, and read in place: its bytes are transposed in registers."""
    assert run_python(FLOAT8_OF, arch, layout).split() == ["0", "True"]


SAME_PTX = """
import re
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import build, compile_kernel

def normalised(ptx):
    \"\"\"PTX without what differs from compilation to compilation: names, and their order.\"\"\"
    names = {}
    lines = [
        line for line in ptx.splitlines()
        if line and not line.startswith(("//", ".target")) and "NumbaEnv" not in line
        and ".globl" not in line and ".shared" not in line
    ]
    number = lambda match: names.setdefault(match[0], f"name{len(names)}")
    return re.sub(r"\\b_(?:ZN|cudapy_smem)\\w+?(?=_param_|\\b)", number, "\\n".join(lines))

build.ptx_arch = lambda arch: arch
for name, architectures in (
    ("naive", ("sm_80", "sm_90a")),
    ("naive", ("sm_100", "sm_120")),
    ("tensor_batch", ("sm_80", "sm_89")),
):
    spec = common_specs(find_implementation(name), ("float64",))[-1]
    one, other = (normalised(build._ptx_of_family(spec, arch)) for arch in architectures)
    assert len(one) > 1000 and one == other, (name, architectures)
kernel = compile_kernel(spec, "sm_89")  # of the PTX that was made last
print(kernel.record.stack_bytes, kernel.ptx.count("m8n8k4"))
"""


@pytest.mark.long_build
def test_the_ptx_of_a_family_is_the_same(run_python):
    """Each architecture's own, were it made: the build makes that of the first alone.

    But for float64 on tensor cores, that of Hopper is the same as well: what passes there has been
    tested for Ampere and Ada.
    """
    stack_bytes, quarters = map(int, run_python(SAME_PTX).split())
    assert stack_bytes == 0 and quarters > 0


def test_architectures_of_the_same_ptx():
    assert {ptx_arch(arch) for arch in ("sm_80", "sm_86", "sm_89")} == {"sm_80"}
    assert {ptx_arch(arch) for arch in ("sm_100", "sm_103", "sm_120")} == {"sm_100"}
    assert [ptx_arch(arch) for arch in ("sm_75", "sm_90a")] == ["sm_75", "sm_90a"]


WITH_FEWER_BLOCKS = """
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import compile_kernel
spec = common_specs(find_implementation("thread_tile_1d"), ("float64",))[0]
for blocks in (1, 2048 // spec.config.threads):
    type(spec.config).min_blocks = lambda config, dtype: blocks
    kernel = compile_kernel(spec, "sm_100")
    print(kernel.record.stack_bytes, f".minnctapersm {blocks}\\n" in kernel.ptx)
"""


def test_a_kernel_that_takes_more_registers_than_its_blocks_have_has_one_block(run_python):
    assert run_python(WITH_FEWER_BLOCKS).splitlines() == ["0 True", "0 False"]
