"""Look-up of kernels in memory and on disk; each is built once for all threads and processes."""

from __future__ import annotations

import time
from functools import cache

from dxgemm.compiler.build import CompiledKernel, compile_kernel
from dxgemm.compiler.spec import KernelSpec
from dxgemm.compiler.store import KernelStore, default_directory
from dxgemm.log import logger

_in_memory: dict[tuple[KernelSpec, str], CompiledKernel] = {}


@cache
def kernel_store() -> KernelStore:
    """Store of this process; its directory is read from the environment at first use."""
    return KernelStore(default_directory())


def find_kernel(spec: KernelSpec, arch: str) -> CompiledKernel | None:
    """Find a kernel in memory or on disk; None if it is not built."""
    kernel = _in_memory.get((spec, arch))
    if kernel is None and (kernel := kernel_store().load(spec.key(arch))) is not None:
        return keep_kernel(spec, arch, kernel)
    return kernel


def obtain_kernel(spec: KernelSpec, arch: str) -> CompiledKernel:
    """Find a kernel in memory or on disk, or build it now and keep it."""
    kernel = find_kernel(spec, arch)
    if kernel is not None:
        return kernel
    key = spec.key(arch)
    with kernel_store().lock(key):
        kernel = find_kernel(spec, arch)
        if kernel is None:
            start = time.perf_counter()
            kernel = compile_kernel(spec, arch)
            logger.info("built %s for %s in %.1f s", spec, arch, time.perf_counter() - start)
            kernel_store().save(key, kernel)
    return keep_kernel(spec, arch, kernel)


def keep_kernel(spec: KernelSpec, arch: str, kernel: CompiledKernel) -> CompiledKernel:
    """Keep a kernel in memory, unless it is there already; return the one that is kept."""
    return _in_memory.setdefault((spec, arch), kernel)


def clear_kernels() -> int:
    """Remove every kernel from memory and disk; return how many were on disk."""
    _in_memory.clear()
    return kernel_store().clear()
