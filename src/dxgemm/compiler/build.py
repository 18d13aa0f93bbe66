"""Build of a kernel: Python -> PTX (numba-cuda) -> cubin (nvJitLink), with or without a GPU."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any

from dxgemm.compiler.cubin import entry_name, read_resources
from dxgemm.compiler.locks import numba_lock
from dxgemm.compiler.quick_numba import collector_paused, short_builds
from dxgemm.compiler.reason import numba_reason
from dxgemm.compiler.spec import PARAMETERS, AnySpec, FunctionSpec, KernelSpec
from dxgemm.compiler.toolkit import pipeline_faults, toolkit_text
from dxgemm.errors import BuildError, DtypeError, DxgemmError, MissingPackageError, ShapeError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.problem.dtypes import factor_dtypes, scalar_dtype
from dxgemm.problem.fusion import Fusion

# Placeholder for the name of a kernel's last parameter in inline PTX: see `_parameter_blocks`.
PARAMETER_BLOCK = "DXGEMM_PARAMETER_BLOCK"
TENSOR_MAP_BYTES = 128
EARLY_FROM = 90  # compute capability, times ten, from which kernels may begin early

# Kernels see narrow floats as the bits of their elements, and convert them.
_ELEMENT_TYPES = {"float16": "uint16", "bfloat16": "uint16", "bool": "uint8"}
_ELEMENT_TYPES |= dict.fromkeys(FLOAT8_KINDS, "uint8")

# Stack bytes per thread that the functions of an epilogue may take, as the slow path of sine does.
FUNCTION_STACK_BYTES = 64


@dataclass(frozen=True)
class KernelRecord:
    """Launch parameters of a cubin, and the resources that its inspection found.

    Attributes:
        implementation, config, dtype, variant, arch: the kernel that was built; `config` as text.
        entry: name of the kernel in the cubin.
        threads: threads per block.
        registers: registers per thread.
        stack_bytes: local memory per thread, to which spilled registers go.
        smem_bytes: shared memory per block.
        dynamic_smem_bytes: the part of smem_bytes that the launch has to ask for.
        cluster: blocks per thread-block cluster.
        cubin_bytes: size of the cubin.
        toolkit: packages that built it.
        begins_early: True if it may begin before the kernel before it has ended, and waits itself.
    """

    implementation: str
    config: str
    dtype: str
    variant: str
    arch: str
    entry: str
    threads: int
    registers: int
    stack_bytes: int
    smem_bytes: int
    dynamic_smem_bytes: int
    cluster: int
    cubin_bytes: int
    toolkit: str
    begins_early: bool = False


@dataclass(frozen=True)
class CompiledKernel:
    """Cubin and its record; `ptx` only if it was compiled in this process."""

    cubin: bytes
    record: KernelRecord
    ptx: str | None = None

    @cached_property
    def identity(self) -> bytes:
        """Digest that stands for the kernel where it is not to be kept."""
        return hashlib.sha256(repr(self.record).encode() + self.cubin).digest()


def compile_kernel(spec: KernelSpec, arch: str) -> CompiledKernel:
    """Compile one kernel. Needs the compiler packages of the `cu12` or `cu13` extra, and no GPU.

    Args:
        spec: the kernel to build.
        arch: real architecture, such as "sm_90a".

    Raises:
        MissingPackageError: numba-cuda or the CUDA compiler libraries are not installed.
        BuildError: the kernel does not compile, or its accumulator went to local memory.
    """
    if simulator_enabled():
        raise BuildError(
            f"cannot build {spec}: NUMBA_ENABLE_CUDASIM is set, and numba's simulator replaces its "
            "compiler; unset it."
        )
    declared = spec.declared
    # Registers per thread at launch, which the warpgroups reallocate among themselves.
    launch_registers = spec.config.launch_registers
    if spec.links_functions:
        ptx, (cubin, entry) = None, _build_with_device_functions(spec, arch, declared)
    elif launch_registers:
        cubin, ptx = _build_whole_program(spec, arch, declared)
        entry = entry_name(cubin)
    else:
        ptx, entry = _compile_to_ptx(spec, arch, declared)
        cubin = _link(spec, arch, ptx)
        if read_resources(cubin, entry).stack_bytes >= _rejected_stack_bytes(spec):
            # Configs ask for as many resident blocks as Hopper has registers for. The same code
            # can take more registers on another architecture: then one block is enough.
            ptx = re.sub(r"\.minnctapersm \d+", ".minnctapersm 1", ptx)
            cubin = _link(spec, arch, ptx)
    resources = read_resources(cubin, entry)
    smem_bytes = spec.config.smem_bytes(spec.dtype)
    record = KernelRecord(
        implementation=spec.implementation,
        config=str(spec.config),
        dtype=spec.dtype,
        variant=" ".join(spec.variant),
        arch=arch,
        entry=entry,
        threads=spec.config.threads,
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        smem_bytes=smem_bytes,
        dynamic_smem_bytes=smem_bytes if spec.config.dynamic_smem else 0,
        cluster=spec.config.cluster,
        cubin_bytes=len(cubin),
        toolkit=toolkit_text(),
        begins_early=spec.config.begins_early and compute_capability(arch) >= EARLY_FROM,
    )
    if record.registers < launch_registers:
        raise BuildError(
            f"rejected {spec} for {arch}: {record.registers} registers per thread, so its "
            f"warpgroups would wait forever for the {launch_registers} that they share out. Built "
            f"with {record.toolkit}."
        )
    if record.stack_bytes >= _rejected_stack_bytes(spec):
        raise BuildError(
            f"rejected {spec} for {arch}: {record.stack_bytes} stack bytes per thread, so its "
            f"accumulator of {spec.config.accumulator_bytes(spec.dtype)} bytes is in local memory "
            f"instead of registers. Built with {record.toolkit}; `dxgemm info` names toolkits "
            "known to do this."
        )
    return CompiledKernel(cubin, record, ptx)


def compile_function(spec: FunctionSpec, arch: str) -> CompiledKernel:
    """Compile a kernel of the caller's, as `compile_kernel` does one of dxgemm's.

    Raises:
        MissingPackageError: numba-cuda or the CUDA compiler libraries are not installed.
        BuildError: the kernel does not compile.
        DtypeError: an array that it passes to a tile has another dtype than the tile.
        ShapeError: such an array is no matrix.
    """
    with numba_lock:
        ptx = _compile_function(spec, ptx_arch(arch))
    (entry,) = re.findall(r"\.visible \.entry (\w+)\(", ptx)
    ptx = re.sub(r"^\.target \w+", f".target {arch}", ptx, flags=re.MULTILINE)
    from dxgemm.handwritten.parts.array_operand import map_name

    maps = (map_name(number) for number, (*_, order) in enumerate(spec.types) if order)
    cubin = _link(spec, arch, _with_tensor_maps(ptx, tuple(maps)))
    resources = read_resources(cubin, entry)
    record = KernelRecord(
        spec.name, spec.config, " ".join(dtype for dtype, *_ in spec.types), "", arch, entry,
        spec.threads, resources.registers, resources.stack_bytes, spec.smem_bytes,
        spec.smem_bytes, 1, len(cubin), toolkit_text(),
    )  # fmt: skip
    return CompiledKernel(cubin, record, ptx)


@collector_paused()
def _compile_function(spec: FunctionSpec, arch: str) -> str:
    """Compile a kernel of the caller's to PTX."""
    try:
        from numba import cuda
        from numba.cuda import types
    except ImportError as error:
        raise _missing_package(spec, error) from error
    from dxgemm.handwritten.parts.array_operand import (
        ArgumentDtypeError,
        ArgumentError,
        MappedArray,
        map_name,
    )

    signature = []
    for number, (dtype, dimensions, order) in enumerate(spec.types):
        kind = getattr(types, {"bool": "boolean"}.get(dtype, dtype))
        if order:
            kind = MappedArray(kind, order, map_name(number))
        elif dimensions:
            kind = types.Array(kind, dimensions, "A")
        signature.append(kind)
    capability = divmod(compute_capability(arch), 10)
    try:
        with _device_functions_for(capability), short_builds():
            ptx: str
            ptx, _ = cuda.compile(
                spec.make(), tuple(signature), device=False, abi="numba", cc=capability,
                output="ptx", launch_bounds=(spec.threads, spec.min_blocks),
            )  # fmt: skip
    except ArgumentDtypeError as error:
        raise DtypeError(f"gemm: {spec.name}: {error}") from None
    except ArgumentError as error:
        raise ShapeError(f"gemm: {spec.name}: {error}") from None
    except Exception as error:
        failure = f"numba could not compile {spec} for {arch}"
        raise _build_error(spec, failure, error, numba_reason(str(error))) from error
    return ptx


