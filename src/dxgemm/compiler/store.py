"""Kernel cache on disk: one file per kernel, verified before use; its failures cost warnings only.

An entry is a SHA-256 of its key and of the rest, a header as one line of JSON (a kernel's record),
and the payload (its cubin). It is written to a temporary file and renamed. A truncated, damaged or
foreign file, or one that another user may write, is a miss, and the kernel is built again. The
builder of a kernel holds the lock of its key, so that all others wait for that one build. The lock
is a file, which the operating system unlocks when the holder ends, however that happens.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs

from dxgemm.compiler.build import CompiledKernel, KernelRecord

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

UNFINISHED_S = 3600  # age from which on an unfinished file counts as abandoned
UNFINISHED = "unfinished-"  # begin of their names


@dataclass(frozen=True)
class CacheInfo:
    """Contents of the kernel cache.

    Attributes:
        directory: directory of the cache; None if this user has no home for one.
        writable: True if builds can be kept.
        kernels: a record of each kernel.
        total_bytes: size of all cubins.
    """

    directory: Path | None
    writable: bool
    kernels: tuple[KernelRecord, ...]

    @property
    def total_bytes(self) -> int:
        return sum(record.cubin_bytes for record in self.kernels)


class VerifiedFiles:
    """Folder with a header and a payload for each key.

    Every folder on the way to a file is checked at each use, from the directory of the cache on: it
    must be no link, belong to this user or root, and not be writable by others.

    Attributes:
        directory: the folder; None if there is none, where all look-ups miss.
    """

    def __init__(self, root: Path | None, *within: str) -> None:
        """Name the folder; it is made when the first file is saved.

        Args:
            root: directory of the cache.
            within: names of the folders that lead from there.
        """
        self.directory = root.joinpath(*within) if root else None
        self._root, self._within = root, within
        self._told: set[str] = set()

    def folder(self, name: str) -> VerifiedFiles:
        """Folder within this one, which warns of what this one has not warned of."""
        files = VerifiedFiles(self._root, *self._within, name)
        files._told = self._told
        return files

    @property
    def _is_usable(self) -> bool:
        """True if files can be kept as far as the folders that exist tell."""
        try:
            self._folder()
        except OSError as error:
            return error.errno == errno.ENOENT
        return True

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """Read header and payload; None if they are absent, damaged or another user's."""
        try:
            return _decode(key, _read_own(self._folder("entries", key[:2]) / key[2:]))
        except OSError as error:
            if error.errno != errno.ELOOP:  # a symbolic link in the entry's place
                self._warn(error)
            return None

    def save(self, key: str, header: dict[str, Any], payload: bytes) -> None:
        """Keep header and payload; a full or read-only disk costs no more than a warning."""
        try:
            unfinished = self._folder("tmp", make=True)
            self._remove_abandoned()
            path = self._folder("entries", key[:2], make=True) / key[2:]
            file, name = tempfile.mkstemp(prefix=UNFINISHED, dir=unfinished)  # with PRIVATE_FILE
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
        with ExitStack() as stack:
            try:
                path = self._folder("locks", make=True) / key
            except OSError as error:
                self._warn(error)
            else:
                self._enter_lock(stack, path)
            yield

    def clear(self) -> int:
        """Remove all entries and return how many there were."""
        removed = 0
        for path in self._paths():
            with suppress(OSError):
                path.unlink()
                removed += 1
        self._remove_abandoned()
        for path in filter(_is_key, self._files("locks")):
            with suppress(OSError), _locked(path, waits=False):  # not of a running build
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

    def _enter_lock(self, stack: ExitStack, path: Path) -> None:
        try:
            stack.enter_context(_locked(path))
        except OSError as error:  # a link in its place; a file system without locks
            self._warn(error, "cannot lock its files", "may be built several times")

    def _folder(self, *names: str, make: bool = False) -> Path:
        """Check a folder and those that lead to it, and return its path.

        Args:
            names: names of the folders that lead to it from `directory`.
            make: True to make those that are missing.

        Raises:
            OSError: one of them is missing or cannot be made, or others may write to it.
        """
        if self._root is None:
            raise PermissionError(errno.EPERM, "this user has no home directory")
        if make:
            self._root.parent.mkdir(parents=True, exist_ok=True)
        folder = self._root
        for name in ("", *self._within, *names):
            folder /= name
            if make:
                with suppress(FileExistsError):
                    folder.mkdir(PRIVATE_FOLDER)
            _check_private(folder)
        return folder

    def _files(self, *names: str) -> list[Path]:
        """List what a folder holds; nothing, with a warning, if others may write to it."""
        try:
            return sorted(self._folder(*names).iterdir())
        except OSError as error:
            self._warn(error)
            return []

    def _paths(self) -> list[Path]:
        folders = [path.name for path in self._files("entries") if path.is_dir()]
        paths = [path for name in folders for path in self._files("entries", name)]
        return [path for path in paths if _is_key(path)]

    def _remove_abandoned(self) -> None:
        """Remove the unfinished files of processes that were killed, and no file of others."""
        for path in self._files("tmp"):
            with suppress(OSError):
                is_old = path.lstat().st_mtime < time.time() - UNFINISHED_S
                if path.name.startswith(UNFINISHED) and is_old:
                    path.unlink()

    def _warn(
        self,
        error: OSError,
        what: str = "cannot be used",
        outcome: str = "are built again in every process",
    ) -> None:
        """Warn, once of each sort; a missing file or folder is no error."""
        if error.errno == errno.ENOENT or what in self._told:
            return
        self._told.add(what)
        warnings.warn(
            f"dxgemm's kernel cache {self.directory or ''} {what} ({error}); kernels {outcome}. "
            "Set DXGEMM_CACHE_DIR to a directory that only you can write to.",
            RuntimeWarning,
            stacklevel=4,
        )


