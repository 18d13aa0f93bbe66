"""What one GEMM call asks for, checked once and free of any array library.

`define_problem` turns the operands' layouts into a `Problem` or into a typed error that names the
shapes and the way out. Everything that decides, builds or explains works on the `Problem` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from dxgemm._errors import (
    DeviceMismatchError,
    DtypeError,
    LayoutError,
    MissingOperandError,
    OverlapError,
    PrecisionError,
    ReadOnlyError,
    ShapeError,
)
from dxgemm._fusion import FusedReduction, Fusion

OPERAND_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32")

# Bytes of an element; a reduction's results may be int64.
ITEM_SIZES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int32": 4, "int64": 8
}  # fmt: skip

# What c and out may be, by the dtype of a and b; the first is that of a new result.
RESULT_DTYPES = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
    "int8": ("int32",),
}

# What an epilogue may make of int32 sums besides.
DEQUANTISED_DTYPES = ("float32", "float16", "bfloat16")

# What `precision=` may permit instead of a dtype's own arithmetic, by dtype.
PRECISIONS = {"float32": ("tf32", "split"), "float64": ("split",)}

# In float64 "split" may name the number of moduli as well: "split14".
SPLIT = "split"
MODULI_COUNTS = range(2, 21)

MAX_ALIGNMENT = 16  # bytes of the widest access that kernels make
LINE_BYTES = 128  # of a cache line

# The alignment of an address, at its last four bits: a look-up, because each call needs two.
ALIGNMENTS = (16, 1, 2, 1, 4, 1, 2, 1, 8, 1, 2, 1, 4, 1, 2, 1)


class Layout(NamedTuple):
    """One operand without its data: what validation needs to know of an array.

    Attributes:
        shape: (rows, columns) or (batch, rows, columns).
        strides: bytes from one index to the next, one per dimension; any sign, zero allowed.
        dtype: NumPy's name of the dtype, such as "float32"; other names are refused later.
        device: CUDA ordinal; -1 for host memory.
        read_only: whether the library forbids writing to the array.
        alignment: bytes, the largest power of two up to `MAX_ALIGNMENT` that divides the address.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    read_only: bool
    alignment: int = MAX_ALIGNMENT


class Strides(NamedTuple):
    """Elements from one matrix, row and column of an operand to the next."""

    batch: int
    row: int
    col: int

    def transposed(self) -> Strides:
        return Strides(self.batch, self.col, self.row)

    @property
    def arrangement(self) -> str:
        """`"row_major"`, `"col_major"` or `"strided"` (neither index is contiguous)."""
        if self.col == 1:
            return "row_major"
        return "col_major" if self.row == 1 else "strided"