def _rejected_stack_bytes(spec: KernelSpec) -> int:
    """Least stack bytes per thread with which a kernel is rejected: its accumulator's size."""
    accumulator_bytes: int = spec.config.accumulator_bytes(spec.dtype)
    # The functions of an epilogue may need a little local memory.
    return max(accumulator_bytes, FUNCTION_STACK_BYTES if spec.epilogue else 0)


def ptx_arch(arch: str) -> str:
    """Oldest architecture whose PTX serves, but for its target; it is made once for all of them.

    float64 has other instructions from 9.0 on, and NVVM another dialect from 10.0 on.
    """
    capability = compute_capability(arch)
    return "sm_100" if capability >= 100 else "sm_80" if 80 <= capability < 90 else arch


def _compile_to_ptx(spec: KernelSpec, arch: str, declared: Any) -> tuple[str, str]:
    """Compile a kernel to PTX; return it with the name of its entry."""
    ptx = _ptx_of_family(spec, ptx_arch(arch))
    (entry,) = re.findall(r"\.visible \.entry (\w+)\(", ptx)
    if declared.only_arch is not None or arch != ptx_arch(arch):
        # numba knows no targets with features of one architecture alone, such as sm_90a.
        ptx = re.sub(r"^\.target \w+", f".target {arch}", ptx, flags=re.MULTILINE)
    return _with_tensor_maps(ptx, declared.tensor_map_names), entry


