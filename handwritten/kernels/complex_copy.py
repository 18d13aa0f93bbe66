"""Copy of a complex matrix for real products: scaled, conjugated, transposed or expanded, or parts.

Idea: complex numbers are pairs of neighbouring real ones. So a row-major C (m, n) is a real matrix
of 2 n columns as it is stored, a (m, k) one of 2 k, and C = a @ b is their product with an expanded
b: each row of b, taken as 2 n real columns, is followed by that row times i. Or the real parts,
the imaginary parts and, for three products, their sums are multiplied (complex_sum.py). Tiles go
through shared memory, so that both sides are read and written along their contiguous dimension.
Layout: a (m, n) of complex elements, any strides, any batch; out (m, n) likewise, or (2 m, n) if
the matrix is expanded, or two or three real (m, n) for each matrix, c.batch apart, if it is parted.
In halves, it becomes two real matrices of 2 k columns, c.batch apart: [re, im] and [im, -re], each
filled up with zeros from n to k columns. Strides count real elements. alpha and beta are the real
and the imaginary part of the factor. b is not used.
Constraints: complex elements begin at multiples of their size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.complex_product import make_scale
from dxgemm.handwritten.parts.groups import make_find_piece
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel


@dataclass(frozen=True)
class Config(BaseConfig):
    """Tile of a block, whose threads copy `steps` elements each."""

    rows: int
    cols: int
    steps: int

    @property
    def threads(self) -> int:
        return self.rows * self.cols // self.steps

    @property
    def tile_row(self) -> int:
        """Real elements of a row in shared memory, padded against conflicts."""
        return 2 * self.cols + 2

    def smem_bytes(self, dtype: str) -> int:
        return self.rows * self.tile_row * np.dtype(dtype).itemsize

    def accumulator_bytes(self, dtype: str) -> int:
        return 2 * np.dtype(dtype).itemsize

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols} threads {self.threads}"


def choose_config(configs: tuple[Config, ...], columns: int) -> Config:
    """Choose the narrowest tile that holds whole rows; the widest one if none does."""
    return next((config for config in configs if columns <= config.cols), configs[-1])


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one for each tile of each matrix."""
    columns = max(problem.n, problem.k)  # k is 1, but for halves
    tiles: int = -(-problem.m // config.rows) * -(-columns // config.cols)
    return problem.batch * tiles


def make_kernel(
    config: Config, dtype: str, order: str, conjugates: str, expands: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one variant, as a Python function to compile or to simulate.

    Args:
        dtype: dtype of the real and the imaginary parts.
        order: "turned" if the columns of a are contiguous, else "straight".
        conjugates: "conjugate" to copy the conjugates of the elements, else "".
        expands: "i" or "-i" to write each row again, times that, below itself; "parts" to write
            real and imaginary parts apart, "parts and sums" their sums too; "halves"; else "".
    """
    # Global, because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import load_vector, store_vector
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    scalar = np.dtype(dtype).type
    rows, cols, tile_row = config.rows, config.cols, config.tile_row
    steps, threads, tile_items = config.steps, config.threads, rows * tile_row
    copies = 2 if expands in ("i", "-i") else 1
    lanes_read = rows if order == "turned" else cols
    is_turned, is_negative, are_parts = order == "turned", expands == "-i", "parts" in expands
    are_halves, scale = expands == "halves", make_scale(1)
    find_piece = make_find_piece(rows, cols)

    @gemm_kernel
    def complex_copy_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        tile = cuda.shared.array(tile_items, scalar)
        # --- This block's tile ---
        columns: int32 = k if are_halves else n  # of out
        matrix, first_row, first_col = find_piece(int32(cuda.blockIdx.x), m, columns)
        thread: int32 = cuda.threadIdx.x & 1023

        # --- Read along the contiguous dimension of a ---
        for step in static_range(steps):
            row: int32 = thread // lanes_read + step * (threads // lanes_read)
            col: int32 = thread % lanes_read
            if is_turned:
                row, col = col, row
            if first_row + row < m and first_col + col < n:
                place = int64(matrix) * a.batch + int64(first_row + row) * a.row
                re, im = load_vector(scalar, 2, a.data, place + int64(first_col + col) * a.col)
                if conjugates:
                    im = -im
                re, im = scale((re, im), alpha, beta)
                tile[row * tile_row + 2 * col] = re
                tile[row * tile_row + 2 * col + 1] = im
            elif are_halves:
                tile[row * tile_row + 2 * col] = scalar(0)
                tile[row * tile_row + 2 * col + 1] = scalar(0)
        cuda.syncthreads()

        # --- Write along the rows of out ---
        for step in static_range(steps):
            row, col = thread // cols + step * (threads // cols), thread % cols
            if first_row + row < m and first_col + col < columns:
                re, im = tile[row * tile_row + 2 * col], tile[row * tile_row + 2 * col + 1]
                place = int64(matrix) * out.batch + int64(first_row + row) * copies * out.row
                place += int64(first_col + col) * out.col
                if are_halves:
                    out.data[place] = re
                    out.data[place + k] = im
                    out.data[place + c.batch] = im
                    out.data[place + c.batch + k] = -re
                elif are_parts:
                    out.data[place] = re
                    out.data[place + c.batch] = im
                    if expands == "parts and sums":
                        out.data[place + 2 * c.batch] = re + im
                else:
                    store_vector(out.data, place, (re, im))
                    if expands:
                        if is_negative:
                            store_vector(out.data, place + out.row, (im, -re))
                        else:
                            store_vector(out.data, place + out.row, (-im, re))

    return complex_copy_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(rows=128, cols=8, steps=4),
        Config(rows=64, cols=16, steps=4),
        Config(rows=32, cols=32, steps=4),
    ),
    simulator_configs=(Config(rows=8, cols=2, steps=2), Config(rows=4, cols=4, steps=2)),
    block_count=block_count,
)
