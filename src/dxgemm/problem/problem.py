"""Problem of a call, in the orientation in which kernels compute it.

The choice, the builds and the explanations work on a `Problem` alone, free of any array library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any

from dxgemm.handwritten.parts import k_ranges
from dxgemm.handwritten.parts.operands import BYTES, FLOAT8, FLOAT8_KINDS, exchanged_dtype
from dxgemm.handwritten.parts.triangle import OTHER
from dxgemm.problem.dtypes import (
    COMPLEX_PARTS,
    EMULATED,
    INTEGER_RESULTS,
    ITEM_SIZES,
    PRODUCT_BITS,
    scalar_dtype,
    slice_dtype,
    step_flops,
)
from dxgemm.problem.fusion import FusedReduction, Fusion
from dxgemm.problem.layout import LINE_BYTES, MAX_ALIGNMENT, Strides, copied_step

# Arithmetics with kernels that read 16 bytes at a time, from aligned copies if need be, and the
# bytes of an operand that is copied at most.
COPIED = ("float16", "bfloat16", "tf32", *BYTES, *FLOAT8)
MOST_COPIED_BYTES = 2**30
EXCHANGE = str.maketrans("ab", "ba")  # of the operands' names
MOST_FLATTENED_ROWS = 2**30  # kernels count the rows of a matrix in 32 bits


def _quick_to_read(cls: type[Any]) -> type[Any]:
    """Remove the defaults that the fields of a dataclass leave behind as class attributes.

    With them, Python 3.12 looks up the class at every read of an object's own attribute.
    """
    for name in cls.__dataclass_fields__.keys() & vars(cls).keys():
        delattr(cls, name)
    return cls


@_quick_to_read
@dataclass(frozen=True)
class Problem:
    """out = alpha * a @ b + beta * c, batched, in the orientation the kernels compute it.

    Kernels let neighbouring threads write neighbouring columns of `out`. Where the caller's result
    is contiguous along its rows instead, the transposed product out.T = b.T @ a.T is computed:
    `is_transposed` is set, and a, b, m, n and all strides below are those of that product.

    Attributes:
        dtype: dtype of a and b; of a signed and an unsigned one, both names.
        m, n, k: `out` is m x n, `a` is m x k, `b` is k x n. k is 0 if alpha is 0, because then
            neither a nor b may be read. `out` has n / 2 columns if the epilogue takes pairs.
        batch: number of matrices; 1 for two-dimensional operands.
        a, b, c, out: strides in elements; the batch stride is 0 where an operand is broadcast.
        out_dtype: dtype of c and out.
        a_alignment, b_alignment: bytes, the largest power of two up to 16 that divides the base
            address; kernels with wide accesses rely on it.
        precision: None for the dtype's own arithmetic. For float32, "tf32" permits TF32 and
            "emulated" permits sums of products of float16 parts; float32's own arithmetic satisfies
            both. For float64, "emulated" permits products of rounded numbers by residues, and
            "emulated14" with fourteen moduli.
        modulus: number modulo which a result of integers is taken; 0 for none.
        reads_c: True if beta is nonzero; otherwise c is never touched.
        in_place: True if out and c are the same memory.
        is_transposed: True if a and b are exchanged with respect to the call.
        epilogue: epilogue that is fused into the kernel; None without one.
        must_fuse: True if the product's kernel has to compute the reduction, False if it must not;
            None to leave it open.
        slices: split-K slices, whose sums are not added yet: `out` then has slices * batch
            matrices. The last slices may be shorter.
        triangle: triangles that are written of a result that is symmetric because b is a.T: "both",
            "lower" or "upper", in the kernels' orientation; "" for any other result. "either" is as
            "both", but the two need not have the same bits: the call did not ask for symmetry.
        adds_transpose: True if a symmetric result is the product and its transpose added up.
        conjugates: names of the operands that are conjugated, for a kernel of complex elements: "",
            "a", "b" or "ab".
        padded: names of the operands whose contiguous lines are filled up to whole vectors of 16
            bytes, which may be read: "", "a", "b" or "ab".
        k_ranges: triangles of a and b, whose zeros kernels may skip: see `k_ranges` in handwritten.
            "" for full operands.
        clears: the same triangles, "unit_lower" or "unit_upper" if the diagonal counts as ones, of
            operands with other elements beside their diagonals, where kernels put zeros; "" where
            zeros are in memory.
        copies_any_size: True if aligned copies are made of operands of any size, and of all that
            TMA cannot read: those of a batch-invariant call, whose rows shall not decide.
    """

    dtype: str
    m: int
    n: int
    k: int
    batch: int
    a: Strides
    b: Strides
    c: Strides
    out: Strides
    out_dtype: str
    a_alignment: int = MAX_ALIGNMENT
    b_alignment: int = MAX_ALIGNMENT
    precision: str | None = None
    modulus: int = 0
    reads_c: bool = False
    in_place: bool = True
    is_transposed: bool = False
    epilogue: Fusion | None = None
    must_fuse: bool | None = None
    slices: int = 1
    triangle: str = ""
    adds_transpose: bool = False
    conjugates: str = ""
    padded: str = ""
    k_ranges: str = ""
    clears: str = ""
    copies_any_size: bool = False

    @property
    def reduction(self) -> FusedReduction | None:
        """Reduction of the result; None without one."""
        return self.epilogue.reduction if self.epilogue else None

    @property
    def inner(self) -> Any:
        """Function in the place of the multiply-add; None for the product's own."""
        return self.epilogue.inner if self.epilogue else None

    @property
    def inner_parts(self) -> int:
        """Numbers per total of the inner function; 1 without one."""
        return self.epilogue.inner.parts if self.epilogue and self.epilogue.inner else 1

    @property
    def mask_block(self) -> int:
        """Rows and columns of a block of the result's mask; 0 without a mask."""
        return self.epilogue.mask_block if self.epilogue else 0

    @property
    def c_dtype(self) -> str:
        """Dtype of c: that of the result, but for real results of complex operands."""
        return self.dtype if self.dtype in COMPLEX_PARTS else self.out_dtype

    @property
    def has_block_scales(self) -> bool:
        """True if blocks of a and b have scales, which are applied to sums over 128 of k."""
        return self.epilogue is not None and self.epilogue.block_scales != ()

    @property
    def keeps_elements(self) -> bool:
        """True if some elements of the result keep their bits."""
        return self.triangle in ("lower", "upper") or self.mask_block > 0

    @property
    def takes_pairs(self) -> bool:
        """True if the epilogue makes one element of two neighbouring columns."""
        return self.epilogue is not None and self.epilogue.pair_stage is not None

    @property
    def is_quantised(self) -> bool:
        """True if sums become int8, by an epilogue, or float8."""
        is_integer = self.epilogue is not None and self.out_dtype == "int8"
        return is_integer or self.out_dtype in FLOAT8_KINDS

    @property
    def is_integer(self) -> bool:
        """True for integers and bool, whose sums are exact."""
        return self.dtype in PRODUCT_BITS

    @property
    def is_widened(self) -> bool:
        """True if sums of integers are stored in another integer dtype than a new result has."""
        return self.is_integer and self.out_dtype in INTEGER_RESULTS[self.dtype][1:]

    @property
    def result_columns(self) -> int:
        """Columns of `out`: n, or half as many if the epilogue takes pairs."""
        return self.n // 2 if self.takes_pairs else self.n

    @property
    def scalar_dtype(self) -> str:
        """Dtype of alpha and beta, and of the accumulator of floats and int8."""
        return scalar_dtype(self.dtype)

    @property
    def arithmetic(self) -> str:
        """Arithmetic that products may be computed in: the precision asked for, or the dtype."""
        return self.precision if self.precision and self.dtype == "float32" else self.dtype

    @property
    def moduli(self) -> int | None:
        """Number of moduli that the precision names; None if it names none."""
        digits = (self.precision or "").removeprefix(EMULATED)
        return int(digits) if digits.isdecimal() else None

    @property
    def is_empty(self) -> bool:
        """True if the result has no elements, so that nothing is launched."""
        return self.m == 0 or self.n == 0 or self.batch == 0

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition per inner step, four of each if complex."""
        return step_flops(self.dtype) * self.batch * self.m * self.n * self.k

    @property
    def a_row_alignment(self) -> int:
        """Alignment in bytes of the rows of a, or its columns: a power of two up to 128."""
        return _row_alignment(self.a, self.dtype)

    @property
    def b_row_alignment(self) -> int:
        """Alignment in bytes of the rows of b, or its columns: a power of two up to 128."""
        return _row_alignment(self.b, self.dtype)

    @property
    def result_row_alignment(self) -> int:
        """Alignment of the rows of the result in bytes, like `a_row_alignment`."""
        return _row_alignment(self.out, self.out_dtype)

    @property
    def operand_bytes(self) -> tuple[int, int]:
        """Bytes of a and of b, all matrices of the batch; a broadcast one counts once."""
        item_size = ITEM_SIZES[self.dtype]
        a, b = self.m * self.k * item_size, self.k * self.n * item_size
        if self.batch != 1:
            a, b = (a * self.batch if self.a.batch else a), (b * self.batch if self.b.batch else b)
        return a, b

    @property
    def read_bytes(self) -> int:
        """Fewest bytes read from device memory: each operand once."""
        read = sum(self.operand_bytes)
        if self.reads_c:
            read += self.batch * self.m * self.n * ITEM_SIZES[self.out_dtype]
        return read

    @property
    def result_bytes(self) -> int:
        """Bytes of the result's matrices, without the partial sums of split-K."""
        if self.epilogue and self.epilogue.reduction and not self.epilogue.reduction.is_stored:
            return 0
        return self.batch * self.m * self.result_columns * ITEM_SIZES[self.out_dtype]

    @property
    def bytes_moved(self) -> int:
        """Fewest bytes through device memory; the results of a reduction are not counted."""
        return self.read_bytes + self.result_bytes

    @cached_property
    def aligned(self) -> Problem:
        """Problem with the copies of `aligned_operands`; itself if neither operand is copied."""
        a, b = self.aligned_operands
        if a is None and b is None:
            return self
        changes: dict[str, Any] = {"padded": "a" * (a is not None) + "b" * (b is not None)}
        if a is not None:
            changes |= {"a": a, "a_alignment": MAX_ALIGNMENT}
        if b is not None:
            changes |= {"b": b, "b_alignment": MAX_ALIGNMENT}
        return changed(self, **changes)

    @cached_property
    def aligned_operands(self) -> tuple[Strides | None, Strides | None]:
        """Strides of aligned copies of a and b, in a workspace; None for one read in place.

        Kernels that read 16 bytes at a time want rows, or columns, that begin at multiples of 16
        bytes. The lines of copies are `copied_step` apart.
        """
        if self.arithmetic not in COPIED or self.k == 0:
            return None, None
        a, b, (a_any, b_any) = self.a, self.b.transposed(), _take_any_major(self)
        a_copy = _aligned_operand(self, a, self.m, self.a_alignment, a_any)
        b_copy = _aligned_operand(self, b, self.n, self.b_alignment, b_any)
        return a_copy, b_copy and b_copy.transposed()


