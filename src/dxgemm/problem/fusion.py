"""Epilogues as kernels are compiled for them: their functions, and the layouts of operands."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

# Parameters of a kernel by the kind of an operand, as `struct` formats: an address and the strides
# in elements of an array, address and elements of a buffer, or a number.
ARRAY_FORMAT = "Pqqq"
BUFFER_FORMAT = "Pq"


@dataclass(frozen=True, slots=True)
class FusedReduction:
    """Reduction of a kernel's result, which may be stored besides.

    Attributes:
        kind: "sum", "squares" (their sum), "exponentials" (the logarithm of their sum), "smallest",
            "largest" or "quantised" (elements of float8 and scales, for the whole matrix).
        axis: 1 for one value per row of the kernel's result, 0 for one per column, None for one
            per matrix.
        partials: dtypes of partial results: of the values, and of the indices if there are any.
        count: number of values of a partial result: of smallest or largest values that are found,
            best first; of "exponentials" the maximum and the sum relative to it. Of "quantised",
            columns of a row that share a scale; 0 for all.
        nan_first: True if NaN comes before all other values, False if after them.
        of_magnitudes: True if absolute values are compared.
        is_stored: True if the matrix is written too.
    """

    kind: str
    axis: int | None
    partials: tuple[str, ...]
    count: int = 1
    nan_first: bool = True
    of_magnitudes: bool = False
    is_stored: bool = False

    @property
    def has_indices(self) -> bool:
        """True if the reduction finds the indices of the values."""
        return len(self.partials) > 1

    @property
    def buffers(self) -> tuple[FusedOperand, ...]:
        """Epilogue operands for the partial results: one buffer for each dtype."""
        return tuple(FusedOperand("buffer", dtype) for dtype in self.partials)


@dataclass(frozen=True, slots=True)
class FusedOperand:
    """Operand of an epilogue, as a kernel reads or writes it.

    Attributes:
        kind: "number", "array", "output", "mask", "blocks" (scales of blocks of a or b), or
            "buffer", which is passed as an address and a size.
        dtype: dtype of the elements; "float32", "float64" or "int64" for a number.
        access: access to an array along a row of the result: "vector" if neighbours can be accessed
            16 bytes at a time, "same" if all are one element, else "element".
        has_rows: True if rows of the result have different elements of the array.
        block: rows and columns of a block of a mask, or rows of a (columns of b) that share a scale
            of 128 k; 0 for any other operand.
    """

    kind: str
    dtype: str
    access: str = "element"
    has_rows: bool = True
    block: int = 0

    @property
    def format(self) -> str:
        """Format of the operand's kernel parameters, for `struct`."""
        numbers = {"float32": "f", "float64": "d", "int64": "q"}
        if self.kind == "number":
            return numbers[self.dtype]
        return BUFFER_FORMAT if self.kind == "buffer" else ARRAY_FORMAT


@dataclass(frozen=True, slots=True)
class Fusion:
    """An epilogue as part of a kernel's identity.

    Attributes:
        stages: the epilogues (`dxgemm.epilogues.Epilogue`), applied from left to right.
        operands: operands of all stages, for each stage first its parameters, then its outputs; the
            buffers of the reduction follow.
        is_transposed: True if the kernel's rows are the caller's columns.
        reduction: reduction at the end of the chain; None without one.
        inner: function in the place of the multiply-add (`dxgemm.epilogues.Inner`); None for
            the product's own.
    """

    stages: tuple[Any, ...]
    operands: tuple[FusedOperand, ...]
    is_transposed: bool = False
    reduction: FusedReduction | None = None
    inner: Any = None

    @property
    def stage_operands(self) -> tuple[FusedOperand, ...]:
        """The operands of the stages alone."""
        count = sum(len(stage.operands) for stage in self.stages)
        return self.operands[:count]

    @property
    def pair_stage(self) -> int | None:
        """Place of the stage that takes pairs of columns; None without one.

        Its operands, and those of the stages after it, belong to half as many columns.
        """
        places = (place for place, stage in enumerate(self.stages) if stage.takes_pairs)
        return next(places, None)

    @property
    def wide_operands(self) -> tuple[FusedOperand, ...]:
        """Operands of the stages that see every column of the product."""
        count = sum(len(stage.operands) for stage in self.stages[: self.pair_stage])
        return self.operands[:count]

    @property
    def is_real(self) -> bool:
        """True if it makes real numbers of complex ones."""
        return any(stage.returns_real for stage in self.stages)

    @property
    def is_own(self) -> bool:
        """True if all functions are of dxgemm."""
        return all(stage.is_own for stage in (*self.stages, self.inner) if stage is not None)

    @property
    def mask_block(self) -> int:
        """Rows and columns of a block of the block mask, the last operand; 0 without one."""
        return self.operands[-1].block if self.operands and self.operands[-1].kind == "mask" else 0

    @property
    def block_scales(self) -> tuple[FusedOperand, ...]:
        """Scales of blocks of a and b, in the caller's order: operands of the last stage."""
        return tuple(operand for operand in self.operands if operand.kind == "blocks")

    @property
    def unscaled(self) -> Fusion | None:
        """The epilogue without its block scales; None if nothing is left of it."""
        if not self.block_scales:
            return self
        kept = tuple(operand for operand in self.operands if operand.kind != "blocks")
        unscaled = replace(self, stages=self.stages[:-1], operands=kept)
        return unscaled if unscaled.stages or self.inner else None

    @property
    def unmasked(self) -> Fusion | None:
        """The epilogue without its block mask; None if nothing is left of it."""
        if not self.mask_block:
            return self
        unmasked = replace(self, stages=self.stages[:-1], operands=self.operands[:-1])
        return unmasked if unmasked.stages or self.inner else None

    @property
    def is_stored_plainly(self) -> bool:
        """True if it does nothing to the elements of the result."""
        return not self.stages and self.reduction is None

    def name_of(self, stage: int) -> str:
        """Name of the function of a stage; of the inner one for a negative number."""
        name: str = (self.inner if stage < 0 else self.stages[stage]).name
        return name

    @property
    def key(self) -> str:
        """Part of the kernel's key: the same in every process."""
        digests = [stage.digest for stage in self.stages]
        parts: tuple[Any, ...] = (digests, self.operands, self.is_transposed, self.reduction)
        parts += () if self.pair_stage is None else (self.pair_stage,)
        parts += () if self.inner is None else (self.inner.identity,)
        return repr((*parts, "real") if self.is_real else parts)

    @property
    def label(self) -> str:
        """A short name that tells this epilogue from others."""
        return "epilogue " + hashlib.sha256(self.key.encode()).hexdigest()[:8]

    @property
    def format(self) -> str:
        """Format of the epilogue's kernel parameters, for `struct`."""
        return "".join(operand.format for operand in self.operands)
