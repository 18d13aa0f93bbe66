"""Every kernel that `build` builds, compiled for sm_90a, which needs no GPU, and read."""

from __future__ import annotations

import json
import re

import pytest
from ptx_flow import c_loads

from dxgemm import errors
from dxgemm._gpu import simulator_enabled
from dxgemm._registry import kernel_specs
from dxgemm.compiler import compile_kernel
from dxgemm.compiler.cubin import read_resources

COMPILE_ALL = """
import dataclasses, json
from dxgemm._registry import kernel_specs
from dxgemm.compiler import compile_kernel
for spec in kernel_specs():
    kernel = compile_kernel(spec, "sm_90a")
    elements_per_thread = spec.config.accumulator_bytes(spec.dtype) // (4, 8)["64" in spec.dtype]
    print(json.dumps({
        **dataclasses.asdict(kernel.record),
        "name": str(spec), "ptx": kernel.ptx, "elements_per_thread": elements_per_thread,
    }))
"""

FLOAT_INSTRUCTIONS = {"float32": "fma.rn.f32", "float64": "fma.rn.f64"}
REGISTERS_PER_SM = 65536
MOST_REGISTERS = 255
SMEM_BYTES_PER_BLOCK = 227 * 1024


@pytest.fixture(scope="module")
def kernels(run_python):
    return [json.loads(line) for line in run_python(COMPILE_ALL).splitlines()]


def test_both_dtypes_of_every_own_kernel_are_built(kernels):
    built = {(kernel["implementation"], kernel["dtype"]) for kernel in kernels}
    assert built == {
        (name, dtype) for name in ("coalesced", "thread_tile_2d") for dtype in FLOAT_INSTRUCTIONS
    }


def test_a_block_of_each_kernel_fits_an_sm(kernels):
    for kernel in kernels:
        assert kernel["registers"] <= MOST_REGISTERS, kernel["name"]
        assert kernel["registers"] * kernel["threads"] <= REGISTERS_PER_SM, kernel["name"]
        assert kernel["smem_bytes"] <= SMEM_BYTES_PER_BLOCK, kernel["name"]


def test_no_kernel_uses_local_memory(kernels):
    spilled = {kernel["name"]: kernel["stack_bytes"] for kernel in kernels if kernel["stack_bytes"]}
    assert not spilled, "stack bytes a thread"


def test_arithmetic_is_fused_and_in_full_precision(kernels):
    for kernel in kernels:
        assert FLOAT_INSTRUCTIONS[kernel["dtype"]] in kernel["ptx"], kernel["name"]
        reduced = re.findall(r"\.(?:tf32|bf16|f16|ftz|approx)\b", kernel["ptx"])
        assert not reduced, kernel["name"]


def test_no_load_of_c_is_reachable_if_beta_is_zero(kernels):
    for kernel in kernels:
        assert c_loads(kernel["ptx"]) == kernel["elements_per_thread"], kernel["name"]
        assert c_loads(kernel["ptx"], beta_is_zero=False) > 0, kernel["name"]
        assert c_loads(kernel["ptx"], beta_is_zero=True) == 0, kernel["name"]


def test_an_unguarded_load_of_c_would_be_seen(kernels):
    kernel = next(kernel for kernel in kernels if kernel["implementation"] == "coalesced")
    unguarded = kernel["ptx"].replace("setp.eq.f32", "setp.lt.f32")
    unguarded = unguarded.replace("setp.neu.f32", "setp.gt.f32")
    assert c_loads(unguarded, beta_is_zero=True) > 0


def test_the_block_size_is_part_of_the_binary(kernels):
    for kernel in kernels:
        assert f".maxntid {kernel['threads']}" in kernel["ptx"], kernel["name"]


def test_an_unknown_architecture_is_refused(run_python):
    program = """
from dxgemm import errors
from dxgemm._registry import kernel_specs
from dxgemm.compiler import compile_kernel
for arch in ("hopper", "sm_9", ""):
    try:
        compile_kernel(kernel_specs()[0], arch)
    except errors.BuildError as error:
        assert repr(arch) in str(error), error
    else:
        raise SystemExit(f"{arch!r} was accepted")
"""
    run_python(program)


@pytest.mark.skipif(not simulator_enabled(), reason="the simulator is off")
def test_the_simulator_cannot_compile_and_says_so():
    with pytest.raises(errors.BuildError, match="NUMBA_ENABLE_CUDASIM"):
        compile_kernel(kernel_specs()[0], "sm_90a")


A_KERNEL_WITH_A_STACK = """
import sys, types
from dataclasses import dataclass
from dxgemm import errors
from dxgemm.compiler import PARAMETERS, KernelSpec, compile_kernel

SOURCE = '''
from numba import cuda, float32
def make_kernel(config, dtype):
    def kernel({parameters}):
        acc = cuda.local.array(64, float32)
        for i in range(k):
            acc[i % 64] = a_gmem[i]
        out_gmem[0] = acc[m % 64]
    return kernel
'''

@dataclass(frozen=True)
class Config:
    threads: int = 32
    def smem_bytes(self, dtype): return 0
    def accumulator_bytes(self, dtype): return 256

module = sys.modules["indexed_at_run_time"] = types.ModuleType("indexed_at_run_time")
exec(SOURCE.format(parameters=", ".join(name for name, _ in PARAMETERS)), module.__dict__)
try:
    compile_kernel(KernelSpec("indexed", "indexed_at_run_time", Config(), "float32"), "sm_90a")
except errors.BuildError as error:
    print(error)
"""


def test_an_accumulator_in_local_memory_is_rejected_with_the_toolkit_named(run_python):
    message = run_python(A_KERNEL_WITH_A_STACK)
    assert "256 stack bytes a thread" in message
    assert "nvjitlink" in message


@pytest.mark.parametrize("damaged", [b"", b"no ELF file", b"\x7fELF\x02\x01\x01" + bytes(57)])
def test_a_cubin_that_says_nothing_is_an_error(damaged):
    with pytest.raises(errors.BuildError, match="does not say how many registers some_kernel uses"):
        read_resources(damaged, "some_kernel")


WITHOUT_COMPILER_LIBRARIES = """
from cuda.pathfinder import DynamicLibNotFoundError
from numba import cuda
from dxgemm import errors
from dxgemm._registry import kernel_specs
from dxgemm.compiler import compile_kernel

def refuse(*arguments, **options):
    raise RuntimeError("wrapped") from DynamicLibNotFoundError("no libnvvm: looked everywhere")

cuda.compile = refuse
try:
    compile_kernel(kernel_specs()[0], "sm_90a")
except errors.MissingPackageError as error:
    print(error)
"""


def test_missing_compiler_libraries_are_named_with_the_extra_that_brings_them(run_python):
    message = run_python(WITHOUT_COMPILER_LIBRARIES)
    assert "no libnvvm" in message and "dxgemm[cu13]" in message and "dxgemm[cu12]" in message
