"""Definition of a `Problem` by the operands' layouts; typed errors name the way out."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from dxgemm.errors import (
    DeviceMismatchError,
    DtypeError,
    LayoutError,
    MissingOperandError,
    PrecisionError,
    ShapeError,
    UnsupportedProblemError,
    shown,
)
from dxgemm.handwritten.parts.operands import FLOAT8, FLOAT8_KINDS
from dxgemm.problem.arguments import check_name, check_size
from dxgemm.problem.dtypes import (
    COMPLEX_PARTS,
    EMULATED,
    EPILOGUE_DTYPES,
    INTEGER_BITS,
    INTEGER_RESULTS,
    MODULI_COUNTS,
    OPERAND_DTYPES,
    PRECISIONS,
    RESULT_DTYPES,
    THREE_PRODUCTS,
    Modulus,
    product_dtype,
    result_dtypes,
)
from dxgemm.problem.layout import (
    Layout,
    Strides,
    refuse_misaligned,
    refuse_unwritable,
    row_major,
    used_strides,
)
from dxgemm.problem.problem import Problem, exchanged, oriented

LAYOUTS = ("row_row", "row_col", "col_row", "col_col")  # orders of a and b


class Result(NamedTuple):
    """The result that an epilogue makes of the product.

    Attributes:
        has_functions: True if functions may turn sums into another dtype.
        is_reduced: True if c is only read, and nothing is allocated for the result.
        reduced_axis: axis of the reduction, if the result is reduced and not stored.
        takes_pairs: True if the result has one column for each pair of columns of the product.
        is_real: True if the result of complex operands has real elements.
        is_rounded: True if what is reduced is rounded to the dtype of a new result.
    """

    has_functions: bool = False
    is_reduced: bool = False
    reduced_axis: int | None = None
    takes_pairs: bool = False
    is_real: bool = False
    is_rounded: bool = False


PLAIN = Result()


def contiguous_problem(
    dtype: str,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    *,
    layout: str = "row_row",
    out_dtype: str | None = None,
    precision: Any = None,
) -> Problem:
    """Problem of 16-byte aligned operands without padding and a row-major result, with beta == 0.

    Args:
        dtype: dtype of a and b.
        m, n, k, batch: sizes.
        layout: one of `LAYOUTS`.
        out_dtype: dtype of c and out; None for the dtype that `gemm` would allocate.
        precision: as `gemm` takes it, or a `Modulus`.

    Raises:
        DtypeError, PrecisionError: under the same conditions as in `gemm`.
        LayoutError: the layout is unknown.
        ShapeError: a size is no integer, or negative.
    """
    check_name("layout", layout, LAYOUTS, LayoutError)
    known = dict.fromkeys((*RESULT_DTYPES, *FLOAT8, *INTEGER_RESULTS, *COMPLEX_PARTS))
    check_name("dtype", dtype, tuple(known), DtypeError)
    if out_dtype is not None:
        allowed = dict.fromkeys((*result_dtypes(dtype), *INTEGER_RESULTS.get(dtype, ())))
        check_name("out_dtype", out_dtype, tuple(allowed), DtypeError)
    sizes = {"m": m, "n": n, "k": k, "batch": batch}
    m, n, k, batch = (check_size(name, size) for name, size in sizes.items())
    arithmetic = _arithmetic(precision, dtype)
    out = row_major(batch, m, n)
    a_order, b_order = layout.split("_")
    return oriented(
        Problem(
            dtype=dtype,
            m=m,
            n=n,
            k=k,
            batch=batch,
            a=row_major(batch, m, k) if a_order == "row" else row_major(batch, k, m).transposed(),
            b=row_major(batch, k, n) if b_order == "row" else row_major(batch, n, k).transposed(),
            c=out,
            out=out,
            out_dtype=out_dtype or result_dtypes(dtype)[0],
            **arithmetic,
        )
    )


def define_problem(
    a: Layout,
    b: Layout,
    c: Layout | None,
    out: Layout | None,
    *,
    alpha_is_zero: bool,
    beta_is_zero: bool,
    precision: Any = None,
    result: Result = PLAIN,
    takes_complex: bool = False,
) -> tuple[Problem, tuple[int, ...]]:
    """Check the operands against each other, and define their problem.

    Args:
        a, b: layouts of the factors.
        c: layout of the addend; None if the call has none.
        out: layout of the array to write; None if it is c, or yet to be allocated.
        alpha_is_zero: True if a and b are never read.
        beta_is_zero: True if c is never read.
        precision: arithmetic that is permitted instead of the dtype's own, or a `Modulus`; None for
            no other.
        result: what the epilogue makes of the product.
        takes_complex: True if complex operands are allowed; see `real_form`.

    Returns:
        The problem, and the shape of the result as the caller sees it.

    Raises:
        DtypeError, PrecisionError, ShapeError, LayoutError, ReadOnlyError, OverlapError,
        DeviceMismatchError, MissingOperandError, UnsupportedProblemError: the first that applies,
        with the values and the way out.
    """
    named = {"a": a, "b": b, "c": c, "out": out}
    present = {name: layout for name, layout in named.items() if layout is not None}
    has_functions, is_reduced, reduced_axis, takes_pairs, is_real, is_rounded = result
    is_real = is_real and a.dtype in COMPLEX_PARTS
    dtypes = tuple([(name, layout.dtype) for name, layout in present.items()])
    if is_real:
        dtype = _check_real_result(dtypes, is_reduced)
    else:
        dtype = _check_dtypes(dtypes, has_functions, takes_complex)
    arithmetic = _arithmetic(precision, a.dtype)
    m, n, k, result_shape = _check_shapes(present, takes_pairs)
    _check_devices(present)
    target = out or (None if is_reduced else c)
    target_name = "out" if out else "c"
    if target is not None:
        if takes_pairs and c is not None and target is c:
            _check_pairs_target(c, result_shape)
        _check_target(target_name, target, result_shape)
    if c is None and not beta_is_zero:
        raise MissingOperandError(
            "gemm: <beta> is not zero but there is no <c> to scale; pass <c>, or leave <beta> at 0."
        )
    given = next((layout.dtype for layout in (target, c) if layout), "")
    if given in FLOAT8_KINDS and not beta_is_zero:
        raise UnsupportedProblemError(
            f"gemm: a c of {given} is not added to float32 sums; leave beta at 0."
        )
    batch = result_shape[0] if len(result_shape) == 3 else 1
    a_strides = _element_strides("a", a)
    b_strides = _element_strides("b", b)
    if target is None:
        out_strides = row_major(batch, m, result_shape[-1])
    else:
        out_strides = _element_strides(target_name, target)
    c_strides = _element_strides("c", c) if c is not None else out_strides
    # A matrix that is reduced and not stored is not rounded to half precision.
    is_unrounded = is_reduced and not is_rounded and dtype not in INTEGER_RESULTS
    new_dtype = result_dtypes(dtype)[-1 if is_unrounded else 0]
    problem = Problem(
        dtype=dtype,
        m=m,
        n=n,
        k=0 if alpha_is_zero else k,
        batch=batch,
        a=a_strides,
        b=b_strides,
        c=c_strides,
        out=out_strides,
        out_dtype=COMPLEX_PARTS[a.dtype] if is_real else given or new_dtype,
        a_alignment=a.alignment,
        b_alignment=b.alignment,
        **arithmetic,
        reads_c=not beta_is_zero,
        in_place=out is None and not (is_reduced and c),
    )
    if problem.dtype == "float32" and precision == EMULATED and reduced_axis is not None:
        # Emulated float32 fuses reductions of rows only. The matrix is not stored, so that a
        # reduction of columns can transpose the problem freely.
        return exchanged(problem) if reduced_axis == 0 else problem, result_shape
    if takes_pairs:
        return problem, result_shape  # exchanged, pairs would be of rows
    return oriented(problem), result_shape


@cache
def _check_dtypes(
    named: tuple[tuple[str, str], ...], has_functions: bool = False, takes_complex: bool = False
) -> str:
    """Check the operands' dtypes, by name, against each other; returns that of the product."""
    dtypes = dict(named)
    for name, dtype in named:
        supported = OPERAND_DTYPES
        if takes_complex:
            supported += (*COMPLEX_PARTS,)
        if dtype not in supported:
            fitting = "float32" if name in ("a", "b") else result_dtypes(dtypes["a"])[0]
            raise DtypeError(
                f"gemm: <{name}> has dtype {dtype}; {', '.join(supported)} in native byte order "
                f"are supported: convert <{name}> first, for example <{name}>.astype('{fitting}')."
            )
    product = product_dtype(dtypes["a"], dtypes["b"])
    if product is None:
        way_out = "convert <a> and <b> to one dtype."
    else:
        allowed = result_dtypes(product)
        if has_functions:
            allowed = allowed[: 1 if product in INTEGER_RESULTS else None]
            allowed += EPILOGUE_DTYPES.get(product, ())
        else:
            allowed = INTEGER_RESULTS.get(product, allowed)
        if product in FLOAT8:
            allowed += (*FLOAT8_KINDS,)
        out = dtypes.get("out") or dtypes.get("c")
        if out is None or (out in allowed and dtypes.get("c", out) == out):
            return product
        written = [f"<{name}>" for name in ("c", "out") if name in dtypes]
        both = " both" if len(written) > 1 else ""
        listed = f" or{both} ".join(allowed)
        way_out = f"{' and '.join(written)} must{both} be {listed}."
    listed = ", ".join(f"<{name}> is {dtype}" for name, dtype in dtypes.items())
    raise DtypeError(f"gemm: dtypes differ: {listed}; {way_out}")