class KernelStore:
    """Store of kernels on disk, by key, and of the device functions that some are linked with."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._kernels = VerifiedFiles(directory)
        self.device_functions = self._kernels.folder("device_functions")

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
        self.device_functions.clear()
        return self._kernels.clear()

    def info(self) -> CacheInfo:
        records = map(_record, self._kernels.headers())
        folder = self.directory
        # `os.path` asks of any name, also of one that is too long.
        while folder is not None and not os.path.exists(folder) and folder != folder.parent:
            folder = folder.parent
        can_write = folder is not None and os.path.isdir(folder) and os.access(folder, os.W_OK)
        return CacheInfo(
            directory=self.directory,
            writable=can_write and self._kernels._is_usable,
            kernels=tuple(record for record in records if record is not None),
        )


def pack_kernel(key: str, kernel: CompiledKernel) -> bytes:
    """Contents of the entry of a kernel."""
    return _encode(key, asdict(kernel.record), kernel.cubin)


def unpack_kernel(key: str, entry: bytes) -> CompiledKernel | None:
    """Kernel from the contents of its entry; None if they are damaged."""
    return _kernel(_decode(key, entry))


def default_directory() -> Path | None:
    """Directory of the cache: $DXGEMM_CACHE_DIR, or the user's cache directory of this system.

    None if the user has no home directory.
    """
    chosen = os.environ.get("DXGEMM_CACHE_DIR")
    try:
        chosen = chosen or platformdirs.user_cache_dir("dxgemm", appauthor=False)
        # Fixed here, whatever becomes the working directory.
        return Path(chosen).expanduser().absolute()
    except (RuntimeError, OSError):  # no home directory; no working directory
        return None


@contextmanager
def _locked(path: Path, *, waits: bool = True) -> Iterator[None]:
    """Lock a file, made if need be, against all who lock it, threads of this process included.

    Raises:
        OSError: the file is a link, or the file system has no locks; without `waits` also if it is
            locked.
    """
    is_current = False
    while not is_current:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, PRIVATE_FILE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            # `clear` may have removed it since it was opened: then another one is the lock.
            is_current = os.fstat(file).st_nlink > 0
            if is_current:
                yield
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked process may hold the file open too
            os.close(file)


def _check_private(folder: Path) -> None:
    """Check that a folder is this user's or root's, no link, and closed to all others.

    Raises:
        OSError: it does not exist, or others may write to it.
    """
    status = folder.lstat()
    if not (stat.S_ISDIR(status.st_mode) and _is_own(status)) or status.st_mode & OTHERS_WRITE:
        raise PermissionError(
            errno.EPERM, "others can write to it, or it is a link or a file", str(folder)
        )


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


def _is_key(path: Path) -> bool:
    """True if a file may be named by a key: the folder may be one that others use, too."""
    return re.fullmatch("[0-9a-f]+", path.name) is not None


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