@lru_cache(maxsize=1)
def _ptx_of_family(spec: KernelSpec, arch: str) -> str:
    """PTX of a kernel; the last one is kept, because its next build may be for a younger GPU."""
    with numba_lock:
        ptx: str = _compile(spec, arch)
    return ptx


def _build_with_device_functions(spec: KernelSpec, arch: str, declared: Any) -> tuple[bytes, str]:
    """Build a kernel that calls external device functions; return its cubin and entry name.

    Kernel and functions are linked as LTO-IR, so that the functions are inlined and their arguments
    stay in registers.
    """
    if faults := pipeline_faults():
        raise BuildError(f"{spec} is not built with this toolkit: {'; '.join(faults)}.")
    functions = declared.device_functions(spec.config, spec.dtype, *spec.variant, arch=arch)
    size = declared.parameter_block_bytes
    with numba_lock, _parameter_blocks({PARAMETER_BLOCK: size} if size else {}):
        ltoir = _compile(spec, arch, output="ltoir", functions=functions)
    cubin = declared.finish_cubin(_link(spec, arch, ltoir, functions.ltoir))
    return cubin, entry_name(cubin)


def _build_whole_program(spec: KernelSpec, arch: str, declared: Any) -> tuple[bytes, str]:
    """Build a kernel whose warpgroups reallocate registers; return its cubin and PTX.

    `setmaxnreg` works in whole programs only; nvJitLink makes these of LTO-IR, not of PTX.
    """
    maps = dict.fromkeys(declared.tensor_map_names, TENSOR_MAP_BYTES)
    with numba_lock, _parameter_blocks(maps):
        ltoir = _compile(spec, arch, output="ltoir")
    ptx = _link(spec, arch, ltoir, output="ptx").rstrip(b"\0").decode()
    return _link(spec, arch, ltoir), ptx


