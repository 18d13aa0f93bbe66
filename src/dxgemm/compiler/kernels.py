"""Kernels from memory, from disk, or built: once, however many threads and processes want one."""

from __future__ import annotations

from functools import cache

from dxgemm.compiler.build import CompiledKernel, compile_kernel
from dxgemm.compiler.spec import KernelSpec
from dxgemm.compiler.store import KernelStore, default_directory

_in_memory: dict[tuple[KernelSpec, str], CompiledKernel] = {}


@cache
def kernel_store() -> KernelStore:
    """The store of this process; its directory is read from the environment at first use."""
    return KernelStore(default_directory())


def find_kernel(spec: KernelSpec, arch: str) -> CompiledKernel | None:
    """The kernel if it is in memory or on disk; never builds."""
    kernel = _in_memory.get((spec, arch))
    if kernel is None and (kernel := kernel_store().load(spec.key(arch))) is not None:
        return keep_kernel(spec, arch, kernel)
    return kernel


def obtain_kernel(spec: KernelSpec, arch: str) -> CompiledKernel:
    """The kernel from memory, from disk, or built now and kept."""
    kernel = find_kernel(spec, arch)
    if kernel is not None:
        return kernel
    key = spec.key(arch)
    with kernel_store().lock(key):
        kernel = find_kernel(spec, arch)
        if kernel is None:
            kernel = compile_kernel(spec, arch)
            kernel_store().save(key, kernel)
    return keep_kernel(spec, arch, kernel)


def keep_kernel(spec: KernelSpec, arch: str, kernel: CompiledKernel) -> CompiledKernel:
    """Keep a kernel in memory, unless there is one already; return that which is kept."""
    return _in_memory.setdefault((spec, arch), kernel)


def clear_kernels() -> int:
    """Forget every kernel, on disk too; return how many were there."""
    _in_memory.clear()
    return kernel_store().clear()