def changed(problem: Problem, **changes: Any) -> Problem:
    """Problem with some fields changed: `dataclasses.replace` in a fraction of its time."""
    new = object.__new__(Problem)
    fields = vars(new)
    fields.update(vars(problem))
    for name in ("aligned", "aligned_operands"):  # which are cached
        fields.pop(name, None)
    fields.update(changes)
    return new


def _row_alignment(strides: Strides, dtype: str) -> int:
    """Alignment of the stride between rows, or between columns if these are contiguous."""
    step = strides.row if strides.col == 1 else strides.col
    return gcd(step * ITEM_SIZES[dtype], LINE_BYTES)


def stored_problem(problem: Problem) -> Problem:
    """Problem of the product before an unfused reduction, which stores the matrix.

    The matrix goes to a workspace unless the caller asked for it.
    """
    assert problem.epilogue is not None and problem.reduction is not None
    whole = problem.epilogue
    epilogue: Fusion | None = replace(whole, operands=whole.stage_operands, reduction=None)
    epilogue = epilogue if whole.stages or whole.inner else None
    if problem.reduction.is_stored:
        return changed(problem, epilogue=epilogue)
    out = _aligned_strides(problem)
    return changed(problem, epilogue=epilogue, out=out, in_place=not problem.reads_c)


