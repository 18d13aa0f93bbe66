"""The on-disk kernel cache: one file a kernel, verified before use, never an obstacle.

Atomic writes and concurrent processes are cuda-core's `FileStreamProgramCache`; the format of an
entry is ours: a SHA-256 of the rest, a header as one line of JSON (a kernel's record), the payload
(its cubin). A truncated, damaged or foreign file reads as a miss and is built again. Who builds
holds the lock of the key, so that everyone else waits for that one build: a file beside the
entries, which the operating system unlocks when its holder ends, however that happens.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from dxgemm.compiler.build import CompiledKernel, KernelRecord

if TYPE_CHECKING:
    from cuda.core.utils import FileStreamProgramCache


@dataclass(frozen=True)
class CacheInfo:
    """What the kernel cache holds.

    Attributes:
        directory: where it is.
        writable: whether builds can be kept.
        kernels: a record for each kernel.
        total_bytes: size of all cubins.
    """

    directory: Path
    writable: bool
    kernels: tuple[KernelRecord, ...]

    @property
    def total_bytes(self) -> int:
        return sum(record.cubin_bytes for record in self.kernels)


class VerifiedFiles:
    """A header with a payload for each key, in one folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._locks = directory / "locks"

    @cached_property
    def _files(self) -> FileStreamProgramCache | None:
        """cuda-core's cache; None (with a warning, once) where the directory cannot be used."""
        from cuda.core.utils import FileStreamProgramCache

        try:
            return FileStreamProgramCache(self.directory)
        except OSError as error:
            self._warn(error)
            return None

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """Header and payload, or None if they are absent or damaged."""
        if self._files is None:
            return None
        try:
            entry = self._files.get(key)
        except OSError as error:
            self._warn(error)
            return None
        return None if entry is None else _decode(entry)

    def save(self, key: str, header: dict[str, Any], payload: bytes) -> None:
        """Keep them; a full or read-only disk costs a warning, not the caller's result."""
        if self._files is None:
            return
        try:
            self._files[key] = _encode(header, payload)
        except OSError as error:
            self._warn(error)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Wait until no other thread or process holds the key; where no file can be locked, go on.

        What the key stands for may be there afterwards: look again before building it.
        """
        from filelock import FileLock

        with ExitStack() as stack:
            if self._files is not None:
                with suppress(OSError):
                    self._locks.mkdir(exist_ok=True)
                    stack.enter_context(FileLock(self._locks / key))
            yield

    def clear(self) -> int:
        """Remove all and return how many there were."""
        from filelock import FileLock

        if self._files is None:
            return 0
        count = len(self._files)
        self._files.clear()
        for path in self._locks.glob("*"):
            with suppress(OSError), FileLock(path, blocking=False):  # a build in progress keeps its
                path.unlink()
        return count - len(self._files)

    def headers(self) -> list[dict[str, Any]]:
        """Those of all entries that are whole."""
        paths = sorted(path for path in self.directory.glob("entries/*/*") if path.is_file())
        entries = (_decode(path.read_bytes()) for path in paths)
        return [entry[0] for entry in entries if entry is not None]

    def _warn(self, error: OSError) -> None:
        warnings.warn(
            f"dxgemm's kernel cache {self.directory} cannot be used ({error}); kernels are built "
            "again in every process. Set DXGEMM_CACHE_DIR to a writable directory.",
            RuntimeWarning,
            stacklevel=4,
        )


class KernelStore:
    """Kernels on disk, by key, and beside them the device functions that some are linked with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.device_functions = VerifiedFiles(directory / "device_functions")
        self._kernels = VerifiedFiles(directory)

    def load(self, key: str) -> CompiledKernel | None:
        """The kernel, or None if it is absent or damaged."""
        entry = self._kernels.load(key)
        record = _record(entry[0]) if entry else None
        return CompiledKernel(entry[1], record) if entry and record else None

    def save(self, key: str, kernel: CompiledKernel) -> None:
        """Keep a kernel; a full or read-only disk costs a warning, not the caller's result."""
        self._kernels.save(key, asdict(kernel.record), kernel.cubin)

    def lock(self, key: str) -> AbstractContextManager[None]:
        """One build of a kernel at a time; see `VerifiedFiles.lock`."""
        return self._kernels.lock(key)

    def clear(self) -> int:
        """Remove every kernel, and all device functions; return how many kernels there were."""
        if self.device_functions.directory.exists():
            self.device_functions.clear()
        return self._kernels.clear()

    def info(self) -> CacheInfo:
        records = map(_record, self._kernels.headers())
        existing = next(p for p in (self.directory, *self.directory.parents) if p.exists())
        return CacheInfo(
            directory=self.directory,
            writable=existing.is_dir() and os.access(existing, os.W_OK),
            kernels=tuple(record for record in records if record is not None),
        )


def default_directory() -> Path:
    """$DXGEMM_CACHE_DIR, or the user's cache directory of this operating system."""
    chosen = os.environ.get("DXGEMM_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("dxgemm", appauthor=False))


def _encode(header: dict[str, Any], payload: bytes) -> bytes:
    content = json.dumps(header).encode() + b"\n" + payload
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _decode(entry: bytes) -> tuple[dict[str, Any], bytes] | None:
    digest, _, content = entry.partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        return None
    header, _, payload = content.partition(b"\n")
    try:
        return json.loads(header), payload
    except ValueError:
        return None


def _record(header: dict[str, Any]) -> KernelRecord | None:
    try:
        return KernelRecord(**header)
    except TypeError:  # of another version of dxgemm
        return None
