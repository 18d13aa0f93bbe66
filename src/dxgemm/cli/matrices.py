"""Matrices in .npy files: validated when read, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np

from dxgemm import DxgemmError
from dxgemm.problem.dtypes import COMPLEX_PARTS, OPERAND_DTYPES

NOT_IN_FILES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # dtypes that NumPy lacks
SUPPORTED = tuple(n for n in (*OPERAND_DTYPES, *COMPLEX_PARTS) if n not in NOT_IN_FILES)
STDOUT = Path("-")


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
    if array.dtype.name not in SUPPORTED:
        raise FileError(
            f"{path} holds {array.dtype} values, and {', '.join(SUPPORTED)} are supported; convert "
            "it to one of them that has its values."
        )
    if not array.dtype.isnative:
        raise FileError(
            f"{path} holds {array.dtype} values, in a byte order that is not native; convert it by "
            f"numpy.save(path, array.astype({array.dtype.name!r})), which changes no value."
        )
    return array


@contextmanager
def written_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` if the block succeeds, and is removed if it fails.

    The file is opened at once, so that an unwritable place is an error before the work begins. For
    `STDOUT` it is in memory, and written to stdout if the block succeeds.

    Raises:
        FileError: `path` is a directory or a device, or cannot be written; or stdout is a terminal.
    """
    if path == STDOUT:
        if sys.stdout.isatty():
            raise FileError("-o - writes a .npy file to stdout, which is a terminal; redirect it.")
        buffer = BytesIO()
        yield buffer
        sys.stdout.buffer.write(buffer.getbuffer())
        sys.stdout.buffer.flush()
        return
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
