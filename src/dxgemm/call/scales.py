"""Scales of float8 operands: numbers become part of alpha, arrays operands of the epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dxgemm.call.factors import number, real_number
from dxgemm.epilogues import catalogue, operand_scales
from dxgemm.epilogues.chain import BoundEpilogue, bound_epilogue
from dxgemm.errors import (
    ArrayTypeError,
    DtypeError,
    ShapeError,
    UnsupportedProblemError,
    shown,
)
from dxgemm.handwritten.parts.block_scales import BLOCK_K
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.problem.layout import Layout
from dxgemm.runtime.arrays import Library, find_library


class Scaled(NamedTuple):
    """An operand with scales.

    Attributes:
        shape: its shape.
        batches: numbers of matrices that its scales may have, as shapes.
        blocks: rows of a (columns of b) that may share a scale of 128 k.
    """

    shape: tuple[int, ...]
    batches: tuple[tuple[int, ...], ...]
    blocks: tuple[int, ...] = (1, BLOCK_K)


class Scale(NamedTuple):
    """Array of scales of an operand.

    Attributes:
        library, array: the array.
        is_of_b: True for scales of b.
        along: rows of a, or columns of b.
        blocks: blocks of 128 k.
        has_blocks: True for a scale of each row of a (column of b), or of each 128, and of 128 k.
        batch, matrix: sizes and strides, of a matrix those along `along` first.
    """

    library: Library
    array: Any
    is_of_b: bool
    along: int
    blocks: int
    has_blocks: bool
    batch: tuple[tuple[int, int], ...]
    matrix: tuple[tuple[int, int], ...]

    @property
    def is_one(self) -> bool:
        """True for one number in memory."""
        return all(size == 1 for size, _ in (*self.batch, *self.matrix))

    @property
    def is_vector(self) -> bool:
        """True for one number, or a scale of each row of a, or column of b."""
        return self.is_one or tuple(size for size, _ in self.matrix) == (self.along, 1)

    def vector(self) -> Any:
        """View with an element for each row of a (column of b), behind those of the batch."""
        return self._view(*([] if self.is_one else self.batch), (self.along, self._step))

    def repeated(self) -> Any:
        """View of a scale for each row (128 rows if there is one in all) and each block of k."""
        along = -(-self.along // BLOCK_K) if self.is_one else self.along
        matrix = (along, self._step), (self.blocks, 0)
        return self._view(*self.batch, *(matrix[::-1] if self.is_of_b else matrix))

    @property
    def _step(self) -> int:
        return 0 if self.is_one else self.matrix[0][1]

    def _view(self, *dimensions: tuple[int, int]) -> Any:
        shape, strides = zip(*dimensions, strict=True)
        return self.library.view(self.array, (), shape, strides)


def with_scales(
    operands: tuple[Any, Any, Any], alpha: Any, beta: Any, epilogue: Any, inner: Any,
    scales: tuple[Any, Any, Any], scaled: tuple[Scaled, Scaled] | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Alpha and the epilogue of a call with `scale_a`, `scale_b` and `scale_out`, or None for each.

    Args:
        operands: a, b, and out or c.
        alpha, beta, epilogue, inner: as `gemm` takes them.
        scaled: a and b as their scales belong to them; None for operands of `gemm`.

    Raises:
        DtypeError: the operand of a scale is not float8, or a scale is an array of another dtype
            than float32.
        ShapeError: an array of scales fits neither the rows (columns) nor the blocks of its
            operand, or only one of the two has blocks.
        ArrayTypeError: a scale is neither a number nor an array that can be read.
        UnsupportedProblemError: scales of out meet a reduction, or those of blocks one with
            fused=True; scales of a and b an inner function, or c one array of scales.
    """
    a, b, out = operands
    *factors, scale_out = scales
    if scale_out is not None:
        epilogue = _with_scaled_result(out, epilogue, scale_out)
    if all(scale is None for scale in factors):
        return alpha, epilogue
    for name, operand, scale in (("scale_a", a, factors[0]), ("scale_b", b, factors[1])):
        if scale is not None:
            _check_float8(name, f"<{name[-1]}>", operand)
    if any(_dtype(x) not in FLOAT8_KINDS or len(x.shape) not in (2, 3) for x in (a, b)):
        return alpha, epilogue  # the operand is refused later
    if inner is not None:
        raise UnsupportedProblemError(
            f"gemm: scale_a and scale_b are factors of products, and {shown(inner)} is another "
            "function; leave them out."
        )
    arrays: list[Scale | None] = []
    scaled = scaled or _scaled(operands)
    for name, scale in zip(("scale_a", "scale_b"), factors, strict=True):
        is_array = _is_array(scale)
        arrays.append(_scale(name, scale, scaled) if is_array else None)
        if not is_array and scale is not None:
            alpha = number("<alpha>", alpha) * real_number(name, scale)
    of_a, of_b = arrays
    if of_a is None and of_b is None:
        return alpha, epilogue
    if any(scale is not None and not scale.is_vector for scale in arrays):
        return alpha, _with_blocks(of_a, of_b, epilogue)
    if number("<beta>", beta) != 0:  # the epilogue would multiply c too
        if of_a is None or of_b is None:
            raise UnsupportedProblemError(
                "gemm: beta is not 0, so that arrays of scales come in pairs; pass scale_a and "
                "scale_b as arrays, such as of one element, or both as numbers."
            )
        return alpha, _followed_by_blocks(epilogue, of_a.repeated(), of_b.repeated())
    stage = _vector_stage(of_a, of_b)
    return alpha, stage if epilogue is None else stage | bound_epilogue(epilogue)