def _quick_to_read(cls: type[Any]) -> type[Any]:
    """A dataclass without the defaults that its fields leave behind as attributes of the class.

    With them Python 3.12 looks up the class at every reading of an object's own attribute.
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
        dtype: of a and b, a key of `RESULT_DTYPES`.
        m, n, k: `out` is m x n, `a` is m x k, `b` is k x n. k is 0 if alpha is 0, because then
            neither a nor b may be read.
        batch: number of matrices; 1 for two-dimensional operands.
        a, b, c, out: strides in elements; the batch stride is 0 where an operand is broadcast.
        out_dtype: of c and out, one of those that `RESULT_DTYPES` has for dtype.
        a_alignment, b_alignment: bytes, the largest power of two up to 16 that divides the base
            address: what a kernel variant with wide accesses may rely on.
        precision: None for the dtype's own arithmetic; "tf32" permits TF32 on float32 operands, and
            "split" sums of products of their parts, so that true float32 serves both too. In
            float64 "split" permits products of rounded numbers; "split14", by fourteen moduli.
        reads_c: whether beta is nonzero; otherwise c is never touched.
        in_place: whether out and c are the same memory.
        is_transposed: whether the roles of a and b are exchanged with respect to the call.
        epilogue: what is made of alpha * a @ b + beta * c before it is written.
        must_fuse: whether a reduction has to be made by the product's kernel, or must not be; None
            leaves it open.
        slices: equal parts of k, the last ones perhaps shorter, whose sums are left unadded: `out`
            then has slices * batch matrices.
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
    reads_c: bool = False
    in_place: bool = True
    is_transposed: bool = False
    epilogue: Fusion | None = None
    must_fuse: bool | None = None
    slices: int = 1

    @property
    def reduction(self) -> FusedReduction | None:
        """What the result is reduced to."""
        return self.epilogue.reduction if self.epilogue else None

    @property
    def scalar_dtype(self) -> str:
        """The dtype of sums, alpha and beta."""
        return scalar_dtype(self.dtype)

    @property
    def arithmetic(self) -> str:
        """What products may be computed in: the precision asked for, or else the dtype."""
        return self.precision if self.precision and self.dtype == "float32" else self.dtype

    @property
    def moduli(self) -> int | None:
        """How many moduli the precision names."""
        digits = (self.precision or "").removeprefix(SPLIT)
        return int(digits) if digits.isdecimal() else None

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements, so that nothing is launched."""
        return self.m == 0 or self.n == 0 or self.batch == 0

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition per inner step."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def a_row_alignment(self) -> int:
        """Bytes, the largest power of two up to a cache line's that all rows of a are apart."""
        return _row_alignment(self.a, self.dtype)

    @property
    def b_row_alignment(self) -> int:
        """Bytes, the largest power of two up to a cache line's that all rows of b are apart."""
        return _row_alignment(self.b, self.dtype)

    @property
    def result_row_alignment(self) -> int:
        """Bytes, as `a_row_alignment`, for the result."""
        return _row_alignment(self.out, self.out_dtype)

    @property
    def read_bytes(self) -> int:
        """Fewest bytes read from device memory: each operand once."""
        a, b = self.m * self.k, self.k * self.n
        if self.batch != 1:
            a, b = (a * self.batch if self.a.batch else a), (b * self.batch if self.b.batch else b)
        read = (a + b) * ITEM_SIZES[self.dtype]
        if self.reads_c:
            read += self.batch * self.m * self.n * ITEM_SIZES[self.out_dtype]
        return read

    @property
    def result_bytes(self) -> int:
        """Bytes of the matrices that are written, without those of the slices of k."""
        if self.epilogue and self.epilogue.reduction and not self.epilogue.reduction.is_stored:
            return 0
        return self.batch * self.m * self.n * ITEM_SIZES[self.out_dtype]

    @property
    def bytes_moved(self) -> int:
        """Fewest bytes through device memory; what a reduction gives is not counted."""
        return self.read_bytes + self.result_bytes


def _row_alignment(strides: Strides, dtype: str) -> int:
    """Of rows, or of columns where these are contiguous."""
    step = strides.row if strides.col == 1 else strides.col
    return gcd(step * ITEM_SIZES[dtype], LINE_BYTES)


def contiguous_problem(
    dtype: str,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    *,
    out_dtype: str | None = None,
    precision: str | None = None,
) -> Problem:
    """The problem of row-major, 16-byte aligned operands without padding, beta == 0.

    Args:
        dtype: of a and b.
        m, n, k, batch: the sizes.
        out_dtype: of c and out; None for what `gemm` would allocate.
        precision: as `gemm` takes it.

    Raises:
        DtypeError, PrecisionError: as `gemm` would.
    """
    given = {} if out_dtype is None else {"out": out_dtype}
    _check_dtypes({"a": dtype, "b": dtype, **given})
    if precision is not None:
        _check_precision(precision, dtype)
    out = _row_major(batch, m, n)
    return oriented(
        Problem(
            dtype=dtype,
            m=m,
            n=n,
            k=k,
            batch=batch,
            a=_row_major(batch, m, k),
            b=_row_major(batch, k, n),
            c=out,
            out=out,
            out_dtype=out_dtype or RESULT_DTYPES[dtype][0],
            precision=precision,
        )
    )


def stored_problem(problem: Problem) -> Problem:
    """A reduction's problem as far as the matrix, which another kernel reduces.

    If it is not asked for, it goes to a workspace.
    """
    assert problem.epilogue is not None and problem.reduction is not None
    stages, operands = problem.epilogue.stages, problem.epilogue.stage_operands
    epilogue = Fusion(stages, operands, problem.epilogue.is_transposed) if stages else None
    if problem.reduction.is_stored:
        return replace(problem, epilogue=epilogue)
    out = _aligned_strides(problem)
    return replace(problem, epilogue=epilogue, out=out, in_place=not problem.reads_c)


