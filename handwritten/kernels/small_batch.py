"""Many small matrices: several per block, each with threads and shared memory of its own.

Idea: grown from `tuned`. A matrix of 4 x 4 to 80 x 80 fits one tile, k included: all its
copies are in flight at once, and there is no pipeline but the blocks that share an SM. A block
takes several tiny matrices, to have 64 threads or more. A function of the caller may take the place
of the multiply-add (`inner`).
Lower bounds for m = n = k on an H200, in clocks of one SM for one matrix. In a clock, an SM gets 18
bytes from memory and does 128 multiply-adds in float32 or 64 in float64:

    size                   4     8    16     32     48     64     96     128
    memory, float32       11    43   171    683   1536   2731   6144   10923
    arithmetic, float32    1     4    32    256    864   2048   6912   16384
    memory, float64       21    85   341   1365   3072   5461  12288   21845
    arithmetic, float64    1     8    64    512   1728   4096  13824   32768

Memory is the bound up to size 64, so every byte should cross it once, in whole sectors. Shared
memory, which serves eight threads per clock with 16 bytes each, comes close: at 48 in float64, 96
threads read ten times for two k, in 2880 clocks. There the tensor cores of `tensor_batch` take
over. The time of a small batch is that of a launch, and of a block until its copies are in flight.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch. In shared memory a is stored
as in global memory, along k or along m; b as rows, transposed on the way if it is column-major.
Constraints: see `Config`; cp.async needs compute capability 8.0. Larger matrices are computed tile
by tile. Edges are predicated: elements outside count as zero and are not written.
Source: A. Abdelfattah et al., "Performance, Design, and Autotuning of Batched GEMM for GPUs", ISC
2016, for several problems per block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from dxgemm.handwritten.frames.resident import make_resident_kernel
from dxgemm.handwritten.parts.batch_load import TileBytes, make_tile_load
from dxgemm.handwritten.parts.batch_multiply import make_fma_multiply
from dxgemm.handwritten.parts.batch_place import make_batch_place
from dxgemm.handwritten.parts.batch_store import make_fragment_store
from dxgemm.handwritten.parts.batch_tiles import FAR, BatchConfig, batch_notes, block_count
from dxgemm.handwritten.parts.fragment import thread_fragment
from dxgemm.handwritten.parts.kernel import Kernel, block_a_tile
from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode

MOST_UNROLLED_K = 16


@dataclass(frozen=True)
class Config(BatchConfig):
    """Tile of a matrix tile_m x tile_n x tile_k; thread tile thread_m x thread_n.

    Attributes:
        parts: equal parts of tile_k, each multiplied as soon as it has arrived. The name of a
            config leaves them out: no two configs differ in nothing else.
    """

    thread_m: int
    thread_n: int
    parts: int = 1

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n:
            yield "thread tiles must fill the tile"
        if self.tile_m % 4 or self.thread_n % 4 or self.tile_k % (4 * self.parts):
            yield "tiles, and parts of k, are read in vectors of 4"

    @property
    def threads_m(self) -> int:
        return self.tile_m // self.thread_m

    @property
    def threads_n(self) -> int:
        return self.tile_n // self.thread_n

    @property
    def tile_threads(self) -> int:
        return self.threads_m * self.threads_n

    def thread_layout(self, a_mode: str, dtype: str) -> tuple[tuple[int, int, int], ...]:
        """Rows and columns of a thread, as `thread_fragment` takes them."""
        row_width = 1 if a_mode.startswith("row") else self.rows_together(dtype)
        width = VECTOR_BYTES // np.dtype(dtype).itemsize
        rows = self.thread_m, row_width, self.threads_m * row_width
        return rows, (self.thread_n, width, self.threads_n * width)

    def rows_together(self, dtype: str) -> int:
        """Neighbouring rows of a thread, which one access reads if a is MN-major."""
        return gcd(VECTOR_BYTES // np.dtype(dtype).itemsize, self.thread_m)

    def line_bytes(self, length: int, dtype: str) -> int:
        """Bytes from one line of an operand's tile in shared memory to the next.

        Lines of 16 bytes spread over the banks by themselves, longer ones are padded to do so.
        """
        size = length * np.dtype(dtype).itemsize
        return size if size == VECTOR_BYTES else size + VECTOR_BYTES

    def places(self, a_mode: str, dtype: str) -> tuple[TileBytes, TileBytes]:
        """The tiles in shared memory: a's as it is in global memory, b's of rows."""
        item = np.dtype(dtype).itemsize
        a_place = TileBytes(item, self.line_bytes(self.tile_m, dtype))
        if a_mode.startswith("row"):
            a_place = TileBytes(self.line_bytes(self.tile_k, dtype), item)
        return a_place, TileBytes(item, self.line_bytes(self.tile_n, dtype))

    def operand_bytes(self, tile_outer: int, dtype: str) -> int:
        """Shared memory of an operand's tile, along k or along its other index: the larger."""
        along_k = tile_outer * self.line_bytes(self.tile_k, dtype)
        along_outer = self.tile_k * self.line_bytes(tile_outer, dtype)
        return max(along_k, along_outer)

    def a_bytes(self, dtype: str) -> int:
        return self.operand_bytes(self.tile_m, dtype)

    def tile_bytes(self, dtype: str) -> int:
        """Shared memory of one matrix.

        If the same eight lanes read two matrices, these begin half of all banks apart.
        """
        padding = 64 if self.tile_threads < 8 else 0
        return self.a_bytes(dtype) + self.operand_bytes(self.tile_n, dtype) + padding

    def accumulator_bytes(self, dtype: str) -> int:
        return self.thread_m * self.thread_n * np.dtype(dtype).itemsize

    def tile_registers(self, dtype: str) -> int:
        """Registers of a thread's elements, of a vector per row, and of 16 other operands."""
        size = np.dtype(dtype).itemsize
        elements = self.thread_m * (self.thread_n + VECTOR_BYTES // size) + 16
        return elements * size // 4

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile} thread {self.thread_m}x{self.thread_n} matrices {self.matrices}"


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Layouts of a and b (see `operand_mode`), then the words of `batch_notes`."""
    a_mode, b_mode = operand_mode(problem, "a"), operand_mode(problem, "b")
    return a_mode, b_mode.replace("col16", "col"), *batch_notes(problem)


def supports(problem: Any) -> str | None:
    """Support all but inner functions with several numbers per total."""
    if problem.inner is not None and problem.inner.parts > 1:
        return "its threads keep one number per total"
    return None


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, *notes: str, epilogue: Any = None,
    place: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile.

    Args:
        place: the `place` of another kernel; None for that of a batch.
    """
    from dxgemm.handwritten.parts.inner import make_combine

    places, (rows, cols) = config.places(a_mode, dtype), config.thread_layout(a_mode, dtype)
    scalar = np.dtype(dtype).type
    combine = make_combine(epilogue, dtype)
    multiply = make_fma_multiply(config, scalar, 1, places, rows, MOST_UNROLLED_K, combine)
    fragment = thread_fragment(rows, cols)
    store = make_fragment_store(config, fragment, multiply.locate, dtype, epilogue, FAR in notes)
    place = place or make_batch_place(config)
    return make_resident_kernel(
        config, dtype, place,
        make_tile_load(config, dtype, "a", a_mode, places[0], notes),
        make_tile_load(config, dtype, "b", b_mode, places[1], notes),
        multiply, store,
    )  # fmt: skip


