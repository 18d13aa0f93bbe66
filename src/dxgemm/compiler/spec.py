"""What identifies a kernel. Shapes and strides do not: they are arguments at run time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Part of every key: raise it when the argument list or the build changes what a cubin means.
BUILD_VERSION = 1

# The parameters of every GEMM kernel, in order, with their kind. Strides count elements. What
# changes from call to call comes first, so that a launch packs it in one piece.
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
    """One kernel to build: a module with `make_kernel(config, dtype)`, its config and its dtype.

    Attributes:
        implementation: registered name, such as "thread_tile_2d".
        module: import path of the kernel file.
        config: the kernel file's own frozen `Config`; its `repr` is part of the key.
        dtype: "float32" or "float64".
    """

    implementation: str
    module: str
    config: Any
    dtype: str

    def key(self, arch: str) -> str:
        """Name of this kernel's cubin for one architecture, the same in every process.

        The toolkit is not part of it: a cubin stays valid when the toolkit is upgraded, and a
        machine without a toolkit can run what another one built. Its record names the toolkit.
        """
        identity = (BUILD_VERSION, _source_digest(self.module), self.config, self.dtype, arch)
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.implementation} {self.config} {self.dtype}"


@cache
def _source_digest(module: str) -> str:
    """Digest of all kernel files beside `module`: they may share device functions.

    Read as text, not imported: on a cache hit numba must stay unimported.
    """
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"no kernel file {module}")
    digest = hashlib.sha256()
    for path in sorted(Path(found.origin).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