def with_symmetric_scale(
    a: Any, b: Any, out: Any, alpha: Any, beta: Any, epilogue: Any, scale: Any, transpose: bool
) -> tuple[Any, Any]:
    """`with_scales` of a symmetric product, whose right operand has the left one's scales turned.

    Args:
        a, b, out, alpha, beta, epilogue, transpose: as `gemm_symmetric` takes them.
        scale: scales of a, or of its transpose if that is the left operand; not of blocks.
    """
    if b is not None:
        raise UnsupportedProblemError(
            "gemm_symmetric: scale_a is for a product of one matrix; multiply alpha by a number, "
            "or call gemm."
        )
    _check_float8("scale_a", "<a>", a)
    if _is_array(scale) and number("<beta>", beta) != 0:
        raise UnsupportedProblemError(
            "gemm_symmetric: beta is not 0, so that scale_a must be a number; or call gemm."
        )
    shape, other = tuple(getattr(a, "shape", ())), scale
    if transpose:
        shape = (*shape[:-2], *shape[:-3:-1])
    if _is_array(scale):
        library, layout = _inspected("scale_a", scale)
        sizes, steps = layout.shape, layout.strides
        if len(sizes) > 1:
            sizes, steps = ((*x[:-2], x[-1], x[-2]) for x in (sizes, steps))
            other = library.view(scale, (), sizes, steps)
    batches = ((1,), shape[:1]) if len(shape) == 3 else ()
    scaled = Scaled(shape, batches, ()), Scaled((*shape[:-2], *shape[:-3:-1]), batches, ())
    return with_scales((a, a, out), alpha, beta, epilogue, None, (scale, other, None), scaled)


def with_group_scales(
    operands: tuple[Any, Any, Any], rows: Any, alpha: Any, beta: Any, epilogue: Any,
    scales: tuple[Any, Any, Any],
) -> tuple[Any, Any]:  # fmt: skip
    """`with_scales` of a group by offsets, whose shapes are not checked yet.

    Scales of rows that the group shares out are those of all its rows, in the order of `rows` if
    there are such indices; scales of the other operand may be one matrix for each problem. Groups
    of the inner dimension have no blocks of it.
    """
    a, b = (tuple(getattr(x, "shape", ())) for x in operands[:2])
    sizes = len(a), len(b)
    if {*sizes} not in ({2, 3}, {2}):
        return alpha, epilogue  # refused later
    if len(getattr(rows, "shape", ())) == 1:
        a = (*rows.shape, *a[1:])
    if sizes == (2, 2):
        if any(map(_is_array, scales[:2])) and number("<beta>", beta) != 0:
            raise UnsupportedProblemError(
                "gemm_grouped: beta is not 0, so that scales of groups of the inner dimension must "
                "be numbers."
            )
        scaled = Scaled(a, (), ()), Scaled(b, (), ())
    else:
        scaled_a, scaled_b = (
            Scaled(x, ((1,), x[:1])) if len(x) == 3 else Scaled(x, (), (1,)) for x in (a, b)
        )
        scaled = scaled_a, scaled_b
    return with_scales(operands, alpha, beta, epilogue, None, scales, scaled)


def _is_array(scale: Any) -> bool:
    """True for an array, of whose kind NumPy's numbers are not."""
    try:
        return hasattr(scale, "shape") and not isinstance(scale, np.generic)
    except Exception:  # of a class of the caller's own
        return False


def _dtype(operand: Any) -> str:
    return str(getattr(operand, "dtype", type(operand).__name__)).removeprefix("torch.")


def _check_float8(name: str, what: str, operand: Any) -> None:
    dtype = _dtype(operand)
    if dtype not in FLOAT8_KINDS:
        raise DtypeError(
            f"gemm: {name} is for arrays of {' and '.join(FLOAT8_KINDS)}, but {what} is {dtype}; "
            "multiply alpha by a number, or pass an epilogue."
        )