KERNEL = Kernel(
    make_kernel=make_kernel,
    # Tiles of many sizes: on the H200 float32 of 80 x 80 takes 1.7 times as long in tiles of 16, of
    # 40 x 40 1.4 times in tiles of 20. The second ones of a size have more warps, for few matrices.
    # Parts of 16 to 40 k save up to a tenth; below 40 they cost as much as they save.
    configs=(
        Config(80, 80, 80, thread_m=10, thread_n=4, parts=2),
        Config(80, 80, 64, thread_m=5, thread_n=4, parts=4),
        Config(72, 72, 72, thread_m=9, thread_n=4, parts=3),
        Config(64, 64, 64, thread_m=8, thread_n=4, parts=2),
        Config(56, 56, 56, thread_m=7, thread_n=4, parts=2),
        Config(48, 48, 48, thread_m=6, thread_n=4, parts=3),
        Config(48, 48, 48, thread_m=3, thread_n=4, parts=3),
        Config(40, 40, 40, thread_m=5, thread_n=4, parts=2),
        Config(32, 32, 32, thread_m=4, thread_n=4),
        Config(32, 32, 32, thread_m=2, thread_n=4),
        Config(24, 24, 24, thread_m=3, thread_n=4, matrices=2),
        Config(20, 20, 20, thread_m=5, thread_n=4, matrices=4),
        Config(16, 16, 16, thread_m=2, thread_n=4, matrices=2),
        Config(16, 16, 16, thread_m=1, thread_n=4),
        Config(12, 12, 12, thread_m=3, thread_n=4, matrices=8),
        Config(8, 8, 8, thread_m=2, thread_n=4, matrices=8),
        Config(4, 4, 4, thread_m=1, thread_n=4, matrices=16),
    ),
    minimum_arch=80,
    supports=supports,
    variant=variant,
    block_count=block_count,
    tile_count=block_a_tile,
    takes_pairs=True,
    takes_inner=True,
    order_of_sums="fma",
)
