"""Installed CUDA compiler packages, and faults of those that are known to spoil kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

_COMPILER_PACKAGES = (
    ("numba-cuda",),
    ("numba",),
    ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"),
    ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"),
)
NVRTC = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")  # compiles cuBLASDx


@cache
def toolkit_versions() -> dict[str, str]:
    """Versions of the installed compiler packages, by name."""
    return installed_versions(_COMPILER_PACKAGES)


def installed_versions(packages: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """Versions by name of the first installed package of each group of alternative names."""
    from importlib.metadata import PackageNotFoundError, version  # a tenth of `import dxgemm`

    found = {}
    for alternatives in packages:
        for name in alternatives:
            with suppress(PackageNotFoundError):
                found[name] = version(name)
                break
    return found


def toolkit_text() -> str:
    """Format the versions for a kernel's record: `numba-cuda 0.30.4, numba 0.68.1, ...`."""
    return ", ".join(f"{name} {number}" for name, number in toolkit_versions().items())


@cache
def pipeline_faults() -> tuple[str, ...]:
    """Reasons not to build cuBLASDx pipelines with the installed packages; other kernels are built.

    Source: cubins of one float64 pipeline kernel compared over nvJitLink releases, and NVIDIA's
    cuBLASDx release notes for the miscompiling toolkits.
    """
    faults = []
    for name, number in (toolkit_versions() | installed_versions((NVRTC,))).items():
        release = tuple(int(part) for part in re.findall(r"\d+", number)[:3])
        if name == "nvidia-nvjitlink" and release >= (13, 2):
            faults.append(
                f"{name} {number} can place sums of cuBLASDx pipelines in local memory, at a "
                "third of the speed; pip install 'dxgemm[cu13]' 'nvidia-nvjitlink<13.2'"
            )
        elif name in NVRTC and (12, 4) <= release < (12, 5, 82):
            faults.append(f"{name} {number} cannot compile cuBLASDx; install 12.9.1 or newer")
        elif name.endswith("-cu12") and (12, 8) <= release < (12, 9, 86):
            faults.append(
                f"{name} {number} belongs to a CUDA release (12.8.0 to 12.9.0) documented to "
                "miscompile cuBLASDx kernels; install 12.9.1 or newer"
            )
    return tuple(faults)