@collector_paused()
def _compile(spec: KernelSpec, arch: str, *, output: str = "ptx", **functions: Any) -> Any:
    """Compile a kernel to PTX, as text, or to LTO-IR, as bytes; with device functions, if any."""
    try:
        from numba import cuda, types
        from numba.cuda.cudadrv.error import CCSupportError
    except ImportError as error:
        raise _missing_package(spec, error) from error
    from dxgemm.handwritten.parts.intrinsics import ReturnError

    capability = divmod(compute_capability(arch), 10)
    factor, _ = factor_dtypes(spec.dtype)
    element = getattr(types, _ELEMENT_TYPES.get(factor, factor))
    scalar = getattr(types, scalar_dtype(spec.dtype))
    kinds = {"int64": types.int64, "scalar": scalar, "pointer": types.CPointer(element)}
    try:
        with _device_functions_for(capability), short_builds():
            kernel = spec.declared.make_kernel(
                spec.config, spec.dtype, *spec.variant, **functions, epilogue=spec.epilogue
            )
            # The name that profilers show; kernels of a frame would share that of its function.
            kernel.__module__ = spec.module
            kernel.__name__ = kernel.__qualname__ = f"{spec.module.rpartition('.')[2]}_kernel"
            code, _ = cuda.compile(
                kernel,
                (*(kinds[kind] for _, kind in PARAMETERS), _epilogue_arguments_type(spec.epilogue)),
                device=False,
                abi="numba",
                cc=capability,
                output=output,
                launch_bounds=(spec.config.threads, _min_blocks(spec)),
            )
    except CCSupportError as error:
        raise BuildError(
            f"the toolkit no longer builds for {arch}: {error}; for GPUs before Turing, "
            "pip install 'dxgemm[cu12]'."
        ) from error
    except ReturnError as error:
        from dxgemm.epilogues.kinds import epilogue_error

        name = spec.epilogue.name_of(error.stage) if spec.epilogue else ""
        raise epilogue_error(name, f"it {error.fault}.") from None
    except Exception as error:
        fused = (spec.epilogue.inner, *spec.epilogue.stages) if spec.epilogue else ()
        stages = [stage for stage in fused if stage is not None]
        named = f" ({' | '.join(stage.name for stage in stages)})" if stages else ""
        failure = f"numba could not compile {spec}{named} for {arch}"
        raise _build_error(spec, failure, error, numba_reason(str(error))) from error
    return code


def _epilogue_arguments_type(epilogue: Fusion | None) -> Any:
    """Type of a kernel's last parameter: a tuple of the epilogue arguments."""
    from numba import types

    parameters = []
    for operand in epilogue.operands if epilogue else ():
        element = getattr(types, _ELEMENT_TYPES.get(operand.dtype, operand.dtype))
        if operand.kind == "number":
            parameters.append(element)
        elif operand.kind == "buffer":
            parameters.append(types.Tuple((types.CPointer(element), types.int64)))
        else:
            strides = (types.int64,) * 3
            parameters.append(types.Tuple((types.CPointer(element), *strides)))
    return types.Tuple(tuple(parameters))


def _min_blocks(spec: KernelSpec) -> int:
    """Minimum resident blocks per SM (`__launch_bounds__`), which bounds the registers per thread.

    A config may declare fewer for kernels with an epilogue, which takes some registers.
    """
    is_fused = spec.epilogue and spec.epilogue.stages
    decide = spec.config.min_blocks_fused if is_fused else spec.config.min_blocks
    return decide(spec.dtype) or 1


def _with_tensor_maps(ptx: str, names: tuple[str, ...]) -> str:
    """Append parameters that numba cannot express: 128 bytes each, aligned, passed by value."""
    end = ptx.index("\n)", ptx.index(".visible .entry"))
    parameters = "".join(f",\n\t.param .align 64 .b8 {name}[{TENSOR_MAP_BYTES}]" for name in names)
    return ptx[:end] + parameters + ptx[end:]


