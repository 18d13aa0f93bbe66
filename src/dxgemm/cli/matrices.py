"""Matrices in .npy files: validated when read, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from dxgemm import DxgemmError

SUPPORTED = ("float32", "float64", "int8", "int32")


class FileError(DxgemmError, OSError):
    """A file cannot be read as a matrix, or the output cannot be written there."""


def read_matrix(path: Path) -> np.ndarray:
    """Read an array of a dtype in `SUPPORTED` from a .npy file. Pickles are never loaded.

    Raises:
        FileError: the file holds no such array; the message names the file and the way out.
    """
    try:
        with path.open("rb") as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from None
    except MemoryError:
        raise FileError(f"cannot read {path}: its array does not fit in memory.") from None
    except Exception as error:  # a damaged header raises one of many kinds
        raise FileError(
            f"{path} is not a readable .npy file: {error}. Write it with numpy.save."
        ) from None
    if array.dtype.name not in SUPPORTED or not array.dtype.isnative:
        raise FileError(
            f"{path} holds {array.dtype} values; {', '.join(SUPPORTED)} in native byte order are "
            "supported: convert it, for example with numpy.save(path, array.astype('float32'))."
        )
    return array


@contextmanager
def written_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` if the block succeeds, and is removed if it fails.

    The file is opened at once, so that an unwritable place is an error before the work begins.

    Raises:
        FileError: `path` is a directory or a device, or cannot be written.
    """
    target = path.resolve()
    if os.path.exists(target) and not os.path.isfile(target):  # never raise, as Path's do
        kind = "a directory" if os.path.isdir(target) else "not a regular file"
        raise FileError(f"cannot write {path}: it is {kind}.")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}.") from None
    finally:
        temporary.unlink(missing_ok=True)
