"""Triangular operands: kernels put zeros beside their diagonals, or read copies that have them.

The copies are in a workspace, K-major or MN-major as the operand is, with aligned lines. A kernel
that skips zeros reads few elements beyond the diagonal (`k_ranges.band`); for others the copy is
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from dxgemm.errors import UnsupportedProblemError
from dxgemm.handwritten.parts import k_ranges
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.problem.complex_form import in_parts
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, PRODUCT_BITS, factor_dtypes
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import MAX_ALIGNMENT, Strides, copied_step
from dxgemm.problem.problem import EXCHANGE, Problem, exchanged

WORD_BYTES = 4
UNIT = "unit "  # prefix of a triangle whose diagonal counts as ones


class CleanCopy(NamedTuple):
    """Copy of a triangular operand.

    Attributes:
        name: "a" or "b", in the orientation of kernels.
        sizes: m lines of n elements, from the strides a to the strides out; k is not known yet.
        triangle: "lower" or "upper", of the lines.
        unit_dtype: dtype of the ones on the diagonal; "" for the operand's own diagonal.
        parts: "pairs" of complex elements, with strides of parts; "2" or "4" of words of so many
            elements, of which there are n in a line; else "".
    """

    name: str
    sizes: KernelArguments
    triangle: str
    unit_dtype: str
    parts: str

    @property
    def size(self) -> int:
        """Bytes of the copy."""
        sizes = self.sizes
        return sizes.batch * sizes.m * sizes.out.row * ITEM_SIZES[sizes.dtype]

    def exchanged(self) -> CleanCopy:
        """Copy of the same operand in the transposed product."""
        return self._replace(name=self.name.translate(EXCHANGE))


def clean(
    problem: Problem,
    triangular: tuple[str | None, str | None] | None,
    keeps_ranges: bool,
    is_cleared: Callable[[Problem], bool],
) -> tuple[Problem, tuple[CleanCopy, ...]]:
    """Problem of triangular operands as they lie, or of copies of them, and these copies.

    Args:
        problem: the problem of the operands as they are.
        triangular: triangles of a and b of the call, as `gemm` takes them.
        keeps_ranges: False if kernels shall multiply zeros as well.
        is_cleared: True of a problem whose kernel puts zeros beside diagonals itself.

    Raises:
        UnsupportedProblemError: the problem has an inner function.
    """
    if triangular is None:
        return problem, ()
    if problem.inner is not None:
        raise UnsupportedProblemError(
            f"gemm: {problem.inner.name} is no sum of products, to which zeros beside a diagonal "
            "add nothing; leave triangular= out."
        )
    if problem.k == 0 or problem.is_empty:
        return problem, ()
    own = exchanged(problem) if problem.is_transposed else problem
    words = " ".join((name or k_ranges.FULL).replace(UNIT, k_ranges.UNIT) for name in triangular)
    ranges = words.replace(k_ranges.UNIT, "") if keeps_ranges else ""
    as_it_lies = replace(own, k_ranges=ranges, clears=words)
    as_it_lies = exchanged(as_it_lies) if problem.is_transposed else as_it_lies
    if keeps_ranges and is_cleared(as_it_lies):
        return as_it_lies, ()
    copies, changes = [], dict[str, Any](k_ranges=ranges)
    for name, triangle in zip("ab", triangular, strict=True):
        if triangle is not None:
            copy, strides = _copy_of(own, name, triangle)
            copies.append(copy)
            changes |= {name: strides, f"{name}_alignment": MAX_ALIGNMENT}
    cleaned = replace(own, **changes)
    if not problem.is_transposed:
        return cleaned, tuple(copies)
    return exchanged(cleaned), tuple(copy.exchanged() for copy in copies)


def _copy_of(problem: Problem, name: str, triangle: str) -> tuple[CleanCopy, Strides]:
    """Copy of an operand, and its strides in the problem."""
    source: Strides = getattr(problem, name)
    rows, cols = (problem.m, problem.k) if name == "a" else (problem.k, problem.n)
    dtype, is_turned = problem.dtype, abs(source.row) < abs(source.col)
    shape, own = triangle.removeprefix(UNIT), source
    if is_turned:
        rows, cols, own, shape = cols, rows, source.transposed(), k_ranges.EXCHANGED[shape]
    row = copied_step(cols, dtype)
    batch = problem.batch if source.batch else 1
    out = Strides(rows * row if source.batch else 0, row, 1)
    read, written, width, parts, copied_as = own, out, 1, "", COMPLEX_PARTS.get(dtype, dtype)
    packed = _elements_of_a_word(problem, name, own, cols)
    if dtype in COMPLEX_PARTS:
        read, written, width, parts = in_parts(own), in_parts(out), 2, "pairs"
    elif packed > 1:
        parts, copied_as, cols = str(packed), "int32", cols // packed
        read, written = (Strides(x.batch // packed, x.row // packed, 1) for x in (own, out))
    elif dtype in PRODUCT_BITS or dtype in FLOAT8:
        copied_as = f"int{8 * ITEM_SIZES[dtype]}"
    sizes = batch, rows, cols, width
    arguments = KernelArguments(
        copied_as, rows, cols, 0, batch, read, out=written,
        extents={name: ((*steps, 1), sizes) for name, steps in
                 (("a", read), ("b", read), ("out", written))},
    )  # fmt: skip
    unit_dtype = factor_dtypes(dtype)[name == "b"] if triangle.startswith(UNIT) else ""
    copy = CleanCopy(name, arguments, shape, unit_dtype, parts)
    return copy, out.transposed() if is_turned else out


def _elements_of_a_word(problem: Problem, name: str, lines: Strides, items: int) -> int:
    """Short elements that are copied at a time: those of a word if lines consist of words."""
    packed = max(WORD_BYTES // ITEM_SIZES[problem.dtype], 1)
    alignment: int = getattr(problem, f"{name}_alignment")
    is_whole = (items | lines.row | lines.batch) % packed == 0
    return packed if lines.col == 1 and is_whole and alignment >= WORD_BYTES else 1