@contextmanager
def _parameter_blocks(sizes: Mapping[str, int]) -> Iterator[None]:
    """Give kernels last parameters that numba cannot express: aligned bytes, passed by value.

    They are appended to the LLVM IR of the kernel, before NVVM compiles it.

    Args:
        sizes: sizes in bytes, by the names that inline PTX of the kernel uses.
    """
    from numba.cuda.cudadrv import nvvm

    compile_ir = nvvm.compile_ir

    def compile_with_blocks(modules: Any, **options: Any) -> Any:
        texts = [modules] if isinstance(modules, str) else list(modules)
        for name, size in sizes.items():
            texts = _with_parameter_block(texts, name, size)
        return compile_ir(texts, **options)

    if sizes:
        nvvm.compile_ir = compile_with_blocks
    try:
        yield
    finally:
        nvvm.compile_ir = compile_ir


def _with_parameter_block(modules: list[str], block_name: str, size: int) -> list[str]:
    """Append a parameter to the kernel of modules in LLVM IR, and name it in all of them.

    A device function of the kernel is a module of its own.
    """
    found = enumerate(re.search(r'\* @"?([\w$.]+)"?, !"kernel"', module) for module in modules)
    kernels = [(place, match[1]) for place, match in found if match]
    if not kernels:
        return modules
    ((place, kernel),) = kernels
    name = rf'@"?{re.escape(kernel)}"?'
    block = f"[{size} x i8]*"
    definition = re.compile(rf"^(define [^\n]*{name}\([^\n]*?)\)", re.MULTILINE)
    match = definition.search(modules[place])
    assert match is not None
    index = match[1].count("%")
    module = definition.sub(rf'\1, {block} byval align 64 %".block{index}")', modules[place])
    module = re.sub(rf"(void \([^()]*)\)(\* {name})", rf"\1, {block})\2", module)
    texts = [*modules[:place], module, *modules[place + 1 :]]
    return [text.replace(block_name, f"{kernel}_param_{index}") for text in texts]


@contextmanager
def _device_functions_for(capability: tuple[int, int]) -> Iterator[None]:
    """Make numba compile device functions for this architecture.

    By default numba compiles them for the current GPU, which may be missing or a different one.
    """
    from numba.cuda import dispatcher

    current = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = current


def _link(spec: AnySpec, arch: str, *inputs: str | bytes, output: str = "cubin") -> bytes:
    """Link PTX (text) or LTO-IR (bytes) to a cubin, or LTO-IR to PTX."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(
        arch=arch,
        # Drops numba's environment symbols: most of the cubin would be their names.
        optimize_unused_variables=True,
        no_cache=True,  # dxgemm keeps the cubin itself
        link_time_optimization=isinstance(inputs[0], bytes) or None,
        ptx=output == "ptx" or None,
    )
    objects = [
        ObjectCode.from_ltoir(code)
        if isinstance(code, bytes)
        else ObjectCode.from_ptx(code.encode())
        for code in inputs
    ]
    try:
        return bytes(Linker(*objects, options=options).link(output).code)
    except Exception as error:
        failure = f"nvJitLink could not link {spec} for {arch} ({toolkit_text()})"
        raise _build_error(spec, failure, error) from error


def _build_error(spec: AnySpec, failure: str, error: Exception, reason: str = "") -> DxgemmError:
    from cuda.pathfinder import DynamicLibNotFoundError

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DynamicLibNotFoundError):
            library = str(cause).partition(":")[0]
            return _missing_package(spec, library)
        cause = cause.__cause__ or cause.__context__
    return BuildError(f"{failure}: {reason or error}")


def _missing_package(spec: AnySpec, what: object) -> MissingPackageError:
    return MissingPackageError(
        f"building {spec} needs numba-cuda and the CUDA compiler libraries ({what}); "
        "pip install 'dxgemm[cu13]', or 'dxgemm[cu12]' for NVIDIA drivers before 580."
    )


def compute_capability(arch: str) -> int:
    """Ten times the compute capability: 90 for "sm_90a"."""
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if match is None:
        raise BuildError(f"{arch!r} is no architecture; expected a name such as sm_90a or sm_80.")
    return int(match[1])
