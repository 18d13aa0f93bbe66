"""Identity of a kernel. Shapes and strides are no part of it: they are arguments at run time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dxgemm.errors import BuildError
from dxgemm.handwritten import ROOMS
from dxgemm.handwritten.parts.sources import source_text
from dxgemm.problem.fusion import Fusion

# Part of every key: raise it when the argument list or the build changes the meaning of a cubin.
BUILD_VERSION = 3

# Packages whose files are part of kernels.
HANDWRITTEN = tuple(f"dxgemm.handwritten.{room}" for room in ROOMS)

# Parameters of every GEMM kernel, in order, with their kind. Strides count elements. The parameters
# of a call come before those of a problem, so that a launch packs each group in one piece. The
# epilogue arguments follow; in the kernel they are one tuple.
PARAMETERS: tuple[tuple[str, str], ...] = (
    ("a_gmem", "pointer"),
    ("b_gmem", "pointer"),
    ("c_gmem", "pointer"),
    ("out_gmem", "pointer"),
    ("alpha", "scalar"),
    ("beta", "scalar"),
    ("m", "int64"),
    ("n", "int64"),
    ("k", "int64"),
    ("batch", "int64"),
    ("a_stride_batch", "int64"),
    ("a_stride_m", "int64"),
    ("a_stride_k", "int64"),
    ("b_stride_batch", "int64"),
    ("b_stride_k", "int64"),
    ("b_stride_n", "int64"),
    ("c_stride_batch", "int64"),
    ("c_stride_m", "int64"),
    ("c_stride_n", "int64"),
    ("out_stride_batch", "int64"),
    ("out_stride_m", "int64"),
    ("out_stride_n", "int64"),
)


@dataclass(frozen=True)
class KernelSpec:
    """Kernel to build, by `make_kernel(config, dtype, *variant, epilogue=...)` of its module.

    Attributes:
        implementation: registered name, such as "thread_tile_2d".
        module: import path of the kernel file.
        config: the kernel file's own frozen `Config`; its `repr` is part of the key.
        dtype: dtype of a and b, such as "float32".
        variant: further properties of the problem that are compiled in, such as the layouts of a
            and b.
        epilogue: epilogue that is fused into the kernel; None without one.
    """

    implementation: str
    module: str
    config: Any
    dtype: str
    variant: tuple[str, ...] = ()
    epilogue: Fusion | None = None

    @property
    def declared(self) -> Any:
        """The kernel file's `KERNEL`."""
        return import_module(self.module).KERNEL

    @property
    def links_functions(self) -> bool:
        """True if the kernel is linked with a library's device functions, which takes long."""
        return self.declared.device_functions is not None

    def key(self, arch: str) -> str:
        """Name of this kernel's cubin for one architecture, the same in every process.

        The toolkit is not part of it: a cubin stays valid when the toolkit is upgraded, and a
        machine without a toolkit can run what another one built. Its record names the toolkit.
        """
        source = _source_digest(self.module)
        epilogue = self.epilogue.key if self.epilogue else None
        identity = (BUILD_VERSION, source, self.config, self.dtype, self.variant, epilogue, arch)
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def __str__(self) -> str:
        epilogue = (self.epilogue.label,) if self.epilogue else ()
        parts = [self.implementation, str(self.config), self.dtype, *self.variant, *epilogue]
        return " ".join(parts)


@dataclass(frozen=True)
class FunctionSpec:
    """Kernel of the caller's, over parts of a module of `HANDWRITTEN`.

    Attributes:
        name: name of the function.
        digest: sha256 of all that it does, as hexadecimal text.
        make: () -> the function, for a compiler.
        types: dtype and dimensions of each argument; 0 dimensions for a number. Then, of a matrix
            that comes with a tensor map, its order: see `array_operand.MappedArray`; else "".
        module: import path of the file of the parts.
        config: text that describes the tiles.
        threads: threads per block.
        min_blocks: minimum resident blocks per SM (`__launch_bounds__`).
        smem_bytes: shared memory per block, which the launch allocates.
    """

    name: str
    digest: str
    make: Callable[[], Callable[..., None]] = field(compare=False, repr=False)
    types: tuple[tuple[str, int, str], ...]
    module: str
    config: str
    threads: int
    min_blocks: int
    smem_bytes: int

    links_functions = False  # of a library

    def key(self, arch: str) -> str:
        """Name of this kernel's cubin for one architecture, as `KernelSpec.key` makes it."""
        source = _source_digest(self.module)
        shape = self.threads, self.min_blocks, self.smem_bytes
        identity = (BUILD_VERSION, source, self.digest, self.types, shape, arch)
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def __str__(self) -> str:
        return f"kernel {self.name} ({self.config})"


AnySpec = KernelSpec | FunctionSpec


def check_sources(spec: AnySpec) -> None:
    """Check, after a build, that the kernel was made from the texts that its key stands for.

    Raises:
        BuildError: a file was edited after the key was computed, or a module was loaded again.
    """
    if _compute_source_digest(spec.module) != _source_digest(spec.module):
        raise BuildError(
            f"{spec} is not built: its source files changed in this process; restart Python."
        )


def _compute_source_digest(module: str) -> str:
    """Digest of a kernel file and of the files that it imports from its package or `HANDWRITTEN`.

    Files are not imported for it: on a cache hit numba must stay unimported. Those that are
    imported count as they were then.
    """
    packages = {module.rpartition(".")[0], *HANDWRITTEN}
    digest = hashlib.sha256()
    found, pending = {module}, [module]
    while pending:
        name = pending.pop(0)
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no kernel file {name}")
        source = source_text(spec.origin)
        digest.update(f"{name}\0{source}\0".encode())
        imported = sorted(set(_imports(source, packages)))
        pending += [other for other in imported if other not in found]
        found.update(imported)
    return digest.hexdigest()


_source_digest = cache(_compute_source_digest)


def _imports(source: str, packages: set[str]) -> Iterator[str]:
    """Yield the files of these packages that a source imports.

    An import has the form `from package.file import name`, or `from package import file, other`.
    """
    # The longest first: `package.room import file` names the file and not the room.
    alternatives = "|".join(map(re.escape, sorted(packages, reverse=True)))
    pattern = rf"^\s*from ({alternatives})(\.\w+)? import (\([^)]*\)|.*)"
    for package, file, names in re.findall(pattern, source, re.M):
        if file:
            yield package + file
        else:
            yield from (f"{package}.{name}" for name in re.findall(r"\w+", names))
