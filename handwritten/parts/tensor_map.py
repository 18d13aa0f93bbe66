"""Descriptions of operands for TMA: tensor maps before they are encoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from dxgemm.handwritten.parts.operands import ITEM_BYTES

ALIGNMENT_BYTES = 16  # alignment of the base and of every stride but the innermost
MOST_ELEMENTS = 2**31 - 512  # per dimension: coordinates are signed, and a tile may reach beyond
MOST_STRIDE_BYTES = 2**40


@dataclass(frozen=True)
class TensorMap:
    """An operand as TMA reads it, innermost dimension first, which is contiguous.

    Attributes:
        operand: "a" or "b", whose address is the base.
        element: "float16", "bfloat16", "int8", "float32" or "tfloat32"; for "tfloat32" TMA rounds
            float32.
        sizes: elements along each dimension.
        stride_bytes: stride of each dimension but the innermost.
        box: elements along each dimension of one copy.
    """

    operand: str
    element: str
    sizes: tuple[int, ...]
    stride_bytes: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """Operand a (m x k) or b (k x n): `along` is m or n; dimensions of size 1 have stride 0."""

    name: str
    item_bytes: int
    alignment: int
    batch: int
    along: int
    k: int
    batch_stride: int
    along_stride: int
    k_stride: int

    @cached_property
    def innermost(self) -> str | None:
        """`"k"` (K-major) or `"mn"` (MN-major); None if TMA can read neither."""
        if self._can_be_innermost(self.k, self.k_stride, self.along, self.along_stride):
            return "k"
        if self._can_be_innermost(self.along, self.along_stride, self.k, self.k_stride):
            return "mn"
        return None

    def _can_be_innermost(self, size: int, stride: int, other_size: int, other: int) -> bool:
        return (stride == 1 or size <= 1) and (
            other_size <= 1 or (other >= size and self._is_aligned(other))
        )

    def _is_aligned(self, stride: int) -> bool:
        stride_bytes = stride * self.item_bytes
        return 0 <= stride_bytes < MOST_STRIDE_BYTES and stride_bytes % ALIGNMENT_BYTES == 0

    def refusal(self) -> str | None:
        """Reason why TMA cannot read the operand; None if it can."""
        if self.alignment < ALIGNMENT_BYTES:
            return f"{self.name} begins at no multiple of {ALIGNMENT_BYTES} bytes, as TMA needs"
        if self.innermost is None or not self._is_aligned(self.batch_stride):
            return (
                f"{self.name} has strides {self.batch_stride, self.along_stride, self.k_stride} "
                f"(batch, {'m' if self.name == 'a' else 'n'}, k); TMA needs rows or columns "
                "without gaps between elements, apart by non-negative multiples of "
                f"{ALIGNMENT_BYTES} bytes"
            )
        return None

    def tensor_map(self, element: str, box_along: int, box_k: int) -> TensorMap:
        """Tensor map for boxes of box_along x box_k elements of one matrix."""
        extents = [(self.k, self.k_stride, box_k), (self.along, self.along_stride, box_along)]
        if self.innermost == "mn":
            extents.reverse()
        (size, _, box), (rows, row_stride, box_rows) = extents
        # The stride must be valid even if it is never used.
        if rows <= 1:
            row_stride = -(-size * self.item_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            row_stride //= self.item_bytes
        is_broadcast = self.batch_stride == 0
        batch_stride = rows * row_stride if is_broadcast else self.batch_stride
        return TensorMap(
            operand=self.name,
            element=element,
            sizes=(size, rows, 1 if is_broadcast else self.batch),
            stride_bytes=(row_stride * self.item_bytes, batch_stride * self.item_bytes),
            box=(box, box_rows, 1),
        )


_operand = lru_cache(maxsize=256)(Operand)  # a choice needs the same two operands many times


def operand_of(problem: Any, name: str) -> Operand:
    """Operand "a" or "b" of a problem."""
    strides = getattr(problem, name)
    along, along_stride, k_stride = (
        (problem.m, strides.row, strides.col)
        if name == "a"
        else (problem.n, strides.col, strides.row)
    )
    return _operand(
        name, ITEM_BYTES[problem.dtype],
        getattr(problem, f"{name}_alignment"), problem.batch, along, problem.k,
        strides.batch, along_stride, k_stride,
    )  # fmt: skip
