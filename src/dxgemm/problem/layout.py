"""Layouts of operands, and the memory that they reach."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import numpy as np

from dxgemm.errors import LayoutError, OverlapError, ReadOnlyError
from dxgemm.problem.dtypes import ITEM_SIZES

MAX_ALIGNMENT = 16  # bytes of the widest access that kernels make
# Of the L2 cache: TMA reads rows that begin at sectors faster than others, at cache lines fastest.
SECTOR_BYTES, LINE_BYTES = 32, 128
LONG_ROW_BYTES = 1024  # a row of so many bytes grows by an eighth at most, made of whole lines

# Alignment of an address by its last four bits: a look-up, because each call needs two.
ALIGNMENTS = (16, 1, 2, 1, 4, 1, 2, 1, 8, 1, 2, 1, 4, 1, 2, 1)


class Layout(NamedTuple):
    """Operand without its data: the facts of an array that validation needs.

    Attributes:
        shape: (rows, columns) or (batch, rows, columns).
        strides: bytes from one index to the next, one per dimension; any sign, zero allowed.
        dtype: NumPy's name of the dtype, such as "float32"; other names are refused later.
        device: CUDA ordinal; -1 for host memory.
        read_only: True if the library forbids writing to the array.
        alignment: bytes, the largest power of two up to `MAX_ALIGNMENT` that divides the address.
        is_conjugate: True if the operand is the conjugate of what is in memory.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    read_only: bool
    alignment: int = MAX_ALIGNMENT
    is_conjugate: bool = False

    @property
    def item_size(self) -> int:
        """Bytes of an element; 1 for a dtype that is refused later."""
        return ITEM_SIZES.get(self.dtype, 1)

    @property
    def steps(self) -> tuple[int, ...]:
        """Strides in elements."""
        size = self.item_size
        return tuple([stride // size for stride in self.strides])


def contiguous_layout(shape: tuple[int, ...], dtype: str, device: int) -> Layout:
    """Layout of a new row-major array."""
    strides = contiguous_strides(shape, ITEM_SIZES.get(dtype, 1))
    return Layout(shape, strides, dtype, device, read_only=False)


def contiguous_strides(shape: tuple[int, ...], item_size: int = 1) -> tuple[int, ...]:
    """Strides of a row-major array, in bytes if the size of an element is passed."""
    strides = [item_size]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])


def normalised(layout: Layout) -> Layout:
    """Layout with strides of 0 where they mean nothing.

    The stride of a dimension of one element is arbitrary in every library, and so are all strides
    of an array without elements.
    """
    shape, strides = layout.shape, layout.strides
    is_empty = 0 in shape
    if not is_empty and 1 not in shape:
        return layout
    used = tuple(0 if is_empty or size == 1 else step for size, step in zip(shape, strides))
    return layout._replace(strides=used)


