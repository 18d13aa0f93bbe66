"""Memory by byte addresses, for numba's simulator: the counterpart of PTX's loads, stores, copies.

Operands are a span apart, numbered as they are met, each as if it began at a multiple of 16 bytes.
Every access is checked: it is in one operand, or in the block's dynamic shared memory, at a
multiple of its size. Asynchronous copies are made at once.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.simulated_integers import Int32

SPAN = 1 << 54
MOST_OPERANDS = 64  # that are kept: those of several launches

_operands: dict[int, Any] = {}  # by number, from 1 on
_numbers = count()
_shared: list[np.ndarray] = [np.zeros(0, np.uint8)]  # bytes of the block that is running


def global_address(pointer: Any) -> Any:
    for number, operand in _operands.items():
        if operand is pointer:
            return number * SPAN
    number = 1 + next(_numbers) % MOST_OPERANDS
    _operands[number] = pointer
    return number * SPAN


def shared_address(array: Any) -> Any:
    _shared[0] = array.view(np.uint8)
    return Int32(0)


def _elements(address: Any, size: int) -> tuple[Any, range]:
    """Operand at an address, and the indices of its elements in so many bytes."""
    number = (int(address) + SPAN // 2) // SPAN
    operand, start = _operands[number], int(address) - number * SPAN
    item_size = operand.dtype.itemsize
    if start % size or size % item_size:
        raise IndexError(f"an access of {size} bytes at byte {start} of an operand")
    return operand, range(start // item_size, (start + size) // item_size)


def _read(address: Any, size: int) -> bytes:
    operand, places = _elements(address, size)
    return b"".join(operand[place].tobytes() for place in places)


def prefetch_line(address: Any) -> None:
    """Check the address of an element; there is no cache."""
    number = (int(address) + SPAN // 2) // SPAN
    operand = _operands[number]
    _, (place,) = _elements(address, operand.dtype.itemsize)
    operand[place]  # out of bounds, it raises


def _shared_bytes(address: Any, size: int) -> np.ndarray:
    """So many bytes of shared memory, to read and to write."""
    start, memory = int(address), _shared[0]
    if start % size or not 0 <= start <= memory.size - size:
        raise IndexError(f"an access of {size} bytes at byte {start} of {memory.size} shared ones")
    return memory[start : start + size]


def _dtype(scalar: Any) -> np.dtype:
    """NumPy's dtype of a type, which may be numba's."""
    return np.dtype(getattr(scalar, "name", scalar))


def _registers(data: Any, scalar: Any) -> Any:
    """Bytes as a tuple of elements; those read as numba's int32 compute as such."""
    elements = np.frombuffer(data, _dtype(scalar))
    return tuple(map(Int32, elements)) if str(scalar) == "int32" else tuple(elements)


def _array(values: Any) -> np.ndarray:
    """Registers as an array of their type."""
    return np.array([np.int32(v) if isinstance(v, Int32) else v for v in values])


def load_global(scalar: Any, width: int, address: Any, offset: int) -> Any:
    return _registers(_read(address + offset, width * _dtype(scalar).itemsize), scalar)


def store_global(address: Any, offset: int, values: Any) -> None:
    data = _array(values)
    operand, places = _elements(address + offset, data.nbytes)
    for place, element in zip(places, data.view(operand.dtype), strict=True):
        operand[place] = element


def load_shared(scalar: Any, width: int, address: Any, offset: int) -> Any:
    size = width * _dtype(scalar).itemsize
    return _registers(_shared_bytes(address + offset, size), scalar)


def load_vectors(scalar: Any, width: int, address: Any, offset: int, step: int, count: int) -> Any:
    starts = (offset + i * step for i in range(count))
    return sum((load_shared(scalar, width, address, start) for start in starts), ())


def store_shared(address: Any, offset: int, values: Any) -> None:
    data = _array(values)
    _shared_bytes(address + offset, data.nbytes)[:] = data.view(np.uint8)


def copy_async(size: int, target: Any, target_offset: int, source: Any) -> None:
    copy_async_part(size, target, target_offset, source, size)


def copy_async_part(size: int, target: Any, target_offset: int, source: Any, count: Any) -> None:
    data = _read(source, int(count)) if count else b""
    padded = np.frombuffer(data.ljust(size, b"\0"), np.uint8)
    _shared_bytes(target + target_offset, size)[:] = padded


def commit_copies() -> None:
    pass


def wait_copies(pending: int) -> None:
    pass
