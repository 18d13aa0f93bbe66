"""Operands for the tests of both emulated precisions: split by a kernel, and random rows."""

from typing import Any, NamedTuple

import numpy as np

from dxgemm.problem.layout import Strides
from dxgemm.runtime.device import device_facts
from dxgemm.runtime.program import OUT, A, Program

ACROSS = {"along_k": False, "across_k": True}


def pointer_of(array: Any) -> int:
    pointer: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return pointer


class Memory(NamedTuple):
    """Memory that a kernel wrote, fetched."""

    stored: np.ndarray

    def buffer(self, address: int, items: int, dtype: Any) -> np.ndarray:
        return self.stored[address : address + items * np.dtype(dtype).itemsize].view(dtype)


class Split(NamedTuple):
    """Operand that a kernel split: its parts, their memory, factors and (weak, is_lax)."""

    parts: Any
    memory: Memory
    factors: np.ndarray
    status: np.ndarray


def split_by_kernel(home: Any, parts_of: Any, x: np.ndarray, across: bool) -> Split:
    """Splits rows that are contiguous along k, or across it, by `parts_of(strides, rows, k)`."""
    rows, k = x.shape
    sent = home.send(np.ascontiguousarray(x.T if across else x))
    strides = Strides(0, 1, rows) if across else Strides(0, k, 1)
    strides = Strides(0, *(s if n > 1 else 0 for s, n in zip(strides[1:], x.shape, strict=True)))
    parts = parts_of(strides, rows, k)
    memory = home.send(np.full(parts.size, 0xFF, np.uint8))
    launch = Program((parts.step(A, OUT),)).bind(device_facts(0).arch, 0)
    launch((*(pointer_of(sent),) * 3, pointer_of(memory), 0, 0), 0)
    stored = Memory(home.fetch(memory))
    factors = stored.buffer(*parts.factors(0), x.dtype)[:rows]
    status = stored.buffer(*parts.status(0), np.int32).reshape(-1, 2).max(axis=0)
    return Split(parts, stored, factors, status)


def rows_of(rng: np.random.Generator, size: tuple[int, int], spread: float) -> np.ndarray:
    """Rows whose sizes differ by powers of two, with zeros, and one of nothing else."""
    x = rng.standard_normal(size) * 2.0 ** rng.uniform(-spread, spread, (size[0], 1))
    x[rng.random(size) < 0.1] = 0
    if size[0] > 4:
        x[2] = 0
    return x
