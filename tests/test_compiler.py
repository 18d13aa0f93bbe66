"""Kernels of every implementation, compiled for sm_90a, which needs no GPU, and read."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
from ptx_flow import BETA, COMPLEX_BETA, c_loads

import dxgemm
from dxgemm import errors
from dxgemm.choice.emulation_parts import SERIES
from dxgemm.choice.implementation import EmulatedProduct, Handwritten
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.compiler import compile_kernel
from dxgemm.compiler.cubin import read_resources
from dxgemm.compiler.spec import HANDWRITTEN, PARAMETERS, _imports
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.unroll import _FLAT, gemm_kernel
from dxgemm.lower.ahead import kernel_specs

# NVVM and nvJitLink of the oldest toolkit; `make installed` puts them there.
OLDEST = Path(sys.prefix, "oldest")

COMPILE_SOME = """
import ctypes, dataclasses, json, multiprocessing, sys
from pathlib import Path
from unittest import mock
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.choice.implementation import Handwritten
from dxgemm.compiler import build, compile_kernel
from dxgemm.lower.ahead import common_specs

def described(spec):
    kernel = compile_kernel(spec, "sm_90a")
    about = {"name": str(spec), "module": spec.module, "ptx": kernel.ptx}
    return json.dumps({**dataclasses.asdict(kernel.record), **about})

def compiled(spec):
    \"\"\"The line of a kernel, with what compiles its LLVM IR again.\"\"\"
    from numba.cuda.cudadrv import nvvm
    with mock.patch.object(nvvm, "compile_ir", wraps=nvvm.compile_ir) as compile_ir:
        return described(spec), (spec, *compile_ir.call_args)

def load_oldest(folder):
    sys.path.insert(0, folder)  # to find its versions
    for library in Path(folder).glob("nvidia/*/lib/*.so.*"):
        ctypes.CDLL(str(library))  # in place of those that are installed

def compiled_again(code):
    from numba.cuda.cudadrv import nvvm
    spec, modules, options = code
    def compile_ir(*given, output="ptx", **functions):
        made = nvvm.compile_ir(*modules, **options)
        return made if output == "ltoir" else made.decode().strip("\\0")
    with mock.patch.object(build, "_compile", compile_ir):
        return described(spec)

# Dtypes that stand for others, whose kernels differ little; of kernels without these, the first.
STANDS_IN = {"float64", "float16", "complex128"}

def chosen(implementation, dtype):
    # The smallest tile; over wgmma, whose sums take most registers, the largest, and one whose
    # warpgroups share out registers and take turns, in pairs of blocks.
    specs = common_specs(implementation, (dtype,))
    largest, *_, smallest = [*implementation.configs(dtype)] * 2
    is_small = implementation.runs_on("sm_80") is None
    yield next(spec for spec in specs if spec.config == (smallest if is_small else largest))
    if implementation.name == "wgmma":
        yield next(s for s in specs if getattr(s.config, "is_pingpong", 0) and s.config.is_paired)
    if implementation.name == "emulated_float64":
        yield next(spec for spec in specs if spec.module.endswith("reconstruct"))

if __name__ == "__main__":
    specs = {
        spec: None
        for implementation in IMPLEMENTATIONS
        if isinstance(implementation, Handwritten)
        for dtype in STANDS_IN.intersection(implementation.dtypes) or implementation.dtypes[:1]
        for spec in chosen(implementation, dtype)
    }
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool() as pool:
        lines, codes = zip(*pool.imap(compiled, specs))
    if folders := sys.argv[1:]:
        with spawn.Pool(initializer=load_oldest, initargs=folders) as pool:
            own = (code for code in codes if ".ladder." not in code[0].module)
            lines += (*pool.imap(compiled_again, own),)
    print(*lines, sep="\\n")
"""

MAKE_ALL = """
from importlib import import_module
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.choice.implementation import Handwritten, Role
from dxgemm.lower.ahead import common_specs
specs = {
    spec: None
    for implementation in IMPLEMENTATIONS
    if isinstance(implementation, Handwritten) and implementation.role is Role.CANDIDATE
    for spec in common_specs(implementation, implementation.dtypes)
}
# Each variant with one of its configs.
specs = [spec for spec in specs if spec.dtype != "bfloat16"]  # made as float16 is
chosen = {(spec.module, spec.dtype, spec.variant): spec for spec in specs}
made = set(chosen.values())
for spec in made:
    import_module(spec.module).KERNEL.make_kernel(
        spec.config, spec.dtype, *spec.variant, epilogue=spec.epilogue
    )
