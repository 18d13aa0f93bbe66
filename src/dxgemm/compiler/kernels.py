"""Look-up of kernels in memory, in wheels and on disk; each is built once for all processes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from dxgemm.compiler.build import CompiledKernel, compile_function, compile_kernel
from dxgemm.compiler.locks import building, lock_across_forks
from dxgemm.compiler.spec import AnySpec, FunctionSpec, check_sources
from dxgemm.compiler.store import KernelStore, default_directory
from dxgemm.compiler.wheels import kernel_wheel
from dxgemm.errors import BuildError
from dxgemm.log import logger, progress_bar

# Of kernels in memory, the ones that were looked up last; others are read from disk again. Without
# a bound, a service that makes a new epilogue for each request would keep all their kernels.
MOST_BYTES = 64 << 20
_in_memory: OrderedDict[tuple[AnySpec, str], CompiledKernel] = OrderedDict()
_lock = lock_across_forks()  # a signal handler may look kernels up too
_replaced: set[str] = set()  # keys of the kernels that were built again by `replace_kernel`


@cache
def kernel_store() -> KernelStore:
    """Store of this process; its directory is read from the environment at first use."""
    return KernelStore(default_directory())


def find_kernel(spec: AnySpec, arch: str) -> CompiledKernel | None:
    """Find a kernel in memory, in an installed wheel or in the cache; None if it is not built."""
    with _lock:
        kernel = _in_memory.get((spec, arch))
        if kernel is not None:
            _in_memory.move_to_end((spec, arch))
            return kernel
    key, wheel = spec.key(arch), kernel_wheel(arch)
    kernel = (wheel.load(key) if wheel else None) or kernel_store().load(key)
    return keep_kernel(spec, arch, kernel) if kernel else None


def obtain_kernel(spec: AnySpec, arch: str) -> CompiledKernel:
    """Find a kernel as `find_kernel` does, or build it now and keep it."""
    kernel = find_kernel(spec, arch)
    if kernel is not None:
        return kernel
    key = spec.key(arch)
    with building, kernel_store().lock(key):
        kernel = find_kernel(spec, arch) or _build(spec, arch)
    return keep_kernel(spec, arch, kernel)


def replace_kernel(spec: AnySpec, arch: str, refused: CompiledKernel) -> CompiledKernel:
    """Build a kernel again whose cubin the driver cannot use, and keep it in place of that one.

    The kernel may come from a wheel, or a cache that another machine shares. A process builds it
    again once at most, and takes what another process has put into the cache since.

    Raises:
        BuildError: it was built again before, or does not compile.
        MissingPackageError: the compiler packages are not installed.
    """
    key = spec.key(arch)
    with building, kernel_store().lock(key):
        known = _in_memory.get((spec, arch)), kernel_store().load(key)
        kernel = next((k for k in known if k and k.cubin != refused.cubin), None)
        if kernel is None:
            if key in _replaced:
                raise BuildError(f"{spec} for {arch} was built again already")
            logger.warning("%s for %s is built again: the driver cannot use it", spec, arch)
            _replaced.add(key)
            kernel = _build(spec, arch)
    with _lock:
        _in_memory.pop((spec, arch), None)
    return keep_kernel(spec, arch, kernel)


def _build(spec: AnySpec, arch: str) -> CompiledKernel:
    """Build a kernel and keep it on disk."""
    start = time.perf_counter()
    with _announced(spec, arch):
        if isinstance(spec, FunctionSpec):
            kernel = compile_function(spec, arch)
        else:
            kernel = compile_kernel(spec, arch)
    check_sources(spec)
    logger.info("built %s for %s in %.1f s", spec, arch, time.perf_counter() - start)
    kernel_store().save(spec.key(arch), kernel)
    return kernel


@contextmanager
def _announced(spec: AnySpec, arch: str) -> Iterator[None]:
    """Announce a long build, of a kernel over a library's device functions, and show its time."""
    if not spec.links_functions:
        yield
        return
    text = f"building {spec} for {arch}, which can take a minute"
    logger.info(text)
    with progress_bar(is_timed=True) as report:
        report(0, None, text)
        yield


def keep_kernel(spec: AnySpec, arch: str, kernel: CompiledKernel) -> CompiledKernel:
    """Keep a kernel in memory, unless it is there already; return the one that is kept."""
    with _lock:
        kernel = _in_memory.setdefault((spec, arch), kernel)
        total = sum(map(_bytes_of, list(_in_memory.values())))
        while total > MOST_BYTES and len(_in_memory) > 1:
            total -= _bytes_of(_in_memory.popitem(last=False)[1])
    return kernel


def _bytes_of(kernel: CompiledKernel) -> int:
    return len(kernel.cubin) + len(kernel.ptx or "")


def clear_kernels() -> int:
    """Remove every kernel from memory and the cache; return how many were in the cache."""
    with _lock:
        _in_memory.clear()
        _replaced.clear()
    kernel_wheel.cache_clear()
    return kernel_store().clear()