def sliced_problem(problem: Problem, slices: int) -> Problem:
    """Problem of the partial sums of so many split-K slices, in a workspace.

    Of a symmetric result, the lower triangle is summed. An inner function makes totals of slices.
    Modulo a number, they are the result itself.
    """
    fusion = problem.epilogue
    inner = None
    if fusion is not None and fusion.inner is not None:
        inner = replace(fusion, stages=(), operands=(), reduction=None)
    triangle = "lower" if problem.triangle else ""
    sums = changed(problem, slices=slices, epilogue=inner, triangle=triangle)
    if problem.modulus:
        sums = changed(sums, in_place=False)
    else:
        out_dtype = slice_dtype(problem.dtype, problem.out_dtype)
        sums = changed(sums, reads_c=False, out_dtype=out_dtype)
    return changed(sums, out=_aligned_strides(sums))


def _aligned_strides(problem: Problem) -> Strides:
    """Strides of matrices in a workspace, with aligned rows."""
    width = MAX_ALIGNMENT // ITEM_SIZES[problem.out_dtype]
    row = -(-problem.n // width) * width
    return Strides(problem.m * row, row, 1)


def _take_any_major(problem: Problem) -> tuple[bool, bool]:
    """For a and for b, True if kernels read it K-major or MN-major, False if only K-major.

    wgmma reads an operand of TF32 or float8 MN-major if the other is K-major; of two, the larger
    is kept. With `copies_any_size`, float8 is K-major.
    """
    if ITEM_SIZES[problem.dtype] == 2:
        return True, True
    if problem.dtype in BYTES or (problem.dtype in FLOAT8 and problem.copies_any_size):
        return False, False
    both = problem.a.col != 1 and problem.b.row != 1
    return not both or problem.m > problem.n, not both or problem.m <= problem.n


def _aligned_operand(
    problem: Problem, strides: Strides, along: int, alignment: int, takes_any: bool
) -> Strides | None:
    """Strides of an aligned copy of an operand, along m or n and along k; None to read it as it is.

    An operand of more than 1 GiB is not copied, but for `Problem.copies_any_size`.

    Args:
        problem: the problem.
        strides: strides of the operand: of a, or of b transposed.
        along: m or n.
        alignment: alignment of the address, in bytes.
        takes_any: True if it may be MN-major.
    """
    item_size, k = ITEM_SIZES[problem.dtype], problem.k
    copied_bytes = along * k * (problem.batch if strides.batch else 1) * item_size
    if copied_bytes > MOST_COPIED_BYTES and not problem.copies_any_size:
        return None
    is_k_major = strides.col == 1 or k == 1
    has_neighbours = is_k_major or (takes_any and (strides.row == 1 or along == 1))
    # A stride along an extent of 1 is never taken.
    line, lines = (strides.row, along) if is_k_major else (strides.col, k)
    starts = (strides.batch | line * (lines > 1)) * item_size | alignment
    is_apart = strides.batch >= 0 and (lines <= 1 or abs(line) >= (k if is_k_major else along))
    is_taken = is_apart or not problem.copies_any_size
    if has_neighbours and starts % MAX_ALIGNMENT == 0 and is_taken:
        return None
    copies_rows = not takes_any or abs(strides.col) <= abs(strides.row)
    items, lines = (k, along) if copies_rows else (along, k)
    line = copied_step(items, problem.dtype)
    batch = lines * line if strides.batch else 0
    return Strides(batch, line, 1) if copies_rows else Strides(batch, 1, line)


def oriented(problem: Problem) -> Problem:
    """Exchange a and b where the result's rows, not its columns, are the contiguous direction."""
    rows_are_contiguous = problem.m > 1 and abs(problem.out.row) < abs(problem.out.col)
    if (problem.n > 1 and not rows_are_contiguous) or problem.m <= 1:
        return problem
    return exchanged(problem)


def flattened(problem: Problem, *, takes_columns: bool = False) -> Problem | None:
    """Problem of one matrix that has the rows of a whole batch, which share b.

    Args:
        problem: a problem without an epilogue.
        takes_columns: True if one with the columns of a batch that shares a will do, too.

    Returns:
        The same product, in the caller's orientation; None if there is no batch, if its matrices do
        not share an operand, or if a single stride does not lead through the rows of a, out and, if
        it is read, c.
    """
    if problem.batch == 1 or problem.is_empty:
        return None
    own = exchanged(problem) if problem.is_transposed else problem
    flat = _with_flattened_rows(own)
    if flat is None and takes_columns and not own.a.batch:
        flat = _with_flattened_rows(exchanged(own))
        flat = flat and exchanged(flat)
    return flat


def _with_flattened_rows(problem: Problem) -> Problem | None:
    batch, m = problem.batch, problem.m
    if problem.b.batch or batch * m > MOST_FLATTENED_ROWS:
        return None
    a, out = problem.a.flattened(m), problem.out.flattened(m)
    c = problem.c.flattened(m) if problem.reads_c else out
    if a is None or c is None or out is None:
        return None
    return changed(problem, m=batch * m, batch=1, a=a, c=c, out=out)


def exchanged(problem: Problem) -> Problem:
    """Problem of the transposed product."""
    return changed(
        problem,
        dtype=exchanged_dtype(problem.dtype),
        m=problem.n,
        n=problem.m,
        a=problem.b.transposed(),
        b=problem.a.transposed(),
        c=problem.c.transposed(),
        out=problem.out.transposed(),
        a_alignment=problem.b_alignment,
        b_alignment=problem.a_alignment,
        is_transposed=not problem.is_transposed,
        triangle=OTHER.get(problem.triangle, problem.triangle),
        k_ranges=k_ranges.exchanged(problem.k_ranges),
        clears=k_ranges.exchanged(problem.clears),
        conjugates="".join(sorted(problem.conjugates.translate(EXCHANGE))),
    )