print(len(made), len({spec.module for spec in made}), len({spec.module for spec in specs}))
"""


@pytest.mark.long_build
def test_every_variant_that_is_built_ahead_can_be_made(run_python):
    made, files, all_files = map(int, run_python(MAKE_ALL).split())
    assert made > 50 and files == all_files


ARITHMETIC = {
    "float64": r"fma\.rn\.f64", "complex128": r"fma\.rn\.f64", "int8": r"mad\.lo\.s32",
}  # fmt: skip
TENSOR_CORES = {
    "float32": "tf32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int8": "s8",
}  # fmt: skip
REDUCED_PRECISION = {"tensor_core_tf32", "emulated_float32"}  # of float32
REGISTERS_PER_SM = 65536
MOST_REGISTERS = 255
SMEM_BYTES_PER_BLOCK = 227 * 1024


@pytest.fixture(scope="module")
def kernels(run_python, once, tmp_path_factory):
    # A file, because worker processes import the program again.
    program = tmp_path_factory.mktemp("compile") / "compile_some.py"
    program.write_text(COMPILE_SOME)
    run = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    oldest = [str(OLDEST)] if OLDEST.exists() else []
    lines = once("compiled.jsonl", lambda: run_python(run, *oldest))
    return [json.loads(line) for line in lines.splitlines()]


def test_every_own_kernel_is_built(kernels):
    built = {kernel["implementation"] for kernel in kernels}
    own = [i for i in IMPLEMENTATIONS if isinstance(i, Handwritten)]
    # Emulated products have the name of their series.
    names = {i.name: SERIES if isinstance(i, EmulatedProduct) else {} for i in own}
    assert built == {names[i.name].get(dtype, i.name) for i in own for dtype in i.dtypes}


def test_a_profiler_tells_kernels_apart_that_share_a_frame(kernels):
    for kernel in kernels:
        name = f"{kernel['module'].rpartition('.')[2]}_kernel"
        assert f"{len(name)}{name}" in kernel["entry"]


def test_a_block_of_each_kernel_fits_an_sm(kernels):
    for kernel in kernels:
        assert kernel["registers"] <= MOST_REGISTERS, kernel["name"]
        assert kernel["registers"] * kernel["threads"] <= REGISTERS_PER_SM, kernel["name"]
        assert kernel["smem_bytes"] <= SMEM_BYTES_PER_BLOCK, kernel["name"]


NATIVE = """
from dxgemm.lower.emulated import native_step
from dxgemm.compiler import compile_kernel
from dxgemm.problem.define import contiguous_problem

spec = native_step(contiguous_problem("float64", 4096, 4096, 4096), None, ()).spec
built = compile_kernel(spec, "sm_80")
print(built.record.stack_bytes, built.ptx.count("m8n8k4"))
"""


@pytest.mark.long_build
def test_float64_on_tensor_cores_before_hopper(run_python):
    """The emulated product's native one has all of tensor_core."""
    stack_bytes, quarters = map(int, run_python(NATIVE).split())
    assert stack_bytes == 0 and quarters > 0


FOR_TURING = """
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import compile_kernel

for name in ("double_buffer", "widening_tile"):
    kernel = find_implementation(name)
    spec = common_specs(kernel, kernel.dtypes[:1])[-1]
    print(compile_kernel(spec, "sm_75").record.stack_bytes)
"""


@pytest.mark.long_build
def test_kernels_for_turing(run_python):
    assert run_python(FOR_TURING).split() == ["0", "0"]


@pytest.mark.skipif(not OLDEST.exists(), reason="the oldest toolkit is not in .venv/oldest")
def test_the_oldest_toolkit_builds_every_own_kernel(kernels):
    oldest = [kernel for kernel in kernels if re.search(r"nvvm 13\.0.*13\.0", kernel["toolkit"])]
    rungs = [kernel for kernel in kernels if ".ladder." in kernel["module"]]
    assert oldest and 2 * len(oldest) + len(rungs) == len(kernels)
    assert all(".version 9.0\n" in kernel["ptx"] for kernel in oldest)


