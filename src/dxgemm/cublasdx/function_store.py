"""Device functions on disk, apart from the cubins: another kernel over them needs no NVRTC run."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dxgemm.compiler import default_directory
from dxgemm.cublasdx.mathdx import Descriptor, DeviceFunctions, Storage, build_functions

# Part of every key: raise it when what is built or kept changes.
FORMAT = 1

_LIBRARIES = (
    ("nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12"),
    ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
)


@cache
def obtain_functions(descriptor: Descriptor) -> DeviceFunctions:
    """The device functions from memory, from disk, or built now and kept.

    Raises:
        MissingPackageError, BuildError: as `build_functions` does.
    """
    path = default_directory() / "cublasdx" / _key(descriptor)
    functions = _load(path)
    if functions is None:
        functions = build_functions(descriptor)
        _save(path, functions)
    return functions


def _key(descriptor: Descriptor) -> str:
    """Unlike a cubin's, it names the libraries: LTO-IR is linked by what is installed with them."""
    identity = (FORMAT, descriptor, _versions())
    return hashlib.sha256(repr(identity).encode()).hexdigest()


def _versions() -> tuple[str, ...]:
    """Of the libraries that build device functions, as far as they are installed."""
    found = []
    for alternatives in _LIBRARIES:
        for name in alternatives:
            try:
                found.append(f"{name} {version(name)}")
                break
            except PackageNotFoundError:
                continue
    return tuple(found)


def _load(path: Path) -> DeviceFunctions | None:
    """What a file holds; None if it is absent or damaged."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest().encode() != digest:
        return None
    header, _, ltoir = content.partition(b"\n")
    fields: dict[str, Any] = {
        name: Storage(**value) if isinstance(value, dict) and "alignment" in value else value
        for name, value in json.loads(header).items()
    }
    return DeviceFunctions(ltoir=zlib.decompress(ltoir), **fields)


def _save(path: Path, functions: DeviceFunctions) -> None:
    """Keep them, atomically; a disk that is full or read-only costs a build the next time."""
    fields = asdict(functions)
    ltoir = zlib.compress(fields.pop("ltoir"))
    content = json.dumps(fields).encode() + b"\n" + ltoir
    digest = hashlib.sha256(content).hexdigest().encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(digest + b"\n" + content)
        part.replace(path)
    except OSError:
        return
