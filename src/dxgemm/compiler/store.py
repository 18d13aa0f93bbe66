"""Kernel cache on disk: one file per kernel, verified before use; its failures cost warnings only.

An entry is a SHA-256 of its key and of the rest, a header as one line of JSON (a kernel's record),
and the payload (its cubin). It is written to a temporary file and renamed. A truncated, damaged or
foreign file, or one that another user may write, is a miss, and the kernel is built again. The
builder of a kernel holds the lock of its key, so that all others wait for that one build. The lock
is a file, which the operating system unlocks when the holder ends, however that happens.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import platformdirs

from dxgemm.compiler.build import CompiledKernel, KernelRecord

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

UNFINISHED_S = 3600  # age from which on an unfinished file counts as abandoned


@dataclass(frozen=True)
class CacheInfo:
    """Contents of the kernel cache.

    Attributes:
        directory: directory of the cache.
        writable: True if builds can be kept.
        kernels: a record of each kernel.
        total_bytes: size of all cubins.
    """

    directory: Path
    writable: bool
    kernels: tuple[KernelRecord, ...]

    @property
    def total_bytes(self) -> int:
        return sum(record.cubin_bytes for record in self.kernels)


class VerifiedFiles:
    """Folder with a header and a payload for each key."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._entries = directory / "entries"
        self._unfinished = directory / "tmp"
        self._locks = directory / "locks"

    @cached_property
    def _is_usable(self) -> bool:
        """True if the folder of entries can be used; otherwise raise a warning, once."""
        try:
            self.directory.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            _make_private(self._entries)
        except OSError as error:
            self._warn(error)
            return False
        return True

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """Read header and payload; None if they are absent, damaged or another user's."""
        if not self._is_usable:
            return None
        try:
            return _decode(key, _read_own(self._path(key)))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):  # absent; a symbolic link
                self._warn(error)
            return None

    def save(self, key: str, header: dict[str, Any], payload: bytes) -> None:
        """Keep header and payload; a full or read-only disk costs no more than a warning."""
        if not self._is_usable:
            return
        try:
            _make_private(self._unfinished)
            self._remove_abandoned()
            path = self._path(key)
            _make_private(path.parent)
            file, name = tempfile.mkstemp(dir=self._unfinished)  # with PRIVATE_FILE
            try:
                with open(file, "wb") as entry:
                    entry.write(_encode(key, header, payload))
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            self._warn(error)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Lock a key against other threads and processes; go on if no file can be locked.

        The entry may exist afterwards: look it up again before building it.
        """
        from filelock import FileLock

        with ExitStack() as stack:
            if self._is_usable:
                with suppress(OSError):
                    _make_private(self._locks)
                    stack.enter_context(FileLock(self._locks / key, mode=PRIVATE_FILE))
            yield

    def clear(self) -> int:
        """Remove all entries and return how many there were."""
        from filelock import FileLock

        if not self._is_usable:
            return 0
        removed = 0
        for path in self._paths():
            with suppress(OSError):
                path.unlink()
                removed += 1
        self._remove_abandoned()
        for path in self._locks.glob("*"):
            with suppress(OSError), FileLock(path, blocking=False):  # not of a running build
                path.unlink()
        return removed

    def headers(self) -> list[dict[str, Any]]:
        """Read the headers of all intact entries."""
        headers = []
        for path in self._paths():
            with suppress(OSError):
                entry = _decode(path.parent.name + path.name, _read_own(path))
                if entry is not None:
                    headers.append(entry[0])
        return headers

    def _path(self, key: str) -> Path:
        return self._entries / key[:2] / key[2:]

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._entries.glob("*/*") if not path.is_dir())

    def _remove_abandoned(self) -> None:
        """Remove the unfinished files of processes that were killed."""
        for path in self._unfinished.glob("*"):
            with suppress(OSError):
                if path.lstat().st_mtime < time.time() - UNFINISHED_S:
                    path.unlink()

    def _warn(self, error: OSError) -> None:
        warnings.warn(
            f"dxgemm's kernel cache {self.directory} cannot be used ({error}); kernels are built "
            "again in every process. Set DXGEMM_CACHE_DIR to a writable directory.",
            RuntimeWarning,
            stacklevel=4,
        )


class KernelStore:
    """Store of kernels on disk, by key, and of the device functions that some are linked with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.device_functions = VerifiedFiles(directory / "device_functions")
        self._kernels = VerifiedFiles(directory)

    def load(self, key: str) -> CompiledKernel | None:
        """Read a kernel; None if it is absent or damaged."""
        return _kernel(self._kernels.load(key))

    def save(self, key: str, kernel: CompiledKernel) -> None:
        """Keep a kernel; a full or read-only disk costs no more than a warning."""
        self._kernels.save(key, asdict(kernel.record), kernel.cubin)

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Lock a kernel for its build; see `VerifiedFiles.lock`."""
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


def pack_kernel(key: str, kernel: CompiledKernel) -> bytes:
    """Contents of the entry of a kernel."""
    return _encode(key, asdict(kernel.record), kernel.cubin)


def unpack_kernel(key: str, entry: bytes) -> CompiledKernel | None:
    """Kernel from the contents of its entry; None if they are damaged."""
    return _kernel(_decode(key, entry))


def default_directory() -> Path:
    """Directory of the cache: $DXGEMM_CACHE_DIR, or the user's cache directory of this system."""
    chosen = os.environ.get("DXGEMM_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("dxgemm", appauthor=False))


def _make_private(folder: Path) -> None:
    """Make a folder for this user alone; an existing one must be this user's or root's.

    Raises:
        OSError: the folder cannot be made, or others may write to it.
    """
    folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
    status = folder.stat(follow_symlinks=False)
    if not (stat.S_ISDIR(status.st_mode) and _is_own(status)) or status.st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "others can write to it", str(folder))


def _read_own(path: Path) -> bytes:
    """Read a file; nothing if it is not regular, or if others can write to it.

    Raises:
        OSError: the file does not exist, is a symbolic link, or cannot be read.
    """
    with open(path, "rb", opener=_open_itself) as file:
        status = os.fstat(file.fileno())
        if not (stat.S_ISREG(status.st_mode) and _is_own(status)) or status.st_mode & OTHERS_WRITE:
            return b""
        return file.read()


def _open_itself(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link, and without waiting for a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)


def _encode(key: str, header: dict[str, Any], payload: bytes) -> bytes:
    content = json.dumps(header).encode() + b"\n" + payload
    return _digest(key, content) + b"\n" + content


def _decode(key: str, entry: bytes) -> tuple[dict[str, Any], bytes] | None:
    digest, _, content = entry.partition(b"\n")
    if _digest(key, content) != digest:
        return None
    header, _, payload = content.partition(b"\n")
    try:
        return json.loads(header), payload
    except ValueError:
        return None


def _digest(key: str, content: bytes) -> bytes:
    """Digest in hexadecimal; it covers the key, so that no entry can pass for another one."""
    return hashlib.sha256(key.encode() + b"\n" + content).hexdigest().encode()


def _kernel(entry: tuple[dict[str, Any], bytes] | None) -> CompiledKernel | None:
    record = _record(entry[0]) if entry else None
    return CompiledKernel(entry[1], record) if entry and record else None


def _record(header: dict[str, Any]) -> KernelRecord | None:
    try:
        return KernelRecord(**header)
    except TypeError:  # of another version of dxgemm
        return None
