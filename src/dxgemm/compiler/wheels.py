"""Kernels that come built, in a wheel for one architecture; they are found before the user's cache.

The wheel `dxgemm-kernels-sm90a` holds data alone, in a package `dxgemm_kernels_sm90a`: a manifest,
and a compressed file for each kernel, named by its key. It is never imported, nor written to.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dxgemm.compiler.build import CompiledKernel
from dxgemm.compiler.store import pack_kernel, unpack_kernel
from dxgemm.gpu.status import probe
from dxgemm.log import logger
from dxgemm.version import __version__

try:
    import lzma
except ImportError:  # Python was built without it
    lzma = None  # type: ignore[assignment]

PACKAGE = "dxgemm_kernels_"  # and the architecture
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """Conditions under which the kernels of a wheel are used.

    Attributes:
        dxgemm: version of dxgemm.
        arch: architecture of the GPU.
        machine: architecture of the host's CPU.
        cuda: major version of the CUDA toolkit that linked the kernels, which drivers need.
        kernels: number of kernels.
    """

    dxgemm: str
    arch: str
    machine: str
    cuda: int
    kernels: int

    def refusal(self, arch: str) -> str | None:
        """Reason why the kernels are not used for an architecture here; None if they are."""
        machine, driver = os.uname().machine, probe().driver_version
        if lzma is None:
            return "this Python has no lzma"
        if self.dxgemm != __version__:
            return f"it is of dxgemm {self.dxgemm}, not {__version__}"
        if self.arch != arch:
            return f"it is for {self.arch}, not {arch}"
        if self.machine != machine:
            return f"it is for {self.machine}, not {machine}"
        if driver is not None and driver < 1000 * self.cuda:
            return f"it needs a driver for CUDA {self.cuda}, not {driver // 1000}"
        return None


class KernelWheel:
    """Installed wheel of kernels.

    Attributes:
        directory: folder of its files.
        manifest: conditions under which the kernels are used.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest
        self._is_damaged = False

    def load(self, key: str) -> CompiledKernel | None:
        """Read a kernel; None if it is absent or damaged."""
        try:
            kernel = unpack_kernel(key, lzma.decompress((self.directory / key).read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, lzma.LZMAError):
            kernel = None
        if kernel is None and not self._is_damaged:
            self._is_damaged = True
            logger.warning("ignored damaged kernels in %s; install it again", self.directory)
        return kernel


@cache
def kernel_wheel(arch: str) -> KernelWheel | None:
    """Find the installed wheel for an architecture; None without one that is of use here."""
    found = find_spec(package_name(arch))
    if found is None or not found.submodule_search_locations:
        return None
    directory = Path(next(iter(found.submodule_search_locations)))
    try:
        manifest = Manifest(**json.loads((directory / MANIFEST).read_bytes()))
        refusal = manifest.refusal(arch)
    except (OSError, TypeError, ValueError):
        refusal = "its manifest is damaged"
    if refusal is None:
        return KernelWheel(directory, manifest)
    logger.warning("ignored the kernels in %s: %s", directory, refusal)
    return None


def installed_wheels() -> list[KernelWheel]:
    """List all installed wheels that are of use here."""
    from pkgutil import iter_modules

    names = (module.name for module in iter_modules() if module.name.startswith(PACKAGE))
    archs = (re.sub(r"sm(?=\d)", "sm_", name.removeprefix(PACKAGE)) for name in names)
    return [wheel for wheel in map(kernel_wheel, archs) if wheel is not None]


def write_kernels(directory: Path, arch: str, kernels: Mapping[str, CompiledKernel]) -> None:
    """Write the files of a wheel: kernels of one architecture, by key."""
    directory.mkdir(parents=True)
    linkers = {kernel.record.toolkit for kernel in kernels.values()}
    versions = {int(major) for text in linkers for major in re.findall(r"nvjitlink\S* (\d+)", text)}
    manifest = Manifest(__version__, arch, os.uname().machine, max(versions), len(kernels))
    (directory / "__init__.py").write_text(f'"Kernels of dxgemm, built for {arch}."\n')
    (directory / MANIFEST).write_text(json.dumps(asdict(manifest)))
    for key, kernel in kernels.items():
        (directory / key).write_bytes(lzma.compress(pack_kernel(key, kernel)))


def package_name(arch: str) -> str:
    """Name of the folder of a wheel: `dxgemm_kernels_sm90a` for "sm_90a"."""
    return f"{PACKAGE}{arch.replace('_', '')}"
