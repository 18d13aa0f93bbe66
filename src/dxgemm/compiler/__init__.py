"""Python kernel to cubin, once: built without a GPU if need be, kept on disk, verified on load."""

from __future__ import annotations

import threading
from functools import cache

from dxgemm.compiler.build import (
    PARAMETER_BLOCK,
    CompiledKernel,
    KernelRecord,
    compile_kernel,
    compute_capability,
)
from dxgemm.compiler.spec import PARAMETERS, KernelSpec
from dxgemm.compiler.store import CacheInfo, KernelStore, default_directory
from dxgemm.compiler.toolkit import toolkit_text, toolkit_versions, toolkit_warnings

__all__ = [
    "PARAMETERS",
    "PARAMETER_BLOCK",
    "CacheInfo",
    "CompiledKernel",
    "KernelRecord",
    "KernelSpec",
    "KernelStore",
    "compile_kernel",
    "compute_capability",
    "find_kernel",
    "kernel_store",
    "obtain_kernel",
    "toolkit_text",
    "toolkit_versions",
    "toolkit_warnings",
]

_build_lock = threading.Lock()


@cache
def kernel_store() -> KernelStore:
    """The store of this process; its directory is read from the environment at first use."""
    return KernelStore(default_directory())


def find_kernel(spec: KernelSpec, arch: str) -> CompiledKernel | None:
    """The kernel if it is on disk; never builds."""
    return kernel_store().load(spec.key(arch))


@cache
def obtain_kernel(spec: KernelSpec, arch: str) -> CompiledKernel:
    """The kernel from memory, from disk, or built now and kept; one build at a time here."""
    kernel = find_kernel(spec, arch)
    if kernel is not None:
        return kernel
    with _build_lock:
        kernel = find_kernel(spec, arch)
        if kernel is None:
            kernel = compile_kernel(spec, arch)
            kernel_store().save(spec.key(arch), kernel)
    return kernel