def _check_real_result(named: tuple[tuple[str, str], ...], is_reduced: bool) -> str:
    """`_check_dtypes` of a call whose epilogue makes real numbers of complex ones."""
    dtypes = dict(named)
    out = dtypes.pop("out", None)
    product = _check_dtypes(tuple(dtypes.items()), takes_complex=True)
    real = COMPLEX_PARTS[dtypes["a"]]
    if out not in (None, real):
        raise DtypeError(
            f"gemm: <out> is {out}, but what the epilogue makes of {dtypes['a']} is {real}; pass "
            f"an out of {real}."
        )
    if "c" in dtypes and out is None and not is_reduced:
        raise DtypeError(
            f"gemm: <c> is {dtypes['c']}, but the result is {real} and cannot replace it; pass "
            "out=, and <c> is only read."
        )
    return product


def _arithmetic(precision: Any, dtype: str) -> dict[str, Any]:
    """Precision and modulus of a problem, of what a call names as one."""
    if precision is not None:
        check_precision(precision, dtype)
    if isinstance(precision, Modulus):
        return {"modulus": precision.number}
    return {"precision": precision}


def check_precision(precision: Any, dtype: str) -> None:
    """Refuse a `precision=` that is unknown, or not for operands of a dtype."""
    is_name = isinstance(precision, str)
    if isinstance(precision, Modulus):
        if dtype not in INTEGER_BITS:
            raise DtypeError(
                f"gemm: modulus= is for integers of 8 to 64 bits, but <a> and <b> are {dtype}; "
                "convert them, or view bool as uint8."
            )
        return
    fitting = [kind for kind, names in PRECISIONS.items() if is_name and precision in names]
    if is_name and precision in {f"{EMULATED}{count}" for count in MODULI_COUNTS}:
        fitting = ["float64"]
    if is_name and precision == THREE_PRODUCTS:
        fitting = [*COMPLEX_PARTS]
    if not fitting:
        names = dict.fromkeys(name for names in PRECISIONS.values() for name in names)
        known = " or ".join(map(repr, (*names, THREE_PRODUCTS)))
        raise PrecisionError(f"gemm: precision is {shown(precision)}; pass {known}, or None.")
    if not {dtype, COMPLEX_PARTS.get(dtype, dtype)} & {*fitting}:
        raise PrecisionError(
            f"gemm: precision {precision!r} is for {' and '.join(fitting)} operands, but <a> and "
            f"<b> are {dtype}; pass None."
        )


