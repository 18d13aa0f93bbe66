"""Flat buffers for all operands of a test, with guard pads around and inside each.

All memory outside of the operands' elements holds one particular NaN, or large integer: a kernel
that reads it spoils its result, a kernel that writes it is found by comparing bits.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from oracle.kinds import numpy_dtype
from oracle.layouts import Layout

GUARD_ELEMENTS = 64
GUARD_BITS = {
    "float16": 0x7EAD,
    "bfloat16": 0x7FED,
    "float32": 0x7FC0DEAD,
    "float64": 0x7FF8DEADDEADDEAD,
    "int8": 0x6D,
    "int32": 0x5EADDEAD,
    "int64": 0x5EADDEADDEADDEAD,
}
UNSIGNED = {
    "float16": np.uint16,
    "bfloat16": np.uint16,
    "float32": np.uint32,
    "float64": np.uint64,
    "int8": np.uint8,
    "int32": np.uint32,
    "int64": np.uint64,
}
ALIGNMENT = 16  # bytes


@dataclass(frozen=True)
class Slot:
    """Place of one operand in its arena; numbers count elements."""

    name: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, buffer: np.ndarray) -> np.ndarray:
        """Returns the operand as a view of `buffer`, bounds-checked by NumPy."""
        itemsize = buffer.itemsize
        strides = [stride * itemsize for stride in self.strides]
        return np.ndarray(self.shape, buffer.dtype, buffer, self.start * itemsize, strides)

    def is_aligned(self, item_size: int) -> bool:
        """True if all rows, or all columns, are contiguous and start at multiples of 16 bytes.

        Dimensions of one element or none do not count: their stride is never used.
        """
        *_, rows, cols = self.shape
        used = [s for s, extent in zip(self.strides, self.shape, strict=True) if extent > 1]
        starts = [self.start, *(stride for stride in used if stride != 1)]
        is_contiguous = used.count(1) == 1 or (1 not in used and min(rows, cols) <= 1)
        are_aligned = all(start * item_size % ALIGNMENT == 0 for start in starts)
        return is_contiguous and are_aligned and min(used, default=1) > 0


class Arena:
    """Arena of operands, which makes the buffer of a call under test."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._placed: list[tuple[Slot, np.ndarray | None]] = []
        self._end = GUARD_ELEMENTS

    def place(
        self, name: str, shape: tuple[int, ...], layout: Layout, values: np.ndarray | None
    ) -> Slot:
        """Reserves room for a (rows, cols) or (batch, rows, cols) operand."""
        *batch, rows, cols = shape
        strides = layout.strides(rows, cols)
        reach = [max(0, extent - 1) * step for extent, step in zip((rows, cols), strides)]
        below = -sum(step for step in reach if step < 0)
        above = sum(step for step in reach if step > 0)
        size = below + above + 1
        aligned = -(-self._end // GUARD_ELEMENTS) * GUARD_ELEMENTS + layout.offset
        pitch = -(-(size + GUARD_ELEMENTS) // layout.multiple) * layout.multiple
        slot = Slot(name, aligned + below, shape, (pitch,) * len(batch) + strides)
        self._placed.append((slot, values))
        self._end = aligned + pitch * max(1, math.prod(batch)) + GUARD_ELEMENTS
        return slot

    def fill(self) -> np.ndarray:
        """Returns a new buffer with every operand in its place and guards elsewhere."""
        buffer = np.empty(self._end, numpy_dtype(self.dtype))
        buffer.view(UNSIGNED[self.dtype])[:] = GUARD_BITS[self.dtype]
        for slot, values in self._placed:
            if values is not None:
                slot.view(buffer)[...] = values
        return buffer

    def damage(self, before: np.ndarray, after: np.ndarray, written: Iterable[Slot]) -> str | None:
        """Says which bits changed outside the slots in `written`, or None."""
        unsigned = UNSIGNED[self.dtype]
        changed = before.view(unsigned) != after.view(unsigned)
        for slot in written:
            slot.view(changed)[...] = False
        places = np.flatnonzero(changed)
        if not places.size:
            return None
        return f"{places.size} elements changed outside the result: {self._describe(places[0])}"

    def _describe(self, place: int) -> str:
        """Names an element of the buffer by the operand it belongs to or lies near."""
        owners = np.full(self._end, -1)
        for index, (slot, _) in enumerate(self._placed):
            slot.view(owners)[...] = index
        if owners[place] >= 0:
            return f"input {self._placed[owners[place]][0].name} was written"
        nearest = min(self._placed, key=lambda placed: abs(placed[0].start - place))[0]
        distance = place - nearest.start
        return f"first a guard {distance:+d} elements from the base of {nearest.name}"