def copied_step(items: int, dtype: str) -> int:
    """Elements from one row of a copy of `items` columns to the next: whole sectors, or lines."""
    item_bytes = ITEM_SIZES[dtype]
    width = (LINE_BYTES if items * item_bytes >= LONG_ROW_BYTES else SECTOR_BYTES) // item_bytes
    return -(-items // width) * width


def aligned(layout: Layout, alignment: int) -> Layout:
    """Layout of an array whose address has an alignment; without elements, its address is free."""
    if 0 in layout.shape:
        alignment = MAX_ALIGNMENT
    return layout if layout.alignment == alignment else layout._replace(alignment=alignment)


def transposed(layout: Layout) -> Layout:
    """Layout of the same matrices, each transposed."""
    shape, strides = layout.shape, layout.strides
    return layout._replace(shape=shape[:-2] + shape[:-3:-1], strides=strides[:-2] + strides[:-3:-1])


def conjugated(layout: Layout) -> Layout:
    """Layout of the conjugates of the same matrices."""
    return layout._replace(is_conjugate=not layout.is_conjugate)


class Strides(NamedTuple):
    """Elements from one matrix, row and column of an operand to the next."""

    batch: int
    row: int
    col: int

    def transposed(self) -> Strides:
        return Strides(self.batch, self.col, self.row)

    def flattened(self, rows: int) -> Strides | None:
        """Strides of one matrix of all rows of the batch; None if no single stride leads to them.

        Args:
            rows: rows of a matrix.
        """
        if rows == 1:
            return Strides(0, self.batch, self.col)
        return Strides(0, self.row, self.col) if self.batch == rows * self.row else None

    @property
    def arrangement(self) -> str:
        """`"row_major"`, `"col_major"` or `"strided"` (neither index is contiguous)."""
        if self.col == 1:
            return "row_major"
        return "col_major" if self.row == 1 else "strided"


NO_STRIDES = Strides(0, 0, 0)


def byte_extent(layout: Layout) -> tuple[int, int]:
    """First byte and the byte after the last that a layout touches, relative to its pointer."""
    if 0 in layout.shape:
        return 0, 0
    first, last = offset_range(layout.shape, layout.strides)
    return first, last + layout.item_size


def offset_range(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Smallest and largest offset an index reaches, in the unit of the strides; no size is 0."""
    first = last = 0
    for size, stride in zip(sizes, strides, strict=True):
        if stride > 0:
            last += (size - 1) * stride
        else:
            first += (size - 1) * stride
    return first, last


def refuse_misaligned(where: str, layout: Layout) -> None:
    """Refuse an array whose elements are not at multiples of their size.

    Args:
        where: call and argument, for the message.
        layout: layout of the array.

    Raises:
        LayoutError: its address or a stride is no multiple.
    """
    size, bits = layout.item_size, layout.alignment
    for stride in layout.strides:
        bits |= stride
    if not bits & (size - 1):  # all are multiples of the size, a power of two
        return
    if any(stride % size for stride in layout.strides):
        raise LayoutError(
            f"{where} has strides {layout.strides} bytes, which are not multiples of the "
            f"{size}-byte {layout.dtype}; copy it to a contiguous array first."
        )
    raise LayoutError(
        f"{where} starts at an address that is not a multiple of the {size}-byte {layout.dtype}; "
        "copy it to an aligned array first."
    )


def refuse_unwritable(where: str, layout: Layout) -> None:
    """Refuse an array that is written although it is read-only or overlaps itself.

    Args:
        where: call and argument, for the message.
        layout: layout of the array.

    Raises:
        ReadOnlyError, OverlapError: the first that applies.
    """
    if layout.read_only:
        raise ReadOnlyError(f"{where} is read-only, but the call writes to it.")
    refuse_overlap(where, layout)


def refuse_overlap(where: str, layout: Layout) -> None:
    """Refuse an array that is written although several of its indices reach one element.

    Args:
        where: call and argument, for the message.
        layout: layout of the array.

    Raises:
        OverlapError: the array overlaps itself.
    """
    if overlaps_itself(layout):
        raise OverlapError(
            f"{where} overlaps itself: shape {layout.shape} with strides {layout.strides} bytes "
            "reaches one element by several indices; pass an array of its own."
        )


def overlaps_itself(layout: Layout) -> bool:
    """True if two different indices reach the same element.

    Exact for one or two dimensions of more than one element: i * s0 == j * s1 has its smallest
    solution at i = s1 / g, j = s0 / g with g = gcd(s0, s1). For three, dimensions must nest
    (each stride beyond the extent of the smaller ones), which refuses a few exotic valid layouts.
    """
    if 0 in layout.shape:
        return False
    if len(layout.shape) == 2:
        (rows, cols), (row, col) = layout.shape, layout.strides
        if 0 < col * cols <= row or 0 < row * rows <= col:
            return False  # rows, or columns, follow one another
    dimensions = sorted(
        (abs(stride), size)
        for size, stride in zip(layout.shape, layout.strides, strict=True)
        if size > 1
    )
    if any(stride == 0 for stride, _ in dimensions):
        return True
    if len(dimensions) == 2:
        (stride_0, size_0), (stride_1, size_1) = dimensions
        divisor = gcd(stride_0, stride_1)
        return stride_1 // divisor < size_0 and stride_0 // divisor < size_1
    reach = 0
    for stride, size in dimensions:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def used_strides(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Strides:
    """Strides of a matrix or a batch, with 0 for dimensions of one element.

    The stride of such a dimension is arbitrary in every library. With 0 a batch of one broadcasts,
    a single row is aligned, and equal problems compare equal.
    """
    if len(sizes) == 2:  # spelled out: every new shape asks for three of these
        (rows, cols), (row, col) = sizes, strides
        return Strides(0, row if rows > 1 else 0, col if cols > 1 else 0)
    return Strides(*(stride if size > 1 else 0 for size, stride in zip(sizes, strides)))


def row_major(batch: int, rows: int, cols: int) -> Strides:
    """Strides of row-major matrices without padding."""
    return used_strides((batch, rows, cols), (rows * cols, cols, 1))


def share_elements(pointer: int, layout: Layout, other_pointer: int, other: Layout) -> bool:
    """True if two operands have an element in common: exact, also for interleaved slices.

    `numpy.shares_memory` decides, on arrays that carry the addresses and are never read.
    """
    try:
        arrays = address_array(pointer, layout), address_array(other_pointer, other)
        return np.shares_memory(*arrays, max_work=10**6)  # type: ignore[arg-type]
    except (np.exceptions.TooHardError, ValueError):  # or more elements than NumPy counts
        return True


class _AddressArray:
    """Memory at an address in NumPy's protocol."""

    def __init__(self, pointer: int, layout: Layout, owner: Any) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": layout.shape,
            "strides": layout.strides,
            "typestr": f"|V{layout.item_size}",  # NumPy alone has no bfloat16
            "data": (pointer, layout.read_only),
        }


def address_array(pointer: int, layout: Layout, owner: Any = None) -> np.ndarray:
    """Array of bytes of an element each, at an address of the host; it keeps its owner alive."""
    return np.asarray(_AddressArray(pointer, layout, owner))