def test_no_kernel_uses_local_memory(kernels):
    # nvJitLink 13.0 spills up to eight registers of kernels that are held to few of them; 13.5 two
    # of wgmma, which it reads again after the main loop.
    spilled = [
        (kernel["name"], kernel["stack_bytes"], kernel["toolkit"])
        for kernel in kernels
        if kernel["stack_bytes"] > (0 if "nvjitlink 13.1" in kernel["toolkit"] else 32)
    ]
    assert not spilled, "stack bytes a thread"


def test_arithmetic_is_fused_or_done_by_tensor_cores(kernels):
    for kernel in kernels:
        of_tensor_cores = rf"mma\S*\.{TENSOR_CORES.get(kernel['dtype'], 'none')}\b"
        expected = ARITHMETIC.get(kernel["dtype"], r"fma\.rn\.f32")
        assert re.search(f"{expected}|{of_tensor_cores}", kernel["ptx"]), kernel["name"]


def test_precision_is_reduced_only_where_it_is_asked_for(kernels):
    for kernel in kernels:
        reduced = re.findall(r"\.(?:tf32|bf16|f16|ftz|approx)\b", kernel["ptx"])
        is_asked = kernel["dtype"] == "float16" or kernel["implementation"] in REDUCED_PRECISION
        assert bool(reduced) <= is_asked, kernel["name"]


def test_no_load_of_c_is_reachable_if_beta_is_zero(kernels):
    for kernel in kernels:
        # Products of residues are added to c by another kernel, which is among these.
        reads_c = ".emulated_float64" not in kernel["module"]
        beta = COMPLEX_BETA if kernel["implementation"].startswith("complex_") else BETA
        assert (c_loads(kernel["ptx"], beta_is_zero=False, beta=beta) > 0) == reads_c, kernel[
            "name"
        ]
        assert c_loads(kernel["ptx"], beta_is_zero=True, beta=beta) == 0, kernel["name"]


def test_an_unguarded_load_of_c_would_be_seen(kernels):
    kernel = next(kernel for kernel in kernels if kernel["implementation"] == "coalesced")
    unguarded = kernel["ptx"].replace("setp.eq.f64", "setp.lt.f64")
    unguarded = unguarded.replace("setp.neu.f64", "setp.gt.f64")
    assert c_loads(unguarded, beta_is_zero=True) > 0


def test_the_block_size_is_part_of_the_binary(kernels):
    for kernel in kernels:
        assert f".maxntid {kernel['threads']}" in kernel["ptx"], kernel["name"]


def test_a_kernel_has_the_parameters_that_a_launch_packs():
    indices = {"a": "mk", "b": "kn", "c": "mn", "out": "mn"}
    names = []
    for name in _FLAT:
        operand, _, field = name.partition("_stride_")
        places = dict(zip(("row", "col"), indices.get(operand, ""), strict=False))
        names.append(f"{operand}_stride_{places.get(field, field)}" if field else name)
    assert names == [*(name for name, _ in PARAMETERS), "extra"]


def test_a_variable_named_as_a_parameter_is_refused():
    def kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        out_stride_row = out.col
        out.data[out_stride_row] = alpha

    with pytest.raises(NameError, match="out_stride_row"):
        gemm_kernel(kernel)


REFUSE_ARCHITECTURES = """
import json
from dxgemm import errors
from dxgemm.lower.ahead import kernel_specs
from dxgemm.compiler import compile_kernel
for arch in ("hopper", "sm_9", "", "sm_35"):
    try:
        compile_kernel(kernel_specs(("float32",), ("coalesced",))[0], arch)
    except errors.BuildError as error:
        print(json.dumps(str(error)))
"""


def test_unknown_architectures_and_those_that_the_toolkit_no_longer_builds_for(run_python):
    *unknown, too_old = map(json.loads, run_python(REFUSE_ARCHITECTURES).splitlines())
    for arch, refusal in zip(("hopper", "sm_9", ""), unknown, strict=True):
        assert repr(arch) in refusal
    assert re.search(r"no longer builds for sm_35: .*; .*dxgemm\[cu12\]", too_old)


