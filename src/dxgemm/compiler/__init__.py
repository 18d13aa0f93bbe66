"""Compiler from Python kernels to cubins, which are kept on disk; it needs no GPU."""

from dxgemm.compiler.ahead import Task, build_kernels
from dxgemm.compiler.build import (
    PARAMETER_BLOCK,
    CompiledKernel,
    KernelRecord,
    compile_kernel,
    compute_capability,
)
from dxgemm.compiler.kernels import (
    clear_kernels,
    find_kernel,
    kernel_store,
    obtain_kernel,
    replace_kernel,
)
from dxgemm.compiler.spec import PARAMETERS, FunctionSpec, KernelSpec
from dxgemm.compiler.store import CacheInfo, KernelStore, default_directory
from dxgemm.compiler.toolkit import pipeline_faults, toolkit_text, toolkit_versions
from dxgemm.compiler.wheels import KernelWheel, installed_wheels, kernel_wheel

__all__ = [
    "PARAMETERS",
    "PARAMETER_BLOCK",
    "CacheInfo",
    "CompiledKernel",
    "FunctionSpec",
    "KernelRecord",
    "KernelSpec",
    "KernelStore",
    "KernelWheel",
    "Task",
    "build_kernels",
    "clear_kernels",
    "compile_kernel",
    "compute_capability",
    "default_directory",
    "find_kernel",
    "installed_wheels",
    "kernel_store",
    "kernel_wheel",
    "obtain_kernel",
    "pipeline_faults",
    "replace_kernel",
    "toolkit_text",
    "toolkit_versions",
]
