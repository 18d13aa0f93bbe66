"""Facts of a problem on which its time depends, whatever kernel computes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.kernels import align_rows
from dxgemm.handwritten.parts.k_ranges import EXCHANGED
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES
from dxgemm.handwritten.parts.moduli import LONGEST_K, moduli_count
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.problem.dtypes import ITEM_SIZES, slice_dtype
from dxgemm.problem.layout import MAX_ALIGNMENT, Strides
from dxgemm.problem.problem import Problem

# Half the tiles of a symmetric result: the second store of each element, by the bytes of one, and
# that of 2 bytes in rows that are not aligned: measured on the H200.
MIRROR_NS, MISALIGNED_MIRROR_NS = {2: 0.13, 4: 0.25, 8: 0.5}, 0.48
# Of an aligned copy of an operand: the factor of its bytes if it is transposed, too, and the bytes
# that the time of a block is worth at least: measured on the H100.
TURNED, LEAST_COPIED_BYTES = 1.5, 6500
EXCHANGING = ("tf32", *FLOAT8)  # whose kernels make an MN-major b the left operand
MODULAR = 4  # instructions per pair of a product modulo a number, as long as multiply-adds


class Kind(NamedTuple):
    """Facts of a problem that do not depend on its sizes, but for `is_tall`."""

    misaligned: Any  # share of a and b whose rows or columns do not start at multiples of 16 bytes
    a_is_col: Any  # a is column-major
    b_is_col: Any
    a_alignment: Any  # bytes, alignment of rows or columns, up to a cache line
    b_alignment: Any
    out_is_misaligned: Any  # rows of the result do not start at multiples of 16 bytes
    has_epilogue: Any  # functions are applied to elements
    is_reduced: Any  # the kernel of the product reduces its tiles
    is_exchanged: Any  # kernels which read aligned operands compute out.T = b.T @ a.T
    is_tall: Any  # m is larger than n
    instructions: Any  # per pair: 1 for a multiply-add, more for an inner function or a modulus


class Zeros(NamedTuple):
    """Triangular operands."""

    a: bool  # a is triangular
    b: bool
    filled: float  # share of the products of elements in which neither factor is such a zero
    stored_bytes: float  # bytes of the triangular operands that are copied, with their zeros

    @classmethod
    def of(cls, problem: Problem) -> Zeros:
        """Triangles of a problem that has `k_ranges`."""
        a, b = (triangle != "full" for triangle in problem.k_ranges.split())
        a_bytes, b_bytes = problem.operand_bytes
        copied_bytes = 0 if problem.clears else a * a_bytes + b * b_bytes
        return cls(a, b, filled_share(problem), copied_bytes)


class ProblemFacts(NamedTuple):
    """Sizes and bytes on which a time depends; or arrays of them, one row per problem."""

    m: Any  # sizes, at least 1 but for k
    n: Any
    k: Any
    batch: Any
    moduli: Any  # products of residues, for emulated float64
    read_bytes: Any
    written_bytes: Any  # of the result
    slice_bytes: Any  # of the partial sums of a split-K slice
    copies: Any  # operands that kernels which read aligned ones need a copy of: 0 to 2
    copied_bytes: Any  # more for those that are transposed, or of small matrices
    large_bytes: Any  # of the larger operand
    few: Any  # rows or columns of the other one, of all matrices that read the same larger one
    kind: Kind
    mirror_ns: float | None = None  # if half a symmetric result is computed, of a second store
    zeros: Zeros | None = None  # of operands whose zeros kernels may skip

    @classmethod
    def of(cls, problem: Problem) -> ProblemFacts:
        """Facts of one problem. Numbers are floats, with which NumPy computes quickest."""
        m, n, batch = problem.m or 1, problem.n or 1, problem.batch or 1
        copies, copied_bytes = _copies(problem)
        is_modular = problem.precision and problem.dtype == "float64" and problem.k <= LONGEST_K
        operand_bytes, larger = problem.operand_bytes, int(problem.m <= problem.n)
        shares_larger = not (problem.b if larger else problem.a).batch
        sum_bytes = ITEM_SIZES[slice_dtype(problem.dtype, problem.out_dtype)]
        return cls(
            float(m),
            float(n),
            float(problem.k),
            float(batch),
            moduli_count(problem) if is_modular else 1,
            float(problem.read_bytes),
            float(problem.result_bytes),
            float(problem.batch * problem.m * problem.n * sum_bytes),
            copies,
            copied_bytes,
            float(operand_bytes[larger]),
            float(min(m, n) * (batch if shares_larger else 1)),
            _kind(problem),
            _mirror_ns(problem) if problem.triangle else None,
            Zeros.of(problem) if problem.k_ranges else None,
        )

    @classmethod
    def of_all(cls, problems: Sequence[Problem]) -> ProblemFacts:
        """Facts of many problems, none of them with a symmetric result or triangular operands."""
        *numbers, kinds, _, _ = zip(*map(cls.of, problems), strict=True)
        columns = [*numbers, *zip(*kinds, strict=True)]
        return cls._made(columns, lambda column: np.array(column, float)[:, None])

    def mapped(self, change: Callable[[Any], Any]) -> ProblemFacts:
        """Facts of many problems, each array changed."""
        return self._made([*self[:12], *self.kind], change)

    @classmethod
    def _made(cls, columns: Sequence[Any], change: Callable[[Any], Any]) -> ProblemFacts:
        numbers = [change(column) for column in columns]
        return cls._make([*numbers[:12], Kind._make(numbers[12:]), None, None])


def _kind(problem: Problem) -> Kind:
    a, b, fusion = problem.a, problem.b, problem.epilogue and problem.epilogue.unmasked
    a_alignment, b_alignment = problem.a_row_alignment, problem.b_row_alignment
    a_is_misaligned = min(a_alignment, problem.a_alignment) < MAX_ALIGNMENT
    b_is_misaligned = min(b_alignment, problem.b_alignment) < MAX_ALIGNMENT
    _, b_copy = problem.aligned_operands
    return Kind(
        0.5 * (a_is_misaligned + b_is_misaligned),
        a.row == 1 != a.col,
        b.row == 1 != b.col,
        a_alignment,
        b_alignment,
        problem.result_row_alignment < MAX_ALIGNMENT,
        fusion is not None and bool(fusion.stages),
        fusion is not None and fusion.reduction is not None,
        problem.arithmetic in EXCHANGING and (b_copy or b).row != 1,
        problem.n < problem.m,
        problem.inner.operations if problem.inner else MODULAR if problem.modulus else 1,
    )


def _copies(problem: Problem) -> tuple[int, float]:
    """Number of aligned copies of operands, and their bytes, as far as the time goes."""
    a_copy, b_copy = problem.aligned_operands
    copied_bytes = 0.0
    if a_copy is not None:
        copied_bytes += _copied_bytes(problem, problem.a, a_copy, problem.m)
    if b_copy is not None:
        b = problem.b.transposed()
        copied_bytes += _copied_bytes(problem, b, b_copy.transposed(), problem.n)
    return (a_copy is not None) + (b_copy is not None), copied_bytes


def filled_share(problem: Problem) -> float:
    """Share of the products of elements in which neither factor is a zero of a triangle."""
    if not problem.k_ranges or not problem.flops:
        return 1.0
    a, b = problem.k_ranges.split()
    k = np.arange(problem.k, dtype=float)
    rows, cols = (
        {
            "full": size + 0 * k,
            "lower": np.maximum(size - k, 0),  # elements that are not above the diagonal
            "upper": np.minimum(k + 1, size),
        }[triangle]
        for size, triangle in ((problem.m, a), (problem.n, EXCHANGED[b]))
    )
    return float(rows @ cols) / (problem.m * problem.n * problem.k)


def _mirror_ns(problem: Problem) -> float:
    """Time of storing an element on the other side of the diagonal, too, if that is stored."""
    if problem.triangle != "both":
        return 0.0
    item_bytes = ITEM_SIZES[problem.out_dtype]
    is_narrow = item_bytes == 2 and problem.result_row_alignment < MAX_ALIGNMENT
    return MISALIGNED_MIRROR_NS if is_narrow else MIRROR_NS[item_bytes]


def _copied_bytes(problem: Problem, source: Strides, copy: Strides, along: int) -> float:
    """Bytes of an aligned copy, as far as its time goes.

    Args:
        problem: the problem.
        source, copy: strides along m or n, and along k.
        along: m or n.
    """
    copies_rows = copy.col == 1
    rows, cols = (along, problem.k) if copies_rows else (problem.k, along)
    matrices = problem.batch if source.batch else 1
    row_bytes = cols * ITEM_SIZES[problem.dtype]
    is_turned = (source.col if copies_rows else source.row) != 1
    (config,) = align_rows.KERNEL.configs
    tile_rows, tile_chunks = config.tile("any" if is_turned else "row")
    blocks = math.ceil(rows / tile_rows) * math.ceil(row_bytes / (tile_chunks * CHUNK_BYTES))
    read_bytes = rows * row_bytes * (TURNED if is_turned else 1)
    return matrices * max(read_bytes, blocks * LEAST_COPIED_BYTES)