def _check_shapes(
    operands: dict[str, Layout], takes_pairs: bool = False
) -> tuple[int, int, int, tuple[int, ...]]:
    batches = {}
    for name, layout in operands.items():
        if len(layout.shape) == 3:
            batches[name] = layout.shape[0]
        elif len(layout.shape) != 2:
            raise ShapeError(
                f"gemm: <{name}> has {len(layout.shape)} dimensions, shape {layout.shape}; it must "
                "be 2-D (a matrix) or 3-D (a batch of matrices)."
            )
    a, b = operands["a"].shape, operands["b"].shape
    m, k = a[-2:]
    n = b[-1]
    if b[-2] != k:
        raise ShapeError(
            f"gemm: inner dimensions differ: <a> is {a}, <b> is {b}; "
            f"<a>.shape[{len(a) - 1}] must equal <b>.shape[{len(b) - 2}]."
        )
    if takes_pairs and n % 2:
        raise ShapeError(
            f"gemm: <a> @ <b> has {n} columns for <a> {a} and <b> {b}, but the epilogue takes them "
            "in pairs; <b> must have an even number of columns."
        )
    product_shape: tuple[int, ...] = (m, n)
    if batches:
        sizes = {size for size in batches.values() if size != 1} or {1}
        if len(sizes) > 1:
            shapes = ", ".join(f"<{name}> is {operands[name].shape}" for name in batches)
            raise ShapeError(
                f"gemm: batch sizes differ: {shapes}; they must be equal, or 1 to be broadcast."
            )
        product_shape = (*sizes, m, n)
    result_shape = (*product_shape[:-1], n // 2) if takes_pairs else product_shape
    for name, shape in (("c", product_shape), ("out", result_shape)):
        if name in operands and operands[name].shape[-2:] != shape[-2:]:
            what = "<a> @ <b>" if shape == product_shape else "the result of an epilogue over pairs"
            raise ShapeError(
                f"gemm: <{name}> is {operands[name].shape}, but {what} is {shape} "
                f"for <a> {a} and <b> {b}; <{name}> must have that shape."
            )
    return m, n, k, result_shape


def _check_devices(operands: dict[str, Layout]) -> None:
    if len({layout.device for layout in operands.values()}) == 1:
        return
    # Host operands go wherever the others are.
    devices = {name: layout.device for name, layout in operands.items() if layout.device >= 0}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"<{name}> on GPU {device}" for name, device in devices.items())
        raise DeviceMismatchError(
            f"gemm: operands are spread over GPUs: {listed}; move them to one."
        )


def _check_pairs_target(c: Layout, result_shape: tuple[int, ...]) -> None:
    if c.shape[-1] != result_shape[-1]:
        raise ShapeError(
            f"gemm: <c> is {c.shape}, but the result, an element for each pair of columns, is "
            f"{result_shape} and cannot replace it; pass out=, and c is only read."
        )


def _check_target(name: str, layout: Layout, result_shape: tuple[int, ...]) -> None:
    if layout.shape != result_shape:
        raise ShapeError(
            f"gemm: <{name}> is {layout.shape}, but the result is {result_shape}; the array that "
            "is written cannot be broadcast."
        )
    refuse_unwritable(f"gemm: <{name}>", layout)


def _element_strides(name: str, layout: Layout) -> Strides:
    refuse_misaligned(f"gemm: <{name}>", layout)
    return used_strides(layout.shape, layout.steps)