def sliced_problem(problem: Problem, slices: int) -> Problem:
    """A problem as far as the sums of so many slices of k, in a workspace."""
    return replace(
        problem, slices=slices, epilogue=None, reads_c=False, out=_aligned_strides(problem)
    )


def _aligned_strides(problem: Problem) -> Strides:
    """Of matrices in a workspace, whose rows are aligned."""
    width = MAX_ALIGNMENT // ITEM_SIZES[problem.out_dtype]
    row = -(-problem.n // width) * width
    return Strides(problem.m * row, row, 1)


def define_problem(
    a: Layout,
    b: Layout,
    c: Layout | None,
    out: Layout | None,
    *,
    alpha_is_zero: bool,
    beta_is_zero: bool,
    precision: Any = None,
    has_epilogue: bool = False,
    is_reduced: bool = False,
    reduced_axis: int | None = None,
) -> tuple[Problem, tuple[int, ...]]:
    """Check the operands against each other.

    Args:
        a, b: layouts of the factors.
        c: layout of the addend; None if the call has none.
        out: layout of the array to write; None if that is c, or yet to be allocated.
        alpha_is_zero, beta_is_zero: which operands are never read.
        precision: None, or what is permitted instead of the dtype's own arithmetic.
        has_epilogue: whether int32 sums may become something else.
        is_reduced: whether c is only read, and nothing is allocated for the result.
        reduced_axis: of the caller's result, if that is reduced and not stored.

    Returns:
        The problem, and the shape of the result as the caller sees it.

    Raises:
        DtypeError, PrecisionError, ShapeError, LayoutError, ReadOnlyError, OverlapError,
        DeviceMismatchError, MissingOperandError: the first that applies, with the values and the
        way out.
    """
    present = {"a": a, "b": b}
    if c is not None:
        present["c"] = c
    if out is not None:
        present["out"] = out
    _check_dtypes({name: layout.dtype for name, layout in present.items()}, has_epilogue)
    if precision is not None:
        _check_precision(precision, a.dtype)
    m, n, k, result_shape = _check_shapes(present)
    _check_devices(present)
    target = out or (None if is_reduced else c)
    target_name = "out" if out else "c"
    if target is not None:
        _check_target(target_name, target, result_shape)
    if c is None and not beta_is_zero:
        raise MissingOperandError(
            "gemm: beta is not zero but there is no c to scale; pass c, or leave beta at 0."
        )
    batch = result_shape[0] if len(result_shape) == 3 else 1
    a_strides = _element_strides("a", a)
    b_strides = _element_strides("b", b)
    if target is None:
        out_strides = _row_major(batch, m, n)
    else:
        out_strides = _element_strides(target_name, target)
    c_strides = _element_strides("c", c) if c is not None else out_strides
    # Nothing is rounded to half precision that is not stored.
    new_dtype = RESULT_DTYPES[a.dtype][-1 if is_reduced else 0]
    problem = Problem(
        dtype=a.dtype,
        m=m,
        n=n,
        k=0 if alpha_is_zero else k,
        batch=batch,
        a=a_strides,
        b=b_strides,
        c=c_strides,
        out=out_strides,
        out_dtype=next((given.dtype for given in (target, c) if given), new_dtype),
        a_alignment=a.alignment,
        b_alignment=b.alignment,
        precision=precision,
        reads_c=not beta_is_zero,
        in_place=out is None and not (is_reduced and c),
    )
    if problem.dtype == "float32" and precision == SPLIT and reduced_axis is not None:
        # What multiplies parts reduces rows alone, and nothing lies in memory to the contrary.
        return _exchanged(problem) if reduced_axis == 0 else problem, result_shape
    return oriented(problem), result_shape


def byte_extent(layout: Layout) -> tuple[int, int]:
    """First byte and the byte after the last that a layout touches, relative to its pointer."""
    if 0 in layout.shape:
        return 0, 0
    first, last = offset_range(layout.shape, layout.strides)
    return first, last + ITEM_SIZES[layout.dtype]


def offset_range(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Smallest and largest offset an index reaches, in the unit of the strides; no size is 0."""
    steps = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)


def scalar_dtype(dtype: str) -> str:
    """The dtype of sums, alpha and beta, by the dtype of a and b."""
    return {"float64": "float64", "int8": "int32"}.get(dtype, "float32")


def _check_dtypes(dtypes: dict[str, str], has_epilogue: bool = False) -> None:
    for name, dtype in dtypes.items():
        supported = RESULT_DTYPES if name in ("a", "b") else OPERAND_DTYPES
        if dtype not in supported:
            fitting = "float32" if name in ("a", "b") else RESULT_DTYPES[dtypes["a"]][0]
            raise DtypeError(
                f"gemm: {name} has dtype {dtype}; {', '.join(supported)} in native byte order "
                f"are supported: convert {name} first, for example {name}.astype('{fitting}')."
            )
    a, b = dtypes["a"], dtypes["b"]
    if a != b:
        way_out = "convert a and b to one dtype."
    else:
        allowed = RESULT_DTYPES[a]
        if has_epilogue and a == "int8":
            allowed += DEQUANTISED_DTYPES
        out = dtypes.get("out") or dtypes.get("c")
        if out is None or (out in allowed and dtypes.get("c", out) == out):
            return
        way_out = f"c and out must both be {' or both '.join(allowed)}."
    listed = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
    raise DtypeError(f"gemm: dtypes differ: {listed}; {way_out}")


def _check_precision(precision: Any, dtype: str) -> None:
    is_name = isinstance(precision, str)
    fitting = [kind for kind, names in PRECISIONS.items() if is_name and precision in names]
    if is_name and precision in {f"{SPLIT}{count}" for count in MODULI_COUNTS}:
        fitting = ["float64"]
    if not fitting:
        names = dict.fromkeys(name for names in PRECISIONS.values() for name in names)
        known = " or ".join(map(repr, names))
        raise PrecisionError(f"gemm: precision is {precision!r}; pass {known}, or None.")
    if dtype not in fitting:
        raise PrecisionError(
            f"gemm: precision {precision!r} is for {' and '.join(fitting)} operands, but a and b "
            f"are {dtype}; pass None."
        )


def _check_shapes(operands: dict[str, Layout]) -> tuple[int, int, int, tuple[int, ...]]:
    for name, layout in operands.items():
        if len(layout.shape) not in (2, 3):
            raise ShapeError(
                f"gemm: {name} has {len(layout.shape)} dimensions, shape {layout.shape}; it must "
                "be 2-D (a matrix) or 3-D (a batch of matrices)."
            )
    a, b = operands["a"].shape, operands["b"].shape
    m, k = a[-2:]
    n = b[-1]
    if b[-2] != k:
        raise ShapeError(
            f"gemm: inner dimensions differ: a is {a}, b is {b}; "
            f"a.shape[{len(a) - 1}] must equal b.shape[{len(b) - 2}]."
        )
    result_shape: tuple[int, ...] = (m, n)
    batches = {name: layout.shape[0] for name, layout in operands.items() if len(layout.shape) == 3}
    if batches:
        sizes = {size for size in batches.values() if size != 1} or {1}
        if len(sizes) > 1:
            shapes = ", ".join(f"{name} is {operands[name].shape}" for name in batches)
            raise ShapeError(
                f"gemm: batch sizes differ: {shapes}; they must be equal, or 1 to be broadcast."
            )
        result_shape = (*sizes, m, n)
    for name in ("c", "out"):
        if name in operands and operands[name].shape[-2:] != (m, n):
            raise ShapeError(
                f"gemm: {name} is {operands[name].shape}, but a @ b is {result_shape} "
                f"for a {a} and b {b}; {name} must have that shape."
            )
    return m, n, k, result_shape


def _check_devices(operands: dict[str, Layout]) -> None:
    if len({layout.device for layout in operands.values()}) == 1:
        return
    # Host operands go wherever the others are.
    devices = {name: layout.device for name, layout in operands.items() if layout.device >= 0}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on GPU {device}" for name, device in devices.items())
        raise DeviceMismatchError(
            f"gemm: operands are spread over GPUs: {listed}; move them to one."
        )


def _check_target(name: str, layout: Layout, result_shape: tuple[int, ...]) -> None:
    if layout.shape != result_shape:
        raise ShapeError(
            f"gemm: {name} is {layout.shape}, but the result is {result_shape}; the array that is "
            "written cannot be broadcast."
        )
    if layout.read_only:
        raise ReadOnlyError(f"gemm: {name} is read-only, but the result is written to it.")
    if overlaps_itself(layout):
        raise OverlapError(
            f"gemm: {name} overlaps itself: shape {layout.shape} with strides {layout.strides} "
            "bytes reaches one element by several indices; pass an array of its own."
        )


def overlaps_itself(layout: Layout) -> bool:
    """Whether two different indices reach the same element.

    Exact for one or two dimensions of more than one element: i * s0 == j * s1 has its smallest
    solution at i = s1 / g, j = s0 / g with g = gcd(s0, s1). For three, dimensions must nest
    (each stride beyond the extent of the smaller ones), which refuses a few exotic valid layouts.
    """
    if 0 in layout.shape:
        return False
    if len(layout.shape) == 2:
        (rows, cols), (row, col) = layout.shape, layout.strides
        if 0 < col * cols <= row or 0 < row * rows <= col:
            return False  # rows, or columns, one behind the other
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


def _element_strides(name: str, layout: Layout) -> Strides:
    item_size = ITEM_SIZES[layout.dtype]
    strides = tuple([stride // item_size for stride in layout.strides])
    if tuple([stride * item_size for stride in strides]) != layout.strides:
        raise LayoutError(
            f"gemm: {name} has strides {layout.strides} bytes, which are not multiples of the "
            f"{item_size}-byte {layout.dtype}; copy it to a contiguous array first."
        )
    if layout.alignment < item_size:
        raise LayoutError(
            f"gemm: {name} starts at an address that is not a multiple of the {item_size}-byte "
            f"{layout.dtype}; copy it to an aligned array first."
        )
    return used_strides(layout.shape, strides)


def used_strides(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Strides:
    """Of a matrix or a batch.

    The stride of a dimension of one element is arbitrary in every library. It is 0 here, so that
    a batch of one broadcasts, a single row is aligned, and equal problems compare equal.
    """
    if len(sizes) == 2:  # spelled out: every new shape asks for three of these
        (rows, cols), (row, col) = sizes, strides
        return Strides(0, row if rows > 1 else 0, col if cols > 1 else 0)
    return Strides(*(stride if size > 1 else 0 for size, stride in zip(sizes, strides)))


def _row_major(batch: int, rows: int, cols: int) -> Strides:
    """Without padding."""
    return used_strides((batch, rows, cols), (rows * cols, cols, 1))


def oriented(problem: Problem) -> Problem:
    """Exchange a and b where the result's rows, not its columns, are the contiguous direction."""
    rows_are_contiguous = problem.m > 1 and abs(problem.out.row) < abs(problem.out.col)
    if (problem.n > 1 and not rows_are_contiguous) or problem.m <= 1:
        return problem
    return _exchanged(problem)


def _exchanged(problem: Problem) -> Problem:
    """The transposed product."""
    return replace(
        problem,
        m=problem.n,
        n=problem.m,
        a=problem.b.transposed(),
        b=problem.a.transposed(),
        c=problem.c.transposed(),
        out=problem.out.transposed(),
        a_alignment=problem.b_alignment,
        b_alignment=problem.a_alignment,
        is_transposed=True,
    )


def share_elements(pointer: int, layout: Layout, other_pointer: int, other: Layout) -> bool:
    """Whether two operands have an element in common: exact, also for interleaved slices.

    Decided by `numpy.shares_memory` on arrays that carry the addresses and are never read.
    """
    try:
        return np.shares_memory(
            _address_array(pointer, layout),
            _address_array(other_pointer, other),
            max_work=10**6,  # type: ignore[arg-type]
        )
    except np.exceptions.TooHardError:
        return True


class _AddressArray:
    def __init__(self, pointer: int, layout: Layout) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": layout.shape,
            "strides": layout.strides,
            "typestr": f"|V{ITEM_SIZES[layout.dtype]}",  # NumPy alone has no bfloat16
            "data": (pointer, True),
        }


def _address_array(pointer: int, layout: Layout) -> np.ndarray:
    return np.asarray(_AddressArray(pointer, layout))