def _with_scaled_result(out: Any, epilogue: Any, scale: Any) -> BoundEpilogue:
    """The epilogue with a multiplication behind it."""
    _check_float8("scale_out", "<out>", out)
    if _is_array(scale):
        library, layout = _inspected("scale_out", scale)
        if any(size != 1 for size in layout.shape):
            raise ShapeError(f"gemm: scale_out is {layout.shape}; pass one number.")
        columns = library.view(scale, (), tuple(out.shape)[-1:], (0,))
        stage: BoundEpilogue = operand_scales.scale_of_out(columns)
    else:
        stage = catalogue.scale(real_number("scale_out", scale))
    return _followed(epilogue, stage, "scale_out; leave one of them out")


def _followed(epilogue: Any, stage: BoundEpilogue, rest: str, is_read: bool = False) -> Any:
    """An epilogue, or none, with a stage behind its functions.

    A reduction reads what is stored if that is not rounded (`is_read`), and is then unfused.
    """
    if epilogue is None:
        return stage
    chain = bound_epilogue(epilogue)
    reduction = chain.reduction
    if reduction is None:
        return chain | stage
    if not is_read or reduction.fused:
        raise UnsupportedProblemError(f"gemm: {reduction} does not go with {rest}.")
    stages, values = (*chain.stages, *stage.stages), (*chain.values, *stage.values)
    return BoundEpilogue(stages, values, replace(reduction, fused=False))


def _inspected(name: str, array: Any) -> tuple[Library, Layout]:
    """Library and layout of an array of float32."""
    library = find_library(name, array)
    if library is None:
        raise ArrayTypeError(
            f"gemm: {name} is a {type(array).__name__}; pass a number, or an array of CuPy, NumPy "
            "or torch."
        )
    _, key = library.inspect(array)
    library.check(name, array, key)
    layout = library.layout(key)
    if layout.dtype != "float32":
        raise DtypeError(f"gemm: {name} has dtype {layout.dtype}; scales are float32: convert it.")
    return library, layout


def _scaled(operands: tuple[Any, Any, Any]) -> tuple[Scaled, Scaled]:
    """The operands of `gemm`, whose scales may be one matrix for each of a batch."""
    batches = [tuple(x.shape)[:1] for x in operands if len(getattr(x, "shape", ())) == 3]
    batches = [(1,), *batches] if batches else []
    a, b, _ = operands
    return Scaled(tuple(a.shape), (*batches,)), Scaled(tuple(b.shape), (*batches,))


def _scale(name: str, array: Any, scaled: tuple[Scaled, Scaled]) -> Scale:
    library, layout = _inspected(name, array)
    (a, *_), (b, *_) = scaled
    is_of_b = name == "scale_b"
    own, way = scaled[is_of_b], -1 if is_of_b else 1
    along, blocks = (b[-1] if is_of_b else a[-2]), -(-a[-1] // BLOCK_K)
    dimensions = tuple(zip(layout.shape, layout.strides, strict=True))
    matrix = dimensions[-2:][::way] if len(dimensions) > 1 else (*dimensions, (1, 0))
    of_blocks = [(-(-along // block), blocks)[::way] for block in own.blocks]
    has_blocks = layout.shape[-2:] in of_blocks
    scale = Scale(library, array, is_of_b, along, blocks, has_blocks, dimensions[:-2], matrix)
    fits = layout.shape[:-2] in ((), *own.batches)
    if not (scale.is_one or (fits and (scale.is_vector or has_blocks))):
        listed = ", or " + " or ".join(map(str, of_blocks)) + f" for blocks of {BLOCK_K} k"
        raise ShapeError(
            f"gemm: {name} is {layout.shape} for <a> {a} and <b> {b}; pass one number, "
            f"({along},) or {(along, 1)[::way]} for whole "
            f"{'columns' if is_of_b else 'rows'}{listed if of_blocks else ''}."
        )
    return scale


def _vector_stage(of_a: Scale | None, of_b: Scale | None) -> BoundEpilogue:
    """The epilogue that multiplies by the scales of rows and columns."""
    if of_b is None:
        assert of_a is not None
        stage: BoundEpilogue = operand_scales.scale_of_a(of_a.vector())
    elif of_a is None:
        stage = operand_scales.scale_of_b(of_b.vector())
    else:
        stage = operand_scales.scale_of_both(of_a.vector(), of_b.vector())
    return stage


def _with_blocks(of_a: Scale | None, of_b: Scale | None, epilogue: Any) -> BoundEpilogue:
    """The epilogue with scales of blocks as its last stage."""
    for scale, other in ((of_a, "scale_a"), (of_b, "scale_b")):
        if scale is None or not scale.has_blocks:
            raise ShapeError(
                f"gemm: the scales of one operand belong to blocks of {BLOCK_K} k, those of the "
                f"other do not: {other} must have a scale for each block of k, too."
            )
    assert of_a is not None and of_b is not None
    return _followed_by_blocks(epilogue, of_a.array, of_b.array)


def _followed_by_blocks(epilogue: Any, of_a: Any, of_b: Any) -> BoundEpilogue:
    stage = operand_scales.block_scales(of_a, of_b)
    return _followed(epilogue, stage, "scales of blocks; leave out fused=True", is_read=True)