@pytest.mark.skipif(not simulator_enabled(), reason="the simulator is off")
def test_the_simulator_cannot_compile_and_says_so():
    with pytest.raises(errors.BuildError, match="NUMBA_ENABLE_CUDASIM"):
        compile_kernel(kernel_specs(("float32",), ("coalesced",))[0], "sm_90a")


A_KERNEL_WITH_A_STACK = """
import sys, types
from dataclasses import dataclass
from dxgemm import errors
from dxgemm.compiler import PARAMETERS, KernelSpec, compile_kernel
from dxgemm.handwritten.parts.kernel import BaseConfig

SOURCE = '''
from numba import cuda, float32
from dxgemm.handwritten.parts.kernel import Kernel
def make_kernel(config, dtype, epilogue=None):
    def kernel({parameters}, extra):
        acc = cuda.local.array(64, float32)
        for i in range(k):
            acc[i % 64] = a_gmem[i]
        out_gmem[0] = acc[m % 64]
    return kernel
KERNEL = Kernel(make_kernel, configs=())
'''

@dataclass(frozen=True)
class Config(BaseConfig):
    threads: int = 32
    launch_registers: int = 0
    def smem_bytes(self, dtype): return 0
    def accumulator_bytes(self, dtype): return 256

module = sys.modules["indexed_at_run_time"] = types.ModuleType("indexed_at_run_time")
exec(SOURCE.format(parameters=", ".join(name for name, _ in PARAMETERS)), module.__dict__)
for config in (Config(), Config(launch_registers=255)):
    try:
        compile_kernel(KernelSpec("indexed", "indexed_at_run_time", config, "float32"), "sm_90a")
    except errors.BuildError as error:
        print(error)
"""


def test_what_a_kernel_may_not_take_is_rejected(run_python):
    """An accumulator in local memory; fewer registers than its warpgroups share out."""
    stack, registers = run_python(A_KERNEL_WITH_A_STACK).splitlines()
    assert "256 stack bytes per thread" in stack and "nvjitlink" in stack
    assert "would wait forever for the 255" in registers


@pytest.mark.parametrize("damaged", [b"", b"no ELF file", b"\x7fELF\x02\x01\x01" + bytes(57)])
def test_a_cubin_that_says_nothing_is_an_error(damaged):
    with pytest.raises(errors.BuildError, match="does not say how many registers some_kernel uses"):
        read_resources(damaged, "some_kernel")


WITHOUT_COMPILER_LIBRARIES = """
from cuda.pathfinder import DynamicLibNotFoundError
from numba import cuda
from dxgemm import errors
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.lower.ahead import common_specs, kernel_specs
from dxgemm.compiler import compile_kernel

def refuse(*arguments, **options):
    raise RuntimeError("wrapped") from DynamicLibNotFoundError("no libnvvm: looked everywhere")

cuda.compile = refuse
try:
    compile_kernel(kernel_specs(("float32",), ("coalesced",))[0], "sm_90a")
except errors.MissingPackageError as error:
    print(error)
"""


def test_missing_compiler_libraries_are_named_with_the_extra_that_brings_them(run_python):
    message = run_python(WITHOUT_COMPILER_LIBRARIES)
    assert "no libnvvm" in message and "dxgemm[cu13]" in message and "dxgemm[cu12]" in message


def kernel_files():
    """Files of kernels, and those that kernels import, by the name of their module."""
    for package in (*HANDWRITTEN, "dxgemm.cublasdx"):
        folder = Path(dxgemm.__file__).parent.joinpath(*package.split(".")[1:])
        for path in sorted(folder.glob("*.py")):
            if path.stem != "__init__":
                yield f"{package}.{path.stem}", path


@pytest.mark.parametrize(("module", "path"), list(kernel_files()), ids=list(dict(kernel_files())))
def test_a_kernels_key_follows_every_import_of_its_file(module, path):
    # Where one is overlooked, a cubin of the old source is found after that file has changed.
    names = dict(kernel_files())
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    packages = {module.rpartition(".")[0], *HANDWRITTEN}
    expected = {name for name in imported & set(names) if name.rpartition(".")[0] in packages}
    assert set(_imports(path.read_text(), packages)) == expected
