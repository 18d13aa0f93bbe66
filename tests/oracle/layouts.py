"""Layouts of a matrix in memory: order, leading dimension, steps and base offset.

A layout turns a shape into strides and says nothing about values; `buffers` places it.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layout:
    """Memory layout of one (rows, cols) operand; all numbers count elements."""

    order: str  # "row" for row-major, "col" for column-major
    padding: int = 0  # number of elements that are added to the least leading dimension
    multiple: int = 1  # number that the leading dimension is rounded up to a multiple of
    row_step: int = 1  # 1 takes each row, 2 every other, -1 runs backwards, 0 repeats one row
    col_step: int = 1  # step of the columns, likewise
    offset: int = 0  # distance of the base pointer from a 256-byte boundary

    def strides(self, rows: int, cols: int) -> tuple[int, int]:
        """Returns the strides of a (rows, cols) matrix, in elements."""
        if self.order == "row":
            leading = self._leading(max(1, cols) * max(1, abs(self.col_step)))
            return self.row_step * leading, self.col_step
        leading = self._leading(max(1, rows) * max(1, abs(self.row_step)))
        return self.row_step, self.col_step * leading

    def _leading(self, minimum: int) -> int:
        return -(-(minimum + self.padding) // self.multiple) * self.multiple

    @property
    def repeats(self) -> tuple[bool, bool]:
        """True for rows, and for columns, if all of them share their addresses."""
        return self.row_step == 0, self.col_step == 0

    def hold(self, values: np.ndarray) -> np.ndarray:
        """Returns `values` as this layout holds them: the first row or column where it repeats."""
        rows, cols = self.repeats
        kept = values[..., : 1 if rows else None, : 1 if cols else None]
        return np.broadcast_to(kept, values.shape)


LAYOUTS = {
    "row": Layout("row"),
    "col": Layout("col"),
    "row+1": Layout("row", padding=1),
    "col+1": Layout("col", padding=1),
    "row+1000": Layout("row", padding=1000),
    "col+1000": Layout("col", padding=1000),
    "row_aligned": Layout("row", multiple=16),
    "col_aligned": Layout("col", multiple=16),
    "row/2": Layout("row", row_step=2, col_step=2),
    "col/2": Layout("col", row_step=2, col_step=2),
    "row/3cols": Layout("row", col_step=3),
    "row_reversed": Layout("row", row_step=-1, col_step=-1),
    "col_reversed": Layout("col", row_step=-1, col_step=-1),
    "rows_reversed": Layout("row", row_step=-1),
    "cols_reversed": Layout("row", col_step=-1),
    "rows_equal": Layout("row", row_step=0),
    "cols_equal": Layout("row", col_step=0),
    "all_equal": Layout("row", row_step=0, col_step=0),
    "row@1": Layout("row", offset=1),
    "row@2": Layout("row", offset=2),
    "row@3": Layout("row", offset=3),
    "col@1": Layout("col", offset=1),
}
