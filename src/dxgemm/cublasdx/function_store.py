"""Store of device functions on disk: another kernel with the same functions needs no NVRTC run."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import asdict
from functools import cache
from typing import Any

from dxgemm.compiler import kernel_store
from dxgemm.compiler.locks import mathdx_lock
from dxgemm.compiler.toolkit import NVRTC, installed_versions
from dxgemm.cublasdx.mathdx import Descriptor, DeviceFunctions, Storage, build_functions
from dxgemm.errors import BuildError

# Part of every key: raise it when the build or the format of entries changes.
FORMAT = 2

_LIBRARIES = (("nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12"), NVRTC)


@cache
def obtain_functions(descriptor: Descriptor) -> DeviceFunctions:
    """Find device functions in memory or on disk, or let one process build and keep them.

    Raises:
        MissingPackageError, BuildError: the errors of `build_functions`.
    """
    files, key = kernel_store().device_functions, _key(descriptor)
    entry = files.load(key)
    if entry is not None:
        return _restore(*entry)
    with files.lock(key):
        entry = files.load(key)
        if entry is not None:
            return _restore(*entry)
        with mathdx_lock:
            functions = build_functions(descriptor)
        header = asdict(functions)
        files.save(key, header, zlib.compress(header.pop("ltoir")))
    return functions


def obtain_fitting_functions(descriptor: Descriptor, smem_bytes: int) -> DeviceFunctions:
    """Obtain device functions whose pipeline fits into the shared memory of a kernel.

    Raises:
        MissingPackageError, BuildError: the errors of `build_functions`, or the pipeline is larger.
    """
    functions = obtain_functions(descriptor)
    if functions.buffer.size > smem_bytes:
        raise BuildError(
            f"cuBLASDx wants {functions.buffer.size} bytes of shared memory for {descriptor}; "
            f"{smem_bytes} were expected."
        )
    return functions


def _key(descriptor: Descriptor) -> str:
    """Key of device functions. It names the libraries, since LTO-IR depends on their versions."""
    identity = (FORMAT, descriptor, installed_versions(_LIBRARIES))
    return hashlib.sha256(repr(identity).encode()).hexdigest()


def _restore(header: dict[str, Any], payload: bytes) -> DeviceFunctions:
    fields: dict[str, Any] = {
        name: Storage(**value) if isinstance(value, dict) and "alignment" in value else value
        for name, value in header.items()
    }
    return DeviceFunctions(ltoir=zlib.decompress(payload), **fields)
