"""Epilogue of a call: its arrays join the call's operands, its operands the kernel's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dxgemm.choice.implementation import is_before
from dxgemm.epilogues.block_mask import find_block, masked
from dxgemm.epilogues.chain import BoundEpilogue, bound_epilogue
from dxgemm.epilogues.check import check_overflow
from dxgemm.epilogues.function import refreshed
from dxgemm.epilogues.kinds import Parameter
from dxgemm.epilogues.reduction import INTEGERS, Reduction
from dxgemm.errors import (
    EpilogueError,
    MissingOperandError,
    ScalarError,
    UnsupportedProblemError,
    shown,
)
from dxgemm.handwritten.parts.block_scales import BLOCK_K
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.handwritten.parts.reduction import FEW_VALUES
from dxgemm.problem.dtypes import COMPLEX_PARTS, EMULATED, PRODUCT_BITS, result_dtypes
from dxgemm.problem.fusion import FusedOperand, FusedReduction, Fusion
from dxgemm.problem.layout import ALIGNMENTS, MAX_ALIGNMENT, Layout, Strides
from dxgemm.problem.problem import Problem, changed
from dxgemm.runtime.arrays import Library, libraries
from dxgemm.runtime.exports import launch_stream, taken

INNER_CAPABILITY = 80  # least compute capability, times ten, with a minimum that keeps NaN

# Of each operand its place and its strides in elements, in the kernel's orientation.
OperandStrides = tuple[tuple[int, tuple[int, ...]], ...]


def with_mask(epilogue: Any, mask: Any) -> BoundEpilogue:
    """The epilogue of a call that has a mask: it becomes the last stage.

    Raises:
        UnsupportedProblemError: the epilogue is or has a reduction.
    """
    if epilogue is not None and bound_epilogue(epilogue).reduction is not None:
        raise _mask_refusal("a reduction")
    return masked(epilogue, mask)


def with_inner(inner: Any, epilogue: Any) -> BoundEpilogue:
    """The epilogue of a call that has an inner function: it becomes the first stage.

    Raises:
        EpilogueError: inner is no inner function, or a variable that it reads has changed.
    """
    if not getattr(type(inner), "is_inner", False):
        raise EpilogueError(
            f"gemm: inner is {shown(inner)} ({type(inner).__name__}); pass one of dxgemm.inners, "
            "or a function decorated with @dxgemm.inner."
        )
    chain: BoundEpilogue = refreshed(inner).chain  # type: ignore[attr-defined]
    return chain if epilogue is None else chain | bound_epilogue(epilogue)


def check_inner_factors(inner: Any, alpha: Any, beta: Any) -> None:
    """Refuse to scale what is not a sum: c joins totals as values do, or begins them."""
    if inner.parts > 1 and (alpha, beta) != (1, int(inner.begins_with_c)):
        takes = "begin with c: pass c and beta=1" if inner.begins_with_c else "no c joins"
        raise ScalarError(
            f"gemm: alpha is {alpha} and beta is {beta}, but {inner.name} has totals of "
            f"{inner.parts} numbers, which {takes}. Leave alpha at 1, and apply the rest by an "
            "epilogue."
        )
    if inner.takes_factors or (alpha == 1 and beta in (0, 1)):
        return
    raise ScalarError(
        f"gemm: alpha is {alpha} and beta is {beta}, but {inner.name} does not sum: scaling does "
        "not go with its way of adding. Leave alpha at 1; pass beta=1 to add c as the function "
        "adds values, or scale by an epilogue."
    )


def refuse_with_inner(
    inner: Any, dtype: str, precision: Any, triangle: str, adds_transpose: bool, arch: str
) -> None:
    """Refuse what an inner function does not go with.

    Args:
        triangle, adds_transpose: as `Asked` has them.
        arch: architecture of the GPU.
    """
    reason, is_complex = "", dtype in COMPLEX_PARTS
    if is_complex and not inner.takes_factors:
        reason = f'totals of {dtype}, which has no order, are sums; pass add="sum"'
    elif is_complex and triangle not in ("", "either"):
        reason = f"a Hermitian result of {dtype} is one of products; call gemm(a, a.T)"
    elif precision is not None:
        reason = f"precision={precision!r} is one of products; leave it out"
    elif dtype in PRODUCT_BITS and not inner.begins_whole:
        reason = f"its identity is {inner.start}, but totals are integers; pass one that they hold"
    elif adds_transpose:
        reason = "no transpose is added to its result; leave b out"
    elif triangle not in ("", "either") and not inner.is_symmetric:
        reason = (
            "gemm_symmetric computes one triangle; if function(x, y) is function(y, x), pass "
            "symmetric=True to dxgemm.inner, and else call gemm(a, a.T)"
        )
    elif is_before(arch, INNER_CAPABILITY):
        reason = f"it needs compute capability {INNER_CAPABILITY / 10} or later, not {arch}"
    if reason:
        raise UnsupportedProblemError(f"gemm: {inner.name}: {reason}.")


def refuse_with_mask(problem: Problem, shape: BoundEpilogue, is_batch_invariant: bool) -> None:
    """Refuse what a mask does not go with, but for a reduction."""
    if is_batch_invariant:
        raise _mask_refusal("batch_invariant=True")
    if (problem.precision or "").startswith(EMULATED):
        raise _mask_refusal(f"precision={problem.precision!r}")
    if shape.takes_pairs:
        raise _mask_refusal("an epilogue that takes pairs of columns")
    if any(operand.kind == "blocks" for operand in shape.operands):
        raise _mask_refusal("scales of blocks")


def _mask_refusal(what: str) -> UnsupportedProblemError:
    return UnsupportedProblemError(f"gemm: mask= does not go with {what}; leave one of them out.")


def takes_flattened_rows(shape: BoundEpilogue, layouts: Mapping[str, Layout], rows: int) -> bool:
    """True if an epilogue does the same to a batch and to one matrix of all its rows.

    Args:
        shape: the epilogue without its operands.
        layouts: layouts of its arrays, by their labels; all fit the result.
        rows: rows of a matrix.
    """
    if shape.reduction is not None or any(stage.uses_row for stage in shape.stages):
        return False
    if any(operand.kind == "blocks" for operand in shape.operands):
        return False
    arrays = ((operand, label) for operand, label in zip(shape.operands, shape.labels) if label)
    return all(_steps(operand.kind, layouts[label]).flattened(rows) for operand, label in arrays)


def fuse(
    problem: Problem,
    shape: BoundEpilogue,
    layouts: Mapping[str, Layout],
    flattened_rows: int | None = None,
) -> tuple[Problem, OperandStrides]:
    """Add an epilogue to a problem.

    Args:
        problem: the problem without the epilogue.
        shape: the epilogue without its operands, see `BoundEpilogue.shape`.
        layouts: layouts of the epilogue's arrays, by their labels; all fit the result. If there is
            one of "out", a matrix that is reduced is stored too.
        flattened_rows: rows of a matrix of the caller's batch, of which the problem has all; None
            if the problem has the batch. See `takes_flattened_rows`.

    Returns:
        The problem, and the strides of each operand. They are () for numbers, and for the results
        of a reduction, which follow the operands.
    """
    is_added = problem.c_dtype in result_dtypes(problem.dtype)
    if problem.reads_c and not is_added:
        raise UnsupportedProblemError(
            f"gemm: a c of {problem.out_dtype} is not added to {problem.scalar_dtype} sums; leave "
            "beta at 0."
        )
    is_byte = problem.out_dtype == "int8" or problem.out_dtype in FLOAT8_KINDS
    if shape.reduction is not None and "out" in layouts and is_byte:
        raise UnsupportedProblemError(
            f"gemm: {shape.reduction.name} does not reduce what is stored as "
            f"{problem.out_dtype}; pass an out of "
            f"{result_dtypes(problem.dtype)[0]}, or no out."
        )
    number_dtype = "float64" if problem.scalar_dtype == "float64" else "float32"
    operands: list[FusedOperand] = []
    strides: list[tuple[int, ...]] = []
    for operand, label in zip(shape.operands, shape.labels):
        if label is None:
            dtype = "int64" if operand.kind == "integer" else number_dtype
            operands.append(FusedOperand("number", dtype))
            strides.append(())
            continue
        layout = layouts[label]
        steps = _steps(operand.kind, layout)
        if flattened_rows is not None:
            steps = steps.flattened(flattened_rows) or steps
        if problem.is_transposed:
            steps = steps.transposed()
        if operand.kind == "mask":
            rows, cols = problem.m, problem.n
            if problem.is_transposed:
                rows, cols = cols, rows
            block = find_block(layout.shape, flattened_rows or rows, cols) or 0
            operands.append(FusedOperand("mask", "uint8", block=block))
            strides.append(steps)
            continue
        if operand.kind == "blocks":
            blocks, steps = _block_scales(operand.name, layout, problem)
            operands.append(blocks)
            strides.append(steps)
            continue
        kind = "output" if operand.kind == "output" else "array"
        access = _access(kind, layout, steps)
        operands.append(FusedOperand(kind, layout.dtype, access, steps.row != 0))
        strides.append(steps)
    strides += [()] * len(shape.result_labels)
    stages = shape.stages[shape.inner is not None :]
    fusion = Fusion(stages, tuple(operands), problem.is_transposed, inner=shape.inner)
    if shape.reduction is None:
        return changed(problem, epilogue=fusion), tuple(enumerate(strides))
    reduction = _fused_reduction(shape.reduction, problem, "out" in layouts)
    fusion = replace(fusion, operands=(*operands, *reduction.buffers), reduction=reduction)
    must_fuse = shape.reduction.fused
    if must_fuse is None and reduction.count > FEW_VALUES and reduction.axis != 0:
        must_fuse = False  # a kernel of its own selects them faster
    problem = changed(problem, epilogue=fusion, must_fuse=must_fuse)
    return problem, tuple(enumerate(strides))


def _block_scales(name: str, layout: Layout, problem: Problem) -> tuple[FusedOperand, Strides]:
    """Scales of blocks of a or b, and their strides: of the batch, along m or n, along k."""
    is_of_rows = (name == "scale_a") is not problem.is_transposed
    along = problem.m if is_of_rows else problem.n
    batch = layout.steps[0] if len(layout.shape) > 2 and layout.shape[0] > 1 else 0
    steps = layout.steps[-2:]
    extent, _ = layout.shape[-2:] if name == "scale_a" else layout.shape[:-3:-1]
    block = 1 if extent == along else BLOCK_K
    steps = steps if name == "scale_a" else steps[::-1]
    return FusedOperand("blocks", "float32", block=block), Strides(batch, *steps)


def _fused_reduction(reduction: Reduction, problem: Problem, is_stored: bool) -> FusedReduction:
    axis = reduction.axis
    if axis is not None and problem.is_transposed:
        axis = 1 - axis
    return FusedReduction(
        reduction.kind,
        axis,
        reduction.partial_dtypes(problem.out_dtype),
        reduction.partial_count,
        reduction.nan_first,
        reduction.of_magnitudes,
        is_stored,
    )


def _steps(kind: str, layout: Layout) -> Strides:
    """Strides of an array in elements; 0 along a dimension in which it is broadcast."""
    steps = [step if size > 1 else 0 for size, step in zip(layout.shape, layout.steps, strict=True)]
    own = 1 if kind in ("row", "column") else 2  # dimensions of it without a batch
    batch = steps.pop(0) if len(steps) > own else 0
    if kind == "row":
        return Strides(batch, 0, steps[0])
    if kind == "column":
        return Strides(batch, steps[0], 0)
    return Strides(batch, *steps)


def _access(kind: str, layout: Layout, steps: Strides) -> str:
    """Access to an array, see `FusedOperand.access`."""
    if steps.col == 0 and kind == "array":
        return "same"
    item_size = layout.item_size
    if item_size == 1 or layout.dtype in COMPLEX_PARTS:
        return "element"  # there are no vectors of bytes, nor of pairs
    is_aligned = (steps.batch | steps.row) * item_size % MAX_ALIGNMENT == 0
    if steps.col == 1 and is_aligned and layout.alignment == MAX_ALIGNMENT:
        return "vector"
    return "element"


def refuse_missing_out(epilogue: BoundEpilogue, dtype: str) -> None:
    """Refuse functions of integer products without an array whose dtype says what to store."""
    if epilogue.has_functions and dtype in PRODUCT_BITS:
        raise MissingOperandError(
            f"gemm: what an epilogue makes of {dtype} products may be int32, int8, float32, "
            "float16 or bfloat16; pass out, whose dtype says what to store."
        )


def refuse_integers(problem: Problem, shape: BoundEpilogue) -> None:
    """Refuse an epilogue of integers whose sums are not int32, but for a reduction alone.

    Raises:
        UnsupportedProblemError: the operands are bool, or have 32 or 64 bits, or there is a
            modulus; and there are functions, a mask, or results that are not reduced. An inner
            function takes int32 and int64, with a mask at most, and int32 with its `finish` or a
            reduction too. Or what is reduced is bool or unsigned.
    """
    is_stored_as_is, is_reduced = not shape.has_functions, shape.reduction is not None
    if is_reduced and problem.is_integer and is_stored_as_is and problem.out_dtype not in INTEGERS:
        raise UnsupportedProblemError(
            f"gemm: {shape.reduction} is of {' and '.join(INTEGERS)}, not {problem.out_dtype}; "
            "reduce the result in a second step."
        )
    is_alone = shape.inner and not problem.modulus
    finished = len(shape.inner.chain.stages) if is_alone else 0
    is_wide = problem.dtype == "int64" and is_stored_as_is and not is_reduced
    is_whole = problem.dtype == "int32" and len(shape.stages) - shape.is_masked <= finished
    if is_alone and (is_whole or is_wide):
        return
    if PRODUCT_BITS.get(problem.dtype, 8) in (8, 16) and not problem.modulus:
        return
    if shape.stages or not is_reduced:
        what = "not a modulus" if problem.modulus else f"not {problem.dtype}"
        raise UnsupportedProblemError(
            "gemm: epilogues, masks and inner functions take integers of 8 and 16 bits, whose sums "
            f"are int32, {what}; apply it in a second step. An inner function alone takes int32 "
            "and int64 too."
        )
    if shape.reduction is not None and shape.reduction.fused:
        raise UnsupportedProblemError(
            f"gemm: {shape.reduction} of {problem.dtype} is made of the stored result; leave out "
            "fused=True."
        )


def inspect_epilogue(
    epilogue: Any, stream: int | None, *anchors: Any
) -> tuple[list[Any], tuple[Any, ...], BoundEpilogue]:
    """Inspect the arrays of an epilogue; this runs on every call that has one.

    Args:
        epilogue: the caller's.
        stream, anchors: as `launch_stream` takes them.

    Returns:
        values: the number or address of each operand, then the address of each array for a result.
        key: part of the key of the call's route: `BoundEpilogue.shape`, and library, layout and
            alignment of each array.
        bound: the epilogue, with exports in the place of objects of other libraries.
    """
    bound = epilogue if type(epilogue) is BoundEpilogue else bound_epilogue(epilogue)
    shape = bound.shape
    values = [*bound.values]
    if bound.reduction is not None:
        values += bound.reduction.out
    key: tuple[Any, ...] = (shape,)
    for place in shape.array_places:
        array = values[place]
        library = libraries.get(type(array))
        if library is None:
            name, stream = str(shape.labels[place]), launch_stream(stream, *anchors)
            array, library = taken(name, array, stream)
            bound = bound.with_array(place, array)
        pointer, layout_key = library.inspect(array)
        values[place] = pointer
        key += library, layout_key, ALIGNMENTS[pointer & 15]
    return values, key, bound


def check_epilogue_keys(bound: BoundEpilogue, key: tuple[Any, ...]) -> None:
    """Check the arrays of an epilogue whose key by `inspect_epilogue` is new."""
    shape, passed = bound.shape, bound.passed
    for place, library, layout_key in zip(shape.array_places, key[1::3], key[2::3]):
        library.check(str(shape.labels[place]), passed[place], layout_key)


def check_numbers(
    numbers: Sequence[tuple[int, Parameter]], values: Sequence[Any], sums: str
) -> None:
    """Check the `numbers` of a chain among the values of `inspect_epilogue`."""
    for place, operand in numbers:
        check_overflow(operand, values[place], sums)


class CallEpilogue:
    """Epilogue of one call, for all that is more than a launch on the arrays as they are.

    Attributes:
        bound: the epilogue with its operands.
        shape: the epilogue without its operands, see `BoundEpilogue.shape`.
        values: as `inspect_epilogue` returns them; the arrays of `made` follow.
        made: new arrays for the results of a reduction, if none were passed.
    """

    __slots__ = ("bound", "made", "shape", "values")

    def __init__(self, epilogue: Any, values: list[Any]) -> None:
        self.bound, self.values = bound_epilogue(epilogue), values
        self.shape = self.bound.shape
        self.made: list[Any] = []

    @property
    def arrays(self) -> dict[str, Any]:
        """Arrays of all operands and results, by their labels."""
        named = zip(self.shape.labels, (*self.bound.passed, *self.made))
        return {label: array for label, array in named if label is not None}

    @property
    def pointers(self) -> dict[str, int]:
        """Addresses among `values`, by the labels of their arrays."""
        named = zip(self.shape.labels, self.values)
        return {label: value for label, value in named if label is not None}

    def moved(self, pointers: Mapping[str, int]) -> list[Any]:
        """`values` with other addresses, given by label."""
        named = zip(self.shape.labels, self.values)
        return [value if label is None else pointers[label] for label, value in named]

    def results(self, expected: Mapping[str, tuple[Any, str]], library: Library, like: Any) -> Any:
        """Return the results of a reduction: the arrays that were passed, or new ones.

        Args:
            expected: shape and dtype of each array, by label.
            library: library that allocates new arrays.
            like: array on the device where they are allocated.
        """
        reduction = self.bound.reduction
        assert reduction is not None
        if not reduction.out:
            self.made = [library.empty(shape, dtype, like) for shape, dtype in expected.values()]
            for array in self.made:
                pointer, key = library.inspect(array)
                library.check("a new result", array, key)
                self.values.append(pointer)
        return reduction.packed(reduction.out or self.made)


def kernel_operands(values: Sequence[Any], strides: OperandStrides) -> tuple[Any, ...]:
    """Epilogue arguments of a kernel: each of `values`, then its strides by `fuse`."""
    operands: list[Any] = []
    for place, steps in strides:
        operands.append(values[place])
        operands += steps
    return tuple(operands)
