"""Access to libmathdx by nvmath.bindings.mathdx; its failures become a `BuildError`.

Kernels must also build on machines without an NVIDIA driver. libmathdx needs none, but the bindings
do; here they are changed to work without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dxgemm.errors import BuildError, MissingPackageError

MOST_ERROR_LINES = 3
# The first version that works, and the first that is untried.
OLDEST_LIBRARY, NEXT_LIBRARY = (0, 3, 1), (0, 4, 0)


@cache
def library() -> Any:
    """Load nvmath.bindings.mathdx; the objects that a build creates live as long as the process.

    Raises:
        MissingPackageError: nvmath-python, libmathdx or NVRTC is not installed.
        BuildError: pipelines were not tried with this version of libmathdx.
    """
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        load_nvidia_dynamic_lib("nvrtc")  # libmathdx looks for it by name only
        _bind_without_driver(_libmathdx())
        from nvmath.bindings import mathdx
    except (DynamicLibNotFoundError, ImportError) as error:
        raise MissingPackageError(
            "cuBLASDx pipelines are built with nvmath-python, libmathdx and NVRTC "
            f"({str(error).partition(':')[0]}); pip install 'dxgemm[cu13]', or 'dxgemm[cu12]' "
            "for NVIDIA drivers before 580."
        ) from error
    version = tuple(mathdx.get_version_ex())
    if not OLDEST_LIBRARY <= version < NEXT_LIBRARY:
        raise BuildError(
            f"libmathdx {_dotted(version)} is installed; cuBLASDx pipelines need "
            f"{_dotted(OLDEST_LIBRARY)} or later, before {_dotted(NEXT_LIBRARY)}."
        )
    return mathdx


@contextmanager
def tell_failures() -> Iterator[None]:
    """Turn failures of the library into `BuildError`, with its message; also a decorator."""
    failure = library().LibMathDxError
    try:
        yield
    except failure as error:
        lines = str(error).strip().splitlines()[:MOST_ERROR_LINES]  # the rest names templates
        raise BuildError("libmathdx: " + "\n".join(lines)) from error


def _libmathdx() -> ctypes.CDLL:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(str(load_nvidia_dynamic_lib("mathdx").abs_path))


def _bind_without_driver(libmathdx: ctypes.CDLL) -> None:
    """Let nvmath.bindings.mathdx call libmathdx on machines without an NVIDIA driver.

    nvmath's loader first asks libcuda for the driver's version, and does not use the answer.
    Without libcuda, each C function that the bindings import from the loader is replaced by that of
    libmathdx. Both have the same signature, which is the name of the capsule.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
        return
    except OSError:
        import nvmath.bindings._internal.mathdx as loader
    name_of, new_capsule = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_New
    name_of.restype, name_of.argtypes = ctypes.c_void_p, [ctypes.py_object]
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    for name, capsule in loader.__pyx_capi__.items():
        function = getattr(libmathdx, name.removeprefix("_"), None)
        if function is not None:
            address = ctypes.cast(function, ctypes.c_void_p)
            loader.__pyx_capi__[name] = new_capsule(address, name_of(capsule), None)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
