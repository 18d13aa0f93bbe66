"""Kernels of the automatic choice, compiled for architectures that no kernel was run on.

The first config of each implementation and dtype is compiled for one of the architectures, in turn;
not that of bfloat16, which is as float16. `dxgemm build --arch sm_89` compiles all configs.
"""

from __future__ import annotations

import json

import pytest

from dxgemm.choice.implementation import EmulatedProduct
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.gpu.occupancy import sm_limits

ARCHITECTURES = ("sm_80", "sm_89", "sm_100", "sm_120")
# Emulated products are series, most of whose kernels split operands.
MULTIPLIES = {i.name: i.multiplies for i in IMPLEMENTATIONS if not isinstance(i, EmulatedProduct)}
MOST_REGISTERS = 255
MOST_STACK_BYTES = 64  # some addresses, or the barriers of cuBLASDx, but no sums

COMPILE_IN_TURN = """
import json, sys
from dataclasses import asdict
from dxgemm.choice.registry import kernel_specs
from dxgemm.compiler import compile_kernel
from dxgemm.errors import MissingPackageError
from dxgemm.problem.dtypes import RESULT_DTYPES

arch, *architectures = sys.argv[1:]
dtypes = tuple(dtype for dtype in RESULT_DTYPES if dtype != "bfloat16")
first_specs = {}
for each in architectures:
    for spec in kernel_specs(dtypes, arch=each):
        first_specs.setdefault((spec.implementation, spec.dtype), {}).setdefault(each, spec)
for turn, specs in enumerate(first_specs.values()):
    if list(specs)[turn % len(specs)] == arch:
        try:
            kernel = compile_kernel(specs[arch], arch)
        except MissingPackageError:
            continue  # cuBLASDx is not installed everywhere
        about = {"name": str(specs[arch]), "ptx": kernel.ptx or ""}
        print(json.dumps({**asdict(kernel.record), **about}))
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_that_are_chosen_compile_and_fit(run_python, arch):
    limits = sm_limits(arch)
    lines = run_python(COMPILE_IN_TURN, arch, *ARCHITECTURES).splitlines()
    assert lines
    for kernel in map(json.loads, lines):
        name = kernel["name"]
        assert kernel["registers"] <= MOST_REGISTERS, name
        assert kernel["registers"] * kernel["threads"] <= limits.registers, name
        assert kernel["stack_bytes"] <= MOST_STACK_BYTES, name
        assert kernel["smem_bytes"] <= limits.smem_bytes_per_block, name
        if kernel["ptx"] and kernel["dtype"] in MULTIPLIES.get(kernel["implementation"], {}):
            assert "mma.sync" in kernel["ptx"], name


WITH_FEWER_BLOCKS = """
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
spec = find_implementation("naive").common_specs(("float64",))[0]
for arch in ("sm_90a", "sm_100"):
    kernel = compile_kernel(spec, arch)
    print(kernel.record.stack_bytes, ".minnctapersm 1\\n" in kernel.ptx)
"""


def test_a_kernel_that_takes_more_registers_elsewhere_has_fewer_blocks_there(run_python):
    assert run_python(WITH_FEWER_BLOCKS).splitlines() == ["0 False", "0 True"]
